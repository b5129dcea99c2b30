/* SPDX-License-Identifier: Apache-2.0 */
/* Layers: arguments are checked here, the rules are those of src/parallel/layer_rules. */
#include "reshard/layers.h"

#include "api/handle.h"
#include "api/public_shards.h"
#include "base/buffer.h"
#include "base/checked.h"
#include "parallel/expert_keys.h"
#include "parallel/layer_rules.h"

#include <inttypes.h>
#include <stdlib.h>

_Static_assert(RESHARD_LAYER_HEAD == (int)LAYER_HEAD && RESHARD_LAYER_ROW == (int)LAYER_ROW, "kinds have the numbers of the header");

/* What a call was given. */
struct layer_call {
    reshard_layer layer;
    reshard_coordinates at;
    struct layer_rule rule;
    struct layer_place place;
    reshard_front_axis *given_front;
    struct front_axis front[RANK_MAX];
    reshard_local_tensor *tensors;
};

static void layer_call_release(struct layer_call *call)
{
    free(call->given_front);
    free(call->tensors);
}

static reshard_status place_of_group(const char *name, int64_t rank, int64_t *size, reshard_error *err)
{
    *size = *size ? *size : 1;
    if (rank >= 0 && rank < *size)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE, "%s: rank %" PRId64 " of %" PRId64, name, rank, *size);
}

static reshard_status layer_coordinates(struct layer_call *call, reshard_error *err)
{
    reshard_coordinates *at = &call->at;
    reshard_status status = place_of_group("reshard_coordinates.tp_rank", at->tp_rank, &at->tp_size, err);
    if (!status)
        status = place_of_group("reshard_coordinates.ep_rank", at->ep_rank, &at->ep_size, err);
    if (!status)
        status = place_of_group("reshard_coordinates.expert_tp_rank", at->expert_tp_rank, &at->expert_tp_size, err);
    call->place.layout = (struct parallel_layout){ at->tp_size, 1, 1, at->ep_size, at->expert_tp_size };
    call->place.rank = (struct rank_place){ at->tp_rank, 0, at->ep_rank, at->expert_tp_rank };
    return status;
}

static reshard_status layer_front(struct layer_call *call, reshard_error *err)
{
    const reshard_layer *layer = &call->layer;
    if (layer->front_axis_count > RANK_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_layer.front_axes: %zu axes", layer->front_axis_count);
    reshard_status status = array_take(layer->front_axes, layer->front_axis_count, layer->front_axis_stride, sizeof(*call->given_front),
                                       "reshard_front_axis", (void **)&call->given_front, err);
    for (size_t i = 0; i < layer->front_axis_count && !status; i++) {
        const reshard_front_axis *axis = &call->given_front[i];
        call->front[i] = (struct front_axis){ axis->index, axis->count };
        if (axis->index < 0 || axis->index >= axis->count)
            status = error_set(err, RESHARD_ERR_USAGE, "reshard_layer.front_axes: place %" PRId64 " of %" PRId64, axis->index, axis->count);
    }
    call->place.front = call->front;
    call->place.front_count = (int)layer->front_axis_count;
    return status;
}

static reshard_status layer_call_begin(const reshard_layer *layer, const reshard_coordinates *at, struct layer_call *out,
                                       reshard_error *err)
{
    *out = (struct layer_call){ .given_front = NULL };
    reshard_status status = struct_take(&out->layer, sizeof(out->layer), layer, "reshard_layer", err);
    if (!status)
        status = struct_take(&out->at, sizeof(out->at), at, "reshard_coordinates", err);
    if (status)
        return status;
    const reshard_layer *given = &out->layer;
    if (given->kind < 0 || given->kind >= LAYER_KIND_COUNT)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_layer.kind: %" PRId64 " is no kind of layer", given->kind);
    out->rule = (struct layer_rule){ (enum layer_kind)given->kind, given->is_in_out != 0, given->is_transposed != 0,
                                     given->is_gated != 0,         given->is_expert != 0, given->has_expert_axis != 0 };
    status = layer_coordinates(out, err);
    if (!status)
        status = layer_front(out, err);
    return status ? status
                  : array_take(given->tensors, given->tensor_count, given->tensor_stride, sizeof(*out->tensors), "reshard_local_tensor",
                               (void **)&out->tensors, err);
}

static reshard_status layer_add_tensor(const struct layer_call *call, const reshard_local_tensor *tensor, struct shard_list *list,
                                       reshard_error *err)
{
    const struct str name = { tensor->name.data, tensor->name.size };
    struct shard local = { .rank = (int)tensor->rank, .extent = tensor->shape, .data = tensor->data };
    struct buffer key = { 0 };
    int64_t volume;
    reshard_status status = vectors_check(tensor->rank, &tensor->shape, 1, name, err);
    if (!status && !shape_volume(local.rank, tensor->shape, &volume))
        status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': the shape has a negative extent or too many elements", STR_ARG(name));
    if (!status)
        status = dtype_take(tensor->dtype, name, &local.dtype, err);
    if (!status && (!buffer_append(&key, call->layer.prefix.data, call->layer.prefix.size) || !buffer_append_str(&key, name)))
        status = buffer_error(&key, err);
    local.key = buffer_str(&key);
    if (!status)
        status = layer_add_shards(list, &call->rule, name, &local, &call->place, err);
    buffer_release(&key);
    return status;
}

API_EXPORT reshard_status reshard_layer_shards(const reshard_layer *layer, const reshard_coordinates *at, reshard_shards *shards,
                                               reshard_error *err)
{
    struct layer_call call;
    ERROR_SCOPE(err);
    NEEDS(layer, err);
    NEEDS(shards, err);
    const size_t before = shards->list.count;
    reshard_status status = layer_call_begin(layer, at, &call, err);
    for (size_t i = 0; i < call.layer.tensor_count && !status; i++)
        status = layer_add_tensor(&call, &call.tensors[i], &shards->list, err);
    if (status)
        shards->list.count = before;
    layer_call_release(&call);
    return status;
}

API_EXPORT reshard_status reshard_layer_replica(const reshard_layer *layer, const reshard_coordinates *at, reshard_str name,
                                                int64_t replica[3], reshard_error *err)
{
    struct layer_call call;
    struct partition_rule rule;
    ERROR_SCOPE(err);
    NEEDS(replica, err);
    replica[0] = replica[1] = replica[2] = 0;
    NEEDS(layer, err);
    reshard_status status = layer_call_begin(layer, at, &call, err);
    if (!status)
        status = layer_tensor_rule(&call.rule, (struct str){ name.data, name.size }, &rule, err);
    if (!status) {
        replica[1] = rule.is_cut ? 0 : call.rule.is_expert ? call.at.expert_tp_rank : call.at.tp_rank;
        replica[2] = call.rule.is_expert ? call.at.expert_dp_rank : call.at.dp_rank;
    }
    layer_call_release(&call);
    return status;
}

API_EXPORT reshard_status reshard_expert_key(reshard_str key, int64_t ep_rank, int64_t local_experts, char **out, size_t *size,
                                             reshard_error *err)
{
    const struct str given = { key.data, key.size };
    struct buffer made = { 0 };
    size_t begin = given.size, end = given.size;
    uint64_t number = 0;
    int64_t first;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    NEEDS(size, err);
    *out = NULL;
    *size = 0;
    if (ep_rank < 0 || local_experts < 0 || !checked_mul_i64(ep_rank, local_experts, &first))
        return error_set(err, RESHARD_ERR_USAGE, "rank %" PRId64 " of ranks with %" PRId64 " experts each", ep_rank, local_experts);
    const bool is_expert = expert_number_find(given, &begin, &end, &number);
    if (is_expert && number >= (uint64_t)local_experts)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': a rank has %" PRId64 " experts", STR_ARG(given), local_experts);
    buffer_append(&made, given.data, is_expert ? begin : given.size);
    if (is_expert && buffer_printf(&made, "%" PRIu64, number + (uint64_t)first))
        buffer_append(&made, given.data + end, given.size - end);
    if (!buffer_append_byte(&made, 0) || made.failed) {
        reshard_status status = buffer_error(&made, err);
        buffer_release(&made);
        return status;
    }
    *out = (char *)made.data;
    *size = made.size - 1;
    return RESHARD_OK;
}
