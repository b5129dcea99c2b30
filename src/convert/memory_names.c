/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/memory_names.h"

#include "formats/live.h"

#include <stdlib.h>

/* Boxes tell how many ranks cut a tensor, which some statements ask for. Several ranks may want the same, or what overlaps. */
static reshard_status wanted_add(struct catalog *catalog, struct name_map *keys, const struct shard *shard, reshard_error *err)
{
    bool is_new;
    struct catalog_chunk *chunk;
    uint32_t tensor = name_map_intern(keys, shard->key, &is_new);
    reshard_status status = tensor == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
    if (!status && is_new)
        status = catalog_add_tensor(catalog, shard->key, shard->dtype, shard->rank, shard->shape, &tensor, err);
    if (status || !shape_equal(shard->rank, shard->shape, catalog->tensors[tensor].rank,
                               catalog_vector_at(catalog, catalog->tensors[tensor].shape)))
        return status; /* who wants another shape is told later */
    return catalog_add_chunk(catalog, tensor, shard->start, shard->extent, 0, 0, 0, &chunk, err);
}

static reshard_status wanted_new(const struct shard_list *wanted, struct catalog **out, reshard_error *err)
{
    struct name_map keys = { 0 };
    uint32_t object;
    *out = catalog_new("memory");
    reshard_status status = *out ? catalog_add_object(*out, STR("memory"), 0, &object, err) : error_set_memory(err);
    for (size_t i = 0; i < wanted->count && !status; i++)
        status = wanted_add(*out, &keys, &wanted->shards[i], err);
    for (uint32_t i = 0; !status && i < (*out)->tensor_count; i++)
        (*out)->tensors[i].tied_to = (*out)->tensors[i].storage_group = CATALOG_NONE;
    name_map_release(&keys);
    if (status)
        return status;
    (*out)->shows_overlaps = true;
    return catalog_seal(*out, true, err);
}

reshard_status memory_names_make(struct source *source, const struct shard_list *wanted, const struct mapping_options *options,
                                 struct memory_names *out, reshard_error *err)
{
    *out = (struct memory_names){ .source = source->catalog };
    reshard_status status = wanted_new(wanted, &out->wanted, err);
    if (status)
        return status;
    struct source other;
    live_source_of(out->wanted, &source->limits, &other);
    const struct mapping_request request = { .source = source, .other = &other, .is_comparison = true, .options = options };
    status = mapping_make(&request, &out->made, err);
    if (!status && out->made.stage && out->made.stage->kept.count)
        status = map_space_from_catalog(out->wanted, &out->space, err);
    return status;
}

void memory_names_release(struct memory_names *names)
{
    mapping_made_release(&names->made);
    map_space_release(&names->space);
    arena_release(&names->arena);
    catalog_free(names->wanted);
    *names = (struct memory_names){ 0 };
}

bool memory_names_find(const struct memory_names *names, struct str key, struct memory_tensor *out)
{
    if (names->made.stage) {
        const struct map_space *space = names->made.stage->space;
        const uint32_t number = name_map_find(&space->keys, key);
        if (number != NAME_NONE)
            *out = (struct memory_tensor){ number, space->tensors[number].rank, space->tensors[number].shape };
        return number != NAME_NONE;
    }
    const uint32_t number = catalog_find(names->source, key);
    if (number == CATALOG_NONE)
        return false;
    const struct catalog_tensor *tensor = &names->source->tensors[number];
    *out = (struct memory_tensor){ number, tensor->rank, catalog_vector_at(names->source, tensor->shape) };
    return true;
}

bool memory_names_keep(const struct memory_names *names, struct str key)
{
    const uint32_t number = names->space.keys.count ? name_map_find(&names->space.keys, key) : NAME_NONE;
    if (number == NAME_NONE)
        return false;
    const struct str weight = names->space.weights[names->space.tensors[number].weight].name;
    return name_map_find(&names->made.stage->kept, weight) != NAME_NONE;
}

bool memory_names_leave(const struct memory_names *names, struct str key)
{
    const struct mapping_stage *stage = names->made.stage;
    struct memory_tensor found;
    if (!stage || !memory_names_find(names, key, &found))
        return false;
    for (uint32_t r = stage->table.first[found.number]; r < stage->table.first[found.number + 1]; r++) {
        if (stage->table.recipes[r].source_tensor == RECIPE_FILL)
            return true;
    }
    return false;
}

reshard_status memory_names_check(const struct memory_names *names, const struct shard *shard, reshard_error *err)
{
    if (shard->write && !shard->read && memory_names_leave(names, shard->key))
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': the mapping leaves some values as they are, which takes read beside write",
                         STR_ARG(shard->key));
    return RESHARD_OK;
}

reshard_status memory_names_recipes(struct memory_names *names, const struct memory_tensor *found, uint32_t target, enum dtype dtype,
                                    struct recipe_table *out, reshard_error *err)
{
    const struct mapping_stage *stage = names->made.stage;
    reshard_status status = RESHARD_OK;
    if (!stage) {
        const struct recipe same = { .source_tensor = found->number, .target_tensor = target, .is_whole = true };
        return recipe_table_append(out, &same, err);
    }
    for (uint32_t r = stage->table.first[found->number]; r < stage->table.first[found->number + 1] && !status; r++) {
        struct recipe recipe = stage->table.recipes[r];
        const enum dtype made = stage->space->tensors[found->number].dtype;
        recipe.target_tensor = target;
        if (recipe.source_tensor != RECIPE_FILL)
            status = recipe_add_cast(&recipe, names->source->tensors[recipe.source_tensor].dtype, made, dtype, &names->arena, err);
        if (!status)
            status = recipe_table_append(out, &recipe, err);
    }
    return status;
}
