/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/byte_block.h"

#include <stddef.h>
#include <string.h>

#include "base/float_bits.h"
#include "kernels/vector_width.h"

/* The numbers of F8_E4M3 in units of the smallest; but for NaN. */
static unsigned byte_number(unsigned code, enum dtype dtype)
{
    return dtype == DTYPE_F8_E4M3 ? (unsigned)(f8_e4m3_decode((uint8_t)code) / F8_E4M3_UNIT) : code;
}

void byte_tables_make(struct byte_tables *tables, enum dtype dtype)
{
    const bool is_float = dtype == DTYPE_F8_E4M3;
    memset(tables, 0, sizeof(*tables));
    for (unsigned code = 1; code < (is_float ? 127 : 128); code++) {
        const unsigned number = byte_number(code, dtype), place = 31 - (unsigned)__builtin_clz(number);
        tables->places[place / 8][code] = (uint8_t)(1 << place % 8);
        for (int i = 0; i < 3; i++)
            tables->digits[i][code] = (uint8_t)(number >> 6 * i & 63);
    }
    if (is_float)
        tables->places[BYTE_PLACE_NAN / 8][127] = 1 << BYTE_PLACE_NAN % 8;
}

#if defined(__x86_64__)
#define TARGET_BYTES __attribute__((target("avx2,popcnt,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))
#define BYTES_INLINE TARGET_BYTES static inline __attribute__((always_inline))
#define IS_UNSIGNED(dtype) ((dtype) == DTYPE_U8 || (dtype) == DTYPE_BOOL)
#define ROW 64
#define ROWS (BYTE_BLOCK / ROW)
#define DIGITS 5         /* binary ones, of the number of ROWS */
#define BLOCKS_AT_ONCE 32 /* whose sums 32 bits hold */

/* Of BOOL all codes but 0 are 1. */
BYTES_INLINE __m512i bytes_load(const uint8_t *bytes, enum dtype dtype)
{
    const __m512i codes = _mm512_loadu_si512(bytes);
    return dtype == DTYPE_BOOL ? _mm512_min_epu8(codes, _mm512_set1_epi8(1)) : codes;
}

BYTES_INLINE __m512i bytes_look_up(const uint8_t table[128], __m512i codes)
{
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), codes, _mm512_loadu_si512(table + 64));
}

/* The place of each as a bit, if it is among these eight. */
BYTES_INLINE __m512i bytes_places(const struct byte_tables *tables, const uint8_t *bytes, int eight, __m512i *positive, enum dtype dtype)
{
    const __m512i upper = _mm512_set1_epi8(-128);
    const __m512i codes = bytes_load(bytes, dtype);
    __m512i places;
    const __mmask64 has_sign = _mm512_movepi8_mask(codes);
    if (dtype == DTYPE_F8_E4M3) {
        places = bytes_look_up(tables->places[eight], codes);
    } else if (dtype == DTYPE_I8) { /* 128 is looked up as 0, which has none */
        __m512i magnitude = _mm512_abs_epi8(codes);
        places = _mm512_or_si512(bytes_look_up(tables->places[0], magnitude), _mm512_and_si512(magnitude, upper));
    } else {
        places = _mm512_mask_mov_epi8(bytes_look_up(tables->places[0], codes), has_sign, upper);
    }
    *positive = _mm512_mask_mov_epi8(places, has_sign, _mm512_setzero_si512());
    return places;
}

BYTES_INLINE __m512i add_three(__m512i *a, __m512i b, __m512i c)
{
    __m512i carry = _mm512_ternarylogic_epi64(*a, b, c, 0xe8);
    *a = _mm512_ternarylogic_epi64(*a, b, c, 0x96);
    return carry;
}

/* Adds two rows to sums that are carried from digit to digit by twos. */
BYTES_INLINE __m512i carry_rows(__m512i digits[DIGITS], __m512i pending[DIGITS], int row, __m512i first, __m512i second)
{
    __m512i carry = add_three(&digits[0], first, second);
#pragma GCC unroll 4
    for (int digit = 1; digit < DIGITS; digit++) {
        if (!(row >> digit & 1)) {
            pending[digit] = carry;
            break;
        }
        carry = add_three(&digits[digit], pending[digit], carry);
    }
    return carry;
}

BYTES_INLINE void count_carry(uint64_t counts[8], __m512i carry)
{
#pragma GCC unroll 1
    for (int bit = 7; bit >= 0; bit--) {
        counts[bit] += ROWS * (uint64_t)__builtin_popcountll(_mm512_movepi8_mask(carry));
        carry = _mm512_add_epi8(carry, carry);
    }
}

/* Counts eight places, bit by bit. */
BYTES_INLINE void count_places(const struct byte_tables *tables, const uint8_t *bytes, __m512i digits[2][DIGITS], struct byte_moments *out,
                               int eight, enum dtype dtype)
{
    __m512i all[DIGITS], some[DIGITS], pending[2][DIGITS] = { 0 }, carry[2] = { 0 };
    memcpy(all, digits[0], sizeof(all));
    memcpy(some, digits[1], sizeof(some));
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i += 2) {
        __m512i positive[2];
        __m512i first = bytes_places(tables, bytes + i * ROW, eight, &positive[0], dtype);
        __m512i second = bytes_places(tables, bytes + (i + 1) * ROW, eight, &positive[1], dtype);
        carry[0] = carry_rows(all, pending[0], i, first, second);
        if (!IS_UNSIGNED(dtype))
            carry[1] = carry_rows(some, pending[1], i, positive[0], positive[1]);
    }
    memcpy(digits[0], all, sizeof(all));
    memcpy(digits[1], some, sizeof(some));
    count_carry(out->places[0] + 8 * eight, carry[0]);
    if (!IS_UNSIGNED(dtype))
        count_carry(out->places[1] + 8 * eight, carry[1]);
}

/* What is left in the digits. */
BYTES_INLINE void settle_places(__m512i digits[DIGITS], uint64_t counts[8])
{
    for (int digit = 0; digit < DIGITS; digit++) {
        for (int bit = 7; bit >= 0; bit--) {
            counts[bit] += (uint64_t)__builtin_popcountll(_mm512_movepi8_mask(digits[digit])) << digit;
            digits[digit] = _mm512_add_epi8(digits[digit], digits[digit]);
        }
    }
}

struct byte_lanes {
    __m512i number[3], square[5], ends[2]; /* ends: see byte_range_end */
};

BYTES_INLINE void sum_row(const struct byte_tables *tables, const uint8_t *bytes, struct byte_lanes *lanes, enum dtype dtype)
{
    const __m512i codes = bytes_load(bytes, dtype), ones = _mm512_set1_epi8(1), upper = _mm512_set1_epi8(-128);
    const bool is_unsigned = IS_UNSIGNED(dtype), is_float = dtype == DTYPE_F8_E4M3;
    lanes->ends[0] = is_unsigned ? _mm512_max_epu8(lanes->ends[0], codes) : _mm512_max_epi8(lanes->ends[0], codes);
    lanes->ends[1] = is_float ? _mm512_max_epu8(lanes->ends[1], codes) : is_unsigned ? _mm512_min_epu8(lanes->ends[1], codes)
                                                                                     : _mm512_min_epi8(lanes->ends[1], codes);
    if (is_float) { /* four bits that follow each other are in no more than two digits of six */
        const __m512i signs = _mm512_mask_mov_epi8(ones, _mm512_movepi8_mask(codes), _mm512_set1_epi8(-1));
        const __m512i low = bytes_look_up(tables->digits[0], codes), middle = bytes_look_up(tables->digits[1], codes);
        const __m512i high = bytes_look_up(tables->digits[2], codes);
        lanes->number[0] = _mm512_dpbusd_epi32(lanes->number[0], low, signs);
        lanes->number[1] = _mm512_dpbusd_epi32(lanes->number[1], middle, signs);
        lanes->number[2] = _mm512_dpbusd_epi32(lanes->number[2], high, signs);
        lanes->square[0] = _mm512_dpbusd_epi32(lanes->square[0], low, low);
        lanes->square[1] = _mm512_dpbusd_epi32(lanes->square[1], low, middle);
        lanes->square[2] = _mm512_dpbusd_epi32(lanes->square[2], middle, middle);
        lanes->square[3] = _mm512_dpbusd_epi32(lanes->square[3], middle, high);
        lanes->square[4] = _mm512_dpbusd_epi32(lanes->square[4], high, high);
        return;
    }
    /* The instruction takes a number without a sign and one with it: so the squares are of x (x + 128), or x (x - 128). */
    const __m512i moved = _mm512_xor_si512(codes, upper);
    lanes->number[0] = _mm512_dpbusd_epi32(lanes->number[0], dtype == DTYPE_I8 ? ones : codes, dtype == DTYPE_I8 ? codes : ones);
    lanes->square[0] = _mm512_dpbusd_epi32(lanes->square[0], dtype == DTYPE_I8 ? moved : codes, dtype == DTYPE_I8 ? codes : moved);
}

BYTES_INLINE void sums_end(struct byte_lanes *lanes, struct byte_moments *out, enum dtype dtype)
{
    int64_t number[3], square[5];
    for (int i = 0; i < 3; i++)
        number[i] = _mm512_reduce_add_epi32(lanes->number[i]);
    for (int i = 0; i < 5; i++)
        square[i] = _mm512_reduce_add_epi32(lanes->square[i]);
    const int64_t low = square[0] + (square[1] << 7), high = square[2] + (square[3] << 7) + (square[4] << 12);
    out->sum += number[0] + number[1] * 64 + number[2] * 4096;
    out->square += (uint64_t)(low + (high << 12) + (dtype == DTYPE_I8 ? -128 : IS_UNSIGNED(dtype) ? 128 : 0) * number[0]);
    memset(lanes->number, 0, sizeof(lanes->number));
    memset(lanes->square, 0, sizeof(lanes->square));
}

/* Of integers the largest and the least. Of floats, whose codes go up from zero with either sign, the largest as signed and as unsigned
 * numbers: of which the second is the least of all, but if none is negative. */
BYTES_INLINE void byte_range_end(const struct byte_lanes *lanes, struct byte_moments *out, enum dtype dtype)
{
    uint8_t ends[2][ROW];
    memcpy(ends, lanes->ends, sizeof(ends));
    for (int i = 0; i < ROW; i++) {
        const uint8_t high = ends[0][i], low = ends[1][i];
        if (IS_UNSIGNED(dtype) ? high > out->high : (int8_t)high > (int8_t)out->high)
            out->high = high;
        if (dtype == DTYPE_F8_E4M3 ? low > out->low : IS_UNSIGNED(dtype) ? low < out->low : (int8_t)low < (int8_t)out->low)
            out->low = low;
    }
    out->has_range = dtype != DTYPE_F8_E4M3 || (out->high < 127 && out->low >= 128 && out->low < 255);
}

BYTES_INLINE void byte_moments_of(const struct byte_tables *tables, const uint8_t *bytes, uint64_t blocks, struct byte_moments *out,
                                  enum dtype dtype)
{
    const int eights = dtype == DTYPE_F8_E4M3 ? 3 : 1;
    const __m512i none = _mm512_setzero_si512(), first = _mm512_set1_epi8((char)bytes[0]);
    struct byte_lanes lanes = { { none, none, none }, { none, none, none, none, none }, { first, first } };
    __m512i digits[3][2][DIGITS];
    memset(digits, 0, sizeof(digits));
    *out = (struct byte_moments){ .high = bytes[0], .low = bytes[0] };
    for (uint64_t block = 1; block <= blocks; block++, bytes += BYTE_BLOCK) {
        for (int i = 0; i < ROWS; i++)
            sum_row(tables, bytes + i * ROW, &lanes, dtype);
        for (int eight = 0; eight < eights; eight++)
            count_places(tables, bytes, digits[eight], out, eight, dtype);
        if (block % BLOCKS_AT_ONCE == 0 || block == blocks)
            sums_end(&lanes, out, dtype);
    }
    for (int i = 0; i < 2 * eights; i++)
        settle_places(digits[i / 2][i % 2], out->places[i % 2] + i / 2 * 8);
    if (IS_UNSIGNED(dtype))
        memcpy(out->places[1], out->places[0], sizeof(out->places[0]));
    byte_range_end(&lanes, out, dtype);
}

#define BYTE_MOMENTS(id)                                                                                                   \
    TARGET_BYTES static void byte_moments_##id(const struct byte_tables *tables, const uint8_t *bytes, uint64_t blocks,   \
                                               struct byte_moments *out)                                                  \
    {                                                                                                                     \
        byte_moments_of(tables, bytes, blocks, out, DTYPE_##id);                                                          \
    }

BYTE_MOMENTS(I8)
BYTE_MOMENTS(U8)
BYTE_MOMENTS(BOOL)
BYTE_MOMENTS(F8_E4M3)

#endif

byte_moments_function byte_moments_find(enum dtype dtype)
{
#if defined(__x86_64__)
    if (vector_width(VECTOR_WIDTH_BEST) < 2 || !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("avx512vnni"))
        return NULL;
    static const byte_moments_function functions[DTYPE_COUNT] = {
        [DTYPE_BOOL] = byte_moments_BOOL, [DTYPE_I8] = byte_moments_I8, [DTYPE_U8] = byte_moments_U8, [DTYPE_F8_E4M3] = byte_moments_F8_E4M3
    };
    return functions[dtype];
#else
    (void)dtype;
    return NULL;
#endif
}
