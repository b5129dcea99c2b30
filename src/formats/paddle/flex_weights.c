/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that saves without stopping leaves out of model_state/ every weight that has a float32 copy in master_weight/, and casts that
 * copy when it resumes (round to nearest even). So do we: such a weight is a tensor whose elements are stored as those of its copy.
 */
#include "formats/paddle/flex.h"

#include <inttypes.h>

/* Weights beside the missing ones tell which type these have; where there are none it is bfloat16. */
static enum dtype weights_dtype(const struct catalog *catalog, uint32_t first)
{
    bool has_half = false, has_bfloat16 = false;
    for (uint32_t i = 0; i < first; i++) {
        has_half |= catalog->tensors[i].dtype == DTYPE_F16;
        has_bfloat16 |= catalog->tensors[i].dtype == DTYPE_BF16;
    }
    return has_half && !has_bfloat16 ? DTYPE_F16 : DTYPE_BF16;
}

/* One chunk more of the weight, over the bytes of its copy. */
static reshard_status weights_add_chunk(struct catalog *catalog, uint32_t weight, uint32_t index, reshard_error *err)
{
    const struct catalog_chunk like = catalog->chunks[index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, &like);
    int rank = catalog->tensors[weight].rank;
    int64_t start[RANK_MAX], extent[RANK_MAX];
    struct catalog_chunk *added;
    if (rank) {
        memcpy(start, catalog_vector_at(catalog, like.start), (size_t)rank * sizeof(*start));
        memcpy(extent, catalog_vector_at(catalog, like.extent), (size_t)rank * sizeof(*extent));
    }
    reshard_status status = catalog_add_chunk(catalog, weight, start, extent, like.object, like.offset, like.bytes, &added, err);
    if (status)
        return status;
    added->flags = like.flags;
    added->writer = like.writer;
    added->driver_data = like.driver_data;
    if (!layout)
        return RESHARD_OK;
    struct chunk_layout *own = catalog_chunk_layout(catalog, added);
    if (!own)
        return error_set_memory(err);
    *own = *catalog_layout_of(catalog, &catalog->chunks[index]);
    return RESHARD_OK;
}

/* weight_of[i]: 1 + the weight that is made of tensor i. */
static reshard_status weights_add_tensors(struct catalog *catalog, const struct name_map *keys, uint32_t first, uint32_t *weight_of,
                                          uint32_t *count, reshard_error *err)
{
    const enum dtype dtype = weights_dtype(catalog, first);
    uint32_t end = catalog->tensor_count;
    for (uint32_t i = first; i < end; i++) {
        const struct catalog_tensor master = catalog->tensors[i];
        struct str key = master.key;
        int64_t shape[RANK_MAX];
        if (master.dtype != DTYPE_F32 || !str_ends_with(key, FLEX_MASTER_SUFFIX))
            continue;
        key.size -= sizeof(FLEX_MASTER_SUFFIX) - 1;
        if (!key.size || name_map_find(keys, key) != NAME_NONE)
            continue;
        if (master.rank)
            memcpy(shape, catalog_vector_at(catalog, master.shape), (size_t)master.rank * sizeof(*shape));
        reshard_status status = catalog_add_tensor(catalog, key, dtype, master.rank, shape, &weight_of[i], err);
        if (status)
            return status;
        catalog->tensors[weight_of[i]++].stored_as = 1 + DTYPE_F32;
        ++*count;
    }
    return RESHARD_OK;
}

reshard_status flex_add_weights(struct source *source, uint32_t first, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct name_map keys = { 0 };
    struct arena arena = { 0 };
    uint32_t tensors = catalog->tensor_count, chunks = catalog->chunk_count, count = 0;
    uint32_t *weight_of = arena_array(&arena, tensors, sizeof(*weight_of));
    reshard_status status = weight_of ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < tensors && !status; i++) {
        weight_of[i] = 0;
        if (name_map_intern(&keys, catalog->tensors[i].key, NULL) == NAME_NONE)
            status = error_set_memory(err);
    }
    if (!status)
        status = weights_add_tensors(catalog, &keys, first, weight_of, &count, err);
    for (uint32_t i = 0; i < chunks && count && !status; i++) {
        uint32_t weight = weight_of[catalog->chunks[i].tensor];
        if (weight)
            status = weights_add_chunk(catalog, weight - 1, i, err);
    }
    if (count)
        catalog_warn(catalog, false,
                     "%" PRIu32 " weights are not stored: they are cast from their master weights, as the trainer does; the first is "
                     "'%.*s'",
                     count, STR_ARG(catalog->tensors[tensors].key));
    name_map_release(&keys);
    arena_release(&arena);
    return status;
}
