/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/value_tally.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/cast.h"
#include "kernels/float_bits.h"

/* gcc vectorises these loops only at this level. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

#define BLOCK_ELEMENTS FLOAT_BLOCK
#define CODES_16 65536
#define BY_CODE_MIN 8192   /* elements from which on a table of all codes is worth being cleared and read */
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

void value_tally_join(struct value_tally *into, const struct value_tally *from)
{
    join_moments(into, value_tally_finite(from), from->mean, from->square_sum);
    into->count += from->count;
    into->nan_count += from->nan_count;
    into->inf_count += from->inf_count;
    into->zero_count += from->zero_count;
    into->subnormal_count += from->subnormal_count;
    into->min = from->min < into->min ? from->min : into->min;
    into->max = from->max > into->max ? from->max : into->max;
    for (int i = 0; i < TALLY_BINS; i++) {
        into->bins[0][i] += from->bins[0][i];
        into->bins[1][i] += from->bins[1][i];
    }
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

/* The bin of a finite magnitude that is not zero. */
static int tally_bin(double magnitude)
{
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof(bits));
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023 + 127;
    return exponent < 0 ? 0 : exponent >= TALLY_BINS ? TALLY_BINS - 1 : exponent;
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
        tally->bins[value > 0][tally_bin(magnitude)] += times;
}

/* The slow way for any numbers. */
static void tally_doubles(struct value_tally *tally, const double *values, size_t count, double smallest_normal)
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

/* ---- float32 and bfloat16 ---- */

typedef float mem_float __attribute__((aligned(1), may_alias));
typedef uint16_t mem_code __attribute__((aligned(1), may_alias));

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
    counter->kernels->moments(elements, shift, &found);
    const bool is_constant = found.low == found.high && found.square < INFINITY;
    if (!is_constant && !(found.square > 0x1p-90 && found.square < 0x1p127))
        return false;
    tally->min = found.low < tally->min ? (double)found.low : tally->min;
    tally->max = found.high > tally->max ? (double)found.high : tally->max;
    double rest = is_constant ? 0 : found.square - found.sum * found.sum / BLOCK_ELEMENTS;
    double mean = is_constant ? (double)found.low : shift + found.sum / BLOCK_ELEMENTS;
    join_moments(tally, BLOCK_ELEMENTS, mean, rest > 0 ? rest : 0);
    tally->count += BLOCK_ELEMENTS;
    float largest = -found.low > found.high ? -found.low : found.high;
    counter->kernels->exponents(&counter->exponents, elements, (int)(float_to_bits(largest) >> 23 & 0xff));
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
    typedef uint32_t mem_bits __attribute__((aligned(1), may_alias));
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

static void add_float_block(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const bool is_bf16 = counter->dtype == DTYPE_BF16, is_whole = count == BLOCK_ELEMENTS && value_tally_finite(&counter->tally);
    const uint64_t tiny = exponent_count(counter, 0);
    const void *values = bytes;
    float wide[BLOCK_ELEMENTS];
    const bool is_done = is_whole && tally_block(counter, bytes);
    if (!is_done)
        exponents_count(&counter->exponents, bytes, count, is_bf16);
    if (is_bf16 && (!is_done || exponent_count(counter, 0) != tiny)) {
        for (size_t i = 0; i < count; i++)
            wide[i] = bf16_decode(((const mem_code *)bytes)[i]);
        values = wide;
    }
    if (!is_done)
        tally_floats(&counter->tally, values, count);
    if (exponent_count(counter, 0) != tiny)
        count_tiny(&counter->tally, values, count);
}

/* What has the smallest exponent is counted where it was met. */
static void end_exponents(struct value_counter *counter)
{
    struct value_tally *tally = &counter->tally;
    exponents_settle(&counter->exponents);
    for (unsigned i = 1; i < 255; i++) {
        tally->bins[1][i] += signed_count(counter, i);
        tally->bins[0][i] += signed_count(counter, i + 256);
    }
    memset(&counter->exponents, 0, sizeof(counter->exponents));
    counter->coded = 0;
}

/* ---- by code ---- */

static void count_codes_8(uint32_t *codes, const uint8_t *bytes, size_t count)
{
    size_t whole = count - count % 4;
    for (size_t i = 0; i < whole; i += 4) {
        codes[bytes[i]]++;
        codes[256 + bytes[i + 1]]++;
        codes[512 + bytes[i + 2]]++;
        codes[768 + bytes[i + 3]]++;
    }
    for (size_t i = whole; i < count; i++)
        codes[bytes[i]]++;
}

/* Four at a time, so that there are fewer loads beside those of the table. */
static void count_codes_block(uint32_t *codes, const mem_code *elements, size_t count)
{
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        uint64_t four;
        memcpy(&four, elements + i, sizeof(four));
        codes[four & 0xffff]++;
        codes[four >> 16 & 0xffff]++;
        codes[four >> 32 & 0xffff]++;
        codes[four >> 48]++;
    }
    for (; i < count; i++)
        codes[elements[i]]++;
}

/* Whole blocks of one code are frequent (zeros, ones), and slow one by one. */
static void count_codes_16(uint32_t *codes, const uint8_t *bytes, size_t count)
{
    const mem_code *elements = (const mem_code *)bytes;
    while (count) {
        size_t part = count < BLOCK_ELEMENTS ? count : BLOCK_ELEMENTS;
        uint16_t first = elements[0], differ = 0;
        for (size_t i = 0; i < part; i++)
            differ |= (uint16_t)(elements[i] ^ first);
        if (differ)
            count_codes_block(codes, elements, part);
        else
            codes[first] += (uint32_t)part;
        elements += part;
        count -= part;
    }
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

/* Adds 256 codes that occur `times` each: the mean first, then the distances from it. */
static void tally_codes(struct value_tally *tally, const double *values, const uint64_t *times, double smallest_normal)
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
    for (int i = 0; i < 256; i++) {
        if (times[i])
            tally_value(tally, values[i], times[i], smallest_normal);
    }
}

static void end_codes(struct value_counter *counter)
{
    const bool is_wide = dtype_element_bytes(counter->dtype) == 2;
    double values[256];
    uint64_t times[256];
    for (unsigned first = 0; first < (is_wide ? CODES_16 : 256); first += 256) {
        uint64_t any = 0;
        for (unsigned i = 0; i < 256; i++) {
            times[i] = counter->codes[first + i];
            for (unsigned table = 1; !is_wide && table < 4; table++)
                times[i] += counter->codes[table * 256 + i];
            any |= times[i];
        }
        if (!any)
            continue;
        decode_codes(counter->dtype, first, is_wide, values);
        tally_codes(&counter->tally, values, times, tally_smallest_normal(counter->dtype));
    }
    memset(counter->codes, 0, (is_wide ? CODES_16 : 1024) * sizeof(*counter->codes));
    counter->coded = 0;
}

static void add_codes(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const unsigned width = dtype_element_bytes(counter->dtype);
    while (count) {
        size_t part = count < CODED_MAX / 2 ? count : CODED_MAX / 2;
        (width == 2 ? count_codes_16 : count_codes_8)(counter->codes, bytes, part);
        counter->coded += part;
        if (counter->coded >= CODED_MAX)
            end_codes(counter);
        bytes += part * width;
        count -= part;
    }
}

/* ---- any type ---- */

static void add_double_block(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    const unsigned parts = dtype_info(counter->dtype)->class_ == DTYPE_CLASS_COMPLEX ? 2 : 1;
    double values[2 * BLOCK_ELEMENTS];
    cast_to_double_find(counter->dtype)(bytes, values, count);
    tally_doubles(&counter->tally, values, count * parts, tally_smallest_normal(counter->dtype));
}

/* count elements, a whole block but at a tensor's end. */
static void add_block(struct value_counter *counter, const uint8_t *bytes, size_t count)
{
    if (!counter->kernels) {
        add_double_block(counter, bytes, count);
        return;
    }
    add_float_block(counter, bytes, count);
    counter->coded += count;
    if (counter->coded >= CODED_MAX)
        end_exponents(counter);
}

/* Numbers are of this many bytes: a complex one of float32 is two of them. */
static size_t block_width(const struct value_counter *counter)
{
    return counter->dtype == DTYPE_C64 ? sizeof(float) : dtype_element_bytes(counter->dtype);
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
    const bool is_complex = dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX;
    const bool is_float = dtype == DTYPE_F32 || dtype == DTYPE_C64 || dtype == DTYPE_BF16;
    value_tally_start(&counter->tally);
    counter->dtype = dtype;
    counter->waiting = 0;
    counter->kernels = is_float ? float_block_kernels_find(dtype == DTYPE_BF16, FLOAT_WIDTH_BEST) : NULL;
    counter->is_by_code = !is_float && !is_complex && (width == 1 || (width == 2 && elements >= BY_CODE_MIN));
    if (!counter->is_by_code || counter->codes)
        return true;
    counter->codes = calloc(CODES_16, sizeof(*counter->codes));
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
    else if (counter->coded)
        end_exponents(counter);
}

void value_counter_release(struct value_counter *counter)
{
    free(counter->codes);
    *counter = (struct value_counter){ 0 };
}
