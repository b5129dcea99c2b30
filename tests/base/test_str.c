/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "base/str.h"

TEST(order_is_bytewise_and_shorter_first)
{
    static const struct { const char *a, *b; int sign; } cases[] = {
        { "", "", 0 }, { "", "a", -1 }, { "a", "a", 0 }, { "a", "ab", -1 }, { "b", "ab", 1 }, { "\xC3\xA9", "z", 1 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int order = str_compare(str_of(cases[i].a), str_of(cases[i].b)), back = str_compare(str_of(cases[i].b), str_of(cases[i].a));
        assert_int_equal((order > 0) - (order < 0), cases[i].sign);
        assert_int_equal((back > 0) - (back < 0), -cases[i].sign);
        assert_int_equal(str_equal(str_of(cases[i].a), str_of(cases[i].b)), cases[i].sign == 0);
    }
    assert_int_equal(str_compare((struct str){ NULL, 0 }, STR("")), 0);
    assert_true(str_compare(STR("a\0b"), STR("a\0c")) < 0);
}

TEST(prefixes_suffixes_and_characters)
{
    size_t index = 7;
    assert_true(str_starts_with(STR("model.x"), "model."));
    assert_false(str_starts_with(STR("mod"), "model."));
    assert_true(str_starts_with((struct str){ NULL, 0 }, ""));
    assert_true(str_ends_with(STR("a.pt"), ".pt"));
    assert_false(str_ends_with(STR("pt"), ".pt"));
    assert_true(str_ends_with((struct str){ NULL, 0 }, ""));
    assert_true(str_find_char(STR("a\0b"), '\0', &index));
    assert_int_equal(index, 1);
    assert_false(str_find_char(STR("ab"), 'c', &index));
    assert_false(str_find_char((struct str){ NULL, 0 }, 'c', &index));
    assert_int_equal(index, 1);
}

TEST(numbers_are_whole_strings_without_sign_or_leading_zero)
{
    static const struct { const char *text; bool ok; uint64_t value; } cases[] = {
        { "0", true, 0 }, { "7", true, 7 }, { "18446744073709551615", true, UINT64_MAX },
        { "18446744073709551616", false, 0 }, { "99999999999999999999", false, 0 }, { "184467440737095516150", false, 0 },
        { "", false, 0 }, { "00", false, 0 }, { "01", false, 0 }, { "+1", false, 0 }, { "-1", false, 0 }, { " 1", false, 0 },
        { "1 ", false, 0 }, { "1e3", false, 0 }, { "0x1", false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t value = 77;
        assert_int_equal(str_to_u64(str_of(cases[i].text), &value), cases[i].ok);
        assert_true(value == (cases[i].ok ? cases[i].value : 77));
    }
    uint64_t value;
    assert_false(str_to_u64(STR("1\0"), &value));
}

/* Decodes arithmetically and judges the code point, where str.c judges the second byte. */
static size_t slow_utf8_char(const uint8_t *p, size_t left, bool allow_surrogates)
{
    static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
    size_t size = p[0] < 0x80 ? 1 : (p[0] & 0xE0) == 0xC0 ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : (p[0] & 0xF8) == 0xF0 ? 4 : 0;
    if (size == 1)
        return 1;
    if (!size || left < size)
        return 0;
    uint32_t code = p[0] & (0x7F >> size);
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3F);
    }
    bool surrogate = code >= 0xD800 && code < 0xE000;
    return code < smallest[size] || code > 0x10FFFF || (surrogate && !allow_surrogates) ? 0 : size;
}

/* All of the first two bytes with interesting third and fourth ones. */
TEST(utf8_characters_are_those_of_the_slow_decoder)
{
    static const uint8_t tails[] = { 0x00, 0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xFF };
    for (unsigned first = 0; first < 256; first++) {
        for (unsigned second = 0; second < 256; second++) {
            for (unsigned tail = 0; tail < 49; tail++) {
                uint8_t bytes[4] = { (uint8_t)first, (uint8_t)second, tails[tail % 7], tails[tail / 7] };
                for (size_t size = 1; size <= 4; size++) {
                    struct str s = { (const char *)bytes, size };
                    for (int wtf = 0; wtf < 2; wtf++)
                        if (str_utf8_char(s, 0, wtf) != slow_utf8_char(bytes, size, wtf))
                            fail_msg("%02x %02x %02x %02x, %zu bytes, surrogates %d", bytes[0], bytes[1], bytes[2], bytes[3], size, wtf);
                }
            }
        }
    }
}

TEST(utf8_texts_report_the_first_bad_byte)
{
    uint64_t seed = 20240607;
    for (int round = 0; round < 20000; round++) {
        static const char *const parts[] = { "a",    "abcdefgh", "\xC3\xA9", "\xE9\x87\x8D", "\xF0\x9F\x9A\x80", "\xED\xA0\x80",
                                             "\x80", "\xC3",     "\xF0\x9F" };
        char text[128];
        size_t size = 0, expected = SIZE_MAX, bad = SIZE_MAX;
        for (uint64_t left = test_random(&seed) % 12; left; left--) {
            const char *part = parts[test_random(&seed) % (test_random(&seed) % 4 ? 5 : 9)];
            memcpy(text + size, part, strlen(part));
            size += strlen(part);
        }
        bool wtf = test_random(&seed) % 2;
        for (size_t i = 0, step; i < size && expected == SIZE_MAX; i += step)
            if (!(step = slow_utf8_char((const uint8_t *)text + i, size - i, wtf)))
                expected = i;
        assert_int_equal(str_is_utf8((struct str){ text, size }, wtf, &bad), expected == SIZE_MAX);
        assert_int_equal(bad, expected);
        assert_int_equal(str_is_utf8((struct str){ text, size }, wtf, NULL), expected == SIZE_MAX);
    }
}

/* The first and last of each range, and their neighbours, in UTF-8 as Python writes them. */
TEST(what_is_not_seen_is_not_printable)
{
    static const struct {
        const char *text;
        bool printable;
    } cases[] = {
        { "\xC2\xAC", true },          { "\xC2\xAD", false },         { "\xC2\xAE", true },          { "\xCD\x8F", false },
        { "\xCD\x90", true },          { "\xD8\x9B", true },          { "\xD8\x9C", false },         { "\xE1\x85\x9F", false },
        { "\xE1\x85\xA1", true },      { "\xE1\xA0\x8E", false },     { "\xE2\x80\x8A", true },      { "\xE2\x80\x8B", false },
        { "\xE2\x80\x8D", false },     { "\xE2\x80\x8F", false },     { "\xE2\x80\x90", true },      { "\xE2\x80\xA7", true },
        { "\xE2\x80\xA8", false },     { "\xE2\x80\xA9", false },     { "\xE2\x80\xAA", false },     { "\xE2\x80\xAE", false },
        { "\xE2\x80\xAF", true },      { "\xE2\x81\x9F", true },      { "\xE2\x81\xA0", false },     { "\xE2\x81\xA6", false },
        { "\xE2\x81\xA9", false },     { "\xE2\x81\xB0", true },      { "\xE3\x85\xA4", false },     { "\xEF\xB8\x8F", false },
        { "\xEF\xB8\x90", true },      { "\xEF\xBB\xBF", false },     { "\xEF\xBE\xA0", false },     { "\xEF\xBF\xB9", false },
        { "\xEF\xBF\xBD", true },      { "\xF0\x9F\x98\x80", true },  { "\xF0\x9D\x85\xB3", false }, { "\xF3\xA0\x80\x81", false },
        { "\xF3\xA0\x81\xBF", false }, { "\xF3\xA0\xBF\xBF", false }, { "\xF3\xB0\x80\x80", true },  { "\xC3\xA4", true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct str s = str_of(cases[i].text);
        if (str_printable_char(s, 0) != (cases[i].printable ? s.size : 0))
            fail_msg("case %zu: U+%04X", i, (unsigned)str_code_point(s, 0, s.size));
    }
}

TEST(printable_characters_are_no_controls)
{
    assert_int_equal(str_printable_char(STR("\x1f"), 0), 0);
    assert_int_equal(str_printable_char(STR(" "), 0), 1);
    assert_int_equal(str_printable_char(STR("\x7f"), 0), 0);
    assert_int_equal(str_printable_char(STR("\xC2\x80"), 0), 0);
    assert_int_equal(str_printable_char(STR("\xC2\x9F"), 0), 0);
    assert_int_equal(str_printable_char(STR("\xC2\xA0"), 0), 2);
    assert_int_equal(str_printable_char(STR("x\xED\xA0\x80"), 1), 0);
}

TEST(globs)
{
    static const struct { const char *text, *pattern; bool match; } cases[] = {
        { "", "", true }, { "a", "", false }, { "", "*", true }, { "", "?", false }, { "a.b/c", "*", true }, { "abc", "a*c", true },
        { "ac", "a*c", true }, { "abcabc", "a*bc", true }, { "abcabd", "a*bc", false }, { "abc", "???", true }, { "abc", "??", false },
        { "layers.10.w", "layers.*.w", true }, { "layers.10.b", "layers.*.[wb]", true }, { "layers.10.x", "layers.*.[wb]", false },
        { "a", "[a-c]", true }, { "d", "[a-c]", false }, { "d", "[!a-c]", true }, { "a", "[^a-c]", false }, { "]", "[]]", true },
        { "a", "[]]", false }, { "-", "[a-]", true }, { "b", "[a-]", false }, { "-", "[-a]", true }, { "[", "[", true },
        { "[a", "[a", true }, { "a", "[a", false }, { "^", "[a^]", true }, { "x]", "[!]]]", true }, { "\xFF", "[\xFE-\xFF]", true },
        { "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "*a*a*a*a*a*a*a*a*a*b", false }, { "abc", "abc*", true }, { "abc", "**c", true },
        { "\\*", "\\*", true }, { "[", "[!", false }, { "[!", "[!", true },
        { "[a-", "[a-", true }, { "b", "[]-b]", true }, { "^", "[]-b]", true },
        { "Z", "[]-b]", false }, { "b", "[a-c-e]", true }, { "d", "[a-c-e]", false }, { "-", "[a-c-e]", true }, { "]", "[]", false },
        { "[]", "[]", true }, { "b-]", "[a-c]-]", true }, { "-", "[--/]", true }, { ".", "[--/]", true }, { "0", "[--/]", false },
        { "]", "[a]", false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (str_matches_glob(str_of(cases[i].text), str_of(cases[i].pattern)) != cases[i].match)
            fail_msg("'%s' against '%s': expected %d", cases[i].text, cases[i].pattern, cases[i].match);
}

/* What lies behind a pattern is no part of it: here it would close the set, or end the range. */
TEST(globs_end_where_their_text_ends)
{
    assert_false(str_matches_glob(STR("b"), (struct str){ "[a-c]", 3 }));
    assert_true(str_matches_glob(STR("[a-"), (struct str){ "[a-c]", 3 }));
    assert_true(str_matches_glob(STR("[a-c"), (struct str){ "[a-c]", 4 }));
    assert_true(str_matches_glob(STR("[!"), (struct str){ "[!]]", 2 }));
    assert_true(str_matches_glob(STR("["), (struct str){ "[]]", 1 }));
    assert_true(str_matches_glob(STR("[!]"), (struct str){ "[!]]", 3 }));
}

/* '*' tries every length; sets are only of the forms that the random patterns below use. */
static bool slow_glob(struct str s, struct str p)
{
    if (!p.size)
        return !s.size;
    struct str s_rest = { s.data + 1, s.size - 1 }, p_rest = { p.data + 1, p.size - 1 };
    if (p.data[0] == '*') {
        for (size_t i = 0; i <= s.size; i++)
            if (slow_glob((struct str){ s.data + i, s.size - i }, p_rest))
                return true;
        return false;
    }
    if (p.data[0] == '[') {
        bool negated = p.data[1] == '!', found = false;
        size_t i = negated ? 2 : 1;
        for (; p.data[i] != ']'; i++)
            found |= s.size && s.data[0] == p.data[i];
        return s.size && found != negated && slow_glob(s_rest, (struct str){ p.data + i + 1, p.size - i - 1 });
    }
    return s.size && (p.data[0] == '?' || p.data[0] == s.data[0]) && slow_glob(s_rest, p_rest);
}

TEST(random_globs_match_as_the_slow_matcher_says)
{
    uint64_t seed = 7;
    for (int round = 0; round < 100000; round++) {
        static const char *const parts[] = { "a", "b", "*", "?", "[ab]", "[!a]", "*" };
        char text[16] = "", pattern[64] = "";
        for (uint64_t left = test_random(&seed) % 9; left; left--)
            strcat(text, test_random(&seed) % 2 ? "a" : "b");
        for (uint64_t left = test_random(&seed) % 7; left; left--)
            strcat(pattern, parts[test_random(&seed) % 7]);
        if (str_matches_glob(str_of(text), str_of(pattern)) != slow_glob(str_of(text), str_of(pattern)))
            fail_msg("'%s' against '%s'", text, pattern);
    }
}

TEST(parts_and_words_are_taken_off_the_front)
{
    struct str rest = STR("a.bc..d");
    assert_true(str_is(str_take(&rest, '.'), "a"));
    assert_true(str_is(str_take(&rest, '.'), "bc"));
    assert_true(str_is(str_take(&rest, '.'), ""));
    assert_true(str_is(str_take(&rest, '.'), "d"));
    assert_int_equal(rest.size, 0);
    rest = STR("last.");
    assert_true(str_is(str_take(&rest, '.'), "last"));
    assert_int_equal(rest.size, 0);
    rest = STR(" \tone two\r");
    assert_true(str_is(str_take_word(&rest), "one"));
    assert_true(str_is(str_take_word(&rest), "two"));
    assert_true(str_is(str_take_word(&rest), ""));
}

static void paths_have_two_parts(void **state)
{
    static const char *const cases[][3] = { { "", "", "" },    { "a", "", "a" },           { "a/b", "a/", "b" },
                                            { "/a", "/", "a" }, { "a/b/c", "a/b/", "c" }, { "a/", "a/", "" } };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        assert_true(str_is(str_folder(str_of(cases[i][0])), cases[i][1]));
        assert_true(str_is(str_base_name(str_of(cases[i][0])), cases[i][2]));
    }
    assert_true(str_is(str_without_slashes(STR("a/b//")), "a/b"));
    assert_true(str_is(str_without_slashes(STR("//")), ""));
    assert_true(str_is(str_without_slashes(STR("/a")), "/a"));
}

static void hexadecimal_digits_are_whole_and_in_the_text(void **state)
{
    uint64_t value = 7;
    (void)state;
    assert_true(str_hex_at(STR("x09aAfF"), 1, 6, &value));
    assert_int_equal(value, 0x09AAFF);
    assert_true(str_hex_at(STR("ffffffffffffffff"), 0, 16, &value));
    assert_true(value == UINT64_MAX);
    value = 7;
    assert_false(str_hex_at(STR("00000000000000000"), 0, 17, &value));
    assert_false(str_hex_at(STR("123"), 0, 4, &value));
    assert_false(str_hex_at(STR("123"), 2, 2, &value));
    assert_false(str_hex_at(STR("123"), 4, 0, &value));
    const char beside[] = "/:@G`g";
    for (size_t i = 0; i < sizeof(beside); i++) {
        const char text[2] = { '1', beside[i] };
        assert_false(str_hex_at((struct str){ text, 2 }, 0, 2, &value));
    }
    assert_int_equal(value, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_and_words_are_taken_off_the_front),
        cmocka_unit_test(order_is_bytewise_and_shorter_first),
        cmocka_unit_test(prefixes_suffixes_and_characters),
        cmocka_unit_test(numbers_are_whole_strings_without_sign_or_leading_zero),
        cmocka_unit_test(hexadecimal_digits_are_whole_and_in_the_text),
        cmocka_unit_test(utf8_characters_are_those_of_the_slow_decoder),
        cmocka_unit_test(utf8_texts_report_the_first_bad_byte),
        cmocka_unit_test(printable_characters_are_no_controls),
        cmocka_unit_test(what_is_not_seen_is_not_printable),
        cmocka_unit_test(paths_have_two_parts),
        cmocka_unit_test(globs),
        cmocka_unit_test(globs_end_where_their_text_ends),
        cmocka_unit_test(random_globs_match_as_the_slow_matcher_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
