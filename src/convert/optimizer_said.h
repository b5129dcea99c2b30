/* SPDX-License-Identifier: Apache-2.0 */
/* conversion_torch_state.c: what a checkpoint of Megatron's says of its optimizer beside the state of parameters. */
#ifndef CONVERT_OPTIMIZER_SAID_H
#define CONVERT_OPTIMIZER_SAID_H

#include "formats/driver.h"

/* What a loaded item says of the first optimizer: a DICT with groups of parameters; NULL: nothing. */
const struct value *optimizer_said_by(const struct catalog_item *item);

/* The step, loading items; *out NULL: nothing that is a number. */
reshard_status optimizer_find_step(struct source *source, const struct value **out, reshard_error *err);

#endif
