/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/move_block.h"

#include <string.h>

#include "kernels/transpose.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* A tile's lines (at most 64 bytes an element) stay in the first-level cache while it is visited. */
#define TILE_INNER 256
#define TILE_OUTER 16

/* One row of elements of a size that the compiler knows, unaligned on both sides. */
#define MOVE_ROW(name, size)                                                                                                               \
    static void name(const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t count)                  \
    {                                                                                                                                      \
        for (int64_t i = 0; i < count; i++)                                                                                                \
            memcpy(target + i * target_stride, source + i * source_stride, size);                                                          \
    }

MOVE_ROW(move_row_1, 1)
MOVE_ROW(move_row_2, 2)
MOVE_ROW(move_row_4, 4)
MOVE_ROW(move_row_8, 8)
MOVE_ROW(move_row_16, 16)

typedef void (*row_function)(const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t count);

static row_function row_find(size_t bytes)
{
    switch (bytes) {
    case 1:
        return move_row_1;
    case 2:
        return move_row_2;
    case 4:
        return move_row_4;
    case 8:
        return move_row_8;
    case 16:
        return move_row_16;
    default:
        return NULL;
    }
}

#define STREAM_ROW_BYTES 512 /* shorter ones are not worth the ends that stick out of whole lines */

#if defined(__SSE2__)
static void stream_row(uint8_t *target, const uint8_t *source, size_t count)
{
    size_t at = (size_t)(-(uintptr_t)target & 63);
    memcpy(target, source, at);
    for (; count - at >= 64; at += 64) {
        const __m128i *from = (const __m128i *)(const void *)(source + at);
        __m128i *to = (__m128i *)(void *)(target + at);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1), c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    memcpy(target + at, source + at, count - at);
}

static void stream_end(void)
{
    _mm_sfence(); /* others may look for what was written */
}
#else
static void stream_row(uint8_t *target, const uint8_t *source, size_t count)
{
    memcpy(target, source, count);
}

static void stream_end(void)
{
}
#endif

static void move_rows(const struct move_block *block, const uint8_t *source, uint8_t *target, int64_t count)
{
    if (block->is_streamed && count >= STREAM_ROW_BYTES) {
        for (int64_t row = 0; row < block->rows; row++)
            stream_row(target + row * block->target_row, source + row * block->source_row, (size_t)count);
        stream_end();
        return;
    }
    for (int64_t row = 0; row < block->rows; row++)
        memcpy(target + row * block->target_row, source + row * block->source_row, (size_t)count);
}

static void move_elements(const struct move_block *block, const uint8_t *source, uint8_t *target)
{
    for (int64_t row = 0; row < block->rows; row++)
        for (int64_t column = 0; column < block->columns; column++)
            memcpy(target + row * block->target_row + column * block->target_column,
                   source + row * block->source_row + column * block->source_column, block->bytes);
}

/* Element by element in tiles, so that neither side's lines are fetched again for the next row. */
static void move_tiles(const struct move_block *block, row_function move_row, const uint8_t *source, uint8_t *target)
{
    for (int64_t row = 0; row < block->rows; row += TILE_OUTER) {
        int64_t rows = block->rows - row < TILE_OUTER ? block->rows - row : TILE_OUTER;
        for (int64_t column = 0; column < block->columns; column += TILE_INNER) {
            int64_t columns = block->columns - column < TILE_INNER ? block->columns - column : TILE_INNER;
            for (int64_t r = row; r < row + rows; r++)
                move_row(source + r * block->source_row + column * block->source_column, block->source_column,
                         target + r * block->target_row + column * block->target_column, block->target_column, columns);
        }
    }
}

static struct move_block block_turned(const struct move_block *block)
{
    return (struct move_block){ .rows = block->columns,
                                .columns = block->rows,
                                .source_row = block->source_column,
                                .source_column = block->source_row,
                                .target_row = block->target_column,
                                .target_column = block->target_row,
                                .bytes = block->bytes };
}

void move_block(const struct move_block *given, const uint8_t *source, uint8_t *target)
{
    struct move_block block = *given;
    int64_t bytes = (int64_t)block.bytes;
    if (block.source_row == bytes && block.target_row == bytes && block.rows > 1)
        block = block_turned(&block);
    if ((block.source_column == bytes && block.target_column == bytes) || block.columns == 1) {
        move_rows(&block, source, target, block.columns * bytes);
        return;
    }
    row_function move_row = row_find(block.bytes);
    if (!move_row) {
        move_elements(&block, source, target);
        return;
    }
    if (block.source_column == bytes && block.target_row == bytes)
        block = block_turned(&block);
    bool is_transpose = block.source_row == bytes && block.target_column == bytes;
    if (is_transpose && transpose_is_worth(block.bytes, block.rows, block.columns)) {
        transpose_block(block.bytes, source, block.source_column, target, block.target_row, block.rows, block.columns);
        return;
    }
    if (block.columns < block.rows && block.columns < TILE_OUTER)
        block = block_turned(&block);
    move_tiles(&block, move_row, source, target);
}
