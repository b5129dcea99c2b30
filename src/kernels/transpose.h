/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transposing copies. Tiles are whole cache lines wide on both sides: a tile's lines are read once in full, turned inside the cache with
 * vector interleaves, and written once in full. So the speed is near that of memory, also for strides that are powers of two.
 */
#ifndef KERNELS_TRANSPOSE_H
#define KERNELS_TRANSPOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether tiles pay off for a block of this size; bytes is 1, 2, 4, 8 or 16. */
bool transpose_is_worth(size_t bytes, int64_t rows, int64_t columns);

/* target[row][column] = source[column][row]: both sides are contiguous in their last index, strides are between first ones. */
void transpose_block(size_t bytes, const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t rows,
                     int64_t columns);

#endif
