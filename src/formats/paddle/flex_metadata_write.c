/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a laid-out target, as one pickle of protocol 4. Equal vectors, names and types are one object in it, so that a piece
 * takes about a hundred bytes; memory beside the pieces is a number a tensor, a vector and a file.
 */
#include "formats/paddle/flex_target.h"

#include "base/array.h"
#include "formats/paddle/flex.h"

#include <stdio.h>
#include <stdlib.h>

enum attribute { OFFSET, SHAPE, DTYPE, GLOBAL_SHAPE, IS_FLATTENED, RANGE, KEY, REPLICA, ATTRIBUTES };
static const char *const attribute_names[ATTRIBUTES] = { "global_offset", "local_shape",     "dtype",      "global_shape",
                                                         "is_flattened",  "flattened_range", "tensor_key", "replica_id" };

enum class { CLASS_METADATA, CLASS_SHARD, CLASS_INDEX, CLASSES };
static const char *const class_names[CLASSES] = { "Metadata", "LocalTensorMetadata", "LocalTensorIndex" };

/* Numbers of what is in the memo; PICKLE_NO_MEMO for what is not yet. */
struct metadata_writing {
    struct pickle_stream stream;
    const struct catalog *catalog; /* of the target */
    const struct catalog *wanted;
    const struct flex_target *state;
    uint32_t folder;
    uint32_t classes[CLASSES], attributes[ATTRIBUTES], dtypes[DTYPE_COUNT], module;
    uint32_t *keys, *vectors, *files;
    uint32_t *first, *order; /* pieces by tensor: order[first[t]] to order[first[t + 1]] */
};

static void fill_none(uint32_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = PICKLE_NO_MEMO;
}

static bool flex_metadata_write_is_here(const struct metadata_writing *w, const struct flex_piece *piece)
{
    return w->state->files[piece->file].folder == w->folder;
}

/* The pieces of the folder by tensor, in their order. */
static void flex_metadata_write_sort_pieces(struct metadata_writing *w)
{
    uint32_t tensors = w->catalog->tensor_count;
    for (uint32_t i = 0; i < w->state->piece_count; i++)
        w->first[w->state->pieces[i].tensor + 1] += flex_metadata_write_is_here(w, &w->state->pieces[i]);
    for (uint32_t i = 0; i < tensors; i++)
        w->first[i + 1] += w->first[i];
    for (uint32_t i = 0; i < w->state->piece_count; i++)
        if (flex_metadata_write_is_here(w, &w->state->pieces[i]))
            w->order[w->first[w->state->pieces[i].tensor]++] = i;
    memmove(w->first + 1, w->first, tensors * sizeof(*w->first));
    w->first[0] = 0;
}

static reshard_status metadata_write_prepare(struct metadata_writing *w, reshard_error *err)
{
    w->keys = array_new(w->catalog->tensor_count, sizeof(*w->keys));
    w->vectors = array_new(w->catalog->vector_count, sizeof(*w->vectors));
    w->files = array_new(w->state->file_count, sizeof(*w->files));
    w->first = array_zeroed((size_t)w->catalog->tensor_count + 2, sizeof(*w->first));
    w->order = array_new(w->state->piece_count, sizeof(*w->order));
    if (!w->keys || !w->vectors || !w->files || !w->first || !w->order)
        return error_set_memory(err);
    fill_none(w->keys, w->catalog->tensor_count);
    fill_none(w->vectors, w->catalog->vector_count);
    fill_none(w->files, w->state->file_count);
    fill_none(w->classes, CLASSES);
    fill_none(w->attributes, ATTRIBUTES);
    fill_none(w->dtypes, DTYPE_COUNT);
    w->module = PICKLE_NO_MEMO;
    flex_metadata_write_sort_pieces(w);
    return RESHARD_OK;
}

static void metadata_write_release(struct metadata_writing *w)
{
    free(w->keys);
    free(w->vectors);
    free(w->files);
    free(w->first);
    free(w->order);
}

/* ---- pieces of the pickle ---- */

/* An object of a class with `count` attributes to come. */
static struct pickle_items flex_metadata_write_begin_object(struct metadata_writing *w, enum class class, uint64_t count)
{
    struct pickle_stream *stream = &w->stream;
    const char *module = w->state->release >= FLEX_RELEASE_3_2 ? FLEX_MODULE : FLEX_OLD_MODULE;
    pickle_stream_object(stream);
    if (w->classes[class] == PICKLE_NO_MEMO)
        w->classes[class] = pickle_stream_global(stream, module, class_names[class], &w->module);
    else
        pickle_stream_get(stream, w->classes[class]);
    pickle_stream_opcode(stream, PICKLE_EMPTY_TUPLE);
    pickle_stream_opcode(stream, PICKLE_NEWOBJ);
    pickle_stream_memoize(stream);
    pickle_stream_object(stream);
    pickle_stream_opcode(stream, PICKLE_EMPTY_DICT);
    pickle_stream_memoize(stream);
    return pickle_stream_items_begin(stream, count, PICKLE_ITEMS_DICT);
}

static void end_object(struct metadata_writing *w, struct pickle_items *items)
{
    pickle_stream_items_end(&w->stream, items);
    pickle_stream_opcode(&w->stream, PICKLE_BUILD);
}

static void flex_metadata_write_put_attribute(struct metadata_writing *w, struct pickle_items *items, enum attribute attribute)
{
    pickle_stream_item(&w->stream, items);
    pickle_stream_str_once(&w->stream, str_of(attribute_names[attribute]), &w->attributes[attribute]);
}

static void put_key(struct metadata_writing *w, uint32_t tensor)
{
    struct str key = flex_key_in(w->state->folders[w->folder].prefix, w->catalog->tensors[tensor].key);
    pickle_stream_str_once(&w->stream, key, &w->keys[tensor]);
}

static void flex_metadata_write_put_vector(struct metadata_writing *w, uint32_t vector, int rank)
{
    if (rank && w->vectors[vector] != PICKLE_NO_MEMO)
        pickle_stream_get(&w->stream, w->vectors[vector]);
    else if (rank)
        w->vectors[vector] = pickle_stream_int_tuple(&w->stream, catalog_vector_at(w->catalog, vector), (size_t)rank);
    else
        pickle_stream_int_tuple(&w->stream, NULL, 0);
}

static void put_dtype_name(struct metadata_writing *w, enum dtype dtype)
{
    pickle_stream_str_once(&w->stream, str_of(dtype_info(dtype)->torch_name), &w->dtypes[dtype]);
}

/* is_flattened and flattened_range. */
static void put_run(struct metadata_writing *w, struct pickle_items *items, const struct flex_piece *piece)
{
    flex_metadata_write_put_attribute(w, items, IS_FLATTENED);
    pickle_stream_bool(&w->stream, piece->count >= 0);
    flex_metadata_write_put_attribute(w, items, RANGE);
    if (piece->count >= 0)
        pickle_stream_int_tuple(&w->stream, (int64_t[]){ piece->begin, piece->begin + piece->count }, 2);
    else
        pickle_stream_none(&w->stream);
}

static void put_shard(struct metadata_writing *w, const struct flex_piece *piece)
{
    static const uint64_t counts[] = { [FLEX_RELEASE_2_6] = 2, [FLEX_RELEASE_3_0] = 3, [FLEX_RELEASE_3_2] = 6, [FLEX_RELEASE_3_3] = 6 };
    const struct catalog_tensor *tensor = &w->catalog->tensors[piece->tensor];
    struct pickle_items items = flex_metadata_write_begin_object(w, CLASS_SHARD, counts[w->state->release]);
    flex_metadata_write_put_attribute(w, &items, OFFSET);
    flex_metadata_write_put_vector(w, piece->start, tensor->rank);
    flex_metadata_write_put_attribute(w, &items, SHAPE);
    flex_metadata_write_put_vector(w, piece->extent, tensor->rank);
    if (w->state->release >= FLEX_RELEASE_3_0) {
        flex_metadata_write_put_attribute(w, &items, DTYPE);
        put_dtype_name(w, tensor->dtype);
    }
    if (w->state->release >= FLEX_RELEASE_3_2) {
        flex_metadata_write_put_attribute(w, &items, GLOBAL_SHAPE);
        flex_metadata_write_put_vector(w, tensor->shape, tensor->rank);
        put_run(w, &items, piece);
    }
    end_object(w, &items);
}

static void put_index(struct metadata_writing *w, const struct flex_piece *piece)
{
    static const uint64_t counts[] = { [FLEX_RELEASE_2_6] = 2, [FLEX_RELEASE_3_0] = 2, [FLEX_RELEASE_3_2] = 4, [FLEX_RELEASE_3_3] = 6 };
    int rank = w->catalog->tensors[piece->tensor].rank;
    struct pickle_items items = flex_metadata_write_begin_object(w, CLASS_INDEX, counts[w->state->release]);
    flex_metadata_write_put_attribute(w, &items, KEY);
    put_key(w, piece->tensor);
    flex_metadata_write_put_attribute(w, &items, OFFSET);
    flex_metadata_write_put_vector(w, piece->start, rank);
    if (w->state->release >= FLEX_RELEASE_3_2)
        put_run(w, &items, piece);
    if (w->state->release >= FLEX_RELEASE_3_3) {
        flex_metadata_write_put_attribute(w, &items, REPLICA);
        if (piece->replica >= 0)
            pickle_stream_int(&w->stream, piece->replica);
        else
            pickle_stream_none(&w->stream);
        flex_metadata_write_put_attribute(w, &items, SHAPE);
        flex_metadata_write_put_vector(w, piece->extent, rank);
    }
    end_object(w, &items);
}

/* ---- the three dicts ---- */

/* Copies of a piece are listed once among the shards. */
static bool is_copy(const struct flex_piece *piece)
{
    return piece->replica > 0;
}

static uint64_t tensors_here(const struct metadata_writing *w)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < w->catalog->tensor_count; i++)
        count += w->first[i + 1] > w->first[i];
    return count;
}

static void flex_metadata_write_begin_dict(struct metadata_writing *w, const char *name)
{
    pickle_stream_str(&w->stream, str_of(name));
    pickle_stream_object(&w->stream);
    pickle_stream_opcode(&w->stream, PICKLE_EMPTY_DICT);
    pickle_stream_memoize(&w->stream);
}

static void put_shards(struct metadata_writing *w)
{
    flex_metadata_write_begin_dict(w, "state_dict_metadata");
    struct pickle_items tensors = pickle_stream_items_begin(&w->stream, tensors_here(w), PICKLE_ITEMS_DICT);
    for (uint32_t t = 0; t < w->catalog->tensor_count && !w->stream.status; t++) {
        uint64_t count = 0;
        for (uint32_t i = w->first[t]; i < w->first[t + 1]; i++)
            count += !is_copy(&w->state->pieces[w->order[i]]);
        if (w->first[t] == w->first[t + 1])
            continue;
        pickle_stream_item(&w->stream, &tensors);
        put_key(w, t);
        pickle_stream_object(&w->stream);
        pickle_stream_opcode(&w->stream, PICKLE_EMPTY_LIST);
        pickle_stream_memoize(&w->stream);
        struct pickle_items shards = pickle_stream_items_begin(&w->stream, count, PICKLE_ITEMS_LIST);
        for (uint32_t i = w->first[t]; i < w->first[t + 1]; i++) {
            if (is_copy(&w->state->pieces[w->order[i]]))
                continue;
            pickle_stream_item(&w->stream, &shards);
            put_shard(w, &w->state->pieces[w->order[i]]);
        }
        pickle_stream_items_end(&w->stream, &shards);
    }
    pickle_stream_items_end(&w->stream, &tensors);
}

static void flex_metadata_write_put_storage(struct metadata_writing *w)
{
    uint64_t count = w->first[w->catalog->tensor_count];
    flex_metadata_write_begin_dict(w, "storage_metadata");
    struct pickle_items items = pickle_stream_items_begin(&w->stream, count, PICKLE_ITEMS_DICT);
    for (uint32_t i = 0; i < w->state->piece_count && !w->stream.status; i++) {
        const struct flex_piece *piece = &w->state->pieces[i];
        if (!flex_metadata_write_is_here(w, piece))
            continue;
        pickle_stream_item(&w->stream, &items);
        put_index(w, piece);
        pickle_stream_str_once(&w->stream, w->state->files[piece->file].name, &w->files[piece->file]);
    }
    pickle_stream_items_end(&w->stream, &items);
}

/* The path of a tensor in the nested dict, as a tuple. Numbers become texts: there is nothing else in such a path. */
static void put_path(struct metadata_writing *w, uint32_t tensor)
{
    static const uint8_t small[] = { PICKLE_EMPTY_TUPLE, PICKLE_TUPLE1, PICKLE_TUPLE2, PICKLE_TUPLE3 };
    struct path_part single;
    const struct path_part *parts;
    struct str key = w->catalog->tensors[tensor].key;
    size_t count = catalog_tensor_path(w->wanted, &w->wanted->tensors[tensor], &single, &parts);
    bool is_ema = flex_key_in(w->state->folders[w->folder].prefix, key).size < key.size && count > 1;
    parts += is_ema ? 1 : 0;
    count -= is_ema ? 1 : 0;
    pickle_stream_object(&w->stream);
    if (count > 3)
        pickle_stream_opcode(&w->stream, PICKLE_MARK);
    for (size_t i = 0; i < count; i++) {
        char digits[24];
        if (count == 1 && parts[i].kind == PATH_KEY && str_equal(parts[i].key, key)) {
            put_key(w, tensor);
            continue;
        }
        if (parts[i].kind == PATH_KEY) {
            pickle_stream_str(&w->stream, parts[i].key);
            continue;
        }
        snprintf(digits, sizeof(digits), "%lld", (long long)parts[i].index);
        pickle_stream_str(&w->stream, str_of(digits));
    }
    pickle_stream_opcode(&w->stream, count > 3 ? PICKLE_TUPLE : small[count]);
    if (count)
        pickle_stream_memoize(&w->stream);
}

static void put_flat_mapping(struct metadata_writing *w)
{
    flex_metadata_write_begin_dict(w, "flat_mapping");
    struct pickle_items items = pickle_stream_items_begin(&w->stream, tensors_here(w), PICKLE_ITEMS_DICT);
    for (uint32_t t = 0; t < w->catalog->tensor_count && !w->stream.status; t++) {
        if (w->first[t] == w->first[t + 1])
            continue;
        pickle_stream_item(&w->stream, &items);
        put_key(w, t);
        put_path(w, t);
    }
    pickle_stream_items_end(&w->stream, &items);
}

reshard_status flex_metadata_write(const struct target *target, const struct catalog *wanted, uint32_t folder, pickle_sink sink,
                                   void *context, uint64_t *bytes, reshard_error *err)
{
    struct metadata_writing w = { .catalog = target->catalog, .wanted = wanted, .state = flex_target_state(target), .folder = folder };
    reshard_status status = metadata_write_prepare(&w, err);
    if (!status) {
        bool has_mapping = w.state->release >= FLEX_RELEASE_3_0;
        pickle_stream_begin(&w.stream, 4, sink, context);
        struct pickle_items items = flex_metadata_write_begin_object(&w, CLASS_METADATA, has_mapping ? 3 : 2);
        pickle_stream_item(&w.stream, &items);
        put_shards(&w);
        pickle_stream_item(&w.stream, &items);
        flex_metadata_write_put_storage(&w);
        if (has_mapping) {
            pickle_stream_item(&w.stream, &items);
            put_flat_mapping(&w);
        }
        end_object(&w, &items);
        status = pickle_stream_end(&w.stream, bytes, err);
    }
    metadata_write_release(&w);
    return status;
}
