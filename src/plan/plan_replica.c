/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_replica.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "plan/plan_steps.h"

/* Chunks with the same elements: order[begin] is the one that the steps name. */
struct replica_group {
    uint32_t begin, count;
};

struct replicas {
    struct plan *plan;
    struct sort_entry *order; /* chunks of the tensors concerned; room for all, and as much again to sort in */
    struct replica_group *groups;
    uint32_t order_count, group_count;
    uint32_t *picked; /* by source chunk: the chunk to read + 1, or 0 if no step names it */
    uint64_t *used;   /* by source object: bytes to be read from it */
};

int64_t replica_key(const struct catalog *catalog, int rank, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    size_t bytes = (size_t)rank * sizeof(int64_t);
    uint64_t hash = layout && layout->flat_count >= 0 ? (uint64_t)layout->flat_begin : UINT64_MAX;
    if (bytes) {
        hash = hash64(catalog_vector_at(catalog, chunk->start), bytes, hash);
        hash = hash64(catalog_vector_at(catalog, chunk->extent), bytes, hash);
    }
    return (int64_t)(hash >> 1);
}

/* Appends the tensor's groups of two and more. Chunks of a group follow each other in order; those outside are dropped. */
static void tensor_group(struct replicas *replicas, const struct catalog_tensor *tensor)
{
    const struct catalog *catalog = replicas->plan->source;
    struct sort_entry *order = replicas->order + replicas->order_count;
    uint32_t count = tensor->chunk_count, kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t chunk = tensor->first_chunk + i;
        order[i] = (struct sort_entry){ replica_key(catalog, tensor->rank, &catalog->chunks[chunk]), chunk };
    }
    entries_sort(order, order + count, count);
    for (uint32_t begin = 0, end; begin < count; begin = end) {
        uint32_t members = 1, first = order[begin].value;
        for (end = begin + 1; end < count && order[end].key == order[begin].key; end++)
            if (catalog->chunks[order[end].value].flags & CHUNK_REPLICA && catalog_chunks_are_copies(catalog, first, order[end].value))
                order[begin + members++] = order[end];
        if (members < 2 || !replicas->picked[first])
            continue;
        replicas->groups[replicas->group_count++] = (struct replica_group){ replicas->order_count + kept, members };
        for (uint32_t i = 0; i < members; i++)
            order[kept++] = order[begin + i];
    }
    replicas->order_count += kept;
}

static uint64_t chunk_cost(const struct catalog *catalog, uint32_t chunk_index)
{
    const struct catalog_chunk *chunk = &catalog->chunks[chunk_index];
    const struct catalog_tensor *tensor = &catalog->tensors[chunk->tensor];
    unsigned bits = dtype_info(catalog_stored_dtype(tensor))->bits;
    return (uint64_t)box_volume(tensor->rank, catalog_vector_at(catalog, chunk->extent)) * bits / 8;
}

/* Chunks without choice count first; then each group takes the object most used so far, the earliest chunk on a tie. */
static void groups_pick(struct replicas *replicas)
{
    const struct catalog *catalog = replicas->plan->source;
    for (uint32_t g = 0; g < replicas->group_count; g++)
        replicas->picked[replicas->order[replicas->groups[g].begin].value] = 0;
    for (uint32_t c = 0; c < catalog->chunk_count; c++)
        if (replicas->picked[c])
            replicas->used[catalog->chunks[c].object] += chunk_cost(catalog, c);
    for (uint32_t g = 0; g < replicas->group_count; g++) {
        const struct sort_entry *members = &replicas->order[replicas->groups[g].begin];
        uint32_t best = members[0].value;
        for (uint32_t i = 1; i < replicas->groups[g].count; i++)
            if (replicas->used[catalog->chunks[members[i].value].object] > replicas->used[catalog->chunks[best].object])
                best = members[i].value;
        replicas->picked[members[0].value] = best + 1;
        replicas->used[catalog->chunks[best].object] += chunk_cost(catalog, best);
        replicas->plan->replicas_skipped += replicas->groups[g].count - 1;
    }
}

/* Groups the source tensors of all recipes, each once. */
static void recipes_group(struct replicas *replicas, uint8_t *is_seen)
{
    const struct plan *plan = replicas->plan;
    for (uint32_t i = 0; i < plan->recipe_count; i++) {
        bool has_replicas = false;
        if (plan->recipes[i].source_tensor == RECIPE_FILL)
            continue;
        const struct catalog_tensor *tensor = &plan->source->tensors[plan->recipes[i].source_tensor];
        if (is_seen[plan->recipes[i].source_tensor])
            continue;
        is_seen[plan->recipes[i].source_tensor] = 1;
        for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count && !has_replicas; c++)
            has_replicas = plan->source->chunks[c].flags & CHUNK_REPLICA;
        if (has_replicas)
            tensor_group(replicas, tensor);
    }
}

static bool source_has_replicas(const struct catalog *source)
{
    for (uint32_t c = 0; c < source->chunk_count; c++)
        if (source->chunks[c].flags & CHUNK_REPLICA)
            return true;
    return false;
}

reshard_status replicas_pick(struct plan *plan, reshard_error *err)
{
    const struct catalog *source = plan->source;
    if (!source_has_replicas(source))
        return RESHARD_OK;
    struct replicas replicas = { .plan = plan };
    reshard_status status = RESHARD_OK;
    uint8_t *is_seen = array_zeroed(source->tensor_count, 1);
    replicas.order = array_new((size_t)source->chunk_count * 2, sizeof(*replicas.order));
    replicas.groups = array_new((size_t)source->chunk_count / 2, sizeof(*replicas.groups));
    replicas.picked = array_zeroed(source->chunk_count, sizeof(*replicas.picked));
    replicas.used = array_zeroed(source->object_count, sizeof(*replicas.used));
    if (!is_seen || !replicas.order || !replicas.groups || !replicas.picked || !replicas.used) {
        status = error_set_memory(err);
        goto out;
    }
    for (uint32_t i = 0; i < plan->step_count; i++)
        if (plan->steps[i].source_chunk != CATALOG_NONE)
            replicas.picked[plan->steps[i].source_chunk] = plan->steps[i].source_chunk + 1;
    recipes_group(&replicas, is_seen);
    groups_pick(&replicas);
    for (uint32_t i = 0; i < plan->step_count; i++)
        if (plan->steps[i].source_chunk != CATALOG_NONE)
            plan->steps[i].source_chunk = replicas.picked[plan->steps[i].source_chunk] - 1;

out:
    free(is_seen);
    free(replicas.order);
    free(replicas.groups);
    free(replicas.picked);
    free(replicas.used);
    return status;
}
