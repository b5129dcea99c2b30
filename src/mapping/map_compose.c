/* SPDX-License-Identifier: Apache-2.0 */
/* The proof behind an inverse: both mappings, one after the other. */
#include "mapping/map_invert.h"
#include "base/array.h"
#include "mapping/map_report.h"

#include <stdlib.h>

struct composition {
    const struct map_result *forward, *back;
    const struct map_space *source;
    uint32_t *first;    /* forward copies by target tensor */
    uint64_t checks, checks_max;
};

static const int64_t zeros[RANK_MAX];

static int axis_of(const struct map_piece *piece, int axis)
{
    return piece->axes ? piece->axes[axis] : axis;
}

/* A whole copy has no piece: its box is the whole tensor. */
static struct map_piece box_of(const struct map_copy *copy, const struct map_tensor *target)
{
    if (copy->piece)
        return *copy->piece;
    return (struct map_piece){ .source_rank = target->rank, .source_start = zeros, .start = zeros, .extent = target->shape };
}

/* Casts towards the target may not round; on the way back only the last one may, since it ends where the values came from. */
static bool casts_come_back(const struct map_cast *forward, const struct map_cast *back, enum dtype source, enum dtype between)
{
    for (const struct map_cast *step = forward; step; step = step->before) {
        if (!map_cast_is_exact(step->before ? step->before->dtype : source, step->dtype))
            return false;
    }
    for (const struct map_cast *step = back ? back->before : NULL; step; step = step->before) {
        if (!map_cast_is_exact(step->before ? step->before->dtype : between, step->dtype))
            return false;
    }
    return true;
}

/* Where positions of an axis of the source are, in the middle: at start + (x - low) for the x of a middle axis, or at start alone. */
struct middle_axis {
    int axis; /* -1: at start alone */
    int64_t start;
};

static struct middle_axis forward_axis(const struct map_piece *to, int middle_rank, int axis, const int64_t *low)
{
    for (int m = 0; m < middle_rank; m++) {
        if (axis_of(to, m) == axis)
            return (struct middle_axis){ m, to->source_start[axis] + low[m] - to->start[m] };
    }
    return (struct middle_axis){ -1, to->source_start[axis] };
}

static struct middle_axis back_axis(const struct map_piece *from, int axis, const int64_t *low)
{
    int m = axis_of(from, axis);
    if (m == MAP_AXIS_NEW)
        return (struct middle_axis){ -1, from->start[axis] };
    return (struct middle_axis){ m, from->start[axis] + low[m] - from->source_start[m] };
}

/* The part of the middle that both copies touch: its first index and its extents; 0 elements: none. */
static int64_t common_box(const struct map_piece *to, const struct map_piece *from, int source_rank, int middle_rank, int64_t *low,
                          int64_t *extent)
{
    int64_t volume = 1, read[RANK_MAX];
    map_piece_source_extent(from, source_rank, read);
    for (int m = 0; m < middle_rank; m++) {
        int64_t a = from->source_start[m], b = a + read[m], c = to->start[m], d = c + to->extent[m];
        low[m] = a > c ? a : c;
        extent[m] = (b < d ? b : d) - low[m];
        if (extent[m] <= 0)
            return 0;
        volume *= extent[m];
    }
    return volume;
}

/* Elements of the tensor that come from themselves through this pair of copies; 0 where they come from elsewhere. */
static int64_t returned_elements(const struct composition *composition, const struct map_copy *back, const struct map_copy *forward,
                                 uint32_t tensor)
{
    const struct map_tensor *source = &composition->source->tensors[tensor],
                            *middle = &composition->forward->target->tensors[forward->target_tensor];
    struct map_piece to = box_of(forward, middle), from = box_of(back, source);
    int64_t low[RANK_MAX], extent[RANK_MAX];
    if (forward->source_tensor != tensor || !casts_come_back(forward->casts, back->casts, source->dtype, middle->dtype))
        return 0;
    int64_t volume = common_box(&to, &from, source->rank, middle->rank, low, extent);
    for (int i = 0; i < source->rank && volume; i++) {
        struct middle_axis origin = forward_axis(&to, middle->rank, i, low), arrival = back_axis(&from, i, low);
        if (origin.start != arrival.start)
            return 0;
        if (origin.axis != arrival.axis &&
            ((origin.axis >= 0 && extent[origin.axis] > 1) || (arrival.axis >= 0 && extent[arrival.axis] > 1)))
            return 0;
    }
    return volume;
}

static bool comes_back(struct composition *composition, uint32_t tensor, uint32_t *next)
{
    const struct map_result *back = composition->back, *forward = composition->forward;
    int64_t returned = 0, wanted = 0;
    shape_volume(composition->source->tensors[tensor].rank, composition->source->tensors[tensor].shape, &wanted);
    for (; *next < back->copy_count && back->copies[*next].target_tensor == tensor; (*next)++) {
        const struct map_copy *copy = &back->copies[*next];
        for (uint32_t i = composition->first[copy->source_tensor]; i < forward->copy_count; i++) {
            if (forward->copies[i].target_tensor != copy->source_tensor || ++composition->checks > composition->checks_max)
                break;
            returned += returned_elements(composition, copy, &forward->copies[i], tensor);
        }
    }
    return returned == wanted || !map_state_is_shaped[composition->source->tensors[tensor].state];
}

reshard_status map_compose_is_identity(const struct map_result *forward, const struct map_result *back, const struct map_space *source,
                                       const struct limits *limits, bool *is_identity, uint32_t *bad, reshard_error *err)
{
    uint32_t middle = map_space_tensor_count(forward->target), next = 0;
    struct composition composition = { forward, back, source, array_zeroed(middle, sizeof(uint32_t)), 0, limits->box_checks };
    if (!composition.first)
        return error_set_memory(err);
    for (uint32_t i = 0; i < middle; i++)
        composition.first[i] = forward->copy_count;
    for (uint32_t i = forward->copy_count; i-- > 0;)
        composition.first[forward->copies[i].target_tensor] = i;
    *is_identity = true;
    for (uint32_t i = 0; i < map_space_tensor_count(source) && *is_identity; i++) {
        *is_identity = comes_back(&composition, i, &next);
        *bad = i;
    }
    free(composition.first);
    if (composition.checks > composition.checks_max)
        return error_set_limit(err, "box_checks", composition.checks, composition.checks_max);
    return RESHARD_OK;
}
