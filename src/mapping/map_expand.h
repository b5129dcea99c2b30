/* SPDX-License-Identifier: Apache-2.0 */
/* All macros in upstream's fixed order: offset, ids, arrays, stars, (record of names), transposes, fused. */
#ifndef MAPPING_MAP_EXPAND_H
#define MAPPING_MAP_EXPAND_H

#include "mapping/map_macro.h"

/* Expands program into *out (released by the caller, on failure too); program must outlive it. context->arena and work are set inside. */
reshard_status map_expand(struct map_macro_context *context, const struct map_program *program, struct map_program *out,
                          reshard_error *err);

#endif
