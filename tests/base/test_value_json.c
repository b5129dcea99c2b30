/* SPDX-License-Identifier: Apache-2.0 */
/* Value graphs as JSON and as Python would print them. */
#include "check.h"
#include "fail_malloc.h"
#include "value_text.h"

static void check_text(const char *text, const char *expected, bool is_json)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    const struct value *value = value_from_text(&graph, text);
    if (is_json)
        CHECK_OK(value_to_json(value, &out, AT_MOST(SIZE_MAX), &err));
    else
        assert_true(value_to_repr(value, &out, NULL));
    assert_true(buffer_append_byte(&out, 0));
    assert_string_equal((char *)out.data, expected);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(json_of_leaves)
{
    static const struct { const char *text, *json; } cases[] = {
        { "None", "null" }, { "True", "true" }, { "False", "false" }, { "-5", "-5" }, { "-9223372036854775807", "-9223372036854775807" },
        { "1180591620717411303424", "1180591620717411303424" }, { "0.1", "0.1" }, { "1e-08", "1e-08" }, { "65536.0", "65536.0" },
        { "-0.0", "-0.0" }, { "1e16", "1e+16" }, { "nan", "\"nan\"" }, { "inf", "\"inf\"" }, { "-inf", "\"-inf\"" },
        { "'caf\xC3\xA9\\x0a\"'", "\"caf\xC3\xA9\\n\\\"\"" }, { "'\\xed\\xa0\\xbd'", "\"\\ud83d\"" },
        { "'\\xff'", "\"\\\\xff\"" }, { "b'\\x00\\xff'", "{\"__bytes__\": \"00ff\"}" }, { "b''", "{\"__bytes__\": \"\"}" },
        { "$bytearray 'a'", "{\"__bytes__\": \"61\"}" }, { "@torch.bfloat16", "\"torch.bfloat16\"" },
        { "@builtins.list", "{\"__global__\": \"builtins.list\"}" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text(cases[i].text, cases[i].json, true);
}

TEST(json_of_containers)
{
    static const struct { const char *text, *json;
    } cases[] = {
        { "[]", "[]" },
        { "()", "[]" },
        { "{}", "{}" },
        { "$set[]", "[]" },
        { "[1, (2, [3]), $set[4], $frozenset[5]]", "[1, [2, [3]], [4], [5]]" },
        { "{'b': 1, 'a': [2]}", "{\"b\": 1, \"a\": [2]}" },
        { "{0: {'x': 1}, -1: 2}", "{\"0\": {\"x\": 1}, \"-1\": 2}" },
        { "{None: 1, True: 2, 0.5: 3, ('a', 1): 4, @torch.int8: 5, b'k': 6}",
          "{\"None\": 1, \"True\": 2, \"0.5\": 3, \"('a', 1)\": 4, \"torch.int8\": 5, \"b'k'\": 6}" },
        { "{'a': 1, 'b': 2, 'a': 3}", "{\"b\": 2, \"a\": 3}" },
        { "{1: 2, '1': 3}", "{\"1\": 2, \"1\": 3}" },
        { "{(): 1, (): 2}", "{\"()\": 1, \"()\": 2}" },
        { "{'a': 1, 'a': 2, 'a': 3, ('x',): 4, 5: 6, 5: 7}", "{\"a\": 3, \"('x',)\": 4, \"5\": 7}" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text(cases[i].text, cases[i].json, true);
}

TEST(json_of_known_calls)
{
    static const struct { const char *text, *json;
    } cases[] = {
        { "torch.Size((2, 3))", "[2, 3]" },
        { "collections.OrderedDict()!{'a': 1}", "{\"a\": 1}" },
        { "collections.Counter({'a': 1})", "{\"a\": 1}" },
        { "collections.defaultdict(@builtins.list)!{'a': 1}", "{\"a\": 1}" },
        { "torch.device('cuda', 1)", "\"cuda:1\"" },
        { "torch.device('cpu')", "\"cpu\"" },
        { "torch.device('cpu', None)", "\"cpu\"" },
        { "torch.device(1)", "{\"__class__\": \"torch.device\", \"__args__\": [1]}" },
        { "_codecs.encode('\xC3\xBF', 'latin1')", "{\"__bytes__\": \"ff\"}" },
        { "builtins.set([1, 2])", "[1, 2]" },
        { "builtins.frozenset(())", "[]" },
        { "builtins.set()", "[]" },
        { "builtins.complex(1.0, -2.5)", "\"(1-2.5j)\"" },
        { "builtins.complex(0.0, 2.0)", "\"2j\"" },
        { "builtins.complex(-0.0, 2.0)", "\"(-0+2j)\"" },
        { "builtins.complex(nan, inf)", "\"(nan+infj)\"" },
        { "pathlib.PosixPath('/', 'a', 'b')", "\"/a/b\"" },
        { "pathlib._local.PurePosixPath('a', 'b')", "\"a/b\"" },
        { "pathlib.PosixPath()", "\".\"" },
        { "pathlib.WindowsPath('C:\\\\', 'a', 'b')", "\"C:\\\\a\\\\b\"" },
        { "pathlib.PosixPath(1)", "{\"__class__\": \"pathlib.PosixPath\", \"__args__\": [1]}" },
        { "builtins.getattr(@m.C, 'NAME')", "{\"__global__\": \"m.C.NAME\"}" },
        { "builtins.getattr(@m.C, 3)", "{\"__class__\": \"builtins.getattr\", \"__args__\": [{\"__global__\": \"m.C\"}, 3]}" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text(cases[i].text, cases[i].json, true);
}

TEST(json_of_objects)
{
    static const struct { const char *text, *json;
    } cases[] = {
        { "m.Enum(3)", "{\"__class__\": \"m.Enum\", \"__args__\": [3]}" },
        { "$new argparse.Namespace()^{'lr': 0.1, 'tp': 2}", "{\"__class__\": \"argparse.Namespace\", \"lr\": 0.1, \"tp\": 2}" },
        { "$new m.C(1)^{}", "{\"__class__\": \"m.C\", \"__args__\": [1]}" },
        { "$new m.C()^{'__class__': 1}", "{\"__class__\": \"m.C\", \"__state__\": {\"__class__\": 1}}" },
        { "$new m.C()^{1: 2}", "{\"__class__\": \"m.C\", \"__state__\": {\"1\": 2}}" },
        { "$new m.C()^(None, {'s': 1})", "{\"__class__\": \"m.C\", \"__state__\": [null, {\"s\": 1}]}" },
        { "$new m.C()^{'a': 1}^{'b': 2}", "{\"__class__\": \"m.C\", \"__states__\": [{\"a\": 1}, {\"b\": 2}]}" },
        { "m.f()![1, 2]!{'k': 3}!$set[4]", "{\"__class__\": \"m.f\", \"__items__\": [1, 2], \"__dict__\": {\"k\": 3}, \"__set__\": [4]}" },
        { "copyreg._reconstructor(@m.C, @builtins.object, None)^{'a': 1}", "{\"__class__\": \"m.C\", \"a\": 1}" },
        { "copyreg._reconstructor(@m.C, @builtins.int, 5)",
          "{\"__class__\": \"m.C\", \"__args__\": [{\"__global__\": \"builtins.int\"}, 5]}" },
        { "$pid ('storage', '0')", "{\"__persistent_id__\": [\"storage\", \"0\"]}" },
        { "$call m.f(1) (2,)", "{\"__class__\": \"m.f(1)\", \"__args__\": [2]}" },
        { "collections.OrderedDict([('a', 1)])", "{\"__class__\": \"collections.OrderedDict\", \"__args__\": [[[\"a\", 1]]]}" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text(cases[i].text, cases[i].json, true);
}

TEST(python_texts)
{
    static const char *const same[] = {
        "None",        "True",   "-5",
        "0.1",         "nan",    "'a'",
        "b'a\\xff'",   "[1, 2]", "(1,)",
        "()",          "(1, 2)", "{'a': 1, (2,): [3]}",
        "m.f(1, 'a')", "m.f()",  "1180591620717411303424",
    };
    static const struct { const char *text, *repr;
    } cases[] = {
        { "'it\\'s'", "\"it's\"" },
        { "'\\'\"'", "'\\'\"'" },
        { "'\\x0a\\x09\\x0d\\x00\\\\'", "'\\n\\t\\r\\x00\\\\'" },
        { "'\\xc3\\xa9'", "'\xC3\xA9'" },
        { "'\\xc2\\x9b'", "'\\x9b'" },
        { "'\\xed\\xa0\\xbd'", "'\\ud83d'" },
        { "$set[]", "set()" },
        { "$set[1, 2]", "{1, 2}" },
        { "$frozenset[]", "frozenset()" },
        { "$frozenset[1]", "frozenset({1})" },
        { "$bytearray 'q'", "bytearray(b'q')" },
        { "@m.g", "m.g" },
        { "$pid 1", "<persistent id 1>" },
        { "$new m.C(1)^{'a': 2}", "m.C(1, {'a': 2})" },
        { "$new m.C()^{'a': 2}", "m.C({'a': 2})" },
        { "m.f()![1]!{2: 3}!$set[4]", "m.f([1], {2: 3}, {4})" },
        { "$call 5 (1,)", "<unnamed>(1)" },
        { "_codecs.encode('\xC3\xBF', 'latin1')", "b'\\xff'" },
        { "builtins.bytearray()", "bytearray(b'')" },
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        check_text(same[i], same[i], false);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text(cases[i].text, cases[i].repr, false);
}

TEST(a_tensor_is_a_number_and_a_missing_node_is_null)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    struct value *list = value_from_text(&graph, "[m.rebuild(1), 2]");
    list->list.items[0]->tensor = 5;
    list->list.items[1] = NULL;
    CHECK_OK(value_to_json(list, &out, AT_MOST(100), &err));
    assert_true(str_is(buffer_str(&out), "[{\"__tensor__\": 4}, null]"));
    buffer_clear(&out);
    CHECK_OK(value_to_json(NULL, &out, AT_MOST(100), &err));
    assert_true(str_is(buffer_str(&out), "null"));
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(cycles_close_where_they_are_met)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    struct value *list = value_from_text(&graph, "[{'a': (1, 2)}, m.C()^{'self': 1}, 3]");
    struct value *dict = list->list.items[0];
    dict->list.items[1]->list.items[1] = list;
    list->list.items[1]->object->states[0]->list.items[1] = list->list.items[1]->object->states[0];
    list->list.items[2] = dict; /* shared, not a cycle */
    CHECK_OK(value_to_json(list, &out, AT_MOST(1000), &err));
    assert_true(str_is(buffer_str(&out), "[{\"a\": [1, {\"__cycle__\": true}]}, {\"__class__\": \"m.C\", \"self\": {\"__cycle__\": true}}, "
                                         "{\"a\": [1, {\"__cycle__\": true}]}]"));
    buffer_clear(&out);
    assert_true(value_to_repr(dict, &out, NULL));
    assert_true(str_starts_with(buffer_str(&out), "{'a': (1, [..., "));
    buffer_clear(&out);
    struct value *key_cycle = value_from_text(&graph, "{('k', 1): 2}");
    key_cycle->list.items[0]->list.items[1] = key_cycle;
    CHECK_OK(value_to_json(key_cycle, &out, AT_MOST(1000), &err));
    assert_true(str_is(buffer_str(&out), "{\"('k', {...: 2})\": 2}"));
    buffer_release(&out);
    value_graph_release(&graph);
}

/* Each tuple holds the one before twice: 2^64 leaves in 64 nodes. */
TEST(a_bomb_of_shared_nodes_ends_at_the_limit)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct value *node = value_new_int(&graph, 1);
    for (int depth = 0; depth < 64; depth++) {
        struct value **items = arena_array(&graph.arena, 2, sizeof(*items));
        items[0] = items[1] = node;
        node = value_new_list(&graph, VALUE_TUPLE, items, 2);
    }
    struct value *pair[] = { node, value_new_int(&graph, 1) };
    struct value *as_key = value_new_list(&graph, VALUE_DICT, pair, 2);
    struct buffer out = { 0 };
    assert_true(buffer_append_text(&out, "before"));
    for (int i = 0; i < 2; i++) {
        CHECK_FAILS(value_to_json(i ? as_key : node, &out, (struct named_limit){ "shown_bytes", 100000, NULL }, &err), RESHARD_ERR_LIMIT);
        assert_string_equal(err.message, "value as JSON: more, the limit shown_bytes is 100000");
        assert_string_equal(err.hint, "raise it with reshard_open_options.limits shown_bytes=400000");
        assert_true(str_is(buffer_str(&out), "before"));
        assert_false(out.failed || out.over_limit);
        assert_true(out.capacity <= 100006);
    }
    struct value *other_node = value_new_int(&graph, 1);
    for (int depth = 0; depth < 64; depth++) {
        struct value **items = arena_array(&graph.arena, 2, sizeof(*items));
        items[0] = items[1] = other_node;
        other_node = value_new_list(&graph, VALUE_TUPLE, items, 2);
    }
    assert_true(value_equal(node, other_node));
    other_node->list.items[0]->list.items[0] = node;
    assert_false(value_equal(node, other_node));
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(the_limit_counts_exactly)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct value *value = value_from_text(&graph, "[1, 'abc', b'xy', {'k': 0.5, ('t',): torch.device('cpu')}]");
    struct buffer whole = { 0 };
    CHECK_OK(value_to_json(value, &whole, AT_MOST(SIZE_MAX), &err));
    for (size_t max = 1; max <= whole.size; max++) {
        struct buffer out = { 0 };
        reshard_status status = value_to_json(value, &out, AT_MOST(max), &err);
        assert_int_equal(status, max < whole.size ? RESHARD_ERR_LIMIT : RESHARD_OK);
        assert_int_equal(out.size, max < whole.size ? 0 : whole.size);
        buffer_release(&out);
    }
    struct buffer narrow = { .limit = 10 };
    CHECK_FAILS(value_to_json(value, &narrow, AT_MOST(SIZE_MAX), &err), RESHARD_ERR_LIMIT);
    assert_int_equal(narrow.limit, 10);
    buffer_release(&narrow);
    buffer_release(&whole);
    value_graph_release(&graph);
}

TEST(a_million_levels_need_no_stack_and_json_ends_before)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct value *node = value_new_list(&graph, VALUE_LIST, NULL, 0);
    for (int depth = 1; depth < 1000000; depth++) {
        struct value **items = arena_array(&graph.arena, 1, sizeof(*items));
        items[0] = node;
        node = value_new_list(&graph, VALUE_LIST, items, 1);
    }
    struct buffer out = { 0 };
    CHECK_OK(value_to_json(node, &out, AT_MOST(SIZE_MAX), &err));
    assert_int_equal(out.size, 2 * VALUE_JSON_DEPTH_MAX + strlen("{\"__too_deep__\": true}"));
    assert_memory_equal(out.data + VALUE_JSON_DEPTH_MAX, "{\"__too_deep__\": true}]", 23);
    buffer_clear(&out);
    assert_true(value_to_repr(node, &out, NULL));
    assert_int_equal(out.size, 2000000);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(without_memory_the_output_stays_as_it_was)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct value *value = value_from_text(
        &graph, "[None, 'text', b'bytes', {'k': [1], 2: 'v', ('a',): 1, 'k': 3}, @m.g, m.f(1)!{'x': 1}, '\\xff', "
                "$new m.C(1)^{'s': 1}, $pid ('s', 1), 123456789012345678901234567890, builtins.complex(1.0, 2.0), "
                "pathlib.PosixPath('/', 'a'), builtins.getattr(@m.C, 'N'), $call m.f(1) (2,), _codecs.encode('a', 'latin1')]");
    struct buffer whole = { 0 };
    CHECK_OK(value_to_json(value, &whole, AT_MOST(SIZE_MAX), &err));
    unsigned long nth = 0;
    bool hit;
    do {
        struct buffer out = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = value_to_json(value, &out, AT_MOST(SIZE_MAX), &err);
        hit = fail_malloc_was_hit();
        assert_int_equal(status, hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        assert_true(str_equal(buffer_str(&out), hit ? (struct str){ 0 } : buffer_str(&whole)));
        buffer_release(&out);
        fail_malloc_at(nth);
        bool printed = value_to_repr(value, &out, NULL);
        assert_int_equal(printed, !fail_malloc_was_hit());
        assert_int_equal(out.failed, !printed);
        buffer_release(&out);
    } while (hit);
    assert_true(nth > 10);
    buffer_release(&whole);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_of_leaves),
        cmocka_unit_test(json_of_containers),
        cmocka_unit_test(json_of_known_calls),
        cmocka_unit_test(json_of_objects),
        cmocka_unit_test(python_texts),
        cmocka_unit_test(a_tensor_is_a_number_and_a_missing_node_is_null),
        cmocka_unit_test(cycles_close_where_they_are_met),
        cmocka_unit_test(a_bomb_of_shared_nodes_ends_at_the_limit),
        cmocka_unit_test(the_limit_counts_exactly),
        cmocka_unit_test(a_million_levels_need_no_stack_and_json_ends_before),
        cmocka_unit_test(without_memory_the_output_stays_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
