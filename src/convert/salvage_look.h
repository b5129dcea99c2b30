/* SPDX-License-Identifier: Apache-2.0 */
/* Looks through a damaged checkpoint: what of it is there, and what checksums say. */
#ifndef CONVERT_SALVAGE_LOOK_H
#define CONVERT_SALVAGE_LOOK_H

#include "convert/salvage_remains.h"
#include "engine/engine.h"

/* Fills remains, in which what nobody asked for is marked. The findings are of what is no tensor's and no item's. */
reshard_status salvage_look(struct remains *remains, const struct engine_options *engine, struct finding_sink *findings,
                            reshard_error *err);

/* Whether the warning names a tensor or an item that is listed as lost, or the place of one. */
bool salvage_is_told(const struct remains *remains, const struct catalog_warning *warning);

#endif
