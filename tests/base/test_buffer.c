/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "fail_malloc.h"

#include "base/buffer.h"

#define ASSERT_HOLDS(buffer, text)                                       \
    do {                                                                 \
        assert_int_equal((buffer)->size, sizeof(text) - 1);              \
        assert_memory_equal((buffer)->data, text, sizeof(text) - 1);     \
    } while (0)

TEST(appends_add_up)
{
    struct buffer buffer = { 0 };
    assert_true(buffer_append(&buffer, NULL, 0));
    assert_true(buffer_append_text(&buffer, "ab"));
    assert_true(buffer_append_str(&buffer, STR("c\0")));
    assert_true(buffer_append_byte(&buffer, 0xFF));
    assert_true(buffer_append_fill(&buffer, 'z', 3));
    assert_true(buffer_append_fill(&buffer, 'z', 0));
    assert_true(buffer_append_u16le(&buffer, 0x0102));
    assert_true(buffer_append_u32le(&buffer, 0x01020304));
    assert_true(buffer_append_u64le(&buffer, UINT64_C(0x0102030405060708)));
    assert_true(buffer_printf(&buffer, "%s%d", "n", 5));
    ASSERT_HOLDS(&buffer, "abc\0\xFFzzz\x02\x01\x04\x03\x02\x01\x08\x07\x06\x05\x04\x03\x02\x01n5");
    buffer_clear(&buffer);
    assert_true(buffer_printf(&buffer, "%1000d", 7));
    assert_int_equal(buffer.size, 1000);
    assert_int_equal(buffer.data[999], '7');
    buffer_release(&buffer);
    buffer_release(&buffer);
    assert_null(buffer.data);
}

TEST(printing_nothing_is_no_failure)
{
    struct buffer buffer = { 0 };
    assert_true(buffer_printf(&buffer, "%s", "") && buffer_printf(&buffer, "%.*s", 0, "x"));
    assert_true(buffer.size == 0 && !buffer.failed);
    buffer_release(&buffer);
}

TEST(extension_gives_room_even_of_no_bytes)
{
    struct buffer buffer = { 0 };
    assert_non_null(buffer_extend(&buffer, 0));
    assert_int_equal(buffer.size, 0);
    uint8_t *room = buffer_extend(&buffer, 1000);
    memset(room, 1, 1000);
    assert_int_equal(buffer.size, 1000);
    assert_null(buffer_extend(&buffer, SIZE_MAX));
    assert_true(buffer.failed);
    assert_false(buffer.over_limit);
    assert_int_equal(buffer.size, 1000);
    buffer_release(&buffer);
}

TEST(a_limit_is_exact_and_keeps_the_contents)
{
    struct buffer buffer = { .limit = 10 };
    assert_true(buffer_append_text(&buffer, "0123456789"));
    assert_false(buffer.failed);
    assert_false(buffer_append_byte(&buffer, 'x'));
    assert_true(buffer.failed);
    assert_true(buffer.over_limit);
    ASSERT_HOLDS(&buffer, "0123456789");
    buffer_clear(&buffer);
    assert_false(buffer.failed);
    assert_false(buffer_append_fill(&buffer, 0, 11));
    assert_false(buffer_append_fill(&buffer, 0, SIZE_MAX));
    /* What comes behind a gap is refused too, however small, until the buffer is cleared. */
    assert_false(buffer_append_fill(&buffer, 0, 10));
    assert_false(buffer_append(&buffer, NULL, 0));
    assert_false(buffer_append_fill(&buffer, 0, 0));
    assert_null(buffer_extend(&buffer, 0));
    assert_false(buffer_printf(&buffer, "x"));
    assert_int_equal(buffer.size, 0);
    buffer_clear(&buffer);
    assert_true(buffer_append_fill(&buffer, 0, 10));
    buffer_release(&buffer);
    assert_int_equal(buffer.limit, 10);
    struct buffer late = { 0 };
    assert_true(buffer_append_fill(&late, 0, 60));
    late.limit = 20;
    assert_false(buffer_append_byte(&late, 0));
    buffer_release(&late);
}

TEST(without_memory_the_contents_stay)
{
    struct buffer buffer = { 0 };
    assert_true(buffer_append_fill(&buffer, 'a', 64));
    fail_malloc_at(1);
    assert_false(buffer_append_fill(&buffer, 'b', 1000));
    assert_true(fail_malloc_was_hit());
    assert_true(buffer.failed);
    assert_false(buffer.over_limit);
    assert_int_equal(buffer.size, 64);
    fail_malloc_at(1);
    assert_false(buffer_printf(&buffer, "%500d", 1));
    assert_true(fail_malloc_was_hit());
    assert_int_equal(buffer.size, 64);
    buffer_release(&buffer);
}

TEST(json_strings_escape_what_serde_escapes)
{
    static const struct { struct str text; const char *json; } cases[] = {
        { { NULL, 0 }, "\"\"" },
        { { "plain", 5 }, "\"plain\"" },
        { { "\"\\\b\f\n\r\t/", 8 }, "\"\\\"\\\\\\b\\f\\n\\r\\t/\"" },
        { { "a\0\x1f\x7f", 4 }, "\"a\\u0000\\u001f\x7f\"" },
        { { "\xC3\xA9\xF0\x9F\x9A\x80", 6 }, "\"\xC3\xA9\xF0\x9F\x9A\x80\"" },
        { { "a\xED\xA0\xBD" "b", 5 }, "\"a\\ud83db\"" },
        { { "\xED\xBF\xBF", 3 }, "\"\\udfff\"" },
        { { "\xED\x9F\xBF", 3 }, "\"\xED\x9F\xBF\"" },
        { { "\xED\xA0", 2 }, "\"\xED\xA0\"" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer buffer = { 0 };
        assert_true(buffer_append_json_string(&buffer, cases[i].text));
        assert_true(buffer_append_byte(&buffer, 0));
        assert_string_equal((char *)buffer.data, cases[i].json);
        buffer_release(&buffer);
    }
}

TEST(json_that_is_shown_hides_nothing)
{
    static const struct { struct str text; const char *plain, *visible;
    } cases[] = {
        { { "a\0\x7f", 3 }, "\"a\\u0000\x7f\"", "\"a\\u0000\\u007f\"" },
        { { "a\xC2\x9B"
            "b\xE2\x80\xAE"
            "c\xF3\xA0\x81\x81",
            12 },
          "\"a\xC2\x9B"
          "b\xE2\x80\xAE"
          "c\xF3\xA0\x81\x81\"",
          "\"a\\u009bb\\u202ec\\udb40\\udc41\"" },
        { { "\xC3\xA9\xED\xA0", 4 }, "\"\xC3\xA9\xED\xA0\"", "\"\xC3\xA9\xED\xA0\"" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer plain = { 0 }, visible = { 0 };
        assert_true(buffer_append_json_string(&plain, cases[i].text) && buffer_append_byte(&plain, 0));
        assert_true(buffer_append_json_visible(&visible, cases[i].text) && buffer_append_byte(&visible, 0));
        assert_string_equal((char *)plain.data, cases[i].plain);
        assert_string_equal((char *)visible.data, cases[i].visible);
        buffer_release(&plain);
        buffer_release(&visible);
    }
}

TEST(escaped_texts_are_safe_for_terminals_and_tab_separated_lines)
{
    static const struct { struct str text; const char *escaped; } cases[] = {
        { { "a b", 3 }, "a b" },
        { { "a\tb\nc\\d\r\0", 9 }, "a\\tb\\nc\\\\d\\x0d\\x00" },
        { { "\033[31m", 5 }, "\\x1b[31m" },
        { { "\xC2\x9B", 2 }, "\\xc2\\x9b" },
        { { "\xC3\xA9\xFF\xE9\x87", 5 }, "\xC3\xA9\\xff\\xe9\\x87" },
        { { "\xED\xA0\x80", 3 }, "\\xed\\xa0\\x80" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer buffer = { 0 };
        assert_true(buffer_append_escaped(&buffer, cases[i].text));
        assert_true(buffer_append_byte(&buffer, 0));
        assert_string_equal((char *)buffer.data, cases[i].escaped);
        buffer_release(&buffer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_add_up),
        cmocka_unit_test(printing_nothing_is_no_failure),
        cmocka_unit_test(extension_gives_room_even_of_no_bytes),
        cmocka_unit_test(a_limit_is_exact_and_keeps_the_contents),
        cmocka_unit_test(without_memory_the_contents_stay),
        cmocka_unit_test(json_strings_escape_what_serde_escapes),
        cmocka_unit_test(json_that_is_shown_hides_nothing),
        cmocka_unit_test(escaped_texts_are_safe_for_terminals_and_tab_separated_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
