/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_steps.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"

static bool box_append(struct box_list *list, const int64_t *start, const int64_t *extent, uint32_t chunk)
{
    if (!ARRAY_ROOM(list->boxes, list->count, list->capacity))
        return false;
    list->boxes[list->count++] = (struct join_box){ start, extent, chunk };
    return true;
}

/* What the boxes of one tensor pass through. */
struct box_filter {
    struct box_list *list;
    const struct recipe *recipe;
    bool is_source;
    int rank;                  /* of this side */
    const int64_t *clip_start; /* of the recipe on this side, in this side's axes */
    int64_t clip_extent[RANK_MAX];
    const int64_t *chunk_start;
    uint32_t chunk;
};

/* Cuts a box to the recipe's and moves it to target coordinates. */
static bool box_take(struct box_filter *filter, const int64_t *start, const int64_t *extent)
{
    const struct recipe *recipe = filter->recipe;
    int rank = recipe->rank;
    int64_t cut_start[RANK_MAX], cut_extent[RANK_MAX];
    if (!box_intersect(filter->rank, start, extent, filter->clip_start, filter->clip_extent, cut_start, cut_extent))
        return true;
    int64_t *kept = arena_array(&filter->list->arena, 2 * (size_t)rank, sizeof(*kept));
    if (!kept)
        return false;
    for (int axis = 0; axis < rank; axis++) {
        int from = filter->is_source ? recipe_source_axis(recipe, axis) : axis;
        kept[axis] = from < 0 ? recipe->target_start[axis] : cut_start[from];
        if (filter->is_source && from >= 0)
            kept[axis] += recipe->target_start[axis] - recipe->source_start[from];
        kept[rank + axis] = from < 0 ? 1 : cut_extent[from];
    }
    return box_append(filter->list, kept, kept + rank, filter->chunk);
}

static bool run_box_take(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    struct box_filter *filter = context;
    int64_t moved[RANK_MAX];
    (void)flat_index;
    for (int axis = 0; axis < filter->rank; axis++)
        moved[axis] = filter->chunk_start[axis] + start[axis];
    return box_take(filter, moved, extent);
}

static reshard_status chunk_boxes(struct box_filter *filter, const struct catalog *catalog, const struct catalog_tensor *tensor,
                                  uint32_t chunk_index, reshard_error *err)
{
    const struct catalog_chunk *chunk = &catalog->chunks[chunk_index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const int64_t *start = catalog_vector_at(catalog, chunk->start), *extent = catalog_vector_at(catalog, chunk->extent);
    bool is_done;
    filter->chunk = chunk_index;
    filter->chunk_start = start;
    if (box_is_empty(tensor->rank, extent))
        return RESHARD_OK;
    if (layout && layout->flat_count >= 0) {
        int64_t volume = box_volume(tensor->rank, extent);
        if (layout->flat_begin < 0 || layout->flat_begin > volume || layout->flat_count > volume - layout->flat_begin)
            return error_set(err, RESHARD_ERR_FORMAT,
                             "tensor '%.*s': flat run of %" PRId64 " elements from %" PRId64 " leaves its box of %" PRId64,
                             STR_ARG(tensor->key), layout->flat_count, layout->flat_begin, volume);
        is_done =
            layout->flat_count == 0 || flat_run_boxes(tensor->rank, extent, layout->flat_begin, layout->flat_count, run_box_take, filter);
    } else if (filter->recipe->is_whole) {
        is_done = box_append(filter->list, start, extent, chunk_index);
    } else {
        is_done = box_take(filter, start, extent);
    }
    return is_done ? RESHARD_OK : error_set_memory(err);
}

static void box_list_clear(struct box_list *list)
{
    list->count = 0;
    arena_release(&list->arena);
}

void box_list_release(struct box_list *list)
{
    box_list_clear(list);
    free(list->boxes);
    *list = (struct box_list){ 0 };
}

/* What is filled has a source of one box. */
static reshard_status fill_box(struct plan_build *build, const struct recipe *recipe, reshard_error *err)
{
    box_list_clear(&build->sources);
    if (box_is_empty(recipe->rank, recipe->extent) || box_append(&build->sources, recipe->target_start, recipe->extent, CATALOG_NONE))
        return RESHARD_OK;
    return error_set_memory(err);
}

reshard_status boxes_of_sources(struct plan_build *build, reshard_error *err)
{
    const struct catalog *catalog = build->plan->source;
    const struct recipe *recipe = &build->plan->recipes[build->recipe];
    if (recipe->source_tensor == RECIPE_FILL)
        return fill_box(build, recipe, err);
    const struct catalog_tensor *tensor = &catalog->tensors[recipe->source_tensor];
    struct box_filter filter = {
        .list = &build->sources, .recipe = recipe, .is_source = true, .rank = tensor->rank, .clip_start = recipe->source_start
    };
    reshard_status status = RESHARD_OK;

    recipe_source_extent(recipe, tensor->rank, filter.clip_extent);
    box_list_clear(filter.list);
    if (build->only_chunk != CATALOG_NONE)
        return chunk_boxes(&filter, catalog, tensor, build->only_chunk, err);
    for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count && !status; c++)
        if (!(catalog->chunks[c].flags & CHUNK_REPLICA))
            status = chunk_boxes(&filter, catalog, tensor, c, err);
    return status;
}

/* Whether each element of a strided chunk has a place of its own in the chunk's bytes. */
static bool target_strides_check(const struct catalog *catalog, const struct catalog_tensor *tensor, const struct catalog_chunk *chunk,
                                 const struct chunk_layout *layout)
{
    const int64_t *extent = catalog_vector_at(catalog, chunk->extent), *strides = catalog_vector_at(catalog, layout->strides);
    uint64_t bytes;
    int64_t end;
    return layout->flat_count < 0 && dtype_element_bytes(tensor->dtype) > 0 && strides_are_apart(tensor->rank, extent, strides) &&
           strides_span(tensor->rank, extent, strides, &end) && dtype_bytes(tensor->dtype, (uint64_t)end, &bytes) && bytes <= chunk->bytes;
}

/* Whether what the engine writes can be the chunk's bytes: plain elements in the machine's order, none of them twice. */
static reshard_status target_check(const struct catalog *catalog, const struct catalog_tensor *tensor, const struct catalog_chunk *chunk,
                                   reshard_error *err)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    bool is_plain = !(chunk->flags & (CHUNK_SWAP | CHUNK_CONJUGATE | CHUNK_NEGATE | CHUNK_UNRESOLVED));
    if (catalog_chunk_is_coded(catalog, chunk))
        is_plain = false;
    if (layout && layout->strides != CATALOG_NONE)
        is_plain &= target_strides_check(catalog, tensor, chunk, layout);
    if (is_plain)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_UNSUPPORTED,
                     "target tensor '%.*s': chunks are written little-endian and unencoded, with each element in its own place",
                     STR_ARG(tensor->key));
}

reshard_status boxes_of_targets(struct plan_build *build, reshard_error *err)
{
    const struct catalog *catalog = build->plan->target;
    const struct recipe *recipe = &build->plan->recipes[build->recipe];
    const struct catalog_tensor *tensor = &catalog->tensors[recipe->target_tensor];
    struct box_filter filter = { .list = &build->targets, .recipe = recipe, .rank = tensor->rank, .clip_start = recipe->target_start };

    for (int axis = 0; axis < recipe->rank; axis++)
        filter.clip_extent[axis] = recipe->extent[axis];
    box_list_clear(filter.list);
    for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; c++) {
        reshard_status status = target_check(catalog, tensor, &catalog->chunks[c], err);
        if (!status)
            status = chunk_boxes(&filter, catalog, tensor, c, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}
