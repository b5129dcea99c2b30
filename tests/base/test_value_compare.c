/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "fail_malloc.h"
#include "value_text.h"

TEST(content_counts_and_identity_does_not)
{
    static const struct { const char *why, *a, *b; bool equal;
    } cases[] = {
        { "same leaf", "1", "1", true },
        { "bool is no int", "True", "1", false },
        { "float is no int", "1.0", "1", false },
        { "nan is itself", "nan", "nan", true },
        { "zeros differ", "0.0", "-0.0", false },
        { "none", "None", "False", false },
        { "text and bytes", "'a'", "b'a'", false },
        { "bytes of protocol 2", "_codecs.encode('a', 'latin1')", "b'a'", true },
        { "other bytes of protocol 2", "_codecs.encode('b', 'latin1')", "b'a'", false },
        { "such bytes inside", "[b'a', 1]", "[_codecs.encode('a', 'latin1'), 1]", true },
        { "no bytes", "_codecs.encode('a', 'hex')", "b'a'", false },
        { "list and tuple", "[1]", "(1,)", false },
        { "order of a list", "[1, 2]", "[2, 1]", false },
        { "length of a list", "[1, 2]", "[1]", false },
        { "nested", "[1, [2, {'a': (3,)}]]", "[1, [2, {'a': (3,)}]]", true },
        { "deep difference", "[1, [2, {'a': (3,)}]]", "[1, [2, {'a': (4,)}]]", false },
        { "order of a dict", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", true },
        { "dict with another key", "{'a': 1}", "{'b': 1}", false },
        { "dict with one more", "{'a': 1}", "{'a': 1, 'b': 2}", false },
        { "the last of equal keys", "{'a': 1, 'a': 2}", "{'a': 2}", true },
        { "not the first", "{'a': 1, 'a': 2}", "{'a': 1}", false },
        { "tuple keys in order", "{(1,): 2, 'x': 0, (3,): 4}", "{(1,): 2, (3,): 4, 'x': 0}", true },
        { "tuple keys out of order", "{(1,): 2, (3,): 4}", "{(3,): 4, (1,): 2}", false },
        { "one tuple key more", "{(1,): 2, (3,): 4}", "{(1,): 2}", false },
        { "order of a set", "$set[1, 2, 'x']", "$set['x', 2, 1]", true },
        { "set with another member", "$set[1, 2]", "$set[1, 3]", false },
        { "set with a tuple", "$set[(1,), 2]", "$set[2, (1,)]", true },
        { "sets and frozen ones", "$set[1]", "$frozenset[1]", false },
        { "a set of protocol 2", "builtins.set([1, 'x', 2])", "builtins.set(['x', 2, 1])", true },
        { "sets of two protocols", "builtins.set([1, 'x', 2])", "$set['x', 2, 1]", true },
        { "other sets of two protocols", "builtins.set([1, 2])", "$set[1, 3]", false },
        { "frozen sets of two protocols", "$frozenset['x', 1]", "builtins.frozenset([1, 'x'])", true },
        { "a frozen set of protocol 2", "builtins.frozenset([1])", "builtins.set([1])", false },
        { "sets of protocol 2 and frozen ones", "builtins.set([1])", "$frozenset[1]", false },
        { "sets of what is no list", "builtins.set('ab')", "builtins.set('ba')", false },
        { "bytearrays of protocol 2", "builtins.bytearray('a\u00e9', 'latin-1')", "$bytearray 'a\xe9'", true },
        { "bytearrays of protocol 3", "builtins.bytearray(b'ab')", "$bytearray 'ab'", true },
        { "bytearrays of two protocols", "builtins.bytearray(b'ab')", "builtins.bytearray('ab', 'latin-1')", true },
        { "bytearrays of bytes of protocol 2", "builtins.bytearray(_codecs.encode('ab', 'latin1'))", "$bytearray 'ab'", true },
        { "empty bytearrays", "builtins.bytearray()", "$bytearray ''", true },
        { "other bytearrays", "builtins.bytearray(b'ab')", "builtins.bytearray('ac', 'latin-1')", false },
        { "bytearray and bytes", "builtins.bytearray(b'ab')", "b'ab'", false },
        { "bytearray and bytes of protocol 2", "builtins.bytearray(b'ab')", "_codecs.encode('ab', 'latin1')", false },
        { "empty bytes of protocol 2", "builtins.bytes()", "b''", true },
        { "calls that are no bytes", "_codecs.encode('a', 'hex')", "_codecs.encode('a', 'hex')", true },
        { "other calls that are no bytes", "_codecs.encode('a', 'hex')", "_codecs.encode('b', 'hex')", false },
        { "modules of NumPy 1 and 2", "@numpy.core.multiarray.f", "@numpy._core.multiarray.f", true },
        { "other modules of NumPy", "@numpy.core.multiarray.f", "@numpy._core.numeric.f", false },
        { "NumPy and others", "@numpy.core.a.f", "@a.f", false },
        { "such a module as a key", "{@numpy.core.a.f: 1}", "{@numpy._core.a.f: 1}", true },
        { "globals", "@m.f", "@m.f", true },
        { "other module", "@m.f", "@n.f", false },
        { "calls", "m.f(1)", "m.f(1)", true },
        { "other callable", "m.f(1)", "m.g(1)", false },
        { "other arguments", "m.f(1)", "m.f(2)", false },
        { "call and new", "m.f(1)", "$new m.f(1)", false },
        { "names of arguments", "$new m.f(1)!**{'a': 2}", "$new m.f(1)!**{'a': 2}", true },
        { "names of arguments in protocol 2", "$new m.f(1)!**{'a': 2}", "copyreg.__newobj_ex__(@m.f, (1,), {'a': 2})", true },
        { "with a state", "$new m.f(1)!**{'a': 2}^3", "copyreg.__newobj_ex__(@m.f, (1,), {'a': 2})^3", true },
        { "with another state", "$new m.f(1)!**{'a': 2}^3", "copyreg.__newobj_ex__(@m.f, (1,), {'a': 2})^4", false },
        { "other names in protocol 2", "$new m.f(1)!**{'a': 2}", "copyreg.__newobj_ex__(@m.f, (1,), {'b': 2})", false },
        { "another class in protocol 2", "$new m.f(1)!**{'a': 2}", "copyreg.__newobj_ex__(@m.g, (1,), {'a': 2})", false },
        { "a call and not that", "m.f(1)", "copyreg.__newobj_ex__(@m.f, (1,), None)", false },
        { "states", "m.f()^1", "m.f()^1", true },
        { "other state", "m.f()^1", "m.f()^2", false },
        { "no state", "m.f()^1", "m.f()", false },
        { "items set", "m.f()!{1: 2}", "m.f()!{1: 3}", false },
        { "items added", "m.f()!$set[1, 2]", "m.f()!$set[2, 1]", true },
        { "items appended", "m.f()![1, 2]", "m.f()![2, 1]", false },
        { "persistent ids", "$pid 1", "$pid 1", true },
        { "other id", "$pid 1", "$pid 2", false },
        { "leaf and container", "1", "[1]", false },
        { "big integers", "123456789012345678901234567890", "123456789012345678901234567890", true },
        { "padded big integer", "{1180591620717411303424: 1}", "{1180591620717411303424: 1}", true },
        { "big and small form of one integer", "1000000000000000000", "999999999999999999", false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        const struct value *a = value_from_text(&graph, cases[i].a), *b = value_from_text(&graph, cases[i].b);
        bool equal = !cases[i].equal;
        assert_int_equal(value_compare(a, b, NULL, NULL, &equal, NULL), RESHARD_OK);
        if (equal != cases[i].equal || value_equal(b, a) != equal)
            fail_msg("%s: %s and %s", cases[i].why, cases[i].a, cases[i].b);
        value_graph_release(&graph);
    }
    assert_true(value_equal(NULL, NULL));
    struct value_graph graph = { 0 };
    assert_false(value_equal(NULL, value_from_text(&graph, "None")));
    value_graph_release(&graph);
}

TEST(an_integer_is_the_same_in_both_forms)
{
    static const int64_t integers[] = { 0, 1, -1, 127, 128, -128, -129, 255, 65536, INT64_MAX, INT64_MIN };
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        for (size_t pad = 8; pad < 12; pad++) {
            struct value_graph graph = { 0 };
            uint8_t bytes[12];
            for (size_t b = 0; b < 12; b++)
                bytes[b] = (uint8_t)(b < 8 ? (uint64_t)integers[i] >> (8 * b) : integers[i] < 0 ? 0xFF : 0);
            struct value *big = value_new_str(&graph, (struct str){ (char *)bytes, pad }), *small = value_new_int(&graph, integers[i]);
            big->kind = VALUE_BIGINT;
            assert_true(value_equal(big, small));
            struct value *other = value_new_int(&graph, integers[i] ^ 2);
            assert_false(value_equal(big, other));
            struct value *big_pair[] = { big, other }, *small_pair[] = { small, other };
            assert_true(value_equal(value_new_list(&graph, VALUE_DICT, big_pair, 2), value_new_list(&graph, VALUE_DICT, small_pair, 2)));
            value_graph_release(&graph);
        }
    }
}

/* Lists that hold one another in a ring of a given length; one of them can hold something else. */
static struct value *ring(struct value_graph *graph, size_t length, size_t odd_one)
{
    struct value *lists[16];
    for (size_t i = 0; i < length; i++) {
        struct value **items = arena_array(&graph->arena, 2, sizeof(*items));
        items[0] = value_new_int(graph, i == odd_one);
        lists[i] = value_new_list(graph, VALUE_LIST, items, 2);
    }
    for (size_t i = 0; i < length; i++)
        lists[i]->list.items[1] = lists[(i + 1) % length];
    return lists[0];
}

TEST(cycles_are_equal_if_following_them_shows_the_same)
{
    struct value_graph graph = { 0 };
    assert_true(value_equal(ring(&graph, 1, 99), ring(&graph, 1, 99)));
    assert_true(value_equal(ring(&graph, 6, 99), ring(&graph, 10, 99)));
    assert_true(value_equal(ring(&graph, 4, 2), ring(&graph, 4, 2)));
    assert_false(value_equal(ring(&graph, 4, 2), ring(&graph, 4, 3)));
    assert_false(value_equal(ring(&graph, 7, 6), ring(&graph, 14, 13)));
    value_graph_release(&graph);
}

/* Order reversed, long enough for an index on the heap. */
TEST(large_dicts_are_matched_by_key)
{
    enum { COUNT = 20000 };
    struct value_graph graph = { 0 };
    struct value **a = arena_array(&graph.arena, 2 * COUNT, sizeof(*a)), **b = arena_array(&graph.arena, 2 * COUNT, sizeof(*b));
    for (int i = 0; i < COUNT; i++) {
        char key[32];
        sprintf(key, "key%d", i);
        int j = COUNT - 1 - i;
        a[2 * i] = value_new_str(&graph, str_of(key));
        b[2 * j] = value_new_str(&graph, str_of(key));
        a[2 * i + 1] = value_new_int(&graph, i);
        b[2 * j + 1] = value_new_int(&graph, i);
    }
    struct value *a_dict = value_new_list(&graph, VALUE_DICT, a, 2 * COUNT), *b_dict = value_new_list(&graph, VALUE_DICT, b, 2 * COUNT);
    assert_true(value_equal(a_dict, b_dict));
    b[2 * 777 + 1]->integer++;
    assert_false(value_equal(a_dict, b_dict));
    value_graph_release(&graph);
}

TEST(without_memory_there_is_no_answer)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    static const char text[] = "[{'a': [1, (2,)], 'b': {3: 4}}, m.f(1)!{'x': 1}, $set[1, 2], $pid (1,)]";
    const struct value *a = value_from_text(&graph, text), *b = value_from_text(&graph, text);
    unsigned long nth = 0;
    bool hit;
    do {
        bool equal = false;
        fail_malloc_at(++nth);
        reshard_status status = value_compare(a, b, NULL, NULL, &equal, &err);
        hit = fail_malloc_was_hit();
        assert_int_equal(status, hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        assert_int_equal(equal, !hit);
    } while (hit);
    assert_true(nth > 3);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(content_counts_and_identity_does_not),
        cmocka_unit_test(an_integer_is_the_same_in_both_forms),
        cmocka_unit_test(cycles_are_equal_if_following_them_shows_the_same),
        cmocka_unit_test(large_dicts_are_matched_by_key),
        cmocka_unit_test(without_memory_there_is_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
