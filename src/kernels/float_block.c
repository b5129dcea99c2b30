/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/float_block.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/float_bits.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define HAS_WIDE 1
#define TARGET_WIDE __attribute__((target("avx2,popcnt")))
#define TARGET_WIDER __attribute__((target("avx2,popcnt,avx512f,avx512bw,avx512vl")))
#else
#define HAS_WIDE 0
#endif

/* gcc vectorises these loops only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define LANES 16 /* sums that a compiler may keep in registers side by side */

typedef uint32_t mem_bits __attribute__((aligned(1), may_alias));

/* ---- moments ---- */

static inline __attribute__((always_inline)) void moments_of(const mem_bits *words, float shift, struct float_moments *out)
{
    struct float_moments all = { .low = INFINITY, .high = -INFINITY };
    float low[LANES], high[LANES];
    for (int j = 0; j < LANES; j++) {
        low[j] = INFINITY;
        high[j] = -INFINITY;
    }
    /* 16 numbers a sum, which lose less than a digit of float32 each time. */
    for (int first = 0; first < FLOAT_BLOCK; first += 16 * LANES) {
        float sums[LANES] = { 0 }, squares[LANES] = { 0 };
        for (int i = first; i < first + 16 * LANES; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                float value = float_from_bits(words[i + j]);
                float distance = value - shift;
                sums[j] += distance;
                squares[j] += distance * distance;
                low[j] = value < low[j] ? value : low[j];
                high[j] = value > high[j] ? value : high[j];
            }
        }
        for (int j = 0; j < LANES; j++) {
            all.sum += sums[j];
            all.square += squares[j];
        }
    }
    for (int j = 0; j < LANES; j++) {
        all.low = low[j] < all.low ? low[j] : all.low;
        all.high = high[j] > all.high ? high[j] : all.high;
    }
    *out = all;
}

static void moments_plain(const void *elements, float shift, struct float_moments *out)
{
    moments_of(elements, shift, out);
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

static void exponents_plain(struct exponent_counter *counter, const void *elements, int top)
{
    (void)top;
    exponents_count(counter, elements, FLOAT_BLOCK);
}

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

TARGET_WIDE static void moments_wide(const void *elements, float shift, struct float_moments *out)
{
    moments_of(elements, shift, out);
}

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

/* 16 words, in whose lower 9 bits are sign and exponent, and above them nothing or the sign. */
WIDE_INLINE __m256i load_codes(const uint8_t *elements)
{
    __m256i low = _mm256_srai_epi32(_mm256_loadu_si256((const __m256i *)elements), 23);
    __m256i high = _mm256_srai_epi32(_mm256_loadu_si256((const __m256i *)(elements + 32)), 23);
    return _mm256_packs_epi32(low, high);
}

/* Of 32 elements: how far below the top each is, with bit 7 set where that is beyond the window; in *positive where it is negative, too. */
WIDE_INLINE __m256i row_places(const uint8_t *elements, __m256i top, __m256i *positive)
{
    const __m256i exponent = _mm256_set1_epi16(0xff);
    __m256i first = load_codes(elements), second = load_codes(elements + 64);
    __m256i below = _mm256_packus_epi16(_mm256_sub_epi16(top, _mm256_and_si256(first, exponent)),
                                        _mm256_sub_epi16(top, _mm256_and_si256(second, exponent)));
    __m256i places = _mm256_adds_epu8(below, _mm256_set1_epi8(0x80 - EXPONENT_WINDOW));
    __m256i signs = _mm256_and_si256(_mm256_packs_epi16(first, second), _mm256_set1_epi8(-128));
    *positive = _mm256_or_si256(places, signs);
    return places;
}

/* Those of a row that are beyond the window. */
static void count_far(struct exponent_counter *counter, const uint8_t *elements)
{
    const mem_bits *words = (const mem_bits *)elements;
    for (int i = 0; i < ROW; i++)
        counter->tables[0][words[i] >> 23] += counter->top - (words[i] >> 23 & 0xff) >= EXPONENT_WINDOW;
}

/* A full adder in each bit: a + b + c is *a and, of twice the weight, what is returned. */
WIDE_INLINE __m256i add_bits(__m256i *a, __m256i b, __m256i c)
{
    __m256i either = _mm256_xor_si256(*a, b), both = _mm256_and_si256(*a, b);
    __m256i carry = _mm256_or_si256(both, _mm256_and_si256(either, c));
    *a = _mm256_xor_si256(either, c);
    return carry;
}

/* Adds the bits that four rows stand for to the first two digits; what is returned has the weight 4. */
WIDE_INLINE __m256i add_four(__m256i digits[5], const __m256i *rows, __m256i table)
{
    __m256i first = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[0]), _mm256_shuffle_epi8(table, rows[1]));
    __m256i second = add_bits(&digits[0], _mm256_shuffle_epi8(table, rows[2]), _mm256_shuffle_epi8(table, rows[3]));
    return add_bits(&digits[1], first, second);
}

WIDE_INLINE __m256i add_sixteen(__m256i digits[5], const __m256i *rows, __m256i table)
{
    __m256i first = add_four(digits, rows, table), second = add_four(digits, rows + 4, table);
    __m256i third = add_bits(&digits[2], first, second);
    first = add_four(digits, rows + 8, table);
    second = add_four(digits, rows + 12, table);
    return add_bits(&digits[3], third, add_bits(&digits[2], first, second));
}

/* table: the bit for each place; bit 7 of a row gives none. */
WIDE_INLINE void count_rows(struct exponent_counter *counter, int stream, const __m256i *rows, __m256i table)
{
    __m256i digits[5];
    memcpy(digits, counter->digits[stream], sizeof(digits));
    __m256i first = add_sixteen(digits, rows, table), second = add_sixteen(digits, rows + 16, table);
    __m256i sum = add_bits(&digits[4], first, second);
    memcpy(counter->digits[stream], digits, sizeof(digits));
#pragma GCC unroll 1 /* else gcc gathers the eight counts in vectors, by way of memory */
    for (int bit = 7; bit >= 0; bit--) {
        counter->thirty_twos[stream][bit] += (uint64_t)__builtin_popcount((unsigned)_mm256_movemask_epi8(sum));
        sum = _mm256_add_epi8(sum, sum);
    }
}

WIDE_INLINE void exponents_of(struct exponent_counter *counter, const uint8_t *elements, int top)
{
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, -128));
    const __m256i lower = _mm256_broadcastsi128_si256(_mm_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0));
    __m256i places[FLOAT_BLOCK / ROW], positive[FLOAT_BLOCK / ROW];
    uint32_t far_rows = 0;
    if (!window_fits(counter, top)) {
        exponents_count(counter, elements, FLOAT_BLOCK);
        return;
    }
    __m256i wide_top = _mm256_set1_epi16((short)counter->top);
    for (int i = 0; i < FLOAT_BLOCK / ROW; i++, elements += 4 * ROW) {
        places[i] = row_places(elements, wide_top, &positive[i]);
        if (_mm256_movemask_epi8(places[i])) {
            count_far(counter, elements);
            far_rows++;
        }
    }
    count_rows(counter, 0, places, lower);
    count_rows(counter, 1, places, upper);
    count_rows(counter, 2, positive, lower);
    count_rows(counter, 3, positive, upper);
    counter->plain_blocks = far_rows > FAR_ROWS ? PLAIN_BLOCKS : 0;
}

TARGET_WIDE static void exponents_wide(struct exponent_counter *counter, const void *elements, int top)
{
    exponents_of(counter, elements, top);
}

/* The same code: with more registers, and one instruction for three operands of bits. */
TARGET_WIDER static void exponents_wider(struct exponent_counter *counter, const void *elements, int top)
{
    exponents_of(counter, elements, top);
}

#endif

const struct float_block_kernels *float_block_kernels_find(int width)
{
    static const struct float_block_kernels plain = { moments_plain, exponents_plain };
#if HAS_WIDE
    static const struct float_block_kernels wide = { moments_wide, exponents_wide }, wider = { moments_wide, exponents_wider };
    __builtin_cpu_init();
    const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
    if (width >= 2 && has_wide && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return &wider;
    if (width >= 1 && has_wide)
        return &wide;
#endif
    (void)width;
    return &plain;
}
