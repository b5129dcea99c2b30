/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/double_block.h"

#include <string.h>

/* Vectors by name: gcc leaves such loops as they are, or makes them slower. Without AVX they are two of half the size. */
#define VECTOR_LANES 4
#define VECTORS 2
typedef double lanes __attribute__((vector_size(8 * VECTOR_LANES)));
typedef int64_t lane_bits __attribute__((vector_size(8 * VECTOR_LANES)));

#define CHOOSE(condition, yes, no) ((lanes)(((condition) & (lane_bits)(yes)) | (~(condition) & (lane_bits)(no))))

struct lane_sums {
    lanes sum, square, low, high;
    lane_bits zeros, tiny; /* the negative of how many */
};

static inline __attribute__((always_inline)) void lane_sums_join(const struct lane_sums *sums, struct double_moments *out)
{
    for (int j = 0; j < VECTOR_LANES; j++) {
        out->sum += sums->sum[j];
        out->square += sums->square[j];
        out->low = sums->low[j] < out->low ? sums->low[j] : out->low;
        out->high = sums->high[j] > out->high ? sums->high[j] : out->high;
        out->zeros -= (uint64_t)sums->zeros[j];
        out->tiny -= (uint64_t)sums->tiny[j];
    }
}

static inline __attribute__((always_inline)) void double_moments_of(const void *values, double shift, double smallest_normal,
                                                                    struct double_moments *out)
{
    const lane_bits magnitude = (lane_bits){ 0 } + INT64_MAX;
    const uint8_t *bytes = values;
    struct lane_sums sums[VECTORS] = { 0 };
    int64_t limit;
    double first;
    memcpy(&first, bytes, sizeof(first));
    memcpy(&limit, &smallest_normal, sizeof(limit)); /* without its sign a float orders as an integer */
    for (int j = 0; j < VECTORS; j++)
        sums[j].low = sums[j].high = (lanes){ 0 } + first;
    for (int i = 0; i < DOUBLE_BLOCK; i += VECTOR_LANES * VECTORS) {
        for (int j = 0; j < VECTORS; j++, bytes += sizeof(lanes)) {
            lanes value;
            memcpy(&value, bytes, sizeof(value));
            lanes distance = value - shift;
            lane_bits bits = (lane_bits)value & magnitude;
            sums[j].sum += distance;
            sums[j].square += distance * distance;
            sums[j].low = CHOOSE(value < sums[j].low, value, sums[j].low);
            sums[j].high = CHOOSE(value > sums[j].high, value, sums[j].high);
            sums[j].zeros += bits == 0;
            sums[j].tiny += bits < limit;
        }
    }
    *out = (struct double_moments){ .low = first, .high = first };
    for (int j = 0; j < VECTORS; j++)
        lane_sums_join(&sums[j], out);
}

static void double_moments_plain(const void *values, double shift, double smallest_normal, struct double_moments *out)
{
    double_moments_of(values, shift, smallest_normal, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void double_moments_wide(const void *values, double shift, double smallest_normal,
                                                                struct double_moments *out)
{
    double_moments_of(values, shift, smallest_normal, out);
}
#endif

double_moments_function double_moments_find(bool is_wide)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (is_wide && __builtin_cpu_supports("avx2"))
        return double_moments_wide;
#endif
    (void)is_wide;
    return double_moments_plain;
}

void double_exponents_count(uint32_t *tables, const void *values)
{
    const uint8_t *bytes = values;
    for (int i = 0; i < DOUBLE_BLOCK; i += DOUBLE_TABLES) {
        for (int table = 0; table < DOUBLE_TABLES; table++, bytes += sizeof(double)) {
            uint64_t bits;
            memcpy(&bits, bytes, sizeof(bits));
            tables[table * DOUBLE_TABLE_STRIDE + (bits >> 52)]++;
        }
    }
}
