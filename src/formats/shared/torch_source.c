/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_source.h"

#include "base/array.h"
#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct torch_source *torch_source_of(const struct source *source)
{
    return source->driver_state;
}

reshard_status torch_source_new(struct source *source, reshard_error *err)
{
    source->driver_state = calloc(1, sizeof(struct torch_source));
    return source->driver_state ? RESHARD_OK : error_set_memory(err);
}

void torch_source_close(struct source *source)
{
    struct torch_source *state = source->driver_state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->file_count; i++) {
        torch_save_release(&state->files[i].archive);
        free(state->files[i].listed);
        free(state->files[i].hidden);
        free(state->files[i].has_crc_in_chunk);
    }
    free(state->files);
    free(state->origins);
    free(state);
    source->driver_state = NULL;
}

static reshard_status torch_source_open_archive(struct source *source, const char *name, int rank, struct torch_archive *out,
                                                uint64_t *bytes, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, name, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    *bytes = store_object_size(object);
    status = (source->is_salvage ? torch_save_open_cut_off : torch_save_open)(&reader, &source->limits, rank, out, err);
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    store_object_close(object);
    return status;
}

reshard_status torch_source_open_file(struct source *source, const char *name, int rank, uint32_t *out, reshard_error *err)
{
    struct torch_source *state = torch_source_of(source);
    struct torch_file file = { 0 };
    uint64_t bytes;
    if (!ARRAY_ROOM(state->files, state->file_count, state->file_capacity))
        return error_set_memory(err);
    reshard_status status = torch_source_open_archive(source, name, rank, &file.archive, &bytes, err);
    if (status)
        return status;
    /* From here on the file is the state's, whatever fails. */
    struct torch_file *kept = &state->files[state->file_count];
    *kept = file;
    *out = state->file_count++;
    kept->listed = array_zeroed(file.archive.tensor_count, sizeof(*kept->listed));
    kept->hidden = array_zeroed(file.archive.storage_count, sizeof(*kept->hidden));
    kept->has_crc_in_chunk = array_zeroed(file.archive.storage_count, sizeof(*kept->has_crc_in_chunk));
    struct value_graph graph = kept->archive.graph;
    kept->archive.graph = (struct value_graph){ 0 };
    kept->graph = catalog_adopt_graph(source->catalog, graph);
    if (!kept->listed || !kept->hidden || !kept->has_crc_in_chunk || !kept->graph)
        return error_set_memory(err);
    return catalog_add_object(source->catalog, str_of(name), bytes, &kept->object, err);
}

reshard_status torch_source_note_origin(struct torch_source *state, uint32_t tensor, struct torch_origin origin, reshard_error *err)
{
    if (!ARRAY_ROOM(state->origins, tensor, state->origin_capacity))
        return error_set_memory(err);
    for (; state->origin_count <= tensor; state->origin_count++)
        state->origins[state->origin_count] = (struct torch_origin){ TORCH_NONE, TORCH_NONE, TORCH_NONE };
    state->origins[tensor] = origin;
    return RESHARD_OK;
}

/* Bytes from element 0 to the end of the last element that the tensor shows. */
static uint64_t span_bytes(const struct torch_tensor *tensor)
{
    int64_t end = 0;
    strides_span(tensor->rank, tensor->shape, tensor->strides, &end);
    return (uint64_t)end * dtype_element_bytes(tensor->dtype);
}

/* Sets the rare properties of a chunk: codec, strides, CRC. */
static reshard_status torch_source_set_layout(struct catalog *catalog, struct catalog_chunk *chunk, const struct torch_storage *storage,
                                              int rank, const int64_t *strides, bool with_crc, reshard_error *err)
{
    bool is_coded = storage->codec != CODEC_NONE;
    reshard_status status = RESHARD_OK;
    if (strides)
        status = catalog_chunk_set_strides(catalog, chunk, rank, strides, err);
    if (!status && is_coded)
        status = catalog_chunk_set_codec(catalog, chunk, storage->codec, storage->offset, storage->stored_bytes, err);
    if (!status && with_crc && storage->has_crc && !is_coded && storage->bytes > 0) {
        struct chunk_layout *layout = catalog_chunk_layout(catalog, chunk);
        if (!layout)
            return error_set_memory(err);
        layout->crc32 = storage->crc32;
        layout->crc_offset = storage->offset;
        layout->crc_bytes = storage->bytes;
        chunk->flags |= CHUNK_HAS_CRC;
    }
    return status;
}

reshard_status torch_source_add_chunk(struct source *source, uint32_t tensor_index, const int64_t *start, uint32_t file_index,
                                      uint32_t archive_tensor, bool with_crc, struct catalog_chunk **out, reshard_error *err)
{
    struct torch_file *file = &torch_source_of(source)->files[file_index];
    const struct torch_tensor *tensor = &file->archive.tensors[archive_tensor];
    const struct torch_storage *storage = &file->archive.storages[tensor->storage];
    bool is_row_major = strides_are_row_major(tensor->rank, tensor->shape, tensor->strides);
    struct catalog_chunk *chunk;
    *out = NULL;
    if (box_is_empty(tensor->rank, tensor->shape))
        return RESHARD_OK;
    uint64_t base = storage->codec == CODEC_NONE ? storage->offset : 0;
    reshard_status status = catalog_add_chunk(source->catalog, tensor_index, start, tensor->shape, file->object,
                                              base + tensor->offset_bytes, span_bytes(tensor), &chunk, err);
    if (status)
        return status;
    if (tensor->flags & TORCH_TENSOR_SWAP)
        chunk->flags |= CHUNK_SWAP;
    if (tensor->flags & TORCH_TENSOR_CONJ)
        chunk->flags |= CHUNK_CONJUGATE;
    if (tensor->flags & TORCH_TENSOR_NEG)
        chunk->flags |= CHUNK_NEGATE;
    status = torch_source_set_layout(source->catalog, chunk, storage, tensor->rank, is_row_major ? NULL : tensor->strides, with_crc, err);
    if (!status && chunk->flags & CHUNK_HAS_CRC)
        file->has_crc_in_chunk[tensor->storage] = true;
    *out = chunk;
    return status;
}

reshard_status torch_source_add_box(struct source *source, const struct torch_box *box, reshard_error *err)
{
    struct torch_file *file = &torch_source_of(source)->files[box->file];
    const struct torch_tensor *tensor = &file->archive.tensors[box->archive_tensor];
    const struct torch_storage *storage = &file->archive.storages[tensor->storage];
    struct catalog_chunk *chunk;
    int64_t end;
    if (box_is_empty(box->rank, box->extent))
        return RESHARD_OK;
    if (!strides_span(box->rank, box->extent, box->strides, &end))
        return error_set(err, RESHARD_ERR_FORMAT, "strides of a part of a tensor do not fit");
    uint64_t element = dtype_element_bytes(tensor->dtype), base = storage->codec == CODEC_NONE ? storage->offset : 0;
    uint64_t begin = tensor->offset_bytes + (uint64_t)box->offset * element;
    if (!range_fits(begin, (uint64_t)end * element, storage->bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "a part of a tensor lies outside of its storage");
    reshard_status status = catalog_add_chunk(source->catalog, box->tensor, box->start, box->extent, file->object, base + begin,
                                              (uint64_t)end * element, &chunk, err);
    if (status)
        return status;
    chunk->flags |=
        (uint16_t)((tensor->flags & TORCH_TENSOR_SWAP ? CHUNK_SWAP : 0) | (tensor->flags & TORCH_TENSOR_CONJ ? CHUNK_CONJUGATE : 0) |
                   (tensor->flags & TORCH_TENSOR_NEG ? CHUNK_NEGATE : 0));
    bool is_row_major = strides_are_row_major(box->rank, box->extent, box->strides);
    /* The CRC is of the whole storage, so only a chunk that is all of it can carry it without reading more. */
    bool with_crc = (uint64_t)end * element == storage->bytes && is_row_major && !file->has_crc_in_chunk[tensor->storage];
    status = torch_source_set_layout(source->catalog, chunk, storage, box->rank, is_row_major ? NULL : box->strides, with_crc, err);
    if (!status && chunk->flags & CHUNK_HAS_CRC)
        file->has_crc_in_chunk[tensor->storage] = true;
    return status;
}

reshard_status torch_source_add_run(struct source *source, const struct torch_run *run, reshard_error *err)
{
    struct torch_file *file = &torch_source_of(source)->files[run->file];
    const struct torch_tensor *tensor = &file->archive.tensors[run->archive_tensor];
    const struct torch_storage *storage = &file->archive.storages[tensor->storage];
    const struct catalog_tensor *owner = &source->catalog->tensors[run->tensor];
    bool is_whole = run->count == box_volume(owner->rank, catalog_vector_at(source->catalog, owner->shape));
    uint64_t element = dtype_element_bytes(tensor->dtype), bytes = (uint64_t)run->count * element;
    uint64_t begin = tensor->offset_bytes + (uint64_t)run->offset * element, base = storage->codec == CODEC_NONE ? storage->offset : 0;
    struct catalog_chunk *chunk;
    if (run->offset < 0 || run->offset + run->count > tensor->shape[0] || !range_fits(begin, bytes, storage->bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "a part of a tensor lies outside of its storage");
    reshard_status status =
        catalog_add_chunk(source->catalog, run->tensor, NULL, NULL, file->object, base + begin, bytes, &chunk, err);
    if (status)
        return status;
    chunk->writer = catalog_writer(run->writer);
    chunk->flags |= (uint16_t)(tensor->flags & TORCH_TENSOR_SWAP ? CHUNK_SWAP : 0);
    bool with_crc = bytes == storage->bytes && !file->has_crc_in_chunk[tensor->storage];
    status = torch_source_set_layout(source->catalog, chunk, storage, 1, NULL, with_crc, err);
    file->has_crc_in_chunk[tensor->storage] |= !status && chunk->flags & CHUNK_HAS_CRC;
    if (status || is_whole)
        return status;
    return catalog_chunk_set_run(source->catalog, chunk, run->begin, run->count, err);
}

reshard_status torch_source_add_item(struct source *source, uint32_t file, struct str key, const struct path_part *parts, size_t count,
                                     const struct value *value, reshard_error *err)
{
    struct catalog_item item = { .key = key, .kind = ITEM_VALUE, .value = value, .graph = torch_source_of(source)->files[file].graph };
    return catalog_add_item(source->catalog, &item, parts, count, NULL, err);
}

/* ---- hidden storages ---- */

struct marking {
    bool *wanted;             /* by storage */
    bool *is_tensors;         /* by node: a storage's mention inside a listed tensor */
    uint32_t storage_count;
};

static bool note_mention(const struct value *value, void *context)
{
    struct marking *marking = context;
    marking->is_tensors[value->id] = true;
    return true;
}

static bool mark_storage(const struct value *value, void *context)
{
    struct marking *marking = context;
    if (value->kind == VALUE_PERSID && value->storage > 0 && value->storage <= marking->storage_count && !marking->is_tensors[value->id])
        marking->wanted[value->storage - 1] = true;
    return true;
}

/*
 * Storages that the items mention, and with is_whole whatever else mentions one outside listed tensors: attributes of containers that
 * were opened, members whose key comes again. Whoever writes the object as it is needs them too.
 */
static bool mark_storages(struct torch_file *file, struct value **items, size_t item_count, bool is_whole, struct work *work, bool *wanted)
{
    struct value_graph *graph = file->graph;
    const struct torch_archive *archive = &file->archive;
    struct value *all = value_new_list(graph, VALUE_LIST, items, item_count);
    struct value **nodes = arena_array(&graph->arena, archive->tensor_count, sizeof(*nodes));
    if (!all || !nodes)
        return false;
    size_t node_count = 0;
    for (uint32_t i = 0; i < archive->tensor_count; i++)
        if (file->listed[i] && archive->tensors[i].node)
            nodes[node_count++] = (struct value *)archive->tensors[i].node;
    struct value *listed = value_new_list(graph, VALUE_LIST, nodes, node_count);
    struct marking marking = { wanted, array_zeroed(graph->count, sizeof(bool)), archive->storage_count };
    bool good = listed && marking.is_tensors && value_walk(all, graph->count, work, mark_storage, &marking, NULL);
    if (good && is_whole)
        good = value_walk(listed, graph->count, work, note_mention, &marking, NULL) &&
               value_walk(graph->root, graph->count, work, mark_storage, &marking, NULL);
    free(marking.is_tensors);
    return good;
}

/* A storage as a tensor of one dimension, in its own type so that a big-endian one arrives in the right order. */
static reshard_status hide_storage(struct source *source, uint32_t file_index, uint32_t index, reshard_error *err)
{
    struct torch_source *state = torch_source_of(source);
    struct torch_file *file = &state->files[file_index];
    const struct torch_storage *storage = &file->archive.storages[index];
    unsigned item = dtype_element_bytes(storage->dtype);
    int64_t elements = (int64_t)(storage->bytes / item);
    /* The leading NUL keeps it apart from every key that a path can give. */
    char begin[32];
    const int begin_size = 1 + snprintf(begin + 1, sizeof(begin) - 1, "storage:%" PRIu32 ":", file_index);
    begin[0] = '\0';
    const struct str name = ARENA_JOIN(&source->catalog->arena, { begin, (size_t)begin_size }, storage->key);
    uint32_t tensor;
    if (!name.data)
        return error_set_memory(err);
    reshard_status status = catalog_add_tensor(source->catalog, name, storage->dtype, 1, &elements, &tensor, err);
    if (!status)
        status = torch_source_note_origin(state, tensor, (struct torch_origin){ file_index, TORCH_NONE, index }, err);
    if (status)
        return status;
    source->catalog->tensors[tensor].flags |= TENSOR_HIDDEN;
    file->hidden[index] = tensor + 1;
    if (elements == 0)
        return RESHARD_OK;
    struct catalog_chunk *chunk;
    status = catalog_add_chunk(source->catalog, tensor, NULL, NULL, file->object, storage->codec == CODEC_NONE ? storage->offset : 0,
                               storage->bytes, &chunk, err);
    if (status)
        return status;
    if (file->archive.is_big_endian && !storage->is_untyped && dtype_info(storage->dtype)->swap_bytes > 1)
        chunk->flags |= CHUNK_SWAP;
    bool with_crc = !file->has_crc_in_chunk[index];
    status = torch_source_set_layout(source->catalog, chunk, storage, 1, NULL, with_crc, err);
    if (!status && chunk->flags & CHUNK_HAS_CRC)
        file->has_crc_in_chunk[index] = true;
    return status;
}

/* Nodes counted the archive's tables so far; from now on they count the catalog's tensors. */
static bool renumber(const struct value *value, void *context)
{
    const struct torch_file *file = context;
    struct value *node = (struct value *)value;
    if (node->tensor > 0)
        node->tensor = file->listed[node->tensor - 1];
    if (node->kind == VALUE_PERSID && node->storage > 0)
        node->storage = file->hidden[node->storage - 1];
    return true;
}

reshard_status torch_source_hide_storages(struct source *source, uint32_t file_index, struct value **items, size_t item_count, bool *wanted,
                                          reshard_error *err)
{
    struct torch_file *file = &torch_source_of(source)->files[file_index];
    struct value_graph *graph = file->graph;
    bool no_memory = false;
    if (!mark_storages(file, items, item_count, torch_source_of(source)->is_kept_whole, source->limits.budget, wanted))
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < file->archive.storage_count; i++)
        if (wanted[i] && file->archive.storages[i].has_data)
            status = hide_storage(source, file_index, i, err);
    if (!status && !value_walk(graph->root, graph->count, source->limits.budget, renumber, file, &no_memory))
        status = error_set_memory(err);
    return status;
}
