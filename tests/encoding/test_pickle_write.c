/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "../base/value_text.h"
#include "encoding/pickle.h"
#include "encoding/pickle_write.h"
#include "fail_malloc.h"

#define P(literal) literal, sizeof(literal) - 1

static void check_bytes(const struct buffer *found, const char *wanted, size_t size, const char *what)
{
    if (found->size == size && memcmp(found->data, wanted, size) == 0)
        return;
    struct buffer text = { 0 };
    buffer_append_escaped(&text, buffer_str(found));
    buffer_append_text(&text, " instead of ");
    buffer_append_escaped(&text, (struct str){ wanted, size });
    fail_msg("%s: %.*s", what, STR_ARG(buffer_str(&text)));
}

static const struct {
    const char *value; /* value_text notation */
    const char *bytes; /* between PROTO 2 and STOP */
    size_t size;
} golden[] = {
    { "None", P("N") },
    { "True", P("\x88") },
    { "False", P("\x89") },
    { "0", P("K\x00") },
    { "255", P("K\xff") },
    { "256", P("M\x00\x01") },
    { "65536", P("J\x00\x00\x01\x00") },
    { "-1", P("J\xff\xff\xff\xff") },
    { "2147483647", P("J\xff\xff\xff\x7f") },
    { "2147483648", P("\x8a\x05\x00\x00\x00\x80\x00") },
    { "-2147483649", P("\x8a\x05\xff\xff\xff\x7f\xff") },
    { "549755813888", P("\x8a\x06\x00\x00\x00\x00\x80\x00") },
    { "-9223372036854775808", P("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80") },
    { "1.5", P("G\x3f\xf8\x00\x00\x00\x00\x00\x00") },
    { "'hi'", P("X\x02\x00\x00\x00hi") },
    { "b''", P("c__builtin__\nbytes\n)R") },
    { "b'a\\xff'", P("c_codecs\nencode\nX\x03\x00\x00\x00" "a\xc3\xbfX\x06\x00\x00\x00latin1\x86R") },
    { "$bytearray ''", P("c__builtin__\nbytearray\n)R") },
    { "$bytearray 'a'", P("c__builtin__\nbytearray\nX\x01\x00\x00\x00" "aX\x07\x00\x00\x00latin-1\x86R") },
    { "()", P(")") },
    { "(1,)", P("K\x01\x85") },
    { "(1, 2)", P("K\x01K\x02\x86") },
    { "(1, 2, 3)", P("K\x01K\x02K\x03\x87") },
    { "(1, 2, 3, 4)", P("(K\x01K\x02K\x03K\x04t") },
    { "[]", P("]") },
    { "[1]", P("]K\x01" "a") },
    { "[1, 2]", P("](K\x01K\x02" "e") },
    { "{}", P("}") },
    { "{1: 2}", P("}K\x01K\x02s") },
    { "{1: 2, 3: 4}", P("}(K\x01K\x02K\x03K\x04u") },
    { "$set[]", P("c__builtin__\nset\n]\x85R") },
    { "$set[1, 2]", P("c__builtin__\nset\n](K\x01K\x02" "e\x85R") },
    { "$frozenset[1]", P("c__builtin__\nfrozenset\n]K\x01" "a\x85R") },
    { "@builtins.set", P("c__builtin__\nset\n") },
    { "@builtins.range", P("c__builtin__\nxrange\n") },
    { "@builtins.ValueError", P("cexceptions\nValueError\n") },
    { "@builtins.FileNotFoundError", P("c__builtin__\nFileNotFoundError\n") },
    { "@copyreg._reconstructor", P("ccopy_reg\n_reconstructor\n") },
    { "@functools.reduce", P("c__builtin__\nreduce\n") },
    { "@io.StringIO", P("cio\nStringIO\n") },
    { "@collections.OrderedDict", P("ccollections\nOrderedDict\n") },
    { "@torch.float32", P("ctorch\nfloat32\n") },
    { "@commands.x", P("\x80\x04" "ccommands\nx\n\x80\x02") },
    { "m.f(1)", P("cm\nf\nK\x01\x85R") },
    { "$new m.C()", P("cm\nC\n)\x81") },
    { "$new m.C() ^ {'a': 1}", P("cm\nC\n)\x81}X\x01\x00\x00\x00" "aK\x01sb") },
    { "$new m.C() ^ 1 ^ 2", P("cm\nC\n)\x81K\x01" "bK\x02" "b") },
    { "m.f() ^ 5 ![1, 2] !{3: 4}", P("cm\nf\n)R(K\x01K\x02" "eK\x03K\x04sK\x05" "b") },
    { "m.f() !$set[1]", P("cm\nf\n)R(K\x01\x90") },
    { "$pid 'k'", P("X\x01\x00\x00\x00kQ") },
    { "$call m.f() (1)", P("cm\nf\n)RK\x01\x85R") },
};

TEST(each_kind_has_one_spelling)
{
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct value_graph graph = { 0 };
        struct buffer out = { 0 }, wanted = { 0 };
        reshard_error err = { 0 };
        graph.root = value_from_text(&graph, golden[i].value);
        CHECK_OK(pickle_write(graph.root, graph.count, NULL, NULL, NULL, &out, &err));
        pickle_put_begin(&wanted);
        buffer_append(&wanted, golden[i].bytes, golden[i].size);
        pickle_put_end(&wanted);
        check_bytes(&out, (const char *)wanted.data, wanted.size, golden[i].value);
        buffer_release(&out);
        buffer_release(&wanted);
        value_graph_release(&graph);
    }
}

/* Parses, writes, and compares with the wanted bytes. */
static void check_rewritten(const char *bytes, size_t size, const char *wanted, size_t wanted_size)
{
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(pickle_parse_with_ids(bytes, size, 0, &limits_default, &graph, NULL, &err));
    CHECK_OK(pickle_write(graph.root, graph.count, NULL, NULL, NULL, &out, &err));
    check_bytes(&out, wanted, wanted_size, "rewritten");
    buffer_release(&out);
    value_graph_release(&graph);
}

/* As few bytes as Python gives them, sign and all. */
TEST(integers_are_as_short_as_python_s)
{
    static const struct { int64_t value; const char *hex; } cases[] = {
        { 0, "4b00" }, { 255, "4bff" }, { 256, "4d0001" }, { 65535, "4dffff" }, { 65536, "4a00000100" }, { -1, "4affffffff" },
        { INT32_MAX, "4affffff7f" }, { INT32_MIN, "4a00000080" }, { INT64_C(2147483648), "8a050000008000" },
        { INT64_C(-2147483649), "8a05ffffff7fff" }, { INT64_C(549755813887), "8a05ffffffff7f" },
        { INT64_C(549755813888), "8a06000000008000" }, { INT64_C(-549755813888), "8a050000000080" },
        { INT64_C(-549755813889), "8a06ffffffff7fff" }, { INT64_C(140737488355327), "8a06ffffffffff7f" },
        { INT64_C(140737488355328), "8a0700000000008000" }, { INT64_C(-140737488355328), "8a06000000000080" },
        { INT64_C(36028797018963967), "8a07ffffffffffff7f" }, { INT64_C(36028797018963968), "8a080000000000008000" },
        { INT64_C(-36028797018963968), "8a0700000000000080" }, { INT64_C(-36028797018963969), "8a08ffffffffffff7fff" },
        { INT64_MAX, "8a08ffffffffffffff7f" }, { INT64_MIN, "8a080000000000000080" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct buffer out = { 0 }, hex = { 0 };
        pickle_put_int(&out, cases[i].value);
        for (size_t j = 0; j < out.size; j++)
            buffer_printf(&hex, "%02x", out.data[j]);
        buffer_append_byte(&hex, 0);
        if (strcmp((const char *)hex.data, cases[i].hex) != 0)
            fail_msg("%lld: %s, not %s", (long long)cases[i].value, (const char *)hex.data, cases[i].hex);
        buffer_release(&out);
        buffer_release(&hex);
    }
}

TEST(what_is_met_twice_is_written_once)
{
    check_rewritten(P("\x80\x04](]\x94h\x00h\x00" "e."), P("\x80\x02](]q\x00h\x00h\x00" "e."));
    check_rewritten(P("\x80\x04](\x8c\x01x\x94h\x00" "e."), P("\x80\x02](X\x01\x00\x00\x00xq\x00h\x00" "e."));
    check_rewritten(P("\x80\x04](K\x01\x85\x94h\x00" "e."), P("\x80\x02](K\x01\x85q\x00h\x00" "e."));
    check_rewritten(P("\x80\x04](cm\nC\n)\x81\x94}b](h\x00h\x00" "ee."), P("\x80\x02](cm\nC\n)\x81q\x00}b](h\x00h\x00" "ee."));
}

TEST(cycles_close)
{
    check_rewritten(P("]\x94h\x00" "a."), P("\x80\x02]q\x00h\x00" "a."));
    check_rewritten(P("}\x94K\x01h\x00s."), P("\x80\x02}q\x00K\x01h\x00s."));
    check_rewritten(P("cm\nC\n)\x81\x94h\x00" "b."), P("\x80\x02" "cm\nC\nq\x00)\x81q\x01h\x01" "b."));
    /* A tuple in a list in that tuple: written inside, thrown away outside. */
    check_rewritten(P("]\x94h\x00\x85\x94" "a0h\x01."), P("\x80\x02]q\x00h\x00\x85q\x01" "a0h\x01."));
}

TEST(the_writing_of_a_writing_is_itself)
{
    static const struct {
        const char *bytes;
        size_t size;
    } cases[] = {
        { P("]\x94(h\x00\x85h\x00K\x01K\x02K\x03(h\x00t" "e.") },
        { P("cm\nC\n)\x81\x94}(\x8c\x02me\x94h\x00\x8c\x04pair\x94h\x00h\x00\x86ub.") },
        { P("cm\nC\n(K\x01t}\x8c\x01kK\x02s\x92.") },
        { P("(cm\nC\no.") },
        { P("(im\nC\n.") },
        { P("(K\x01im\nC\n.") },
        { P("\x8f(K\x01\x8c\x01x\x90\x94h\x00\x86.") },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 }, again = { 0 };
        struct buffer once = { 0 }, twice = { 0 };
        reshard_error err = { 0 };
        CHECK_OK(pickle_parse_with_ids(cases[i].bytes, cases[i].size, 0, &limits_default, &graph, NULL, &err));
        CHECK_OK(pickle_write(graph.root, graph.count, NULL, NULL, NULL, &once, &err));
        CHECK_OK(pickle_parse_with_ids(once.data, once.size, 0, &limits_default, &again, NULL, &err));
        CHECK_OK(pickle_write(again.root, again.count, NULL, NULL, NULL, &twice, &err));
        check_bytes(&twice, (const char *)once.data, once.size, "second writing");
        buffer_release(&once);
        buffer_release(&twice);
        value_graph_release(&graph);
        value_graph_release(&again);
    }
}

TEST(classes_without_arguments_are_made_without_a_call)
{
    check_rewritten(P("(cm\nC\no."), P("\x80\x02(cm\nC\no."));
    check_rewritten(P("(im\nC\n."), P("\x80\x02(cm\nC\no."));
    check_rewritten(P("(cm\nC\nK\x01o."), P("\x80\x02" "cm\nC\nK\x01\x85R."));
    check_rewritten(P("(K\x01im\nC\n."), P("\x80\x02" "cm\nC\nK\x01\x85R."));
    check_rewritten(P("cm\nC\n)}\x92."), P("\x80\x02" "ccopy_reg\n__newobj_ex__\ncm\nC\n)}\x87R."));
}

TEST(names_with_line_feeds_are_put_on_the_stack)
{
    check_rewritten(P("\x8c\x03" "a\nb\x8c\x01" "c\x93."), P("\x80\x02X\x03\x00\x00\x00" "a\nbX\x01\x00\x00\x00" "c\x93."));
}

/* Protocol 2 does not look up what follows a dot. A name that led nowhere must not come to lead somewhere. */
TEST(dotted_names_keep_their_meaning)
{
    check_rewritten(P("\x80\x04\x8c\x01m\x8c\x03" "a.b\x93."), P("\x80\x02\x80\x04" "cm\na.b\n\x80\x02."));
    check_rewritten(P("\x80\x02" "cm\na.b\n."), P("\x80\x02" "cm\na.b\n."));
}

TEST(long_containers_go_in_batches)
{
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    struct value *items[2001], *none = value_new(&graph, VALUE_NONE);
    for (int i = 0; i < 2001; i++)
        items[i] = none;
    struct value *list = value_new_list(&graph, VALUE_LIST, items, 2001);
    CHECK_OK(pickle_write(list, graph.count, NULL, NULL, NULL, &out, &err));
    assert_int_equal(out.size, 3 + 2 * (1 + 1000 + 1) + 2 + 1);
    assert_memory_equal(out.data + 3 + 2 * 1002, "Na.", 3);
    assert_int_equal(out.data[3 + 1002], '(');
    assert_int_equal(out.data[3 + 1001], 'e');
    buffer_release(&out);
    value_graph_release(&graph);
}

/* The memo has more entries than a byte counts: 300 lists, each again at the end, and the first is the first. */
TEST(any_number_of_nodes_is_met_again)
{
    enum { LISTS = 300 };
    struct value_graph graph = { 0 }, read = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    struct value *items[2 * LISTS], *numbers[LISTS];
    for (int i = 0; i < LISTS; i++) {
        numbers[i] = value_new_int(&graph, i);
        items[i] = items[LISTS + i] = value_new_list(&graph, VALUE_LIST, &numbers[i], 1);
    }
    struct value *list = value_new_list(&graph, VALUE_LIST, items, (size_t)2 * LISTS);
    CHECK_OK(pickle_write(list, graph.count, NULL, NULL, NULL, &out, &err));
    CHECK_OK(pickle_parse_with_ids(out.data, out.size, 0, &limits_default, &read, NULL, &err));
    assert_true(value_equal(read.root, list));
    for (int i = 0; i < LISTS; i++)
        assert_ptr_equal(read.root->list.items[i], read.root->list.items[LISTS + i]);
    value_graph_release(&read);
    value_graph_release(&graph);
    buffer_release(&out);
}

static bool substitute_int(const struct value *value, struct buffer *out, void *context)
{
    int *count = context;
    if (value->kind != VALUE_INT)
        return false;
    (*count)++;
    pickle_put_str(out, STR("?"));
    return true;
}

TEST(substitutes_stand_for_nodes)
{
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    int count = 0;
    struct value *list = value_from_text(&graph, "[1, 'a', 2]");
    CHECK_OK(pickle_write(list, graph.count, NULL, substitute_int, &count, &out, &err));
    check_bytes(&out, P("\x80\x02](X\x01\x00\x00\x00?X\x01\x00\x00\x00" "aX\x01\x00\x00\x00?e."), "substituted");
    assert_int_equal(count, 2);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(deep_graphs_need_no_deep_stack)
{
    struct value_graph graph = { 0 }, again = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    struct value *value = value_new_int(&graph, 1);
    for (int i = 0; i < 100000; i++) {
        struct value **item = arena_array(&graph.arena, 1, sizeof(*item));
        *item = value;
        value = value_new_list(&graph, i % 2 ? VALUE_TUPLE : VALUE_LIST, item, 1);
    }
    CHECK_OK(pickle_write(value, graph.count, NULL, NULL, NULL, &out, &err));
    CHECK_OK(pickle_parse_with_ids(out.data, out.size, 0, &limits_default, &again, NULL, &err));
    buffer_release(&out);
    value_graph_release(&graph);
    value_graph_release(&again);
}

TEST(a_tuple_that_only_holds_itself_is_refused)
{
    struct value_graph graph = { 0 };
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    struct value *item[1], *tuple = value_new_list(&graph, VALUE_TUPLE, item, 1);
    item[0] = tuple;
    CHECK_FAILS(pickle_write(tuple, graph.count, NULL, NULL, NULL, &out, &err), RESHARD_ERR_FORMAT);
    buffer_release(&out);
    value_graph_release(&graph);
}

TEST(output_stops_at_its_limit)
{
    struct value_graph graph = { 0 };
    struct buffer out = { .limit = 10 };
    reshard_error err = { 0 };
    struct value *list = value_from_text(&graph, "['abcdefgh', 'ijkl']");
    CHECK_FAILS(pickle_write(list, graph.count, NULL, NULL, NULL, &out, &err), RESHARD_ERR_LIMIT);
    buffer_release(&out);
    value_graph_release(&graph);
}

/* Lists that all hold the tuple of them all: what cycles make longer has an end. */
TEST(entangled_cycles_are_limited)
{
    struct buffer bytes = { 0 }, out = { .limit = 1 << 24 };
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    buffer_append_text(&bytes, "(");
    for (int i = 0; i < 20000; i++)
        buffer_append_text(&bytes, "]");
    buffer_append(&bytes, P("t\x94."));
    CHECK_OK(pickle_parse_with_ids(bytes.data, bytes.size, 0, &limits_default, &graph, NULL, &err));
    for (size_t i = 0; i < graph.root->list.count; i++) {
        graph.root->list.items[i]->list.items = &graph.root;
        graph.root->list.items[i]->list.count = 1;
    }
    CHECK_FAILS(pickle_write(graph.root, graph.count, NULL, NULL, NULL, &out, &err), RESHARD_ERR_LIMIT);
    buffer_release(&out);
    buffer_release(&bytes);
    value_graph_release(&graph);
}

static bool substitute_persid(const struct value *value, struct buffer *out, void *context)
{
    (void)context;
    if (value->kind == VALUE_PERSID)
        pickle_put_none(out);
    return value->kind == VALUE_PERSID;
}

/* What is spent is a step for each part that is reached, shown or not: so many values of a large graph cost what they hold together. */
TEST(a_part_of_a_large_graph_costs_what_it_reaches)
{
    struct value_graph graph = { 0 };
    struct value *items[256], *key[3];
    size_t count = 0;
    for (uint32_t i = 0; i < 1 << 20; i++) {
        struct value *node = value_new(&graph, VALUE_DICT);
        assert_non_null(node);
        if (i % (1 << 13) == 0)
            items[count] = items[count + 1] = node, count += 2;
    }
    for (int i = 0; i < 3; i++)
        key[i] = items[0];
    struct value *list = value_new_list(&graph, VALUE_LIST, items, count);
    struct value *persid = value_new(&graph, VALUE_PERSID);
    persid->inner = value_new_list(&graph, VALUE_TUPLE, key, 3);
    const struct value *cases[] = { items[0], list, persid };
    const uint64_t parts[] = { 0, 256, 4 };
    const size_t sizes[] = { 4, 3 + 3 + 128 * (1 + 2 + 2), 4 };
    for (size_t i = 0; i < 3; i++) {
        for (uint64_t lack = 0; lack <= 1 && lack <= parts[i]; lack++) {
            struct buffer out = { 0 };
            struct work work;
            reshard_error err = { 0 };
            work_begin(&work, parts[i] * WORK_STEP - lack);
            reshard_status status = pickle_write(cases[i], graph.count, &work, substitute_persid, NULL, &out, &err);
            assert_int_equal(status, lack ? RESHARD_ERR_LIMIT : RESHARD_OK);
            assert_int_equal(out.size, lack ? 0 : sizes[i]);
            buffer_release(&out);
        }
    }
    value_graph_release(&graph);
}

TEST(failing_allocations_leave_nothing_behind)
{
    struct value_graph graph = { 0 };
    graph.root = value_from_text(&graph, "[{'a': (1, 2, $set[3])}, m.f(b'x') ^ {} ![1], [[[[]]]], $pid ('k', 1)]");
    unsigned long nth = 0;
    bool hit;
    do {
        struct buffer out = { 0 };
        reshard_error err = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = pickle_write(graph.root, graph.count, NULL, NULL, NULL, &out, &err);
        hit = fail_malloc_was_hit();
        assert_int_equal(status, hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        buffer_release(&out);
    } while (hit);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_has_one_spelling),
        cmocka_unit_test(integers_are_as_short_as_python_s),
        cmocka_unit_test(what_is_met_twice_is_written_once),
        cmocka_unit_test(cycles_close),
        cmocka_unit_test(the_writing_of_a_writing_is_itself),
        cmocka_unit_test(classes_without_arguments_are_made_without_a_call),
        cmocka_unit_test(names_with_line_feeds_are_put_on_the_stack),
        cmocka_unit_test(dotted_names_keep_their_meaning),
        cmocka_unit_test(long_containers_go_in_batches),
        cmocka_unit_test(any_number_of_nodes_is_met_again),
        cmocka_unit_test(substitutes_stand_for_nodes),
        cmocka_unit_test(deep_graphs_need_no_deep_stack),
        cmocka_unit_test(a_tuple_that_only_holds_itself_is_refused),
        cmocka_unit_test(output_stops_at_its_limit),
        cmocka_unit_test(entangled_cycles_are_limited),
        cmocka_unit_test(a_part_of_a_large_graph_costs_what_it_reaches),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests_name("pickle_write", tests, NULL, NULL);
}
