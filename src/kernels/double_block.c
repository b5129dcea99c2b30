/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/double_block.h"

#include <string.h>

#include "kernels/vector_width.h"

/* gcc vectorises loops over codes only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

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

static inline __attribute__((always_inline)) void double_codes_of(const uint8_t *values, int16_t *codes)
{
    for (int i = 0; i < DOUBLE_BLOCK; i++) {
        int64_t bits;
        memcpy(&bits, values + (size_t)i * sizeof(bits), sizeof(bits));
        int upper = (int)(bits >> 32), exponent = (upper >> 20 & 0x7ff) - (1023 - 127);
        exponent = exponent < 0 ? 0 : exponent;
        exponent = exponent > 255 ? 255 : exponent;
        codes[i] = (int16_t)(exponent | (upper >> 31 & -256));
    }
}

static inline __attribute__((always_inline)) void double_moments_of(const void *values, double shift, double smallest_normal,
                                                                    struct double_moments *out, int16_t *codes)
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
    double_codes_of(values, codes);
}

static void double_moments_plain(const void *values, double shift, double smallest_normal, struct double_moments *out, int16_t *codes)
{
    double_moments_of(values, shift, smallest_normal, out, codes);
}

#if defined(__x86_64__)

TARGET_WIDE static void double_moments_wide(const void *values, double shift, double smallest_normal, struct double_moments *out,
                                            int16_t *codes)
{
    double_moments_of(values, shift, smallest_normal, out, codes);
}

WIDER_INLINE __m512d load_doubles(const uint8_t *elements, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_I32: return _mm512_cvtepi32_pd(_mm256_loadu_si256((const void *)elements));
    case DTYPE_U32: return _mm512_cvtepu32_pd(_mm256_loadu_si256((const void *)elements));
    case DTYPE_I64: return _mm512_cvtepi64_pd(_mm512_loadu_si512(elements));
    case DTYPE_U64: return _mm512_cvtepu64_pd(_mm512_loadu_si512(elements));
    default: return _mm512_loadu_pd(elements);
    }
}

/* Of 16 doubles, from their upper halves. */
WIDER_INLINE __m256i double_codes(const __m512d *values)
{
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    __m512i upper = _mm512_permutex2var_epi32(_mm512_castpd_si512(values[0]), odd, _mm512_castpd_si512(values[1]));
    __m512i exponent = _mm512_and_si512(_mm512_srli_epi32(upper, 20), _mm512_set1_epi32(0x7ff));
    exponent = _mm512_max_epi32(_mm512_sub_epi32(exponent, _mm512_set1_epi32(1023 - 127)), _mm512_setzero_si512());
    exponent = _mm512_min_epi32(exponent, _mm512_set1_epi32(255));
    __m512i sign = _mm512_and_si512(_mm512_srai_epi32(upper, 31), _mm512_set1_epi32(-256));
    return _mm512_cvtepi32_epi16(_mm512_or_si512(exponent, sign));
}

/* The same sums as lane_sums. */
struct double_lanes {
    __m512d sum, square, low, high;
    uint64_t zeros, tiny;
};

WIDER_INLINE void double_lanes_add(struct double_lanes *into, __m512d value, double shift, double smallest_normal, enum dtype dtype)
{
    __m512d distance = _mm512_sub_pd(value, _mm512_set1_pd(shift));
    into->sum = _mm512_add_pd(into->sum, distance);
    into->square = _mm512_add_pd(into->square, _mm512_mul_pd(distance, distance));
    into->low = _mm512_min_pd(into->low, value);
    into->high = _mm512_max_pd(into->high, value);
    if (dtype == DTYPE_F64) {
        __m512d magnitude = _mm512_abs_pd(value);
        into->zeros += (uint64_t)__builtin_popcount(_mm512_cmp_pd_mask(value, _mm512_setzero_pd(), _CMP_EQ_OQ));
        into->tiny += (uint64_t)__builtin_popcount(_mm512_cmp_pd_mask(magnitude, _mm512_set1_pd(smallest_normal), _CMP_LT_OQ));
    }
}

WIDER_INLINE void double_moments_in_lanes(const uint8_t *elements, double shift, double smallest_normal, struct double_moments *out,
                                          int16_t *codes, enum dtype dtype)
{
    const size_t width = dtype == DTYPE_I32 || dtype == DTYPE_U32 ? 4 : 8;
    const __m512d first = load_doubles(elements, dtype);
    struct double_lanes all = { _mm512_setzero_pd(), _mm512_setzero_pd(), first, first, 0, 0 };
    double sums[2][8];
    for (int i = 0; i < DOUBLE_BLOCK; i += 16, elements += 16 * width) {
        __m512d values[2] = { load_doubles(elements, dtype), load_doubles(elements + 8 * width, dtype) };
        for (int j = 0; j < 2; j++)
            double_lanes_add(&all, values[j], shift, smallest_normal, dtype);
        _mm256_storeu_si256((void *)(codes + i), double_codes(values));
    }
    *out = (struct double_moments){ .low = _mm512_reduce_min_pd(all.low), .high = _mm512_reduce_max_pd(all.high),
                                    .zeros = all.zeros, .tiny = all.tiny };
    _mm512_storeu_pd(sums[0], all.sum);
    _mm512_storeu_pd(sums[1], all.square);
    for (int j = 0; j < 8; j++) {
        out->sum += sums[0][j];
        out->square += sums[1][j];
    }
}

#define WIDER_MOMENTS(id)                                                                                                            \
    TARGET_WIDER static void double_moments_wider_##id(const void *elements, double shift, double smallest_normal,                   \
                                                       struct double_moments *out, int16_t *codes)                                   \
    {                                                                                                                                \
        double_moments_in_lanes(elements, shift, smallest_normal, out, codes, DTYPE_##id);                                           \
    }

WIDER_MOMENTS(F64)
WIDER_MOMENTS(I32)
WIDER_MOMENTS(U32)
WIDER_MOMENTS(I64)
WIDER_MOMENTS(U64)

#endif

const struct double_block_kernels *double_block_kernels_find(enum dtype dtype, int width)
{
    static const struct double_block_kernels plain = { DTYPE_F64, double_moments_plain };
    (void)dtype;
    (void)width;
#if defined(__x86_64__)
#define WIDER(id) [DTYPE_##id] = { DTYPE_##id, double_moments_wider_##id }
    static const struct double_block_kernels wide = { DTYPE_F64, double_moments_wide };
    static const struct double_block_kernels wider[DTYPE_COUNT] = { WIDER(F64), WIDER(I32), WIDER(U32), WIDER(I64), WIDER(U64) };
    const int chosen = vector_width(width);
    if (chosen == 2)
        return &wider[wider[dtype].moments ? dtype : DTYPE_F64];
    if (chosen == 1)
        return &wide;
#endif
    return &plain;
}
