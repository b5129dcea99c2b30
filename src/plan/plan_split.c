/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a plan. Cuts lie between target chunks, whose steps follow each other, so that every chunk, and its CRC, is made by one part.
 * Where a part would end depends on the plan and the number of parts alone: who knows both needs to ask nobody.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
#include "plan/plan_steps.h"

#define OBJECT_WEIGHT 65536 /* an object that is opened costs as much as so many bytes */
#define STEP_WEIGHT 64      /* and a step, as so many */
#define SLACK 16            /* a cut between two objects may lie by a 16th of a part from where it should */

static bool step_is_first_of(const struct plan *plan, uint32_t step, bool *is_new_object)
{
    const struct catalog_chunk *chunks = plan->target->chunks;
    uint32_t chunk = plan->steps[step].target_chunk;
    *is_new_object = step == 0 || chunks[plan->steps[step - 1].target_chunk].object != chunks[chunk].object;
    return step == 0 || plan->steps[step - 1].target_chunk != chunk;
}

static uint64_t step_weight(const struct plan *plan, uint32_t index)
{
    const struct plan_step *step = &plan->steps[index];
    const struct catalog_tensor *tensor = &plan->target->tensors[plan->target->chunks[step->target_chunk].tensor];
    uint64_t bytes = 0;
    bool is_new_object;
    dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, plan->vectors + step->extent), &bytes);
    step_is_first_of(plan, index, &is_new_object);
    return capped_add_u64(bytes, STEP_WEIGHT + (is_new_object ? OBJECT_WEIGHT : 0));
}

static uint64_t plan_weight(const struct plan *plan)
{
    uint64_t weight = 0;
    for (uint32_t i = 0; i < plan->step_count; i++)
        weight = capped_add_u64(weight, step_weight(plan, i));
    return weight;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* total * cut / count */
static uint64_t weight_share(uint64_t total, uint32_t cut, uint32_t count)
{
    return total / count * cut + total % count * cut / count;
}

/* The first step of part number `cut` of `count`: the end for the one behind the last. */
static uint32_t cut_find(const struct plan *plan, uint64_t total, uint32_t cut, uint32_t count)
{
    uint64_t ideal = weight_share(total, cut, count), slack = total / count / SLACK, before = 0;
    uint64_t best_distance = UINT64_MAX, best_object_distance = UINT64_MAX;
    uint32_t best = 0, best_object = 0;
    for (uint32_t i = 0; i <= plan->step_count; i++) {
        bool is_new_object = true, is_cut = i == plan->step_count || step_is_first_of(plan, i, &is_new_object);
        uint64_t found = distance(before, ideal);
        if (is_cut && found < best_distance) {
            best_distance = found;
            best = i;
        }
        if (is_cut && is_new_object && found < best_object_distance) {
            best_object_distance = found;
            best_object = i;
        }
        if (i < plan->step_count)
            before = capped_add_u64(before, step_weight(plan, i));
    }
    return best_object_distance <= slack ? best_object : best;
}

/* A plan of steps that are there; arena, which it takes over, has what else it needs. */
static reshard_status plan_of_steps(const struct plan *plan, struct plan_step *steps, uint32_t count, struct arena arena, struct plan **out,
                                    reshard_error *err)
{
    struct plan *made = calloc(1, sizeof(*made));
    if (!made) {
        arena_release(&arena);
        return error_set_memory(err);
    }
    *made = (struct plan){ .whole = plan,
                           .steps = steps,
                           .step_count = count,
                           .recipes = plan->recipes,
                           .recipe_count = plan->recipe_count,
                           .vectors = plan->vectors,
                           .vector_count = plan->vector_count,
                           .source = plan->source,
                           .target = plan->target,
                           .arena = arena };
    reshard_status status = steps_sum(made, err);
    if (status)
        plan_free(made);
    else
        *out = made;
    return status;
}

reshard_status plan_select(const struct plan *plan, const uint8_t *is_taken, struct plan **out, reshard_error *err)
{
    struct arena arena = { 0 };
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->step_count; i++)
        count += is_taken[i] != 0;
    struct plan_step *steps = arena_array(&arena, count, sizeof(*steps));
    if (!steps)
        return error_set_memory(err);
    count = 0;
    for (uint32_t i = 0; i < plan->step_count; i++) {
        if (is_taken[i])
            steps[count++] = plan->steps[i];
    }
    return plan_of_steps(plan, steps, count, arena, out, err);
}

reshard_status plan_split(const struct plan *plan, uint32_t part, uint32_t count, struct plan **out, reshard_error *err)
{
    if (part >= count)
        return error_set(err, RESHARD_ERR_USAGE, "part %" PRIu32 " of a plan in %" PRIu32 " parts", part, count);
    uint64_t total = plan_weight(plan);
    uint32_t begin = part == 0 ? 0 : cut_find(plan, total, part, count);
    uint32_t end = part + 1 == count ? plan->step_count : cut_find(plan, total, part + 1, count);
    return plan_of_steps(plan, plan->steps + begin, end > begin ? end - begin : 0, (struct arena){ 0 }, out, err);
}
