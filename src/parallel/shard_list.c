/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/shard_list.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/name_map.h"

static bool shard_vector_keep(struct arena *arena, int rank, const int64_t **vector)
{
    int64_t *kept = arena_array(arena, (size_t)rank, sizeof(*kept));
    if (kept && rank)
        memcpy(kept, *vector, (size_t)rank * sizeof(*kept));
    *vector = kept;
    return kept != NULL;
}

reshard_status shard_list_add(struct shard_list *list, const struct shard *shard, reshard_error *err)
{
    reshard_status status = shard_check(shard, err);
    if (status)
        return status;
    struct shard kept = *shard;
    if (!ARRAY_ROOM(list->shards, list->count, list->capacity) || !arena_str(&list->arena, shard->key, &kept.key) ||
        !shard_vector_keep(&list->arena, kept.rank, &kept.shape) || !shard_vector_keep(&list->arena, kept.rank, &kept.start) ||
        !shard_vector_keep(&list->arena, kept.rank, &kept.extent) ||
        (kept.strides && !shard_vector_keep(&list->arena, kept.rank, &kept.strides)))
        return error_set_memory(err);
    list->shards[list->count++] = kept;
    return RESHARD_OK;
}

void shard_list_release(struct shard_list *list)
{
    arena_release(&list->arena);
    free(list->shards);
    *list = (struct shard_list){ 0 };
}

/* ---- by key ---- */

/* The shards of several lists, sorted by key: those of key k are [first[k], first[k + 1]). */
struct shards_by_key {
    struct name_map keys;
    const struct shard **shards;
    size_t *first;
};

static void by_key_release(struct shards_by_key *by_key)
{
    name_map_release(&by_key->keys);
    free(by_key->shards);
    free(by_key->first);
}

static bool keys_count(struct shards_by_key *by_key, const struct shard_list *const *lists, size_t count, size_t **counts)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += lists[i]->count;
        for (size_t s = 0; s < lists[i]->count; s++) {
            if (name_map_intern(&by_key->keys, lists[i]->shards[s].key, NULL) == NAME_NONE)
                return false;
        }
    }
    by_key->shards = array_zeroed(total, sizeof(const struct shard *));
    by_key->first = array_zeroed((size_t)by_key->keys.count + 1, sizeof(*by_key->first));
    *counts = array_zeroed((size_t)by_key->keys.count + 1, sizeof(**counts));
    return by_key->shards && by_key->first && *counts;
}

static reshard_status by_key_make(const struct shard_list *const *lists, size_t count, struct shards_by_key *out, reshard_error *err)
{
    size_t *next = NULL;
    *out = (struct shards_by_key){ 0 };
    if (!keys_count(out, lists, count, &next)) {
        free(next);
        by_key_release(out);
        return error_set_memory(err);
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t s = 0; s < lists[i]->count; s++)
            out->first[name_map_find(&out->keys, lists[i]->shards[s].key) + 1]++;
    }
    for (uint32_t k = 0; k < out->keys.count; k++)
        next[k + 1] = out->first[k + 1] += out->first[k];
    for (size_t i = 0; i < count; i++) {
        for (size_t s = 0; s < lists[i]->count; s++)
            out->shards[next[name_map_find(&out->keys, lists[i]->shards[s].key)]++] = &lists[i]->shards[s];
    }
    free(next);
    return RESHARD_OK;
}

reshard_status shard_list_merge(const struct shard_list *const *lists, size_t count, struct shard_list *out, reshard_error *err)
{
    struct shards_by_key by_key;
    *out = (struct shard_list){ 0 };
    reshard_status status = by_key_make(lists, count, &by_key, err);
    if (status)
        return status;
    for (size_t i = 0; !status && i < by_key.first[by_key.keys.count]; i++)
        status = shard_list_add(out, by_key.shards[i], err);
    by_key_release(&by_key);
    if (status)
        shard_list_release(out);
    return status;
}

/* ---- splitting ---- */

reshard_status shard_list_add_split(struct shard_list *list, const struct shard *local, const struct shard_split *split,
                                    reshard_error *err)
{
    int64_t shape[RANK_MAX + 1], start[RANK_MAX + 1] = { 0 };
    struct shard shard = *local;
    if (split->axis < -1 || split->axis >= local->rank)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': the rule splits axis %" PRId64 " of a tensor with %d axes", STR_ARG(local->key),
                         split->axis, local->rank);
    if (split->parts < 1 || split->part < 0 || split->part >= split->parts)
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': part %" PRId64 " of %" PRId64, STR_ARG(local->key), split->part, split->parts);
    memcpy(shape, local->extent, (size_t)local->rank * sizeof(*shape));
    if (split->axis >= 0 && !checked_mul_i64(shape[split->axis], split->parts, &shape[split->axis]))
        return error_set(err, RESHARD_ERR_USAGE, "'%.*s': %" PRId64 " parts of %" PRId64 " are too many elements", STR_ARG(local->key),
                         split->parts, local->extent[split->axis]);
    if (split->axis >= 0)
        start[split->axis] = local->extent[split->axis] * split->part;
    shard.shape = shape;
    shard.start = start;
    return shard_list_add(list, &shard, err);
}

/* ---- checking ---- */

static reshard_status alike_check(const struct shards_by_key *by_key, const char *side, reshard_error *err)
{
    for (uint32_t k = 0; k < by_key->keys.count; k++) {
        const struct shard *first = by_key->shards[by_key->first[k]];
        for (size_t i = by_key->first[k] + 1; i < by_key->first[k + 1]; i++) {
            const struct shard *other = by_key->shards[i];
            if (other->dtype != first->dtype)
                return error_set(err, RESHARD_ERR_USAGE, "%s '%.*s': a shard is %s, another %s", side, STR_ARG(first->key),
                                 dtype_info(first->dtype)->name, dtype_info(other->dtype)->name);
            if (!shape_equal(first->rank, first->shape, other->rank, other->shape))
                return error_set(err, RESHARD_ERR_USAGE, "%s '%.*s': shards do not agree on the global shape", side, STR_ARG(first->key));
        }
    }
    return RESHARD_OK;
}

/* What no shard has covered yet, as boxes that do not overlap: start and extent one after the other. */
struct holes {
    int rank;
    int64_t *vectors, *kept;
    size_t count, capacity, kept_count, kept_capacity;
};

static bool hole_add(struct holes *holes, const int64_t *start, const int64_t *extent)
{
    size_t size = (size_t)holes->rank, at = 2 * size * holes->kept_count;
    if (box_is_empty(holes->rank, extent))
        return true;
    if (!ARRAY_RESERVE(holes->kept, at + 2 * size + 1, holes->kept_capacity))
        return false;
    if (size) {
        memcpy(holes->kept + at, start, size * sizeof(*start));
        memcpy(holes->kept + at + size, extent, size * sizeof(*extent));
    }
    holes->kept_count++;
    return true;
}

/* What is left of a hole behind a cut inside it: on each axis the part before it and the part behind it. */
static bool hole_split(struct holes *holes, const int64_t *hole, const int64_t *cut_start, const int64_t *cut_extent)
{
    int64_t start[RANK_MAX + 1], extent[RANK_MAX + 1];
    size_t bytes = (size_t)holes->rank * sizeof(*start);
    memcpy(start, hole, bytes);
    memcpy(extent, hole + holes->rank, bytes);
    for (int axis = 0; axis < holes->rank; axis++) {
        int64_t end = start[axis] + extent[axis], begin = start[axis], cut_end = cut_start[axis] + cut_extent[axis];
        extent[axis] = cut_start[axis] - begin;
        if (!hole_add(holes, start, extent))
            return false;
        start[axis] = cut_end;
        extent[axis] = end - cut_end;
        if (!hole_add(holes, start, extent))
            return false;
        start[axis] = cut_start[axis];
        extent[axis] = cut_extent[axis];
    }
    return true;
}

static bool holes_cover(const int64_t *start, const int64_t *extent, void *context)
{
    struct holes *holes = context;
    int64_t cut_start[RANK_MAX + 1], cut_extent[RANK_MAX + 1];
    size_t size = 2 * (size_t)holes->rank;
    holes->kept_count = 0;
    for (size_t i = 0; i < holes->count; i++) {
        const int64_t *hole = holes->vectors + i * size;
        bool meets = box_intersect(holes->rank, hole, hole + holes->rank, start, extent, cut_start, cut_extent);
        if (meets ? !hole_split(holes, hole, cut_start, cut_extent) : !hole_add(holes, hole, hole + holes->rank))
            return false;
    }
    struct holes swapped = *holes;
    *holes = (struct holes){ holes->rank, swapped.kept, swapped.vectors, swapped.kept_count, swapped.kept_capacity, 0, swapped.capacity };
    return true;
}

static reshard_status missing_error(const struct shard *shard, const int64_t *hole, reshard_error *err)
{
    reshard_status status = error_set(err, RESHARD_ERR_USAGE, "source '%.*s': no shard covers all of it", STR_ARG(shard->key));
    for (int axis = 0; axis < shard->rank; axis++)
        error_hint(err, "missing on axis %d: [%" PRId64 ", %" PRId64 ")", axis, hole[axis], hole[axis] + hole[shard->rank + axis]);
    return status;
}

static reshard_status cover_check(const struct shard *const *shards, size_t count, reshard_error *err)
{
    static const int64_t zeros[RANK_MAX + 1];
    struct holes holes = { .rank = shards[0]->rank };
    reshard_status status = RESHARD_OK;
    bool is_done = hole_add(&holes, zeros, shards[0]->shape);
    holes = (struct holes){ holes.rank, holes.kept, NULL, holes.kept_count, holes.kept_capacity, 0, 0 };
    for (size_t i = 0; is_done && i < count; i++)
        is_done = shard_boxes(shards[i], holes_cover, &holes);
    if (!is_done)
        status = error_set_memory(err);
    else if (holes.count)
        status = missing_error(shards[0], holes.vectors, err);
    free(holes.vectors);
    free(holes.kept);
    return status;
}

static reshard_status source_check(const struct shards_by_key *by_key, reshard_error *err)
{
    reshard_status status = alike_check(by_key, "source", err);
    for (uint32_t k = 0; !status && k < by_key->keys.count; k++)
        status = cover_check(by_key->shards + by_key->first[k], by_key->first[k + 1] - by_key->first[k], err);
    return status;
}

static reshard_status wanted_check(const struct shards_by_key *source, const struct shards_by_key *target, reshard_error *err)
{
    reshard_status status = alike_check(target, "target", err);
    for (uint32_t k = 0; !status && k < target->keys.count; k++) {
        const struct shard *wanted = target->shards[target->first[k]];
        uint32_t found = name_map_find(&source->keys, wanted->key);
        if (found == NAME_NONE)
            return error_set(err, RESHARD_ERR_USAGE, "target '%.*s': the source has no such key", STR_ARG(wanted->key));
        const struct shard *other = source->shards[source->first[found]];
        if (!shape_equal(other->rank, other->shape, wanted->rank, wanted->shape))
            return error_set(err, RESHARD_ERR_USAGE, "'%.*s': source and target do not agree on the global shape", STR_ARG(wanted->key));
    }
    return status;
}

reshard_status shard_list_check(const struct shard_list *source, const struct shard_list *target, reshard_error *err)
{
    struct shards_by_key sources, targets;
    reshard_status status = by_key_make(&source, 1, &sources, err);
    if (status)
        return status;
    status = source_check(&sources, err);
    if (!status && target) {
        status = by_key_make(&target, 1, &targets, err);
        if (!status) {
            status = wanted_check(&sources, &targets, err);
            by_key_release(&targets);
        }
    }
    by_key_release(&sources);
    return status;
}
