/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/transpose.h"

#include <string.h>

#define LINE_BYTES 64
#define VECTOR_BYTES 16

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
 * Turns a tile of one line by one line's worth of elements. Interleaving the first half of N vectors with the second, log2(N)
 * times, is a transpose of an N by N block.
 */
#define TILE_TURN(size)                                                                                                                    \
    static void tile_turn_##size(const uint8_t *from, uint8_t *to)                                                                         \
    {                                                                                                                                      \
        enum { SIDE = LINE_BYTES / size, N = VECTOR_BYTES / size };                                                                        \
        for (int column = 0; column < SIDE; column += N)                                                                                   \
            for (int row = 0; row < SIDE; row += N) {                                                                                      \
                vector_##size a[N], b[N];                                                                                                  \
                for (int i = 0; i < N; i++)                                                                                                \
                    memcpy(&a[i], from + (column + i) * LINE_BYTES + row * size, VECTOR_BYTES);                                            \
                for (int round = 1; round < N; round *= 2) {                                                                               \
                    for (int i = 0; i < N / 2; i++) {                                                                                      \
                        b[2 * i] = LOW_##size(a[i], a[i + N / 2]);                                                                         \
                        b[2 * i + 1] = HIGH_##size(a[i], a[i + N / 2]);                                                                    \
                    }                                                                                                                      \
                    memcpy(a, b, sizeof(a));                                                                                               \
                }                                                                                                                          \
                for (int i = 0; i < N; i++)                                                                                                \
                    memcpy(to + (row + i) * LINE_BYTES + column * size, &a[i], VECTOR_BYTES);                                              \
            }                                                                                                                              \
    }

TILE_TURN(1)
TILE_TURN(2)
TILE_TURN(4)
TILE_TURN(8)

static void tile_turn_16(const uint8_t *from, uint8_t *to)
{
    for (int column = 0; column < 4; column++)
        for (int row = 0; row < 4; row++)
            memcpy(to + row * LINE_BYTES + column * 16, from + column * LINE_BYTES + row * 16, 16);
}

static void tile_turn(size_t bytes, const uint8_t *from, uint8_t *to)
{
    switch (bytes) {
    case 1:
        tile_turn_1(from, to);
        break;
    case 2:
        tile_turn_2(from, to);
        break;
    case 4:
        tile_turn_4(from, to);
        break;
    case 8:
        tile_turn_8(from, to);
        break;
    default:
        tile_turn_16(from, to);
        break;
    }
}

/* Copies count lines of size bytes each; the common size is known to the compiler. */
static inline void lines_copy(const uint8_t *from, int64_t from_stride, uint8_t *to, int64_t to_stride, int64_t count, size_t size)
{
    if (size == LINE_BYTES) {
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, LINE_BYTES);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy(to + i * to_stride, from + i * from_stride, size);
}

bool transpose_is_worth(size_t bytes, int64_t rows, int64_t columns)
{
    int64_t side_min = LINE_BYTES / (int64_t)bytes / 4;
    return rows >= side_min && columns >= side_min && rows > 1 && columns > 1;
}

/* One block of rows, see BAND_BYTES. */
static void transpose_band(size_t bytes, const uint8_t *source, int64_t source_stride, uint8_t *target, int64_t target_stride, int64_t rows,
                           int64_t columns)
{
    int64_t side = LINE_BYTES / (int64_t)bytes, size = (int64_t)bytes;
    uint8_t from[LINE_BYTES * LINE_BYTES] __attribute__((aligned(LINE_BYTES)));
    uint8_t to[LINE_BYTES * LINE_BYTES] __attribute__((aligned(LINE_BYTES)));

    if (rows % side || columns % side)
        memset(from, 0, (size_t)side * LINE_BYTES); /* tiles at the edge are turned whole */
    for (int64_t column = 0; column < columns; column += side) {
        int64_t tile_columns = columns - column < side ? columns - column : side;
        for (int64_t row = 0; row < rows; row += side) {
            int64_t tile_rows = rows - row < side ? rows - row : side;
            lines_copy(source + column * source_stride + row * size, source_stride, from, LINE_BYTES, tile_columns,
                       (size_t)(tile_rows * size));
            tile_turn(bytes, from, to);
            lines_copy(to, LINE_BYTES, target + row * target_stride + column * size, target_stride, tile_rows,
                       (size_t)(tile_columns * size));
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
