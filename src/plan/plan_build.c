/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "plan/plan_steps.h"

static reshard_status recipe_join(struct plan_build *build, reshard_error *err)
{
    const struct recipe *recipe = &build->plan->recipes[build->recipe];
    reshard_status status = boxes_of_targets(build, err);
    if (status)
        return status;
    status = boxes_of_sources(build, err);
    if (status)
        return status;
    status = box_join(&build->joiner, recipe->rank, build->sources.boxes, build->sources.count, build->targets.boxes, build->targets.count,
                      step_append, build, err);
    if (status)
        error_prefix(err, "tensor '%.*s'", STR_ARG(build->plan->target->tensors[recipe->target_tensor].key));
    return status;
}

/* Gives back the slack of doubling. */
static void plan_shrink(struct plan *plan)
{
    struct plan_step *steps = plan->step_count ? reallocarray(plan->steps, plan->step_count, sizeof(*steps)) : NULL;
    if (steps) {
        plan->steps = steps;
        plan->step_capacity = plan->step_count;
    }
    int64_t *vectors = plan->vector_count ? reallocarray(plan->vectors, plan->vector_count, sizeof(*vectors)) : NULL;
    if (vectors) {
        plan->vectors = vectors;
        plan->vector_capacity = plan->vector_count;
    }
}

static reshard_status plan_make(struct plan_build *build, const struct recipe *recipes, uint32_t recipe_count, reshard_error *err)
{
    struct plan *plan = build->plan;
    build->covered = array_zeroed(plan->target->chunk_count, sizeof(*build->covered));
    build->recent = array_zeroed(VECTOR_CACHE_SLOTS, sizeof(*build->recent));
    if (!build->covered || !build->recent)
        return error_set_memory(err);
    reshard_status status = recipes_take(build, recipes, recipe_count, err);
    for (build->recipe = 0; build->recipe < plan->recipe_count && !status; build->recipe++)
        status = recipe_join(build, err);
    if (!status)
        status = steps_check_cover(build, err);
    if (!status && build->only_chunk == CATALOG_NONE)
        status = replicas_pick(plan, err);
    if (!status)
        status = steps_order(plan, err);
    if (!status)
        status = steps_sum(plan, err);
    if (!status)
        plan_shrink(plan);
    return status;
}

static reshard_status plan_new_from(const struct catalog *source, uint32_t only_chunk, const struct catalog *target,
                                    const struct recipe *recipes, uint32_t recipe_count, struct plan **out, reshard_error *err)
{
    struct plan_build build = { .only_chunk = only_chunk, .joiner.misses_max = source->limits.box_checks };
    build.plan = calloc(1, sizeof(*build.plan));
    if (!build.plan)
        return error_set_memory(err);
    build.plan->source = source;
    build.plan->target = target;
    reshard_status status = plan_make(&build, recipes, recipe_count, err);
    free(build.covered);
    free(build.recent);
    box_list_release(&build.sources);
    box_list_release(&build.targets);
    box_joiner_release(&build.joiner);
    if (status) {
        plan_free(build.plan);
        return status;
    }
    *out = build.plan;
    return RESHARD_OK;
}

reshard_status plan_new(const struct catalog *source, const struct catalog *target, const struct recipe *recipes, uint32_t recipe_count,
                        struct plan **out, reshard_error *err)
{
    if (source->has_overlaps)
        return error_set(err, RESHARD_ERR_FORMAT, "chunks overlap: it was opened to look at (reshard_open_options.shows_damage)");
    return plan_new_from(source, CATALOG_NONE, target, recipes, recipe_count, out, err);
}

reshard_status plan_new_chunk(const struct catalog *source, uint32_t source_chunk, const struct catalog *target, struct plan **out,
                              reshard_error *err)
{
    struct recipe recipe = { .source_tensor = source->chunks[source_chunk].tensor, .target_tensor = 0, .is_whole = true };
    return plan_new_from(source, source_chunk, target, &recipe, 1, out, err);
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    if (!plan->whole) {
        free(plan->steps);
        free(plan->recipes);
        free(plan->vectors);
    }
    arena_release(&plan->arena);
    free(plan);
}

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    return hash64(&number, sizeof(number), hash);
}

static uint64_t hash_chain(uint64_t hash, const struct chain *chain)
{
    if (chain->literal)
        hash = hash64(chain->literal, (size_t)chain->decoded_bytes, hash);
    for (uint32_t i = 0; i < chain->step_count; i++)
        hash = hash_number(hash, chain->steps[i].kind | (uint64_t)chain->steps[i].block << 32);
    return hash_number(hash, chain->decoded_bytes);
}

/* Objects and what the chunks in use say about their bytes; boxes are in the steps. */
static uint64_t hash_chunk(uint64_t hash, const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    const uint64_t numbers[] = { chunk->offset, chunk->bytes, chunk->object, chunk->flags,
                                 tensor->dtype | (uint64_t)tensor->stored_as << 32 };
    hash = hash64(numbers, sizeof(numbers), hash);
    if (!layout)
        return hash;
    const uint64_t rare[] = { (uint64_t)layout->flat_begin, (uint64_t)layout->flat_count, layout->codec,        layout->coded_offset,
                              layout->coded_bytes,          layout->outer_codec,          layout->outer_offset, layout->outer_bytes };
    hash = hash64(rare, sizeof(rare), hash);
    if (layout->chain)
        hash = hash_chain(hash, layout->chain);
    if (layout->strides != CATALOG_NONE)
        hash = hash64(catalog_vector_at(catalog, layout->strides), (size_t)tensor->rank * sizeof(int64_t), hash);
    return hash;
}

static uint64_t hash_objects(uint64_t hash, const struct catalog *catalog)
{
    for (uint32_t i = 0; i < catalog->object_count; i++) {
        hash = hash64(catalog->objects[i].name.data, catalog->objects[i].name.size, hash);
        hash = hash_number(hash, catalog->objects[i].bytes);
    }
    return hash_number(hash, catalog->object_count);
}

uint64_t plan_hash(const struct plan *plan)
{
    uint64_t hash = hash_objects(hash_objects(0, plan->source), plan->target);
    hash = hash_number(hash, plan->step_count);
    if (plan->step_count)
        hash = hash64(plan->steps, (size_t)plan->step_count * sizeof(*plan->steps), hash);
    if (plan->vector_count)
        hash = hash64(plan->vectors, (size_t)plan->vector_count * sizeof(*plan->vectors), hash);
    for (uint32_t i = 0; i < plan->recipe_count; i++) {
        const struct recipe *recipe = &plan->recipes[i];
        size_t bytes = (size_t)recipe->rank * sizeof(int64_t);
        bool is_zeros = recipe->source_tensor == RECIPE_FILL;
        size_t source_bytes = is_zeros ? 0 : (size_t)plan->source->tensors[recipe->source_tensor].rank * sizeof(int64_t);
        const uint64_t numbers[] = { recipe->source_tensor, recipe->target_tensor, (uint64_t)recipe->rank, recipe->permutation != NULL };
        hash = hash64(numbers, sizeof(numbers), hash);
        if (source_bytes)
            hash = hash64(recipe->source_start, source_bytes, hash);
        if (bytes)
            hash = hash64(recipe->target_start, bytes, hash);
        for (unsigned via = 0; via < recipe->via_count; via++)
            hash = hash_number(hash, 1 + (uint64_t)recipe->via[via]);
        if (recipe->source_tensor == RECIPE_FILL && recipe->fill)
            hash = hash64(recipe->fill, dtype_element_bytes(plan->target->tensors[recipe->target_tensor].dtype), hash);
        if (recipe->permutation)
            hash = hash64(recipe->permutation, (size_t)recipe->rank, hash);
    }
    for (uint32_t i = 0; i < plan->step_count; i++) {
        const struct plan_step *step = &plan->steps[i];
        if (step->source_chunk != CATALOG_NONE)
            hash = hash_chunk(hash, plan->source, &plan->source->chunks[step->source_chunk]);
        if (i == 0 || plan->steps[i - 1].target_chunk != step->target_chunk)
            hash = hash_chunk(hash, plan->target, &plan->target->chunks[step->target_chunk]);
    }
    return hash;
}
