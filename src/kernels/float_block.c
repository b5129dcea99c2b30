/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/float_block.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/float_bits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_WIDE 1
#define TARGET_WIDE __attribute__((target("avx2,popcnt,f16c")))
#define TARGET_WIDER __attribute__((target("avx2,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define HAS_WIDE 0
#endif

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

/* A block of 16-bit floats or codes. Of bfloat16 each 32 are ordered by pairs, all first ones before all second ones, which is how they
 * lie in words of 32 bits. */
static void widen_plain(const void *elements, uint32_t *words, enum dtype dtype)
{
    const mem_half *codes = elements;
    for (int i = 0; dtype == DTYPE_F16 && i < FLOAT_BLOCK; i++)
        words[i] = float_to_bits(half_decode(codes[i], 10));
    for (int i = 0; dtype == DTYPE_I16 && i < FLOAT_BLOCK; i++)
        words[i] = (uint32_t)codes[i] << 23;
    for (int i = 0; dtype == DTYPE_BF16 && i < FLOAT_BLOCK; i += 2 * LANES) {
        for (int j = 0; j < LANES; j++) {
            words[i + j] = (uint32_t)codes[i + 2 * j] << 16;
            words[i + LANES + j] = (uint32_t)codes[i + 2 * j + 1] << 16;
        }
    }
}

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

#define PLAIN_KERNELS(name, dtype)                                                                                  \
    static void moments_plain_##name(const void *elements, float shift, struct float_moments *out)                  \
    {                                                                                                               \
        uint32_t words[FLOAT_BLOCK];                                                                                \
        widen_plain(elements, words, dtype);                                                                        \
        moments_of((dtype) == DTYPE_F32 ? elements : words, shift, out);                                            \
    }                                                                                                               \
    static void exponents_plain_##name(struct exponent_counter *counter, const void *elements, int top)             \
    {                                                                                                               \
        uint32_t words[FLOAT_BLOCK];                                                                                \
        (void)top;                                                                                                  \
        widen_plain(elements, words, dtype);                                                                        \
        exponents_count(counter, (dtype) == DTYPE_F32 ? elements : words, FLOAT_BLOCK);                             \
    }                                                                                                               \
    static const struct float_block_kernels plain_##name = { moments_plain_##name, exponents_plain_##name }

PLAIN_KERNELS(f32, DTYPE_F32);
PLAIN_KERNELS(bf16, DTYPE_BF16);
PLAIN_KERNELS(f16, DTYPE_F16);
PLAIN_KERNELS(codes, DTYPE_I16);

/* Streams 0 and 1: of both signs; 2 and 3: of positive numbers. */
static uint64_t pending_count(const struct exponent_counter *counter, unsigned stream, unsigned bit)
{
    uint64_t count = 32 * counter->thirty_twos[stream][bit];
    for (unsigned digit = 0; digit < 5; digit++)
        for (unsigned lane = 0; lane < EXPONENT_LANE_BYTES; lane++)
            count += (uint64_t)(counter->digits[stream][digit][lane] >> bit & 1) << digit;
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
    memset(counter->thirty_twos, 0, sizeof(counter->thirty_twos));
    counter->top = 0;
}

#if HAS_WIDE

#define ROW 32          /* elements that are counted at once */
#define PLAIN_BLOCKS 15 /* counted slowly where the window does not help: it moved again, or */
#define FAR_ROWS 8      /* so many rows of a block had numbers beyond it */
#define WIDE_INLINE TARGET_WIDE static inline __attribute__((always_inline))

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

/* What a loop is made for: each is compiled for each machine and type. */
struct loop {
    enum dtype dtype;
    bool has_ternary;
};

/* 8 of float32, float16 or codes. */
WIDE_INLINE __m256i load_floats(const uint8_t *elements, enum dtype dtype)
{
    if (dtype == DTYPE_F16)
        return _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)elements)));
    if (dtype == DTYPE_I16)
        return _mm256_slli_epi32(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)elements)), 23);
    return _mm256_loadu_si256((const __m256i *)elements);
}

/* In the order of widen_plain. */
WIDE_INLINE void widen_floats(const uint8_t *elements, uint32_t *words, int count, enum dtype dtype)
{
    for (int i = 0; dtype != DTYPE_BF16 && i < count; i += 8, elements += 8 * ELEMENT_BYTES(dtype))
        _mm256_storeu_si256((__m256i *)(words + i), load_floats(elements, dtype));
    for (int i = 0; dtype == DTYPE_BF16 && i < count; i += i % 16 ? 24 : 8, elements += 32) {
        __m256i pairs = _mm256_loadu_si256((const __m256i *)elements);
        _mm256_storeu_si256((__m256i *)(words + i), _mm256_slli_epi32(pairs, 16));
        _mm256_storeu_si256((__m256i *)(words + i + LANES), _mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000)));
    }
}

/* 16 words, in whose lower 9 bits are sign and exponent, and above them nothing or the sign. */
WIDE_INLINE __m256i load_codes(const uint8_t *elements, enum dtype dtype)
{
    if (dtype == DTYPE_I16)
        return _mm256_loadu_si256((const __m256i *)elements);
    if (dtype == DTYPE_BF16)
        return _mm256_srai_epi16(_mm256_loadu_si256((const __m256i *)elements), 7);
    __m256i low = _mm256_srai_epi32(load_floats(elements, dtype), 23);
    __m256i high = _mm256_srai_epi32(load_floats(elements + 8 * ELEMENT_BYTES(dtype), dtype), 23);
    return _mm256_packs_epi32(low, high);
}

/* Of 32 elements: how far below the top each is, with bit 7 set where that is beyond the window; in *positive where it is negative, too. */
WIDE_INLINE __m256i row_places(const uint8_t *elements, __m256i top, __m256i *positive, enum dtype dtype)
{
    const __m256i exponent = _mm256_set1_epi16(0xff);
    __m256i first = load_codes(elements, dtype), second = load_codes(elements + 16 * ELEMENT_BYTES(dtype), dtype);
    __m256i below = _mm256_packus_epi16(_mm256_sub_epi16(top, _mm256_and_si256(first, exponent)),
                                        _mm256_sub_epi16(top, _mm256_and_si256(second, exponent)));
    __m256i places = _mm256_adds_epu8(below, _mm256_set1_epi8(0x80 - EXPONENT_WINDOW));
    __m256i signs = _mm256_and_si256(_mm256_packs_epi16(first, second), _mm256_set1_epi8(-128));
    *positive = _mm256_or_si256(places, signs);
    return places;
}

/* Those of a row that are beyond the window, as many as `far`; exponents 0, mostly of zeros, are counted without their sign. Whether there
 * were others. */
WIDE_INLINE bool count_far(struct exponent_counter *counter, const uint8_t *elements, int far, enum dtype dtype)
{
    const __m256i exponent = _mm256_set1_epi16(0xff);
    __m256i first = _mm256_and_si256(load_codes(elements, dtype), exponent);
    __m256i second = _mm256_and_si256(load_codes(elements + 16 * ELEMENT_BYTES(dtype), dtype), exponent);
    __m256i is_least = _mm256_cmpeq_epi8(_mm256_packus_epi16(first, second), _mm256_setzero_si256());
    int least = __builtin_popcount((unsigned)_mm256_movemask_epi8(is_least));
    uint32_t words[ROW];
    counter->tables[0][0] += (uint32_t)least;
    if (least == far)
        return false;
    widen_floats(elements, words, ROW, dtype);
    for (int i = 0; i < ROW; i++)
        counter->tables[0][words[i] >> 23] += (words[i] << 1 >> 24) && counter->top - (words[i] >> 23 & 0xff) >= EXPONENT_WINDOW;
    return true;
}

/* A full adder in each bit: a + b + c is *a and, of twice the weight, what is returned. gcc does not find the ternary instructions. */
WIDE_INLINE __m256i add_bits(__m256i *a, __m256i b, __m256i c, struct loop loop)
{
    if (loop.has_ternary) {
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
WIDE_INLINE __m256i add_four(__m256i digits[5], const __m256i *rows, __m256i table, struct loop loop)
{
    __m256i first = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[0]), _mm256_shuffle_epi8(table, rows[1]), loop);
    __m256i second = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[2]), _mm256_shuffle_epi8(table, rows[3]), loop);
    return add_bits(&digits[1], first, second, loop);
}

WIDE_INLINE __m256i add_sixteen(__m256i digits[5], const __m256i *rows, __m256i table, struct loop loop)
{
    __m256i first = add_four(digits, rows, table, loop), second = add_four(digits, rows + 4, table, loop);
    __m256i third = add_bits(&digits[2], first, second, loop);
    first = add_four(digits, rows + 8, table, loop);
    second = add_four(digits, rows + 12, table, loop);
    return add_bits(&digits[3], third, add_bits(&digits[2], first, second, loop), loop);
}

/* table: the bit for each place; bit 7 of a row gives none. */
WIDE_INLINE void count_rows(struct exponent_counter *counter, int stream, const __m256i *rows, __m256i table, struct loop loop)
{
    __m256i digits[5];
    memcpy(digits, counter->digits[stream], sizeof(digits));
    __m256i first = add_sixteen(digits, rows, table, loop), second = add_sixteen(digits, rows + 16, table, loop);
    __m256i sum = add_bits(&digits[4], first, second, loop);
    memcpy(counter->digits[stream], digits, sizeof(digits));
#pragma GCC unroll 1 /* else gcc gathers the eight counts in vectors, by way of memory */
    for (int bit = 7; bit >= 0; bit--) {
        counter->thirty_twos[stream][bit] += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(sum));
        sum = _mm256_add_epi8(sum, sum);
    }
}

WIDE_INLINE void exponents_of(struct exponent_counter *counter, const uint8_t *elements, int top, struct loop loop)
{
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i places[FLOAT_BLOCK / ROW], positive[FLOAT_BLOCK / ROW];
    uint32_t far_rows = 0;
    if (!window_fits(counter, top)) {
        uint32_t words[FLOAT_BLOCK];
        widen_floats(elements, words, FLOAT_BLOCK, loop.dtype);
        exponents_count(counter, words, FLOAT_BLOCK);
        return;
    }
    __m256i wide_top = _mm256_set1_epi16((short)counter->top);
    for (int i = 0; i < FLOAT_BLOCK / ROW; i++, elements += ROW * ELEMENT_BYTES(loop.dtype)) {
        places[i] = row_places(elements, wide_top, &positive[i], loop.dtype);
        int far = _mm256_movemask_epi8(places[i]);
        if (far)
            far_rows += count_far(counter, elements, __builtin_popcount((unsigned)far), loop.dtype);
    }
    count_rows(counter, 0, places, lower, loop);
    count_rows(counter, 1, places, upper, loop);
    count_rows(counter, 2, positive, lower, loop);
    count_rows(counter, 3, positive, upper, loop);
    counter->plain_blocks = far_rows > FAR_ROWS ? PLAIN_BLOCKS : 0;
}

/* ---- moments, wide ---- */

WIDE_INLINE void moments_widened(const void *elements, float shift, struct float_moments *out, enum dtype dtype)
{
    uint32_t words[FLOAT_BLOCK];
    if (dtype != DTYPE_F32)
        widen_floats(elements, words, FLOAT_BLOCK, dtype);
    moments_of(dtype == DTYPE_F32 ? elements : words, shift, out);
}

#define WIDER_INLINE TARGET_WIDER static inline __attribute__((always_inline))

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
        values[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)elements));
        values[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(elements + 32)));
    } else if (dtype == DTYPE_BF16) {
        __m512i pairs = _mm512_loadu_si512(elements);
        values[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
        values[1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
    } else {
        values[0] = _mm512_loadu_ps(elements);
        values[1] = _mm512_loadu_ps(elements + 64);
    }
}

WIDER_INLINE __m512d add_short(__m512d sums, __m512 sum, int half)
{
    return _mm512_add_pd(sums, _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(sum, 1) : _mm512_castps512_ps256(sum)));
}

/* The same sums as moments_of has, which gcc leaves in memory. */
WIDER_INLINE void moments_in_lanes(const uint8_t *elements, float shift, struct float_moments *out, enum dtype dtype)
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

#define WIDE_EXPONENTS(name, dtype)                                                                                  \
    TARGET_WIDE static void exponents_wide_##name(struct exponent_counter *counter, const void *elements, int top)   \
    {                                                                                                                \
        exponents_of(counter, elements, top, (struct loop){ dtype, false });                                         \
    }                                                                                                                \
    TARGET_WIDER static void exponents_wider_##name(struct exponent_counter *counter, const void *elements, int top) \
    {                                                                                                                \
        exponents_of(counter, elements, top, (struct loop){ dtype, true });                                          \
    }

#define WIDE_KERNELS(name, dtype)                                                                                    \
    WIDE_EXPONENTS(name, dtype)                                                                                      \
    TARGET_WIDE static void moments_wide_##name(const void *elements, float shift, struct float_moments *out)        \
    {                                                                                                                \
        moments_widened(elements, shift, out, dtype);                                                                \
    }                                                                                                                \
    TARGET_WIDER static void moments_wider_##name(const void *elements, float shift, struct float_moments *out)      \
    {                                                                                                                \
        moments_in_lanes(elements, shift, out, dtype);                                                               \
    }                                                                                                                \
    static const struct float_block_kernels wide_##name = { moments_wide_##name, exponents_wide_##name },            \
                                            wider_##name = { moments_wider_##name, exponents_wider_##name }

WIDE_KERNELS(f32, DTYPE_F32);
WIDE_KERNELS(bf16, DTYPE_BF16);
WIDE_KERNELS(f16, DTYPE_F16);
WIDE_EXPONENTS(codes, DTYPE_I16)
static const struct float_block_kernels wide_codes = { NULL, exponents_wide_codes }, wider_codes = { NULL, exponents_wider_codes };

static int best_width(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("popcnt") || !__builtin_cpu_supports("f16c"))
        return 0;
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? 2 : 1;
}

#define BY_WIDTH(name) { &plain_##name, &wide_##name, &wider_##name }

#else

#define BY_WIDTH(name) { &plain_##name, &plain_##name, &plain_##name }

static int best_width(void)
{
    return 0;
}

#endif

const struct float_block_kernels *float_block_kernels_find(enum dtype dtype, int width)
{
    static const struct float_block_kernels *const kernels[DTYPE_COUNT][FLOAT_WIDTH_BEST + 1] = {
        [DTYPE_F32] = BY_WIDTH(f32), [DTYPE_BF16] = BY_WIDTH(bf16), [DTYPE_F16] = BY_WIDTH(f16), [DTYPE_I16] = BY_WIDTH(codes)
    };
    const int best = best_width();
    return kernels[dtype][width < best ? width : best];
}
