/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_trim.h"

#include "base/array.h"

#include <stdlib.h>

/* Which tensors lose rows; whether any does. */
static bool find_padded(const struct map_space *space, const struct model_settings *settings, int64_t rows, bool *is_padded)
{
    bool found = false;
    for (uint32_t i = 1; i < settings->settings.vocabulary_count; i++) {
        uint32_t weight = map_space_find(space, settings->settings.vocabulary[i]);
        for (int state = 0; weight != MAP_NONE && state < MAP_STATE_COUNT; state++) {
            uint32_t tensor = space->weights[weight].tensors[state];
            if (tensor == MAP_NONE || !map_state_is_shaped[state] || space->tensors[tensor].rank == 0 ||
                space->tensors[tensor].shape[0] <= rows)
                continue;
            is_padded[tensor] = true;
            found = true;
        }
    }
    return found;
}

/* The part of a recipe whose rows are kept, if there is one. */
static reshard_status cut_recipe(const struct map_tensor *tensor, int64_t rows, struct arena *arena, struct recipe *recipe, bool *is_kept,
                                 reshard_error *err)
{
    int64_t *extent = arena_array(arena, (size_t)tensor->rank, sizeof(*extent));
    int64_t *zeros = arena_zalloc(arena, RANK_MAX * sizeof(*zeros));
    if (!extent || !zeros)
        return error_set_memory(err);
    int64_t begin = recipe->is_whole ? 0 : recipe->target_start[0];
    memcpy(extent, recipe->is_whole ? tensor->shape : recipe->extent, (size_t)tensor->rank * sizeof(*extent));
    *is_kept = begin < rows;
    if (extent[0] > rows - begin)
        extent[0] = rows - begin;
    if (recipe->is_whole) {
        recipe->rank = tensor->rank;
        recipe->source_start = recipe->target_start = zeros;
        recipe->permutation = NULL;
        recipe->is_whole = false;
    }
    recipe->extent = extent;
    return RESHARD_OK;
}

static reshard_status cut_tensors(const struct mapping_stage *before, const bool *is_padded, int64_t rows, struct mapping_stage *stage,
                                  reshard_error *err)
{
    const struct map_space *space = before->space;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < map_space_tensor_count(space) && !status; i++) {
        const struct map_tensor *tensor = &space->tensors[i];
        int64_t shape[RANK_MAX];
        memcpy(shape, tensor->shape, (size_t)tensor->rank * sizeof(*shape));
        if (is_padded[i])
            shape[0] = rows;
        const struct map_shard *shards = is_padded[i] ? NULL : tensor->shards;
        status = map_space_add(&stage->own, tensor->key, tensor->dtype, tensor->rank, shape, shards, shards ? tensor->shard_count : 0, err);
    }
    for (uint32_t i = 0; i < before->table.count && !status; i++) {
        struct recipe recipe = before->table.recipes[i];
        bool is_kept = true;
        if (is_padded[recipe.target_tensor])
            status = cut_recipe(&space->tensors[recipe.target_tensor], rows, &stage->arena, &recipe, &is_kept, err);
        if (!status && is_kept)
            status = recipe_table_append(&stage->table, &recipe, err);
    }
    if (!status)
        status = recipe_table_close(&stage->table, map_space_tensor_count(space), err);
    return status ? status : map_space_seal(&stage->own, err);
}

reshard_status mapping_trim(struct mapping_stage **stage, const struct model_settings *settings, int64_t rows, reshard_error *err)
{
    bool *is_padded = array_zeroed((size_t)map_space_tensor_count((*stage)->space), sizeof(*is_padded));
    if (!is_padded)
        return error_set_memory(err);
    if (rows <= 0 || !find_padded((*stage)->space, settings, rows, is_padded)) {
        free(is_padded);
        return RESHARD_OK;
    }
    struct mapping_stage *made = calloc(1, sizeof(*made));
    reshard_status status = made ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        made->space = &made->own;
        status = cut_tensors(*stage, is_padded, rows, made, err);
    }
    free(is_padded);
    if (status) {
        mapping_free(made);
        return status;
    }
    made->before = *stage;
    *stage = made;
    return RESHARD_OK;
}
