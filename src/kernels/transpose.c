/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/transpose.h"

#include <string.h>

#define VECTOR_BYTES 16

/*
 * A tile has lines of this many bytes on both sides: several cache lines, so that the hardware's prefetcher gets going in
 * each; fewer for small elements, of which a tile has more lines. A tile is at most 16 KiB.
 */
#define LINE_BYTES_SMALL 128 /* elements of 1 and 2 bytes */
#define LINE_BYTES_LARGE 256
#define TILE_BYTES (128 * 128)
#define LINE_BYTES(bytes) ((bytes) < 4 ? LINE_BYTES_SMALL : LINE_BYTES_LARGE)

/*
 * Each target row lies on a page of its own as a rule, and so does each source column. Rows are taken in bands of this many source bytes,
 * few enough for their pages to stay in the second-level TLB while the band's columns pass.
 */
#define BAND_BYTES 512

/* gcc keeps the vectors of a block in registers only once all loops over them are unrolled. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

typedef uint8_t vector_1 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t vector_2 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vector_4 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vector_8 __attribute__((vector_size(VECTOR_BYTES)));

#define LOW_1(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_1(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW_2(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_2(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW_4(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_4(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define LOW_8(a, b) __builtin_shufflevector(a, b, 0, 2)
#define HIGH_8(a, b) __builtin_shufflevector(a, b, 1, 3)

/*
 * Turns the first columns and rows of a tile, rounded up to whole blocks. Interleaving the first half of N vectors with the second, log2(N)
 * times, is a transpose of an N by N block.
 */
#define TILE_TURN(size)                                                                                                                    \
    static void tile_turn_##size(const uint8_t *from, uint8_t *to, int64_t columns, int64_t rows)                                          \
    {                                                                                                                                      \
        enum { LINE = LINE_BYTES(size), N = VECTOR_BYTES / size };                                                                         \
        for (int64_t column = 0; column < columns; column += N)                                                                            \
            for (int64_t row = 0; row < rows; row += N) {                                                                                  \
                vector_##size a[N], b[N];                                                                                                  \
                for (int i = 0; i < N; i++)                                                                                                \
                    memcpy(&a[i], from + (column + i) * LINE + row * size, VECTOR_BYTES);                                                  \
                for (int round = 1; round < N; round *= 2) {                                                                               \
                    for (int i = 0; i < N / 2; i++) {                                                                                      \
                        b[2 * i] = LOW_##size(a[i], a[i + N / 2]);                                                                         \
                        b[2 * i + 1] = HIGH_##size(a[i], a[i + N / 2]);                                                                    \
                    }                                                                                                                      \
                    memcpy(a, b, sizeof(a));                                                                                               \
                }                                                                                                                          \
                for (int i = 0; i < N; i++)                                                                                                \
                    memcpy(to + (row + i) * LINE + column * size, &a[i], VECTOR_BYTES);                                                    \
            }                                                                                                                              \
    }

TILE_TURN(1)
TILE_TURN(2)
TILE_TURN(4)
TILE_TURN(8)

static void tile_turn_16(const uint8_t *from, uint8_t *to, int64_t columns, int64_t rows)
{
    for (int64_t column = 0; column < columns; column++)
        for (int64_t row = 0; row < rows; row++)
            memcpy(to + row * LINE_BYTES_LARGE + column * 16, from + column * LINE_BYTES_LARGE + row * 16, 16);
}

typedef void (*turn_function)(const uint8_t *from, uint8_t *to, int64_t columns, int64_t rows);

static turn_function turn_find(size_t bytes)
{
    switch (bytes) {
    case 1:
        return tile_turn_1;
    case 2:
        return tile_turn_2;
    case 4:
        return tile_turn_4;
    case 8:
        return tile_turn_8;
    default:
        return tile_turn_16;
    }
}

/* Copies count lines of size bytes each; common sizes are known to the compiler. */
static inline void lines_copy(const uint8_t *from, int64_t from_stride, uint8_t *to, int64_t to_stride, int64_t count, size_t size)
{
    if (size == LINE_BYTES_LARGE) {
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, LINE_BYTES_LARGE);
    } else if (size == LINE_BYTES_SMALL) {
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, LINE_BYTES_SMALL);
    } else {
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, size);
    }
}

bool transpose_is_worth(size_t bytes, int64_t rows, int64_t columns)
{
    int64_t side_min = VECTOR_BYTES / (int64_t)bytes;
    return rows >= side_min && columns >= side_min && rows > 1 && columns > 1;
}

static int64_t round_up(int64_t count, int64_t step)
{
    return (count + step - 1) / step * step;
}

/* One band of rows, see BAND_BYTES. */
static void transpose_band(size_t bytes, const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t rows,
                           int64_t columns)
{
    const int64_t size = (int64_t)bytes, line = LINE_BYTES(bytes), side = line / size, step = VECTOR_BYTES / size;
    uint8_t from[TILE_BYTES] __attribute__((aligned(64)));
    uint8_t to[TILE_BYTES] __attribute__((aligned(64)));
    turn_function turn = turn_find(bytes);

    for (int64_t column = 0; column < columns; column += side) {
        int64_t tile_columns = columns - column < side ? columns - column : side;
        for (int64_t row = 0; row < rows; row += side) {
            int64_t tile_rows = rows - row < side ? rows - row : side;
            if (tile_columns % step || tile_rows % step) /* what the edge's blocks turn besides must be something */
                memset(from, 0, (size_t)(round_up(tile_columns, step) * line));
            lines_copy(source + column * source_stride + row * size, source_stride, from, line, tile_columns, (size_t)(tile_rows * size));
            turn(from, to, tile_columns, tile_rows);
            lines_copy(to, line, target + row * target_stride + column * size, target_stride, tile_rows, (size_t)(tile_columns * size));
        }
    }
}

void transpose_block(size_t bytes, const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t rows,
                     int64_t columns)
{
    int64_t band = BAND_BYTES / (int64_t)bytes;
    for (int64_t row = 0; row < rows; row += band)
        transpose_band(bytes, source + row * (int64_t)bytes, source_stride, target + row * target_stride, target_stride,
                       rows - row < band ? rows - row : band, columns);
}
