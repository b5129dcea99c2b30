/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/mcore/mcore_transpose.h"

#include "base/array.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"

#include <inttypes.h>
#include <stdlib.h>

struct transposing {
    struct catalog *catalog;
    struct name_map weights;   /* keys of weights that are parts of matrices */
    uint32_t *weight_tensors;  /* by their number */
    uint32_t *made;            /* by tensor: 1 + the one that replaces it */
    uint8_t *is_removed;
    uint32_t tensor_count, chunk_count; /* before any was added */
};

/* ---- which state ---- */

static reshard_status list_weights(struct transposing *all, const struct parallel_model *model, reshard_error *err)
{
    all->weight_tensors = array_zeroed(model->count, sizeof(*all->weight_tensors));
    if (!all->weight_tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < model->count; i++) {
        const struct model_parameter *parameter = &model->parameters[i];
        bool is_new;
        if (parameter->matrix_experts == 0)
            continue;
        uint32_t number = name_map_intern(&all->weights, all->catalog->tensors[parameter->tensor].key, &is_new);
        if (number == NAME_NONE)
            return error_set_memory(err);
        all->weight_tensors[number] = parameter->tensor;
    }
    return RESHARD_OK;
}

/* The weight, of those in the list, that a key is state of; CATALOG_NONE if it is of none. */
static uint32_t mcore_transpose_weight_of(const struct transposing *all, struct str key)
{
    struct state_key read;
    if (!state_key_read(key, &read) || read.kind != STATE_KEY_PARAMETER)
        return CATALOG_NONE;
    uint32_t number = name_map_find(&all->weights, read.parameter);
    return number == NAME_NONE ? CATALOG_NONE : all->weight_tensors[number];
}

/* Adds the tensor that replaces a state. */
static reshard_status mcore_transpose_add_tensor(struct transposing *all, uint32_t index, uint32_t weight, reshard_error *err)
{
    struct catalog *catalog = all->catalog;
    const struct catalog_tensor *state = &catalog->tensors[index], *of = &catalog->tensors[weight];
    int64_t shape[RANK_MAX];
    int rank = of->rank;
    uint32_t made;
    memcpy(shape, catalog_vector_at(catalog, of->shape), (size_t)rank * sizeof(*shape));
    const int64_t *stored = catalog_vector_at(catalog, state->shape);
    bool fits = rank >= 2 && state->rank == rank && memcmp(stored, shape, (size_t)(rank - 2) * sizeof(*shape)) == 0 &&
                stored[rank - 1] == shape[rank - 2] && stored[rank - 2] == shape[rank - 1];
    if (!fits)
        return error_set(
            err, RESHARD_ERR_FORMAT,
            "'%.*s' is not of the shape that state of experts in one matrix has: its parameter's with the last two axes exchanged",
            STR_ARG(state->key));
    reshard_status status = catalog_add_tensor(catalog, state->key, state->dtype, rank, shape, &made, err);
    all->made[index] = made + 1;
    all->is_removed[index] = 1;
    return status;
}

/* ---- chunks ---- */

struct transposing_chunk {
    struct catalog *catalog;
    uint32_t tensor;
    struct catalog_chunk like; /* chunks move when others are added */
    int rank;
    int64_t start[RANK_MAX];
    reshard_status status;
    reshard_error *err;
};

/* A row of the state, `element` elements into its blob, is a column of its parameter. */
static reshard_status add_column(const struct transposing_chunk *one, const int64_t *at, int64_t count, int64_t element, reshard_error *err)
{
    int64_t start[RANK_MAX], extent[RANK_MAX];
    int rank = one->rank;
    struct catalog_chunk *added;
    if (element >= UINT32_MAX - 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a flattened piece of more than 2^32 elements");
    for (int i = 0; i < rank; i++) {
        start[i] = one->start[i] + at[i];
        extent[i] = 1;
    }
    int64_t first = start[rank - 1];
    start[rank - 1] = start[rank - 2];
    start[rank - 2] = first;
    extent[rank - 2] = count;
    reshard_status status =
        catalog_add_chunk(one->catalog, one->tensor, start, extent, one->like.object, one->like.offset, one->like.bytes, &added, err);
    if (status)
        return status;
    added->flags = one->like.flags;
    added->writer = one->like.writer;
    added->driver_data = 1 + (uint32_t)element;
    return RESHARD_OK;
}

static bool mcore_transpose_add_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct transposing_chunk *one = context;
    int64_t at[RANK_MAX], row = extent[one->rank - 1];
    memcpy(at, start, (size_t)one->rank * sizeof(*at));
    for (int64_t element = flat_index;; element += row) {
        one->status = add_column(one, at, row, element, one->err);
        int axis = one->rank - 2;
        while (axis >= 0 && ++at[axis] == start[axis] + extent[axis]) {
            at[axis] = start[axis];
            axis--;
        }
        if (one->status || axis < 0)
            return one->status == RESHARD_OK;
    }
}

static reshard_status transpose_chunk(const struct transposing *all, uint32_t index, reshard_error *err)
{
    struct catalog *catalog = all->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    struct transposing_chunk one = { .catalog = catalog, .tensor = all->made[chunk->tensor] - 1, .like = *chunk, .err = err };
    int64_t extent[RANK_MAX];
    one.rank = catalog->tensors[chunk->tensor].rank;
    if (!(chunk->flags & CHUNK_UNRESOLVED) || chunk->driver_data != 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is not stored as flattened state is",
                         STR_ARG(catalog->tensors[chunk->tensor].key));
    memcpy(one.start, catalog_vector_at(catalog, chunk->start), (size_t)one.rank * sizeof(*extent));
    memcpy(extent, catalog_vector_at(catalog, chunk->extent), (size_t)one.rank * sizeof(*extent));
    bool is_run = layout && layout->flat_count >= 0;
    int64_t begin = is_run ? layout->flat_begin : 0, count = is_run ? layout->flat_count : box_volume(one.rank, extent);
    if (count > 0)
        flat_run_boxes(one.rank, extent, begin, count, mcore_transpose_add_box, &one);
    return one.status;
}

/* ---- the whole ---- */

static reshard_status transpose(struct transposing *all, reshard_error *err)
{
    struct catalog *catalog = all->catalog;
    reshard_status status = RESHARD_OK;
    all->tensor_count = catalog->tensor_count;
    all->chunk_count = catalog->chunk_count;
    all->made = array_zeroed(all->tensor_count, sizeof(*all->made));
    all->is_removed = array_zeroed(2 * (size_t)all->tensor_count, sizeof(*all->is_removed)); /* at most one is added for each */
    if (!all->made || !all->is_removed)
        return error_set_memory(err);
    for (uint32_t i = 0; i < all->tensor_count && !status; i++) {
        uint32_t weight = mcore_transpose_weight_of(all, catalog->tensors[i].key);
        if (weight != CATALOG_NONE)
            status = mcore_transpose_add_tensor(all, i, weight, err);
    }
    for (uint32_t i = 0; i < all->chunk_count && !status; i++) {
        if (all->made[catalog->chunks[i].tensor])
            status = transpose_chunk(all, i, err);
    }
    return status ? status : catalog_remove_tensors(catalog, all->is_removed, err);
}

reshard_status mcore_transpose_states(struct catalog *catalog, const struct value *namespace, reshard_error *err)
{
    struct transposing all = { .catalog = catalog };
    struct parallel_model model;
    struct training_args args;
    if (!namespace)
        return RESHARD_OK;
    training_args_read(namespace, &args);
    if (!experts_are_matrices(&args))
        return RESHARD_OK;
    reshard_status status = parallel_model_make(catalog, namespace, &model, err);
    if (status)
        return status;
    status = list_weights(&all, &model, err);
    parallel_model_release(&model);
    if (!status)
        status = transpose(&all, err);
    name_map_release(&all.weights);
    free(all.weight_tensors);
    free(all.made);
    free(all.is_removed);
    return status;
}
