/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/sharded_dict.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdlib.h>

void sharded_dict_release(struct sharded_dict *dict)
{
    arena_release(&dict->arena);
    free(dict->tensors);
    free(dict->objects);
    free(dict->values);
    *dict = (struct sharded_dict){ 0 };
}

bool replica_is_unnumbered(const struct replica *replica)
{
    return replica->count == 1 && replica->ids[0] == REPLICA_ANY;
}

bool replica_is_main(const struct replica *replica)
{
    for (size_t i = 0; i < replica->count; i++) {
        if (replica->ids[i])
            return false;
    }
    return true;
}

/* ---- adding ---- */

static bool sharded_keep(struct arena *arena, size_t count, const int64_t **vector)
{
    int64_t *kept = *vector ? arena_array(arena, count, sizeof(*kept)) : NULL;
    if (kept && count)
        memcpy(kept, *vector, count * sizeof(*kept));
    bool is_good = kept || !*vector;
    *vector = kept;
    return is_good;
}

/* Of a regular grid: pieces are equal, so that each begins at a multiple of its extent. */
static reshard_status grid_check(const struct sharded_tensor *tensor, reshard_error *err)
{
    const struct shard *shard = &tensor->shard;
    for (int axis = 0; tensor->fragments && axis < shard->rank; axis++) {
        if (tensor->fragments[axis] < 1)
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': axis %d has %" PRId64 " fragments", STR_ARG(shard->key), axis,
                             tensor->fragments[axis]);
        if (axis < tensor->prepended || !shard->extent[axis])
            continue;
        if (shard->start[axis] % shard->extent[axis])
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': Global offset (%" PRId64 ") must be divisible by local shape (%" PRId64 ")",
                             STR_ARG(shard->key), shard->start[axis], shard->extent[axis]);
    }
    return RESHARD_OK;
}

static reshard_status sharded_tensor_check(const struct sharded_tensor *tensor, reshard_error *err)
{
    const struct shard *shard = &tensor->shard;
    if (tensor->prepended < 0 || tensor->prepended > shard->rank)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': %d prepended axes of %d", STR_ARG(shard->key), tensor->prepended, shard->rank);
    for (int axis = 0; axis < tensor->prepended; axis++) {
        if (shard->extent[axis] != 1)
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': prepended axis %d has an extent of %" PRId64, STR_ARG(shard->key), axis,
                             shard->extent[axis]);
    }
    reshard_status status = shard_check(shard, err);
    return status ? status : grid_check(tensor, err);
}

/* Ranges of no elements are left out, as those who save leave them out. */
static bool is_empty_range(const struct shard *shard)
{
    return shard->is_flattened && shard->flat_begin == shard->flat_end && shard->flat_begin >= 0;
}

reshard_status sharded_add(struct sharded_dict *dict, const struct sharded_tensor *tensor, reshard_error *err)
{
    if (is_empty_range(&tensor->shard))
        return RESHARD_OK;
    reshard_status status = sharded_tensor_check(tensor, err);
    if (status)
        return status;
    struct sharded_tensor kept = *tensor;
    size_t rank = (size_t)kept.shard.rank;
    if (!ARRAY_ROOM(dict->tensors, dict->tensor_count, dict->tensor_capacity) ||
        !arena_str(&dict->arena, kept.shard.key, &kept.shard.key) || !sharded_keep(&dict->arena, rank, &kept.shard.shape) ||
        !sharded_keep(&dict->arena, rank, &kept.shard.start) || !sharded_keep(&dict->arena, rank, &kept.shard.extent) ||
        !sharded_keep(&dict->arena, rank, &kept.shard.strides) || !sharded_keep(&dict->arena, rank, &kept.fragments) ||
        !sharded_keep(&dict->arena, kept.replica.count, &kept.replica.ids))
        return error_set_memory(err);
    dict->tensors[dict->tensor_count++] = kept;
    return RESHARD_OK;
}

reshard_status sharded_add_object(struct sharded_dict *dict, const struct sharded_object *object, reshard_error *err)
{
    struct sharded_object kept = *object;
    int64_t volume;
    if (!shape_volume(kept.rank, kept.shape, &volume))
        return error_set(err, RESHARD_ERR_USAGE, "object '%.*s': its grid has a negative extent or too many cells", STR_ARG(kept.key));
    for (int axis = 0; axis < kept.rank; axis++) {
        if (kept.offset[axis] < 0 || kept.offset[axis] >= kept.shape[axis])
            return error_set(err, RESHARD_ERR_USAGE, "object '%.*s': axis %d: %" PRId64 " is no cell of %" PRId64, STR_ARG(kept.key), axis,
                             kept.offset[axis], kept.shape[axis]);
    }
    if (!ARRAY_ROOM(dict->objects, dict->object_count, dict->object_capacity) || !arena_str(&dict->arena, kept.key, &kept.key) ||
        !sharded_keep(&dict->arena, (size_t)kept.rank, &kept.shape) || !sharded_keep(&dict->arena, (size_t)kept.rank, &kept.offset) ||
        !sharded_keep(&dict->arena, kept.replica.count, &kept.replica.ids) || !arena_str(&dict->arena, kept.json, &kept.json) ||
        (kept.bytes.data && !arena_str(&dict->arena, kept.bytes, &kept.bytes)) ||
        (kept.file.data && !arena_str(&dict->arena, kept.file, &kept.file)))
        return error_set_memory(err);
    dict->objects[dict->object_count++] = kept;
    return RESHARD_OK;
}

reshard_status sharded_add_value(struct sharded_dict *dict, const struct sharded_value *value, reshard_error *err)
{
    struct sharded_value kept = *value;
    if (!ARRAY_ROOM(dict->values, dict->value_count, dict->value_capacity) || !arena_str(&dict->arena, kept.key, &kept.key) ||
        !arena_str(&dict->arena, kept.json, &kept.json) || (kept.file.data && !arena_str(&dict->arena, kept.file, &kept.file)))
        return error_set_memory(err);
    dict->values[dict->value_count++] = kept;
    return RESHARD_OK;
}

struct sharded_value *sharded_find_value(const struct sharded_dict *dict, enum sharded_value_kind kind, struct str key)
{
    for (size_t i = 0; i < dict->value_count; i++) {
        if (dict->values[i].kind == kind && str_equal(dict->values[i].key, key))
            return &dict->values[i];
    }
    return NULL;
}

/* ---- from rank offsets ---- */

/* The vectors of a tensor that is being made. */
struct sharded_vectors {
    int64_t shape[RANK_MAX + 1], start[RANK_MAX + 1], extent[RANK_MAX + 1], fragments[RANK_MAX + 1], strides[RANK_MAX + 1];
};

static reshard_status offset_check(const struct sharded_tensor *local, const struct rank_offset *offset, reshard_error *err)
{
    if (offset->axis < 0 || offset->axis >= local->shard.rank)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': axis %" PRId64 " of a tensor with %d axes", STR_ARG(local->shard.key),
                         offset->axis, local->shard.rank);
    if (offset->offset < 0 || offset->fragments < 1 || offset->offset >= offset->fragments)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': axis %" PRId64 ": piece %" PRId64 " of %" PRId64, STR_ARG(local->shard.key),
                         offset->axis, offset->offset, offset->fragments);
    return RESHARD_OK;
}

/* Local vectors have no prepended axes; strides there do not matter, as the extent is 1. */
static void local_vectors(const struct sharded_tensor *local, struct sharded_vectors *out)
{
    for (int axis = 0; axis < local->shard.rank; axis++) {
        bool is_local = axis >= local->prepended;
        out->extent[axis] = is_local ? local->shard.extent[axis - local->prepended] : 1;
        out->strides[axis] = is_local && local->shard.strides ? local->shard.strides[axis - local->prepended] : 0;
        out->fragments[axis] = 1;
        out->start[axis] = 0;
    }
}

reshard_status sharded_add_offsets(struct sharded_dict *dict, const struct sharded_tensor *local, const struct rank_offset *offsets,
                                   size_t count, reshard_error *err)
{
    struct sharded_vectors vectors;
    struct sharded_tensor made = *local;
    reshard_status status = RESHARD_OK;
    local_vectors(local, &vectors);
    for (size_t i = 0; i < count && !status; i++) {
        status = offset_check(local, &offsets[i], err);
        if (status)
            break;
        int64_t axis = offsets[i].axis;
        vectors.fragments[axis] = offsets[i].fragments;
        if (!checked_mul_i64(offsets[i].offset, vectors.extent[axis], &vectors.start[axis]))
            status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': too many elements", STR_ARG(local->shard.key));
    }
    for (int axis = 0; axis < local->shard.rank && !status; axis++) {
        if (!checked_mul_i64(vectors.fragments[axis], vectors.extent[axis], &vectors.shape[axis]))
            status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': too many elements", STR_ARG(local->shard.key));
    }
    made.shard.shape = vectors.shape;
    made.shard.start = vectors.start;
    made.shard.extent = vectors.extent;
    made.shard.strides = local->shard.strides ? vectors.strides : NULL;
    made.fragments = vectors.fragments;
    return status ? status : sharded_add(dict, &made, err);
}

/* ---- narrowing ---- */

/* Of a flat range the elements that lie in rows [start, start + length) of the box, counted from there. */
static void narrow_range(struct sharded_tensor *made, const struct shard *whole, int axis, int64_t start, int64_t length)
{
    int64_t row = 1, begin, end;
    for (int i = axis + 1; i < whole->rank; i++)
        row *= whole->extent[i];
    begin = start * row > whole->flat_begin ? start * row : whole->flat_begin;
    end = (start + length) * row < whole->flat_end ? (start + length) * row : whole->flat_end;
    if (end < begin)
        end = begin;
    if (made->shard.data)
        made->shard.data += (uint64_t)(begin - whole->flat_begin) * dtype_element_bytes(whole->dtype);
    made->shard.flat_begin = begin - (begin < end ? start * row : begin);
    made->shard.flat_end = end - (begin < end ? start * row : begin);
}

static reshard_status narrow_check(const struct sharded_tensor *tensor, int64_t axis, int64_t start, int64_t length, reshard_error *err)
{
    const struct shard *shard = &tensor->shard;
    if (axis < 0 || axis >= shard->rank - tensor->prepended)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': axis %" PRId64 " of %d", STR_ARG(shard->key), axis,
                         shard->rank - tensor->prepended);
    int64_t extent = shard->extent[axis + tensor->prepended];
    if (start < 0 || length < 1 || start > extent || length > extent - start)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': [%" PRId64 ", +%" PRId64 ") of an axis of %" PRId64, STR_ARG(shard->key), start,
                         length, extent);
    if (shard->is_flattened && axis)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': a flat range is narrowed along axis 0 only", STR_ARG(shard->key));
    if (shard->read || shard->write)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': values that functions give or take are not narrowed", STR_ARG(shard->key));
    if (!dtype_element_bytes(shard->dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': %s is not narrowed", STR_ARG(shard->key), dtype_info(shard->dtype)->name);
    return RESHARD_OK;
}

reshard_status sharded_add_narrow(struct sharded_dict *dict, const struct sharded_tensor *tensor, int64_t axis, int64_t start,
                                  int64_t length, reshard_error *err)
{
    struct sharded_vectors vectors;
    struct sharded_tensor made = *tensor;
    const struct shard *shard = &tensor->shard;
    reshard_status status = narrow_check(tensor, axis, start, length, err);
    if (status)
        return status;
    size_t bytes = (size_t)shard->rank * sizeof(int64_t);
    int at = (int)axis + tensor->prepended;
    memcpy(vectors.shape, shard->shape, bytes);
    memcpy(vectors.start, shard->start, bytes);
    memcpy(vectors.extent, shard->extent, bytes);
    if (shard->strides)
        memcpy(vectors.strides, shard->strides, bytes);
    else
        strides_row_major(shard->rank, shard->extent, vectors.strides);
    /* As if all pieces were narrowed: each is length / extent of what it was. */
    vectors.shape[at] = (int64_t)((__int128)shard->shape[at] * length / shard->extent[at]);
    vectors.start[at] = (int64_t)((__int128)shard->start[at] * length / shard->extent[at]);
    vectors.extent[at] = length;
    made.shard.shape = vectors.shape;
    made.shard.start = vectors.start;
    made.shard.extent = vectors.extent;
    made.shard.strides = shard->is_flattened ? NULL : vectors.strides;
    if (shard->is_flattened)
        narrow_range(&made, shard, at, start, length);
    else if (shard->data)
        made.shard.data = shard->data + (uint64_t)(start * vectors.strides[at]) * dtype_element_bytes(shard->dtype);
    if (!shard->is_flattened && strides_are_row_major(shard->rank, vectors.extent, vectors.strides))
        made.shard.strides = NULL;
    return sharded_add(dict, &made, err);
}

/* ---- the grid ---- */

reshard_status sharded_cell(const struct sharded_tensor *tensor, int64_t *index, reshard_error *err)
{
    const struct shard *shard = &tensor->shard;
    if (!tensor->fragments)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': its grid is irregular, and has no coordinates", STR_ARG(shard->key));
    for (int axis = 0; axis < shard->rank; axis++)
        index[axis] = shard->extent[axis] ? shard->start[axis] / shard->extent[axis] : 0;
    return RESHARD_OK;
}

reshard_status sharded_largest_chunk(const struct sharded_tensor *tensor, int64_t *chunk, reshard_error *err)
{
    const struct shard *shard = &tensor->shard;
    if (!tensor->fragments)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': its grid is irregular, and has no largest chunk", STR_ARG(shard->key));
    for (int axis = 0; axis < shard->rank; axis++) {
        if (shard->shape[axis] % tensor->fragments[axis] && !tensor->allows_mismatch)
            return error_set(err, RESHARD_ERR_USAGE,
                             "'%.*s': Axis shape (%" PRId64 ") not divisible by axis fragmentation (%" PRId64 ")", STR_ARG(shard->key),
                             shard->shape[axis], tensor->fragments[axis]);
        chunk[axis] = shard->shape[axis] / tensor->fragments[axis];
    }
    return RESHARD_OK;
}

/* ---- keys ---- */

static void put_numbers(struct buffer *out, int rank, const int64_t *numbers)
{
    for (int i = 0; i < rank; i++)
        buffer_printf(out, "%s%" PRId64, i ? "." : "", numbers[i]);
}

bool sharded_object_key(const struct sharded_object *object, struct buffer *out)
{
    buffer_append_str(out, object->key);
    buffer_append_text(out, "/shard_");
    put_numbers(out, object->rank, object->offset);
    buffer_append_byte(out, '_');
    put_numbers(out, object->rank, object->shape);
    return !out->failed;
}

/* How many numbers there are, RANK_MAX at most; -1: it is no list of them. */
static int read_numbers(struct str text, int64_t numbers[RANK_MAX])
{
    int count = 0;
    while (text.size) {
        uint64_t number;
        if (count == RANK_MAX || !str_to_u64(str_take(&text, '.'), &number) || number > INT64_MAX)
            return -1;
        numbers[count++] = (int64_t)number;
    }
    return count;
}

/* The object's rank; -1: it is no such key. */
static int object_key_read(struct str text, struct str *key, int64_t offset[RANK_MAX], int64_t shape[RANK_MAX])
{
    const size_t slash = str_folder(text).size;
    struct str rest = str_base_name(text), head = str_take(&rest, '_'), place = str_take(&rest, '_');
    const int rank = slash > 1 && str_is(head, "shard") ? read_numbers(place, offset) : -1;
    bool is_good = rank >= 0 && read_numbers(rest, shape) == rank;
    for (int i = 0; is_good && i < rank; i++)
        is_good = offset[i] < shape[i];
    *key = (struct str){ text.data, slash ? slash - 1 : 0 };
    return is_good ? rank : -1;
}

bool sharded_key_is_object(struct str text, struct str *key)
{
    int64_t offset[RANK_MAX], shape[RANK_MAX];
    return object_key_read(text, key, offset, shape) >= 0;
}

reshard_status sharded_object_of_key(struct str text, struct arena *arena, struct sharded_object *out, reshard_error *err)
{
    int64_t offset[RANK_MAX], shape[RANK_MAX];
    struct str key;
    const int rank = object_key_read(text, &key, offset, shape);
    *out = (struct sharded_object){ .key = key, .rank = rank, .offset = offset, .shape = shape };
    if (rank < 0)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s' is no key of an object: KEY/shard_OFFSET_SHAPE, as in 'rng/shard_0.1_2.2'",
                         STR_ARG(text));
    bool is_kept = sharded_keep(arena, (size_t)rank, &out->offset) && sharded_keep(arena, (size_t)rank, &out->shape);
    return is_kept ? RESHARD_OK : error_set_memory(err);
}

/* Gives every key of a tensor or object to change, which returns the key's new prefix in *prefix, and in *cut how much of it goes. */
typedef reshard_status (*key_change)(struct str key, void *context, struct str *prefix, size_t *cut, reshard_error *err);

static reshard_status key_rewrite(struct sharded_dict *dict, struct str *key, key_change change, void *context, reshard_error *err)
{
    struct str prefix = { 0 };
    size_t cut = 0;
    reshard_status status = change(*key, context, &prefix, &cut, err);
    if (status)
        return status;
    char *text = arena_alloc(&dict->arena, prefix.size + key->size - cut + 1);
    if (!text)
        return error_set_memory(err);
    if (prefix.size)
        memcpy(text, prefix.data, prefix.size);
    memcpy(text + prefix.size, key->data + cut, key->size - cut);
    *key = (struct str){ text, prefix.size + key->size - cut };
    return RESHARD_OK;
}

static reshard_status keys_rewrite(struct sharded_dict *dict, key_change change, void *context, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < dict->tensor_count && !status; i++)
        status = key_rewrite(dict, &dict->tensors[i].shard.key, change, context, err);
    for (size_t i = 0; i < dict->object_count && !status; i++)
        status = key_rewrite(dict, &dict->objects[i].key, change, context, err);
    return status;
}

static reshard_status prefix_before(struct str key, void *context, struct str *prefix, size_t *cut, reshard_error *err)
{
    (void)key, (void)cut, (void)err;
    *prefix = *(const struct str *)context;
    return RESHARD_OK;
}

reshard_status sharded_add_prefix(struct sharded_dict *dict, struct str prefix, reshard_error *err)
{
    return keys_rewrite(dict, prefix_before, &prefix, err);
}

static reshard_status prefix_instead(struct str key, void *context, struct str *prefix, size_t *cut, reshard_error *err)
{
    const struct prefix_pair *pair = context;
    if (!str_begins(key, pair->old))
        return error_set(err, RESHARD_ERR_USAGE, "Expected %.*s to begin with prefix %.*s", STR_ARG(key), STR_ARG(pair->old));
    *prefix = pair->prefix;
    *cut = pair->old.size;
    return RESHARD_OK;
}

static reshard_status prefix_expected(struct str key, void *context, struct str *prefix, size_t *cut, reshard_error *err)
{
    reshard_status status = prefix_instead(key, context, prefix, cut, err);
    *prefix = (struct str){ 0 };
    *cut = 0;
    return status;
}

/* All keys are looked at before one is changed. */
reshard_status sharded_replace_prefix(struct sharded_dict *dict, struct str old, struct str prefix, reshard_error *err)
{
    struct prefix_pair pair = { old, prefix };
    reshard_status status = keys_rewrite(dict, prefix_expected, &pair, err);
    return status ? status : keys_rewrite(dict, prefix_instead, &pair, err);
}

struct prefix_list {
    const struct prefix_pair *pairs;
    size_t count;
};

static reshard_status prefix_of_list(struct str key, void *context, struct str *prefix, size_t *cut, reshard_error *err)
{
    const struct prefix_list *list = context;
    for (size_t i = 0; i < list->count; i++) {
        if (str_begins(key, list->pairs[i].old))
            return prefix_instead(key, (void *)(uintptr_t)&list->pairs[i], prefix, cut, err);
    }
    return RESHARD_OK;
}

reshard_status sharded_map_prefixes(struct sharded_dict *dict, const struct prefix_pair *pairs, size_t count, reshard_error *err)
{
    struct prefix_list list = { pairs, count };
    return keys_rewrite(dict, prefix_of_list, &list, err);
}
