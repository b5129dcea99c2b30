/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's layouts of optimizer state by buffer, written: dp_reshardable, where every bucket of a group of data-parallel ranks is a
 * vector in .metadata, and dp_zero_gather_scatter, where an object holds a group's buffers as vectors.
 *
 * The tensors of the target are those of parameters all the same, and their chunks lie in runs: a run is a part of a vector in one place of
 * a file. What no chunk fills is zero.
 */
#ifndef FORMATS_MCORE_MCORE_BUCKETS_H
#define FORMATS_MCORE_MCORE_BUCKETS_H

#include "formats/dcp/dcp_target.h"
#include "parallel/flat_buffer_rules.h"
#include "parallel/rank_parameters.h"
#include "parallel/wanted_states.h"

struct mcore_run {
    int64_t start, count;      /* elements of its vector */
    uint32_t vector;
    uint32_t rank;             /* of all ranks: the one that owns it */
    uint32_t object;           /* of the target's catalog */
    uint64_t blob_offset, blob_bytes; /* of the archive around it, dp_reshardable */
    uint64_t payload;          /* of its first element, in the object */
};

struct mcore_vector {
    struct str key;            /* in .metadata */
    enum dtype dtype;
    int64_t count;
    uint32_t first_run, run_count;
};

/* One optimizer of a group of data-parallel ranks. */
struct mcore_group {
    struct rank_place place;
    bool is_expert;
    int64_t index;             /* dp_group_idx */
    struct rank_parameters rank;
    struct flat_buffer_rules rules;
    struct flat_buffers made;
    uint32_t first_vector;     /* [bucket, or buffer][state] */
};

struct mcore_buckets {
    struct arena arena;
    struct parallel_model model;
    struct wanted_state states[WANTED_STATES_MAX];
    uint32_t state_count;
    bool has_experts;          /* experts have an optimizer of their own: names carry its number */
    struct mcore_group *groups;
    struct mcore_vector *vectors;
    struct mcore_run *runs;
    uint32_t group_count, vector_count, run_count, group_capacity, vector_capacity, run_capacity;
};

/*
 * Lays the buffers out for the run that args (a Namespace) describe. UNSUPPORTED says why the state cannot lie in buffers, and leaves
 * nothing.
 */
reshard_status mcore_buckets_make(const struct layout_request *request, struct dcp_target *state, const struct value *args,
                                 reshard_error *err);
void mcore_buckets_free(struct mcore_buckets *buckets);

/* "chained_1." before names of an optimizer among several, and "optimizer.distributed.dp_group_idx_3."; in arena, NULL without memory. */
char *mcore_group_prefix(struct arena *arena, const struct mcore_buckets *buckets, const struct mcore_group *group);

/* Whether the target's tensor lies in runs. */
bool mcore_is_in_buffers(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor);

/* dp_reshardable: the pieces of all runs. */
reshard_status mcore_place_runs(struct dcp_placing *placing, reshard_error *err);

/* The archive around a run of dp_reshardable. */
reshard_status mcore_run_frame(const struct mcore_buckets *buckets, uint32_t run, struct torch_frame *out, reshard_error *err);

/* Adds the chunks of all state. Runs have their places. */
reshard_status mcore_add_run_chunks(struct target *target, reshard_error *err);

/* CRC-32s of all runs, from those of the chunks; free() them. */
reshard_status mcore_run_crcs(const struct publish_job *job, uint32_t **out, reshard_error *err);

/* ---- dist_bucket_objects.c ---- */

/*
 * Adds the objects that belong to the layout: how large buckets are, or the buffers themselves, and the parameter groups of `optimizer`,
 * the value of the common state (of the wanted item optimizer_item), from which they are taken out: *optimizer becomes what is left.
 */
reshard_status mcore_bucket_objects_add(const struct layout_request *request, struct dcp_target *state, uint32_t optimizer_item,
                                       struct value **optimizer, reshard_error *err);

#endif
