/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the arrays of chunks in their files and checks that they are what the metadata says. A file's index is read as a whole, so that all
 * chunks of a file are placed when one of them is asked for.
 */
#include "formats/paddle/flex.h"

#include "base/array.h"
#include "encoding/paddle_save.h"
#include "tensor/box.h"

#include <stdlib.h>

/* ---- checking ---- */

static int64_t resolve_elements(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    int rank = catalog->tensors[chunk->tensor].rank;
    return layout && layout->flat_count >= 0 ? layout->flat_count : box_volume(rank, catalog_vector_at(catalog, chunk->extent));
}

static bool resolve_shape_fits(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct flex_array *array)
{
    int rank = catalog->tensors[chunk->tensor].rank;
    if (flex_chunk_is_flattened(chunk))
        return array->rank == 1 && array->shape[0] == resolve_elements(catalog, chunk);
    return array->rank == rank &&
           (rank == 0 || memcmp(array->shape, catalog_vector_at(catalog, chunk->extent), (size_t)rank * sizeof(*array->shape)) == 0);
}

static reshard_status resolve_misfit(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct flex_array *array,
                                     reshard_error *err)
{
    char start[SHAPE_TEXT_MAX], wanted[SHAPE_TEXT_MAX], stored[SHAPE_TEXT_MAX];
    int rank = catalog->tensors[chunk->tensor].rank;
    int64_t elements = resolve_elements(catalog, chunk);
    bool is_flattened = flex_chunk_is_flattened(chunk);
    error_set(err, RESHARD_ERR_FORMAT, "its shard at %s has shape %s in the metadata, but the file's array has shape %s",
              shape_text(rank, catalog_vector_at(catalog, chunk->start), ", ", start),
              is_flattened ? shape_text(1, &elements, ", ", wanted)
                           : shape_text(rank, catalog_vector_at(catalog, chunk->extent), ", ", wanted),
              shape_text(array->rank, array->shape, ", ", stored));
    error_hint(err, "the metadata is stale if the folder was saved to twice with other cuts: Paddle keeps the first save's metadata");
    return RESHARD_ERR_FORMAT;
}

static bool resolve_is_spelling(enum dtype dtype, enum dtype stored)
{
    if (dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2)
        return stored == DTYPE_I8 || stored == dtype;
    return dtype == stored || (dtype == DTYPE_BF16 && stored == DTYPE_U16);
}

static reshard_status resolve_check(struct catalog *catalog, const struct catalog_chunk *chunk, const struct flex_array *array,
                                    reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    /* Asynchronous saves lose shape and type of what is empty. */
    if (resolve_elements(catalog, chunk) == 0 && array->rank > 0 && box_volume(array->rank, array->shape) == 0)
        return RESHARD_OK;
    if (!resolve_shape_fits(catalog, chunk, array))
        return resolve_misfit(catalog, chunk, array, err);
    enum dtype dtype = catalog_stored_dtype(tensor);
    if (!flex_dtype_fits(dtype, array->dtype))
        return error_set(err, RESHARD_ERR_FORMAT, "the metadata says %s, but the file's array is of %s, whose elements have another size",
                         dtype_info(dtype)->name, dtype_info(array->dtype)->name);
    if (!resolve_is_spelling(dtype, array->dtype))
        catalog_warn(catalog, false, "tensor '%.*s': its array in '%.*s' is of %s; the metadata's %s counts", STR_ARG(tensor->key),
                     STR_ARG(catalog->objects[chunk->object].name), dtype_info(array->dtype)->name, dtype_info(dtype)->name);
    return RESHARD_OK;
}

/* ---- placing ---- */

/* Column-major strides, where they differ from row-major ones. */
static reshard_status resolve_set_strides(struct catalog *catalog, uint32_t chunk, const struct flex_array *array, reshard_error *err)
{
    int64_t strides[RANK_MAX];
    if (!array->is_fortran || array->rank < 2 || array->rank != catalog->tensors[catalog->chunks[chunk].tensor].rank)
        return RESHARD_OK;
    strides_column_major(array->rank, array->shape, strides);
    return catalog_chunk_set_strides(catalog, &catalog->chunks[chunk], array->rank, strides, err);
}

/* The chunk's elements are those of one part. */
static reshard_status resolve_set_part(struct catalog *catalog, uint32_t index, const struct flex_array *array,
                                       const struct paddle_part *part, reshard_error *err)
{
    struct catalog_chunk *chunk = &catalog->chunks[index];
    reshard_status status = RESHARD_OK;
    if (part->is_latin1)
        status = catalog_chunk_set_codec(catalog, chunk, CODEC_LATIN1, part->offset, part->stored_bytes, err);
    chunk->offset = part->is_latin1 ? 0 : part->offset;
    chunk->bytes = part->bytes;
    chunk->flags &= (uint16_t)~CHUNK_UNRESOLVED;
    if (array->is_big_endian)
        chunk->flags |= CHUNK_SWAP;
    return status ? status : resolve_set_strides(catalog, index, array, err);
}

/* What paddle.save cut into slices of an array's elements: a chunk for each, which are runs of the box. */
static reshard_status resolve_split(struct catalog *catalog, uint32_t index, const struct flex_array *array, reshard_error *err)
{
    const struct chunk_layout *known = catalog_layout_of(catalog, &catalog->chunks[index]);
    int64_t begin = known && known->flat_count >= 0 ? known->flat_begin : 0;
    uint64_t size = dtype_element_bytes(array->dtype);
    for (uint32_t i = 0; i < array->part_count; i++) {
        const struct catalog_chunk first = catalog->chunks[index];
        const struct catalog_tensor *tensor = &catalog->tensors[first.tensor];
        int64_t start[RANK_MAX], extent[RANK_MAX];
        uint32_t number = i ? catalog->chunk_count : index;
        if (i) {
            struct catalog_chunk *added;
            if (tensor->rank) {
                memcpy(start, catalog_vector_at(catalog, first.start), (size_t)tensor->rank * sizeof(*start));
                memcpy(extent, catalog_vector_at(catalog, first.extent), (size_t)tensor->rank * sizeof(*extent));
            }
            reshard_status status = catalog_add_chunk(catalog, first.tensor, start, extent, first.object, 0, 0, &added, err);
            if (status)
                return status;
            added->writer = first.writer;
            added->driver_data = first.driver_data | 1;
        }
        const int64_t count = (int64_t)(array->parts[i].bytes / size);
        reshard_status status = catalog_chunk_set_run(catalog, &catalog->chunks[number], begin, count, err);
        begin += count;
        if (!status)
            status = resolve_set_part(catalog, number, array, &array->parts[i], err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

static reshard_status resolve_place(struct catalog *catalog, uint32_t chunk, const struct flex_array *array, reshard_error *err)
{
    reshard_status status = resolve_check(catalog, &catalog->chunks[chunk], array, err);
    if (status)
        return status;
    if (array->part_count == 1)
        return resolve_set_part(catalog, chunk, array, &array->parts[0], err);
    if (catalog->is_sealed || array->is_fortran)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "its array is in slices, in a pickle of a protocol that knows none");
    return resolve_split(catalog, chunk, array, err);
}

reshard_status flex_place_in(struct catalog *catalog, const struct flex_data *data, uint32_t chunk, reshard_error *err)
{
    const struct catalog_tensor *tensor = &catalog->tensors[catalog->chunks[chunk].tensor];
    struct flex_array array;
    struct buffer key = { 0 };
    reshard_status status;
    buffer_append_str(&key, flex_key_in(catalog->objects[catalog->chunks[chunk].object].name, tensor->key));
    if (tensor->stored_as)
        buffer_append_text(&key, MASTER_SUFFIX);
    if (key.failed)
        status = error_set_memory(err);
    else if (flex_data_find(data, buffer_str(&key), &array))
        status = resolve_place(catalog, chunk, &array, err);
    else
        status = error_set(err, RESHARD_ERR_FORMAT, "the metadata says that the file holds it, but it does not");
    buffer_release(&key);
    if (status && status != RESHARD_ERR_MEMORY) {
        error_prefix(err, "'%.*s': tensor '%.*s'", STR_ARG(catalog->objects[catalog->chunks[chunk].object].name), STR_ARG(tensor->key));
        error_object(err, "%.*s", STR_ARG(catalog->objects[catalog->chunks[chunk].object].name));
    }
    return status;
}

/* ---- files ---- */

static int resolve_by_object(const void *a, const void *b, void *context)
{
    const struct catalog *catalog = context;
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    uint32_t x = catalog->chunks[i].object, y = catalog->chunks[j].object;
    return x != y ? (x < y ? -1 : 1) : i < j ? -1 : i > j;
}

/* All unresolved chunks, by object. */
static reshard_status resolve_list(struct source *source, reshard_error *err)
{
    struct flex_source *state = flex_state(source);
    const struct catalog *catalog = source->catalog;
    if (state->chunks)
        return RESHARD_OK;
    state->chunks = array_new(catalog->chunk_count, sizeof(*state->chunks));
    if (!state->chunks)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        if (catalog->chunks[i].flags & CHUNK_UNRESOLVED)
            state->chunks[state->chunk_count++] = i;
    }
    qsort_r(state->chunks, state->chunk_count, sizeof(*state->chunks), resolve_by_object, source->catalog);
    return RESHARD_OK;
}

/* Place in the list of the first chunk of an object. */
static uint32_t resolve_find(const struct flex_source *state, const struct catalog *catalog, uint32_t object)
{
    uint32_t low = 0, high = state->chunk_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (catalog->chunks[state->chunks[middle]].object < object)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Places all chunks of the object of chunk. What is wrong with others is said when they are asked for. */
static reshard_status resolve_file(struct source *source, uint32_t chunk, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    const struct flex_source *state = flex_state(source);
    uint32_t object = catalog->chunks[chunk].object;
    struct flex_data *data = NULL;
    reshard_status status = flex_data_open(source, catalog->objects[object].name, &data, err);
    if (!status)
        status = flex_place_in(catalog, data, chunk, err);
    for (uint32_t i = resolve_find(state, catalog, object); !status && i < state->chunk_count; i++) {
        uint32_t other = state->chunks[i];
        reshard_error unsaid = { 0 };
        if (catalog->chunks[other].object != object)
            break;
        if (catalog->chunks[other].flags & CHUNK_UNRESOLVED && flex_place_in(catalog, data, other, &unsaid) == RESHARD_ERR_MEMORY)
            status = error_set_memory(err);
    }
    flex_data_close(data);
    return status;
}

reshard_status flex_resolve(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err)
{
    reshard_status status = resolve_list(source, err);
    for (uint32_t i = 0; i < count && !status; i++) {
        if (source->catalog->chunks[chunks[i]].flags & CHUNK_UNRESOLVED)
            status = resolve_file(source, chunks[i], err);
    }
    return status;
}
