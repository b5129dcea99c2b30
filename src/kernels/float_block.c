/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/float_block.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/float_bits.h"
#include "kernels/vector_width.h"

/* gcc vectorises these loops only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define LANES 16     /* sums that a compiler may keep in registers side by side */
#define SHORT_SUM 16 /* numbers that are summed as floats, which loses less than a digit; the sums of the sums are doubles */

#define ELEMENT_BYTES(dtype) ((dtype) == DTYPE_F32 ? 4 : 2)

typedef uint32_t mem_bits __attribute__((aligned(1), may_alias));
typedef uint16_t mem_half __attribute__((aligned(1), may_alias));

/* ---- moments ---- */

/* Of lanes that go by pairs. */
static double lanes_sum(const double *lanes)
{
    double sum = 0;
    for (int j = 0; j < LANES / 2; j++)
        sum += lanes[j] + lanes[j + LANES / 2];
    return sum;
}

static inline __attribute__((always_inline)) void moments_of(const mem_bits *words, float shift, struct float_moments *out)
{
    double sums[LANES] = { 0 }, squares[LANES] = { 0 };
    float low[LANES], high[LANES];
    for (int j = 0; j < LANES; j++) {
        low[j] = INFINITY;
        high[j] = -INFINITY;
    }
    for (int first = 0; first < FLOAT_BLOCK; first += SHORT_SUM * LANES) {
        float sum[LANES] = { 0 }, square[LANES] = { 0 };
        for (int i = first; i < first + SHORT_SUM * LANES; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                float value = float_from_bits(words[i + j]);
                float distance = value - shift;
                sum[j] += distance;
                square[j] += distance * distance;
                low[j] = value < low[j] ? value : low[j];
                high[j] = value > high[j] ? value : high[j];
            }
        }
        for (int j = 0; j < LANES; j++) {
            sums[j] += sum[j];
            squares[j] += square[j];
        }
    }
    *out = (struct float_moments){ .sum = lanes_sum(sums), .square = lanes_sum(squares), .low = low[0], .high = high[0] };
    for (int j = 1; j < LANES; j++) {
        out->low = low[j] < out->low ? low[j] : out->low;
        out->high = high[j] > out->high ? high[j] : out->high;
    }
}

/* A block of 16-bit floats; of float16 by what gcc makes vectors of. Of bfloat16 each 32 are ordered by pairs, all first ones before all
 * second ones, which is how they lie in words of 32 bits. */
static void widen_plain(const void *elements, uint32_t *words, enum dtype dtype)
{
    const mem_half *codes = elements;
    for (int i = 0; dtype == DTYPE_F16 && i < FLOAT_BLOCK; i++) {
        const uint32_t magnitude = codes[i] & 0x7fff, special = magnitude < 0x7c00 ? 0 : 0x7f800000;
        words[i] = float_to_bits(float_from_bits(magnitude << 13) * 0x1p112f) | special | (uint32_t)(codes[i] & 0x8000) << 16;
    }
    for (int i = 0; dtype == DTYPE_BF16 && i < FLOAT_BLOCK; i += 2 * LANES) {
        for (int j = 0; j < LANES; j++) {
            words[i + j] = (uint32_t)codes[i + 2 * j] << 16;
            words[i + LANES + j] = (uint32_t)codes[i + 2 * j + 1] << 16;
        }
    }
}

static inline __attribute__((always_inline)) void float_codes_of(const mem_bits *words, int16_t *codes)
{
    for (int i = 0; i < FLOAT_BLOCK; i++)
        codes[i] = (int16_t)((int32_t)words[i] >> 23);
}

#define PLAIN_MOMENTS(name, dtype)                                                                                                  \
    static void moments_plain_##name(const void *elements, float shift, struct float_moments *out, int16_t *codes)                 \
    {                                                                                                                               \
        uint32_t widened[FLOAT_BLOCK];                                                                                              \
        const void *words = (dtype) == DTYPE_F32 ? elements : widened;                                                              \
        widen_plain(elements, widened, dtype);                                                                                      \
        moments_of(words, shift, out);                                                                                              \
        float_codes_of(words, codes);                                                                                               \
    }

PLAIN_MOMENTS(f32, DTYPE_F32)
PLAIN_MOMENTS(bf16, DTYPE_BF16)
PLAIN_MOMENTS(f16, DTYPE_F16)

/* ---- exponents ---- */

/* Sign and exponent of each, from its upper half. */
void exponents_count(struct exponent_counter *counter, const void *elements, uint64_t count)
{
    const mem_bits *words = elements;
    for (; count >= 4; count -= 4, words += 4)
        for (size_t k = 0; k < 4; k++)
            counter->tables[k][words[k] >> 23]++;
    for (; count; count--, words++)
        counter->tables[0][*words >> 23]++;
}

static void exponents_plain(struct exponent_counter *counter, const int16_t *codes, int top)
{
    (void)top;
    for (int i = 0; i < FLOAT_BLOCK; i += EXPONENT_TABLES)
        for (int k = 0; k < EXPONENT_TABLES; k++)
            counter->tables[k][codes[i + k] & 0x1ff]++;
}

/* Streams 0 and 1: of both signs; 2 and 3: of positive numbers. */
static uint64_t pending_count(const struct exponent_counter *counter, unsigned stream, unsigned bit)
{
    uint64_t count = counter->many[stream][bit] << EXPONENT_DIGITS;
    for (unsigned lane = 0; lane < EXPONENT_LANE_BYTES; lane++) {
        for (unsigned digit = 0; digit < EXPONENT_DIGITS; digit++)
            count += (uint64_t)(counter->digits[stream][digit][lane] >> bit & 1) << digit;
        for (unsigned digit = 5; digit < EXPONENT_DIGITS; digit++)
            if (counter->blocks >> (digit - 5) & 1)
                count += (uint64_t)(counter->carried[stream][digit - 5][lane] >> bit & 1) << digit;
    }
    return count;
}

void exponents_settle(struct exponent_counter *counter)
{
    if (!counter->top)
        return;
    for (unsigned i = 0; i < EXPONENT_WINDOW; i++) {
        uint64_t both = pending_count(counter, i / 8, i % 8), positive = pending_count(counter, 2 + i / 8, i % 8);
        unsigned exponent = (unsigned)counter->top - i;
        counter->tables[0][exponent] += (uint32_t)positive;
        counter->tables[0][256 + exponent] += (uint32_t)(both - positive);
    }
    memset(counter->digits, 0, sizeof(counter->digits));
    memset(counter->many, 0, sizeof(counter->many));
    counter->blocks = 0;
    counter->top = 0;
}

#if defined(__x86_64__)

#define ROW 32          /* elements that are counted at once */
#define PLAIN_BLOCKS 15 /* counted slowly where the window does not help: it moved again, or */
#define FAR_ROWS 8      /* so many rows of a block had numbers beyond it */

/* Whether the window fits a block whose largest exponent is top; it is moved if it is not there. Blocks of one tensor are much alike, so
 * that it hardly ever moves. Exponent 0 is never in it. */
static bool window_fits(struct exponent_counter *counter, int top)
{
    if (counter->plain_blocks) {
        counter->plain_blocks--;
        return false;
    }
    if (counter->top && top <= counter->top && top >= counter->top - 2)
        return true;
    if (top < EXPONENT_WINDOW || top > 254)
        return false;
    exponents_settle(counter);
    counter->top = top;
    counter->plain_blocks = counter->has_moved ? PLAIN_BLOCKS : 0;
    counter->has_moved = true;
    return !counter->plain_blocks;
}

/* Of 32 numbers: how far below the top each is, with bit 7 set where that is beyond the window; in *positive where it is negative, too. */
WIDE_INLINE __m256i row_places(const int16_t *codes, __m256i top, __m256i *positive)
{
    const __m256i exponent = _mm256_set1_epi16(0xff);
    __m256i first = _mm256_loadu_si256((const void *)codes), second = _mm256_loadu_si256((const void *)(codes + 16));
    __m256i below = _mm256_packus_epi16(_mm256_sub_epi16(top, _mm256_and_si256(first, exponent)),
                                        _mm256_sub_epi16(top, _mm256_and_si256(second, exponent)));
    __m256i places = _mm256_adds_epu8(below, _mm256_set1_epi8(0x80 - EXPONENT_WINDOW));
    __m256i signs = _mm256_and_si256(_mm256_packs_epi16(first, second), _mm256_set1_epi8(-128));
    *positive = _mm256_or_si256(places, signs);
    return places;
}

/* Which of a row have exponent 0. */
WIDE_INLINE int row_least(const int16_t *codes)
{
    const __m256i exponent = _mm256_set1_epi16(0xff);
    __m256i first = _mm256_loadu_si256((const void *)codes), second = _mm256_loadu_si256((const void *)(codes + 16));
    __m256i exponents = _mm256_packus_epi16(_mm256_and_si256(first, exponent), _mm256_and_si256(second, exponent));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(exponents, _mm256_setzero_si256()));
}

/* Those of a row that are beyond the window; exponents 0, mostly of zeros, are counted elsewhere. */
static void count_far(struct exponent_counter *counter, const int16_t *codes)
{
    for (int i = 0; i < ROW; i++)
        counter->tables[0][codes[i] & 0x1ff] += (codes[i] & 0xff) && counter->top - (codes[i] & 0xff) >= EXPONENT_WINDOW;
}

/* A full adder in each bit: a + b + c is *a and, of twice the weight, what is returned. gcc does not find the ternary instructions. */
WIDE_INLINE __m256i add_bits(__m256i *a, __m256i b, __m256i c, bool has_ternary)
{
    if (has_ternary) {
        __m256i most = b, odd = *a;
        __asm__("vpternlogq $0xe8, %2, %1, %0" : "+v"(most) : "v"(*a), "v"(c));
        __asm__("vpternlogq $0x96, %2, %1, %0" : "+v"(odd) : "v"(b), "v"(c));
        *a = odd;
        return most;
    }
    __m256i either = _mm256_xor_si256(*a, b), both = _mm256_and_si256(*a, b);
    __m256i carry = _mm256_or_si256(both, _mm256_and_si256(either, c));
    *a = _mm256_xor_si256(either, c);
    return carry;
}

/* Adds the bits that four rows stand for to the first two digits; what is returned has the weight 4. */
WIDE_INLINE __m256i add_four(__m256i digits[5], const __m256i *rows, __m256i table, bool has_ternary)
{
    __m256i first = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[0]), _mm256_shuffle_epi8(table, rows[1]), has_ternary);
    __m256i second = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[2]), _mm256_shuffle_epi8(table, rows[3]), has_ternary);
    return add_bits(&digits[1], first, second, has_ternary);
}

WIDE_INLINE __m256i add_sixteen(__m256i digits[5], const __m256i *rows, __m256i table, bool has_ternary)
{
    __m256i first = add_four(digits, rows, table, has_ternary), second = add_four(digits, rows + 4, table, has_ternary);
    __m256i third = add_bits(&digits[2], first, second, has_ternary);
    first = add_four(digits, rows + 8, table, has_ternary);
    second = add_four(digits, rows + 12, table, has_ternary);
    return add_bits(&digits[3], third, add_bits(&digits[2], first, second, has_ternary), has_ternary);
}

/* table: the bit for each place; bit 7 of a row gives none. What a block adds to digit 5 waits for that of the next block. */
WIDE_INLINE void count_rows(struct exponent_counter *counter, int stream, const __m256i *rows, __m256i table, bool has_ternary)
{
    __m256i digits[5], other, digit;
    memcpy(digits, counter->digits[stream], sizeof(digits));
    __m256i first = add_sixteen(digits, rows, table, has_ternary), second = add_sixteen(digits, rows + 16, table, has_ternary);
    __m256i sum = add_bits(&digits[4], first, second, has_ternary);
    memcpy(counter->digits[stream], digits, sizeof(digits));
    for (int i = 5; i < EXPONENT_DIGITS; i++) {
        uint8_t *carried = counter->carried[stream][i - 5];
        if (!(counter->blocks >> (i - 5) & 1)) {
            memcpy(carried, &sum, sizeof(sum));
            return;
        }
        memcpy(&other, carried, sizeof(other));
        memcpy(&digit, counter->digits[stream][i], sizeof(digit));
        sum = add_bits(&digit, other, sum, has_ternary);
        memcpy(counter->digits[stream][i], &digit, sizeof(digit));
    }
#pragma GCC unroll 1 /* else gcc gathers the eight counts in vectors, by way of memory */
    for (int bit = 7; bit >= 0; bit--) {
        counter->many[stream][bit] += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(sum));
        sum = _mm256_add_epi8(sum, sum);
    }
}

WIDE_INLINE void exponents_of(struct exponent_counter *counter, const int16_t *codes, int top, bool has_ternary)
{
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i places[FLOAT_BLOCK / ROW], positive[FLOAT_BLOCK / ROW];
    uint32_t far_rows = 0, zeros = 0;
    if (!window_fits(counter, top)) {
        exponents_plain(counter, codes, top);
        return;
    }
    __m256i wide_top = _mm256_set1_epi16((short)counter->top);
    for (int i = 0; i < FLOAT_BLOCK / ROW; i++, codes += ROW) {
        places[i] = row_places(codes, wide_top, &positive[i]);
        const int far = _mm256_movemask_epi8(places[i]), least = far ? row_least(codes) : 0;
        zeros += (uint32_t)__builtin_popcount((unsigned)least);
        if (far != least) {
            count_far(counter, codes);
            far_rows++;
        }
    }
    counter->tables[0][0] += zeros; /* without their sign, which zeros do not need */
    count_rows(counter, 0, places, lower, has_ternary);
    count_rows(counter, 1, places, upper, has_ternary);
    count_rows(counter, 2, positive, lower, has_ternary);
    count_rows(counter, 3, positive, upper, has_ternary);
    counter->blocks++;
    counter->plain_blocks = far_rows > FAR_ROWS ? PLAIN_BLOCKS : 0;
}

TARGET_WIDE static void exponents_wide(struct exponent_counter *counter, const int16_t *codes, int top)
{
    exponents_of(counter, codes, top, false);
}

/* The same code: with more registers, and one instruction for three operands of bits. */
TARGET_WIDER static void exponents_wider(struct exponent_counter *counter, const int16_t *codes, int top)
{
    exponents_of(counter, codes, top, true);
}

/* ---- moments, wide ---- */

/* 32 elements, by lanes. */
WIDE_INLINE void load_halves(const uint8_t *elements, __m256 values[4], enum dtype dtype)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m256i pairs = _mm256_loadu_si256((const void *)(elements + i % 2 * 32));
        if (dtype == DTYPE_F16)
            values[i] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(elements + i * 16)));
        else if (dtype == DTYPE_BF16)
            values[i] = _mm256_castsi256_ps(i < 2 ? _mm256_slli_epi32(pairs, 16) : _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000)));
        else
            values[i] = _mm256_loadu_ps((const void *)(elements + i * 32));
    }
}

/* Of 16 of them, in any order. */
WIDE_INLINE __m256i half_codes(__m256 first, __m256 second)
{
    return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_castps_si256(first), 23), _mm256_srai_epi32(_mm256_castps_si256(second), 23));
}

WIDE_INLINE __m256d quarter_doubles(__m256 half, int quarter)
{
    return _mm256_cvtps_pd(quarter ? _mm256_extractf128_ps(half, 1) : _mm256_castps256_ps128(half));
}

/* The same sums as moments_of has, which gcc leaves in memory. */
WIDE_INLINE void moments_in_halves(const uint8_t *elements, float shift, struct float_moments *out, int16_t *codes, enum dtype dtype)
{
    const __m256 all_shift = _mm256_set1_ps(shift);
    __m256 low = _mm256_set1_ps(INFINITY), high = _mm256_set1_ps(-INFINITY);
    __m256d sums[4] = { 0 }, squares[4] = { 0 };
    double lanes[2][LANES];
    float ends[2][LANES / 2];
    for (int first = 0; first < FLOAT_BLOCK; first += SHORT_SUM * LANES) {
        __m256 sum[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() }, square[2] = { sum[0], sum[0] }, values[4];
        for (int i = 0; i < SHORT_SUM; i += 2, elements += 2 * LANES * ELEMENT_BYTES(dtype), codes += 2 * LANES) {
            load_halves(elements, values, dtype);
            _mm256_storeu_si256((void *)codes, half_codes(values[0], values[1]));
            _mm256_storeu_si256((void *)(codes + LANES), half_codes(values[2], values[3]));
#pragma GCC unroll 4 /* else gcc leaves them there, too */
            for (int j = 0; j < 4; j++) {
                __m256 distance = _mm256_sub_ps(values[j], all_shift);
                sum[j % 2] = _mm256_add_ps(sum[j % 2], distance);
                square[j % 2] = _mm256_add_ps(square[j % 2], _mm256_mul_ps(distance, distance));
                low = _mm256_min_ps(low, values[j]);
                high = _mm256_max_ps(high, values[j]);
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            sums[j] = _mm256_add_pd(sums[j], quarter_doubles(sum[j / 2], j % 2));
            squares[j] = _mm256_add_pd(squares[j], quarter_doubles(square[j / 2], j % 2));
        }
    }
    memcpy(lanes[0], sums, sizeof(sums));
    memcpy(lanes[1], squares, sizeof(squares));
    _mm256_storeu_ps(ends[0], low);
    _mm256_storeu_ps(ends[1], high);
    *out = (struct float_moments){ .sum = lanes_sum(lanes[0]), .square = lanes_sum(lanes[1]), .low = ends[0][0], .high = ends[1][0] };
    for (int j = 1; j < LANES / 2; j++) {
        out->low = ends[0][j] < out->low ? ends[0][j] : out->low;
        out->high = ends[1][j] > out->high ? ends[1][j] : out->high;
    }
}

/* The largest and the least of each lane: of float32; or of 16-bit codes, first read as signed, then as unsigned numbers. */
struct lane_range {
    __m512 high, low;
    __m512i most[2], least[2];
};

WIDER_INLINE void range_widen(struct lane_range *range, const uint8_t *elements, const __m512 *values, enum dtype dtype)
{
    if (dtype == DTYPE_F32) {
        range->high = _mm512_max_ps(range->high, _mm512_max_ps(values[0], values[1]));
        range->low = _mm512_min_ps(range->low, _mm512_min_ps(values[0], values[1]));
        return;
    }
    const __m512i codes = _mm512_loadu_si512(elements);
    range->most[0] = _mm512_max_epi16(range->most[0], codes);
    range->most[1] = _mm512_max_epu16(range->most[1], codes);
    range->least[0] = _mm512_min_epi16(range->least[0], codes);
    range->least[1] = _mm512_min_epu16(range->least[1], codes);
}

WIDER_INLINE float code_value(unsigned code, enum dtype dtype)
{
    return dtype == DTYPE_F16 ? half_decode(code & 0xffff, 10) : float_from_bits(code << 16);
}

/* Codes of floats go up from zero with either sign: so the largest number is the largest as signed, if there is a positive one. */
WIDER_INLINE void range_end(const struct lane_range *range, struct float_moments *out, enum dtype dtype)
{
    int16_t most[2 * LANES], least[2 * LANES];
    uint16_t most_bits[2 * LANES], least_bits[2 * LANES];
    if (dtype == DTYPE_F32) {
        out->high = _mm512_reduce_max_ps(range->high);
        out->low = _mm512_reduce_min_ps(range->low);
        return;
    }
    memcpy(most, &range->most[0], sizeof(most));
    memcpy(least, &range->least[0], sizeof(least));
    memcpy(most_bits, &range->most[1], sizeof(most_bits));
    memcpy(least_bits, &range->least[1], sizeof(least_bits));
    for (int i = 1; i < 2 * LANES; i++) {
        most[0] = most[i] > most[0] ? most[i] : most[0];
        least[0] = least[i] < least[0] ? least[i] : least[0];
        most_bits[0] = most_bits[i] > most_bits[0] ? most_bits[i] : most_bits[0];
        least_bits[0] = least_bits[i] < least_bits[0] ? least_bits[i] : least_bits[0];
    }
    out->high = code_value((unsigned)(most[0] >= 0 ? most[0] : least[0]), dtype);
    out->low = code_value(most_bits[0] >> 15 ? most_bits[0] : least_bits[0], dtype);
}

/* 32 elements. */
WIDER_INLINE void load_lanes(const uint8_t *elements, __m512 values[2], enum dtype dtype)
{
    if (dtype == DTYPE_F16) {
        values[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)elements));
        values[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(elements + 32)));
    } else if (dtype == DTYPE_BF16) {
        __m512i pairs = _mm512_loadu_si512(elements);
        values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        values[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
    } else {
        values[0] = _mm512_loadu_ps(elements);
        values[1] = _mm512_loadu_ps(elements + 64);
    }
}

/* Of as many: from their upper halves. */
WIDER_INLINE __m512i lane_codes(const uint8_t *elements, const __m512 values[2], enum dtype dtype)
{
    const __m512i odd = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15,
                                         13, 11, 9, 7, 5, 3, 1);
    if (dtype == DTYPE_BF16)
        return _mm512_srai_epi16(_mm512_loadu_si512(elements), 7);
    return _mm512_srai_epi16(_mm512_permutex2var_epi16(_mm512_castps_si512(values[0]), odd, _mm512_castps_si512(values[1])), 7);
}

WIDER_INLINE __m512d add_short(__m512d sums, __m512 sum, int half)
{
    return _mm512_add_pd(sums, _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(sum, 1) : _mm512_castps512_ps256(sum)));
}

/* The same sums as moments_of has, which gcc leaves in memory. */
WIDER_INLINE void moments_in_lanes(const uint8_t *elements, float shift, struct float_moments *out, int16_t *codes,
                                   enum dtype dtype)
{
    const __m512 all_shift = _mm512_set1_ps(shift);
    struct lane_range range = { _mm512_set1_ps(-INFINITY), _mm512_set1_ps(INFINITY),
                                { _mm512_set1_epi16(INT16_MIN), _mm512_setzero_si512() },
                                { _mm512_set1_epi16(INT16_MAX), _mm512_set1_epi16(-1) } };
    __m512d sums[2] = { _mm512_setzero_pd(), _mm512_setzero_pd() }, squares[2] = { sums[0], sums[0] };
    double lanes[2][LANES];
    for (int first = 0; first < FLOAT_BLOCK; first += SHORT_SUM * LANES) {
        __m512 sum = _mm512_setzero_ps(), square = sum, values[2];
        for (int i = 0; i < SHORT_SUM; i += 2, elements += 2 * LANES * ELEMENT_BYTES(dtype)) {
            load_lanes(elements, values, dtype);
            for (int j = 0; j < 2; j++) {
                __m512 distance = _mm512_sub_ps(values[j], all_shift);
                sum = _mm512_add_ps(sum, distance);
                square = _mm512_add_ps(square, _mm512_mul_ps(distance, distance));
            }
            range_widen(&range, elements, values, dtype);
            _mm512_storeu_si512(codes + first + i * LANES, lane_codes(elements, values, dtype));
        }
        for (int half = 0; half < 2; half++) {
            sums[half] = add_short(sums[half], sum, half);
            squares[half] = add_short(squares[half], square, half);
        }
    }
    memcpy(lanes[0], sums, sizeof(sums));
    memcpy(lanes[1], squares, sizeof(squares));
    out->sum = lanes_sum(lanes[0]);
    out->square = lanes_sum(lanes[1]);
    range_end(&range, out, dtype);
}

#define WIDE_MOMENTS(name, dtype)                                                                                                \
    TARGET_WIDE static void moments_wide_##name(const void *elements, float shift, struct float_moments *out, int16_t *codes)   \
    {                                                                                                                            \
        moments_in_halves(elements, shift, out, codes, dtype);                                                                   \
    }                                                                                                                            \
    TARGET_WIDER static void moments_wider_##name(const void *elements, float shift, struct float_moments *out, int16_t *codes) \
    {                                                                                                                            \
        moments_in_lanes(elements, shift, out, codes, dtype);                                                                    \
    }

WIDE_MOMENTS(f32, DTYPE_F32)
WIDE_MOMENTS(bf16, DTYPE_BF16)
WIDE_MOMENTS(f16, DTYPE_F16)

#define BY_WIDTH(what) { what##_plain, what##_wide, what##_wider }
#define MOMENTS_BY_WIDTH(name) { moments_plain_##name, moments_wide_##name, moments_wider_##name }

#else

#define BY_WIDTH(what) { what##_plain, what##_plain, what##_plain }
#define MOMENTS_BY_WIDTH(name) { moments_plain_##name, moments_plain_##name, moments_plain_##name }

#endif

struct float_block_kernels float_block_kernels_find(enum dtype dtype, int width)
{
    static const exponents_function exponents[VECTOR_WIDTH_BEST + 1] = BY_WIDTH(exponents);
    static const float_moments_function moments[DTYPE_COUNT][VECTOR_WIDTH_BEST + 1] = {
        [DTYPE_F32] = MOMENTS_BY_WIDTH(f32), [DTYPE_BF16] = MOMENTS_BY_WIDTH(bf16), [DTYPE_F16] = MOMENTS_BY_WIDTH(f16)
    };
    const int chosen = vector_width(width);
    return (struct float_block_kernels){ moments[dtype][chosen], exponents[chosen] };
}
