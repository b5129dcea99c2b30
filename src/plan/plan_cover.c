/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "catalog/catalog_cover.h"
#include "plan/plan_steps.h"

static uint64_t chunk_elements(const struct catalog *catalog, const struct catalog_tensor *tensor, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    if (layout && layout->flat_count >= 0)
        return (uint64_t)layout->flat_count;
    return (uint64_t)box_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent));
}

/* The source is at fault if a whole tensor was wanted, the recipes if they left something out. */
static reshard_status hole_error(const struct plan *plan, const struct catalog_tensor *tensor, const struct catalog_chunk *chunk,
                                 uint64_t covered, uint64_t wanted, reshard_error *err)
{
    char box[BOX_TEXT_MAX];
    uint32_t t = chunk->tensor;
    reshard_status status = RESHARD_ERR_USAGE;
    for (uint32_t i = 0; i < plan->recipe_count; i++)
        if (plan->recipes[i].target_tensor == t && plan->recipes[i].is_whole)
            status = RESHARD_ERR_FORMAT;
    box_text(tensor->rank, catalog_vector_at(plan->target, chunk->start), catalog_vector_at(plan->target, chunk->extent), box);
    error_set(err, status, "tensor '%.*s': the source holds only %" PRIu64 " of the %" PRIu64 " elements of %s", STR_ARG(tensor->key),
              covered, wanted, box);
    error_object(err, "%.*s", STR_ARG(tensor->key));
    return status;
}

/*
 * Source chunks do not overlap (catalog_seal), nor do the boxes of a tensor's recipes (recipes_take), so that no element is written
 * twice, and a chunk whose elements are as many as its steps' is covered.
 */
reshard_status steps_check_cover(const struct plan_build *build, reshard_error *err)
{
    const struct catalog *target = build->plan->target;
    for (uint32_t c = 0; c < target->chunk_count; c++) {
        const struct catalog_chunk *chunk = &target->chunks[c];
        const struct catalog_tensor *tensor = &target->tensors[chunk->tensor];
        uint64_t wanted = chunk_elements(target, tensor, chunk);
        if (build->covered[c] != wanted)
            return hole_error(build->plan, tensor, chunk, build->covered[c], wanted, err);
    }
    return RESHARD_OK;
}
