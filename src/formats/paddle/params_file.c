/* SPDX-License-Identifier: Apache-2.0 */
/* One file of paddle.save: opened, and as tensors and items of the catalog. */
#include "formats/paddle/params.h"

#include "base/array.h"
#include "formats/shared/torch_flatten.h"

#include <inttypes.h>
#include <stdlib.h>

#define NUMPY_VALUE_BYTES_MAX ((uint64_t)1 << 20)

struct params_source *params_source_of(const struct source *source)
{
    return source->driver_state;
}

void params_close_source(struct source *source)
{
    struct params_source *state = source->driver_state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->file_count; i++) {
        paddle_save_release(&state->files[i].archive);
        free(state->files[i].listed);
    }
    free(state->files);
    free(state);
    source->driver_state = NULL;
}

enum dtype params_dtype(const struct paddle_tensor *tensor)
{
    return tensor->is_bfloat16 ? DTYPE_BF16 : tensor->dtype;
}

/* ---- opening ---- */

static reshard_status params_file_keep(struct source *source, const char *name, uint64_t bytes, struct paddle_archive *archive,
                                       uint32_t *out, reshard_error *err)
{
    struct params_source *state = params_source_of(source);
    struct params_file *file = &state->files[state->file_count];
    *file = (struct params_file){ .archive = *archive };
    *out = state->file_count++;
    file->listed = array_zeroed(archive->tensor_count, sizeof(*file->listed));
    if (!file->listed)
        return error_set_memory(err);
    if (archive->container == PADDLE_PICKLE) {
        struct value_graph graph = file->archive.graph;
        file->archive.graph = (struct value_graph){ 0 };
        file->graph = catalog_adopt_graph(source->catalog, graph);
        if (!file->graph)
            return error_set_memory(err);
    }
    return catalog_add_object(source->catalog, str_of(name), bytes, &file->object, err);
}

reshard_status params_load_values(struct source *source, uint32_t index, uint32_t first_item, reshard_error *err)
{
    struct params_file *file = &params_source_of(source)->files[index];
    const struct catalog *catalog = source->catalog;
    size_t count = 0;
    struct value **values = arena_array(&file->graph->arena, catalog->item_count - first_item, sizeof(*values));
    for (uint32_t i = first_item; i < catalog->item_count && values; i++)
        if (catalog->items[i].value->kind >= VALUE_LIST)
            values[count++] = (struct value *)(uintptr_t)catalog->items[i].value;
    struct value *all = values ? value_new_list(file->graph, VALUE_LIST, values, count) : NULL;
    if (!all)
        return work_error(source->limits.budget, err);
    if (!count)
        return RESHARD_OK;
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, catalog->objects[file->object].name.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = paddle_save_load_value(&file->archive, &reader, &source->limits, file->graph, all, err);
    store_object_close(object);
    return status;
}

static reshard_status params_file_open(struct source *source, const struct store_object *object, uint32_t *out, reshard_error *err)
{
    struct paddle_archive archive;
    struct reader reader = store_object_reader(object);
    struct params_source *state = params_source_of(source);
    struct paddle_open_options options = { &source->limits, source->lenient };
    if (!ARRAY_ROOM(state->files, state->file_count, state->file_capacity))
        return error_set_memory(err);
    reshard_status status = paddle_save_open(&reader, &options, &archive, err);
    return status ? status : params_file_keep(source, store_object_name(object), store_object_size(object), &archive, out, err);
}

static reshard_status params_file_explain(const char *name, reshard_status status, reshard_error *err)
{
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    return status;
}

reshard_status params_open_file(struct source *source, const char *name, uint32_t *out, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, name, &object, err);
    if (status)
        return status;
    status = params_file_open(source, object, out, err);
    store_object_close(object);
    return params_file_explain(name, status, err);
}

/* ---- chunks ---- */

/* What one part of a tensor is: `count` elements from flat element `begin` on of the place. */
static reshard_status params_file_add_part(struct source *source, const struct params_place *place, const struct paddle_part *part,
                                           int64_t begin, int64_t count, bool is_run, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct params_file *file = &params_source_of(source)->files[place->file];
    const struct paddle_tensor *tensor = &file->archive.tensors[place->archive_tensor];
    struct catalog_chunk *chunk;
    uint64_t bytes = (uint64_t)count * dtype_element_bytes(tensor->dtype);
    reshard_status status = catalog_add_chunk(catalog, place->tensor, place->start, place->extent, file->object,
                                              part->is_latin1 ? 0 : part->offset, bytes, &chunk, err);
    if (status)
        return status;
    if (tensor->is_big_endian)
        chunk->flags |= CHUNK_SWAP;
    if (tensor->is_fortran) {
        int64_t strides[RANK_MAX];
        strides_column_major(tensor->rank, tensor->shape, strides);
        status = catalog_chunk_set_strides(catalog, chunk, tensor->rank, strides, err);
    }
    if (!status && is_run)
        status = catalog_chunk_set_run(catalog, chunk, begin, count, err);
    if (!status && part->is_latin1)
        status = catalog_chunk_set_codec(catalog, chunk, CODEC_LATIN1, part->offset, part->stored_bytes, err);
    return status;
}

reshard_status params_add_chunks(struct source *source, const struct params_place *place, reshard_error *err)
{
    const struct params_file *file = &params_source_of(source)->files[place->file];
    const struct paddle_tensor *tensor = &file->archive.tensors[place->archive_tensor];
    unsigned element = dtype_element_bytes(tensor->dtype);
    bool is_run = place->flat_count >= 0 || tensor->part_count > 1;
    int64_t begin = place->flat_count >= 0 ? place->flat_begin : 0, end = place->flat_count >= 0 ? begin + place->flat_count : INT64_MAX;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < tensor->part_count && begin < end && !status; i++) {
        int64_t count = (int64_t)(tensor->parts[i].bytes / element);
        count = count < end - begin ? count : end - begin;
        if (count)
            status = params_file_add_part(source, place, &tensor->parts[i], begin, count, is_run, err);
        begin += count;
    }
    return status;
}

/* ---- leaves ---- */

struct adding_file {
    struct source *source;
    uint32_t file;
    struct str prefix; /* empty: none */
    struct path_part *parts;
    size_t part_capacity;
    struct buffer key;
    struct value **names; /* key, name, … of pairs (name, array) */
    size_t name_count, name_capacity;
};

/* The path of a leaf, with the prefix before it. */
static reshard_status leaf_path(struct adding_file *adding, const struct torch_leaf *leaf, size_t *count, reshard_error *err)
{
    size_t extra = adding->prefix.size ? 1 : 0;
    *count = leaf->part_count + extra;
    if (!ARRAY_RESERVE(adding->parts, *count + 1, adding->part_capacity))
        return error_set_memory(err);
    adding->parts[0] = (struct path_part){ .kind = PATH_KEY, .key = adding->prefix };
    if (leaf->part_count)
        memcpy(adding->parts + extra, leaf->parts, leaf->part_count * sizeof(*leaf->parts));
    buffer_clear(&adding->key);
    return path_join(adding->parts, *count, &adding->key) ? RESHARD_OK : error_set_memory(err);
}

/* What a pair calls its array is kept like the names of a table. */
static reshard_status params_file_note_name(struct adding_file *adding, const struct paddle_tensor *tensor, reshard_error *err)
{
    struct value_graph *graph = params_source_of(adding->source)->files[adding->file].graph;
    size_t skip = adding->prefix.size ? adding->prefix.size + 1 : 0;
    struct str key = buffer_str(&adding->key);
    if (!tensor->is_pair || key.size < skip)
        return RESHARD_OK;
    if (!ARRAY_RESERVE(adding->names, adding->name_count + 2, adding->name_capacity))
        return error_set_memory(err);
    struct str rest = key.size > skip ? (struct str){ key.data + skip, key.size - skip } : STR("");
    struct value *texts[2] = { value_new_str(graph, rest), value_new_str(graph, tensor->name) };
    if (!texts[0] || !texts[1])
        return work_error(adding->source->limits.budget, err);
    adding->names[adding->name_count++] = texts[0];
    adding->names[adding->name_count++] = texts[1];
    return RESHARD_OK;
}

static reshard_status params_file_add_tensor(struct adding_file *adding, uint32_t archive_tensor, size_t part_count, reshard_error *err)
{
    struct source *source = adding->source;
    struct params_source *state = params_source_of(source);
    struct params_file *file = &state->files[adding->file];
    const struct paddle_tensor *tensor = &file->archive.tensors[archive_tensor];
    uint32_t index;
    reshard_status status = catalog_add_tensor(source->catalog, buffer_str(&adding->key), params_dtype(tensor), tensor->rank, tensor->shape,
                                               &index, err);
    bool is_key_path = part_count == 0 || (part_count == 1 && adding->parts[0].kind == PATH_KEY);
    if (!status && !is_key_path)
        status = catalog_set_tensor_path(source->catalog, index, adding->parts, part_count, err);
    if (status)
        return status;
    status = params_file_note_name(adding, tensor, err);
    if (status)
        return status;
    state->bfloat16_count += tensor->is_bfloat16;
    if (file->listed[archive_tensor])
        source->catalog->tensors[index].tied_to = file->listed[archive_tensor] - 1;
    else
        file->listed[archive_tensor] = index + 1;
    struct params_place place = { .tensor = index, .file = adding->file, .archive_tensor = archive_tensor, .flat_count = -1 };
    return params_add_chunks(source, &place, err);
}

static reshard_status params_file_add_item(struct adding_file *adding, const struct value *value, size_t part_count, reshard_error *err)
{
    const struct params_file *file = &params_source_of(adding->source)->files[adding->file];
    struct catalog_item item = { .key = buffer_str(&adding->key), .kind = ITEM_VALUE, .value = value, .graph = file->graph };
    bool is_key_path = part_count == 0 || (part_count == 1 && adding->parts[0].kind == PATH_KEY);
    return catalog_add_item(adding->source->catalog, &item, adding->parts, is_key_path ? 0 : part_count, NULL, err);
}

/* Arrays that paddle.load leaves to NumPy are values like others, as long as they are small. */
static bool params_file_is_value(const struct adding_file *adding, const struct value *value)
{
    const struct paddle_tensor *tensor = &params_source_of(adding->source)->files[adding->file].archive.tensors[value->tensor - 1];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < tensor->part_count; i++)
        bytes += tensor->parts[i].bytes;
    return tensor->is_numpy && tensor->rank <= PARAMS_RANK_MAX && value->kind >= VALUE_LIST && bytes <= NUMPY_VALUE_BYTES_MAX;
}

static reshard_status params_file_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct adding_file *adding = context;
    size_t count;
    reshard_status status = leaf_path(adding, leaf, &count, err);
    if (status)
        return status;
    if (leaf->value->tensor && !params_file_is_value(adding, leaf->value))
        return params_file_add_tensor(adding, leaf->value->tensor - 1, count, err);
    return params_file_add_item(adding, leaf->value, count, err);
}

/* The names of pairs as an item of its own. */
static reshard_status params_file_add_names(struct adding_file *adding, reshard_error *err)
{
    struct value_graph *graph = params_source_of(adding->source)->files[adding->file].graph;
    struct path_part part = { .kind = PATH_KEY, .key = STR(PADDLE_NAME_TABLE) };
    size_t count;
    if (!adding->name_count)
        return RESHARD_OK;
    struct value **items = arena_array(&graph->arena, adding->name_count, sizeof(*items));
    struct value *table = items ? value_new_list(graph, VALUE_DICT, items, adding->name_count) : NULL;
    if (!table)
        return work_error(adding->source->limits.budget, err);
    memcpy(items, adding->names, adding->name_count * sizeof(*items));
    reshard_status status = leaf_path(adding, &(struct torch_leaf){ .parts = &part, .part_count = 1 }, &count, err);
    return status ? status : params_file_add_item(adding, table, count, err);
}

static reshard_status params_file_add_leaves(struct adding_file *adding, reshard_error *err)
{
    static const char *const closed[] = { PADDLE_NAME_TABLE, NULL };
    const struct params_file *file = &params_source_of(adding->source)->files[adding->file];
    struct value binary = { .tensor = 1 };
    if (!file->graph)
        return params_file_add_leaf(&(struct torch_leaf){ .value = &binary }, adding, err);
    reshard_status status = torch_flatten_all(file->graph, &adding->source->limits, closed, params_file_add_leaf, adding, err);
    return status ? status : params_file_add_names(adding, err);
}

reshard_status params_add_file(struct source *source, uint32_t index, const char *prefix, reshard_error *err)
{
    struct adding_file adding = { .source = source, .file = index, .prefix = str_of(prefix ? prefix : "") };
    const struct params_file *file = &params_source_of(source)->files[index];
    uint32_t first_item = source->catalog->item_count;
    reshard_status status = params_file_add_leaves(&adding, err);
    free(adding.parts);
    free(adding.names);
    buffer_release(&adding.key);
    if (!status && file->graph)
        status = params_load_values(source, index, first_item, err);
    return params_file_explain(source->catalog->objects[file->object].name.data, status, err);
}
