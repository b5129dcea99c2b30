/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded state dicts: structs are converted here; src/parallel/sharded_dict does the work. */
#include "api/sharded_handle.h"

#include "api/public_shards.h"
#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

_Static_assert(REPLICA_ANY == RESHARD_REPLICA_ANY, "the same number in the header and inside");

/* ---- tensors in ---- */

/* Vectors that a tensor's members become. */
struct tensor_room {
    int64_t extent[RANK_MAX + 1], strides[RANK_MAX + 1];
};

static reshard_status vector_needed(const void *vector, size_t count, struct str key, const char *name, reshard_error *err)
{
    return vector || !count ? RESHARD_OK : error_set(err, RESHARD_ERR_USAGE, "'%.*s': %s is NULL", STR_ARG(key), name);
}

static reshard_status tensor_numbers_check(const reshard_sharded_tensor *given, struct str key, bool is_whole, reshard_error *err)
{
    if (given->rank > RANK_MAX || given->prepended > given->rank)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': %zu axes, %zu of them prepended; at most %d", STR_ARG(key), given->rank,
                         given->prepended, RANK_MAX);
    reshard_status status = vector_needed(given->local_shape, given->rank - given->prepended, key, "local_shape", err);
    if (!status && is_whole)
        status = vector_needed(given->global_shape, given->rank, key, "global_shape", err);
    if (!status && is_whole)
        status = vector_needed(given->global_offset, given->rank, key, "global_offset", err);
    return status ? status : vector_needed(given->replica_ids, given->replica_count, key, "replica_ids", err);
}

/* is_whole: its global vectors count. Else shard.extent and shard.strides stay local. */
static reshard_status sharded_tensor_take(const reshard_sharded_tensor *tensor, bool is_whole, struct tensor_room *room,
                                          struct sharded_tensor *out, reshard_error *err)
{
    reshard_sharded_tensor given;
    reshard_status status = struct_take(&given, sizeof(given), tensor, "reshard_sharded_tensor", err);
    const struct str key = given_str(given.key);
    if (!status)
        status = tensor_numbers_check(&given, key, is_whole, err);
    *out = (struct sharded_tensor){ .shard = { .key = key, .rank = (int)given.rank, .data = given.data },
                                    .prepended = (int)given.prepended,
                                    .replica = { given.replica_ids, given.replica_count },
                                    .allows_mismatch = given.allow_shape_mismatch != 0 };
    if (!status)
        status = dtype_take(given.dtype, key, &out->shard.dtype, err);
    out->shard.strides = given.strides;
    shard_functions_take(given.read, given.write, given.context, &out->shard);
    if (!status)
        status = shard_functions_check(&out->shard, err);
    if (status)
        return status;
    out->shard.is_flattened = given.is_flattened != 0;
    out->shard.flat_begin = out->shard.is_flattened ? given.flat_begin : 0;
    out->shard.flat_end = out->shard.is_flattened ? given.flat_end : 0;
    out->shard.extent = given.local_shape;
    if (!is_whole)
        return RESHARD_OK;
    for (size_t axis = 0; axis < given.rank; axis++) {
        bool is_local = axis >= given.prepended;
        room->extent[axis] = is_local ? given.local_shape[axis - given.prepended] : 1;
        room->strides[axis] = is_local && given.strides ? given.strides[axis - given.prepended] : 0;
    }
    out->shard.shape = given.global_shape;
    out->shard.start = given.global_offset;
    out->shard.extent = room->extent;
    out->shard.strides = given.strides ? room->strides : NULL;
    out->fragments = given.fragments;
    return RESHARD_OK;
}

static reshard_sharded_tensor tensor_public(const struct sharded_tensor *tensor)
{
    const struct shard *shard = &tensor->shard;
    return (reshard_sharded_tensor){ .key = { shard->key.data ? shard->key.data : "", shard->key.size },
                                     .dtype = dtype_info(shard->dtype)->name,
                                     .rank = (size_t)shard->rank,
                                     .prepended = (size_t)tensor->prepended,
                                     .local_shape = shard->extent + tensor->prepended,
                                     .global_shape = shard->shape,
                                     .global_offset = shard->start,
                                     .fragments = tensor->fragments,
                                     .replica_ids = tensor->replica.ids,
                                     .replica_count = tensor->replica.count,
                                     .allow_shape_mismatch = tensor->allows_mismatch,
                                     .is_flattened = shard->is_flattened,
                                     .flat_begin = shard->flat_begin,
                                     .flat_end = shard->flat_end,
                                     .data = shard->data,
                                     .strides = shard->strides ? shard->strides + tensor->prepended : NULL,
                                     .read = shard->read,
                                     .context = shard->context,
                                     .write = shard->write };
}

/* ---- the list ---- */

API_EXPORT reshard_status reshard_sharded_new(reshard_sharded **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = calloc(1, sizeof(**out));
    return *out ? RESHARD_OK : error_set_memory(err);
}

API_EXPORT void reshard_sharded_free(reshard_sharded *sharded)
{
    if (!sharded)
        return;
    for (size_t i = 0; i < sharded->factory_count; i++) {
        sharded_dict_release(&sharded->factories[i].whole);
        reshard_sharded_free(sharded->factories[i].parts);
    }
    free(sharded->factories);
    sharded_dict_release(&sharded->dict);
    free(sharded);
}

API_EXPORT reshard_status reshard_sharded_add(reshard_sharded *sharded, const reshard_sharded_tensor *tensor, reshard_error *err)
{
    struct tensor_room room;
    struct sharded_tensor taken;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(tensor, err);
    reshard_status status = sharded_tensor_take(tensor, true, &room, &taken, err);
    return status ? status : sharded_add(&sharded->dict, &taken, err);
}

API_EXPORT reshard_status reshard_sharded_add_offsets(reshard_sharded *sharded, const reshard_sharded_tensor *tensor,
                                                      const reshard_rank_offset *offsets, size_t offset_stride, size_t offset_count,
                                                      reshard_error *err)
{
    struct sharded_tensor taken;
    reshard_rank_offset *given = NULL;
    struct rank_offset *inner = NULL;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(tensor, err);
    reshard_status status = sharded_tensor_take(tensor, false, NULL, &taken, err);
    if (!status)
        status = array_take(offsets, offset_count, offset_stride, sizeof(*given), "reshard_rank_offset", (void **)&given, err);
    if (status)
        return status;
    inner = array_zeroed(offset_count, sizeof(*inner));
    for (size_t i = 0; inner && i < offset_count; i++)
        inner[i] = (struct rank_offset){ given[i].axis, given[i].offset, given[i].fragments };
    status = inner ? sharded_add_offsets(&sharded->dict, &taken, inner, offset_count, err) : error_set_memory(err);
    free(inner);
    free(given);
    return status;
}

API_EXPORT size_t reshard_sharded_count(const reshard_sharded *sharded)
{
    return sharded ? sharded->dict.tensor_count : 0;
}

API_EXPORT reshard_status reshard_sharded_at(const reshard_sharded *sharded, size_t index, reshard_sharded_tensor *out)
{
    if (!entry_begin(out, "reshard_sharded_tensor", index, reshard_sharded_count(sharded)))
        return RESHARD_ERR_USAGE;
    const reshard_sharded_tensor made = tensor_public(&sharded->dict.tensors[index]);
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_sharded_add_narrow(reshard_sharded *sharded, const reshard_sharded_tensor *tensor, int64_t axis,
                                                     int64_t start, int64_t length, reshard_error *err)
{
    struct tensor_room room;
    struct sharded_tensor taken;
    struct sharded_dict checked = { 0 };
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(tensor, err);
    reshard_status status = sharded_tensor_take(tensor, true, &room, &taken, err);
    if (!status)
        status = sharded_add(&checked, &taken, err);
    if (!status && checked.tensor_count)
        status = sharded_add_narrow(&sharded->dict, &checked.tensors[0], axis, start, length, err);
    sharded_dict_release(&checked);
    return status;
}

/* ---- the grid ---- */

enum grid_question { GRID_CELL, GRID_SLICE, GRID_CHUNK };

static reshard_status grid_answer(const reshard_sharded_tensor *tensor, enum grid_question question, int64_t *first, int64_t *second,
                                  reshard_error *err)
{
    struct tensor_room room;
    struct sharded_tensor taken;
    struct sharded_dict checked = { 0 };
    reshard_status status = sharded_tensor_take(tensor, true, &room, &taken, err);
    for (int axis = 0; !status && axis < taken.shard.rank; axis++) {
        first[axis] = 0;
        if (second)
            second[axis] = 0;
    }
    if (!status)
        status = sharded_add(&checked, &taken, err);
    if (!status && question == GRID_CELL)
        status = sharded_cell(&taken, first, err);
    else if (!status && question == GRID_CHUNK)
        status = sharded_largest_chunk(&taken, first, err);
    for (int axis = 0; !status && question == GRID_SLICE && axis < taken.shard.rank; axis++) {
        first[axis] = taken.shard.start[axis];
        second[axis] = taken.shard.extent[axis];
    }
    sharded_dict_release(&checked);
    return status;
}

API_EXPORT reshard_status reshard_sharded_cell(const reshard_sharded_tensor *tensor, int64_t *cell, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(tensor, err);
    NEEDS(cell, err);
    return grid_answer(tensor, GRID_CELL, cell, NULL, err);
}

API_EXPORT reshard_status reshard_sharded_slice(const reshard_sharded_tensor *tensor, int64_t *start, int64_t *extent, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(tensor, err);
    NEEDS(start, err);
    NEEDS(extent, err);
    return grid_answer(tensor, GRID_SLICE, start, extent, err);
}

API_EXPORT reshard_status reshard_sharded_largest_chunk(const reshard_sharded_tensor *tensor, int64_t *chunk, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(tensor, err);
    NEEDS(chunk, err);
    return grid_answer(tensor, GRID_CHUNK, chunk, NULL, err);
}

API_EXPORT int reshard_replica_is_main(const int64_t *replica_ids, size_t replica_count)
{
    const struct replica replica = { replica_ids, replica_ids ? replica_count : 0 };
    return replica_is_main(&replica);
}

/* ---- factories ---- */

API_EXPORT reshard_status reshard_sharded_add_factory(reshard_sharded *sharded, const reshard_sharded_factory *factory, reshard_error *err)
{
    reshard_sharded_factory given;
    struct sharded_tensor whole;
    struct factory made = { 0 };
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(factory, err);
    reshard_status status = struct_take(&given, sizeof(given), factory, "reshard_sharded_factory", err);
    if (!status && (!given.build || !given.whole))
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_sharded_factory.%s is NULL", given.build ? "whole" : "build");
    if (!status)
        status = sharded_tensor_take(given.whole, false, NULL, &whole, err);
    /* Where it lies is build's matter: alone, it is the whole. */
    if (!status)
        status = sharded_add_offsets(&made.whole, &whole, NULL, 0, err);
    if (!status && !ARRAY_ROOM(sharded->factories, sharded->factory_count, sharded->factory_capacity))
        status = error_set_memory(err);
    if (status) {
        sharded_dict_release(&made.whole);
        return status;
    }
    made.given = given;
    made.given.whole = NULL; /* the caller's */
    sharded->factories[sharded->factory_count++] = made;
    return RESHARD_OK;
}

static reshard_sharded_tensor factory_whole(const struct factory *factory)
{
    reshard_sharded_tensor whole = tensor_public(&factory->whole.tensors[0]);
    whole.struct_size = sizeof(whole);
    whole.global_shape = whole.global_offset = whole.fragments = NULL;
    return whole;
}

/* Its parts are the state's tensors from now on, too. */
static reshard_status factory_expand(reshard_sharded *sharded, struct factory *factory, reshard_error *err)
{
    const reshard_sharded_tensor whole = factory_whole(factory);
    reshard_sharded *parts;
    reshard_status status = reshard_sharded_new(&parts, err);
    if (!status && factory->given.build(&whole, parts, factory->given.context))
        status = error_set(err, RESHARD_ERR_CANCELLED, "the factory of '%.*s' stopped the call", (int)whole.key.size, whole.key.data);
    if (!status && parts->factory_count)
        status = error_set(err, RESHARD_ERR_USAGE, "the factory of '%.*s' makes factories", (int)whole.key.size, whole.key.data);
    size_t before = sharded->dict.tensor_count;
    for (size_t i = 0; !status && i < parts->dict.tensor_count; i++)
        status = sharded_add(&sharded->dict, &parts->dict.tensors[i], err);
    if (status) {
        sharded->dict.tensor_count = before;
        reshard_sharded_free(parts);
        return status;
    }
    factory->parts = parts;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_sharded_expand(reshard_sharded *sharded, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    for (size_t i = 0; i < sharded->factory_count && !status; i++) {
        if (!sharded->factories[i].parts && sharded->factories[i].whole.tensor_count)
            status = factory_expand(sharded, &sharded->factories[i], err);
    }
    return status;
}

API_EXPORT reshard_status reshard_sharded_merge(reshard_sharded *sharded, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    for (size_t i = 0; i < sharded->factory_count; i++) {
        const struct factory *factory = &sharded->factories[i];
        if (!factory->parts || !factory->given.merge)
            continue;
        const reshard_sharded_tensor whole = factory_whole(factory);
        if (factory->given.merge(&whole, factory->parts, factory->given.context))
            return error_set(err, RESHARD_ERR_CANCELLED, "the factory of '%.*s' stopped the call", (int)whole.key.size, whole.key.data);
    }
    return RESHARD_OK;
}

/* ---- prefixes ---- */

static reshard_status factories_prefix(reshard_sharded *sharded, const struct prefix_pair *pairs, size_t count, bool is_before,
                                       reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < sharded->factory_count && !status; i++)
        status = is_before ? sharded_add_prefix(&sharded->factories[i].whole, pairs->prefix, err)
                           : sharded_map_prefixes(&sharded->factories[i].whole, pairs, count, err);
    return status;
}

API_EXPORT reshard_status reshard_sharded_add_prefix(reshard_sharded *sharded, reshard_str prefix, reshard_error *err)
{
    const struct prefix_pair pair = { { 0 }, given_str(prefix) };
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    reshard_status status = sharded_add_prefix(&sharded->dict, pair.prefix, err);
    return status ? status : factories_prefix(sharded, &pair, 1, true, err);
}

API_EXPORT reshard_status reshard_sharded_replace_prefix(reshard_sharded *sharded, reshard_str old, reshard_str prefix, reshard_error *err)
{
    const struct prefix_pair pair = { given_str(old), given_str(prefix) };
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    for (size_t i = 0; i < sharded->factory_count; i++) {
        struct str key = sharded->factories[i].whole.tensor_count ? sharded->factories[i].whole.tensors[0].shard.key : pair.old;
        if (!str_begins(key, pair.old))
            return error_set(err, RESHARD_ERR_USAGE, "Expected %.*s to begin with prefix %.*s", STR_ARG(key), STR_ARG(pair.old));
    }
    reshard_status status = sharded_replace_prefix(&sharded->dict, pair.old, pair.prefix, err);
    return status ? status : factories_prefix(sharded, &pair, 1, false, err);
}

API_EXPORT reshard_status reshard_sharded_map_prefixes(reshard_sharded *sharded, const reshard_str *old, const reshard_str *prefixes,
                                                       size_t count, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    if (count)
        NEEDS(old && prefixes, err);
    struct prefix_pair *pairs = array_zeroed(count, sizeof(*pairs));
    for (size_t i = 0; pairs && i < count; i++)
        pairs[i] = (struct prefix_pair){ given_str(old[i]), given_str(prefixes[i]) };
    reshard_status status = pairs ? sharded_map_prefixes(&sharded->dict, pairs, count, err) : error_set_memory(err);
    if (!status)
        status = factories_prefix(sharded, pairs, count, false, err);
    free(pairs);
    return status;
}

/* ---- all ranks ---- */

static reshard_status ranks_take(const char *function, const reshard_sharded *const *ranks, size_t count, const struct sharded_dict ***out,
                                 reshard_error *err)
{
    *out = array_zeroed(count, sizeof(const struct sharded_dict *));
    if (!*out)
        return error_set_memory(err);
    for (size_t i = 0; i < count; i++) {
        if (!ranks || !ranks[i])
            return argument_missing(function, "ranks", err);
        (*out)[i] = &ranks[i]->dict;
    }
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_sharded_check(const reshard_sharded *const *ranks, size_t count, reshard_error *err)
{
    const struct sharded_dict **dicts = NULL;
    ERROR_SCOPE(err);
    reshard_status status = ranks_take(__func__, ranks, count, &dicts, err);
    if (!status)
        status = sharded_check(dicts, count, err);
    free((void *)dicts);
    return status;
}

API_EXPORT reshard_status reshard_sharded_spread(reshard_sharded *const *ranks, size_t count, reshard_error *err)
{
    const struct sharded_dict **dicts = NULL;
    struct spread_owner **owners = NULL;
    ERROR_SCOPE(err);
    reshard_status status = ranks_take(__func__, (const reshard_sharded *const *)ranks, count, &dicts, err);
    if (!status)
        status = sharded_owners_new(dicts, count, &owners, err);
    if (!status)
        status = sharded_spread(dicts, count, SPREAD_TO_SAVE, owners, err);
    for (size_t r = 0; r < count && !status; r++)
        sharded_take_owners(&ranks[r]->dict, (uint32_t)r, owners[r]);
    sharded_owners_free(owners, count);
    free((void *)dicts);
    return status;
}
