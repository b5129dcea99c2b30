/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lockstep: reads tensors of two checkpoints side by side, in bounded memory and one pass each. The first stream runs in a thread of its
 * own and fills a ring; the second calls compare with windows of both. With more than two threads the pairs are shared out among several
 * such couples, each with as many bytes.
 */
#ifndef CONVERT_LOCKSTEP_H
#define CONVERT_LOCKSTEP_H

#include "engine/engine.h"

/* Two tensors to compare: by catalog index, on side a by the index in what is made if recipes make it. Both must have the same number of
 * bytes. */
struct lockstep_pair {
    uint32_t a, b;
};

/* How many couples of threads there will be: compare is called by that many at once, each for pairs of its own. */
unsigned lockstep_workers(const struct engine_options *options, bool is_far, uint32_t pair_count);

/* a and b are the same size bytes at the same offset of pair's two tensors; is_last ends the pair (size may be 0 then). worker counts the
 * couples from 0. */
typedef reshard_status (*lockstep_compare)(void *context, unsigned worker, uint32_t pair, uint64_t offset, const void *a, const void *b,
                                           size_t size, bool is_last, reshard_error *err);

/* Compares pairs, those of each worker in order. Each pair's tensors are streamed whole. Resolves nothing: do it before. made: how a's
 * tensors are made, or NULL: they are those of its catalog. */
reshard_status lockstep_run(const struct engine_source *a, const struct engine_made *made, const struct engine_source *b,
                            const struct lockstep_pair *pairs, uint32_t count, const struct engine_options *options,
                            lockstep_compare compare, void *context, reshard_error *err);

#endif
