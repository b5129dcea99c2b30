/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/box.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool shape_volume(int rank, const int64_t *shape, int64_t *out)
{
    int64_t volume = 1;
    bool is_empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 || (shape[i] > 0 && !checked_mul_i64(volume, shape[i], &volume)))
            return false;
        is_empty |= shape[i] == 0;
    }
    *out = is_empty ? 0 : volume;
    return true;
}

bool shape_equal(int a_rank, const int64_t *a, int b_rank, const int64_t *b)
{
    return a_rank == b_rank && (a_rank == 0 || memcmp(a, b, (size_t)a_rank * sizeof(*a)) == 0);
}

bool box_check(int rank, const int64_t *start, const int64_t *extent, const int64_t *shape, int *bad_axis)
{
    for (int i = 0; i < rank; i++) {
        if (start[i] >= 0 && extent[i] >= 0 && start[i] <= shape[i] && extent[i] <= shape[i] - start[i])
            continue;
        if (bad_axis)
            *bad_axis = i;
        return false;
    }
    return true;
}

bool box_is_empty(int rank, const int64_t *extent)
{
    for (int i = 0; i < rank; i++)
        if (extent[i] == 0)
            return true;
    return false;
}

bool box_intersect(int rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start, const int64_t *b_extent,
                   int64_t *out_start, int64_t *out_extent)
{
    for (int i = 0; i < rank; i++) {
        int64_t a_end = a_start[i] + a_extent[i], b_end = b_start[i] + b_extent[i];
        int64_t start = a_start[i] > b_start[i] ? a_start[i] : b_start[i], end = a_end < b_end ? a_end : b_end;
        if (start >= end)
            return false;
        out_start[i] = start;
        out_extent[i] = end - start;
    }
    return true;
}

bool box_equal(int rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start, const int64_t *b_extent)
{
    size_t bytes = (size_t)rank * sizeof(int64_t);
    return rank == 0 || (memcmp(a_start, b_start, bytes) == 0 && memcmp(a_extent, b_extent, bytes) == 0);
}

int64_t box_volume(int rank, const int64_t *extent)
{
    int64_t volume = 1;
    if (box_is_empty(rank, extent))
        return 0;
    for (int i = 0; i < rank; i++)
        volume *= extent[i];
    return volume;
}

/* A flat run that is being cut: pos moves from begin to end. */
struct run {
    int rank;
    const int64_t *shape;
    int64_t strides[RANK_MAX];
    int64_t begin, pos;
    bool (*emit)(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context);
    void *context;
};

/* Emits `units` indices of axis from pos on, whole in all the axes after it. pos is a multiple of the axis' stride. */
static bool run_emit(struct run *run, int axis, int64_t units)
{
    int64_t start[RANK_MAX + 1] = { 0 }, extent[RANK_MAX + 1] = { 0 }, rest = run->pos;
    if (units == 0)
        return true;
    for (int i = 0; i <= axis; i++) {
        start[i] = rest / run->strides[i];
        rest %= run->strides[i];
        extent[i] = i < axis ? 1 : units;
    }
    for (int i = axis + 1; i < run->rank; i++)
        extent[i] = run->shape[i];
    int64_t flat_index = run->pos - run->begin;
    run->pos += units * run->strides[axis];
    return run->emit(start, extent, flat_index, run->context);
}

/*
 * Going out from the innermost axis, each axis is filled up to where the next outer one is aligned; from the first axis
 * that the run does not fill, it goes back in with what is left. So an axis gives two boxes, the turning one a single box.
 */
bool flat_run_boxes(int rank, const int64_t *shape, int64_t begin, int64_t count,
                    bool (*emit)(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context), void *context)
{
    if (count <= 0)
        return true;
    if (rank == 0)
        return emit(NULL, NULL, 0, context);
    struct run run = { .rank = rank, .shape = shape, .begin = begin, .pos = begin, .emit = emit, .context = context };
    strides_row_major(rank, shape, run.strides);

    int64_t end = begin + count;
    int axis = rank - 1;
    for (; axis > 0; axis--) {
        int64_t outer = run.strides[axis - 1], past = run.pos % outer, missing = past ? outer - past : 0;
        if (missing > end - run.pos)
            break;
        if (!run_emit(&run, axis, missing / run.strides[axis]))
            return false;
    }
    for (; axis < rank; axis++)
        if (!run_emit(&run, axis, (end - run.pos) / run.strides[axis]))
            return false;
    return true;
}

int64_t shape_ravel(int rank, const int64_t *shape, const int64_t *index)
{
    int64_t flat = 0;
    for (int i = 0; i < rank; i++)
        flat = flat * shape[i] + index[i];
    return flat;
}

void shape_unravel(int rank, const int64_t *shape, int64_t flat, int64_t *index)
{
    for (int i = rank - 1; i >= 0; i--) {
        index[i] = flat % shape[i];
        flat /= shape[i];
    }
}

/* Up to the first axis where the ends differ there is one index; from the next one on the run goes over the edge, and takes all. */
void flat_run_hull(int rank, const int64_t *shape, int64_t begin, int64_t count, int64_t *start, int64_t *extent)
{
    int64_t last[RANK_MAX];
    bool differs = false;
    shape_unravel(rank, shape, begin, start);
    shape_unravel(rank, shape, begin + count - 1, last);
    for (int i = 0; i < rank; i++) {
        if (differs)
            start[i] = 0;
        extent[i] = differs ? shape[i] : last[i] - start[i] + 1;
        differs |= extent[i] > 1;
    }
}

bool box_is_flat_run(int rank, const int64_t *shape, const int64_t *extent)
{
    int axis = 0;
    while (axis < rank && extent[axis] == 1)
        axis++;
    for (axis++; axis < rank; axis++) {
        if (extent[axis] != shape[axis])
            return false;
    }
    return true;
}

void strides_row_major(int rank, const int64_t *shape, int64_t *strides)
{
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
}

void strides_column_major(int rank, const int64_t *shape, int64_t *strides)
{
    int64_t stride = 1;
    for (int i = 0; i < rank; i++) {
        strides[i] = stride;
        stride *= shape[i] > 0 ? shape[i] : 1;
    }
}

bool strides_are_row_major(int rank, const int64_t *shape, const int64_t *strides)
{
    int64_t stride = 1;
    if (box_is_empty(rank, shape))
        return true;
    for (int i = rank - 1; i >= 0; i--) {
        if (shape[i] == 1)
            continue;
        if (strides[i] != stride)
            return false;
        stride *= shape[i];
    }
    return true;
}

void strides_order(int rank, const int64_t *strides, int *axes)
{
    for (int axis = 0; axis < rank; axis++) {
        int at = axis;
        for (; at > 0 && strides[axes[at - 1]] < strides[axis]; at--)
            axes[at] = axes[at - 1];
        axes[at] = axis;
    }
}

bool strides_are_apart(int rank, const int64_t *shape, const int64_t *strides)
{
    int axes[RANK_MAX];
    int64_t reach = 0, end = 1; /* of the denser axes: the last element, and one past it */
    if (box_is_empty(rank, shape))
        return true;
    strides_order(rank, strides, axes);
    for (int i = rank - 1; i >= 0; i--) {
        int axis = axes[i];
        if (shape[axis] == 1)
            continue;
        if (strides[axis] < end || !checked_mul_i64(shape[axis] - 1, strides[axis], &reach) || !checked_add_i64(end, reach, &end))
            return false;
    }
    return true;
}

bool strides_span(int rank, const int64_t *shape, const int64_t *strides, int64_t *out_end)
{
    int64_t end = 1;
    if (box_is_empty(rank, shape)) {
        *out_end = 0;
        return true;
    }
    for (int i = 0; i < rank; i++) {
        int64_t reach;
        if (strides[i] < 0 || !checked_mul_i64(shape[i] - 1, strides[i], &reach) || !checked_add_i64(end, reach, &end))
            return false;
    }
    *out_end = end;
    return true;
}

const char *shape_text(int rank, const int64_t *shape, const char *between, char out[SHAPE_TEXT_MAX])
{
    int used = snprintf(out, SHAPE_TEXT_MAX, "[");
    for (int axis = 0; axis < rank && used < SHAPE_TEXT_MAX - 32; axis++)
        used += snprintf(out + used, SHAPE_TEXT_MAX - (size_t)used, "%s%" PRId64, axis ? between : "", shape[axis]);
    snprintf(out + used, SHAPE_TEXT_MAX - (size_t)used, "]");
    return out;
}
