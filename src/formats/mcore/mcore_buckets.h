/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's layouts of optimizer state by buffer, written: dp_reshardable, where every bucket of a group of data-parallel ranks is a
 * vector in .metadata, and dp_zero_gather_scatter, where an object holds a group's buffers as vectors.
 *
 * The tensors of the target are those of parameters all the same, and their chunks lie in the vectors of dcp_vectors.h.
 */
#ifndef FORMATS_MCORE_MCORE_BUCKETS_H
#define FORMATS_MCORE_MCORE_BUCKETS_H

#include "formats/mcore/mcore_target.h"
#include "parallel/flat_buffer_rules.h"
#include "parallel/rank_parameters.h"
#include "parallel/wanted_states.h"

/* One optimizer of a group of data-parallel ranks. */
struct mcore_group {
    struct rank_place place;
    bool is_expert;
    int64_t index;             /* dp_group_idx */
    struct rank_parameters rank;
    struct flat_buffer_rules rules;
    struct flat_buffers made;
    uint32_t first_vector;     /* of the target: [bucket, or buffer][state] */
};

struct mcore_buckets {
    struct arena arena;
    struct parallel_model model;
    struct wanted_state states[WANTED_STATES_MAX];
    uint32_t state_count;
    bool has_experts;          /* experts have an optimizer of their own: names carry its number */
    struct mcore_group *groups;
    uint32_t group_count, group_capacity;
};

/*
 * Lays the buffers out for the run that args (a Namespace) describe. UNSUPPORTED says why the state cannot lie in buffers, and leaves
 * nothing.
 */
reshard_status mcore_buckets_make(const struct layout_request *request, struct mcore_target *state, const struct value *args,
                                 reshard_error *err);
void mcore_buckets_free(struct mcore_buckets *buckets);

/* "chained_1." before names of an optimizer among several, and "optimizer.distributed.dp_group_idx_3."; in arena, NULL without memory. */
char *mcore_group_prefix(struct arena *arena, const struct mcore_buckets *buckets, const struct mcore_group *group);

/* Whether the target's tensor lies in vectors. */
bool mcore_is_in_buffers(const struct mcore_target *state, const struct catalog *catalog, uint32_t tensor);

/* Adds the chunks of all state. Runs have their places. */
reshard_status mcore_add_run_chunks(struct target *target, reshard_error *err);

/* ---- mcore_bucket_objects.c ---- */

/*
 * Adds the objects that belong to the layout: how large buckets are, or the buffers themselves, and the parameter groups of `optimizer`,
 * the value of the common state (of the wanted item optimizer_item), from which they are taken out: *optimizer becomes what is left.
 */
reshard_status mcore_bucket_objects_add(const struct layout_request *request, struct mcore_target *state, uint32_t optimizer_item,
                                       struct value **optimizer, reshard_error *err);

#endif
