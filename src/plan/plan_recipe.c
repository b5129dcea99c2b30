/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_steps.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "catalog/catalog_cover.h"

static reshard_status recipe_error(reshard_error *err, const struct catalog_tensor *source, const struct catalog_tensor *target)
{
    error_prefix(err, "'%.*s' from '%.*s'", STR_ARG(target->key), STR_ARG(source->key));
    error_object(err, "%.*s", STR_ARG(target->key));
    return RESHARD_ERR_USAGE;
}

/* A whole recipe with its boxes spelled out: they lie in the catalogs' pools. */
static reshard_status recipe_whole(const struct plan *plan, struct recipe *recipe, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_tensor *source = &plan->source->tensors[recipe->source_tensor],
                                *target = &plan->target->tensors[recipe->target_tensor];
    const int64_t *source_shape = catalog_vector_at(plan->source, source->shape),
                  *target_shape = catalog_vector_at(plan->target, target->shape);
    bool is_same = source->rank == target->rank;
    for (int axis = 0; is_same && axis < source->rank; axis++)
        is_same = source_shape[axis] == target_shape[axis];
    if (!is_same) {
        char shapes[2][BOX_TEXT_MAX];
        error_set(err, RESHARD_ERR_USAGE, "shapes differ: the source is %s, the target %s",
                  box_text(source->rank, origin, source_shape, shapes[0]), box_text(target->rank, origin, target_shape, shapes[1]));
        return recipe_error(err, source, target);
    }
    recipe->rank = target->rank;
    recipe->source_start = recipe->target_start = origin;
    recipe->extent = target_shape;
    recipe->permutation = NULL;
    return RESHARD_OK;
}

/* Whether the recipe's axes name no source axis twice, and all of them where no axis is one of extent 1. */
static bool permutation_check(const struct recipe *recipe, int source_rank)
{
    uint64_t seen = 0;
    if (!recipe->permutation)
        return source_rank == recipe->rank;
    for (int axis = 0; axis < recipe->rank; axis++) {
        uint8_t from = recipe->permutation[axis];
        if (from == RECIPE_UNIT_AXIS) {
            if (recipe->extent[axis] > 1)
                return false;
            continue;
        }
        if (from >= source_rank || seen >> from & 1)
            return false;
        seen |= UINT64_C(1) << from;
    }
    return true;
}

void recipe_source_extent(const struct recipe *recipe, int source_rank, int64_t *extent)
{
    for (int axis = 0; axis < source_rank; axis++)
        extent[axis] = 1;
    for (int axis = 0; axis < recipe->rank; axis++) {
        int from = recipe_source_axis(recipe, axis);
        if (from >= 0)
            extent[from] = recipe->extent[axis];
    }
}

static void *copy_array(struct arena *arena, const void *values, int count, size_t element_size)
{
    void *copy = arena_array(arena, (size_t)count, element_size);
    if (copy && count)
        memcpy(copy, values, (size_t)count * element_size);
    return copy;
}

static reshard_status recipe_part(struct plan *plan, struct recipe *recipe, reshard_error *err)
{
    const struct catalog_tensor *source = &plan->source->tensors[recipe->source_tensor],
                                *target = &plan->target->tensors[recipe->target_tensor];
    int64_t source_extent[RANK_MAX];
    int bad_axis = 0, rank = recipe->rank;
    char box[BOX_TEXT_MAX];

    if (rank != target->rank || (!recipe->permutation && rank != source->rank)) {
        error_set(err, RESHARD_ERR_USAGE, "a part has %d axes, the source %d, the target %d", rank, (int)source->rank, (int)target->rank);
        return recipe_error(err, source, target);
    }
    if (!permutation_check(recipe, source->rank)) {
        error_set(err, RESHARD_ERR_USAGE, "the axes of a part are no permutation");
        return recipe_error(err, source, target);
    }
    recipe_source_extent(recipe, source->rank, source_extent);
    if (!box_check(source->rank, recipe->source_start, source_extent, catalog_vector_at(plan->source, source->shape), &bad_axis)) {
        error_set(err, RESHARD_ERR_USAGE, "box %s leaves the source on axis %d",
                  box_text(source->rank, recipe->source_start, source_extent, box), bad_axis);
        return recipe_error(err, source, target);
    }
    if (!box_check(rank, recipe->target_start, recipe->extent, catalog_vector_at(plan->target, target->shape), &bad_axis)) {
        error_set(err, RESHARD_ERR_USAGE, "box %s leaves the target on axis %d", box_text(rank, recipe->target_start, recipe->extent, box),
                  bad_axis);
        return recipe_error(err, source, target);
    }
    recipe->source_start = copy_array(&plan->arena, recipe->source_start, source->rank, sizeof(int64_t));
    recipe->target_start = copy_array(&plan->arena, recipe->target_start, rank, sizeof(int64_t));
    recipe->extent = copy_array(&plan->arena, recipe->extent, rank, sizeof(int64_t));
    if (recipe->permutation && !(recipe->permutation = copy_array(&plan->arena, recipe->permutation, rank, 1)))
        return error_set_memory(err);
    return recipe->source_start && recipe->target_start && recipe->extent ? RESHARD_OK : error_set_memory(err);
}

/* Elements that are stored as another type than the source's are cast to that first: every cast rounds. */
static bool recipe_add_stored(struct plan *plan, struct recipe *recipe)
{
    const struct catalog_tensor *source = &plan->source->tensors[recipe->source_tensor];
    if (catalog_stored_dtype(source) == source->dtype ||
        (!recipe->via_count && plan->target->tensors[recipe->target_tensor].dtype == source->dtype))
        return true;
    enum dtype *via = arena_array(&plan->arena, (size_t)recipe->via_count + 1, sizeof(*via));
    if (!via)
        return false;
    via[0] = source->dtype;
    if (recipe->via_count)
        memcpy(via + 1, recipe->via, recipe->via_count * sizeof(*via));
    recipe->via = via;
    recipe->via_count++;
    return true;
}

/* Every cast on the way must exist. Keeps the list. */
static reshard_status recipe_casts(struct plan *plan, struct recipe *recipe, reshard_error *err)
{
    enum dtype from = catalog_stored_dtype(&plan->source->tensors[recipe->source_tensor]);
    enum dtype last = plan->target->tensors[recipe->target_tensor].dtype;
    if (!recipe_add_stored(plan, recipe))
        return error_set_memory(err);
    if (recipe->via_count > COPY_VIA_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%u casts one after the other: at most %d are supported", recipe->via_count + 1,
                         COPY_VIA_MAX + 1);
    for (unsigned i = 0; i <= recipe->via_count; i++) {
        enum dtype to = i < recipe->via_count ? recipe->via[i] : last;
        if (!copy_can_cast(from, to))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s cannot become %s", dtype_info(from)->name, dtype_info(to)->name);
        from = to;
    }
    if (recipe->via_count && !(recipe->via = copy_array(&plan->arena, recipe->via, (int)recipe->via_count, sizeof(*recipe->via))))
        return error_set_memory(err);
    return RESHARD_OK;
}

/* A box of zeros: its source fields are made empty. */
static reshard_status recipe_fill(struct plan *plan, struct recipe *recipe, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_tensor *target = &plan->target->tensors[recipe->target_tensor];
    const int64_t *shape = catalog_vector_at(plan->target, target->shape);
    int bad_axis = 0;
    char box[BOX_TEXT_MAX];
    recipe->source_start = origin;
    recipe->permutation = NULL;
    recipe->via_count = 0;
    if (recipe->fill) {
        size_t bytes = dtype_element_bytes(target->dtype);
        recipe->fill = bytes ? copy_array(&plan->arena, recipe->fill, 1, bytes) : NULL;
        if (!recipe->fill)
            return bytes ? error_set_memory(err)
                         : error_set(err, RESHARD_ERR_USAGE, "'%.*s': %s is filled with zeros only", STR_ARG(target->key),
                                     dtype_info(target->dtype)->name);
    }
    if (recipe->is_whole) {
        recipe->rank = target->rank;
        recipe->target_start = origin;
        recipe->extent = shape;
        return RESHARD_OK;
    }
    if (recipe->rank != target->rank || !box_check(recipe->rank, recipe->target_start, recipe->extent, shape, &bad_axis)) {
        error_set(err, RESHARD_ERR_USAGE, "'%.*s': a filled box %s leaves the target on axis %d", STR_ARG(target->key),
                  box_text(recipe->rank, recipe->target_start, recipe->extent, box), bad_axis);
        return RESHARD_ERR_USAGE;
    }
    recipe->target_start = copy_array(&plan->arena, recipe->target_start, recipe->rank, sizeof(int64_t));
    recipe->extent = copy_array(&plan->arena, recipe->extent, recipe->rank, sizeof(int64_t));
    return recipe->target_start && recipe->extent ? RESHARD_OK : error_set_memory(err);
}

static reshard_status recipe_take(struct plan *plan, struct recipe *recipe, reshard_error *err)
{
    if (recipe->source_tensor == RECIPE_FILL && recipe->target_tensor < plan->target->tensor_count)
        return recipe_fill(plan, recipe, err);
    if (recipe->source_tensor >= plan->source->tensor_count || recipe->target_tensor >= plan->target->tensor_count)
        return error_set(err, RESHARD_ERR_USAGE, "a recipe names tensors %" PRIu32 " and %" PRIu32 ", there are %" PRIu32 " and %" PRIu32,
                         recipe->source_tensor, recipe->target_tensor, plan->source->tensor_count, plan->target->tensor_count);
    const struct catalog_tensor *source = &plan->source->tensors[recipe->source_tensor],
                                *target = &plan->target->tensors[recipe->target_tensor];
    reshard_status status = recipe_casts(plan, recipe, err);
    if (status == RESHARD_ERR_UNSUPPORTED)
        recipe_error(err, source, target);
    if (status)
        return status;
    return recipe->is_whole ? recipe_whole(plan, recipe, err) : recipe_part(plan, recipe, err);
}

/* Recipes in [begin, end) of order write one target tensor: their boxes must not overlap. */
static reshard_status group_check(const struct plan *plan, struct box_joiner *joiner, const struct sort_entry *order, uint32_t count,
                                  struct join_box *pieces, reshard_error *err)
{
    bool overlaps = false;
    uint32_t pair[2], used = 0;
    const struct catalog_tensor *target = &plan->target->tensors[order[0].key];
    for (uint32_t i = 0; i < count; i++) {
        const struct recipe *recipe = &plan->recipes[order[i].value];
        if (!box_is_empty(recipe->rank, recipe->extent))
            pieces[used++] = (struct join_box){ recipe->target_start, recipe->extent, order[i].value };
    }
    reshard_status status = boxes_overlap(joiner, target->rank, pieces, used, &overlaps, pair, err);
    if (status || !overlaps)
        return status;
    char boxes[2][BOX_TEXT_MAX];
    error_set(err, RESHARD_ERR_USAGE, "target tensor '%.*s': parts %s and %s are both written", STR_ARG(target->key),
              box_text(target->rank, pieces[pair[0]].start, pieces[pair[0]].extent, boxes[0]),
              box_text(target->rank, pieces[pair[1]].start, pieces[pair[1]].extent, boxes[1]));
    error_object(err, "%.*s", STR_ARG(target->key));
    return RESHARD_ERR_USAGE;
}

static reshard_status groups_check(const struct plan *plan, reshard_error *err)
{
    struct box_joiner joiner = { .misses_max = plan->source->limits.box_checks };
    reshard_status status = RESHARD_OK;
    uint32_t count = plan->recipe_count;
    struct sort_entry *order = array_new((size_t)count * 2, sizeof(*order));
    struct join_box *pieces = array_new(count, sizeof(*pieces));
    if (!order || !pieces) {
        status = error_set_memory(err);
        goto out;
    }
    for (uint32_t i = 0; i < count; i++)
        order[i] = (struct sort_entry){ plan->recipes[i].target_tensor, i };
    entries_sort(order, order + count, count);
    for (uint32_t begin = 0, end; begin < count && !status; begin = end) {
        for (end = begin + 1; end < count && order[end].key == order[begin].key; end++)
            continue;
        if (end - begin > 1)
            status = group_check(plan, &joiner, order + begin, end - begin, pieces, err);
    }

out:
    free(order);
    free(pieces);
    box_joiner_release(&joiner);
    return status;
}

reshard_status recipes_take(struct plan_build *build, const struct recipe *recipes, uint32_t count, reshard_error *err)
{
    struct plan *plan = build->plan;
    bool is_ascending = true;
    plan->recipes = array_new(count, sizeof(*plan->recipes));
    if (!plan->recipes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        plan->recipes[i] = recipes[i];
        reshard_status status = recipe_take(plan, &plan->recipes[i], err);
        if (status)
            return status;
        is_ascending &= i == 0 || recipes[i].target_tensor > recipes[i - 1].target_tensor;
    }
    plan->recipe_count = count;
    return is_ascending ? RESHARD_OK : groups_check(plan, err);
}
