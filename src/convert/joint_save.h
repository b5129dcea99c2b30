/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One target, written by several ranks on storage that all of them see. Every rank knows what all have, lays out the same target and makes
 * the same plan; then each moves what it has itself. Target chunks that are all of one rank it writes like any conversion, in one run;
 * chunks of several are fed by each. When all have left their part, rank 0 writes what is beside payload, and makes the target visible.
 * Nothing here talks to other ranks: the caller carries parts (bytes) to rank 0.
 */
#ifndef CONVERT_JOINT_SAVE_H
#define CONVERT_JOINT_SAVE_H

#include "convert/feeding.h"

struct joint_save {
    struct feeding feeding;
    uint32_t rank;
    size_t shard_count;
    uint64_t target;      /* what is written: the same number on all ranks that were told the same */
    uint64_t identity;    /* of that, and of this save */
    struct plan *alone;   /* steps into chunks that only this rank writes */
    struct plan *mixed;   /* this rank's and others' steps into chunks that several write */
    struct plan *own;     /* all of this rank's steps */
};

/* What all ranks have: shards with their writer, and values where that is `rank` (is_elsewhere otherwise); and items, which rank 0
 * writes. */
struct joint_input {
    const struct shard *shards;
    size_t shard_count;
    const struct live_item *items;
    size_t item_count;
    uint32_t rank;
    const char *name;
};

/* On failure nothing is left. What options point to must outlive the save. */
reshard_status joint_prepare(struct joint_save *save, const struct joint_input *input, const char *target_path,
                             const struct conversion_options *options, const struct engine_options *engine, reshard_error *err);

/* A save that was prepared, and may have reached its end, is to write another target from memory that has moved: options say the same as
 * before. *out false: it has to be prepared anew. On failure and then nothing is left but to release. */
reshard_status joint_turn_to(struct joint_save *save, const struct shard *shards, const char *target_path,
                             const struct conversion_options *options, const struct engine_options *engine, bool *out, reshard_error *err);

/* Before anything is written, on all ranks with the same random number: a rank that was given up and wakes up late then finds that what
 * lies beside the target is not its save's, and does not write into it. */
void joint_set_turn(struct joint_save *save, uint64_t turn);

/* Writes this rank's payload and leaves it beside the target; appends what rank 0 needs to know of it to part. */
reshard_status joint_write(struct joint_save *save, struct buffer *part, reshard_error *err);

/* Rank 0, when all have written: parts are those of all ranks. */
reshard_status joint_commit(struct joint_save *save, const struct str *parts, uint32_t count, reshard_error *err);

/* Rank 0, before any rank writes: removes what an earlier save has left beside the target, and takes its place, so that nothing but this
 * save's ranks can write there; and removes what this one has written, when somebody failed. */
reshard_status joint_begin(struct joint_save *save, reshard_error *err);
void joint_abandon(struct joint_save *save);
void joint_release(struct joint_save *save);

#endif
