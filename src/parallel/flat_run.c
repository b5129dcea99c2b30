/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/flat_run.h"

struct run_emission {
    struct catalog *catalog;
    const struct flat_run *run;
    uint32_t tensor;
    int rank;
    int axes[RANK_MAX];        /* of the tensor, by falling stride */
    int64_t strides[RANK_MAX]; /* dense, by the tensor's axes */
    uint64_t element_bytes;
    reshard_status status;
    reshard_error *err;
};

/* A box of the tensor with its axes in the order of the flattening, as a chunk with strides. */
static bool run_add_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct run_emission *emission = context;
    int64_t own_start[RANK_MAX], own_extent[RANK_MAX];
    struct catalog_chunk *chunk;
    for (int i = 0; i < emission->rank; i++) {
        own_start[emission->axes[i]] = start[i];
        own_extent[emission->axes[i]] = extent[i];
    }
    emission->status = catalog_add_chunk(emission->catalog, emission->tensor, own_start, own_extent, emission->run->object,
                                         emission->run->offset + (uint64_t)flat_index * emission->element_bytes,
                                         (uint64_t)box_volume(emission->rank, own_extent) * emission->element_bytes, &chunk, emission->err);
    if (emission->status)
        return false;
    chunk->writer = emission->run->writer;
    if (!strides_are_row_major(emission->rank, own_extent, emission->strides))
        emission->status = catalog_chunk_set_strides(emission->catalog, chunk, emission->rank, emission->strides, emission->err);
    return !emission->status;
}

static reshard_status run_add_strided(struct run_emission *emission, const int64_t *shape)
{
    int64_t ordered[RANK_MAX], dense[RANK_MAX];
    strides_order(emission->rank, emission->run->strides, emission->axes);
    for (int i = 0; i < emission->rank; i++)
        ordered[i] = shape[emission->axes[i]];
    strides_row_major(emission->rank, ordered, dense);
    for (int i = 0; i < emission->rank; i++)
        emission->strides[emission->axes[i]] = dense[i];
    flat_run_boxes(emission->rank, ordered, emission->run->begin, emission->run->count, run_add_box, emission);
    return emission->status;
}

reshard_status flat_run_add(struct catalog *catalog, uint32_t tensor, const struct flat_run *run, reshard_error *err)
{
    const struct catalog_tensor owner = catalog->tensors[tensor];
    uint64_t bytes = dtype_element_bytes(owner.dtype);
    int64_t shape[RANK_MAX];
    struct catalog_chunk *chunk;
    memcpy(shape, catalog_vector_at(catalog, owner.shape), (size_t)owner.rank * sizeof(*shape));
    if (!bytes && run->count)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': pieces of a flattened %s tensor", STR_ARG(owner.key),
                         dtype_info(owner.dtype)->name);
    if (run->strides && run->count && !strides_are_row_major(owner.rank, shape, run->strides)) {
        struct run_emission emission = {
            .catalog = catalog, .run = run, .tensor = tensor, .rank = owner.rank, .element_bytes = bytes, .err = err
        };
        return run_add_strided(&emission, shape);
    }
    reshard_status status =
        catalog_add_chunk(catalog, tensor, NULL, NULL, run->object, run->offset, (uint64_t)run->count * bytes, &chunk, err);
    if (status)
        return status;
    chunk->writer = run->writer;
    if (run->count == box_volume(owner.rank, shape))
        return RESHARD_OK;
    return catalog_chunk_set_run(catalog, chunk, run->begin, run->count, err);
}
