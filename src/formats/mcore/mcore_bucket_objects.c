/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the layouts by buffer keep in ShardedObjects, for each optimizer of each group of data-parallel ranks (dp_group_idx_3.…):
 *
 *   optimizer, grad_scaler                          parameter groups and scaler; the common state has none of them
 *   per_bucket_numel, per_bucket_numel_unpadded     dp_reshardable: by buffer, {(param dtype, grad dtype): [elements of each bucket]}
 *   param_state                                     dp_zero_gather_scatter: the buffers, as in distrib_optim.pt
 */
#include "formats/mcore/mcore_buckets.h"
#include "formats/shared/value_edit.h"
#include "formats/mcore/mcore_items.h"
#include "parallel/parameter_groups.h"

#define OBJECT_END "/shard_0_1"
#define ORDERED_GROUPS_MAX 64 /* Megatron makes at most eight */

struct adding {
    const struct layout_request *request;
    struct mcore_target *state;
    struct value_graph *graph;      /* the target's own */
    const struct value *optimizer;  /* the common state's: a dict, or a dict of them by number */
    uint32_t optimizer_item;        /* wanted item that it comes from, or CATALOG_NONE */
};

/* ---- values ---- */

static struct value *new_list(struct value_graph *graph, enum value_kind kind, size_t room)
{
    struct value **items = arena_array(&graph->arena, room, sizeof(*items));
    return items ? value_new_list(graph, kind, items, 0) : NULL;
}

/* The list has room; false without memory. */
static bool mcore_bucket_objects_append(struct value *list, struct value *value)
{
    if (!list || !value)
        return false;
    list->list.items[list->list.count++] = value;
    return true;
}

static struct value *new_dtype_pair(struct value_graph *graph, const struct flat_buffer *buffer)
{
    struct value *pair = new_list(graph, VALUE_TUPLE, 2);
    bool done = mcore_bucket_objects_append(pair, value_new_global(graph, "torch", dtype_info(buffer->param_dtype)->torch_name)) &&
                mcore_bucket_objects_append(pair, value_new_global(graph, "torch", dtype_info(buffer->grad_dtype)->torch_name));
    return done ? pair : NULL;
}

/* {pair of dtypes: value} */
static struct value *by_dtypes(struct value_graph *graph, const struct flat_buffer *buffer, struct value *value)
{
    struct value *dict = new_list(graph, VALUE_DICT, 2);
    return mcore_bucket_objects_append(dict, new_dtype_pair(graph, buffer)) && mcore_bucket_objects_append(dict, value) ? dict : NULL;
}

/* ---- parameter groups ---- */

static bool mcore_bucket_objects_is_numbered(const struct value *dict)
{
    return dict->kind == VALUE_DICT && dict->list.count >= 2 && dict->list.items[0]->kind == VALUE_INT;
}

/* What is said about one optimizer; NULL: nothing. */
static const struct value *optimizer_at(const struct value *all, size_t number)
{
    if (!mcore_bucket_objects_is_numbered(all))
        return number ? NULL : all;
    return 2 * number + 1 < all->list.count ? all->list.items[2 * number + 1] : NULL;
}

/* The group without its list of parameters, for experts or not. */
static struct value *copy_group(struct adding *adding, const struct value *group, bool is_expert)
{
    struct value *copy = new_list(adding->graph, VALUE_DICT, group->list.count + 4);
    for (size_t i = 0; copy && i + 1 < group->list.count; i += 2) {
        if (group->list.items[i]->kind == VALUE_STR && str_is(group->list.items[i]->text, "params"))
            continue;
        mcore_bucket_objects_append(copy, group->list.items[i]);
        mcore_bucket_objects_append(copy, group->list.items[i + 1]);
    }
    if (!copy)
        return NULL;
    struct value *flag = value_new(adding->graph, VALUE_BOOL);
    if (flag)
        flag->boolean = is_expert;
    struct value_edit editing = { .graph = adding->graph, .members = copy };
    value_edit_set(&editing, "is_expert_parallel", flag, false);
    return editing.failed ? NULL : copy;
}

static bool has_no_decay(const struct value *group)
{
    const struct value *decay = parameter_group_decay(group);
    return decay && weight_decay_is_zero(decay);
}

/* The first parameter that would be in such a group; their number if none would. */
static uint32_t first_member(const struct mcore_group *of, const struct value *group)
{
    for (uint32_t i = 0; i < of->rank.count; i++) {
        const struct rank_parameter *parameter = &of->rank.parameters[i];
        if (parameter_has_decay(parameter) != has_no_decay(group) && (!parameter_group_is_decoupled(group) || parameter->is_embedding))
            return i;
    }
    return of->rank.count;
}

/* Releases that gather state make a group when they come to its first parameter, and match the groups of a checkpoint by position. */
static void order_groups(const struct mcore_group *of, struct value *groups)
{
    for (size_t i = 1; i < groups->list.count && groups->list.count <= ORDERED_GROUPS_MAX; i++) {
        struct value *group = groups->list.items[i];
        uint32_t first = first_member(of, group);
        size_t at = i;
        for (; at > 0 && first_member(of, groups->list.items[at - 1]) > first; at--)
            groups->list.items[at] = groups->list.items[at - 1];
        groups->list.items[at] = group;
    }
}

/* {"param_groups": […]} */
static struct value *copy_groups(struct adding *adding, const struct mcore_group *group)
{
    const struct value *from = optimizer_at(adding->optimizer, group->is_expert), *groups = parameter_group_list(from);
    struct value *list = new_list(adding->graph, VALUE_LIST, groups->list.count), *dict = new_list(adding->graph, VALUE_DICT, 2);
    for (size_t i = 0; i < groups->list.count; i++) {
        const struct value *one = groups->list.items[i];
        if (one->kind == VALUE_DICT && !mcore_bucket_objects_append(list, copy_group(adding, one, group->is_expert)))
            return NULL;
    }
    if (list && adding->state->optimizer_layout == MCORE_GATHERED)
        order_groups(group, list);
    return mcore_bucket_objects_append(dict, value_new_str(adding->graph, STR("param_groups"))) && mcore_bucket_objects_append(dict, list)
               ? dict
               : NULL;
}

/* ---- buffers ---- */

/* By buffer, how many elements its buckets have, with the padding at their ends or without. */
static struct value *bucket_sizes(struct adding *adding, const struct mcore_group *group, bool is_unpadded)
{
    struct value *buffers = new_list(adding->graph, VALUE_LIST, group->made.buffer_count);
    for (uint32_t b = 0; b < group->made.buffer_count; b++) {
        const struct flat_buffer *buffer = &group->made.buffers[b];
        struct value *sizes = new_list(adding->graph, VALUE_LIST, buffer->bucket_count);
        for (uint32_t i = 0; i < buffer->bucket_count; i++) {
            const struct flat_bucket *bucket = &group->made.buckets[buffer->first_bucket + i];
            if (!mcore_bucket_objects_append(sizes, value_new_int(adding->graph, is_unpadded ? bucket->unpadded : bucket->count)))
                return NULL;
        }
        if (!mcore_bucket_objects_append(buffers, by_dtypes(adding->graph, buffer, sizes)))
            return NULL;
    }
    return buffers;
}

/* {state: vector, …, "numel_unpadded": elements}; a vector is a leaf that names its run. */
static struct value *gathered_buffer(struct adding *adding, const struct mcore_group *group, uint32_t index)
{
    const struct mcore_buckets *buckets = adding->state->buckets;
    struct value *states = new_list(adding->graph, VALUE_DICT, 2 * (size_t)buckets->state_count + 2);
    for (uint32_t s = 0; s < buckets->state_count; s++) {
        const struct dcp_vector *vector = &adding->state->dcp.vectors.vectors[group->first_vector + index * buckets->state_count + s];
        struct value *leaf = value_new(adding->graph, VALUE_NONE);
        if (leaf)
            leaf->tensor = vector->first_run + 1;
        if (!mcore_bucket_objects_append(
                states, value_new_str(adding->graph, buckets->states[s].is_master ? STR(STATE_MASTER) : buckets->states[s].name)) ||
            !mcore_bucket_objects_append(states, leaf))
            return NULL;
    }
    bool done = mcore_bucket_objects_append(states, value_new_str(adding->graph, STR("numel_unpadded"))) &&
                mcore_bucket_objects_append(states, value_new_int(adding->graph, group->made.buffers[index].unpadded));
    return done ? states : NULL;
}

static struct value *gathered_buffers(struct adding *adding, const struct mcore_group *group)
{
    struct value *dict = new_list(adding->graph, VALUE_DICT, 2 * (size_t)group->made.buffer_count + 2),
                 *coalesced = value_new(adding->graph, VALUE_BOOL);
    if (!mcore_bucket_objects_append(dict, value_new_str(adding->graph, STR("buckets_coalesced"))) ||
        !mcore_bucket_objects_append(dict, coalesced))
        return NULL;
    coalesced->boolean = true;
    for (uint32_t b = 0; b < group->made.buffer_count; b++) {
        if (!mcore_bucket_objects_append(dict, value_new_int(adding->graph, b)) ||
            !mcore_bucket_objects_append(dict, by_dtypes(adding->graph, &group->made.buffers[b], gathered_buffer(adding, group, b))))
            return NULL;
    }
    return dict;
}

/* ---- objects ---- */

static reshard_status mcore_bucket_objects_add_object(struct adding *adding, const char *prefix, const char *name,
                                                      const struct value *value, uint32_t item, bool has_runs, reshard_error *err)
{
    char *key = value ? arena_printf(&adding->state->buckets->arena, "%s%s" OBJECT_END, prefix, name) : NULL;
    if (!key)
        return error_set_memory(err);
    const struct dcp_stored stored = {
        .key = str_of(key), .wanted = item, .node = CATALOG_NONE, .value = value, .is_in_list = true, .has_runs = has_runs
    };
    return dcp_stored_add(&adding->state->dcp, &stored, err);
}

static reshard_status mcore_bucket_objects_add_group(struct adding *adding, const struct mcore_group *group, reshard_error *err)
{
    const struct value *scaler = value_dict_get(optimizer_at(adding->optimizer, group->is_expert), "grad_scaler");
    char *prefix = mcore_group_prefix(&adding->state->buckets->arena, adding->state->buckets, group);
    reshard_status status = prefix ? RESHARD_OK : error_set_memory(err);
    if (!status)
        status =
            mcore_bucket_objects_add_object(adding, prefix, "optimizer", copy_groups(adding, group), adding->optimizer_item, false, err);
    if (!status && scaler)
        status = mcore_bucket_objects_add_object(adding, prefix, "grad_scaler", scaler, adding->optimizer_item, false, err);
    if (!status && adding->state->optimizer_layout == MCORE_GATHERED)
        return mcore_bucket_objects_add_object(adding, prefix, "param_state", gathered_buffers(adding, group), CATALOG_NONE, true, err);
    if (!status)
        status = mcore_bucket_objects_add_object(adding, prefix, "per_bucket_numel", bucket_sizes(adding, group, false), CATALOG_NONE,
                                                 false, err);
    return status ? status
                  : mcore_bucket_objects_add_object(adding, prefix, "per_bucket_numel_unpadded", bucket_sizes(adding, group, true),
                                                    CATALOG_NONE, false, err);
}

/* {"param_state_sharding_type": LAYOUT} */
static struct value *layout_member(struct adding *adding)
{
    const char *layout = mcore_optimizer_layout_name(adding->state->optimizer_layout);
    struct value *one = new_list(adding->graph, VALUE_DICT, 2);
    bool is_made = mcore_bucket_objects_append(one, value_new_str(adding->graph, STR("param_state_sharding_type"))) &&
                   mcore_bucket_objects_append(one, value_new_str(adding->graph, str_of(layout)));
    return is_made ? one : NULL;
}

/* That, or that for each of two optimizers. */
static struct value *what_is_left(struct adding *adding)
{
    if (!adding->state->buckets->has_experts)
        return layout_member(adding);
    struct value *all = new_list(adding->graph, VALUE_DICT, 4);
    for (int i = 0; i < 2; i++) {
        if (!mcore_bucket_objects_append(all, value_new_int(adding->graph, i)) || !mcore_bucket_objects_append(all, layout_member(adding)))
            return NULL;
    }
    return all;
}

reshard_status mcore_bucket_objects_add(const struct layout_request *request, struct mcore_target *state, uint32_t optimizer_item,
                                       struct value **optimizer, reshard_error *err)
{
    struct adding adding = {
        .request = request, .state = state, .graph = &state->dcp.extra, .optimizer = *optimizer, .optimizer_item = optimizer_item
    };
    uint32_t first = state->dcp.item_count;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i <= state->buckets->has_experts; i++) {
        const struct value *one = optimizer_at(*optimizer, i);
        if (!one || !parameter_group_list(one))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "the source has no parameter groups of optimizer %zu", i);
    }
    for (uint32_t i = 0; i < state->buckets->group_count && !status; i++)
        status = mcore_bucket_objects_add_group(&adding, &state->buckets->groups[i], err);
    *optimizer = status ? *optimizer : what_is_left(&adding);
    /* All values are in the one graph, which has grown. */
    for (uint32_t i = first; i < state->dcp.item_count; i++)
        state->dcp.items[i].graph_count = state->dcp.extra.count;
    return !status && !*optimizer ? error_set_memory(err) : status;
}
