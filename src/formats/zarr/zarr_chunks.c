/* SPDX-License-Identifier: Apache-2.0 */
/* From the files of an array to chunks of the catalog. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/array.h"
#include "formats/zarr/zarr_read.h"

/* ---- chunks that are not stored ---- */

static reshard_status fill_chain(struct zarr_adding *adding, reshard_error *err)
{
    struct arena *arena = &adding->reading->source->catalog->arena;
    unsigned bytes = dtype_element_bytes(adding->array->dtype);
    struct chain *chain = arena_zalloc(arena, sizeof(*chain));
    char *literal = arena_copy(arena, adding->array->fill, bytes);
    if (!chain || !literal)
        return error_set_memory(err);
    *chain = (struct chain){ .decoded_bytes = bytes, .literal = (const uint8_t *)literal };
    adding->fill = chain;
    return RESHARD_OK;
}

/* The box cut to the array; false if nothing is left. */
static bool box_clip(const struct zarr_array *array, const int64_t *start, const int64_t *extent, int64_t *out)
{
    for (int axis = 0; axis < array->rank; axis++) {
        int64_t left = array->shape[axis] - start[axis];
        out[axis] = extent[axis] < left ? extent[axis] : left;
        if (out[axis] <= 0)
            return false;
    }
    return true;
}

reshard_status zarr_fill_add(struct zarr_adding *adding, const int64_t *start, const int64_t *extent, reshard_error *err)
{
    static const int64_t no_strides[RANK_MAX];
    struct source *source = adding->reading->source;
    const struct zarr_array *array = adding->array;
    unsigned bytes = dtype_element_bytes(array->dtype);
    int64_t clipped[RANK_MAX];
    struct catalog_chunk *chunk;
    if (!box_clip(array, start, extent, clipped))
        return RESHARD_OK;
    reshard_status status = adding->fill ? RESHARD_OK : fill_chain(adding, err);
    if (!status)
        status = catalog_add_chunk(source->catalog, adding->tensor, start, clipped, adding->document_object, 0, bytes, &chunk, err);
    if (!status)
        status = catalog_chunk_set_strides(source->catalog, chunk, array->rank, no_strides, err);
    return status ? status : catalog_chunk_set_chain(source->catalog, chunk, adding->fill, 0, 0, err);
}

/* ---- chunks that are ---- */

static reshard_status chain_make(struct zarr_adding *adding, const struct zarr_block *block, uint64_t bytes, const struct chain **out,
                                 reshard_error *err)
{
    const struct zarr_level *level = &adding->array->levels[block->level];
    const struct limits *limits = &adding->reading->source->limits;
    struct arena *arena = &adding->reading->source->catalog->arena;
    uint32_t count = block->prefix_count + level->step_count;
    if (block->prefix_count == 0 && adding->chain) {
        *out = adding->chain;
        return RESHARD_OK;
    }
    if (bytes > limits->chunk_bytes)
        return error_set_limit(err, "chunk_bytes", bytes, limits->chunk_bytes);
    struct chain *chain = arena_zalloc(arena, sizeof(*chain));
    struct chain_step *steps = arena_array(arena, count, sizeof(*steps));
    if (!chain || !steps)
        return error_set_memory(err);
    memcpy(steps, block->prefix, block->prefix_count * sizeof(*steps));
    memcpy(steps + block->prefix_count, level->steps, level->step_count * sizeof(*steps));
    *chain = (struct chain){ .steps = steps, .step_count = count, .decoded_bytes = bytes };
    reshard_status status = chain_check(chain, err);
    if (status)
        return status;
    if (block->prefix_count == 0)
        adding->chain = chain;
    *out = chain;
    return RESHARD_OK;
}

/* Strides of the block's elements by array axis; *is_row_major if the clipped box needs none. */
static void strides_of(const struct zarr_adding *adding, const struct zarr_block *block, const int64_t *clipped, int64_t *strides,
                       bool *is_row_major)
{
    const struct zarr_level *level = &adding->array->levels[block->level];
    int64_t stride = 1;
    for (int i = adding->array->rank - 1; i >= 0; i--) {
        int axis = block->axis[level->order[i]];
        strides[axis] = stride;
        stride *= block->extent[axis];
    }
    *is_row_major = strides_are_row_major(adding->array->rank, clipped, strides);
}

static reshard_status leaf_add(struct zarr_adding *adding, const struct zarr_block *block, reshard_error *err)
{
    struct catalog *catalog = adding->reading->source->catalog;
    const struct zarr_array *array = adding->array;
    const struct chain *chain = NULL;
    int64_t clipped[RANK_MAX], strides[RANK_MAX];
    bool is_row_major, is_coded = block->prefix_count || array->levels[block->level].step_count;
    uint64_t bytes = (uint64_t)box_volume(array->rank, block->extent) * dtype_element_bytes(array->dtype);
    struct catalog_chunk *chunk;
    if (!box_clip(array, block->start, block->extent, clipped))
        return RESHARD_OK;
    if (!is_coded && block->bytes != bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "chunk of %" PRIu64 " bytes, expected %" PRIu64, block->bytes, bytes);
    if (is_coded && block->bytes > adding->reading->source->limits.chunk_bytes)
        return error_set_limit(err, "chunk_bytes", block->bytes, adding->reading->source->limits.chunk_bytes);
    reshard_status status = is_coded ? chain_make(adding, block, bytes, &chain, err) : RESHARD_OK;
    if (!status)
        status = catalog_add_chunk(catalog, adding->tensor, block->start, clipped, block->object, is_coded ? 0 : block->offset, bytes,
                                   &chunk, err);
    if (status)
        return status;
    if (array->is_swapped)
        chunk->flags |= CHUNK_SWAP;
    if (adding->reading->has_plain_nans && array->dtype == DTYPE_BF16 && !array->names_separator)
        chunk->flags |= CHUNK_PLAIN_NAN;
    strides_of(adding, block, clipped, strides, &is_row_major);
    if (!is_row_major)
        status = catalog_chunk_set_strides(catalog, chunk, array->rank, strides, err);
    return status || !is_coded ? status : catalog_chunk_set_chain(catalog, chunk, chain, block->offset, block->bytes, err);
}

/* Shards hold blocks of the next level, of which there are ZARR_LEVELS_MAX at most. */
reshard_status zarr_block_add(struct zarr_adding *adding, const struct zarr_block *block, reshard_error *err)
{
    return adding->array->levels[block->level].is_shard ? zarr_shard_add(adding, block, err) : leaf_add(adding, block, err);
}

/* ---- the grid ---- */

struct cell {
    int64_t number; /* row-major in the grid */
    uint32_t entry;
};

static int cell_order(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static bool take_index(struct str *rest, int64_t *out)
{
    size_t digits = 0;
    uint64_t number;
    while (digits < rest->size && rest->data[digits] >= '0' && rest->data[digits] <= '9')
        digits++;
    if (!str_to_u64((struct str){ rest->data, digits }, &number) || number > INT64_MAX)
        return false;
    *rest = (struct str){ rest->data + digits, rest->size - digits };
    *out = (int64_t)number;
    return true;
}

/* The chunk that a key behind the array's prefix means; false if it means none. */
static bool key_parse(const struct zarr_array *array, struct str key, int64_t *index)
{
    if (array->key_form == ZARR_KEY_DEFAULT) {
        if (key.size == 0 || key.data[0] != 'c')
            return false;
        key = (struct str){ key.data + 1, key.size - 1 };
    } else if (array->rank == 0) {
        return str_is(key, "0");
    }
    for (int axis = 0; axis < array->rank; axis++) {
        if (axis > 0 || array->key_form == ZARR_KEY_DEFAULT) {
            if (key.size == 0 || key.data[0] != array->separator)
                return false;
            key = (struct str){ key.data + 1, key.size - 1 };
        }
        if (!take_index(&key, &index[axis]))
            return false;
    }
    return key.size == 0;
}

static void grid_of(const struct zarr_array *array, int64_t *grid)
{
    for (int axis = 0; axis < array->rank; axis++)
        grid[axis] = array->shape[axis] / array->chunk[axis] + (array->shape[axis] % array->chunk[axis] != 0);
}

static bool cell_number(const struct zarr_array *array, const int64_t *grid, const int64_t *index, int64_t *out)
{
    *out = 0;
    for (int axis = 0; axis < array->rank; axis++) {
        if (index[axis] >= grid[axis])
            return false;
        *out = *out * grid[axis] + index[axis];
    }
    return true;
}

/* The entries below prefix that are chunks of the array, by cell. */
static reshard_status cells_find(struct zarr_adding *adding, struct str prefix, const int64_t *grid, struct cell **out, uint32_t *count,
                                 reshard_error *err)
{
    struct zarr_keys *keys = &adding->reading->keys;
    uint32_t begin = zarr_keys_lower(keys, prefix), end = begin;
    int64_t index[RANK_MAX];
    *count = 0;
    while (end < keys->count && keys->entries[end].name.size >= prefix.size &&
           (prefix.size == 0 || memcmp(keys->entries[end].name.data, prefix.data, prefix.size) == 0))
        end++;
    struct cell *cells = array_new((size_t)(end - begin), sizeof(*cells));
    if (!cells)
        return error_set_memory(err);
    for (uint32_t i = begin; i < end; i++) {
        struct zarr_entry *entry = &keys->entries[i];
        struct str key = { entry->name.data + prefix.size, entry->name.size - prefix.size };
        if (!key_parse(adding->array, key, index))
            continue;
        entry->is_used = true;
        cells[*count].entry = i;
        if (cell_number(adding->array, grid, index, &cells[*count].number))
            (*count)++;
        else
            adding->beyond++;
    }
    qsort(cells, *count, sizeof(*cells), cell_order);
    *out = cells;
    return RESHARD_OK;
}

/* ---- gaps ---- */

struct gap {
    struct zarr_adding *adding;
    reshard_error *err;
    reshard_status status;
};

static bool gap_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct gap *gap = context;
    const struct zarr_array *array = gap->adding->array;
    int64_t from[RANK_MAX], size[RANK_MAX];
    (void)flat_index;
    for (int axis = 0; axis < array->rank; axis++) {
        from[axis] = start[axis] * array->chunk[axis];
        int64_t left = array->shape[axis] - from[axis], cells = extent[axis];
        size[axis] = cells > left / array->chunk[axis] ? left : cells * array->chunk[axis];
    }
    gap->status = zarr_fill_add(gap->adding, from, size, gap->err);
    return !gap->status;
}

/* The cells [begin, end) are not stored. */
static reshard_status gap_add(struct zarr_adding *adding, struct str prefix, const int64_t *grid, int64_t begin, int64_t end,
                              reshard_error *err)
{
    const struct zarr_array *array = adding->array;
    struct gap gap = { adding, err, RESHARD_OK };
    if (begin >= end)
        return RESHARD_OK;
    adding->missing += (uint64_t)(end - begin);
    if (array->has_fill) {
        if (!flat_run_boxes(array->rank, grid, begin, end - begin, gap_box, &gap) && !gap.status)
            return error_set_memory(err);
        return gap.status;
    }
    if (adding->reading->source->lenient)
        return RESHARD_OK;
    char text[256] = "";
    size_t size = 0;
    int64_t index[RANK_MAX], rest = begin;
    for (int axis = array->rank - 1; axis >= 0; axis--) {
        index[axis] = rest % grid[axis];
        rest /= grid[axis];
    }
    for (int axis = 0; axis < array->rank && size < sizeof(text) - 24; axis++)
        size += (size_t)snprintf(text + size, sizeof(text) - size, "%s%" PRId64, axis ? (array->separator == '.' ? "." : "/") : "",
                                 index[axis]);
    const char *chunk = array->rank ? text : "0";
    error_set(err, RESHARD_ERR_FORMAT, "chunk '%.*s%s' is missing, and fill_value is null: its values are unknown", STR_ARG(prefix), chunk);
    error_object(err, "%.*s%s", STR_ARG(prefix), chunk);
    error_hint(err, "%s", adding->reading->flavour
                              ? "reshard_open_options.lenient opens what is there"
                              : "zarr-python 3 does not store chunks of zeros: reshard_open_options.lenient takes it for one");
    return RESHARD_ERR_FORMAT;
}

/* ---- the array ---- */

/* To whoever wants what is left, a shard that cannot be read is a hole: what its index would tell is not known. */
static reshard_status cell_add_or_lose(struct zarr_adding *adding, const struct zarr_entry *entry, const struct zarr_block *block,
                                       reshard_error *err)
{
    const struct source *source = adding->reading->source;
    reshard_error found = { 0 };
    reshard_status status = zarr_block_add(adding, block, &found);
    if (status == RESHARD_ERR_FORMAT && source->is_salvage) {
        catalog_warn(source->catalog, true, "'%.*s': %s", STR_ARG(entry->name), found.message);
        return RESHARD_OK;
    }
    if (status && err)
        *err = found;
    return status;
}

static reshard_status cell_add(struct zarr_adding *adding, const int64_t *grid, const struct cell *cell, reshard_error *err)
{
    const struct zarr_array *array = adding->array;
    const struct zarr_entry *entry = &adding->reading->keys.entries[cell->entry];
    struct zarr_block block = { .offset = entry->offset, .bytes = entry->bytes };
    int64_t rest = cell->number;
    for (int axis = array->rank - 1; axis >= 0; axis--) {
        block.start[axis] = rest % grid[axis] * array->chunk[axis];
        block.extent[axis] = array->chunk[axis];
        block.axis[axis] = (uint8_t)axis;
        rest /= grid[axis];
    }
    if (entry->is_deflated)
        block.prefix[block.prefix_count++] = (struct chain_step){ .kind = CHAIN_DEFLATE };
    reshard_status status = catalog_add_object(adding->reading->source->catalog, entry->object, entry->object_bytes, &block.object, err);
    if (!status)
        status = cell_add_or_lose(adding, entry, &block, err);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(entry->name));
        error_object(err, "%.*s", STR_ARG(entry->name));
    }
    return status;
}

static void warn_of_chunks(const struct zarr_adding *adding, struct str prefix, int64_t cells)
{
    struct catalog *catalog = adding->reading->source->catalog;
    struct str name = prefix.size ? (struct str){ prefix.data, prefix.size - 1 } : prefix;
    const char *held = !adding->array->has_fill       ? ""
                       : adding->array->fill_is_null ? ": they hold zero, as which a fill value of null is read"
                                                     : ": they hold the fill value";
    if (adding->missing && adding->array->format == 2)
        catalog_warn(catalog, !adding->array->has_fill, "array '%.*s': %" PRIu64 " of %" PRId64 " chunks are not stored%s", STR_ARG(name),
                     adding->missing, cells, held);
    if (adding->beyond)
        catalog_warn(catalog, false, "array '%.*s': %" PRIu64 " chunks lie beyond its shape and are left out", STR_ARG(name),
                     adding->beyond);
}

reshard_status zarr_chunks_add(struct zarr_reading *reading, const struct zarr_array *array, uint32_t tensor, uint32_t document,
                               struct str prefix, reshard_error *err)
{
    struct zarr_adding adding = { .reading = reading, .array = array, .tensor = tensor };
    const struct zarr_entry *entry = &reading->keys.entries[document];
    int64_t grid[RANK_MAX], cell_count, next = 0;
    struct cell *cells = NULL;
    uint32_t count = 0;
    grid_of(array, grid);
    reshard_status status = catalog_add_object(reading->source->catalog, entry->object, entry->object_bytes, &adding.document_object, err);
    if (!status)
        status = cells_find(&adding, prefix, grid, &cells, &count, err);
    bool is_empty = box_is_empty(array->rank, array->shape);
    if (!status && !is_empty && !shape_volume(array->rank, grid, &cell_count))
        status = error_set(err, RESHARD_ERR_FORMAT, "the grid has more than 2^63 chunks");
    for (uint32_t i = 0; i < count && !status && !is_empty; i++) {
        status = gap_add(&adding, prefix, grid, next, cells[i].number, err);
        next = cells[i].number + 1;
        if (!status)
            status = cell_add(&adding, grid, &cells[i], err);
    }
    if (!status && !is_empty)
        status = gap_add(&adding, prefix, grid, next, cell_count, err);
    free(cells);
    if (!status)
        warn_of_chunks(&adding, prefix, is_empty ? 0 : cell_count);
    return status;
}
