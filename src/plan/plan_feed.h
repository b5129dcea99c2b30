/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeding a plan: its source comes in pieces, in any order, from several threads. What a piece has of the steps that read its tensor is a
 * plan of its own, whose source is the piece, and whose target has a chunk of its own, strided where need be, for each part of a step.
 * So the engine moves pieces as it moves all else, and what that costs depends on the piece alone.
 */
#ifndef PLAN_PLAN_FEED_H
#define PLAN_PLAN_FEED_H

#include "plan/plan.h"

/* The steps of a plan by what they read; nothing changes them. */
struct plan_feeds {
    const struct plan *plan;
    uint32_t *steps;
    uint32_t *first; /* by source tensor, then those without a source, then the end */
};
reshard_status plan_feeds_new(const struct plan *plan, struct plan_feeds *out, reshard_error *err);
void plan_feeds_release(struct plan_feeds *feeds); /* { 0 } is fine */

struct plan_feed {
    struct plan *plan;       /* NULL: nothing reads the piece */
    struct catalog *target;  /* objects of the whole plan's target that the piece goes to, and a chunk a step */
    struct recipe *recipes;
    uint32_t *objects;       /* by object of target: that of the whole plan's */
    uint32_t *chunks;        /* by chunk of target: that of the whole plan's, which it lies in */
    uint32_t capacity;
    struct arena arena;
};

/*
 * piece is a sealed catalog of one tensor, of the dtype and shape of source tensor `tensor` of the whole, and one chunk: any box of it, or
 * flat run. It must outlive the feed, as the feeds' plan must. Any thread.
 */
reshard_status plan_feed_new(const struct plan_feeds *feeds, uint32_t tensor, const struct catalog *piece, struct plan_feed *out,
                             reshard_error *err);

/* The same of all steps that have no source: what is filled. */
reshard_status plan_feed_fills(const struct plan_feeds *feeds, struct plan_feed *out, reshard_error *err);
void plan_feed_release(struct plan_feed *feed);

#endif
