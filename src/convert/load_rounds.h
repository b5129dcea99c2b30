/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading what only a function of the caller's can put in its place (a GPU's memory): its values come into memory of ours first, which is
 * called staged here, and go from there. That memory has room for a round of shards at a time.
 */
#ifndef CONVERT_LOAD_ROUNDS_H
#define CONVERT_LOAD_ROUNDS_H

#include "engine/engine.h"
#include "parallel/shard_list.h"

/* How much a round has at most: as much as a run has for its buffers. */
uint64_t load_staging_budget(const struct engine_options *options);

/* Of the shards that some ranks load: array's member. */
struct load_round {
    uint32_t rank;   /* who asks for it */
    uint32_t reader; /* number of the shard that is read and copied for this one: in the same round. Its own: it is read itself */
    uint64_t bytes;  /* that it stages */
    uint32_t round;
};

/*
 * Deals shards, in the order of their numbers, to rounds in which no rank stages more than `budget` bytes, unless all of them are of one
 * reader. Every rank that has the same descriptions deals alike. *rounds is at least 1.
 */
reshard_status load_rounds_deal(struct load_round *shards, uint32_t count, uint32_t ranks, uint64_t budget, uint32_t *rounds,
                                reshard_error *err);

/* Memory for what one rank stages. { 0 } has none. */
struct load_staging {
    uint8_t *memory;
    uint64_t size, used;
};

/* Makes memory for the largest round of a rank. */
reshard_status load_staging_new(const struct load_round *shards, uint32_t count, uint32_t rank, uint32_t rounds, struct load_staging *out,
                                reshard_error *err);
void load_staging_release(struct load_staging *staging);

/* Room for a shard's values; after the last shard of a round, used is set to 0 again. */
uint8_t *load_staging_room(struct load_staging *staging, uint64_t bytes);

/* Hands values over. CANCELLED if the function failed. */
reshard_status load_write(const struct shard *shard, const uint8_t *values, reshard_error *err);

/* Whether a shard that is to be filled can be: what has functions has one that takes values. USAGE names it. */
reshard_status load_target_check(const struct shard *shard, reshard_error *err);

/* The runs of several rounds tell their progress as one, of `total` bytes. */
struct load_progress {
    const struct engine_options *all; /* of the call */
    struct engine_progress before, last;
    uint64_t total; /* 0: there is one round, which tells its own */
};

/* What the next round's run is given. */
struct engine_options load_progress_options(struct load_progress *progress);

/* Whether some shard of the list has to be staged: it has a function, and no memory yet. */
bool load_is_staged(const struct shard_list *list);

/* Loads the values of a list of one rank, whose shards have memory or functions: load gets lists whose shards have memory, the list itself
 * if nothing is staged. */
typedef reshard_status (*list_loader)(void *context, const struct shard_list *list, const struct engine_options *options,
                                      reshard_error *err);
reshard_status load_in_rounds(const struct shard_list *list, const struct engine_options *options, list_loader load, void *context,
                              reshard_error *err);

#endif
