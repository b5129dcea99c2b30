/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/value_tally.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/float_bits.h"
#include "kernels/cast.h"
#include "kernels/vector_width.h"

/* gcc vectorises these loops only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define BLOCK_ELEMENTS FLOAT_BLOCK
#define CODES_16 65536
#define COUNTERS (CODES_16 + BYTE_TABLES * 256)
#define BY_CODE_MIN 65536  /* elements from which on a table of all codes is worth being cleared and read */
#define PAIRED_MIN 1048576 /* 8-bit floats from which on a table of all pairs is */
#define BYTE_TABLES 4      /* the same byte often comes twice in a row: so the counts are apart */
#define CODED_MAX (UINT64_C(1) << 31)

void value_tally_start(struct value_tally *tally)
{
    *tally = (struct value_tally){ .min = INFINITY, .max = -INFINITY };
}

/* Joins the moments of count finite numbers to those of what the tally has; call before counting them. */
static void join_moments(struct value_tally *tally, uint64_t count, double mean, double square_sum)
{
    double before = (double)value_tally_finite(tally), added = (double)count, total = before + added;
    if (!count)
        return;
    double distance = mean - tally->mean;
    tally->square_sum += square_sum + distance * distance * before * added / total;
    tally->mean += distance * added / total;
}

/* Below this a number is subnormal in its type; 0 for types that have no such numbers. */
static double tally_smallest_normal(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F8_E4M3: return 0x1p-6;
    case DTYPE_F8_E4M3FNUZ: return 0x1p-7;
    case DTYPE_F8_E5M2FNUZ: return 0x1p-15;
    case DTYPE_F8_E5M2:
    case DTYPE_F16:
    case DTYPE_COMPLEX32: return 0x1p-14;
    case DTYPE_BF16:
    case DTYPE_F32:
    case DTYPE_C64: return 0x1p-126;
    case DTYPE_F64:
    case DTYPE_C128: return 0x1p-1022;
    default: return 0;
    }
}

/* times numbers of this value, all but their moments. */
static void tally_value(struct value_tally *tally, double value, uint64_t times, double smallest_normal)
{
    double magnitude = fabs(value);
    tally->count += times;
    if (!isfinite(value)) {
        *(isnan(value) ? &tally->nan_count : &tally->inf_count) += times;
        return;
    }
    tally->min = value < tally->min ? value : tally->min;
    tally->max = value > tally->max ? value : tally->max;
    tally->zero_count += value == 0 ? times : 0;
    tally->subnormal_count += value != 0 && magnitude < smallest_normal ? times : 0;
    if (value != 0)
        tally->bins[value > 0][double_exponent(value)] += times;
}

/* The slow way for any numbers. */
static void tally_any_doubles(struct value_tally *tally, const double *values, size_t count, double smallest_normal)
{
    double shift = 0, sum = 0, squares = 0;
    uint64_t finite = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i]))
            continue;
        shift = finite++ ? shift : values[i];
        sum += values[i] - shift;
        squares += (values[i] - shift) * (values[i] - shift);
    }
    if (finite) {
        double rest = squares - sum * sum / (double)finite;
        join_moments(tally, finite, shift + sum / (double)finite, rest > 0 ? rest : 0);
    }
    for (size_t i = 0; i < count; i++)
        tally_value(tally, values[i], 1, smallest_normal);
}

/* ---- float32, and what is read as such ---- */

typedef float mem_float __attribute__((aligned(1), may_alias));
typedef uint16_t mem_code __attribute__((aligned(1), may_alias));
typedef uint32_t mem_bits __attribute__((aligned(1), may_alias));

/* Of what numbers a tensor is that is counted in blocks of floats; other types are what they are. */
static enum dtype float_number(enum dtype dtype)
{
    return dtype == DTYPE_C64 ? DTYPE_F32 : dtype == DTYPE_COMPLEX32 ? DTYPE_F16 : dtype;
}

/* The same numbers as float32; widened, if need be, there. */
static const uint8_t *float_elements(const struct value_counter *counter, const uint8_t *bytes, float *widened, size_t count)
{
    struct cast cast;
    if (counter->number == DTYPE_F32 || !cast_find(counter->number, DTYPE_F32, &cast))
        return bytes;
    cast_run(&cast, bytes, widened, count);
    return (const uint8_t *)widened;
}

/* Range and moments of finite numbers. */
static void tally_doubled_floats(struct value_tally *tally, const mem_float *values, size_t count)
{
    double sum = 0, square = 0, shift = values[0];
    for (size_t i = 0; i < count; i++) {
        double distance = values[i] - shift;
        sum += distance;
        square += distance * distance;
        tally->min = values[i] < tally->min ? values[i] : tally->min;
        tally->max = values[i] > tally->max ? values[i] : tally->max;
    }
    double rest = square - sum * sum / (double)count;
    join_moments(tally, count, shift + sum / (double)count, rest > 0 ? rest : 0);
    tally->count += count;
}

/*
 * The same of a whole block, when the mean is known already: distances from it are summed as floats. false, and nothing is done, where
 * something is not finite, or the squares leave the range of float32, or its better part.
 */
static bool tally_block(struct value_counter *counter, const void *elements)
{
    struct value_tally *tally = &counter->tally;
    const float shift = (float)tally->mean;
    struct float_moments found;
    int16_t codes[BLOCK_ELEMENTS];
    counter->kernels.moments(elements, shift, &found, codes);
    const bool is_constant = found.low == found.high && found.square < INFINITY;
    if (!is_constant && !(found.square > 0x1p-90 && found.square < 0x1p127))
        return false;
    found.low += 0.0f; /* of the two zeros machines take either */
    found.high += 0.0f;
    tally->min = found.low < tally->min ? (double)found.low : tally->min;
    tally->max = found.high > tally->max ? (double)found.high : tally->max;
    double rest = is_constant ? 0 : found.square - found.sum * found.sum / BLOCK_ELEMENTS;
    double mean = is_constant ? (double)found.low : shift + found.sum / BLOCK_ELEMENTS;
    join_moments(tally, BLOCK_ELEMENTS, mean, rest > 0 ? rest : 0);
    tally->count += BLOCK_ELEMENTS;
    float largest = -found.low > found.high ? -found.low : found.high;
    if (is_constant)
        counter->exponents.tables[0][float_to_bits(found.low) >> 23] += BLOCK_ELEMENTS;
    else
        counter->kernels.exponents(&counter->exponents, codes, (int)(float_to_bits(largest) >> 23 & 0xff));
    return true;
}

/* By sign and exponent. */
static uint64_t signed_count(const struct value_counter *counter, unsigned code)
{
    uint64_t count = 0;
    for (int table = 0; table < EXPONENT_TABLES; table++)
        count += counter->exponents.tables[table][code];
    return count;
}

static uint64_t exponent_count(const struct value_counter *counter, unsigned exponent)
{
    return signed_count(counter, exponent) + signed_count(counter, exponent + 256);
}

/* Zeros and subnormals, of which most blocks have none. */
static void count_tiny(struct value_tally *tally, const uint8_t *bytes, size_t count)
{
    const mem_bits *codes = (const mem_bits *)bytes;
    uint32_t zeros = 0, positive = 0, negative = 0;
    for (size_t i = 0; i < count; i++) {
        zeros += (codes[i] & 0x7fffffff) == 0;
        positive += codes[i] - 1 < 0x7fffff;
        negative += codes[i] - 0x80000001 < 0x7fffff;
    }
    tally->zero_count += zeros;
    tally->subnormal_count += positive + negative;
    tally->bins[1][0] += positive;
    tally->bins[0][0] += negative;
}

/* Of floats as they are stored. */
static uint64_t count_zeros(const uint8_t *bytes, size_t count, size_t width)
{
    const mem_bits *words = (const mem_bits *)bytes;
    const mem_code *codes = (const mem_code *)bytes;
    uint32_t zeros = 0;
    uint16_t few = 0; /* of no more than a block: of the width that is compared, for gcc's sake */
    for (size_t i = 0; width == sizeof(*words) && i < count; i++)
        zeros += words[i] << 1 == 0;
    for (size_t i = 0; width == sizeof(*codes) && i < count; i++)
        few = (uint16_t)(few + ((codes[i] & 0x7fff) == 0));
    return zeros + few;
}

/* Any floats: what is not finite is left out of range and moments. */
static void tally_floats(struct value_tally *tally, const mem_float *values, size_t count)
{
    float finite[BLOCK_ELEMENTS];
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        tally->nan_count += isnan(values[i]) != 0;
        tally->inf_count += isinf(values[i]) != 0;
        if (isfinite(values[i]))
            finite[kept++] = values[i];
    }
    tally->count += count - kept;
    if (kept)
        tally_doubled_floats(tally, finite, kept);
}

/* The exponent of the smallest normal number: more than 1 for types whose subnormal numbers are normal as float32. */
static unsigned first_normal_exponent(const struct value_counter *counter)
{
    return float_to_bits((float)tally_smallest_normal(counter->dtype)) >> 23;
}

static void add_float_block(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    float widened[BLOCK_ELEMENTS];
    uint64_t least = exponent_count(counter, 0);
    const bool is_whole = count == BLOCK_ELEMENTS && value_tally_finite(&counter->tally);
    if (!is_whole || !tally_block(counter, bytes)) {
        const uint8_t *floats = float_elements(counter, bytes, widened, count);
        exponents_count(&counter->exponents, floats, count);
        tally_floats(&counter->tally, (const mem_float *)floats, count);
    }
    least = exponent_count(counter, 0) - least;
    if (least && (first_normal_exponent(counter) > 1 || count_zeros(bytes, count, dtype_element_bytes(counter->number)) == least))
        counter->tally.zero_count += least;
    else if (least)
        count_tiny(&counter->tally, float_elements(counter, bytes, widened, count), count);
    counter->coded += count;
}

/* ---- by code ---- */

/*
 * Each count is a load and a store of the same counter, and a CPU makes one a cycle: so bytes are counted by twos. The upper one moves the
 * lower one, else the pairs that floats have most would all want the same few places of the first-level cache.
 */
#define MOVED_BITS UINT64_C(0x00f000f000f000f0)

static inline uint64_t pairs_move(uint64_t pairs)
{
    return pairs ^ (pairs >> 6 & MOVED_BITS);
}

static void count_bytes_apart(uint32_t *codes, const uint8_t *bytes, size_t count)
{
    for (; count >= BYTE_TABLES; count -= BYTE_TABLES, bytes += BYTE_TABLES)
        for (size_t table = 0; table < BYTE_TABLES; table++)
            codes[table * 256 + bytes[table]]++;
    for (; count; count--, bytes++)
        codes[*bytes]++;
}

/* Words of four codes, or of four pairs of bytes. One that comes again and again (zeros, ones) would wait for its own counters. */
static inline __attribute__((always_inline)) void count_words(uint32_t *codes, const uint8_t *bytes, size_t count, bool is_paired)
{
    uint64_t word = 0, next;
    uint32_t times = 0;
    for (const uint8_t *end = bytes + count * sizeof(next); bytes < end; bytes += sizeof(next)) {
        memcpy(&next, bytes, sizeof(next));
        if (next == word) {
            times++;
            continue;
        }
        uint64_t four = is_paired ? pairs_move(word) : word;
        codes[four & 0xffff] += times;
        codes[four >> 16 & 0xffff] += times;
        codes[four >> 32 & 0xffff] += times;
        codes[four >> 48] += times;
        word = next;
        times = 1;
    }
    for (uint64_t four = is_paired ? pairs_move(word) : word, i = 0; i < 4; i++, four >>= 16)
        codes[four & 0xffff] += times;
}

/* The numbers that codes stand for, 256 of them from first on. */
static void decode_codes(enum dtype dtype, unsigned first, bool is_wide, double *values)
{
    uint8_t narrow[256];
    uint16_t wide[256];
    for (unsigned i = 0; i < 256; i++) {
        narrow[i] = (uint8_t)i;
        wide[i] = (uint16_t)(first + i);
    }
    cast_to_double_find(dtype)(is_wide ? (const void *)wide : narrow, values, 256);
}

/* For types whose numbers are summed as whole ones of this unit; else 0. */
static double whole_unit(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BOOL:
    case DTYPE_I8:
    case DTYPE_U8: return 1;
    case DTYPE_F8_E4M3: return (double)F8_E4M3_UNIT;
    default: return 0;
    }
}

/* The range of bytes, the slow way. */
static void widen_range(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    bool is_seen[256] = { false };
    double values[256];
    decode_codes(counter->dtype, 0, false, values);
    for (size_t i = 0; i < count; i++)
        is_seen[bytes[i]] = true;
    for (unsigned i = 0; i < 256; i++) {
        counter->tally.min = is_seen[i] && values[i] < counter->tally.min ? values[i] : counter->tally.min;
        counter->tally.max = is_seen[i] && values[i] > counter->tally.max ? values[i] : counter->tally.max;
    }
}

static void count_byte_blocks(struct value_counter *counter, const uint8_t *bytes, uint64_t blocks)
{
    const bool is_float = counter->dtype == DTYPE_F8_E4M3;
    const size_t count = (size_t)blocks * BYTE_BLOCK;
    struct value_tally *tally = &counter->tally;
    struct byte_moments found;
    counter->byte_moments(&counter->byte_tables, bytes, blocks, &found);
    const uint8_t ends[2] = { found.low, found.high };
    widen_range(counter, found.has_range ? ends : bytes, found.has_range ? 2 : count);
    const uint64_t nan_count = is_float ? found.places[0][BYTE_PLACE_NAN] : 0;
    uint64_t sized = nan_count;
    for (int i = 0; i < (is_float ? BYTE_PLACE_NAN : 8); i++) {
        const int bin = i + (is_float ? 127 - 9 : 127);
        tally->bins[1][bin] += found.places[1][i];
        tally->bins[0][bin] += found.places[0][i] - found.places[1][i];
        tally->subnormal_count += is_float && i < 3 ? found.places[0][i] : 0;
        sized += found.places[0][i];
    }
    tally->count += count;
    tally->nan_count += nan_count;
    tally->zero_count += count - sized;
    counter->whole_sum += found.sum;
    counter->whole_square += found.square;
}

static void count_codes_8(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    for (uint64_t blocks = counter->byte_moments ? count / BYTE_BLOCK : 0, part; blocks; blocks -= part) {
        part = blocks < BYTE_BLOCKS_MAX ? blocks : BYTE_BLOCKS_MAX;
        count_byte_blocks(counter, bytes, part);
        bytes += part * BYTE_BLOCK;
        count -= part * BYTE_BLOCK;
    }
    size_t words = counter->is_paired ? count / sizeof(uint64_t) : 0, done = words * sizeof(uint64_t);
    count_words(counter->codes, bytes, words, true);
    count_bytes_apart(counter->codes + CODES_16, bytes + done, count - done);
}

static void count_codes_16(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const size_t words = count / 4;
    const mem_code *rest = (const mem_code *)bytes + 4 * words;
    count_words(counter->codes, bytes, words, false);
    for (size_t i = 0; i < count % 4; i++)
        counter->codes[rest[i]]++;
}

/* The moments of 256 codes that occur `times` each: the mean first, then the distances from it. */
static void join_codes(struct value_tally *tally, const double *values, const uint64_t *times)
{
    double sum = 0, squares = 0;
    uint64_t finite = 0;
    for (int i = 0; i < 256; i++) {
        if (!times[i] || !isfinite(values[i]))
            continue;
        sum += values[i] * (double)times[i];
        finite += times[i];
    }
    double mean = finite ? sum / (double)finite : 0;
    for (int i = 0; i < 256; i++) {
        if (times[i] && isfinite(values[i]))
            squares += (values[i] - mean) * (values[i] - mean) * (double)times[i];
    }
    join_moments(tally, finite, mean, squares);
}

static void sum_codes(struct value_counter *counter, const double *values, const uint64_t *times)
{
    for (int i = 0; i < 256; i++) {
        if (!times[i] || !isfinite(values[i]))
            continue;
        const int64_t number = (int64_t)(values[i] / whole_unit(counter->dtype));
        counter->whole_sum += number * (int64_t)times[i];
        counter->whole_square += (wide_sum)(number * number) * times[i];
    }
}

/* Moments by whole sums: around the whole number below the mean, all but the last step is exact. */
static void end_whole_sums(struct value_counter *counter)
{
    const double unit = whole_unit(counter->dtype);
    const int64_t count = (int64_t)value_tally_finite(&counter->tally);
    if (count) {
        const int64_t near = counter->whole_sum / count, rest = counter->whole_sum - near * count;
        const wide_sum squares = counter->whole_square - (wide_sum)near * (wide_sum)(counter->whole_sum + rest);
        counter->tally.mean = unit * ((double)near + (double)rest / (double)count);
        counter->tally.square_sum = unit * unit * ((double)squares - (double)rest * (double)rest / (double)count);
    }
    counter->whole_sum = 0;
    counter->whole_square = 0;
}

/* How often each of 256 codes came, from first on; false: none did. */
static bool codes_take(const struct value_counter *counter, unsigned first, bool is_wide, uint64_t *times)
{
    const uint32_t *codes = counter->codes + (is_wide ? first : CODES_16);
    uint64_t any = 0;
    for (unsigned i = 0; i < 256; i++) {
        times[i] = codes[i];
        for (unsigned table = 1; !is_wide && table < BYTE_TABLES; table++)
            times[i] += codes[table * 256 + i];
    }
    for (unsigned i = 0; counter->is_paired && i < CODES_16; i++) {
        times[i >> 8] += counter->codes[i];
        times[pairs_move(i) & 0xff] += counter->codes[i];
    }
    for (unsigned i = 0; i < 256; i++)
        any |= times[i];
    return any != 0;
}

static void end_codes(struct value_counter *counter)
{
    const bool is_wide = dtype_element_bytes(counter->dtype) == 2;
    double values[256];
    uint64_t times[256];
    for (unsigned first = 0; first < (is_wide ? CODES_16 : 256); first += 256) {
        if (!codes_take(counter, first, is_wide, times))
            continue;
        decode_codes(counter->dtype, first, is_wide, values);
        if (whole_unit(counter->dtype) > 0)
            sum_codes(counter, values, times);
        else
            join_codes(&counter->tally, values, times);
        for (int i = 0; i < 256; i++) {
            if (times[i])
                tally_value(&counter->tally, values[i], times[i], tally_smallest_normal(counter->dtype));
        }
    }
    if (is_wide || counter->is_paired)
        memset(counter->codes, 0, CODES_16 * sizeof(*counter->codes));
    memset(counter->codes + CODES_16, 0, BYTE_TABLES * 256 * sizeof(*counter->codes));
    counter->coded = 0;
}

static void add_codes(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const unsigned width = dtype_element_bytes(counter->dtype);
    while (count) {
        size_t part = count < CODED_MAX / 2 ? count : CODED_MAX / 2;
        (width == 2 ? count_codes_16 : count_codes_8)(counter, bytes, part);
        counter->coded += part;
        if (counter->coded >= CODED_MAX)
            end_codes(counter);
        bytes += part * width;
        count -= part;
    }
}

/* ---- any type ---- */

/* Those of a block of F64 that the first bin is for. */
static void count_tiny_doubles(struct value_tally *tally, const uint8_t *bytes)
{
    for (int i = 0; i < DOUBLE_BLOCK; i++) {
        double value;
        memcpy(&value, bytes + (size_t)i * sizeof(value), sizeof(value));
        if (value != 0 && double_exponent(value) == 0)
            tally->bins[value > 0][0]++;
    }
}

/* A whole block of what the kernels read; false, and nothing is done, where something is not finite, or squares are not. */
static bool tally_double_block(struct value_counter *counter, const uint8_t *bytes)
{
    struct value_tally *tally = &counter->tally;
    struct double_moments found;
    int16_t codes[DOUBLE_BLOCK];
    double shift;
    cast_to_double_find(counter->doubles->reads)(bytes, &shift, 1);
    counter->doubles->moments(bytes, shift, tally_smallest_normal(counter->dtype), &found, codes);
    if (!(found.square < INFINITY))
        return false;
    double rest = found.square - found.sum * found.sum / DOUBLE_BLOCK;
    join_moments(tally, DOUBLE_BLOCK, shift + found.sum / DOUBLE_BLOCK, rest > 0 ? rest : 0);
    found.low += 0.0; /* of the two zeros machines take either */
    found.high += 0.0;
    tally->min = found.low < tally->min ? found.low : tally->min;
    tally->max = found.high > tally->max ? found.high : tally->max;
    tally->count += DOUBLE_BLOCK;
    uint64_t least = exponent_count(counter, 0);
    counter->kernels.exponents(&counter->exponents, codes, double_exponent(-found.low > found.high ? found.low : found.high));
    least = exponent_count(counter, 0) - least;
    const bool is_float = tally_smallest_normal(counter->dtype) > 0;
    tally->zero_count += is_float ? found.zeros : least;
    tally->subnormal_count += is_float ? found.tiny - found.zeros : 0;
    if (is_float && least > found.zeros)
        count_tiny_doubles(tally, bytes);
    counter->coded += DOUBLE_BLOCK;
    return true;
}

static void add_doubles(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const unsigned parts = dtype_info(counter->dtype)->class_ == DTYPE_CLASS_COMPLEX ? 2 : 1;
    double values[2 * BLOCK_ELEMENTS];
    if (counter->doubles->reads == counter->dtype && count == DOUBLE_BLOCK && tally_double_block(counter, bytes))
        return;
    cast_to_double_find(counter->dtype)(bytes, values, count);
    for (size_t left = count * parts, part; left; left -= part) {
        const double *next = values + (count * parts - left);
        part = left < DOUBLE_BLOCK ? left : DOUBLE_BLOCK;
        if (counter->doubles->reads != DTYPE_F64 || part < DOUBLE_BLOCK || !tally_double_block(counter, (const uint8_t *)next))
            tally_any_doubles(&counter->tally, next, part, tally_smallest_normal(counter->dtype));
    }
}

/* What has the smallest exponent is counted where it was met. */
static void end_blocks(struct value_counter *counter)
{
    struct value_tally *tally = &counter->tally;
    exponents_settle(&counter->exponents);
    for (unsigned i = 1; i < first_normal_exponent(counter); i++)
        tally->subnormal_count += exponent_count(counter, i);
    for (unsigned i = 1; i < (counter->doubles ? 256 : 255); i++) { /* the largest floats are no numbers */
        tally->bins[1][i] += signed_count(counter, i);
        tally->bins[0][i] += signed_count(counter, i + 256);
    }
    memset(&counter->exponents, 0, sizeof(counter->exponents));
    counter->coded = 0;
}

/* count elements, a whole block but at a tensor's end. */
static void add_block(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    if (counter->doubles)
        add_doubles(counter, bytes, count);
    else
        add_float_block(counter, bytes, count);
    if (counter->coded >= CODED_MAX)
        end_blocks(counter);
}

static size_t block_width(const struct value_counter *counter)
{
    return dtype_element_bytes(counter->number);
}

static void add_blocks(struct value_counter *counter, const uint8_t *bytes, size_t size)
{
    const size_t whole = BLOCK_ELEMENTS * block_width(counter);
    while (size) {
        if (!counter->waiting && size >= whole) {
            add_block(counter, bytes, BLOCK_ELEMENTS);
            bytes += whole;
            size -= whole;
            continue;
        }
        size_t part = size < whole - counter->waiting ? size : whole - counter->waiting;
        memcpy(counter->block + counter->waiting, bytes, part);
        counter->waiting += part;
        bytes += part;
        size -= part;
        if (counter->waiting == whole) {
            add_block(counter, counter->block, BLOCK_ELEMENTS);
            counter->waiting = 0;
        }
    }
}

bool value_counter_knows(enum dtype dtype)
{
    return cast_to_double_find(dtype) != NULL;
}

bool value_counter_start(struct value_counter *counter, enum dtype dtype, uint64_t elements)
{
    const unsigned width = dtype_element_bytes(dtype);
    const struct dtype_info *info = dtype_info(dtype);
    const enum dtype number = float_number(dtype);
    value_tally_start(&counter->tally);
    counter->dtype = dtype;
    counter->number = number;
    counter->waiting = 0;
    counter->kernels = float_block_kernels_find(number, VECTOR_WIDTH_BEST);
    counter->doubles = counter->kernels.moments ? NULL : double_block_kernels_find(dtype, VECTOR_WIDTH_BEST);
    counter->is_by_code = counter->doubles && (width == 1 || (width == 2 && elements >= BY_CODE_MIN));
    counter->byte_moments = elements >= BYTE_BLOCK ? byte_moments_find(dtype) : NULL;
    if (counter->byte_moments)
        byte_tables_make(&counter->byte_tables, dtype);
    counter->is_paired = !counter->byte_moments && info->class_ == DTYPE_CLASS_FLOAT && width == 1 &&
                         elements >= PAIRED_MIN; /* integers have too many pairs */
    if (!counter->is_by_code || counter->codes)
        return true;
    counter->codes = array_zeroed(COUNTERS, sizeof(*counter->codes));
    return counter->codes != NULL;
}

void value_counter_add(struct value_counter *counter, const void *elements, size_t count)
{
    if (counter->is_by_code)
        add_codes(counter, elements, count);
    else
        add_blocks(counter, elements, count * dtype_element_bytes(counter->dtype));
}

void value_counter_end(struct value_counter *counter)
{
    if (counter->waiting)
        add_block(counter, counter->block, counter->waiting / block_width(counter));
    counter->waiting = 0;
    if (counter->is_by_code)
        end_codes(counter);
    if (whole_unit(counter->dtype) > 0)
        end_whole_sums(counter);
    if (!counter->is_by_code && counter->coded)
        end_blocks(counter);
}

void value_counter_release(struct value_counter *counter)
{
    free(counter->codes);
    *counter = (struct value_counter){ 0 };
}
