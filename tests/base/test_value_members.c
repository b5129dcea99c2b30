/* SPDX-License-Identifier: Apache-2.0 */
/* Members of items, under names joined with dots. */
#include "base/value_members.h"
#include "check.h"
#include "fail_malloc.h"
#include "value_text.h"

static bool append_member(void *context, struct str key, const struct value *value)
{
    struct buffer *out = context;
    return buffer_append_str(out, key) && buffer_append_byte(out, '=') && value_to_repr(value, out, NULL) && buffer_append_byte(out, ' ');
}

static void check_members(const char *text, const char *expected)
{
    reshard_error err;
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    CHECK_OK(value_members(value_from_text(&graph, text), STR("x"), NULL, append_member, &out, &err));
    assert_true(buffer_append_byte(&out, 0));
    assert_string_equal((char *)out.data, expected);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(dictionaries_and_lists_with_dictionaries_are_entered)
{
    static const struct { const char *text, *members; } cases[] = {
        { "3", "" }, { "[1, 2]", "" }, { "{}", "" }, { "({'a': 1},)", "" }, { "{'a': 1, 0: {'b': (2, 3)}}", "x.a=1 x.0.b=(2, 3) " },
        { "[{'lr': 0.1, 'betas': [0.9, 0.99]}, 5]", "x.0.lr=0.1 x.0.betas=[0.9, 0.99] x.1=5 " },
        { "[[{'a': 1}], [2]]", "x.0.0.a=1 x.1=[2] " }, { "{'a': {}, 'b': []}", "x.a={} x.b=[] " },
        { "{'a': [1, ({'b': 2},)]}", "x.a=[1, ({'b': 2},)] " }, { "collections.OrderedDict()!{'a': 1}", "x.a=1 " },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_members(cases[i].text, cases[i].members);
}

TEST(a_dictionary_whose_keys_are_no_names_is_one_member)
{
    check_members("{None: 1}", "");
    check_members("{'a': {(1, 2): 3}}", "x.a={(1, 2): 3} ");
    check_members("{'a': 1, 'a': 2}", "");
}

TEST(a_node_inside_itself_is_a_member)
{
    struct value_graph graph = { 0 };
    struct value *inner = value_from_text(&graph, "{'a': 1}");
    inner->list.items[1] = inner;
    reshard_error err;
    struct buffer out = { 0 };
    CHECK_OK(value_members(inner, STR("x"), NULL, append_member, &out, &err));
    assert_int_equal(memcmp(out.data, "x.a=", 4), 0);
    buffer_release(&out);
    value_graph_release(&graph);
}

static struct value *pair_of(struct value_graph *graph, struct value *node)
{
    struct value **items = arena_array(&graph->arena, 4, sizeof(struct value *));
    items[0] = value_new_str(graph, STR("a"));
    items[2] = value_new_str(graph, STR("b"));
    items[1] = items[3] = node;
    return value_new_list(graph, VALUE_DICT, items, 4);
}

static bool count_member(void *context, struct str key, const struct value *value)
{
    (void)key, (void)value;
    ++*(size_t *)context;
    return true;
}

TEST(shared_nodes_cannot_multiply_without_end)
{
    struct value_graph graph = { 0 };
    struct value *node = value_new_int(&graph, 1);
    for (int i = 0; i < 40; i++)
        node = pair_of(&graph, node);
    reshard_error err;
    size_t count = 0;
    assert_int_equal(value_members(node, STR("x"), NULL, count_member, &count, &err), RESHARD_ERR_LIMIT);
    assert_true(count < VALUE_MEMBERS_MAX);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dictionaries_and_lists_with_dictionaries_are_entered),
        cmocka_unit_test(a_dictionary_whose_keys_are_no_names_is_one_member),
        cmocka_unit_test(a_node_inside_itself_is_a_member),
        cmocka_unit_test(shared_nodes_cannot_multiply_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
