/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the sharded state dicts of all ranks are one whole; the words are Megatron's. */
#include "parallel/sharded_dict.h"

#include "base/array.h"
#include "base/name_map.h"
#include "parallel/shard_list.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK_TITLE "Invalid sharding pattern validation. Errors: "
#define CELLS_MAX (INT64_C(1) << 24)
#define CELLS_SHOWN 64
#define NAMED_BYTES 400 /* of a message: no more ranks are named behind it */
#define PAIRS_MAX 4096 /* of so many tensors, two that overlap are looked for */

/* The tensors of one key. */
struct key_tensors {
    const struct sharded_dict *const *ranks; /* whose they are, to name them */
    size_t rank_count;
    const struct sharded_tensor *const *tensors;
    size_t count;
};

static size_t rank_of(const struct key_tensors *key, const struct sharded_tensor *tensor)
{
    size_t rank = 0;
    while (rank + 1 < key->rank_count &&
           (tensor < key->ranks[rank]->tensors || tensor >= key->ranks[rank]->tensors + key->ranks[rank]->tensor_count))
        rank++;
    return rank;
}

/* The tensors of all ranks by key: those of key k are [first[k], first[k + 1]). */
struct sharded_by_key {
    struct name_map keys;
    const struct sharded_tensor **tensors;
    size_t *first, total;
};

static void sharded_by_key_release(struct sharded_by_key *by_key)
{
    name_map_release(&by_key->keys);
    free(by_key->tensors);
    free(by_key->first);
}

static bool by_key_count(struct sharded_by_key *by_key, const struct sharded_dict *const *ranks, size_t count, uint32_t **numbers)
{
    size_t at = 0;
    for (size_t r = 0; r < count; r++)
        by_key->total += ranks[r]->tensor_count;
    *numbers = array_new(by_key->total, sizeof(**numbers));
    for (size_t r = 0; *numbers && r < count; r++) {
        for (size_t i = 0; i < ranks[r]->tensor_count; i++, at++) {
            (*numbers)[at] = name_map_intern(&by_key->keys, ranks[r]->tensors[i].shard.key, NULL);
            if ((*numbers)[at] == NAME_NONE)
                return false;
        }
    }
    by_key->tensors = array_zeroed(by_key->total, sizeof(const struct sharded_tensor *));
    by_key->first = array_zeroed((size_t)by_key->keys.count + 2, sizeof(*by_key->first));
    return *numbers && by_key->tensors && by_key->first;
}

static reshard_status sharded_by_key_make(const struct sharded_dict *const *ranks, size_t count, struct sharded_by_key *out,
                                          reshard_error *err)
{
    uint32_t *numbers = NULL;
    size_t at = 0;
    *out = (struct sharded_by_key){ 0 };
    if (!by_key_count(out, ranks, count, &numbers)) {
        free(numbers);
        return error_set_memory(err);
    }
    /* first[k + 1] is where key k's next tensor goes, until all have come. */
    for (at = 0; at < out->total; at++)
        out->first[(size_t)numbers[at] + 2]++;
    for (size_t k = 2; k <= out->keys.count; k++)
        out->first[k] += out->first[k - 1];
    at = 0;
    for (size_t r = 0; r < count; r++) {
        for (size_t i = 0; i < ranks[r]->tensor_count; i++, at++)
            out->tensors[out->first[numbers[at] + 1]++] = &ranks[r]->tensors[i];
    }
    free(numbers);
    return RESHARD_OK;
}

static void vector_put(struct buffer *out, int rank, const int64_t *vector)
{
    buffer_append_byte(out, '(');
    for (int i = 0; i < rank; i++)
        buffer_printf(out, "%s%" PRId64, i ? ", " : "", vector[i]);
    buffer_append_text(out, rank == 1 ? ",)" : ")");
}

static bool sharded_vector_equal(int rank, const int64_t *a, const int64_t *b)
{
    return rank == 0 || memcmp(a, b, (size_t)rank * sizeof(*a)) == 0;
}

/* ---- agreement ---- */

/* What two descriptions of a tensor do not have alike; NULL: nothing. */
static const char *disagreement(const struct sharded_tensor *first, const struct sharded_tensor *other)
{
    int rank = first->shard.rank;
    if (other->shard.dtype != first->shard.dtype)
        return "the dtype";
    if (other->shard.rank != rank || !sharded_vector_equal(rank, first->shard.shape, other->shard.shape))
        return "the global shape";
    if (!other->fragments != !first->fragments)
        return "whether the grid is regular";
    if (first->fragments && !sharded_vector_equal(rank, first->shard.extent, other->shard.extent))
        return "the local shape";
    if (first->fragments && !sharded_vector_equal(rank, first->fragments, other->fragments))
        return "the fragments";
    return first->fragments && other->shard.is_flattened != first->shard.is_flattened ? "whether they are flattened" : NULL;
}

static reshard_status agreement_check(const struct key_tensors *key, reshard_error *err)
{
    const struct sharded_tensor *first = key->tensors[0];
    for (size_t i = 1; i < key->count; i++) {
        const char *what = disagreement(first, key->tensors[i]);
        if (!what)
            continue;
        error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "'%.*s': shards do not agree on %s: rank %zu's with rank %zu's",
                  STR_ARG(first->shard.key), what, rank_of(key, key->tensors[i]), rank_of(key, first));
        error_object(err, "%.*s", STR_ARG(first->shard.key));
        return RESHARD_ERR_USAGE;
    }
    return RESHARD_OK;
}

/* ---- regular grids ---- */

/* [[1, 0], [1, 1]] */
static void cells_put(struct buffer *out, const struct sharded_tensor *tensor, const uint32_t *cells, int64_t count)
{
    int rank = tensor->shard.rank;
    for (int64_t i = 0; i < count && i < CELLS_SHOWN; i++) {
        int64_t inner = 1, opened = 0;
        for (int axis = rank - 1; axis >= 0; axis--) {
            inner *= tensor->fragments[axis];
            opened += i % inner == 0;
        }
        buffer_append_text(out, i && !opened ? " " : "");
        for (int64_t k = 0; k < opened && i; k++)
            buffer_append_byte(out, ']');
        buffer_append_text(out, i && opened ? " " : "");
        for (int64_t k = 0; k < opened; k++)
            buffer_append_byte(out, '[');
        buffer_printf(out, "%" PRIu32, cells[i]);
    }
    if (count > CELLS_SHOWN)
        buffer_printf(out, " ... (%" PRId64 " cells)", count);
    for (int axis = 0; axis < rank; axis++)
        buffer_append_byte(out, ']');
}

/* Main copies count once a cell: of flat ranges the first of the cell. */
static bool counts_in_cell(const struct sharded_tensor *tensor)
{
    return replica_is_main(&tensor->replica) && (!tensor->shard.is_flattened || tensor->shard.flat_begin == 0);
}

/* Whose the copies are of the first cell of which there are several. */
static void several_put(struct buffer *out, const struct key_tensors *key, const uint32_t *cells, int64_t count)
{
    int rank = key->tensors[0]->shard.rank;
    int64_t index[RANK_MAX + 1], cell = 0;
    const char *between = "; ranks ";
    while (cell < count && cells[cell] < 2)
        cell++;
    for (size_t i = 0; cell < count && i < key->count && out->size < NAMED_BYTES; i++) {
        if (!counts_in_cell(key->tensors[i]) || sharded_cell(key->tensors[i], index, NULL) ||
            shape_ravel(rank, key->tensors[0]->fragments, index) != cell)
            continue;
        buffer_printf(out, "%s%zu", between, rank_of(key, key->tensors[i]));
        between = " and ";
    }
    if (cell == count)
        return;
    shape_unravel(rank, key->tensors[0]->fragments, cell, index);
    buffer_append_text(out, " have main copies of cell ");
    vector_put(out, rank, index);
}

static reshard_status pattern_error(const struct key_tensors *key, const uint32_t *cells, int64_t count, reshard_error *err)
{
    const struct sharded_tensor *tensor = key->tensors[0];
    struct buffer text = { 0 };
    buffer_append_text(&text, "global shape ");
    vector_put(&text, tensor->shard.rank, tensor->shard.shape);
    buffer_append_text(&text, ", fragments ");
    vector_put(&text, tensor->shard.rank, tensor->fragments);
    buffer_append_text(&text, ": ");
    cells_put(&text, tensor, cells, count);
    several_put(&text, key, cells, count);
    reshard_status status = text.failed ? error_set_memory(err)
                                        : error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "Invalid access pattern for '%.*s', %.*s",
                                                    STR_ARG(tensor->shard.key), (int)text.size, (const char *)text.data);
    error_object(err, "%.*s", STR_ARG(tensor->shard.key));
    error_hint(err, "how many main copies there are of each cell of the grid: 0 is a hole, 2 an overlap. A copy is the main one if its "
                    "replica id is 0");
    buffer_release(&text);
    return status;
}

static reshard_status cells_check(const struct key_tensors *key, reshard_error *err)
{
    const struct sharded_tensor *const *tensors = key->tensors, *first = tensors[0];
    int rank = first->shard.rank;
    int64_t cell_count, index[RANK_MAX + 1];
    bool is_bad = false;
    if (!shape_volume(rank, first->fragments, &cell_count) || cell_count > CELLS_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "'%.*s': its grid has more than %" PRId64 " cells", STR_ARG(first->shard.key), CELLS_MAX);
    uint32_t *cells = array_zeroed(cell_count, sizeof(*cells));
    if (!cells)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < key->count && !status; i++) {
        if (!counts_in_cell(tensors[i]))
            continue;
        status = sharded_cell(tensors[i], index, err);
        for (int axis = 0; axis < rank && !status; axis++) {
            if (index[axis] >= first->fragments[axis])
                status = error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "'%.*s': axis %d: rank %zu has piece %" PRId64 " of %" PRId64,
                                   STR_ARG(first->shard.key), axis, rank_of(key, tensors[i]), index[axis], first->fragments[axis]);
        }
        if (!status)
            cells[shape_ravel(rank, first->fragments, index)]++;
    }
    for (int64_t i = 0; i < cell_count && !status; i++)
        is_bad |= cells[i] != 1;
    if (is_bad)
        status = pattern_error(key, cells, cell_count, err);
    free(cells);
    return status;
}

/* ---- flat ranges ---- */

static int by_cell_and_begin(const void *a, const void *b)
{
    const struct shard *x = &(*(const struct sharded_tensor *const *)a)->shard, *y = &(*(const struct sharded_tensor *const *)b)->shard;
    for (int axis = 0; axis < x->rank; axis++) {
        if (x->start[axis] != y->start[axis])
            return x->start[axis] < y->start[axis] ? -1 : 1;
    }
    return x->flat_begin < y->flat_begin ? -1 : x->flat_begin > y->flat_begin;
}

/* A range does not begin where the one before it in its cell ends (NULL: the cell begins), or is the last (NULL) and ends too early. */
static reshard_status ranges_error(const struct key_tensors *key, const struct sharded_tensor *before, const struct sharded_tensor *at,
                                   reshard_error *err)
{
    const struct shard *shard = &(at ? at : before)->shard;
    int64_t end = before ? before->shard.flat_end : 0;
    char where[160];
    if (!at)
        snprintf(where, sizeof(where), "the last, of rank %zu, ends at %" PRId64 " of %" PRId64, rank_of(key, before), end,
                 box_volume(shard->rank, shard->extent));
    else if (!before)
        snprintf(where, sizeof(where), "the first, of rank %zu, begins at %" PRId64, rank_of(key, at), shard->flat_begin);
    else
        snprintf(where, sizeof(where), "that of rank %zu ends at %" PRId64 ", that of rank %zu begins at %" PRId64, rank_of(key, before),
                 end, rank_of(key, at), shard->flat_begin);
    error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "Flattened ranges dont cover the whole shard of '%.*s': %s", STR_ARG(shard->key), where);
    error_object(err, "%.*s", STR_ARG(shard->key));
    return RESHARD_ERR_USAGE;
}

/* The main ranges of each cell, in order, are the cell. */
static reshard_status ranges_check(const struct key_tensors *key, const struct sharded_tensor **sorted, size_t count, reshard_error *err)
{
    qsort(sorted, count, sizeof(*sorted), by_cell_and_begin);
    for (size_t i = 0; i < count;) {
        const struct shard *first = &sorted[i]->shard;
        const struct sharded_tensor *before = NULL;
        for (; i < count && sharded_vector_equal(first->rank, first->start, sorted[i]->shard.start); before = sorted[i++])
            if (sorted[i]->shard.flat_begin != (before ? before->shard.flat_end : 0))
                return ranges_error(key, before, sorted[i], err);
        if (before && before->shard.flat_end != box_volume(first->rank, first->extent))
            return ranges_error(key, before, NULL, err);
    }
    return RESHARD_OK;
}

static reshard_status flat_check(const struct key_tensors *key, reshard_error *err)
{
    size_t main_count = 0;
    const struct sharded_tensor **sorted = array_new(key->count, sizeof(const struct sharded_tensor *));
    if (!sorted)
        return error_set_memory(err);
    for (size_t i = 0; i < key->count; i++) {
        if (key->tensors[i]->shard.is_flattened && replica_is_main(&key->tensors[i]->replica))
            sorted[main_count++] = key->tensors[i];
    }
    reshard_status status = ranges_check(key, sorted, main_count, err);
    free((void *)sorted);
    return status;
}

/* ---- irregular grids ---- */

static bool main_copies_overlap(const struct sharded_tensor *a, const struct sharded_tensor *b)
{
    int64_t start[RANK_MAX + 1], extent[RANK_MAX + 1];
    const int rank = a->shard.rank;
    if (!replica_is_main(&a->replica) || !replica_is_main(&b->replica))
        return false;
    if (a->shard.is_flattened && sharded_vector_equal(rank, a->shard.start, b->shard.start) &&
        (a->shard.flat_end <= b->shard.flat_begin || b->shard.flat_end <= a->shard.flat_begin))
        return false;
    return box_intersect(rank, a->shard.start, a->shard.extent, b->shard.start, b->shard.extent, start, extent);
}

static reshard_status overlap_error(const struct key_tensors *key, int64_t held, int64_t volume, reshard_error *err)
{
    const size_t count = key->count < PAIRS_MAX ? key->count : PAIRS_MAX;
    char which[64] = "";
    for (size_t i = 0; i < count && !which[0]; i++) {
        for (size_t k = 0; k < i && !which[0]; k++)
            if (main_copies_overlap(key->tensors[k], key->tensors[i]))
                snprintf(which, sizeof(which), " of ranks %zu and %zu", rank_of(key, key->tensors[k]), rank_of(key, key->tensors[i]));
    }
    return error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "main copies of '%.*s' overlap%s: %" PRId64 " elements of %" PRId64,
                     STR_ARG(key->tensors[0]->shard.key), which, held, volume);
}

/* Boxes cover the whole, and together are no larger. */
static reshard_status boxes_check(const struct key_tensors *key, reshard_error *err)
{
    const struct sharded_tensor *const *tensors = key->tensors;
    struct shard_list list = { 0 };
    int64_t held = 0, volume;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < key->count && !status; i++) {
        const struct shard *shard = &tensors[i]->shard;
        if (!replica_is_main(&tensors[i]->replica))
            continue;
        held += shard->is_flattened ? shard->flat_end - shard->flat_begin : box_volume(shard->rank, shard->extent);
        status = shard_list_add(&list, shard, err);
    }
    if (!status && !list.count)
        status = error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "'%.*s' has no main copy", STR_ARG(tensors[0]->shard.key));
    if (!status)
        status = shard_list_check(&list, NULL, err);
    if (!status && (!shape_volume(tensors[0]->shard.rank, tensors[0]->shard.shape, &volume) || held != volume))
        status = overlap_error(key, held, volume, err);
    if (status)
        error_object(err, "%.*s", STR_ARG(tensors[0]->shard.key));
    shard_list_release(&list);
    return status;
}

static reshard_status sharded_key_check(const struct key_tensors *key, reshard_error *err)
{
    reshard_status status = agreement_check(key, err);
    if (!status && !key->tensors[0]->fragments)
        return boxes_check(key, err);
    if (!status)
        status = flat_check(key, err);
    return status ? status : cells_check(key, err);
}

/* ---- objects ---- */

struct object_group {
    const struct sharded_object *first;
    int64_t cells, seen;
};

struct objects_checking {
    struct name_map unique, groups;
    struct object_group *group;
    uint32_t group_capacity;
};

static reshard_status object_take(struct objects_checking *checking, const struct sharded_object *object, reshard_error *err)
{
    struct buffer key = { 0 };
    bool is_new = false, is_new_group = false;
    uint32_t group = name_map_intern(&checking->groups, object->key, &is_new_group);
    uint32_t own = sharded_object_key(object, &key) ? name_map_intern(&checking->unique, buffer_str(&key), &is_new) : NAME_NONE;
    buffer_release(&key);
    if (group == NAME_NONE || own == NAME_NONE || !ARRAY_RESERVE(checking->group, (uint64_t)group + 1, checking->group_capacity))
        return error_set_memory(err);
    if (!is_new)
        return error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "Duplicate ShardedObject keys: ['%.*s']",
                         STR_ARG(checking->unique.names[own]));
    if (is_new_group)
        checking->group[group] = (struct object_group){ .first = object };
    const struct sharded_object *first = checking->group[group].first;
    if (first->rank != object->rank || !sharded_vector_equal(first->rank, first->shape, object->shape))
        return error_set(err, RESHARD_ERR_USAGE, CHECK_TITLE "objects '%.*s' are of several grids", STR_ARG(object->key));
    checking->group[group].seen++;
    return RESHARD_OK;
}

static reshard_status objects_check(const struct sharded_dict *const *ranks, size_t count, reshard_error *err)
{
    struct objects_checking checking = { 0 };
    reshard_status status = RESHARD_OK;
    for (size_t r = 0; r < count && !status; r++) {
        for (size_t i = 0; i < ranks[r]->object_count && !status; i++) {
            if (replica_is_main(&ranks[r]->objects[i].replica))
                status = object_take(&checking, &ranks[r]->objects[i], err);
        }
    }
    for (uint32_t g = 0; g < checking.groups.count && !status; g++) {
        const struct object_group *group = &checking.group[g];
        int64_t cells = 0;
        shape_volume(group->first->rank, group->first->shape, &cells);
        if (group->seen != cells)
            status = error_set(err, RESHARD_ERR_USAGE,
                               CHECK_TITLE "Invalid access pattern: %" PRId64 " ShardedObject are missing. ('%.*s')", cells - group->seen,
                               STR_ARG(group->first->key));
    }
    name_map_release(&checking.unique);
    name_map_release(&checking.groups);
    free(checking.group);
    return status;
}

reshard_status sharded_check(const struct sharded_dict *const *ranks, size_t count, reshard_error *err)
{
    struct sharded_by_key by_key;
    reshard_status status = sharded_by_key_make(ranks, count, &by_key, err);
    for (uint32_t k = 0; k < by_key.keys.count && !status; k++) {
        const struct key_tensors key = { ranks, count, by_key.tensors + by_key.first[k], by_key.first[k + 1] - by_key.first[k] };
        status = sharded_key_check(&key, err);
    }
    sharded_by_key_release(&by_key);
    return status ? status : objects_check(ranks, count, err);
}
