/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budget: how many workers run and what each may use. Everything that grows with the data while it flows comes out of one block that
 * is allocated before: a share for each worker, of which an eighth holds the records of the job in hand and the rest its bytes.
 */
#ifndef ENGINE_ENGINE_BUDGET_H
#define ENGINE_ENGINE_BUDGET_H

#include "engine/engine.h"

struct engine_budget {
    unsigned workers;
    size_t share_bytes;
    size_t data_bytes;     /* the end of a share, aligned to 64, and to 4096 in shares that are not tiny */
    uint32_t parts_max;    /* records of a share */
    uint32_t decoders_max; /* streams that a worker keeps open */
    uint64_t decoded_bytes; /* for chunks that are decoded as a whole, and for decoding them; 0: the plan has none */
    uint64_t chunk_bytes;   /* the largest such chunk, decoded */
    uint64_t between_bytes; /* what decoding one may need beside it */
    unsigned decodes_max;   /* so many are decoded at a time */
};

/* The block is workers * share_bytes. */
struct engine_budget budget_of(const struct plan *plan, const struct engine_options *options);

/* Fails if a chunk that is decoded as a whole does not fit the memory. */
reshard_status budget_check(const struct engine_budget *budget, const struct engine_options *options, reshard_error *err);

/* How many threads may compress objects of up to so many bytes at a time. */
unsigned packers_wanted(uint64_t object_bytes, const struct engine_options *options);

#endif
