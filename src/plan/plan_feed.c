/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_feed.h"

#include "base/array.h"

#include <stdlib.h>

/* ---- the steps of a plan ---- */

static uint32_t feed_group(const struct plan *plan, const struct plan_step *step)
{
    return step->source_chunk == CATALOG_NONE ? plan->source->tensor_count : plan->source->chunks[step->source_chunk].tensor;
}

reshard_status plan_feeds_new(const struct plan *plan, struct plan_feeds *out, reshard_error *err)
{
    size_t groups = (size_t)plan->source->tensor_count + 1;
    *out = (struct plan_feeds){ .plan = plan,
                                .steps = array_zeroed(plan->step_count, sizeof(*out->steps)),
                                .first = array_zeroed(groups + 2, sizeof(*out->first)) };
    if (!out->steps || !out->first) {
        plan_feeds_release(out);
        return error_set_memory(err);
    }
    /* Counted two places on, so that filling in leaves each group's first in its place. */
    for (uint32_t i = 0; i < plan->step_count; i++)
        out->first[feed_group(plan, &plan->steps[i]) + 2]++;
    for (size_t i = 2; i < groups + 2; i++)
        out->first[i] += out->first[i - 1];
    for (uint32_t i = 0; i < plan->step_count; i++)
        out->steps[out->first[feed_group(plan, &plan->steps[i]) + 1]++] = i;
    return RESHARD_OK;
}

void plan_feeds_release(struct plan_feeds *feeds)
{
    free(feeds->steps);
    free(feeds->first);
    *feeds = (struct plan_feeds){ 0 };
}

/* ---- what a piece has of them ---- */

struct feeding_walk {
    const struct plan_feeds *feeds;
    const struct catalog *piece;
    uint32_t first, end;        /* among the feeds' steps */
    const int64_t *chunk_start; /* of the piece */
    int rank;                   /* of its tensor */
    struct plan_feed *feed;
    reshard_status status;
    reshard_error *err;
};

/* A box of the source in a step's target coordinates, cut to the step; false: they do not meet. */
static bool step_cut(const struct plan *plan, const struct plan_step *step, const int64_t *start, const int64_t *extent, int64_t *out_start,
                     int64_t *out_extent)
{
    const struct recipe *recipe = &plan->recipes[step->recipe];
    int source_rank = plan->source->tensors[recipe->source_tensor].rank;
    const int64_t *step_start = plan->vectors + step->start, *step_extent = plan->vectors + step->extent;
    int64_t box_start[RANK_MAX], box_extent[RANK_MAX], left_extent[RANK_MAX], left_start[RANK_MAX], source_extent[RANK_MAX];
    recipe_source_extent(recipe, source_rank, source_extent);
    if (!box_intersect(source_rank, start, extent, recipe->source_start, source_extent, left_start, left_extent))
        return false;
    for (int axis = 0; axis < recipe->rank; axis++) {
        int from = recipe_source_axis(recipe, axis);
        box_start[axis] =
            from < 0 ? recipe->target_start[axis] : left_start[from] - recipe->source_start[from] + recipe->target_start[axis];
        box_extent[axis] = from < 0 ? 1 : left_extent[from];
    }
    return box_intersect(recipe->rank, box_start, box_extent, step_start, step_extent, out_start, out_extent);
}

/* Room for one more chunk; a target has no more objects than chunks. */
static bool feed_room(struct plan_feed *feed)
{
    uint32_t count = feed->target->chunk_count, capacity = feed->capacity ? feed->capacity * 2 : 8;
    if (count < feed->capacity)
        return true;
    struct recipe *recipes = reallocarray(feed->recipes, capacity, sizeof(*recipes));
    feed->recipes = recipes ? recipes : feed->recipes;
    uint32_t *objects = reallocarray(feed->objects, capacity, sizeof(*objects));
    feed->objects = objects ? objects : feed->objects;
    uint32_t *chunks = reallocarray(feed->chunks, capacity, sizeof(*chunks));
    feed->chunks = chunks ? chunks : feed->chunks;
    feed->capacity = recipes && objects && chunks ? capacity : feed->capacity;
    return count < feed->capacity;
}

/* Where the elements of a part of a step go: a tensor of its own, in one chunk over the bytes of the target's. */
static reshard_status feed_add_chunk(struct plan_feed *feed, const struct catalog *whole, uint32_t whole_chunk, const int64_t *extent,
                                     const struct plan_copy *copy, uint32_t *tensor, reshard_error *err)
{
    const struct catalog_chunk *like = &whole->chunks[whole_chunk];
    const struct catalog_tensor *named = &whole->tensors[like->tensor];
    const struct catalog_object *file = &whole->objects[like->object];
    int64_t strides[RANK_MAX], end = 0, element = dtype_element_bytes(named->dtype);
    struct catalog *target = feed->target;
    struct catalog_chunk *chunk;
    uint64_t bytes = 0;
    uint32_t object;
    reshard_status status = catalog_add_tensor(target, STR(""), named->dtype, named->rank, extent, tensor, err);
    if (!status)
        status = catalog_add_object(target, file->name, file->bytes, &object, err);
    if (status)
        return status;
    feed->objects[object] = like->object;
    feed->chunks[*tensor] = whole_chunk;
    target->tensors[*tensor].key = named->key;
    target->tensors[*tensor].flags = TENSOR_HIDDEN;
    for (int axis = 0; element && axis < named->rank; axis++)
        strides[axis] = copy->spec.target_stride[axis] / element;
    bool is_strided = element && !strides_are_row_major(named->rank, extent, strides);
    bool is_good = is_strided ? strides_span(named->rank, extent, strides, &end) : shape_volume(named->rank, extent, &end);
    if (!is_good || !dtype_bytes(named->dtype, (uint64_t)end, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a piece is no whole number of bytes", STR_ARG(named->key));
    status = catalog_add_chunk(target, *tensor, NULL, NULL, object, copy->target_offset, bytes, &chunk, err);
    if (status)
        return status;
    chunk->flags |= like->flags & CHUNK_WANT_CRC;
    return is_strided ? catalog_chunk_set_strides(target, chunk, named->rank, strides, err) : RESHARD_OK;
}

/* Adds a part of a step, a box in target coordinates. */
static reshard_status feed_add(struct plan_feed *feed, const struct plan *whole, const struct plan_step *step, const int64_t *start,
                               const int64_t *extent, reshard_error *err)
{
    static const int64_t origin[RANK_MAX];
    const struct recipe *recipe = &whole->recipes[step->recipe];
    bool is_fill = step->source_chunk == CATALOG_NONE;
    int source_rank = is_fill ? 0 : whole->source->tensors[recipe->source_tensor].rank;
    int64_t *source_start = arena_array(&feed->arena, source_rank, sizeof(*source_start));
    int64_t *kept = arena_array(&feed->arena, recipe->rank, sizeof(*kept));
    struct plan_copy copy;
    uint32_t tensor;
    if (!source_start || !kept || !feed_room(feed))
        return error_set_memory(err);
    for (int axis = 0; axis < source_rank; axis++)
        source_start[axis] = recipe->source_start[axis];
    for (int axis = 0; axis < recipe->rank; axis++) {
        int from = recipe_source_axis(recipe, axis);
        kept[axis] = extent[axis];
        if (!is_fill && from >= 0)
            source_start[from] += start[axis] - recipe->target_start[axis];
    }
    reshard_status status = plan_part_copy(whole, step, start, extent, &copy, err);
    if (!status)
        status = feed_add_chunk(feed, whole->target, step->target_chunk, extent, &copy, &tensor, err);
    if (status)
        return status;
    feed->recipes[tensor] = *recipe;
    feed->recipes[tensor].is_whole = false;
    feed->recipes[tensor].source_tensor = is_fill ? RECIPE_FILL : 0;
    feed->recipes[tensor].target_tensor = tensor;
    feed->recipes[tensor].source_start = source_start;
    feed->recipes[tensor].target_start = origin;
    feed->recipes[tensor].extent = kept;
    return RESHARD_OK;
}

/* One of the boxes that the piece is made of, in the coordinates of its chunk. */
static bool feed_box(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct feeding_walk *walk = context;
    const struct plan *plan = walk->feeds->plan;
    int64_t moved[RANK_MAX], cut_start[RANK_MAX], cut_extent[RANK_MAX];
    (void)flat_index;
    for (int axis = 0; axis < walk->rank; axis++)
        moved[axis] = walk->chunk_start[axis] + start[axis];
    for (uint32_t i = walk->first; i < walk->end && !walk->status; i++) {
        const struct plan_step *step = &plan->steps[walk->feeds->steps[i]];
        if (step_cut(plan, step, moved, extent, cut_start, cut_extent))
            walk->status = feed_add(walk->feed, plan, step, cut_start, cut_extent, walk->err);
    }
    return !walk->status;
}

static reshard_status piece_walk(struct feeding_walk *walk)
{
    static const int64_t origin[RANK_MAX];
    const struct catalog_chunk *chunk = &walk->piece->chunks[0];
    const struct chunk_layout *layout = catalog_layout_of(walk->piece, chunk);
    const int64_t *extent = catalog_vector_at(walk->piece, chunk->extent);
    walk->rank = walk->piece->tensors[0].rank;
    walk->chunk_start = catalog_vector_at(walk->piece, chunk->start);
    if (box_is_empty(walk->rank, extent))
        return RESHARD_OK;
    if (layout && layout->flat_count >= 0)
        flat_run_boxes(walk->rank, extent, layout->flat_begin, layout->flat_count, feed_box, walk);
    else
        feed_box(origin, extent, 0, walk);
    return walk->status;
}

static reshard_status feed_begin(const struct plan *whole, struct plan_feed *out, reshard_error *err)
{
    *out = (struct plan_feed){ .target = catalog_new(whole->target->format) };
    if (!out->target)
        return error_set_memory(err);
    out->target->limits = whole->target->limits;
    return RESHARD_OK;
}

static reshard_status feed_end(struct plan_feed *feed, const struct catalog *source, reshard_error *err)
{
    uint32_t count = feed->target->chunk_count;
    if (!count)
        return RESHARD_OK;
    reshard_status status = catalog_seal(feed->target, true, err);
    return status ? status : plan_new(source, feed->target, feed->recipes, count, &feed->plan, err);
}

reshard_status plan_feed_new(const struct plan_feeds *feeds, uint32_t tensor, const struct catalog *piece, struct plan_feed *out,
                             reshard_error *err)
{
    struct feeding_walk walk = {
        .feeds = feeds, .piece = piece, .first = feeds->first[tensor], .end = feeds->first[tensor + 1], .feed = out, .err = err
    };
    reshard_status status = feed_begin(feeds->plan, out, err);
    if (!status)
        status = piece_walk(&walk);
    if (!status)
        status = feed_end(out, piece, err);
    if (status)
        plan_feed_release(out);
    return status;
}

reshard_status plan_feed_fills(const struct plan_feeds *feeds, struct plan_feed *out, reshard_error *err)
{
    const struct plan *plan = feeds->plan;
    uint32_t group = plan->source->tensor_count;
    reshard_status status = feed_begin(plan, out, err);
    for (uint32_t i = feeds->first[group]; i < feeds->first[group + 1] && !status; i++) {
        const struct plan_step *step = &plan->steps[feeds->steps[i]];
        status = feed_add(out, plan, step, plan->vectors + step->start, plan->vectors + step->extent, err);
    }
    if (!status)
        status = feed_end(out, plan->source, err);
    if (status)
        plan_feed_release(out);
    return status;
}

void plan_feed_release(struct plan_feed *feed)
{
    plan_free(feed->plan);
    catalog_free(feed->target);
    free(feed->recipes);
    free(feed->objects);
    free(feed->chunks);
    arena_release(&feed->arena);
    *feed = (struct plan_feed){ 0 };
}
