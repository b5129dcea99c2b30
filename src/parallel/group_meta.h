/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of parameters where they are stored parameter by parameter, as Megatron-FSDP does: optimizer.param_to_group_meta.PARAMETER.MEMBER.
 * Parameters whose members are all equal were in one group.
 */
#ifndef PARALLEL_GROUP_META_H
#define PARALLEL_GROUP_META_H

#include "base/error.h"
#include "base/name_map.h"
#include "base/value.h"

struct group_meta {
    struct value_graph *graph;   /* of all values */
    struct name_map parameters;  /* names; their numbers index dicts */
    struct value **dicts;
    uint32_t capacity;
};

/* Adds the value of a key STATE_KEY_GROUP_META; it lies in the graph. Other keys are errors of the caller. */
reshard_status group_meta_add(struct group_meta *meta, struct str key, struct value *value, reshard_error *err);

/* The list of groups, as param_groups has it without the lists of parameters: all, or only those that have an expert, marked as theirs. */
reshard_status group_meta_list(const struct group_meta *meta, bool of_experts, struct value **out, reshard_error *err);
void group_meta_release(struct group_meta *meta);

#endif
