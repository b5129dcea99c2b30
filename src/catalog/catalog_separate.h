/* SPDX-License-Identifier: Apache-2.0 */
/* Whether any two of many boxes overlap, in near-linear time for the grids and nested cuts that checkpoints are made of. */
#ifndef CATALOG_CATALOG_SEPARATE_H
#define CATALOG_CATALOG_SEPARATE_H

#include "base/error.h"
#include "tensor/box.h"

/* A box of a tensor, not empty; chunk is the index of the chunk that it is, or is part of. */
struct piece {
    const int64_t *start, *extent;
    uint32_t chunk;
};

struct separate_entry;
struct separate_range;

/* Working memory, kept from tensor to tensor. { 0 } is valid and empty. */
struct separator {
    struct separate_entry *order, *spare;
    struct separate_range *ranges;
    uint32_t order_capacity, range_count, range_capacity;
    uint64_t checks, checks_max; /* comparisons made, and allowed, for one set of pieces */
};

/* Sets *overlaps, and pair to two pieces that do. Fails without memory, or RESHARD_ERR_LIMIT above checks_max. */
reshard_status pieces_separate(struct separator *separator, const struct piece *pieces, uint32_t count, int rank, bool *overlaps,
                               uint32_t pair[2], reshard_error *err);
void separator_release(struct separator *separator);

#endif
