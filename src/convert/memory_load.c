/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/memory_load.h"

#include "base/array.h"
#include "convert/memory_catalog.h"

#include <stdlib.h>

struct memory_loading {
    const struct shard_list *shards;
    struct catalog *target;
    struct recipe_table recipes;
    struct plan *planned, *read; /* all steps; those that read something, NULL: all do */
    struct store_object **objects;
};

static void loading_release(struct memory_loading *loading)
{
    for (size_t i = 0; loading->objects && i < loading->shards->count; i++)
        store_object_close(loading->objects[i]);
    free(loading->objects);
    plan_free(loading->read);
    plan_free(loading->planned);
    recipe_table_release(&loading->recipes);
    catalog_free(loading->target);
}

static reshard_status loading_recipes(struct memory_loading *loading, struct memory_names *names, reshard_error *err)
{
    const struct catalog *target = loading->target;
    reshard_status status = RESHARD_OK;
    for (uint32_t t = 0; t < target->tensor_count && !status; t++) {
        struct memory_tensor found;
        if (!memory_names_find(names, target->tensors[t].key, &found) ||
            !shape_equal(found.rank, found.shape, target->tensors[t].rank, catalog_vector_at(target, target->tensors[t].shape)))
            return error_set(err, RESHARD_ERR_USAGE, "the checkpoint has no tensor '%.*s' of that shape", STR_ARG(target->tensors[t].key));
        status = memory_names_recipes(names, &found, t, target->tensors[t].dtype, &loading->recipes, err);
    }
    return status;
}

static reshard_status loading_resolve(const struct memory_loading *loading, struct source *source, reshard_error *err)
{
    uint32_t *tensors, count;
    reshard_status status =
        recipes_read(loading->recipes.recipes, loading->recipes.count, source->catalog->tensor_count, &tensors, &count, err);
    if (!status)
        status = source_resolve(source, tensors, count, err);
    free(tensors);
    return status;
}

static reshard_status loading_objects(struct memory_loading *loading, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    loading->objects = array_zeroed(loading->shards->count, sizeof(struct store_object *));
    if (!loading->objects)
        return error_set_memory(err);
    for (uint32_t i = 0; i < loading->target->object_count && !status; i++)
        status = store_object_over(loading->shards->shards[i].data, loading->target->objects[i].bytes, &loading->objects[i], err);
    return status;
}

/* What a mapping gives no values stays as it is; what is staged for a function to take has to be fetched for that. */
static reshard_status loading_fetch(const struct memory_loading *loading, reshard_error *err)
{
    const struct plan *plan = loading->planned;
    const struct shard *last = NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < plan->step_count && loading->read && !status; i++) {
        if (plan->steps[i].source_chunk != CATALOG_NONE)
            continue;
        const struct shard *shard = &loading->shards->shards[loading->target->chunks[plan->steps[i].target_chunk].object];
        uint64_t bytes;
        if (!shard->write || shard == last || !shard_bytes(shard, &bytes))
            continue;
        last = shard;
        if (shard->strides)
            status = error_set(err, RESHARD_ERR_USAGE, "'%.*s': the mapping leaves some values as they are, which takes its own shape",
                               STR_ARG(shard->key));
        else if (bytes && shard->read(shard->data, 0, (size_t)bytes, shard->context))
            status = error_set(err, RESHARD_ERR_CANCELLED, "'%.*s': the function that gives values failed", STR_ARG(shard->key));
    }
    return status;
}

reshard_status memory_load(struct checkpoint *checkpoint, struct memory_names *names, const struct shard_list *shards,
                           const struct engine_options *options, reshard_error *err)
{
    struct memory_loading loading = { .shards = shards };
    const struct engine_source source = checkpoint_engine_source(checkpoint);
    struct engine_options running = *options;
    running.no_sync = true;
    reshard_status status = memory_catalog_new(shards, true, names, &loading.target, err);
    if (!status)
        status = loading_recipes(&loading, names, err);
    if (!status)
        status = loading_resolve(&loading, checkpoint->source, err);
    if (!status)
        status = plan_new(source.catalog, loading.target, loading.recipes.recipes, loading.recipes.count, &loading.planned, err);
    if (!status)
        status = memory_plan_read(loading.planned, &loading.read, err);
    if (!status)
        status = loading_objects(&loading, err);
    if (!status)
        status = loading_fetch(&loading, err);
    if (!status)
        status = engine_run(loading.read ? loading.read : loading.planned, &source, loading.objects, NULL, NULL, &running, err);
    loading_release(&loading);
    return status;
}
