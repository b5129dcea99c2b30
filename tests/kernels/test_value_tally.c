/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of values against the slow obvious way: every type, elements of random bits, any pieces. */
#include "check.h"

#include <math.h>

#include "kernels/cast.h"
#include "kernels/value_tally.h"
#include "kernels/vector_width.h"

#define COUNT 70011 /* more than a table of codes needs; no whole number of blocks */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void tally_slowly(const double *values, size_t count, double smallest_normal, struct value_tally *out)
{
    long double sum = 0, squares = 0;
    value_tally_start(out);
    out->count = count;
    for (size_t i = 0; i < count; i++) {
        double value = values[i], size = fabs(value);
        out->nan_count += isnan(value);
        out->inf_count += isinf(value) != 0;
        if (!isfinite(value))
            continue;
        out->zero_count += size == 0;
        out->subnormal_count += size > 0 && size < smallest_normal;
        out->min = fmin(out->min, value);
        out->max = fmax(out->max, value);
        sum += value;
        int bin = size > 0 ? ilogb(size) + 127 : 0;
        out->bins[value > 0][bin < 0 ? 0 : bin > 255 ? 255 : bin] += size > 0;
    }
    long double finite = value_tally_finite(out);
    for (size_t i = 0; i < count; i++)
        squares += isfinite(values[i]) ? (values[i] - sum / finite) * (values[i] - sum / finite) : 0;
    out->mean = (double)(sum / finite);
    out->square_sum = (double)squares;
}

static void assert_near(double found, double expected, double scale)
{
    if (!(fabs(found - expected) <= 1e-6 * scale) && !(isinf(expected) || isinf(scale)))
        fail_msg("%.17g instead of %.17g", found, expected);
}

static void check_tally(enum dtype dtype, const uint8_t *bytes, size_t count, double smallest_normal)
{
    static double values[2 * COUNT];
    struct value_tally expected;
    struct value_counter counter = { 0 };
    const size_t width = dtype_element_bytes(dtype), parts = dtype_info(dtype)->class_ == DTYPE_CLASS_COMPLEX ? 2 : 1;
    cast_to_double_find(dtype)(bytes, values, count);
    tally_slowly(values, count * parts, smallest_normal, &expected);
    assert_true(value_counter_start(&counter, dtype, count));
    for (size_t done = 0; done < count;) {
        size_t part = 1 + random_bits() % 5000;
        part = part < count - done ? part : count - done;
        value_counter_add(&counter, bytes + done * width, part);
        done += part;
    }
    value_counter_end(&counter);
    const struct value_tally *found = &counter.tally;
    assert_int_equal(found->count, expected.count);
    assert_int_equal(found->nan_count, expected.nan_count);
    assert_int_equal(found->inf_count, expected.inf_count);
    assert_int_equal(found->zero_count, expected.zero_count);
    assert_int_equal(found->subnormal_count, expected.subnormal_count);
    assert_memory_equal(found->bins, expected.bins, sizeof(expected.bins));
    if (value_tally_finite(&expected)) {
        double deviation = sqrt(expected.square_sum / (double)value_tally_finite(&expected));
        assert_true(found->min == expected.min && found->max == expected.max);
        assert_near(found->mean, expected.mean, deviation + fabs(expected.mean) * 1e-7);
        assert_near(found->square_sum, expected.square_sum, expected.square_sum);
    }
    value_counter_release(&counter);
}

static const struct {
    enum dtype dtype;
    double smallest_normal;
} types[] = {
    { DTYPE_BOOL, 0 }, { DTYPE_U8, 0 }, { DTYPE_I8, 0 }, { DTYPE_F8_E5M2, 0x1p-14 }, { DTYPE_F8_E4M3, 0x1p-6 },
    { DTYPE_F8_E8M0, 0 },        { DTYPE_I16, 0 },          { DTYPE_U16, 0 },          { DTYPE_F16, 0x1p-14 },     { DTYPE_BF16, 0x1p-126 },
    { DTYPE_F32, 0x1p-126 },     { DTYPE_F64, 0x1p-1022 },  { DTYPE_I32, 0 },          { DTYPE_U32, 0 },           { DTYPE_I64, 0 },
    { DTYPE_F8_E4M3FNUZ, 0x1p-7 }, { DTYPE_F8_E5M2FNUZ, 0x1p-15 }, { DTYPE_C64, 0x1p-126 }, { DTYPE_COMPLEX32, 0x1p-14 }, { DTYPE_U64, 0 },
};

TEST(any_bits_of_every_type)
{
    static uint8_t bytes[COUNT * 8 + 1];
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (size_t count = 1; count <= COUNT; count = count == 1 ? 700 : count == 700 ? COUNT : COUNT + 1) {
            for (size_t j = 0; j < sizeof(bytes); j++)
                bytes[j] = (uint8_t)(random_bits() >> 11);
            if (types[i].dtype == DTYPE_F64) /* squares of any doubles have no sum */
                for (size_t j = 7; j < sizeof(bytes); j += 8)
                    bytes[j] = (bytes[j] & 0x80) | 0x3f;
            check_tally(types[i].dtype, bytes + (types[i].dtype == DTYPE_F64 ? 0 : 1), count, types[i].smallest_normal);
        }
}

/* What float32 sums would lose: a mean far from zero, small squares, large ones, drift, constants. */
TEST(moments_of_difficult_floats)
{
    static float values[COUNT];
    for (int kind = 0; kind < 7; kind++) {
        for (size_t i = 0; i < COUNT; i++) {
            float noise = (float)(random_bits() >> 40) / 16777216.0f - 0.5f;
            float made[] = { 1e6f + noise, noise * 1e-22f, noise * 1e25f, (float)i + noise, 7.25f, 0.0f, i == 0 ? 1e9f : noise };
            values[i] = made[kind];
        }
        check_tally(DTYPE_F32, (uint8_t *)values, COUNT, 0x1p-126);
    }
}

/* Exponents around window ends, zeros, subnormals, NaN and infinities now and then, and a level that changes from block to block; at last
 * blocks of one number. */
static void make_levels(float *values, size_t count, int kind)
{
    for (size_t i = 0; i < count; i++) {
        float noise = (float)(random_bits() >> 40) / 16777216.0f - 0.5f;
        int far = kind == 1 ? (int)(random_bits() % 40) - 20 : kind == 2 ? (int)(i / FLOAT_BLOCK * 7 % 60) - 30 : -118;
        int level = kind % 4 ? far : 0;
        values[i] = ldexpf(kind < 4 ? noise : i / 3000 % 2 ? -3.5f : i / 3000 % 4 && random_bits() % 2 ? -0.0f : 0.0f, level);
        if (random_bits() % 997 == 0)
            values[i] = (float[]){ 0.0f, -0.0f, 1e-40f, -1e-40f, kind == 2 ? NAN : 1.0f, kind == 2 ? -INFINITY : 2.0f }[random_bits() % 6];
    }
}

/* Pieces of one element as far as some blocks reach, then of one more than a block. */
static void add_in_pieces(struct value_counter *counter, const void *elements, size_t count, size_t piece)
{
    const unsigned width = dtype_element_bytes(counter->dtype);
    for (size_t done = 0; done < count;) {
        size_t size = piece == 1 && done >= 5 * FLOAT_BLOCK ? FLOAT_BLOCK + 1 : piece;
        size = size < count - done ? size : count - done;
        value_counter_add(counter, (const uint8_t *)elements + done * width, size);
        done += size;
    }
}

/* By each width of machine: the same to the last bit, for any pieces. */
static void tally_by_width(enum dtype dtype, const void *elements, size_t count, size_t piece, int width, struct value_tally *out)
{
    struct value_counter counter = { 0 };
    assert_true(value_counter_start(&counter, dtype, count));
    counter.kernels = float_block_kernels_find(counter.number, width);
    counter.doubles = counter.doubles ? double_block_kernels_find(dtype, width) : NULL;
    add_in_pieces(&counter, elements, count, piece);
    value_counter_end(&counter);
    *out = counter.tally;
    value_counter_release(&counter);
}

TEST(no_bit_depends_on_machine_or_pieces)
{
    static float values[COUNT * 4];
    static double doubles[COUNT * 4];
    static int32_t numbers[COUNT * 4];
    static int64_t long_numbers[COUNT * 4];
    static uint16_t halves[COUNT * 4], float16s[COUNT * 4];
    const struct {
        enum dtype dtype;
        const void *elements;
    } made[] = { { DTYPE_F32, values }, { DTYPE_F64, doubles }, { DTYPE_I32, numbers }, { DTYPE_U32, numbers }, { DTYPE_I64, long_numbers },
               { DTYPE_U64, long_numbers }, { DTYPE_BF16, halves }, { DTYPE_F16, float16s } };
    const size_t pieces[] = { 1, 1000, 1024, 5000, COUNT * 4 };
    struct cast to_float16;
    assert_true(cast_find(DTYPE_F32, DTYPE_F16, &to_float16));
    for (int kind = 0; kind < 5; kind++) {
        make_levels(values, COUNT * 4, kind);
        cast_run(&to_float16, values, float16s, COUNT * 4);
        for (size_t i = 0; i < COUNT * 4; i++) {
            memcpy(&halves[i], (const uint8_t *)&values[i] + 2, 2);
            doubles[i] = i % 991 ? (double)values[i] : ldexp((double)values[i], kind == 4 ? -1050 : -960);
            numbers[i] = (int32_t)(random_bits() >> 32) >> random_bits() % 32;
            long_numbers[i] = (int64_t)random_bits() >> random_bits() % (kind == 3 ? 10 : 64);
        }
        for (size_t type = 0; type < sizeof(made) / sizeof(made[0]); type++) {
            struct value_tally expected, found;
            tally_by_width(made[type].dtype, made[type].elements, COUNT * 4, COUNT, 0, &expected);
            for (int width = 0; width <= VECTOR_WIDTH_BEST; width++)
                for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
                    tally_by_width(made[type].dtype, made[type].elements, COUNT * 4, pieces[i], width, &found);
                    assert_memory_equal(&found, &expected, sizeof(found));
                }
        }
        check_tally(DTYPE_F32, (uint8_t *)values, COUNT, 0x1p-126);
        check_tally(DTYPE_F64, (uint8_t *)doubles, COUNT, 0x1p-1022);
        for (size_t type = 2; type < 6; type++)
            check_tally(made[type].dtype, made[type].elements, COUNT, 0);
        check_tally(DTYPE_BF16, (uint8_t *)halves, COUNT, 0x1p-126);
        check_tally(DTYPE_F16, (uint8_t *)float16s, COUNT, 0x1p-14);
    }
}

/* Each code of 16 bits in blocks of numbers like it, with zeros among them, at an odd address, by each width. */
TEST(every_code_of_16_bits)
{
    enum { NUMBERS = 65536 * 5 };
    static uint8_t room[2 * NUMBERS + 1];
    static double values[NUMBERS];
    const enum dtype dtypes[] = { DTYPE_BF16, DTYPE_F16 };
    for (uint32_t i = 0; i < NUMBERS; i++) {
        uint16_t code = i % 5 == 4 ? 0 : (uint16_t)(i / 5 * 4 + i % 5 + (i % 5 == 3 ? 0x8000 : 0));
        memcpy(room + 1 + (size_t)i * 2, &code, 2);
    }
    for (int type = 0; type < 2; type++) {
        struct value_tally slow, found;
        cast_to_double_find(dtypes[type])(room + 1, values, NUMBERS);
        tally_slowly(values, NUMBERS, type ? 0x1p-14 : 0x1p-126, &slow);
        for (int width = 0; width <= VECTOR_WIDTH_BEST; width++) {
            tally_by_width(dtypes[type], room + 1, NUMBERS, NUMBERS, width, &found);
            assert_int_equal(found.nan_count, slow.nan_count);
            assert_int_equal(found.inf_count, slow.inf_count);
            assert_int_equal(found.zero_count, slow.zero_count);
            assert_int_equal(found.subnormal_count, slow.subnormal_count);
            assert_true(found.min == slow.min && found.max == slow.max);
            assert_memory_equal(found.bins, slow.bins, sizeof(slow.bins));
        }
    }
}

/* A block by its kernels: the range of numbers of one sign and of both, at any address. */
TEST(range_of_a_block)
{
    static uint8_t room[FLOAT_BLOCK * 4 + 1];
    const enum dtype dtypes[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
    for (int turn = 0; turn < 3 * 4 * 3; turn++) {
        const enum dtype dtype = dtypes[turn % 3];
        const int signs = turn / 3 % 4;
        float values[FLOAT_BLOCK], low = INFINITY, high = -INFINITY;
        struct float_moments expected, found;
        int16_t codes[FLOAT_BLOCK];
        struct cast cast;
        for (int i = 0; i < FLOAT_BLOCK; i++) {
            values[i] = (float)(random_bits() % 999 + 1) / 8 * (signs == 0 || (signs == 2 && random_bits() % 2) ? -1 : 1);
            values[i] = signs == 3 && random_bits() % 2 ? 0 : values[i];
        }
        assert_true(cast_find(DTYPE_F32, dtype, &cast));
        cast_run(&cast, values, room + turn % 2, FLOAT_BLOCK);
        assert_true(cast_find(dtype, DTYPE_F32, &cast));
        cast_run(&cast, room + turn % 2, values, FLOAT_BLOCK);
        for (int i = 0; i < FLOAT_BLOCK; i++) {
            low = fminf(low, values[i]);
            high = fmaxf(high, values[i]);
        }
        float_block_kernels_find(dtype, 0).moments(room + turn % 2, 1.5f, &expected, codes);
        for (int width = 0; width <= VECTOR_WIDTH_BEST; width++) {
            float_block_kernels_find(dtype, width).moments(room + turn % 2, 1.5f, &found, codes);
            assert_true(found.low == low && found.high == high);
            assert_true(found.sum == expected.sum && found.square == expected.square);
        }
    }
}

/* Blocks whose exponents are near each other, far apart or none, settled at any time, twice too. */
TEST(exponents_of_blocks)
{
    for (int width = 0; width <= VECTOR_WIDTH_BEST; width++) {
        static struct exponent_counter counter;
        uint64_t expected[512] = { 0 };
        memset(&counter, 0, sizeof(counter));
        for (int block = 0; block < 400; block++) {
            const int around = (int)(random_bits() % 4 ? 120 : random_bits() % 255), spread = random_bits() % 8 ? 12 : 60;
            int16_t codes[FLOAT_BLOCK];
            int top = 0;
            for (int i = 0; i < FLOAT_BLOCK; i++) {
                int exponent = around - (int)(random_bits() % (unsigned)spread);
                exponent = exponent < 0 || random_bits() % 50 == 0 ? 0 : exponent;
                top = exponent > top ? exponent : top;
                codes[i] = (int16_t)(exponent - (random_bits() % 3 ? 0 : 256));
                expected[codes[i] & 0x1ff]++;
            }
            float_block_kernels_find(DTYPE_F32, width).exponents(&counter, codes, top);
            for (int turn = 0; block % 37 == 36 && turn < 2; turn++)
                exponents_settle(&counter);
        }
        exponents_settle(&counter);
        for (int code = 1; code < 512; code++) {
            uint64_t found = 0;
            for (int table = 0; table < EXPONENT_TABLES; table++)
                found += counter.tables[table][code] + (code == 256 ? counter.tables[table][0] : 0);
            assert_int_equal(found, expected[code] + (code == 256 ? expected[0] : 0)); /* zeros have no sign */
        }
    }
}

/* A block of doubles by each width: at any address, zeros of both signs, subnormals, and what ends the sums. */
TEST(blocks_of_doubles)
{
    static uint8_t room[DOUBLE_BLOCK * sizeof(double) + 1];
    const double special[] = { 0.0, -0.0, 0x1p-1060, -0x1p-1060, 0x1p-126, 0x1p-127, -0x1p128, -0x1p200, 0x1p-20, -3e200 };
    for (int turn = 0; turn < 20; turn++) {
        double values[DOUBLE_BLOCK], low = INFINITY, high = -INFINITY;
        struct double_moments found, plain;
        uint64_t zeros = 0, tiny = 0;
        for (int i = 0; i < DOUBLE_BLOCK; i++) {
            values[i] = random_bits() % 9 ? (double)(int64_t)random_bits() * 0x1p-63 : special[random_bits() % (turn ? 10 : 9)];
            zeros += values[i] == 0;
            tiny += fabs(values[i]) < 0x1p-14;
            low = fmin(low, values[i]);
            high = fmax(high, values[i]);
        }
        memcpy(room + turn % 2, values, sizeof(values));
        for (int width = 0; width <= VECTOR_WIDTH_BEST; width++) {
            int16_t codes[DOUBLE_BLOCK];
            double_block_kernels_find(DTYPE_F64, width)->moments(room + turn % 2, values[0], 0x1p-14, &found, codes);
            plain = width ? plain : found;
            assert_true(found.sum == plain.sum && found.square == plain.square);
            assert_true(found.low == low && found.high == high && found.zeros == zeros && found.tiny == tiny);
            assert_true(turn ? found.square > 1e200 : found.square < INFINITY);
            for (int i = 0; i < DOUBLE_BLOCK; i++) {
                int exponent = values[i] == 0 || ilogb(values[i]) < -127 ? 0 : ilogb(values[i]) > 128 ? 255 : ilogb(values[i]) + 127;
                assert_int_equal(codes[i], exponent - (signbit(values[i]) ? 256 : 0));
            }
        }
    }
    for (int width = 0; width <= VECTOR_WIDTH_BEST; width++) /* one number that is none is enough, wherever it is */
        for (int at = 0; at < DOUBLE_BLOCK; at++) {
            double values[DOUBLE_BLOCK] = { 0 };
            struct double_moments found;
            int16_t codes[DOUBLE_BLOCK];
            values[at] = at % 2 ? NAN : -INFINITY;
            double_block_kernels_find(DTYPE_F64, width)->moments(values, values[0], 0, &found, codes);
            assert_false(found.square < INFINITY);
        }
}

/* Bytes counted by twos, as large tensors are: all pairs there are, runs, any pieces at any address. */
TEST(bytes_by_twos)
{
    static uint8_t bytes[2 * 65536 + COUNT];
    const size_t pieces[] = { 1, 7, 8, 1001, sizeof(bytes) };
    for (size_t i = 0; i < 65536; i++) {
        bytes[2 * i] = (uint8_t)i;
        bytes[2 * i + 1] = (uint8_t)(i >> 8);
    }
    for (size_t i = 0; i < COUNT; i++)
        bytes[2 * 65536 + i] = i < 5000 ? 0 : i < 20000 ? 0xb1 : i < 40000 ? (uint8_t)(i / 8 % 3) : (uint8_t)random_bits();
    for (size_t type = 0; type < sizeof(types) / sizeof(types[0]); type++) {
        struct value_counter alone = { 0 }, paired = { 0 };
        if (dtype_element_bytes(types[type].dtype) != 1 || dtype_info(types[type].dtype)->class_ != DTYPE_CLASS_FLOAT)
            continue;
        for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
            assert_true(value_counter_start(&alone, types[type].dtype, 1));
            assert_true(value_counter_start(&paired, types[type].dtype, UINT64_C(1) << 30));
            paired.byte_moments = NULL;
            paired.is_paired = true;
            assert_true(!alone.byte_moments && !alone.is_paired);
            for (size_t at = 0; at < sizeof(bytes); at++)
                value_counter_add(&alone, bytes + at, 1);
            add_in_pieces(&paired, bytes, sizeof(bytes), pieces[i]);
            value_counter_end(&alone);
            value_counter_end(&paired);
            assert_memory_equal(&paired.tally, &alone.tally, sizeof(alone.tally));
        }
        value_counter_release(&alone);
        value_counter_release(&paired);
    }
}

/* Bytes that are summed as whole numbers, against those that are counted by code: all there are, those of one sign, one alone; NaN late. */
TEST(bytes_by_blocks)
{
    static uint8_t room[BYTE_BLOCK * 37 + 501];
    const size_t pieces[] = { 1000, 3 * BYTE_BLOCK + 7, sizeof(room) }, count = sizeof(room) - 1;
    const enum dtype dtypes[] = { DTYPE_U8, DTYPE_I8, DTYPE_F8_E4M3, DTYPE_BOOL };
    for (int turn = 0; turn < 4 * 7 * 3; turn++) {
        const enum dtype dtype = dtypes[turn % 4];
        const int kind = turn / 4 % 7;
        const size_t piece = pieces[turn / 28];
        struct value_counter alone = { 0 }, blocks = { 0 };
        for (size_t i = 0; i < count; i++) {
            uint8_t code = (uint8_t)(random_bits() >> 9);
            uint8_t made[] = { code, code & 0x7f, code | 0x80, 0x80, (uint8_t)(code & 0xbf), 0xfd, (uint8_t)(code & 0xbf) };
            room[1 + i] = kind == 1 && made[1] == 0x7f ? 0 : kind == 2 && made[2] == 0xff ? 0xfe : made[kind];
        }
        if (kind >= 4) { /* the ends are where NaN is */
            room[1 + BYTE_BLOCK + 9] = kind == 4 ? 0xfe : 0x7e;
            room[1 + BYTE_BLOCK + 99] = kind == 4 ? 0xff : 0x7f;
        }
        assert_true(value_counter_start(&alone, dtype, 1));
        assert_true(value_counter_start(&blocks, dtype, count));
        assert_true(!alone.byte_moments);
        add_in_pieces(&alone, room + 1, count, 1);
        add_in_pieces(&blocks, room + 1, count, piece);
        value_counter_end(&alone);
        value_counter_end(&blocks);
        assert_memory_equal(&blocks.tally, &alone.tally, sizeof(alone.tally));
        check_tally(dtype, room + 1, count, dtype == DTYPE_F8_E4M3 ? 0x1p-6 : 0);
        value_counter_release(&alone);
        value_counter_release(&blocks);
    }
}

/* Tables do not depend on what lay where they are made. */
TEST(tables_of_bytes_are_whole)
{
    const enum dtype counted[] = { DTYPE_BOOL, DTYPE_I8, DTYPE_U8, DTYPE_F8_E4M3 };
    for (size_t i = 0; i < sizeof(counted) / sizeof(counted[0]); i++) {
        struct byte_tables clean, dirty;
        memset(&clean, 0, sizeof(clean));
        memset(&dirty, 0xff, sizeof(dirty));
        byte_tables_make(&clean, counted[i]);
        byte_tables_make(&dirty, counted[i]);
        assert_memory_equal(&clean, &dirty, sizeof(clean));
    }
}

/* Sums of more bytes than 32 bits hold, and whose squares need more than 64. */
TEST(sums_of_many_bytes)
{
    static uint8_t bytes[1 << 24];
    struct value_counter counter = { 0 };
    memset(bytes, 0x7e, sizeof(bytes)); /* 448 */
    memset(bytes, 0xfe, 1 << 20);
    assert_true(value_counter_start(&counter, DTYPE_F8_E4M3, UINT64_C(1) << 30));
    for (int i = 0; i < 64; i++)
        value_counter_add(&counter, bytes, sizeof(bytes));
    value_counter_end(&counter);
    assert_true(counter.tally.mean == 448.0 * 14 / 16);
    assert_near(counter.tally.square_sum, 448.0 * 448 * 0x1p30 * (1 - 14.0 * 14 / 256), 1);
    assert_int_equal(counter.tally.bins[0][127 + 8], UINT64_C(1) << 26);
    memset(bytes, 255, sizeof(bytes));
    assert_true(value_counter_start(&counter, DTYPE_U8, sizeof(bytes)));
    value_counter_add(&counter, bytes, sizeof(bytes));
    value_counter_end(&counter);
    assert_true(counter.tally.mean == 255 && counter.tally.square_sum == 0);
    value_counter_release(&counter);
}

/* More of one number than a counter of 32 bits holds: in blocks, and by code. */
TEST(no_counter_overflows)
{
    static uint16_t ones[1 << 19];
    const uint64_t turns = (UINT64_C(1) << 32) / (1 << 19) + 3, count = turns << 19;
    for (size_t i = 0; i < 1 << 19; i++)
        ones[i] = 0x3f80;
    for (int is_code = 0; is_code < 2; is_code++) {
        struct value_counter counter = { 0 };
        assert_true(value_counter_start(&counter, is_code ? DTYPE_I16 : DTYPE_BF16, count));
        assert_true(counter.is_by_code == is_code);
        for (uint64_t i = 0; i < turns; i++)
            value_counter_add(&counter, ones, 1 << 19);
        value_counter_end(&counter);
        assert_int_equal(counter.tally.count, count);
        assert_int_equal(counter.tally.bins[1][is_code ? 127 + 13 : 127], count);
        assert_true(counter.tally.mean == (is_code ? 0x3f80 : 1) && counter.tally.square_sum == 0);
        value_counter_release(&counter);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bits_of_every_type),
        cmocka_unit_test(moments_of_difficult_floats),
        cmocka_unit_test(no_bit_depends_on_machine_or_pieces),
        cmocka_unit_test(every_code_of_16_bits),
        cmocka_unit_test(range_of_a_block),
        cmocka_unit_test(exponents_of_blocks),
        cmocka_unit_test(blocks_of_doubles),
        cmocka_unit_test(bytes_by_twos),
        cmocka_unit_test(bytes_by_blocks),
        cmocka_unit_test(tables_of_bytes_are_whole),
        cmocka_unit_test(sums_of_many_bytes),
        cmocka_unit_test(no_counter_overflows),
    };
    return cmocka_run_group_tests_name("value_tally", tests, NULL, NULL);
}
