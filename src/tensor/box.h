/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boxes: half-open N-D index ranges, the unit in which every layer above reasons.
 *
 * Boxes are passed as parallel arrays: start[rank] and extent[rank], in elements, each extent >= 0, start + extent within
 * int64. A rank-0 box holds one element; a box with a zero extent is empty. Functions trust these rules: box_check proves
 * them once, where the numbers enter.
 */
#ifndef TENSOR_BOX_H
#define TENSOR_BOX_H

#include <stdbool.h>
#include <stdint.h>

#define RANK_MAX 64

/* Number of elements of a shape; false on a negative extent, or if the product of the extents above 0 overflows int64 (so
 * that strides exist for empty shapes too). Rank 0 is 1. */
bool shape_volume(int rank, const int64_t *shape, int64_t *out);

bool shape_equal(int a_rank, const int64_t *a, int b_rank, const int64_t *b);

/* Whether start >= 0, extent >= 0 and start + extent <= shape on every axis; on failure *bad_axis says where. */
bool box_check(int rank, const int64_t *start, const int64_t *extent, const int64_t *shape, int *bad_axis);

bool box_is_empty(int rank, const int64_t *extent);

/* Sets out_start/out_extent to the overlap of a and b. Returns false, leaving them undefined, if it is empty. */
bool box_intersect(int rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start, const int64_t *b_extent,
                   int64_t *out_start, int64_t *out_extent);

bool box_equal(int rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start, const int64_t *b_extent);

/* Volume of a box whose shape has passed shape_volume. */
int64_t box_volume(int rank, const int64_t *extent);

/*
 * Flat runs: elements [begin, begin + count) of the row-major order of `shape` (sharded optimizers cut tensors so).
 * Calls emit for at most 2 * rank - 1 boxes that together hold the run, in order; flat_index counts from begin. The run lies in
 * the shape, whose volume fits. Stops when emit returns false and returns false then.
 */
bool flat_run_boxes(int rank, const int64_t *shape, int64_t begin, int64_t count,
                    bool (*emit)(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context), void *context);

/* The row-major number of an index in a shape, and back. The index lies in the shape, whose volume fits. */
int64_t shape_ravel(int rank, const int64_t *shape, const int64_t *index);
void shape_unravel(int rank, const int64_t *shape, int64_t flat, int64_t *index);

/* The smallest box that holds the flat run, whose count is above 0; in that box, too, the run is consecutive. */
void flat_run_hull(int rank, const int64_t *shape, int64_t begin, int64_t count, int64_t *start, int64_t *extent);

/* Whether the elements of a box that is not empty are consecutive in the row-major order of the shape. */
bool box_is_flat_run(int rank, const int64_t *shape, const int64_t *extent);

/* A shape for messages, "[2,3]": between stands between the numbers; what does not fit is left out. */
#define SHAPE_TEXT_MAX 256
const char *shape_text(int rank, const int64_t *shape, const char *between, char out[SHAPE_TEXT_MAX]);

/* Row-major strides in elements: strides[rank-1] = 1. shape has passed shape_volume; zero extents count as 1. */
void strides_row_major(int rank, const int64_t *shape, int64_t *strides);
/* The same the other way round, as Fortran has it: strides[0] = 1. */
void strides_column_major(int rank, const int64_t *shape, int64_t *strides);

/* Whether strides address `shape` row-major without gaps (axes of extent 1 do not matter; empty is contiguous). */
bool strides_are_row_major(int rank, const int64_t *shape, const int64_t *strides);

/* Whether every element has a place of its own, because each axis steps over all that the denser ones reach. Enough for what is cut out of
 * row-major arrays, permuted or not. Negative strides are not. */
bool strides_are_apart(int rank, const int64_t *shape, const int64_t *strides);

/* The axes by falling stride, those of equal strides in their order. */
void strides_order(int rank, const int64_t *strides, int *axes);

/* One past the largest element index that shape and strides reach from 0; empty: 0. false on overflow or a negative stride. */
bool strides_span(int rank, const int64_t *shape, const int64_t *strides, int64_t *out_end);

#endif
