/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_buckets.h"

#include "base/array.h"
#include "base/checked.h"
#include "parallel/vector_chunks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>


/* ---- vectors and runs ---- */

/* The type that the state of all parameters of the places has: they share a vector. */
static reshard_status state_dtype(const struct mcore_buckets *buckets, const struct catalog *wanted, const struct mcore_group *group,
                                  uint32_t first_place, uint32_t place_count, const struct wanted_state *kind, enum dtype *out,
                                  reshard_error *err)
{
    for (uint32_t i = 0; i < place_count; i++) {
        uint32_t parameter = group->rank.indices[group->made.places[first_place + i].parameter];
        enum dtype dtype = wanted->tensors[kind->tensors[buckets->model.parameters[parameter].tensor] - 1].dtype;
        if (dtype_element_bytes(dtype) == 0)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "state '%.*s' is of dtype %s, whose elements are no whole bytes",
                             STR_ARG(kind->name), dtype_info(dtype)->name);
        if (i > 0 && dtype != *out)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "state '%.*s' has several dtypes, and would lie in one vector",
                             STR_ARG(kind->name));
        *out = dtype;
    }
    return RESHARD_OK;
}

/* Which of all ranks has part number `part` of a group's buckets. */
static uint32_t global_rank(const struct mcore_buckets *buckets, const struct mcore_group *group, int64_t part)
{
    const struct parallel_layout *layout = &buckets->model.context.layout;
    const struct rank_place *place = &group->place;
    int64_t rank = group->is_expert ? ((place->pp * group->rules.dp + part) * layout->ep + place->ep) * layout->etp + place->etp
                                    : (place->pp * group->rules.dp + part) * layout->tp + place->tp;
    return catalog_writer((uint64_t)rank);
}

/* A stretch of a bucket, cut where ranks begin and where it would be too large. */
static reshard_status mcore_buckets_add_stretch(const struct layout_request *request, struct mcore_target *state,
                                                const struct mcore_group *group, const struct flat_bucket *bucket, int64_t start,
                                                int64_t end, int64_t longest, reshard_error *err)
{
    int64_t part = bucket->count / group->rules.dp;
    reshard_status status = RESHARD_OK;
    while (start < end && !status) {
        int64_t next = (start / part + 1) * part, stop = end < next ? end : next;
        stop = stop - start > longest ? start + longest : stop;
        const struct dcp_run run = { .start = start, .count = stop - start, .rank = global_rank(state->buckets, group, start / part) };
        status = dcp_vectors_add_run(&state->dcp.vectors, &run, request->limits.chunks, err);
        start = stop;
    }
    return status;
}

/* One state of one bucket: the runs are the parts of parameters that one rank has, and what lies between. */
static reshard_status add_bucket(const struct layout_request *request, struct mcore_target *state, const struct mcore_group *group,
                                 const char *key, uint32_t index, const struct wanted_state *kind, reshard_error *err)
{
    struct mcore_buckets *buckets = state->buckets;
    const struct flat_bucket *bucket = &group->made.buckets[index];
    enum dtype dtype = DTYPE_F32;
    uint64_t longest;
    int64_t next = 0;
    const struct str name = ARENA_JOIN(&buckets->arena, str_of(key), STR("."), kind->is_master ? STR(STATE_MASTER) : kind->name);
    if (!name.data)
        return error_set_memory(err);
    reshard_status status = state_dtype(buckets, request->wanted, group, bucket->first_place, bucket->place_count, kind, &dtype, err);
    if (!status)
        status = mcore_chunk_bytes(request, &longest, err);
    if (!status)
        status = dcp_vectors_add(&state->dcp.vectors, name, dtype, bucket->unpadded, err);
    if (status)
        return status;
    longest /= dtype_element_bytes(dtype);
    longest = longest < 1 ? 1 : longest;
    longest = longest > INT64_MAX ? INT64_MAX : longest;
    for (uint32_t i = 0; i < bucket->place_count && !status; i++) {
        const struct flat_place *place = &group->made.places[bucket->first_place + i];
        int64_t start = place->start - bucket->start, end = start + place->count;
        status = mcore_buckets_add_stretch(request, state, group, bucket, next, start, (int64_t)longest, err);
        if (!status)
            status = mcore_buckets_add_stretch(request, state, group, bucket, start, end, (int64_t)longest, err);
        next = end;
    }
    return status ? status : mcore_buckets_add_stretch(request, state, group, bucket, next, bucket->unpadded, (int64_t)longest, err);
}

static reshard_status add_buckets(const struct layout_request *request, struct mcore_target *state, const struct mcore_group *group,
                                  reshard_error *err)
{
    struct mcore_buckets *buckets = state->buckets;
    char *prefix = mcore_group_prefix(&buckets->arena, buckets, group);
    reshard_status status = prefix ? RESHARD_OK : error_set_memory(err);
    for (uint32_t b = 0; b < group->made.buffer_count && !status; b++) {
        const struct flat_buffer *buffer = &group->made.buffers[b];
        for (uint32_t i = 0; i < buffer->bucket_count && !status; i++) {
            char *key = arena_printf(&buckets->arena, "%sgbuf_idx_%" PRIu32 ".dtype_(torch.%s, torch.%s).bucket_idx_%" PRIu32, prefix, b,
                                     dtype_info(buffer->param_dtype)->torch_name, dtype_info(buffer->grad_dtype)->torch_name, i);
            if (!key)
                return error_set_memory(err);
            for (uint32_t s = 0; s < buckets->state_count && !status; s++)
                status = add_bucket(request, state, group, key, buffer->first_bucket + i, &buckets->states[s], err);
        }
    }
    return status;
}

/* The gathered buffers, each a vector of one run without the padding at the ends of buckets. */
static reshard_status add_buffers(const struct layout_request *request, struct mcore_target *state, const struct mcore_group *group,
                                  reshard_error *err)
{
    const struct mcore_buckets *buckets = state->buckets;
    reshard_status status = RESHARD_OK;
    for (uint32_t b = 0; b < group->made.buffer_count; b++) {
        const struct flat_buffer *buffer = &group->made.buffers[b];
        for (uint32_t s = 0; s < buckets->state_count; s++) {
            enum dtype dtype = DTYPE_F32;
            status =
                state_dtype(buckets, request->wanted, group, buffer->first_place, buffer->place_count, &buckets->states[s], &dtype, err);
            if (!status)
                status = dcp_vectors_add(&state->dcp.vectors, (struct str){ 0 }, dtype, buffer->unpadded, err);
            const struct dcp_run run = { .count = buffer->unpadded };
            if (!status)
                status = dcp_vectors_add_run(&state->dcp.vectors, &run, request->limits.chunks, err);
            if (status)
                return status;
        }
    }
    return status;
}

/* ---- groups ---- */

char *mcore_group_prefix(struct arena *arena, const struct mcore_buckets *buckets, const struct mcore_group *group)
{
    return arena_printf(arena, "%s" STATE_KEY_GROUP "%" PRId64 ".",
                        buckets->has_experts ? group->is_expert ? STATE_KEY_EXPERTS : STATE_KEY_DENSE : "", group->index);
}

/* Gradients are reduced in fp32 unless the arguments say otherwise. */
static void mcore_buckets_set_gradients(const struct mcore_buckets *buckets, struct rank_parameters *rank)
{
    bool is_short = training_args_int(&buckets->model.args, "accumulate_allreduce_grads_in_fp32") == 0;
    for (uint32_t i = 0; i < rank->count; i++)
        rank->parameters[i].grad_dtype = is_short ? rank->parameters[i].param_dtype : DTYPE_F32;
}

static reshard_status mcore_buckets_add_group(const struct layout_request *request, struct mcore_target *state,
                                              const struct rank_place *place, bool is_expert, int64_t index, reshard_error *err)
{
    struct mcore_buckets *buckets = state->buckets;
    if (!ARRAY_ROOM(buckets->groups, buckets->group_count, buckets->group_capacity))
        return error_set_memory(err);
    struct mcore_group *group = &buckets->groups[buckets->group_count];
    struct training_run run;
    *group = (struct mcore_group){ .place = *place, .is_expert = is_expert, .index = index, .first_vector = state->dcp.vectors.count };
    reshard_status status = rank_parameters_make(&buckets->model, request->wanted, place, is_expert, &group->rank, err);
    /* A stage without experts has their optimizer all the same. */
    if (status || (group->rank.count == 0 && !(is_expert && state->optimizer_layout == MCORE_BUCKETS))) {
        rank_parameters_release(&group->rank);
        return status;
    }
    buckets->group_count++;
    mcore_buckets_set_gradients(buckets, &group->rank);
    status = rank_training_run(&buckets->model, request->wanted, place, &run, err);
    if (!status)
        status = flat_buffer_rules_of(&run, group->rank.parameters, group->rank.count, is_expert, &group->rules, err);
    if (!status)
        status = flat_buffers_make(group->rank.parameters, group->rank.count, is_expert, &group->rules, &group->made, err);
    if (status)
        return status;
    return state->optimizer_layout == MCORE_GATHERED ? add_buffers(request, state, group, err) : add_buckets(request, state, group, err);
}

static reshard_status add_groups(const struct layout_request *request, struct mcore_target *state, reshard_error *err)
{
    struct mcore_buckets *buckets = state->buckets;
    const struct parallel_layout *layout = &buckets->model.context.layout;
    reshard_status status = RESHARD_OK;
    for (int64_t pp = 0; pp < layout->pp && !status; pp++) {
        for (int64_t tp = 0; tp < layout->tp && !status; tp++) {
            const struct rank_place place = { .pp = pp, .tp = tp, .etp = tp % layout->etp };
            status = mcore_buckets_add_group(request, state, &place, false, pp * layout->tp + tp, err);
        }
        for (int64_t i = 0; buckets->has_experts && i < layout->ep * layout->etp && !status; i++) {
            const struct rank_place place = { .pp = pp, .ep = i / layout->etp, .etp = i % layout->etp };
            status = mcore_buckets_add_group(request, state, &place, true, pp * layout->ep * layout->etp + i, err);
        }
    }
    return status;
}

/* Experts are spread over whole ranks. */
static reshard_status check_ranks(const struct mcore_buckets *buckets, reshard_error *err)
{
    const struct parallel_model *model = &buckets->model;
    const struct parallel_layout *layout = &model->context.layout;
    int64_t world = model->args.world_size, experts;
    if (!checked_mul_i64(layout->ep, layout->etp, &experts) || !checked_mul_i64(experts, layout->pp, &experts))
        return error_set(err, RESHARD_ERR_FORMAT, "args: the parallel sizes overflow");
    if (!buckets->has_experts || (world > 0 && world % experts == 0))
        return RESHARD_OK;
    error_set(err, RESHARD_ERR_UNSUPPORTED, "%" PRId64 " ranks are not divided by pp=%" PRId64 ", ep=%" PRId64 ", etp=%" PRId64, world,
              layout->pp, layout->ep, layout->etp);
    error_hint(err, "reshard_convert_options.layout dp=N says how many data-parallel ranks there are");
    return RESHARD_ERR_UNSUPPORTED;
}

/* Every parameter has all kinds of state, the master among them. */
static reshard_status mcore_buckets_check_states(const struct mcore_buckets *buckets, const struct catalog *wanted, reshard_error *err)
{
    bool has_master = false;
    for (uint32_t s = 0; s < buckets->state_count; s++)
        has_master |= buckets->states[s].is_master;
    if (!has_master)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "the distributed optimizer has fp32 masters of the parameters, and the source has none");
    for (uint32_t i = 0; i < buckets->model.count; i++) {
        uint32_t weight = buckets->model.parameters[i].tensor;
        for (uint32_t s = 0; s < buckets->state_count; s++) {
            if (!buckets->states[s].tensors[weight])
                return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has no state '%.*s', which other parameters have",
                                 STR_ARG(wanted->tensors[weight].key), STR_ARG(buckets->states[s].name));
        }
    }
    return RESHARD_OK;
}

reshard_status mcore_buckets_make(const struct layout_request *request, struct mcore_target *state, const struct value *args,
                                 reshard_error *err)
{
    struct mcore_buckets *buckets = calloc(1, sizeof(*buckets));
    if (!buckets)
        return error_set_memory(err);
    state->buckets = buckets;
    state->dcp.vectors.are_blobs = state->optimizer_layout == MCORE_BUCKETS;
    reshard_status status = parallel_model_make(request->wanted, args, &buckets->model, err);
    for (uint32_t i = 0; i < buckets->model.count && !status; i++)
        buckets->has_experts |= buckets->model.parameters[i].is_expert;
    if (!status)
        status = check_ranks(buckets, err);
    if (!status)
        status = wanted_states_find(request->wanted, &buckets->arena, buckets->states, &buckets->state_count, err);
    if (!status)
        status = mcore_buckets_check_states(buckets, request->wanted, err);
    if (!status)
        status = add_groups(request, state, err);
    if (status) {
        mcore_buckets_free(buckets);
        dcp_vectors_release(&state->dcp.vectors);
        state->buckets = NULL;
    }
    return status;
}

void mcore_buckets_free(struct mcore_buckets *buckets)
{
    if (!buckets)
        return;
    for (uint32_t i = 0; i < buckets->group_count; i++) {
        rank_parameters_release(&buckets->groups[i].rank);
        flat_buffers_release(&buckets->groups[i].made);
    }
    free(buckets->groups);
    parallel_model_release(&buckets->model);
    arena_release(&buckets->arena);
    free(buckets);
}

bool mcore_is_in_buffers(const struct mcore_target *state, const struct catalog *catalog, uint32_t tensor)
{
    return state->buckets && str_starts_with(catalog->tensors[tensor].key, STATE_KEY_PREFIX);
}

/* ---- chunks ---- */

/* The runs of a vector, as places for chunks. */
static void mcore_buckets_list_parts(const struct dcp_vectors *vectors, const struct dcp_vector *vector, struct vector_part *parts)
{
    for (uint32_t i = 0; i < vector->run_count; i++) {
        const struct dcp_run *run = &vectors->runs[vector->first_run + i];
        parts[i] = (struct vector_part){ .start = run->start,
                                         .count = run->count,
                                         .object = run->object,
                                         .offset = run->payload,
                                         .flags = CHUNK_WANT_CRC,
                                         .writer = (uint16_t)run->rank,
                                         .driver_data = DCP_IN_RUN | (vector->first_run + i) };
    }
}

/* The chunks of one state of the parameters in a bucket, or in a buffer. */
static reshard_status add_vector_chunks(struct target *target, const struct mcore_group *group, uint32_t first_place, uint32_t place_count,
                                        bool is_packed, const struct wanted_state *kind, const struct dcp_vector *vector,
                                        reshard_error *err)
{
    const struct mcore_buckets *buckets = mcore_target_state(target)->buckets;
    struct vector_part *parts = array_zeroed(vector->run_count, sizeof(*parts));
    reshard_status status = parts ? RESHARD_OK : error_set_memory(err);
    if (!status)
        mcore_buckets_list_parts(&mcore_target_state(target)->dcp.vectors, vector, parts);
    const struct stored_vector stored = { .dtype = vector->dtype, .count = vector->count, .parts = parts, .part_count = vector->run_count };
    for (uint32_t i = 0; i < place_count && !status; i++) {
        const struct flat_place *place = &group->made.places[first_place + i];
        const struct model_parameter *parameter = &buckets->model.parameters[group->rank.indices[place->parameter]];
        int64_t start = is_packed ? flat_packed_start(&group->made, place) : place->start - group->made.buckets[place->bucket].start;
        status = vector_chunks_add(target->catalog, kind->tensors[parameter->tensor] - 1, parameter, &group->place, &stored, start, err);
    }
    free(parts);
    return status;
}

reshard_status mcore_add_run_chunks(struct target *target, reshard_error *err)
{
    const struct mcore_target *state = mcore_target_state(target);
    const struct mcore_buckets *buckets = state->buckets;
    bool is_packed = state->optimizer_layout == MCORE_GATHERED;
    reshard_status status = RESHARD_OK;
    for (uint32_t g = 0; buckets && g < buckets->group_count; g++) {
        const struct mcore_group *group = &buckets->groups[g];
        uint32_t count = is_packed ? group->made.buffer_count : group->made.bucket_count;
        for (uint32_t i = 0; i < count * buckets->state_count && !status; i++) {
            uint32_t at = i / buckets->state_count;
            uint32_t first = is_packed ? group->made.buffers[at].first_place : group->made.buckets[at].first_place;
            uint32_t places = is_packed ? group->made.buffers[at].place_count : group->made.buckets[at].place_count;
            status = add_vector_chunks(target, group, first, places, is_packed, &buckets->states[i % buckets->state_count],
                                       &state->dcp.vectors.vectors[group->first_vector + i], err);
        }
    }
    return status;
}
