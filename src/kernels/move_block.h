/* SPDX-License-Identifier: Apache-2.0 */
/* Moving a 2-D block of equal elements between two strided layouts: the loops under every copy. */
#ifndef KERNELS_MOVE_BLOCK_H
#define KERNELS_MOVE_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct move_block {
    int64_t rows, columns;             /* both > 0 */
    int64_t source_row, source_column; /* strides in bytes */
    int64_t target_row, target_column;
    size_t bytes;     /* of an element; any number, fast for 1, 2, 4, 8, 16 and long ones */
    bool is_streamed; /* the target is written past the caches, where that can be done */
};

void move_block(const struct move_block *block, const uint8_t *source, uint8_t *target);

#endif
