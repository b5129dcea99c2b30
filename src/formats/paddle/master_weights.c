/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/paddle/master_weights.h"

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

struct casting {
    struct catalog *catalog;
    struct arena arena;
    struct name_map keys;
    uint32_t *tensor_of;  /* by number in keys */
    uint32_t *weight_of;  /* by tensor: 1 + the weight that is made of it; of a weight the next one that is made of the same copy */
    uint32_t first, end;  /* tensors that may be copies */
    uint32_t count;
    enum dtype dtype;
};

static reshard_status weights_note_keys(struct casting *casting, uint32_t more, reshard_error *err)
{
    const struct catalog *catalog = casting->catalog;
    uint64_t all = (uint64_t)casting->end + (casting->end - casting->first) + more;
    casting->weight_of = arena_array(&casting->arena, all, sizeof(*casting->weight_of));
    casting->tensor_of = arena_array(&casting->arena, all, sizeof(*casting->tensor_of));
    if (!casting->weight_of || !casting->tensor_of)
        return error_set_memory(err);
    memset(casting->weight_of, 0, all * sizeof(*casting->weight_of));
    for (uint32_t i = 0; i < casting->end; i++) {
        uint32_t number = name_map_intern(&casting->keys, catalog->tensors[i].key, NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        casting->tensor_of[number] = i;
    }
    return RESHARD_OK;
}

/* Adds a weight that is made of a copy, unless there is one; as one with those that are made of it already. */
static reshard_status weights_add_tensor(struct casting *casting, struct str key, uint32_t copy, reshard_error *err)
{
    struct catalog *catalog = casting->catalog;
    const struct catalog_tensor master = catalog->tensors[copy];
    int64_t shape[RANK_MAX];
    uint32_t weight, number;
    bool was_new;
    number = name_map_intern(&casting->keys, key, &was_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return RESHARD_OK;
    if (master.rank)
        memcpy(shape, catalog_vector_at(catalog, master.shape), (size_t)master.rank * sizeof(*shape));
    reshard_status status = catalog_add_tensor(catalog, key, casting->dtype, master.rank, shape, &weight, err);
    if (status)
        return status;
    casting->tensor_of[number] = weight;
    catalog->tensors[weight].stored_as = 1 + DTYPE_F32;
    if (casting->weight_of[copy])
        catalog->tensors[weight].tied_to = casting->weight_of[copy] - 1;
    casting->weight_of[weight] = casting->weight_of[copy];
    casting->weight_of[copy] = 1 + weight;
    casting->count++;
    return RESHARD_OK;
}

static bool weights_is_copy(const struct casting *casting, uint32_t tensor)
{
    const struct catalog_tensor *found = &casting->catalog->tensors[tensor];
    return tensor >= casting->first && tensor < casting->end && found->dtype == DTYPE_F32 && str_ends_with(found->key, MASTER_SUFFIX) &&
           found->key.size > sizeof(MASTER_SUFFIX) - 1;
}

static reshard_status weights_add_alias(struct casting *casting, const struct master_alias *alias, reshard_error *err)
{
    const struct str parts[] = { alias->of, STR(MASTER_SUFFIX) };
    uint32_t number;
    reshard_status status = name_map_find_joined(&casting->keys, parts, 2, &number, err);
    if (status || number == NAME_NONE || !weights_is_copy(casting, casting->tensor_of[number]))
        return status;
    return weights_add_tensor(casting, alias->key, casting->tensor_of[number], err);
}

static reshard_status weights_add_all(struct casting *casting, const struct master_alias *aliases, uint32_t alias_count, reshard_error *err)
{
    reshard_status status = weights_note_keys(casting, alias_count, err);
    for (uint32_t i = casting->first; i < casting->end && !status; i++) {
        struct str key = casting->catalog->tensors[i].key;
        if (weights_is_copy(casting, i))
            status = weights_add_tensor(casting, (struct str){ key.data, key.size - (sizeof(MASTER_SUFFIX) - 1) }, i, err);
    }
    for (uint32_t i = 0; i < alias_count && !status; i++)
        status = weights_add_alias(casting, &aliases[i], err);
    return status;
}

reshard_status master_weights_cast(struct catalog *catalog, uint32_t first, const struct master_alias *aliases, uint32_t alias_count,
                                   reshard_error *err)
{
    struct casting casting = { .catalog = catalog, .first = first, .end = catalog->tensor_count, .dtype = weights_dtype(catalog, first) };
    uint32_t chunks = catalog->chunk_count;
    reshard_status status = weights_add_all(&casting, aliases, alias_count, err);
    for (uint32_t i = 0; i < chunks && casting.count && !status; i++) {
        uint32_t weight = casting.weight_of[catalog->chunks[i].tensor];
        for (; weight && !status; weight = casting.weight_of[weight - 1])
            status = weights_add_chunk(catalog, weight - 1, i, err);
    }
    if (casting.count)
        catalog_warn(catalog, false,
                     "%" PRIu32 " weights are not stored: they are cast from their master weights, as the trainer does; the first is "
                     "'%.*s'",
                     casting.count, STR_ARG(catalog->tensors[casting.end].key));
    name_map_release(&casting.keys);
    arena_release(&casting.arena);
    return status;
}
