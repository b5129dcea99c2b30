/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conversion whose source is fed: tensors are declared, the target is laid out and begun, then values come in pieces, in any order and
 * from any thread, and go where they belong at once. What is there is kept as boxes (tensor/box_set.h), so that nothing is lost or doubled.
 */
#ifndef CONVERT_FEEDING_H
#define CONVERT_FEEDING_H

#include "convert/conversion_run.h"
#include "plan/plan_feed.h"
#include "tensor/box_set.h"

#include <pthread.h>

struct feeding {
    struct checkpoint *source;
    struct conversion_options options;
    struct conversion conversion;
    struct run run;
    struct plan_feeds feeds;
    struct box_set *there;  /* by source tensor */
    pthread_mutex_t lock;   /* of all below, of `there`, and of run.crcs */
    bool is_broken;         /* a piece that was taken is not in its place: there can be no end but to abort */
    uint64_t identity;      /* of parts and their commit */
    char *path;
    /* Asked while a piece is written, as engine_options.progress of that alone; NULL: nobody is. */
    bool (*progress)(const struct engine_progress *progress, void *context);
    void *progress_context;
};

/* A piece: memory, or what a function reads (then box.out is NULL, and there are no strides). */
struct feeding_piece {
    struct engine_box box;  /* of the source's tensors; out is only read */
    reshard_status (*read)(void *context, uint64_t offset, void *out, size_t size, reshard_error *err);
    void *context;
};

/* Takes over source, in every case: live state without values. What options point to must outlive the feeding. On failure nothing is left.
 */
reshard_status feeding_prepare(struct feeding *feeding, struct checkpoint *source, const char *target_path,
                               const struct conversion_options *options, const struct engine_options *engine, reshard_error *err);

/* The same where several have the source, in pieces: its tensors may be declared in several chunks, and the caller makes the feeds. */
reshard_status feeding_prepare_pieces(struct feeding *feeding, struct checkpoint *source, const char *target_path,
                                      const struct conversion_options *options, const struct engine_options *engine, reshard_error *err);

/* A feeding that has reached its end is to write another target, as conversion_turn_to says; it is as it was when it was prepared. */
reshard_status feeding_turn_to(struct feeding *feeding, const char *target_path, const struct conversion_options *options,
                               const struct engine_options *engine, bool *out, reshard_error *err);

/* Begins the target: from here on pieces may come. */
reshard_status feeding_begin(struct feeding *feeding, reshard_error *err);

/* What has no source. feeding_begin does it. */
reshard_status feeding_fill(struct feeding *feeding, reshard_error *err);

/* Any thread. USAGE: the piece is not taken, and all is as it was. What else fails leaves nothing but to release. */
reshard_status feeding_put(struct feeding *feeding, const struct feeding_piece *piece, reshard_error *err);

/* Makes the target visible, or leaves the part that the options name beside it. USAGE names what is missing: it may still come. On success
 * nothing is left to do but to release. */
reshard_status feeding_finish(struct feeding *feeding, reshard_error *err);

/* Makes visible what parts have written that were prepared with the same tensors and options; this feeding was not begun. RESHARD_DIFFERS
 * names a part or elements that are missing or there twice. */
reshard_status feeding_commit(struct feeding *feeding, reshard_error *err);

/* What was begun and not finished is removed, but not what a part wrote. */
void feeding_release(struct feeding *feeding);

#endif
