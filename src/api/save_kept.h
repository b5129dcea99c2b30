/* SPDX-License-Identifier: Apache-2.0 */
/* What a save has planned, and what it was planned for: kept for the next save of the same. */
#ifndef API_SAVE_KEPT_H
#define API_SAVE_KEPT_H

#include "api/convert_call.h"
#include "api/sharded_group.h"
#include "convert/joint_save.h"

/* What becomes of what ranks have described. It may not be moved: the joint save points into it. */
struct save_plan {
    struct sharded_group group;
    struct sharded_dict *said;  /* by rank: objects and common values as they are now; NULL: those of group */
    struct joint_save joint;
    struct shard *shards;       /* main copies of all ranks, a rank's behind each other */
    struct live_item *items;
    size_t shard_count, item_count;
    struct value_graph bytes;   /* values of objects that are bytes */
    struct arena keys;          /* of objects */
};

/* { 0 } is empty. */
void save_plan_release(struct save_plan *plan);

/* Objects and common values of a rank. */
const struct sharded_dict *save_plan_values(const struct save_plan *plan, uint32_t rank);

struct reshard_kept {
    struct save_plan plan;
    uint64_t number;            /* of the plan, the same on all ranks; 0: there is none */
    uint64_t own;               /* hash of what this rank described */
    uint64_t *values;           /* by rank: hash of objects and common values */
    uint64_t uses;              /* since the beginning, which other ranks need not share */
    uint64_t turn;              /* uses of this plan, the same on all ranks */
    uint32_t rank, size;
    reshard_save_options options; /* that it is for; texts lie in the arena */
    struct conversion_options convert;
    struct arena texts;
};

/* Drops the plan. */
void kept_clear(struct reshard_kept *kept);

/* Whether options have nothing but what a plan can be kept for. */
bool kept_can(const struct convert_call *call);

/* Takes a copy of the options; whether a later save's say the same; and has a call use the copied texts, which live as long as the plan. */
bool kept_take_options(struct reshard_kept *kept, const reshard_save_options *options, const struct convert_call *call);
bool kept_match_options(const struct reshard_kept *kept, const reshard_save_options *options, const struct convert_call *call);
void kept_use_options(const struct reshard_kept *kept, struct convert_call *call);

/* Hash of the description of a rank's tensors and objects, 0 without memory; and what its objects and values are, to be unpacked. */
uint64_t kept_description(const struct sharded_dict *dict);
bool kept_values_pack(const struct sharded_dict *dict, struct buffer *out);

#endif
