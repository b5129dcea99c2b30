/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunk files of an array that is written, a chunk of the target each. They all have the full size; what the array's edge cuts off
 * stays zero, which is the fill value.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/checked.h"
#include "formats/zarr/zarr_write.h"

struct grid_writing {
    const struct layout_request *request;
    const struct zarr_style *style;
    struct target *target;
    const struct catalog_tensor *tensor; /* wanted */
    const int64_t *shape, *chunk;
    uint32_t index;
    struct str prefix;
    uint64_t file_bytes;
    struct chain_packing *packing;
    struct buffer name;
};

static reshard_status name_make(struct grid_writing *writing, const int64_t *cell, reshard_error *err)
{
    struct buffer *name = &writing->name;
    int rank = writing->tensor->rank;
    buffer_clear(name);
    buffer_append_str(name, writing->prefix);
    if (writing->style->format == 3)
        buffer_append_byte(name, 'c');
    else if (rank == 0)
        buffer_append_byte(name, '0');
    for (int axis = 0; axis < rank; axis++) {
        if (axis || writing->style->format == 3)
            buffer_append_byte(name, (uint8_t)writing->style->separator);
        buffer_printf(name, "%" PRId64, cell[axis]);
    }
    return name->failed ? error_set_memory(err) : RESHARD_OK;
}

/* What of the tensor is in a file: one chunk. Where the array's edge cuts it on an inner axis, its rows lie apart. */
static reshard_status chunk_add(struct grid_writing *writing, uint32_t object, const int64_t *start, const int64_t *clipped,
                                reshard_error *err)
{
    int rank = writing->tensor->rank;
    int64_t strides[RANK_MAX], span;
    struct catalog *catalog = writing->target->catalog;
    struct catalog_chunk *chunk;
    strides_row_major(rank, writing->chunk, strides);
    strides_span(rank, clipped, strides, &span); /* inside the file, whose size fits */
    reshard_status status = catalog_add_chunk(catalog, writing->index, start, clipped, object, 0,
                                              (uint64_t)span * dtype_element_bytes(writing->tensor->dtype), &chunk, err);
    if (status || strides_are_row_major(rank, clipped, strides))
        return status;
    return catalog_chunk_set_strides(catalog, chunk, rank, strides, err);
}

/* Index over the leading axes, the last one fastest; false after the last. */
static bool index_next(int rank, const int64_t *extent, int64_t *index)
{
    for (int axis = rank - 1; axis >= 0; axis--) {
        if (++index[axis] < extent[axis])
            return true;
        index[axis] = 0;
    }
    return false;
}

static reshard_status file_add(struct grid_writing *writing, const int64_t *cell, reshard_error *err)
{
    struct catalog *catalog = writing->target->catalog;
    uint32_t object, count = catalog->object_count;
    int64_t start[RANK_MAX], clipped[RANK_MAX];
    reshard_status status = name_make(writing, cell, err);
    if (!status)
        status = catalog_add_object(catalog, buffer_str(&writing->name), writing->file_bytes, &object, err);
    if (status)
        return status;
    if (object < count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "two files of the target would be called '%.*s'",
                         STR_ARG(buffer_str(&writing->name)));
    catalog->objects[object].packing = writing->packing;
    for (int axis = 0; axis < writing->tensor->rank; axis++) {
        start[axis] = cell[axis] * writing->chunk[axis];
        int64_t left = writing->shape[axis] - start[axis];
        clipped[axis] = left < writing->chunk[axis] ? left : writing->chunk[axis];
    }
    return chunk_add(writing, object, start, clipped, err);
}

static reshard_status files_add(struct grid_writing *writing, reshard_error *err)
{
    int rank = writing->tensor->rank;
    int64_t grid[RANK_MAX], cell[RANK_MAX] = { 0 }, files;
    for (int axis = 0; axis < rank; axis++)
        grid[axis] = writing->shape[axis] / writing->chunk[axis] + (writing->shape[axis] % writing->chunk[axis] != 0);
    if (!shape_volume(rank, grid, &files) || (uint64_t)files > writing->request->limits.objects)
        return error_set_limit(err, "objects", files > 0 ? (uint64_t)files : UINT64_MAX, writing->request->limits.objects);
    reshard_status status;
    do {
        status = file_add(writing, cell, err);
    } while (!status && index_next(rank, grid, cell));
    return status;
}

reshard_status zarr_chunks_lay_out(const struct layout_request *request, const struct zarr_style *style, struct target *target,
                                   uint32_t tensor, struct str prefix, const int64_t *chunk, reshard_error *err)
{
    struct grid_writing writing = { .request = request,
                                    .style = style,
                                    .target = target,
                                    .tensor = &request->wanted->tensors[tensor],
                                    .chunk = chunk,
                                    .index = tensor,
                                    .prefix = prefix };
    int64_t volume;
    writing.shape = catalog_vector_at(request->wanted, writing.tensor->shape);
    if (box_is_empty(writing.tensor->rank, writing.shape))
        return RESHARD_OK;
    if (!shape_volume(writing.tensor->rank, chunk, &volume) || !dtype_bytes(writing.tensor->dtype, (uint64_t)volume, &writing.file_bytes) ||
        writing.file_bytes > INT64_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a chunk would have more than 2^63 bytes");
    if (style->is_packed) {
        if (writing.file_bytes > request->limits.chunk_bytes) {
            error_set_limit(err, "chunk_bytes", writing.file_bytes, request->limits.chunk_bytes);
            error_hint(err, "smaller chunks: option chunks=N,…");
            return RESHARD_ERR_LIMIT;
        }
        writing.packing = arena_zalloc(&target->catalog->arena, sizeof(*writing.packing));
        if (!writing.packing)
            return error_set_memory(err);
        *writing.packing = style->packing;
        writing.packing->element_bytes = dtype_element_bytes(writing.tensor->dtype);
    }
    reshard_status status = files_add(&writing, err);
    buffer_release(&writing.name);
    return status;
}
