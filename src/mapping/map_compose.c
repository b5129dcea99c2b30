/* SPDX-License-Identifier: Apache-2.0 */
/* The proof behind an inverse: both mappings, one after the other. */
#include "mapping/map_invert.h"
#include "mapping/map_report.h"

#include <stdlib.h>

struct composition {
    const struct map_result *forward, *back;
    const struct map_space *source;
    uint32_t *first;    /* forward copies by target tensor */
    uint64_t checks, checks_max;
};

static const int64_t zeros[RANK_MAX];

static int axis_of(const struct map_copy *copy, int axis)
{
    return copy->piece && copy->piece->axes ? copy->piece->axes[axis] : axis;
}

/* A whole copy has no piece: its box is the whole tensor. */
static struct map_piece box_of(const struct map_copy *copy, const struct map_tensor *target)
{
    if (copy->piece)
        return *copy->piece;
    return (struct map_piece){ .source_start = zeros, .start = zeros, .extent = target->shape };
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

/* Elements of the tensor that come from themselves through this pair of copies; 0 where they come from elsewhere. */
static int64_t returned_elements(const struct composition *composition, const struct map_copy *back, const struct map_copy *forward, uint32_t tensor)
{
    const struct map_tensor *source = &composition->source->tensors[tensor], *middle = &composition->forward->target->tensors[forward->target_tensor];
    struct map_piece to = box_of(forward, middle), from = box_of(back, source);
    int64_t volume = 1;
    if (forward->source_tensor != tensor || source->rank != middle->rank || !casts_come_back(forward->casts, back->casts, source->dtype, middle->dtype))
        return 0;
    for (int i = 0; i < source->rank; i++) {
        int axis = axis_of(back, i); /* axis i of the source is this axis of the middle, which is again this axis of the source: */
        if (axis_of(forward, axis) != i)
            return 0;
        int64_t a = from.source_start[axis], b = a + from.extent[i], c = to.start[axis], d = c + to.extent[axis];
        int64_t low = a > c ? a : c, high = b < d ? b : d;
        if (low >= high || from.start[i] + (low - a) != to.source_start[i] + (low - c))
            return 0;
        volume *= high - low;
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

reshard_status map_compose_is_identity(const struct map_result *forward, const struct map_result *back, const struct map_space *source, const struct limits *limits,
                                       bool *is_identity, uint32_t *bad, reshard_error *err)
{
    uint32_t middle = map_space_tensor_count(forward->target), next = 0;
    struct composition composition = { forward, back, source, calloc((size_t)middle + 1, sizeof(uint32_t)), 0, limits->box_checks };
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
