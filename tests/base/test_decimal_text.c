/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "fail_malloc.h"

#include "base/decimal_text.h"

#include <float.h>
#include <locale.h>
#include <math.h>

static char *text_of(struct buffer *buffer)
{
    assert_true(buffer_append_byte(buffer, 0));
    return (char *)buffer->data;
}

TEST(doubles_are_written_as_python_writes_them)
{
    static const struct { double value; const char *text;
    } cases[] = {
        { 0.0, "0.0" },
        { -0.0, "-0.0" },
        { 1.0, "1.0" },
        { -1.5, "-1.5" },
        { 0.1, "0.1" },
        { 65536.0, "65536.0" },
        { 1e-08, "1e-08" },
        { 1e-4, "0.0001" },
        { 1.5e-5, "1.5e-05" },
        { 1e15, "1000000000000000.0" },
        { 1e16, "1e+16" },
        { 1e22, "1e+22" },
        { 1e23, "1e+23" },
        { 123456789012345680.0, "1.2345678901234568e+17" },
        { 9999999999999998.0, "9999999999999998.0" },
        { 0.3, "0.3" },
        { 100.0, "100.0" },
        { 0.1 + 0.2, "0.30000000000000004" },
        { 1234.5, "1234.5" },
        { 0.00012345, "0.00012345" },
        { 0x1p-44, "5.684341886080802e-14" },
        { DBL_MAX, "1.7976931348623157e+308" },
        { DBL_MIN, "2.2250738585072014e-308" },
        { 5e-324, "5e-324" },
        { 1e-310, "1e-310" },
        { 2.2250738585072011e-308, "2.225073858507201e-308" },
        { 9007199254740993.0, "9007199254740992.0" },
        { (double)NAN, "nan" },
        { -(double)NAN, "nan" },
        { (double)INFINITY, "inf" },
        { -(double)INFINITY, "-inf" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer buffer = { 0 };
        assert_true(buffer_append_double(&buffer, cases[i].value));
        assert_string_equal(text_of(&buffer), cases[i].text);
        buffer_release(&buffer);
    }
}

TEST(bare_doubles_have_no_empty_fraction)
{
    static const struct { double value; const char *text; } cases[] = {
        { 0.0, "0" }, { -0.0, "-0" }, { 2.0, "2" }, { 120.0, "120" }, { 2.5, "2.5" }, { 1e16, "1e+16" }, { (double)INFINITY, "inf" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer buffer = { 0 };
        assert_true(buffer_append_double_bare(&buffer, cases[i].value));
        assert_string_equal(text_of(&buffer), cases[i].text);
        buffer_release(&buffer);
    }
}

static int digit_count(const char *text)
{
    int count = 0, zeros = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text < '0' || *text > '9' || (*text == '0' && !count))
            continue;
        zeros = *text == '0' ? zeros + 1 : 0;
        count++;
    }
    return count - zeros;
}

static int slow_digit_count(double value)
{
    char text[64];
    for (int digits = 1; digits < 17; digits++) {
        snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value)
            return digits;
        char *last = strchr(text, 'e') - 1;
        *last = (char)(*last + (*last < '9'));
        if (strtod(text, NULL) == value)
            return digits;
    }
    return 17;
}

TEST(random_doubles_read_back_from_the_fewest_digits)
{
    uint64_t seed = 99;
    struct buffer buffer = { 0 };
    for (int round = 0; round < 50000; round++) {
        uint64_t bits = test_random(&seed);
        double value;
        if (round % 3 == 0)
            bits &= UINT64_C(0xFFF) << 52; /* powers of two */
        if (round % 10 == 0)
            bits &= ~(UINT64_C(0x7FF) << 52); /* subnormal */
        memcpy(&value, &bits, sizeof(value));
        if (round % 7 == 0)
            value = (double)(int64_t)(bits >> 40) / 1000;
        if (!isfinite(value))
            continue;
        buffer_clear(&buffer);
        assert_true(buffer_append_double(&buffer, value));
        const char *text = text_of(&buffer);
        double back = strtod(text, NULL);
        if (memcmp(&back, &value, sizeof(back)) != 0 || (value != 0 && digit_count(text) != slow_digit_count(value)))
            fail_msg("%a is written %s", value, text);
    }
    buffer_release(&buffer);
}

/* Where no locale with a decimal comma is installed, there is nothing to see: then it passes, because meson counts cmocka's skip() as a
 * failure. */
TEST(the_locale_does_not_matter)
{
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8") && !setlocale(LC_NUMERIC, "fr_FR.UTF-8"))
        return;
    struct buffer buffer = { 0 };
    assert_true(buffer_append_double(&buffer, 0.30000000000000004));
    assert_string_equal(text_of(&buffer), "0.30000000000000004");
    setlocale(LC_NUMERIC, "C");
    buffer_release(&buffer);
}

TEST(bigints_are_decimal)
{
    static const struct { struct str bytes; const char *text; } cases[] = {
        { { NULL, 0 }, "0" }, { { "\0\0\0", 3 }, "0" }, { { "\x7f", 1 }, "127" }, { { "\xFF", 1 }, "-1" }, { { "\x80", 1 }, "-128" },
        { { "\xFF\0", 2 }, "255" }, { { "\0\xca\x9a\x3b", 4 }, "1000000000" }, { { "\xff\xc9\x9a\x3b", 4 }, "999999999" },
        { { "\0\0\0\0\0\0\0\x80", 8 }, "-9223372036854775808" }, { { "\0\0\0\0\0\0\0\x80\0", 9 }, "9223372036854775808" },
        { { "\0\0\0\0\0\0\0\0\x01", 9 }, "18446744073709551616" }, { { "\0\0\0\0\0\0\0\0\x40", 9 }, "1180591620717411303424" },
        { { "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80", 16 }, "-170141183460469231731687303715884105728" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer buffer = { 0 };
        assert_true(buffer_append_bigint(&buffer, cases[i].bytes));
        assert_string_equal(text_of(&buffer), cases[i].text);
        buffer_release(&buffer);
    }
}

/* Doubling and adding on decimal digits is the oracle. */
TEST(random_bigints_agree_with_the_slow_conversion)
{
    uint64_t seed = 4;
    for (int round = 0; round < 300; round++) {
        uint8_t bytes[130];
        char digits[400] = "0";
        size_t size = (size_t)(test_random(&seed) % 128) + 1, length = 1;
        for (size_t i = 0; i < size; i++)
            bytes[i] = (uint8_t)test_random(&seed);
        bytes[size++] = 0;
        for (size_t bit = size * 8; bit-- > 0;) {
            int carry = bytes[bit / 8] >> (bit % 8) & 1;
            for (size_t i = 0; i < length; i++) {
                int twice = (digits[i] - '0') * 2 + carry;
                digits[i] = (char)('0' + twice % 10);
                carry = twice / 10;
            }
            if (carry)
                digits[length++] = '1';
        }
        struct buffer buffer = { 0 };
        assert_true(buffer_append_bigint(&buffer, (struct str){ (char *)bytes, size }));
        assert_int_equal(buffer.size, length);
        for (size_t i = 0; i < length; i++)
            assert_int_equal(buffer.data[i], digits[length - 1 - i]);
        buffer_release(&buffer);
    }
    fail_malloc_at(1);
    struct buffer buffer = { 0 };
    assert_false(buffer_append_bigint(&buffer, STR("\x01")));
    assert_true(fail_malloc_was_hit() && buffer.failed);
}

TEST(integers_are_written_as_printf_writes_them)
{
    int64_t value = INT64_MAX;
    struct buffer buffer = { 0 };
    for (int i = 0; i < 64; i++, value = value / 2 - i % 3) {
        const int64_t pair[] = { value, -value, INT64_MIN + i, 10 - i };
        for (size_t j = 0; j < 4; j++) {
            char wanted[24];
            snprintf(wanted, sizeof(wanted), "%lld", (long long)pair[j]);
            buffer_clear(&buffer);
            assert_true(buffer_append_integer(&buffer, pair[j]));
            assert_string_equal(text_of(&buffer), wanted);
        }
    }
    buffer_release(&buffer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doubles_are_written_as_python_writes_them),
        cmocka_unit_test(bare_doubles_have_no_empty_fraction),
        cmocka_unit_test(random_doubles_read_back_from_the_fewest_digits),
        cmocka_unit_test(the_locale_does_not_matter),
        cmocka_unit_test(integers_are_written_as_printf_writes_them),
        cmocka_unit_test(bigints_are_decimal),
        cmocka_unit_test(random_bigints_agree_with_the_slow_conversion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
