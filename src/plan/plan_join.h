/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Join: all pairs of a source box and a target box that overlap, in near-linear time for the grids and nested cuts that checkpoints
 * are made of.
 *
 * Both sets are cut into slabs between which one of them has a clean cut on the axis that separates it best, and each slab again on
 * another axis: a regular grid takes one sort per axis. What no axis cuts is swept. Boxes that lie in no slab drop out at once.
 */
#ifndef PLAN_PLAN_JOIN_H
#define PLAN_PLAN_JOIN_H

#include "base/error.h"
#include "plan/plan_sort.h"
#include "tensor/box.h"

/* A box that is not empty; chunk is the index of the chunk that it is, or is part of. */
struct join_box {
    const int64_t *start, *extent;
    uint32_t chunk;
};

/* Receives the overlap of a pair; false stops the join for want of memory. */
typedef bool (*join_emit)(void *context, uint32_t source_chunk, uint32_t target_chunk, const int64_t *start, const int64_t *extent);

struct join_item;

/* Working memory, kept from join to join. { 0 } is valid and empty. */
struct joiner {
    struct sort_entry *stack; /* lists of box numbers, both sides */
    struct sort_entry *spare;
    uint32_t *active;
    struct join_item *items;
    size_t stack_count, stack_capacity, spare_capacity, active_capacity;
    uint32_t item_count, item_capacity;
    uint64_t misses, misses_max; /* comparisons that found nothing: made, and allowed in one join, which the caller sets */
};

reshard_status join_boxes(struct joiner *joiner, int rank, const struct join_box *sources, uint32_t source_count,
                          const struct join_box *targets, uint32_t target_count, join_emit emit, void *context, reshard_error *err);
void joiner_release(struct joiner *joiner);

#endif
