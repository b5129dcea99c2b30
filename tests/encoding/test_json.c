/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/json.h"
#include "fail_malloc.h"

#include "check.h"

static reshard_error err;

/* The events of a document as one word each. */
static reshard_status trace(struct str text, uint64_t base_offset, struct buffer *out)
{
    static const char *const names[] = { "{", "}", "[", "]", "key", "str", "num", "true", "false", "null", "end" };
    struct json_parser *parser = json_new(text.data, text.size, base_offset, &limits_default);
    assert_non_null(parser);
    enum json_event event = JSON_NULL;
    struct str token;
    reshard_status status;
    while (!(status = json_next(parser, &event, &token, &err))) {
        buffer_printf(out, "%s", names[event]);
        if (event == JSON_KEY || event == JSON_STRING || event == JSON_NUMBER) {
            buffer_append_byte(out, ':');
            buffer_append_str(out, token);
        }
        if (event == JSON_END)
            break;
        buffer_append_byte(out, ' ');
    }
    json_free(parser);
    return status;
}

TEST(documents_give_their_events)
{
    static const struct {
        struct str text;
        struct str expected;
    } cases[] = {
        { STR("{}"), STR("{ } end") },
        { STR(" \t\r\n[ ] \n"), STR("[ ] end") },
        { STR("null"), STR("null end") },
        { STR("{\"a\":[1,true,false,null,\"x\"],\"b\":{}}"), STR("{ key:a [ num:1 true false null str:x ] key:b { } } end") },
        { STR("[-0,0,10,-1.5e+10,2E-3,0.0,18446744073709551616]"),
          STR("[ num:-0 num:0 num:10 num:-1.5e+10 num:2E-3 num:0.0 num:18446744073709551616 ] end") },
        { STR("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\\u0000\""),
          STR("str:\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0 end") },
        { STR("{\"\":\"\"}"), STR("{ key: str: } end") },
        { STR("[\"plain\\n\",\"\x7f\xc3\xa9 long enough for words of eight\"]"),
          STR("[ str:plain\n str:\x7f\xc3\xa9 long enough for words of eight ] end") },
        { STR("{\"a\":1,\"a\":2}"), STR("{ key:a num:1 key:a num:2 } end") },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer out = { 0 };
        CHECK_OK(trace(cases[i].text, 0, &out));
        if (!str_equal(buffer_str(&out), cases[i].expected))
            fail_msg("%s: %.*s", cases[i].text.data, STR_ARG(buffer_str(&out)));
        buffer_release(&out);
    }
}

TEST(what_is_no_json_is_refused_where_it_is_wrong)
{
    static const struct {
        struct str text;
        int64_t offset;
        const char *message;
    } cases[] = {
        { STR(""), 0, "found the end" },
        { STR("  "), 2, "found the end" },
        { STR("{"), 1, "a key or '}'" },
        { STR("["), 1, "found the end" },
        { STR("{\"a\""), 4, "':'" },
        { STR("{\"a\":"), 5, "a value" },
        { STR("{\"a\":1"), 6, "',' or '}'" },
        { STR("[1"), 2, "',' or ']'" },
        { STR("[1,]"), 3, "a value" },
        { STR("{\"a\":1,}"), 7, "a key" },
        { STR("[,1]"), 1, "a value" },
        { STR("[1 2]"), 3, "',' or ']'" },
        { STR("{\"a\" 1}"), 5, "':'" },
        { STR("{1:2}"), 1, "a key" },
        { STR("{'a':1}"), 1, "a key" },
        { STR("[}"), 1, "a value" },
        { STR("{]"), 1, "a key or '}'" },
        { STR("[1}"), 2, "',' or ']'" },
        { STR("]"), 0, "a value" },
        { STR("{} {}"), 3, "nothing behind the value" },
        { STR("{}\0"), 2, "byte 0x00" },
        { STR("null1"), 4, "nothing behind the value" },
        { STR("\xef\xbb\xbf{}"), 0, "byte order mark" },
        { STR("[\xef\xbb\xbf]"), 1, "byte order mark" },
        { STR("[\xef\xbb\xbf"), 1, "byte order mark" },
        { STR("[\xef\xbb"), 1, "byte 0xef" },
        { STR("[\x7f"), 1, "byte 0x7f" },
        { STR("[!"), 1, "'!'" },
        { STR("// c\n1"), 0, "a value" },
        { STR("[1 /* c */]"), 3, "'/'" },
        { STR("NaN"), 0, "a value" },
        { STR("-Infinity"), 1, "lacks its digits" },
        { STR("nul"), 0, "a value" },
        { STR("True"), 0, "a value" },
        { STR("01"), 0, "starts with 0" },
        { STR("-01"), 1, "starts with 0" },
        { STR("+1"), 0, "a value" },
        { STR("1."), 1, "behind its point" },
        { STR(".5"), 0, "a value" },
        { STR("1e"), 1, "exponent" },
        { STR("1e+"), 1, "exponent" },
        { STR("0x10"), 1, "nothing behind the value" },
        { STR("--1"), 1, "lacks its digits" },
        { STR("\"abc"), 4, "not closed" },
        { STR("\"abc\\"), 4, "unknown escape" },
        { STR("\"\\x41\""), 1, "unknown escape" },
        { STR("\"\\u12g4\""), 1, "four hexadecimal digits" },
        { STR("\"\\u123"), 1, "four hexadecimal digits" },
        { STR("\"\\ud800\""), 1, "lone surrogate" },
        { STR("\"\\udc00\""), 1, "lone surrogate" },
        { STR("\"\\ud800\\u0041\""), 1, "lone surrogate" },
        { STR("\"\\ud800\\ud800\""), 1, "lone surrogate" },
        { STR("\"a\nb\""), 2, "raw control character" },
        { STR("\"12345678\t\""), 9, "raw control character" },
        { STR("\"a\0b\""), 2, "raw control character" },
        { STR("\"\xff\""), 1, "invalid UTF-8" },
        { STR("\"\xc0\xaf\""), 1, "invalid UTF-8" },
        { STR("\"\xed\xa0\x80\""), 1, "invalid UTF-8" },
        { STR("\"\xf4\x90\x80\x80\""), 1, "invalid UTF-8" },
        { STR("\"12345678\xe2\x82\""), 9, "invalid UTF-8" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer out = { 0 };
        /* A copy of its own, so that a read beyond the end is seen. */
        char *copy = malloc(cases[i].text.size + 1);
        memcpy(copy, cases[i].text.data, cases[i].text.size);
        copy = realloc(copy, cases[i].text.size ? cases[i].text.size : 1);
        reshard_status status = trace((struct str){ copy, cases[i].text.size }, 1000, &out);
        if (status != RESHARD_ERR_FORMAT || err.offset != 1000 + cases[i].offset || !strstr(err.message, cases[i].message))
            fail_msg("case %zu (%s): status %d at %ld: %s", i, cases[i].text.data, status, (long)err.offset, err.message);
        free(copy);
        buffer_release(&out);
    }
}

TEST(nesting_is_limited)
{
    struct buffer text = { 0 }, out = { 0 };
    buffer_append_fill(&text, '[', 128);
    buffer_append_fill(&text, ']', 128);
    CHECK_OK(trace(buffer_str(&text), 0, &out));
    buffer_clear(&text);
    for (int i = 0; i < 100000; i++)
        buffer_append_text(&text, "{\"a\":");
    CHECK_FAILS(trace(buffer_str(&text), 0, &out), RESHARD_ERR_LIMIT);
    assert_int_equal(err.offset, 128 * 5);
    assert_non_null(strstr(err.hint, "reshard_open_options.limits json_depth=129"));
    buffer_release(&text);
    buffer_release(&out);
}

TEST(skipping_leaves_off_behind_the_value)
{
    static const char text[] = "{\"a\":[1,{\"x\":[]}],\"b\":{},\"c\":7,\"d\":\"s\"}";
    struct json_parser *parser = json_new(text, sizeof(text) - 1, 10, &limits_default);
    enum json_event event;
    struct str token;
    struct buffer keys = { 0 };
    CHECK_OK(json_next(parser, &event, &token, &err));
    for (;;) {
        CHECK_OK(json_next(parser, &event, &token, &err));
        if (event == JSON_OBJECT_END)
            break;
        assert_int_equal(event, JSON_KEY);
        buffer_append_str(&keys, token);
        buffer_printf(&keys, "@%d ", (int)json_offset(parser));
        CHECK_OK(json_next(parser, &event, &token, &err));
        CHECK_OK(json_skip(parser, event, &err));
    }
    CHECK_OK(json_next(parser, &event, &token, &err));
    assert_int_equal(event, JSON_END);
    CHECK_OK(json_next(parser, &event, &token, &err));
    assert_int_equal(event, JSON_END);
    assert_true(str_is(buffer_str(&keys), "a@11 b@28 c@35 d@41 "));
    buffer_release(&keys);
    json_free(parser);
    parser = json_new("[[1,2", 5, 0, &limits_default);
    CHECK_OK(json_next(parser, &event, &token, &err));
    CHECK_FAILS(json_skip(parser, event, &err), RESHARD_ERR_FORMAT);
    json_free(parser);
}

TEST(numbers_are_told_apart_by_their_text)
{
    static const struct {
        const char *text;
        bool is_u64;
        uint64_t value;
    } cases[] = {
        { "0", true, 0 },      { "18446744073709551615", true, UINT64_MAX }, { "18446744073709551616", false, 0 },
        { "-0", false, 0 },    { "-1", false, 0 },                           { "2.0", false, 0 },
        { "2e0", false, 0 },   { "1E5", false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t value = 0;
        assert_int_equal(json_number_is_u64(str_of(cases[i].text), &value), cases[i].is_u64);
        assert_int_equal(value, cases[i].value);
    }
}

/* ---- whole documents ---- */

static void check_round_trip(const char *text, const char *expected)
{
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    CHECK_OK(json_parse(text, strlen(text), &limits_default, &graph, &err));
    CHECK_OK(value_to_json(graph.root, &out, AT_MOST(1 << 20), &err));
    if (!str_is(buffer_str(&out), expected))
        fail_msg("%s became %.*s", text, STR_ARG(buffer_str(&out)));
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(documents_become_values)
{
    static const char *const cases[][2] = {
        { "null", "null" },
        { "[]", "[]" },
        { "{}", "{}" },
        { "-0", "0" },
        { "\"\\u0041\\n\"", "\"A\\n\"" },
        { "9223372036854775807", "9223372036854775807" },
        { "-9223372036854775808", "-9223372036854775808" },
        { "9223372036854775808", "9223372036854775808" },
        { "-9223372036854775809", "-9223372036854775809" },
        { "18446744073709551616", "18446744073709551616" },
        { "-340282366920938463463374607431768211456", "-340282366920938463463374607431768211456" },
        { "170141183460469231731687303715884105728", "170141183460469231731687303715884105728" },
        { "0.5", "0.5" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_round_trip(cases[i][0], cases[i][1]);

    static const char text[] =
        "{\"a\":[1,-2.5e3,true,null],\"b\":{\"c\":\"x\"},\"k0\":0,\"k1\":1,\"k2\":2,\"k3\":3,\"k4\":4,\"k5\":5,\"k6\":6,\"k7\":7}";
    struct value_graph graph = { 0 };
    struct value **items;
    size_t count;
    int64_t integer;
    CHECK_OK(json_parse(text, sizeof(text) - 1, &limits_default, &graph, &err));
    assert_true(value_as_sequence(value_dict_get(graph.root, "a"), &items, &count) && count == 4);
    assert_true(value_as_int(items[0], &integer) && integer == 1);
    assert_true(items[1]->kind == VALUE_FLOAT && items[1]->real == -2500.0);
    assert_int_equal(items[1]->offset, 8);
    assert_true(items[2]->kind == VALUE_BOOL && items[2]->boolean);
    assert_int_equal(items[3]->kind, VALUE_NONE);
    assert_true(value_as_int(value_dict_get(graph.root, "k7"), &integer) && integer == 7);
    assert_null(value_dict_get(graph.root, "c"));
    value_graph_release(&graph);
}

TEST(documents_with_duplicate_keys_or_numbers_out_of_range_are_refused)
{
    static const struct {
        const char *text;
        reshard_status expected;
        const char *message;
    } cases[] = {
        { "{\"a\":1,\"b\":2,\"\\u0061\":3}", RESHARD_ERR_FORMAT, "duplicate key 'a'" },
        { "[{\"a\":{\"x\":1,\"x\":2}}]", RESHARD_ERR_FORMAT, "duplicate key 'x'" },
        { "{\"0\":0,\"1\":0,\"2\":0,\"3\":0,\"4\":0,\"5\":0,\"6\":0,\"7\":0,\"8\":0,\"3\":1}", RESHARD_ERR_FORMAT, "duplicate key '3'" },
        { "[1e400]", RESHARD_ERR_FORMAT, "out of range" },
        { "[1,", RESHARD_ERR_FORMAT, "found the end" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        reshard_status status = json_parse(cases[i].text, strlen(cases[i].text), &limits_default, &graph, &err);
        if (status != cases[i].expected || !strstr(err.message, cases[i].message))
            fail_msg("%s: status %d: %s", cases[i].text, status, err.message);
        value_graph_release(&graph);
    }
    struct value_graph graph = { 0 };
    struct buffer digits = { 0 };
    buffer_append_fill(&digits, '9', 5000);
    CHECK_FAILS(json_parse(digits.data, digits.size, &limits_default, &graph, &err), RESHARD_ERR_LIMIT);
    struct limits limits = limits_default;
    limits.json_bytes = 10;
    CHECK_FAILS(json_parse("[1,2,3,4,5]", 11, &limits, &graph, &err), RESHARD_ERR_LIMIT);
    buffer_release(&digits);
    value_graph_release(&graph);
}

TEST(pythons_words_are_numbers_where_they_are_wanted)
{
    static const char text[] = "[NaN,Infinity,{\"a\":-Infinity},-1]";
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    CHECK_FAILS(json_parse(text, sizeof(text) - 1, &limits_default, &graph, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(err.offset, 1);
    CHECK_OK(json_parse_python(text, sizeof(text) - 1, &limits_default, &graph, &err));
    CHECK_OK(value_to_python_json(graph.root, &out, AT_MOST(100), &err));
    assert_true(str_is(buffer_str(&out), "[NaN, Infinity, {\"a\": -Infinity}, -1]"));
    buffer_clear(&out);
    CHECK_OK(value_to_json(graph.root, &out, AT_MOST(100), &err));
    assert_true(str_is(buffer_str(&out), "[\"nan\", \"inf\", {\"a\": \"-inf\"}, -1]"));
    static const char *const refused[] = { "nan", "Inf", "-NaN", "+Infinity", "Infinit", "[NaNN]", "{NaN:1}", "-" };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        CHECK_FAILS(json_parse_python(refused[i], strlen(refused[i]), &limits_default, &graph, &err), RESHARD_ERR_FORMAT);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(each_allocation_that_fails_is_reported)
{
    struct buffer text = { 0 };
    buffer_append_text(&text, "{\"a\\n\":[1.5,123456789012345678901234567890,\"\\u0041\"");
    for (int i = 0; i < 200; i++)
        buffer_printf(&text, ",{\"k%d\":%d}", i, i);
    buffer_append_text(&text, "]");
    for (int i = 0; i < 40; i++)
        buffer_printf(&text, ",\"k%d\":%d", i, i);
    buffer_append_text(&text, "}");
    unsigned long nth = 0;
    bool was_hit;
    do {
        struct value_graph graph = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = json_parse(text.data, text.size, &limits_default, &graph, &err);
        was_hit = fail_malloc_was_hit();
        assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY));
        value_graph_release(&graph);
    } while (was_hit);
    assert_true(nth > 5);
    buffer_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_give_their_events),
        cmocka_unit_test(what_is_no_json_is_refused_where_it_is_wrong),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(skipping_leaves_off_behind_the_value),
        cmocka_unit_test(numbers_are_told_apart_by_their_text),
        cmocka_unit_test(documents_become_values),
        cmocka_unit_test(documents_with_duplicate_keys_or_numbers_out_of_range_are_refused),
        cmocka_unit_test(pythons_words_are_numbers_where_they_are_wanted),
        cmocka_unit_test(each_allocation_that_fails_is_reported),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
