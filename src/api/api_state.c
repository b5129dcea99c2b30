/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a running job: shards in memory as a checkpoint, and filled from one. */
#include "reshard/state.h"

#include "api/load_call.h"
#include "api/items.h"
#include "base/array.h"
#include "convert/load_rounds.h"
#include "convert/memory_load.h"

#include <inttypes.h>
#include <stdlib.h>

static reshard_status state_open(const reshard_state *state, const struct live_item *items, size_t item_count,
                                 const struct open_options *options, struct checkpoint **out, reshard_error *err)
{
    const struct live_state live = { .shards = state->shards->list.shards,
                                     .shard_count = state->shards->list.count,
                                     .items = items,
                                     .item_count = item_count };
    return checkpoint_open_live(&live, options, state->name ? state->name : "memory", out, err);
}

API_EXPORT reshard_status reshard_open_shards(const reshard_state *state, const reshard_open_options *options, reshard_checkpoint **out,
                                              reshard_error *err)
{
    struct open_call call;
    reshard_state taken;
    struct live_item *items = NULL;
    size_t item_count;
    struct checkpoint *opened = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(state, err);
    reshard_status status = struct_take(&taken, sizeof(taken), state, "reshard_state", err);
    if (status)
        return status;
    NEEDS_MEMBER(reshard_state, taken, shards, err);
    status = open_options_read(options, &call, err);
    if (!status)
        status = items_take(taken.items, taken.item_count, taken.item_stride, taken.values, &items, &item_count, err);
    if (!status)
        status = state_open(&taken, items, item_count, &call.options.open, &opened, err);
    free(items);
    return status ? status : handle_make(opened, out, err);
}

/* ---- loading ---- */

/* The tensor of a shard, which has its global shape. */
static reshard_status tensor_of_shard(const struct catalog *catalog, const struct shard *shard, uint32_t *out, reshard_error *err)
{
    *out = catalog_find(catalog, shard->key);
    if (*out == CATALOG_NONE || catalog->tensors[*out].flags & TENSOR_HIDDEN)
        return error_set(err, RESHARD_ERR_USAGE, "the checkpoint has no tensor '%.*s'", STR_ARG(shard->key));
    const struct catalog_tensor *tensor = &catalog->tensors[*out];
    bool is_equal = shape_equal(tensor->rank, catalog_vector_at(catalog, tensor->shape), shard->rank, shard->shape);
    return is_equal ? RESHARD_OK
                    : error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' of the checkpoint has another shape than the shard's global one",
                                STR_ARG(shard->key));
}

static reshard_status box_of_shard(const struct shard *shard, uint32_t tensor, struct engine_box *out, reshard_error *err)
{
    *out = (struct engine_box){ .tensor = tensor,
                                .start = shard->start,
                                .extent = shard->extent,
                                .dtype = shard->dtype,
                                .strides = shard->strides,
                                .flat_begin = shard->is_flattened ? shard->flat_begin : 0,
                                .flat_count = shard->is_flattened ? shard->flat_end - shard->flat_begin : 0,
                                .out = shard->data };
    return shard_span(shard, &out->bytes)
               ? RESHARD_OK
               : error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a shard is no whole number of bytes", STR_ARG(shard->key));
}

struct loading {
    struct engine_box *boxes;
    uint32_t *tensors;
    uint32_t count;
};

static reshard_status loading_make(const struct catalog *catalog, const struct shard_list *list, struct loading *out, reshard_error *err)
{
    *out = (struct loading){ .boxes = array_zeroed(list->count, sizeof(*out->boxes)),
                             .tensors = array_zeroed(list->count, sizeof(*out->tensors)) };
    if (!out->boxes || !out->tensors)
        return error_set_memory(err);
    if (list->count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu shards", list->count);
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < list->count && !status; i++) {
        status = tensor_of_shard(catalog, &list->shards[i], &out->tensors[out->count], err);
        if (!status)
            status = load_target_check(&list->shards[i], err);
        if (status || !list->shards[i].data)
            continue;
        status = box_of_shard(&list->shards[i], out->tensors[out->count], &out->boxes[out->count], err);
        out->count++;
    }
    return status;
}

static void boxes_release(struct loading *loading)
{
    free(loading->boxes);
    free(loading->tensors);
}

/* What takes no part is checked nevertheless. */
static reshard_status loading_begin(const reshard_checkpoint *checkpoint, const struct shard_list *list, struct loading *out,
                                    reshard_error *err)
{
    places_hold(checkpoint);
    reshard_status status = loading_make(checkpoint_catalog(checkpoint), list, out, err);
    places_leave(checkpoint);
    return status;
}

reshard_status load_list(const reshard_checkpoint *checkpoint, const struct shard_list *list, const struct engine_options *options,
                         reshard_error *err)
{
    struct loading loading = { 0 };
    struct engine_source source;
    reshard_status status = loading_begin(checkpoint, list, &loading, err);
    if (!status)
        status = reading_begin(checkpoint, loading.tensors, loading.count, &source, err);
    if (!status) {
        status = engine_read_boxes(&source, loading.boxes, loading.count, options, err);
        reading_end(checkpoint);
    }
    boxes_release(&loading);
    return status;
}

static reshard_status list_round(void *context, const struct shard_list *list, const struct engine_options *options, reshard_error *err)
{
    return load_list(context, list, options, err);
}

API_EXPORT reshard_status reshard_load_shards(const reshard_checkpoint *checkpoint, const reshard_shards *shards,
                                              const reshard_run_options *run, reshard_error *err)
{
    struct run_call running;
    struct loading all = { 0 };
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    NEEDS(shards, err);
    reshard_status status = run_options_read(run, &running, err);
    if (status)
        return status;
    RUN_WAITS(&running);
    if (load_is_staged(&shards->list)) /* nothing is read if one of them is wrong */
        status = loading_begin(checkpoint, &shards->list, &all, err);
    boxes_release(&all);
    return status ? status : load_in_rounds(&shards->list, &running.engine, list_round, (void *)(uintptr_t)checkpoint, err);
}

/* ---- under other names ---- */

/* What is filled: shards that have values, all of which the checkpoint has under these names and with these shapes. */
static reshard_status mapped_wanted(const struct memory_names *names, const struct shard_list *list, struct shard_list *out,
                                    reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < list->count && !status; i++) {
        const struct shard *shard = &list->shards[i];
        struct memory_tensor found;
        if (memory_names_keep(names, shard->key))
            continue;
        if (!memory_names_find(names, shard->key, &found))
            status = error_set(err, RESHARD_ERR_USAGE, "the checkpoint has no tensor '%.*s', nor is one made of it", STR_ARG(shard->key));
        else if (!shape_equal(found.rank, found.shape, shard->rank, shard->shape))
            status = error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' has another shape than the shard's global one", STR_ARG(shard->key));
        else if ((status = load_target_check(shard, err)) == RESHARD_OK)
            status = memory_names_check(names, shard, err);
        if (!status && (shard->data || shard->write))
            status = shard_list_add(out, shard, err);
        if (status && names->made.warning)
            error_hint(err, "%s", names->made.warning); /* why names were not changed */
    }
    return status;
}

struct mapped_call {
    struct checkpoint *named;
    struct memory_names *names;
};

static reshard_status mapped_round(void *context, const struct shard_list *list, const struct engine_options *options, reshard_error *err)
{
    const struct mapped_call *call = context;
    return memory_load(call->named, call->names, list, options, err);
}

static reshard_status mapped_load(struct checkpoint *checkpoint, const struct shard_list *list, struct map_call *map,
                                  const struct engine_options *options, reshard_error *err)
{
    struct checkpoint *named;
    struct memory_names names = { 0 };
    struct shard_list wanted = { 0 };
    work_renew(&checkpoint->source->work);
    reshard_status status = checkpoint_relate_if_possible(checkpoint, &named, err);
    if (!status)
        status = memory_names_make(named->source, list, &map->options, &names, err);
    status = map_call_status(map, status, err);
    if (!status)
        status = mapped_wanted(&names, list, &wanted, err);
    struct mapped_call call = { named, &names };
    if (!status && wanted.count)
        status = load_in_rounds(&wanted, options, mapped_round, &call, err);
    shard_list_release(&wanted);
    memory_names_release(&names);
    return status;
}

API_EXPORT reshard_status reshard_load_shards_mapped(reshard_checkpoint *checkpoint, const reshard_shards *shards,
                                                     const reshard_map_options *map, const reshard_run_options *run, reshard_error *err)
{
    struct run_call running;
    struct map_call taken = { .texts = NULL };
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    NEEDS(shards, err);
    NEEDS(map, err);
    reshard_status status = run_options_read(run, &running, err);
    if (status)
        return status;
    RUN_WAITS(&running);
    status = map_options_read(map, &taken, err);
    if (!status)
        status = mapped_load(checkpoint->opened, &shards->list, &taken, &running.engine, err);
    map_call_release(&taken);
    return status;
}
