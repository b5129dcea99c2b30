/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_recipes.h"

#include "base/array.h"
#include "mapping/map_report.h"
#include "tensor/box_join.h"

#include <stdlib.h>

static const int64_t zeros[RANK_MAX];

void recipe_table_release(struct recipe_table *table)
{
    free(table->recipes);
    free(table->first);
    *table = (struct recipe_table){ 0 };
}

reshard_status recipe_table_append(struct recipe_table *table, const struct recipe *recipe, reshard_error *err)
{
    if (!ARRAY_ROOM(table->recipes, table->count, table->capacity))
        return error_set_memory(err);
    table->recipes[table->count++] = *recipe;
    return RESHARD_OK;
}

reshard_status recipe_table_close(struct recipe_table *table, uint32_t target_count, reshard_error *err)
{
    bool is_ascending = true;
    table->target_count = target_count;
    table->first = array_zeroed((size_t)target_count + 2, sizeof(*table->first));
    if (!table->first)
        return error_set_memory(err);
    for (uint32_t i = 0; i < table->count; i++) {
        table->first[table->recipes[i].target_tensor + 1]++;
        is_ascending = is_ascending && (i == 0 || table->recipes[i - 1].target_tensor <= table->recipes[i].target_tensor);
    }
    for (uint32_t t = 0; t < target_count; t++)
        table->first[t + 1] += table->first[t];
    if (is_ascending)
        return RESHARD_OK;
    struct recipe *sorted = array_new(table->count, sizeof(*sorted));
    uint32_t *next = array_new(target_count, sizeof(*next));
    if (!sorted || !next) {
        free(sorted);
        free(next);
        return error_set_memory(err);
    }
    memcpy(next, table->first, target_count * sizeof(*next));
    for (uint32_t i = 0; i < table->count; i++)
        sorted[next[table->recipes[i].target_tensor]++] = table->recipes[i];
    free(next);
    free(table->recipes);
    table->recipes = sorted;
    table->capacity = table->count;
    return RESHARD_OK;
}

reshard_status recipes_read(const struct recipe *recipes, uint32_t count, uint32_t source_count, uint32_t **out, uint32_t *out_count,
                            reshard_error *err)
{
    uint8_t *is_read = array_zeroed(source_count, 1);
    *out = array_new(source_count, sizeof(**out));
    *out_count = 0;
    for (uint32_t i = 0; i < count && is_read; i++) {
        if (recipes[i].source_tensor != RECIPE_FILL)
            is_read[recipes[i].source_tensor] = 1;
    }
    for (uint32_t i = 0; i < source_count && is_read && *out; i++) {
        if (is_read[i])
            (*out)[(*out_count)++] = i;
    }
    reshard_status status = is_read && *out ? RESHARD_OK : error_set_memory(err);
    free(is_read);
    return status;
}

/* ---- casts ---- */

/* A list of types that elements pass through, the first being the source's. */
struct cast_list {
    enum dtype *types;
    unsigned count, capacity;
};

static bool casts_push(struct cast_list *list, enum dtype type)
{
    if (list->count && list->types[list->count - 1] == type)
        return true;
    /* There and back through a type that holds all values of the first is no change at all. */
    if (list->count > 1 && list->types[list->count - 2] == type && map_cast_is_exact(type, list->types[list->count - 1])) {
        list->count--;
        return true;
    }
    if (!ARRAY_ROOM(list->types, list->count, list->capacity))
        return false;
    list->types[list->count++] = type;
    return true;
}

static bool casts_push_all(struct cast_list *list, const enum dtype *types, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (!casts_push(list, types[i]))
            return false;
    }
    return true;
}

/* What lies between the first and the last becomes the recipe's. A list that ends where it began may have shrunk to one type. */
static reshard_status casts_keep(struct cast_list *list, struct arena *arena, struct recipe *recipe, reshard_error *err)
{
    unsigned count = list->count > 2 ? list->count - 2 : 0;
    enum dtype *kept = count ? arena_array(arena, count, sizeof(*kept)) : NULL;
    recipe->via = kept;
    recipe->via_count = count;
    if (count && !kept)
        return error_set_memory(err);
    if (count)
        memcpy(kept, list->types + 1, count * sizeof(*kept));
    return RESHARD_OK;
}

reshard_status recipe_add_cast(struct recipe *recipe, enum dtype source, enum dtype last, enum dtype target, struct arena *arena,
                               reshard_error *err)
{
    struct cast_list list = { 0 };
    reshard_status status;
    if (last == target || recipe->source_tensor == RECIPE_FILL)
        return RESHARD_OK;
    if (casts_push(&list, source) && casts_push_all(&list, recipe->via, recipe->via_count) && casts_push(&list, last) &&
        casts_push(&list, target))
        status = casts_keep(&list, arena, recipe, err);
    else
        status = error_set_memory(err);
    free(list.types);
    return status;
}

/* ---- one text ---- */

/* The casts of a copy, the first one first. */
static reshard_status copy_casts(const struct map_copy *copy, enum dtype source, struct cast_list *list, struct arena *arena,
                                 struct recipe *recipe, reshard_error *err)
{
    unsigned count = 0, at;
    for (const struct map_cast *cast = copy->casts; cast; cast = cast->before)
        count++;
    if (count < 2)
        return RESHARD_OK;
    at = count;
    enum dtype *types = array_new(count, sizeof(*types));
    if (!types)
        return error_set_memory(err);
    for (const struct map_cast *cast = copy->casts; cast; cast = cast->before)
        types[--at] = cast->dtype;
    list->count = 0;
    reshard_status status =
        casts_push(list, source) && casts_push_all(list, types, count) ? casts_keep(list, arena, recipe, err) : error_set_memory(err);
    free(types);
    return status;
}

static bool is_whole_piece(const struct map_piece *piece, const struct map_tensor *source, const struct map_tensor *target)
{
    return !piece ||
           (!piece->axes && source->rank == target->rank && box_equal(target->rank, piece->start, piece->extent, zeros, target->shape) &&
            box_equal(target->rank, piece->source_start, piece->extent, zeros, source->shape));
}

static reshard_status mapping_recipes_append_copy(const struct map_result *result, const struct map_space *source,
                                                  const struct map_copy *copy, struct cast_list *casts, struct arena *arena,
                                                  struct recipe_table *out, reshard_error *err)
{
    const struct map_tensor *from = &source->tensors[copy->source_tensor], *to = &result->target->tensors[copy->target_tensor];
    const struct map_piece *piece = copy->piece;
    struct recipe recipe = { .source_tensor = copy->source_tensor, .target_tensor = copy->target_tensor, .rank = to->rank };
    recipe.is_whole = is_whole_piece(piece, from, to);
    recipe.source_start = recipe.is_whole ? zeros : piece->source_start;
    recipe.target_start = recipe.is_whole ? zeros : piece->start;
    recipe.extent = recipe.is_whole ? to->shape : piece->extent;
    recipe.permutation = recipe.is_whole ? NULL : piece->axes;
    reshard_status status = copy_casts(copy, from->dtype, casts, arena, &recipe, err);
    return status ? status : recipe_table_append(out, &recipe, err);
}

static reshard_status append_zeros(uint32_t target_tensor, const struct map_tensor *to, const struct map_piece *piece,
                                   struct recipe_table *out, reshard_error *err)
{
    struct recipe recipe = { .source_tensor = RECIPE_FILL, .target_tensor = target_tensor, .is_whole = !piece, .rank = to->rank };
    recipe.source_start = zeros;
    recipe.target_start = piece ? piece->start : zeros;
    recipe.extent = piece ? piece->extent : to->shape;
    return recipe_table_append(out, &recipe, err);
}

/* Parts of a target tensor that no copy writes: all of what is kept, and the boxes of removed weights. */
static reshard_status append_kept(const struct map_result *result, uint32_t target_tensor, bool has_copies, struct recipe_table *out,
                                  reshard_error *err)
{
    const struct map_tensor *to = &result->target->tensors[target_tensor];
    const struct map_outcome *outcome = &result->outcomes[to->weight];
    reshard_status status = RESHARD_OK;
    if (outcome->origin == MAP_ORIGIN_KEPT || (!has_copies && !map_state_is_shaped[to->state]))
        return append_zeros(target_tensor, to, NULL, out, err);
    const struct map_variable *variable = outcome->variable;
    for (uint32_t i = 0; map_state_is_shaped[to->state] && variable && i < variable->piece_count && !status; i++) {
        if (result->removed[variable->pieces[i].weight])
            status = append_zeros(target_tensor, to, &variable->pieces[i], out, err);
    }
    return status;
}

reshard_status recipes_of_result(const struct map_result *result, const struct map_space *source, struct arena *arena,
                                 struct recipe_table *out, reshard_error *err)
{
    uint32_t tensors = map_space_tensor_count(result->target), at = 0;
    struct cast_list casts = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t t = 0; t < tensors && !status; t++) {
        uint32_t begin = at;
        for (; at < result->copy_count && result->copies[at].target_tensor == t && !status; at++)
            status = mapping_recipes_append_copy(result, source, &result->copies[at], &casts, arena, out, err);
        if (!status)
            status = append_kept(result, t, at > begin, out, err);
    }
    free(casts.types);
    return status ? status : recipe_table_close(out, tensors, err);
}

/* ---- two texts ---- */

struct composer {
    const struct recipe_chain *chain;
    struct arena *arena;
    struct recipe_table *out;
    struct cast_list casts;
    struct box_joiner joiner;
    uint32_t *reads, *first_read; /* recipes of `after` by middle tensor */
    reshard_status status;
    reshard_error *err;
};

static bool compose_boxes(struct composer *composer, const struct recipe *a, const struct recipe *b, const int64_t *low,
                          const int64_t *extent, struct recipe *out)
{
    int rank = composer->chain->target[b->target_tensor].rank;
    int source_rank = a->source_tensor == RECIPE_FILL ? 0 : composer->chain->source[a->source_tensor].rank;
    size_t axes = (size_t)rank + 1;
    int64_t *vectors = arena_array(composer->arena, 2 * axes + (size_t)source_rank, sizeof(*vectors));
    uint8_t *permutation = arena_alloc(composer->arena, axes);
    if (!vectors || !permutation)
        return false;
    int64_t *target_start = vectors, *target_extent = vectors + axes, *source_start = vectors + 2 * axes;
    bool is_identity = rank == source_rank;
    for (int s = 0; s < source_rank; s++)
        source_start[s] = a->source_start[s];
    for (int m = 0; m < composer->chain->middle[a->target_tensor].rank; m++) {
        int s = recipe_source_axis(a, m);
        if (s >= 0 && s < source_rank)
            source_start[s] += low[m] - a->target_start[m];
    }
    for (int t = 0; t < rank; t++) {
        int m = recipe_source_axis(b, t);
        int s = m < 0 || !source_rank ? -1 : recipe_source_axis(a, m);
        target_start[t] = b->target_start[t] + (m < 0 ? 0 : low[m] - b->source_start[m]);
        target_extent[t] = m < 0 ? 1 : extent[m];
        permutation[t] = s < 0 ? RECIPE_UNIT_AXIS : (uint8_t)s;
        is_identity = is_identity && s == t;
    }
    out->rank = rank;
    out->source_start = source_start;
    out->target_start = target_start;
    out->extent = target_extent;
    out->permutation = is_identity ? NULL : permutation;
    return true;
}

static reshard_status compose_casts(struct composer *composer, const struct recipe *a, const struct recipe *b, struct recipe *out)
{
    const struct recipe_chain *chain = composer->chain;
    struct cast_list *list = &composer->casts;
    list->count = 0;
    if (a->source_tensor == RECIPE_FILL)
        return RESHARD_OK;
    if (!casts_push(list, chain->source[a->source_tensor].dtype) || !casts_push_all(list, a->via, a->via_count) ||
        !casts_push(list, chain->middle[a->target_tensor].dtype) || !casts_push_all(list, b->via, b->via_count) ||
        !casts_push(list, chain->target[b->target_tensor].dtype))
        return error_set_memory(composer->err);
    return casts_keep(list, composer->arena, out, composer->err);
}

/* Appends what a and b do together to a box of the middle; NULL: to all that both touch, one of them being whole. */
static reshard_status compose_pair(struct composer *composer, const struct recipe *a, const struct recipe *b, const int64_t *low,
                                   const int64_t *extent)
{
    struct recipe out = { .source_tensor = a->source_tensor, .target_tensor = b->target_tensor };
    if (a->is_whole && b->is_whole) {
        out = *b;
        out.source_tensor = a->source_tensor;
    } else if (a->is_whole && a->source_tensor != RECIPE_FILL) {
        out = *b;
        out.source_tensor = a->source_tensor;
    } else if (b->is_whole) {
        out = *a;
        out.target_tensor = b->target_tensor;
    } else if (!compose_boxes(composer, a, b, low, extent, &out)) {
        return error_set_memory(composer->err);
    }
    out.via = NULL;
    out.via_count = 0;
    reshard_status status = compose_casts(composer, a, b, &out);
    return status ? status : recipe_table_append(composer->out, &out, composer->err);
}

static bool compose_overlap(void *context, uint32_t a, uint32_t b, const int64_t *start, const int64_t *extent)
{
    struct composer *composer = context;
    const struct recipe_chain *chain = composer->chain;
    composer->status = compose_pair(composer, &chain->before->recipes[a], &chain->after->recipes[composer->reads[b]], start, extent);
    return !composer->status;
}

/* The boxes that recipes write (of a tensor of the middle) or read. The arrays and their vectors are the caller's to free. */
static bool boxes_of(const struct composer *composer, uint32_t middle, bool is_read, struct join_box **boxes, int64_t **vectors)
{
    const struct recipe_chain *chain = composer->chain;
    uint32_t begin = is_read ? composer->first_read[middle] : chain->before->first[middle];
    uint32_t end = is_read ? composer->first_read[middle + 1] : chain->before->first[middle + 1];
    const size_t rank = (size_t)chain->middle[middle].rank, count = end - begin;
    *boxes = array_new(count, sizeof(**boxes));
    *vectors = array_new(count * rank, sizeof(**vectors));
    if (!*boxes || !*vectors)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t number = begin + i;
        const struct recipe *recipe = is_read ? &chain->after->recipes[composer->reads[number]] : &chain->before->recipes[number];
        int64_t *extent = *vectors + i * rank;
        if (is_read)
            recipe_source_extent(recipe, (int)rank, extent);
        (*boxes)[i] =
            (struct join_box){ is_read ? recipe->source_start : recipe->target_start, is_read ? extent : recipe->extent, number };
    }
    return true;
}

static reshard_status compose_joined(struct composer *composer, uint32_t middle)
{
    const struct recipe_chain *chain = composer->chain;
    struct join_box *written = NULL, *read = NULL;
    int64_t *written_vectors = NULL, *read_vectors = NULL;
    reshard_status status = RESHARD_OK;
    if (!boxes_of(composer, middle, false, &written, &written_vectors) || !boxes_of(composer, middle, true, &read, &read_vectors))
        status = error_set_memory(composer->err);
    if (!status)
        status = box_join(&composer->joiner, chain->middle[middle].rank, written,
                          chain->before->first[middle + 1] - chain->before->first[middle], read,
                          composer->first_read[middle + 1] - composer->first_read[middle], compose_overlap, composer, composer->err);
    free(written);
    free(read);
    free(written_vectors);
    free(read_vectors);
    return composer->status ? composer->status : status;
}

/* Sorts the recipes of `after` by the tensor that they read. Those of zeros read none and go straight to the result. */
static reshard_status index_reads(struct composer *composer, uint32_t middle_count)
{
    const struct recipe_table *after = composer->chain->after;
    reshard_status status = RESHARD_OK;
    composer->reads = array_zeroed(after->count, sizeof(*composer->reads));
    composer->first_read = array_zeroed((size_t)middle_count + 2, sizeof(*composer->first_read));
    if (!composer->reads || !composer->first_read)
        return error_set_memory(composer->err);
    for (uint32_t i = 0; i < after->count && !status; i++) {
        if (after->recipes[i].source_tensor == RECIPE_FILL)
            status = recipe_table_append(composer->out, &after->recipes[i], composer->err);
        else
            composer->first_read[after->recipes[i].source_tensor + 2]++;
    }
    for (uint32_t m = 0; m < middle_count; m++)
        composer->first_read[m + 1] += composer->first_read[m];
    for (uint32_t i = 0; i < after->count; i++) {
        if (after->recipes[i].source_tensor != RECIPE_FILL)
            composer->reads[composer->first_read[after->recipes[i].source_tensor + 1]++] = i;
    }
    return status;
}

static reshard_status compose_all(struct composer *composer)
{
    const struct recipe_chain *chain = composer->chain;
    reshard_status status = RESHARD_OK;
    for (uint32_t m = 0; m < chain->before->target_count && !status; m++) {
        uint32_t begin = composer->first_read[m], end = composer->first_read[m + 1], written = chain->before->first[m];
        bool is_single = chain->before->first[m + 1] - written == 1;
        const struct recipe *only = &chain->before->recipes[written];
        if (begin == end)
            continue;
        if (is_single && only->is_whole && only->source_tensor != RECIPE_FILL) {
            for (uint32_t i = begin; i < end && !status; i++)
                status = compose_pair(composer, only, &chain->after->recipes[composer->reads[i]], NULL, NULL);
        } else {
            status = compose_joined(composer, m);
        }
    }
    return status;
}

reshard_status recipes_compose(const struct recipe_chain *chain, struct arena *arena, struct recipe_table *out, reshard_error *err)
{
    struct composer composer = { .chain = chain, .arena = arena, .out = out, .joiner.misses_max = chain->box_checks, .err = err };
    reshard_status status = index_reads(&composer, chain->before->target_count);
    if (!status)
        status = compose_all(&composer);
    free(composer.reads);
    free(composer.first_read);
    free(composer.casts.types);
    box_joiner_release(&composer.joiner);
    return status ? status : recipe_table_close(out, chain->after->target_count, err);
}
