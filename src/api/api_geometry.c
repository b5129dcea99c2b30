/* SPDX-License-Identifier: Apache-2.0 */
/* Indices, flat ranges and boxes: arguments are checked here, the arithmetic is that of src/tensor. */
#include "reshard/geometry.h"

#include "api/versioned.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <string.h>

_Static_assert(RESHARD_RANK_MAX == RANK_MAX, "the header says how many axes there may be");

#define VECTOR_CLEAR(vector, rank)                                        \
    do {                                                                  \
        if ((vector) && (rank) <= RANK_MAX)                               \
            memset((vector), 0, (size_t)(rank) * sizeof(int64_t));        \
    } while (0)

/* Whether a vector is there: that of rank 0 need not be. */
#define NEEDS_VECTOR(vector, rank, err)                                   \
    do {                                                                  \
        if ((rank) && !(vector))                                          \
            return argument_missing(__func__, #vector, err);              \
    } while (0)

static reshard_status rank_check(size_t rank, reshard_error *err)
{
    if (rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "a rank of %zu is above %d", rank, RANK_MAX);
    return RESHARD_OK;
}

static reshard_status shape_check(const char *function, size_t rank, const int64_t *shape, int64_t *volume, reshard_error *err)
{
    reshard_status status = rank_check(rank, err);
    if (status)
        return status;
    if (rank && !shape)
        return argument_missing(function, "shape", err);
    if (!shape_volume((int)rank, shape, volume))
        return error_set(err, RESHARD_ERR_USAGE, "the shape has a negative extent or too many elements");
    return RESHARD_OK;
}

static reshard_status range_check(int64_t begin, int64_t end, int64_t volume, reshard_error *err)
{
    if (begin >= 0 && begin < end && end <= volume)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_USAGE, "range [%" PRId64 ", %" PRId64 ") is empty or leaves the shape of %" PRId64 " elements", begin,
                     end, volume);
}

/* A box without a whole around it. */
static reshard_status free_box_check(size_t rank, const int64_t *start, const int64_t *extent, const char *name, reshard_error *err)
{
    for (size_t axis = 0; axis < rank; axis++) {
        if (start[axis] < 0 || extent[axis] < 0 || start[axis] > INT64_MAX - extent[axis])
            return error_set(err, RESHARD_ERR_USAGE, "box %s, axis %zu: start %" PRId64 " and extent %" PRId64 " are no range", name, axis,
                             start[axis], extent[axis]);
    }
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_ravel(size_t rank, const int64_t *shape, const int64_t *index, int64_t *flat, reshard_error *err)
{
    int64_t volume;
    ERROR_SCOPE(err);
    NEEDS(flat, err);
    *flat = 0;
    reshard_status status = shape_check(__func__, rank, shape, &volume, err);
    if (status)
        return status;
    NEEDS_VECTOR(index, rank, err);
    for (size_t axis = 0; axis < rank; axis++) {
        if (index[axis] < 0 || index[axis] >= shape[axis])
            return error_set(err, RESHARD_ERR_USAGE, "axis %zu: index %" PRId64 " is outside of %" PRId64, axis, index[axis], shape[axis]);
    }
    *flat = shape_ravel((int)rank, shape, index);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_unravel(size_t rank, const int64_t *shape, int64_t flat, int64_t *index, reshard_error *err)
{
    int64_t volume;
    ERROR_SCOPE(err);
    VECTOR_CLEAR(index, rank);
    reshard_status status = shape_check(__func__, rank, shape, &volume, err);
    if (status)
        return status;
    NEEDS_VECTOR(index, rank, err);
    if (flat < 0 || flat >= volume)
        return error_set(err, RESHARD_ERR_USAGE, "element %" PRId64 " is outside of the shape of %" PRId64 " elements", flat, volume);
    shape_unravel((int)rank, shape, flat, index);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_minimal_box(size_t rank, const int64_t *shape, int64_t begin, int64_t end, int64_t *start,
                                              int64_t *extent, reshard_error *err)
{
    int64_t volume;
    ERROR_SCOPE(err);
    VECTOR_CLEAR(start, rank);
    VECTOR_CLEAR(extent, rank);
    reshard_status status = shape_check(__func__, rank, shape, &volume, err);
    if (status)
        return status;
    NEEDS_VECTOR(start, rank, err);
    NEEDS_VECTOR(extent, rank, err);
    status = range_check(begin, end, volume, err);
    if (!status)
        flat_run_hull((int)rank, shape, begin, end - begin, start, extent);
    return status;
}

API_EXPORT reshard_status reshard_range_in_box(size_t rank, const int64_t *shape, const int64_t *start, const int64_t *extent,
                                               int64_t begin, int64_t end, int64_t *box_begin, int64_t *box_end, reshard_error *err)
{
    int64_t volume;
    int axis;
    ERROR_SCOPE(err);
    NEEDS(box_begin, err);
    NEEDS(box_end, err);
    *box_begin = *box_end = 0;
    reshard_status status = shape_check(__func__, rank, shape, &volume, err);
    if (!status)
        status = range_check(begin, end, volume, err);
    if (status)
        return status;
    NEEDS_VECTOR(start, rank, err);
    NEEDS_VECTOR(extent, rank, err);
    if (!box_check((int)rank, start, extent, shape, &axis))
        return error_set(err, RESHARD_ERR_USAGE, "axis %d: the box leaves the shape", axis);
    if (!box_is_flat_run((int)rank, shape, extent))
        return error_set(err, RESHARD_ERR_USAGE, "the elements of the box are not consecutive in the shape");
    int64_t first = shape_ravel((int)rank, shape, start);
    if (begin < first || end - first > box_volume((int)rank, extent))
        return error_set(err, RESHARD_ERR_USAGE, "range [%" PRId64 ", %" PRId64 ") leaves the box, which is [%" PRId64 ", %" PRId64 ")",
                         begin, end, first, first + box_volume((int)rank, extent));
    *box_begin = begin - first;
    *box_end = end - first;
    return RESHARD_OK;
}

/* Places of an overlap inside a box, where they are wanted. */
static void places_give(size_t rank, const int64_t *overlap, const int64_t *box_start, int64_t *out)
{
    for (size_t axis = 0; out && axis < rank; axis++)
        out[axis] = overlap[axis] - (box_start ? box_start[axis] : 0);
}

API_EXPORT reshard_status reshard_overlap(size_t rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start,
                                          const int64_t *b_extent, int *overlaps, int64_t *start, int64_t *extent, int64_t *in_a,
                                          int64_t *in_b, reshard_error *err)
{
    int64_t found[RANK_MAX + 1], size[RANK_MAX + 1];
    ERROR_SCOPE(err);
    NEEDS(overlaps, err);
    *overlaps = 0;
    VECTOR_CLEAR(start, rank);
    VECTOR_CLEAR(extent, rank);
    VECTOR_CLEAR(in_a, rank);
    VECTOR_CLEAR(in_b, rank);
    reshard_status status = rank_check(rank, err);
    if (status)
        return status;
    NEEDS_VECTOR(a_start, rank, err);
    NEEDS_VECTOR(a_extent, rank, err);
    NEEDS_VECTOR(b_start, rank, err);
    NEEDS_VECTOR(b_extent, rank, err);
    status = free_box_check(rank, a_start, a_extent, "a", err);
    if (!status)
        status = free_box_check(rank, b_start, b_extent, "b", err);
    if (status || !box_intersect((int)rank, a_start, a_extent, b_start, b_extent, found, size))
        return status;
    *overlaps = 1;
    places_give(rank, found, NULL, start);
    places_give(rank, size, NULL, extent);
    places_give(rank, found, a_start, in_a);
    places_give(rank, found, b_start, in_b);
    return RESHARD_OK;
}
