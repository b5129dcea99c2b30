/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work: one budget that everything which walks input spends: bytes made on its account, nodes visited, comparisons, hash probes.
 *
 * Sizes alone bound nothing where parts are shared or compressed: a file of 12 KB may hold one list a thousand million times. A budget
 * begins with limits.work units and grows by WORK_PER_BYTE for each stored byte of metadata that is read, so that what is linear in the
 * file always passes, however large the file is, and only what multiplies inside it runs out. A unit is about one byte made.
 *
 * Every open source has a budget, as every mapping run has: limits.budget points to it, so that whoever knows the limits can spend. NULL is
 * a budget without an end. Any number of threads may spend at once; what is added and renewed is for one thread.
 */
#ifndef BASE_WORK_H
#define BASE_WORK_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WORK_STEP 16      /* units of a node visited, a comparison or a hash probe: a cache miss costs as much as writing some bytes */
#define WORK_PER_BYTE 128 /* what a stored byte adds: honest metadata takes less than half of it from the first look to the last */

struct work {
    _Atomic int64_t left; /* below 0: spent, and stays so until it is renewed */
    uint64_t limit;       /* limits.work */
    uint64_t read;        /* stored bytes that added to it */
    bool (*goes_on)(void *context, uint64_t read); /* asked as input is added; false: the work is spent, for good. May be NULL */
    void *context;
    bool is_cancelled;
};

/* A full budget of `limit` units. */
void work_begin(struct work *work, uint64_t limit);

/* Adds what so many stored bytes of input allow. For whoever reads them, once for each byte: not after decompression. */
void work_add_input(struct work *work, uint64_t stored_bytes);

/* Full again: before another run over the same input (hash, verify, convert) on the caller's own account. */
void work_renew(struct work *work);

/* Takes units; false once there are too few, which work_is_spent tells. */
static inline bool work_take(struct work *work, uint64_t units)
{
    int64_t wanted = units > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)units;
    if (!work)
        return true;
    return atomic_load_explicit(&work->left, memory_order_relaxed) >= 0 &&
           atomic_fetch_sub_explicit(&work->left, wanted, memory_order_relaxed) >= wanted;
}

/* The same for `steps` nodes, comparisons or probes. */
static inline bool work_take_steps(struct work *work, uint64_t steps)
{
    return work_take(work, steps > INT64_MAX / WORK_STEP ? INT64_MAX : steps * WORK_STEP);
}

/* As work_take, and sets the error: RESHARD_ERR_LIMIT that names `work` and how to raise it. */
reshard_status work_spend(struct work *work, uint64_t units, reshard_error *err);
reshard_status work_spend_steps(struct work *work, uint64_t steps, reshard_error *err);

/* Asks goes_on: RESHARD_ERR_CANCELLED once it has said no. */
reshard_status work_poll(struct work *work, reshard_error *err);

/* What is left, at most max: the limit of a buffer that is filled on the budget's account. */
uint64_t work_left(struct work *work, uint64_t max);

/* The error behind a failed allocation or walk that may have run out of either: the budget's if it is spent, else RESHARD_ERR_MEMORY. */
reshard_status work_error(const struct work *work, reshard_error *err);
bool work_is_spent(const struct work *work);

/* The same for a status on its way out: what failed for memory deep inside has failed for the budget if that is spent. */
reshard_status work_explain(const struct work *work, reshard_status status, reshard_error *err);

#endif
