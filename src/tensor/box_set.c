/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/box_set.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#define SLABS_MAX 256
#define SLAB_ELEMENTS ((int64_t)1 << 18) /* smaller ones are not worth their memory */

static const int64_t *box_at(const struct box_set *set, const struct box_slab *slab, size_t index)
{
    return slab->boxes + index * 2 * (size_t)set->rank;
}

/* What lies in a slab, cut to a box; false: nothing. */
static bool slab_cut(const struct box_set *set, size_t slab, const int64_t *start, const int64_t *extent, int64_t *out_start,
                     int64_t *out_extent)
{
    memcpy(out_start, start, (size_t)set->rank * sizeof(*start));
    memcpy(out_extent, extent, (size_t)set->rank * sizeof(*extent));
    if (set->rank == 0)
        return true;
    int64_t begin = (int64_t)slab * set->slab_extent, end = begin + set->slab_extent;
    int64_t box_end = start[set->axis] + extent[set->axis];
    out_start[set->axis] = start[set->axis] > begin ? start[set->axis] : begin;
    out_extent[set->axis] = (box_end < end ? box_end : end) - out_start[set->axis];
    return out_extent[set->axis] > 0;
}

/* The slabs that a box touches: [*first, *end). */
static void slabs_of(const struct box_set *set, const int64_t *start, const int64_t *extent, size_t *first, size_t *end)
{
    *first = 0;
    *end = set->slab_count;
    if (set->rank == 0 || set->slab_count == 0)
        return;
    *first = (size_t)(start[set->axis] / set->slab_extent);
    *end = (size_t)((start[set->axis] + extent[set->axis] - 1) / set->slab_extent) + 1;
}

/* ---- making ---- */

static int axis_longest(int rank, const int64_t *shape)
{
    int longest = 0;
    for (int axis = 1; axis < rank; axis++)
        longest = shape[axis] > shape[longest] ? axis : longest;
    return longest;
}

static void slabs_measure(struct box_set *set)
{
    int64_t start[RANK_MAX] = { 0 }, cut_start[RANK_MAX], cut_extent[RANK_MAX];
    for (size_t i = 0; i < set->slab_count; i++)
        if (slab_cut(set, i, start, set->shape, cut_start, cut_extent))
            set->slabs[i].missing = box_volume(set->rank, cut_extent);
}

bool box_set_init(struct box_set *set, int rank, const int64_t *shape)
{
    *set = (struct box_set){ .rank = rank, .axis = axis_longest(rank, shape), .missing = box_volume(rank, shape) };
    int64_t length = rank ? shape[set->axis] : 1, slabs = set->missing / SLAB_ELEMENTS + 1;
    slabs = slabs > SLABS_MAX ? SLABS_MAX : slabs;
    set->slab_extent = (length + slabs - 1) / slabs;
    set->slab_count = set->missing ? (size_t)((length + set->slab_extent - 1) / set->slab_extent) : 0;
    set->slabs = array_zeroed(set->slab_count, sizeof(*set->slabs));
    set->shape = array_zeroed(rank, sizeof(*set->shape));
    if (!set->slabs || !set->shape) {
        box_set_release(set);
        return false;
    }
    if (rank)
        memcpy(set->shape, shape, (size_t)rank * sizeof(*shape));
    slabs_measure(set);
    return true;
}

void box_set_release(struct box_set *set)
{
    for (size_t i = 0; set->slabs && i < set->slab_count; i++)
        free(set->slabs[i].boxes);
    free(set->slabs);
    free(set->shape);
    *set = (struct box_set){ 0 };
}

/* ---- looking ---- */

bool box_set_meets(const struct box_set *set, const int64_t *start, const int64_t *extent, int64_t *out_start, int64_t *out_extent)
{
    size_t first, end;
    if (box_is_empty(set->rank, extent))
        return false;
    slabs_of(set, start, extent, &first, &end);
    for (size_t i = first; i < end; i++) {
        for (size_t b = 0; b < set->slabs[i].count; b++) {
            const int64_t *box = box_at(set, &set->slabs[i], b);
            if (box_intersect(set->rank, start, extent, box, box + set->rank, out_start, out_extent))
                return true;
        }
    }
    return false;
}

/* ---- adding ---- */

/* Makes a the box of both if they continue each other on one axis and agree on all others. */
static bool boxes_join(int rank, int64_t *a, const int64_t *b)
{
    int apart = -1;
    for (int axis = 0; axis < rank; axis++) {
        if (a[axis] == b[axis] && a[rank + axis] == b[rank + axis])
            continue;
        if (apart >= 0)
            return false;
        apart = axis;
    }
    if (apart < 0)
        return false;
    bool is_before = a[apart] + a[rank + apart] == b[apart], is_behind = b[apart] + b[rank + apart] == a[apart];
    if (!is_before && !is_behind)
        return false;
    a[apart] = is_before ? a[apart] : b[apart];
    a[rank + apart] += b[rank + apart];
    return true;
}

/* Adds a box to a slab, joined with all that it continues. */
static bool slab_add(const struct box_set *set, struct box_slab *slab, int64_t *box)
{
    size_t size = 2 * (size_t)set->rank;
    for (size_t i = 0; i < slab->count;) {
        int64_t *other = slab->boxes + i * size;
        if (!boxes_join(set->rank, box, other)) {
            i++;
            continue;
        }
        slab->count--;
        memmove(other, slab->boxes + slab->count * size, size * sizeof(*other));
        i = 0;
    }
    if (slab->count == slab->capacity) {
        size_t capacity = slab->capacity ? slab->capacity * 2 : 4;
        int64_t *grown = reallocarray(slab->boxes, capacity, (size ? size : 1) * sizeof(*grown));
        if (!grown)
            return false;
        slab->boxes = grown;
        slab->capacity = capacity;
    }
    memcpy(slab->boxes + slab->count++ * size, box, size * sizeof(*box));
    return true;
}

bool box_set_add(struct box_set *set, const int64_t *start, const int64_t *extent)
{
    size_t first, end;
    if (box_is_empty(set->rank, extent))
        return true;
    slabs_of(set, start, extent, &first, &end);
    for (size_t i = first; i < end; i++) {
        int64_t box[2 * RANK_MAX];
        if (!slab_cut(set, i, start, extent, box, box + set->rank))
            continue;
        int64_t volume = box_volume(set->rank, box + set->rank);
        if (!slab_add(set, &set->slabs[i], box))
            return false;
        set->slabs[i].missing -= volume;
        set->missing -= volume;
    }
    return true;
}

/* ---- what is missing ---- */

/* The part of a box of which the slab's boxes from `from` on leave nothing out: cut around the first that meets it, and again. */
static bool slab_hole(const struct box_set *set, const struct box_slab *slab, size_t from, const int64_t *start, const int64_t *extent,
                      int64_t *out_start, int64_t *out_extent)
{
    int64_t met_start[RANK_MAX], met_extent[RANK_MAX], rest_start[RANK_MAX], rest_extent[RANK_MAX];
    size_t bytes = (size_t)set->rank * sizeof(*start);
    bool is_met = false;
    for (; from < slab->count && !is_met; from++) {
        const int64_t *box = box_at(set, slab, from);
        is_met = box_intersect(set->rank, start, extent, box, box + set->rank, met_start, met_extent);
    }
    memcpy(out_start, start, bytes);
    memcpy(out_extent, extent, bytes);
    if (!is_met)
        return true;
    memcpy(rest_start, start, bytes);
    memcpy(rest_extent, extent, bytes);
    for (int axis = 0; axis < set->rank; axis++) {
        int64_t begin = rest_start[axis], end = begin + rest_extent[axis], met_end = met_start[axis] + met_extent[axis];
        rest_extent[axis] = met_start[axis] - begin;
        if (rest_extent[axis] > 0 && slab_hole(set, slab, from, rest_start, rest_extent, out_start, out_extent))
            return true;
        rest_start[axis] = met_end;
        rest_extent[axis] = end - met_end;
        if (rest_extent[axis] > 0 && slab_hole(set, slab, from, rest_start, rest_extent, out_start, out_extent))
            return true;
        rest_start[axis] = met_start[axis];
        rest_extent[axis] = met_extent[axis];
    }
    return false;
}

bool box_set_hole(const struct box_set *set, int64_t *start, int64_t *extent)
{
    int64_t origin[RANK_MAX] = { 0 }, cut_start[RANK_MAX], cut_extent[RANK_MAX];
    size_t i = 0;
    if (!set->missing)
        return false;
    while (i < set->slab_count && !set->slabs[i].missing)
        i++;
    return i < set->slab_count && slab_cut(set, i, origin, set->shape, cut_start, cut_extent) &&
           slab_hole(set, &set->slabs[i], 0, cut_start, cut_extent, start, extent);
}
