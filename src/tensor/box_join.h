/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Box join: which boxes overlap, in near-linear time for the grids and nested cuts that checkpoints are made of. box_join finds all pairs
 * between two sets (a plan's sources and targets), boxes_overlap whether there is a pair within one set (a catalog's chunks).
 *
 * Sets are cut into slabs between which one of them has a clean cut on the axis that separates it best, and each slab again on another
 * axis: a regular grid takes one sort per axis. What no axis cuts is swept. Boxes that lie in no slab drop out at once.
 *
 * A joiner is one thread's working memory. Boxes stay the caller's, and so do the vectors that they point at.
 */
#ifndef TENSOR_BOX_JOIN_H
#define TENSOR_BOX_JOIN_H

#include "base/error.h"
#include "base/sort.h"
#include "tensor/box.h"

/* A box that is not empty; owner is the caller's number of what it is, or is a part of. */
struct join_box {
    const int64_t *start, *extent;
    uint32_t owner;
};

/* Receives the overlap of a pair; false stops the join for want of memory. */
typedef bool (*box_join_emit)(void *context, uint32_t source_owner, uint32_t target_owner, const int64_t *start, const int64_t *extent);

struct join_item;

/* Working memory, kept from join to join. { 0 } is valid and empty, but allows no comparison that finds nothing. */
struct box_joiner {
    struct sort_entry *stack; /* lists of box numbers, both sides */
    struct sort_entry *spare;
    uint32_t *active;
    struct join_item *items;
    size_t stack_count, stack_capacity, spare_capacity, active_capacity;
    uint32_t item_count, item_capacity;
    uint64_t misses, misses_max; /* comparisons that found nothing: made, and allowed in one join, which the caller sets */
};

/* Emits every pair of a source and a target that overlap, once. RESHARD_ERR_LIMIT above misses_max, else RESHARD_ERR_MEMORY. */
reshard_status box_join(struct box_joiner *joiner, int rank, const struct join_box *sources, uint32_t source_count,
                        const struct join_box *targets, uint32_t target_count, box_join_emit emit, void *context, reshard_error *err);

/* Sets *overlaps if two of the boxes do, and pair to the indices of two such, the lower first. Fails as box_join does. */
reshard_status boxes_overlap(struct box_joiner *joiner, int rank, const struct join_box *boxes, uint32_t count, bool *overlaps,
                             uint32_t pair[2], reshard_error *err);

void box_joiner_release(struct box_joiner *joiner);

#endif
