/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which the model has its parameters, as FSDP flattens them: module by module, a module's own parameters before those of the
 * modules in it. Files tell it in parts: units have the order of theirs, groups of the optimizer that of what they train.
 */
#ifndef FORMATS_ATORCH_ORDER_H
#define FORMATS_ATORCH_ORDER_H

#include "formats/atorch/atorch_source.h"

struct atorch_order {
    uint32_t *parameters; /* of the source's model, in the model's order; those without a name are left out */
    uint32_t count;
    struct str before, after; /* two neighbours, modules or parameters, whose order nothing tells; both empty: all is told */
};

/* All lies in the arena. */
reshard_status atorch_order_find(const struct source *source, struct arena *arena, struct atorch_order *out, reshard_error *err);

#endif
