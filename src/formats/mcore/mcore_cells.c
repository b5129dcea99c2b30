/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron up to 0.15 flattens a shard of the distributed optimizer: the tensor is stored as a grid of cells and one axis that runs
 * through the cell in row-major order. A stored piece [a, b) of a cell is a flat run of the cell's box in the real tensor.
 */
#include "formats/mcore/mcore_data.h"

#include <inttypes.h>

/* The cell that a piece belongs to, as a box of the real tensor. */
struct cell {
    int rank;
    int64_t start[RANK_MAX], extent[RANK_MAX];
    int64_t volume;
};

static reshard_status cell_of(const struct mcore_reshape *reshape, int rank, const int64_t *size, const int64_t *start,
                              const int64_t *extent, struct cell *out, reshard_error *err)
{
    if (rank != reshape->rank + 1)
        return error_set(err, RESHARD_ERR_FORMAT, "it is flattened, so %d stored axes are expected, not %d", reshape->rank + 1, rank);
    out->rank = reshape->rank;
    for (int axis = 0; axis < reshape->rank; axis++) {
        if (size[axis] <= 0 || reshape->shape[axis] % size[axis] != 0)
            return error_set(err, RESHARD_ERR_FORMAT, "axis %d of %" PRId64 " elements is not divided by its %" PRId64 " cells", axis,
                             reshape->shape[axis], size[axis]);
        if (extent[axis] != 1 || start[axis] < 0 || start[axis] >= size[axis])
            return error_set(err, RESHARD_ERR_FORMAT, "a stored piece of a flattened tensor lies in more than one cell of axis %d", axis);
        out->extent[axis] = reshape->shape[axis] / size[axis];
        out->start[axis] = start[axis] * out->extent[axis];
    }
    if (!shape_volume(out->rank, out->extent, &out->volume) || out->volume != size[rank - 1])
        return error_set(err, RESHARD_ERR_FORMAT, "cells of %" PRId64 " elements are stored, %" PRId64 " are expected", size[rank - 1],
                         out->volume);
    return RESHARD_OK;
}

static reshard_status add_run(struct catalog *catalog, uint32_t tensor, const struct cell *cell, int64_t begin, int64_t count,
                              const struct catalog_chunk *like, reshard_error *err)
{
    struct catalog_chunk *added;
    reshard_status status =
        catalog_add_chunk(catalog, tensor, cell->start, cell->extent, like->object, like->offset, like->bytes, &added, err);
    if (status)
        return status;
    added->flags = like->flags;
    added->writer = like->writer;
    if (begin == 0 && count == cell->volume)
        return RESHARD_OK;
    return catalog_chunk_set_run(catalog, added, begin, count, err);
}

/* A part of the run as a box of the real tensor. */
struct flat_adding {
    struct catalog *catalog;
    uint32_t tensor;
    const struct mcore_reshape *reshape;
    const struct cell *cell;
    const struct catalog_chunk *like;
    reshard_error *err;
    reshard_status status;
};

/* One contiguous stretch of the flat vector. element counts in the blob; driver_data passes it to the resolver. */
static bool mcore_cells_add_stretch(struct flat_adding *adding, int64_t flat, int64_t count, int64_t element)
{
    const struct catalog_chunk *like = adding->like;
    struct catalog_chunk *added;
    if (element >= UINT32_MAX - 1) {
        adding->status = error_set(adding->err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a flattened piece of more than 2^32 elements",
                                   STR_ARG(adding->catalog->tensors[adding->tensor].key));
        return false;
    }
    adding->status =
        catalog_add_chunk(adding->catalog, adding->tensor, &flat, &count, like->object, like->offset, like->bytes, &added, adding->err);
    if (adding->status)
        return false;
    added->flags = like->flags;
    added->writer = like->writer;
    added->driver_data = 1 + (uint32_t)element;
    return true;
}

/* A box of the run: rows that lie one after the other in the real tensor are one stretch. */
static bool mcore_cells_add_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct flat_adding *adding = context;
    const struct mcore_reshape *reshape = adding->reshape;
    int rank = reshape->rank, inner = rank;
    int64_t strides[RANK_MAX], row = 1, counter[RANK_MAX] = { 0 };
    strides_row_major(rank, reshape->shape, strides);
    /* The axes from `inner` on are whole, and the one before them is contiguous as far as the box goes. */
    while (inner > 0 && (inner == rank || extent[inner] == reshape->shape[inner]))
        row *= extent[--inner];
    for (int64_t element = flat_index;; element += row) {
        int64_t flat = 0;
        for (int axis = 0; axis < rank; axis++)
            flat += (adding->cell->start[axis] + start[axis] + (axis < inner ? counter[axis] : 0)) * strides[axis];
        if (!mcore_cells_add_stretch(adding, flat, row, element))
            return false;
        int axis = inner - 1;
        while (axis >= 0 && ++counter[axis] == extent[axis])
            counter[axis--] = 0;
        if (axis < 0)
            return true;
    }
}

/* The cell of a piece, and the run of it that the piece is. */
static reshard_status run_of(const struct mcore_reshape *reshape, const struct dcp_form *stored, struct cell *cell, int64_t *begin,
                             int64_t *count, reshard_error *err)
{
    reshard_status status = cell_of(reshape, stored->rank, stored->size, stored->start, stored->extent, cell, err);
    if (status)
        return status;
    *begin = stored->start[stored->rank - 1];
    *count = stored->extent[stored->rank - 1];
    if (*begin < 0 || *count < 0 || *begin > cell->volume || *count > cell->volume - *begin)
        return error_set(err, RESHARD_ERR_FORMAT, "elements %" PRId64 " to %" PRId64 " lie outside a cell of %" PRId64, *begin,
                         *begin + *count, cell->volume);
    return RESHARD_OK;
}

reshard_status mcore_add_flattened(struct catalog *catalog, uint32_t tensor, const struct mcore_reshape *reshape,
                                   const struct dcp_form *stored, const struct catalog_chunk *like, reshard_error *err)
{
    struct cell cell;
    int64_t begin, count;
    reshard_status status = run_of(reshape, stored, &cell, &begin, &count, err);
    if (status)
        error_prefix(err, "tensor '%.*s'", STR_ARG(catalog->tensors[tensor].key));
    if (status || count == 0)
        return status;
    if (!reshape->is_flat)
        return add_run(catalog, tensor, &cell, begin, count, like, err);
    struct flat_adding adding = { .catalog = catalog, .tensor = tensor, .reshape = reshape, .cell = &cell, .like = like, .err = err };
    bool all = flat_run_boxes(cell.rank, cell.extent, begin, count, mcore_cells_add_box, &adding);
    return all ? RESHARD_OK : adding.status;
}
