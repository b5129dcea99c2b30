/* SPDX-License-Identifier: Apache-2.0 */
/* Casts at the edges of each type, as torch 2.13 gives them; tests/live/cast_test.py compares all pairs with torch itself. */
#include "check.h"

#include <math.h>

#include "kernels/cast.h"

static uint64_t cast_one(enum dtype source, enum dtype target, const void *bytes)
{
    struct cast cast;
    uint64_t out = 0;
    assert_true(cast_find(source, target, &cast));
    cast_run(&cast, bytes, &out, 1);
    return out;
}

TEST(float32_is_rounded_to_nearest_even_and_overflows_as_torch_does)
{
    static const struct {
        float value;
        uint16_t f16, bf16;
        uint8_t e5m2, e4m3, e8m0, e4m3fnuz, e5m2fnuz;
    } cases[] = {
        { 0.0f, 0x0000, 0x0000, 0x00, 0x00, 0x00, 0x00, 0x00 },     { -0.0f, 0x8000, 0x8000, 0x80, 0x80, 0x00, 0x00, 0x00 },
        { 1.0f, 0x3c00, 0x3f80, 0x3c, 0x38, 0x7f, 0x40, 0x40 },     { -3.0f, 0xc200, 0xc040, 0xc2, 0xc4, 0x81, 0xcc, 0xc6 },
        { 464.0f, 0x5f40, 0x43e8, 0x5f, 0x7e, 0x88, 0x80, 0x63 },   { 480.0f, 0x5f80, 0x43f0, 0x60, 0x7e, 0x88, 0x80, 0x64 },
        { 240.0f, 0x5b80, 0x4370, 0x5c, 0x77, 0x87, 0x7f, 0x60 },   { 65519.0f, 0x7bff, 0x4780, 0x7c, 0x7e, 0x8f, 0x80, 0x80 },
        { 65520.0f, 0x7c00, 0x4780, 0x7c, 0x7e, 0x8f, 0x80, 0x80 }, { 0x1p-24f, 0x0001, 0x3380, 0x00, 0x00, 0x67, 0x00, 0x00 },
        { 0x1p-25f, 0x0000, 0x3300, 0x00, 0x00, 0x66, 0x00, 0x00 }, { 0x1.8p-25f, 0x0001, 0x3340, 0x00, 0x00, 0x67, 0x00, 0x00 },
        { INFINITY, 0x7c00, 0x7f80, 0x7c, 0x7e, 0xff, 0x80, 0x80 }, { -INFINITY, 0xfc00, 0xff80, 0xfc, 0xfe, 0xff, 0x80, 0x80 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const float *value = &cases[i].value;
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F16, value), cases[i].f16);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_BF16, value), cases[i].bf16);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F8_E5M2, value), cases[i].e5m2);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F8_E4M3, value), cases[i].e4m3);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F8_E8M0, value), cases[i].e8m0);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F8_E4M3FNUZ, value), cases[i].e4m3fnuz);
        assert_int_equal(cast_one(DTYPE_F32, DTYPE_F8_E5M2FNUZ, value), cases[i].e5m2fnuz);
    }
}

TEST(nan_stays_nan)
{
    static const enum dtype floats[] = { DTYPE_F16,     DTYPE_BF16,        DTYPE_F8_E5M2,     DTYPE_F8_E4M3,
                                         DTYPE_F8_E8M0, DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ, DTYPE_F64 };
    uint32_t nans[] = { 0x7fc00000, 0xffc00001, 0x7f800001, 0xffffffff };
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++)
        for (size_t j = 0; j < 4; j++) {
            uint64_t there = cast_one(DTYPE_F32, floats[i], &nans[j]), back = cast_one(floats[i], DTYPE_F32, &there);
            float value;
            memcpy(&value, &back, sizeof(value));
            assert_true(isnan(value));
        }
}

/* Every 8- and 16-bit float survives the way to a wider type and back. */
TEST(small_floats_survive_the_way_to_wider_types_and_back)
{
    static const enum dtype floats[] = { DTYPE_F16,     DTYPE_BF16,        DTYPE_F8_E5M2,    DTYPE_F8_E4M3,
                                         DTYPE_F8_E8M0, DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ };
    static const enum dtype wide[] = { DTYPE_F32, DTYPE_F64 };
    for (size_t i = 0; i < sizeof(floats) / sizeof(floats[0]); i++)
        for (size_t w = 0; w < 2; w++) {
            to_double_function to_double = cast_to_double_find(floats[i]);
            for (uint32_t bits = 0; bits < UINT32_C(1) << dtype_info(floats[i])->bits; bits++) {
                double value;
                to_double(&bits, &value, 1);
                uint64_t there = cast_one(floats[i], wide[w], &bits), back = cast_one(wide[w], floats[i], &there);
                bool is_saved = floats[i] == DTYPE_F8_E4M3 || !isinf(value);
                if (!isnan(value) && is_saved && back != bits)
                    fail_msg("%s %#x came back as %#llx", dtype_info(floats[i])->name, bits, (unsigned long long)back);
            }
        }
}

TEST(float64_reaches_small_floats_through_float32)
{
    double value = 1.0 + 0x1p-11 + 0x1p-40; /* float32 drops the last bit, and then it is a tie */
    assert_int_equal(cast_one(DTYPE_F64, DTYPE_F16, &value), 0x3c00);
}

TEST(integers_wrap_and_floats_truncate)
{
    int64_t big = 0x123456789abcdefe;
    assert_int_equal(cast_one(DTYPE_I64, DTYPE_U8, &big), 0xfe);
    assert_int_equal(cast_one(DTYPE_I64, DTYPE_I16, &big), 0xdefe);
    int8_t minus = -2;
    assert_true(cast_one(DTYPE_I8, DTYPE_U64, &minus) == UINT64_MAX - 1);
    uint64_t top = UINT64_MAX;
    double real;
    uint64_t as_double = cast_one(DTYPE_U64, DTYPE_F64, &top);
    memcpy(&real, &as_double, sizeof(real));
    assert_true(real == 0x1p64);
    static const struct {
        double value;
        int32_t i32;
        uint8_t u8, boolean;
    } cases[] = { { 1.9, 1, 1, 1 },  { -1.9, -1, 255, 1 },       { 300.5, 300, 44, 1 },   { 0.0, 0, 0, 0 },
                  { -0.0, 0, 0, 0 }, { 1e300, INT32_MIN, 0, 1 }, { NAN, INT32_MIN, 0, 1 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal((int32_t)cast_one(DTYPE_F64, DTYPE_I32, &cases[i].value), cases[i].i32);
        assert_int_equal(cast_one(DTYPE_F64, DTYPE_U8, &cases[i].value), cases[i].u8);
        assert_int_equal(cast_one(DTYPE_F64, DTYPE_BOOL, &cases[i].value), cases[i].boolean);
    }
}

TEST(the_upper_halves_of_unsigned_types_are_reached)
{
    static const struct {
        double value;
        uint32_t u32;
        uint64_t u64;
    } cases[] = {
        { 2147483647.9, 0x7fffffff, 0x7fffffff },
        { 2147483648.0, UINT32_C(1) << 31, UINT64_C(1) << 31 },
        { 3000000000.5, 3000000000u, 3000000000u },
        { 4294967295.0, UINT32_MAX, UINT32_MAX },
        { 4294967297.0, 1, UINT64_C(4294967297) },
        { 0x1p63, 0, UINT64_C(1) << 63 },
        { 15000000000000000000.0, 0x69a60000, UINT64_C(15000000000000000000) >> 11 << 11 },
        { 0x1.fffffffffffffp63, 0xfffff800, UINT64_MAX - 2047 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(cast_one(DTYPE_F64, DTYPE_U64, &cases[i].value) == cases[i].u64);
        if (cases[i].value < 0x1p63) /* beyond int64 there is no answer that all machines give */
            assert_int_equal(cast_one(DTYPE_F64, DTYPE_U32, &cases[i].value), cases[i].u32);
    }
}

TEST(long_and_unaligned_runs_agree_with_single_elements)
{
    uint8_t source[1001 * 8 + 1], target[1001 * 2 + 1];
    uint64_t seed = 3;
    struct cast cast;
    for (size_t i = 0; i < 1001; i++) {
        double value = (double)(int64_t)test_random(&seed) * 0x1p-50;
        memcpy(source + 1 + i * 8, &value, 8);
    }
    assert_true(cast_find(DTYPE_F64, DTYPE_BF16, &cast));
    cast_run(&cast, source + 1, target + 1, 1001);
    for (size_t i = 0; i < 1001; i++) {
        uint16_t got;
        memcpy(&got, target + 1 + i * 2, 2);
        assert_int_equal(got, cast_one(DTYPE_F64, DTYPE_BF16, source + 1 + i * 8));
    }
}

TEST(complex_is_cast_by_parts_and_shown_as_two_doubles)
{
    float value[2] = { 1.5f, -2.0f };
    uint64_t half = cast_one(DTYPE_C64, DTYPE_COMPLEX32, value);
    assert_int_equal(half, 0xc0003e00);
    double parts[2];
    cast_to_double_find(DTYPE_COMPLEX32)(&half, parts, 1);
    assert_true(parts[0] == 1.5 && parts[1] == -2.0);
    assert_null(cast_to_double_find(DTYPE_BITS8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_is_rounded_to_nearest_even_and_overflows_as_torch_does),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(small_floats_survive_the_way_to_wider_types_and_back),
        cmocka_unit_test(float64_reaches_small_floats_through_float32),
        cmocka_unit_test(integers_wrap_and_floats_truncate),
        cmocka_unit_test(the_upper_halves_of_unsigned_types_are_reached),
        cmocka_unit_test(long_and_unaligned_runs_agree_with_single_elements),
        cmocka_unit_test(complex_is_cast_by_parts_and_shown_as_two_doubles),
    };
    return cmocka_run_group_tests_name("cast", tests, NULL, NULL);
}
