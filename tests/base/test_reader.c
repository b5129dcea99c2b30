/* SPDX-License-Identifier: Apache-2.0 */
/* What moves through bytes from outside: readers, cursors, checked arithmetic, limits. */
#include "check.h"
#include "fail_malloc.h"

#include "base/checked.h"
#include "base/cursor.h"
#include "base/limits.h"
#include "base/reader.h"

TEST(a_reader_fills_all_or_fails_with_the_offset)
{
    reshard_error err;
    struct reader reader = reader_over_memory("0123456789", 10, "x");
    char out[11] = "";
    CHECK_OK(reader_read(&reader, 2, out, 3, &err));
    assert_string_equal(out, "234");
    CHECK_OK(reader_read(&reader, 10, out, 0, &err));
    CHECK_FAILS(reader_read(&reader, 8, out, 3, &err), RESHARD_ERR_FORMAT);
    assert_true(err.offset == 8);
    assert_string_equal(err.object, "x");
    assert_string_equal(err.message, "ends inside 3 bytes at offset 8: it has 10 bytes");
    CHECK_FAILS(reader_read(&reader, UINT64_MAX, out, 3, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(reader_read(&reader, 11, out, 0, NULL), RESHARD_ERR_FORMAT);
}

TEST(windows_nest_and_never_reach_outside)
{
    reshard_error err;
    struct reader reader = reader_over_memory("0123456789", 10, NULL), outer, inner;
    char out[11] = "";
    CHECK_OK(reader_window(&reader, 2, 6, &outer, &err));
    CHECK_OK(reader_window(&outer, 1, 3, &inner, &err));
    CHECK_OK(reader_read(&inner, 0, out, 3, &err));
    assert_string_equal(out, "345");
    CHECK_FAILS(reader_read(&inner, 1, out, 3, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(reader_window(&outer, 4, 3, &inner, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(reader_window(&outer, 1, UINT64_MAX, &inner, &err), RESHARD_ERR_FORMAT);
    CHECK_OK(reader_window(&outer, 6, 0, &inner, &err));
}

TEST(reader_append_checks_size_limit_and_memory)
{
    reshard_error err;
    struct reader reader = reader_over_memory("0123456789", 10, "x");
    struct buffer out = { .limit = 6 };
    CHECK_OK(reader_append(&reader, 1, 2, &out, &err));
    CHECK_OK(reader_append(&reader, 3, 4, &out, &err));
    assert_memory_equal(out.data, "123456", 6);
    CHECK_FAILS(reader_append(&reader, 0, 1, &out, &err), RESHARD_ERR_LIMIT);
    assert_string_equal(err.message, "content: 7 bytes, at most 6 bytes are possible");
    out.limit_name = "some-bytes";
    CHECK_FAILS(reader_append(&reader, 0, 1, &out, &err), RESHARD_ERR_LIMIT);
    assert_string_equal(err.message, "content: 7 bytes, the limit some-bytes is 6");
    assert_string_equal(err.hint, "raise it with reshard_open_options.limits some-bytes=7");
    out.limit_name = NULL;
    CHECK_FAILS(reader_append(&reader, 8, 3, &out, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(out.size, 6);
    buffer_release(&out);
    fail_malloc_at(1);
    CHECK_FAILS(reader_append(&reader, 0, 1, &out, &err), RESHARD_ERR_MEMORY);
    assert_true(fail_malloc_was_hit());
    assert_int_equal(out.size, 0);
}

TEST(a_limit_says_what_would_do)
{
    static const struct {
        uint64_t limit, found;
        const char *message, *hint;
    } cases[] = {
        { 10, 12, "what: 12 bytes, the limit bytes is 10", "raise it with reshard_open_options.limits bytes=12" },
        { 10, 0, "what: more, the limit bytes is 10", "raise it with reshard_open_options.limits bytes=40" },
        { UINT64_MAX / 4, 0, "what: more, the limit bytes is 4611686018427387903",
          "raise it with reshard_open_options.limits bytes=18446744073709551612" },
        { UINT64_MAX / 4 + 1, 0, "what: more, the limit bytes is 4611686018427387904",
          "raise it with reshard_open_options.limits bytes=18446744073709551615" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err = RESHARD_ERROR_INIT;
        struct named_limit limit = { "bytes", cases[i].limit, NULL };
        assert_int_equal(limit_error_bytes(&err, limit, "what", cases[i].found), RESHARD_ERR_LIMIT);
        assert_string_equal(err.message, cases[i].message);
        assert_string_equal(err.hint, cases[i].hint);
    }
}

TEST(a_cursor_moves_only_over_what_is_there)
{
    static const uint8_t bytes[32] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 'a', '\n', 'b' };
    struct cursor c = cursor_over(bytes, 18);
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    struct str s;
    assert_true(cursor_u8(&c, &u8) && u8 == 1);
    assert_true(cursor_u16le(&c, &u16) && u16 == 0x0302);
    assert_true(cursor_u32le(&c, &u32) && u32 == 0x07060504);
    assert_true(cursor_u64le(&c, &u64) && u64 == UINT64_C(0x0F0E0D0C0B0A0908));
    assert_false(cursor_line(&c, 1, &s));
    assert_true(cursor_line(&c, 2, &s) && str_is(s, "a"));
    assert_false(cursor_line(&c, 100, &s));
    assert_false(cursor_u16le(&c, &u16) || cursor_u32le(&c, &u32) || cursor_u64le(&c, &u64) || cursor_skip(&c, 2));
    assert_false(cursor_bytes(&c, UINT64_MAX, &s));
    assert_true(cursor_bytes(&c, 1, &s) && str_is(s, "b"));
    assert_false(cursor_u8(&c, &u8) || cursor_line(&c, 1, &s));
    assert_true(cursor_skip(&c, 0));
    assert_int_equal(cursor_left(&c), 0);
}

/* Wider arithmetic is the oracle. */
TEST(checked_arithmetic_is_exact_or_refuses)
{
    static const int64_t edges[] = { 0, 1, -1, 2, INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, 3037000499, 3037000500, 4294967296 };
    uint64_t seed = 9;
    for (int round = 0; round < 200000; round++) {
        int64_t a = edges[test_random(&seed) % 11], b = edges[test_random(&seed) % 11];
        if (round % 2) {
            a = (int64_t)test_random(&seed) >> (test_random(&seed) % 64);
            b = (int64_t)test_random(&seed) >> (test_random(&seed) % 64);
        }
        __int128 sum = (__int128)a + b, product = (__int128)a * b;
        int64_t out = 77;
        assert_int_equal(checked_add_i64(a, b, &out), sum == (int64_t)sum);
        assert_true(out == (sum == (int64_t)sum ? (int64_t)sum : 77));
        out = 77;
        assert_int_equal(checked_mul_i64(a, b, &out), product == (int64_t)product);
        assert_true(out == (product == (int64_t)product ? (int64_t)product : 77));

        uint64_t x = (uint64_t)a, y = (uint64_t)b, u = 77;
        unsigned __int128 usum = (unsigned __int128)x + y, uproduct = (unsigned __int128)x * y;
        assert_int_equal(checked_add_u64(x, y, &u), usum == (uint64_t)usum);
        assert_true(u == (usum == (uint64_t)usum ? (uint64_t)usum : 77));
        u = 77;
        assert_int_equal(checked_mul_u64(x, y, &u), uproduct == (uint64_t)uproduct);
        assert_true(u == (uproduct == (uint64_t)uproduct ? (uint64_t)uproduct : 77));

        uint64_t size = test_random(&seed) >> (test_random(&seed) % 64);
        assert_int_equal(range_fits(x, y, size), usum <= size);
    }
}

TEST(limits_are_set_by_name_and_listed)
{
    struct limits limits = limits_default;
    const char *help = NULL, *name;
    uint64_t value;
    int count = 0;
    for (; (name = limits_describe(count, &help, &value)); count++) {
        assert_true(strlen(help) > 0);
        assert_true(value > 0);
        assert_true(limits_set(&limits, str_of(name), value + 1));
    }
    assert_int_equal(count, offsetof(struct limits, budget) / sizeof(uint64_t));
    const uint64_t *before = (const uint64_t *)(const void *)&limits_default, *after = (const uint64_t *)(const void *)&limits;
    for (int i = 0; i < count; i++)
        assert_true(after[i] == before[i] + 1);
    assert_false(limits_set(&limits, STR("json"), 1));
    assert_false(limits_set(&limits, STR(""), 1));
    assert_true(limits_default.json_depth == 128);
    assert_null(limits_describe(-1, &help, &value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_fills_all_or_fails_with_the_offset),
        cmocka_unit_test(windows_nest_and_never_reach_outside),
        cmocka_unit_test(reader_append_checks_size_limit_and_memory),
        cmocka_unit_test(a_limit_says_what_would_do),
        cmocka_unit_test(a_cursor_moves_only_over_what_is_there),
        cmocka_unit_test(checked_arithmetic_is_exact_or_refuses),
        cmocka_unit_test(limits_are_set_by_name_and_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
