/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_steps.h"

#include "base/array.h"

/* The vector's place in the pool, shared with a recent equal one; false without memory. */
static bool vector_keep(struct plan_build *build, const int64_t *values, int rank, uint32_t *out)
{
    struct plan *plan = build->plan;
    uint64_t hash = (uint64_t)rank;
    for (int axis = 0; axis < rank; axis++) {
        hash = (hash ^ (uint64_t)values[axis]) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    struct recent_vector *recent = &build->recent[hash >> 20 & (VECTOR_CACHE_SLOTS - 1)];
    uint32_t tag = (uint32_t)(hash >> 32) | 1;
    size_t bytes = (size_t)rank * sizeof(*values);
    if (recent->tag == tag && recent->place + (uint64_t)rank <= plan->vector_count &&
        (!bytes || memcmp(plan->vectors + recent->place, values, bytes) == 0)) {
        *out = recent->place;
        return true;
    }
    /* One more than needed: there is a pool even if all vectors are of rank 0. */
    if (!ARRAY_RESERVE(plan->vectors, (uint64_t)plan->vector_count + (uint64_t)rank + 1, plan->vector_capacity))
        return false;
    if (bytes)
        memcpy(plan->vectors + plan->vector_count, values, bytes);
    *out = plan->vector_count;
    *recent = (struct recent_vector){ .place = plan->vector_count, .tag = tag };
    plan->vector_count += (uint32_t)rank;
    return true;
}

bool step_append(void *context, uint32_t source_chunk, uint32_t target_chunk, const int64_t *start, const int64_t *extent)
{
    struct plan_build *build = context;
    struct plan *plan = build->plan;
    int rank = plan->recipes[build->recipe].rank;
    if (plan->step_count >= PLAN_STEPS_MAX || !ARRAY_ROOM(plan->steps, plan->step_count, plan->step_capacity))
        return false;
    struct plan_step step = { .source_chunk = source_chunk, .target_chunk = target_chunk, .recipe = build->recipe };
    if (!vector_keep(build, start, rank, &step.start) || !vector_keep(build, extent, rank, &step.extent))
        return false;
    plan->steps[plan->step_count++] = step;
    build->covered[target_chunk] += (uint64_t)box_volume(rank, extent);
    return true;
}
