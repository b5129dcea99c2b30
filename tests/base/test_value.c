/* SPDX-License-Identifier: Apache-2.0 */
/* Building, reading, walking and copying value graphs. */
#include "check.h"
#include "fail_malloc.h"
#include "base/value_parts.h"
#include "value_text.h"

TEST(mappings_are_dicts_and_the_calls_that_make_one)
{
    static const struct { const char *why, *text; bool is_mapping; size_t count; } cases[] = {
        { "dict", "{'a': 1, 'b': 2}", true, 4 },
        { "items set on an OrderedDict", "collections.OrderedDict()!{'a': 1}", true, 2 },
        { "empty OrderedDict", "collections.OrderedDict()", true, 0 },
        { "defaultdict with its factory", "collections.defaultdict(@builtins.list)!{'a': 1}", true, 2 },
        { "Counter of a dict", "collections.Counter({'a': 1})", true, 2 },
        { "list of pairs", "collections.OrderedDict([('a', 1)])", false, 0 },
        { "argument and items", "collections.Counter({'a': 1})!{'b': 1}", false, 0 },
        { "other class", "other.OrderedDict()", false, 0 },
        { "list", "[1]", false, 0 },
        { "none", "None", false, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        struct value **pairs;
        size_t count = 0;
        struct value *value = value_from_text(&graph, cases[i].text);
        if (value_as_mapping(value, &pairs, &count) != cases[i].is_mapping || count != cases[i].count)
            fail_msg("%s: %zu items", cases[i].why, count);
        value_graph_release(&graph);
    }
    struct value **pairs;
    size_t count;
    assert_false(value_as_mapping(NULL, &pairs, &count));
}

TEST(the_last_of_equal_keys_is_found)
{
    struct value_graph graph = { 0 };
    struct value *dict = value_from_text(&graph, "{'a': 1, 2: 3, 'a': 4, ('a',): 5}");
    int64_t integer = 0;
    assert_true(value_as_int(value_dict_get(dict, "a"), &integer));
    assert_int_equal(integer, 4);
    assert_null(value_dict_get(dict, "b"));
    assert_null(value_dict_get(dict, "2"));
    assert_null(value_dict_get(value_from_text(&graph, "[1]"), "a"));
    assert_null(value_dict_get(NULL, "a"));
    value_graph_release(&graph);
}

TEST(sequences_integers_and_texts)
{
    struct value_graph graph = { 0 };
    int64_t ints[3] = { 0 };
    size_t count = 99;
    struct str text;
    assert_true(value_as_ints(value_from_text(&graph, "(3, -4)"), ints, 3, &count));
    assert_int_equal(count, 2);
    assert_true(ints[0] == 3 && ints[1] == -4);
    assert_true(value_as_ints(value_from_text(&graph, "torch.Size((7,))"), ints, 3, &count) && count == 1 && ints[0] == 7);
    assert_true(value_as_ints(value_from_text(&graph, "[]"), ints, 3, &count) && count == 0);
    static const char *const refused[] = { "[1, 2, 3, 4]", "[1, True]", "[1.0]", "{1: 2}", "5", "None", "torch.Size(1)" };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        assert_false(value_as_ints(value_from_text(&graph, refused[i]), ints, 3, &count));
    assert_false(value_as_int(value_from_text(&graph, "True"), ints));
    assert_false(value_as_int(NULL, ints));
    assert_true(value_as_str(value_from_text(&graph, "b'x'"), &text) && str_is(text, "x"));
    assert_false(value_as_str(value_from_text(&graph, "1"), &text) || value_as_str(NULL, &text));
    value_graph_release(&graph);
}

TEST(bytes_are_known_in_every_spelling)
{
    static const struct { const char *text, *bytes; } cases[] = {
        { "b'ab'", "ab" }, { "_codecs.encode('a\xC3\xBF\xC2\x80', 'latin1')", "a\xFF\x80" }, { "_codecs.encode('', 'latin-1')", "" },
        { "builtins.bytes()", "" }, { "builtins.bytearray()", "" }, { "builtins.bytearray(b'x')", "x" },
        { "builtins.bytearray('\xC3\xBF', 'latin-1')", "\xFF" }, { "builtins.bytearray(_codecs.encode('y', 'latin1'))", "y" },
        { "_codecs.encode('\xC4\x80', 'latin1')", NULL }, { "_codecs.encode('a', 'utf8')", NULL }, { "_codecs.encode('a')", NULL },
        { "'text'", NULL }, { "None", NULL }, { "builtins.bytes('a', 'latin1')", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        struct buffer out = { 0 };
        const struct value *value = value_from_text(&graph, cases[i].text);
        if (value_as_bytes(value, &out) != (cases[i].bytes != NULL))
            fail_msg("%s", cases[i].text);
        if (cases[i].bytes) {
            assert_true(str_is(buffer_str(&out), cases[i].bytes));
            assert_string_equal(value_kind_name(value), "bytes");
        }
        buffer_release(&out);
        value_graph_release(&graph);
    }
    struct buffer none = { 0 };
    assert_false(value_is_bytes(NULL) || value_as_bytes(NULL, &none) || none.size);
}

TEST(kinds_and_classes_have_names)
{
    static const struct { const char *text, *kind, *class;
    } cases[] = {
        { "None", "null", NULL },
        { "True", "bool", NULL },
        { "5", "int", NULL },
        { "0.5", "float", NULL },
        { "''", "str", NULL },
        { "b''", "bytes", NULL },
        { "[]", "list", NULL },
        { "()", "list", NULL },
        { "torch.Size((1,))", "list", "torch.Size" },
        { "{}", "dict", NULL },
        { "collections.OrderedDict()", "dict", "collections.OrderedDict" },
        { "collections.OrderedDict([1])", "object", "collections.OrderedDict" },
        { "$set[1]", "object", NULL },
        { "builtins.set([1])", "object", "builtins.set" },
        { "@torch.float32", "object", NULL },
        { "$pid 1", "object", NULL },
        { "m.Enum(3)", "object", "m.Enum" },
        { "copyreg._reconstructor(@m.C, @builtins.object, None)", "object", "m.C" },
        { "copyreg._reconstructor(@m.C, @builtins.dict, {})", "object", "m.C" },
        { "copyreg.__newobj__(@m.D, 1)", "object", "m.D" },
        { "builtins.getattr(@m.C, 'NAME')", "object", NULL },
        { "$call builtins.getattr(builtins.getattr(@m.C, 'A'), 'B') (1,)", "object", "m.C.A.B" },
        { "$call 5 ()", "object", NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        struct buffer class = { 0 };
        const struct value *value = value_from_text(&graph, cases[i].text);
        assert_string_equal(value_kind_name(value), cases[i].kind);
        bool has_class = value_class_name(value, &class);
        if (has_class != (cases[i].class != NULL) || (has_class && !str_is(buffer_str(&class), cases[i].class)))
            fail_msg("%s: class %.*s", cases[i].text, STR_ARG(buffer_str(&class)));
        buffer_release(&class);
        value_graph_release(&graph);
    }
}

/* A list of `depth` lists inside each other, the innermost of which holds the outermost. */
static struct value *deep_cycle(struct value_graph *graph, uint32_t depth)
{
    struct value *outer = NULL, **hole = NULL;
    for (uint32_t i = 0; i < depth; i++) {
        struct value **items = arena_array(&graph->arena, 1, sizeof(*items));
        struct value *list = value_new_list(graph, VALUE_LIST, items, 1);
        if (hole)
            *hole = list;
        else
            outer = list;
        hole = items;
    }
    *hole = outer;
    return outer;
}

struct visits {
    uint32_t count, stop_after;
    uint32_t order[64];
};

static bool count_visit(const struct value *value, void *context)
{
    struct visits *visits = context;
    if (visits->count < 64)
        visits->order[visits->count] = value->id;
    return ++visits->count != visits->stop_after;
}

TEST(a_walk_visits_each_node_once_parents_first)
{
    struct value_graph graph = { 0 };
    struct value *shared = value_new_int(&graph, 1);                                      /* 0 */
    struct value *inner_items[] = { shared, shared }, *outer_items[3];
    struct value *inner = value_new_list(&graph, VALUE_TUPLE, inner_items, 2);            /* 1 */
    struct value *outer = value_new_list(&graph, VALUE_LIST, outer_items, 3);             /* 2 */
    outer_items[0] = inner;
    outer_items[1] = outer;
    outer_items[2] = value_new_call(&graph, value_new_global(&graph, "m", "f"), &inner, 1); /* global 3, tuple 4, call 5 */
    struct visits visits = { 0 };
    bool no_memory = true;
    assert_true(value_walk(outer, graph.count, NULL, count_visit, &visits, &no_memory));
    assert_false(no_memory);
    static const uint32_t expected[] = { 2, 1, 0, 5, 3, 4 };
    assert_int_equal(visits.count, 6);
    assert_memory_equal(visits.order, expected, sizeof(expected));
    visits = (struct visits){ .stop_after = 2 };
    assert_false(value_walk(outer, graph.count, NULL, count_visit, &visits, NULL));
    assert_int_equal(visits.count, 2);
    assert_false(value_walk(outer, 1, NULL, count_visit, &visits, &no_memory)); /* a node of another graph */
    assert_false(no_memory);
    value_graph_release(&graph);
}

TEST(deep_and_cyclic_graphs_are_walked_copied_and_compared_without_recursion)
{
    struct value_graph graph = { 0 }, copy_graph = { 0 };
    struct value *outer = deep_cycle(&graph, 1000000);
    struct visits visits = { 0 };
    assert_true(value_walk(outer, graph.count, NULL, count_visit, &visits, NULL));
    assert_int_equal(visits.count, 1000000);
    struct value *copy = value_copy(&copy_graph, outer, graph.count);
    assert_non_null(copy);
    assert_int_equal(copy_graph.count, 1000000);
    assert_true(value_equal(outer, copy));
    value_graph_release(&graph);
    const struct value *node = copy;
    for (int i = 0; i < 1000000; i++)
        node = node->list.items[0];
    assert_ptr_equal(node, copy);
    value_graph_release(&copy_graph);
}

static const char everything[] =
    "[None, True, -5, 0.25, 'text', b'bytes', ('t',), $set[1, 2], $frozenset[3], {'k': [1], 2: 'v'}, @m.g, m.f(1, 'a')!{'x': 1}, "
    "$new m.C(1)^{'state': 1}, $pid ('storage', 1), $bytearray 'q', 123456789012345678901234567890]";

TEST(copies_share_nothing_and_are_equal)
{
    struct value_graph graph = { 0 }, copy_graph = { 0 };
    struct value *value = value_from_text(&graph, everything);
    value->list.items[4]->offset = 77;
    value->list.items[13]->storage = 3;
    struct value *copy = value_copy(&copy_graph, value, graph.count);
    assert_non_null(copy);
    assert_true(value_equal(value, copy));
    struct buffer a = { 0 }, b = { 0 };
    assert_true(value_to_repr(value, &a, NULL));
    memset(value->list.items[4]->text.data ? (char *)(uintptr_t)value->list.items[4]->text.data : NULL, 'x', 4);
    value_graph_release(&graph);
    assert_true(value_to_repr(copy, &b, NULL));
    assert_true(str_equal(buffer_str(&a), buffer_str(&b)));
    assert_true(copy->list.items[4]->offset == 77);
    assert_int_equal(copy->list.items[13]->storage, 3);
    buffer_release(&a);
    buffer_release(&b);
    value_graph_release(&copy_graph);
    assert_null(value_copy(&copy_graph, NULL, 0));
    value_graph_release(&copy_graph);
}

TEST(without_memory_nothing_is_half_done)
{
    struct value_graph graph = { 0 };
    struct value *value = value_from_text(&graph, everything);
    unsigned long nth = 0;
    bool hit;
    do {
        struct value_graph copy_graph = { 0 };
        struct visits visits = { 0 };
        bool no_memory;
        fail_malloc_at(++nth);
        struct value *copy = value_copy(&copy_graph, value, graph.count);
        hit = fail_malloc_was_hit();
        assert_true(hit || copy);
        assert_true(!copy || value_equal(value, copy));
        fail_malloc_at(nth);
        bool walked = value_walk(value, graph.count, NULL, count_visit, &visits, &no_memory);
        bool walk_hit = fail_malloc_was_hit();
        assert_int_equal(walked, !walk_hit);
        assert_int_equal(no_memory, walk_hit);
        value_graph_release(&copy_graph);
    } while (hit);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mappings_are_dicts_and_the_calls_that_make_one),
        cmocka_unit_test(the_last_of_equal_keys_is_found),
        cmocka_unit_test(sequences_integers_and_texts),
        cmocka_unit_test(bytes_are_known_in_every_spelling),
        cmocka_unit_test(kinds_and_classes_have_names),
        cmocka_unit_test(a_walk_visits_each_node_once_parents_first),
        cmocka_unit_test(deep_and_cyclic_graphs_are_walked_copied_and_compared_without_recursion),
        cmocka_unit_test(copies_share_nothing_and_are_equal),
        cmocka_unit_test(without_memory_nothing_is_half_done),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
