/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "base/str.h"

#include <errno.h>

TEST(set_fills_the_whole_record)
{
    reshard_error err;
    memset(&err, 'x', sizeof(err));
    assert_int_equal(error_set(&err, RESHARD_ERR_USAGE, "%s is %d", "rank", 3), RESHARD_ERR_USAGE);
    assert_int_equal(err.code, RESHARD_ERR_USAGE);
    assert_int_equal(err.sys_errno, 0);
    assert_true(err.offset == -1);
    assert_int_equal(err.line, 0);
    assert_int_equal(err.column, 0);
    assert_string_equal(err.object, "");
    assert_string_equal(err.message, "rank is 3");
    assert_string_equal(err.hint, "");
}

TEST(without_a_record_only_the_code_returns)
{
    errno = ENOENT;
    assert_int_equal(error_set(NULL, RESHARD_ERR_FORMAT, "x"), RESHARD_ERR_FORMAT);
    assert_int_equal(error_set_at(NULL, RESHARD_ERR_FORMAT, 4, "x"), RESHARD_ERR_FORMAT);
    assert_int_equal(error_set_errno(NULL, "x"), RESHARD_ERR_IO);
    assert_int_equal(error_set_memory(NULL), RESHARD_ERR_MEMORY);
    assert_int_equal(error_set_limit(NULL, "chunks", 2, 1), RESHARD_ERR_LIMIT);
    error_prefix(NULL, "x");
    error_object(NULL, "x");
    error_hint(NULL, "x");
    error_shift(NULL, 1);
}

TEST(layers_prefix_and_shift)
{
    reshard_error err;
    error_set_at(&err, RESHARD_ERR_FORMAT, 34, "duplicate tensor name '%s'", "a");
    error_prefix(&err, "byte %d", 1834);
    error_shift(&err, 1800);
    error_prefix(&err, "shard '%s': header", "x");
    error_object(&err, "x");
    error_object(&err, "outer");
    assert_string_equal(err.message, "shard 'x': header: byte 1834: duplicate tensor name 'a'");
    assert_string_equal(err.object, "x");
    assert_true(err.offset == 1834);
    error_shift(&err, UINT64_MAX);
    assert_true(err.offset == 1834);
    error_set(&err, RESHARD_ERR_FORMAT, "x");
    error_shift(&err, 5);
    assert_true(err.offset == -1);
    error_set_at(&err, RESHARD_ERR_FORMAT, UINT64_MAX, "x");
    assert_true(err.offset == -1);
}

TEST(errno_is_read_on_entry)
{
    reshard_error err;
    errno = ENOENT;
    error_set_errno(&err, "'%s'", "a/b");
    assert_string_equal(err.message, "'a/b': No such file or directory");
    assert_int_equal(err.sys_errno, ENOENT);
    assert_int_equal(err.code, RESHARD_ERR_IO);
}

TEST(limit_says_how_to_raise_it)
{
    reshard_error err;
    error_set_limit(&err, "chunks", 12, 10);
    assert_string_equal(err.message, "chunks: found 12, the limit is 10");
    assert_string_equal(err.hint, "raise it with reshard_open_options.limits chunks=12");
    error_hint(&err, "or drop %s", "some");
    assert_string_equal(err.hint, "raise it with reshard_open_options.limits chunks=12\nor drop some");
}

TEST(control_characters_and_broken_utf8_are_escaped)
{
    static const struct { const char *why, *text, *expected; } cases[] = {
        { "escape sequence", "a\033[2Jb", "a\\x1b[2Jb" },
        { "bidirectional control", "a\xe2\x80\xae" "b", "a\\xe2\\x80\\xae" "b" },
        { "line break", "a\nb", "a\\x0ab" },
        { "delete", "\x7f", "\\x7f" },
        { "C1 control in UTF-8", "\xC2\x9B", "\\xc2\\x9b" },
        { "lone continuation", "\x80", "\\x80" },
        { "surrogate", "\xED\xA0\x80", "\\xed\\xa0\\x80" },
        { "letters stay", "\xC3\xA9\xE9\x87\x8D\xF0\x9F\x9A\x80\\", "\xC3\xA9\xE9\x87\x8D\xF0\x9F\x9A\x80\\" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_error err;
        error_set(&err, RESHARD_ERR_FORMAT, "%s", cases[i].text);
        assert_string_equal(err.message, cases[i].expected);
    }
}

/* Long texts of three-byte characters at every alignment: the cut never leaves a part of one. */
TEST(long_messages_are_cut_between_characters)
{
    char text[4000];
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'a', shift);
        for (size_t i = shift; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xE9\x87\x8D", 4);
        reshard_error err;
        error_set(&err, RESHARD_ERR_FORMAT, "%s", text);
        assert_true(str_is_utf8(str_of(err.message), false, NULL));
        assert_true(strlen(err.message) > sizeof(err.message) - 4);
        assert_null(strstr(err.message, "\\x"));
        error_prefix(&err, "%s", "in 'x'");
        assert_true(str_is_utf8(str_of(err.message), false, NULL));
        assert_true(str_starts_with(str_of(err.message), "in 'x': "));
        error_object(&err, "%s", text);
        for (int line = 0; line < 3; line++)
            error_hint(&err, "%s", text);
        assert_true(str_is_utf8(str_of(err.object), false, NULL));
        assert_true(str_is_utf8(str_of(err.hint), false, NULL));
    }
}

TEST(statuses_have_names_and_exit_codes)
{
    for (int status = 0; status <= 6; status++)
        assert_int_equal(reshard_status_exit((reshard_status)status), status);
    assert_int_equal(reshard_status_exit(RESHARD_ERR_MEMORY), 3);
    assert_int_equal(reshard_status_exit(RESHARD_ERR_CANCELLED), 130);
    for (int status = 0; status <= 8; status++)
        assert_string_not_equal(reshard_status_name((reshard_status)status), "unknown status");
    assert_string_equal(reshard_status_name((reshard_status)99), "unknown status");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_fills_the_whole_record),
        cmocka_unit_test(without_a_record_only_the_code_returns),
        cmocka_unit_test(layers_prefix_and_shift),
        cmocka_unit_test(errno_is_read_on_entry),
        cmocka_unit_test(limit_says_how_to_raise_it),
        cmocka_unit_test(control_characters_and_broken_utf8_are_escaped),
        cmocka_unit_test(long_messages_are_cut_between_characters),
        cmocka_unit_test(statuses_have_names_and_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
