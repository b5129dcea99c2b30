/* SPDX-License-Identifier: Apache-2.0 */
/* What `verify --deep` counts in values: NaN, infinities, and whether anything is not zero. Order does not matter. */
#ifndef CONVERT_VALUE_STATS_H
#define CONVERT_VALUE_STATS_H

#include "tensor/dtype.h"

#include <stddef.h>
#include <stdint.h>

struct value_stats {
    uint64_t nan_count, inf_count;
    bool has_nonzero;
};

/* Adds count elements in native byte order, at any alignment. Types that are not floats only tell zero from non-zero. */
void value_stats_add(struct value_stats *stats, enum dtype dtype, const void *elements, size_t count);

#endif
