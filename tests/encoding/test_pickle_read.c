/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "../base/value_text.h"
#include "encoding/pickle.h"
#include "fail_malloc.h"

struct sample {
    const char *bytes;
    size_t size;
    const char *expected; /* value_text notation, or a piece of the message */
};

#define P(literal) literal, sizeof(literal) - 1

/* Parses a copy of the exact size, so that AddressSanitizer sees a byte read too far, then the bytes themselves, which outlive the graph.
 */
static reshard_status parse(const void *bytes, size_t size, const struct limits *limits, struct value_graph *graph,
                            struct pickle_report *report, reshard_error *err)
{
    char *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, bytes, size);
    struct value_graph first = { 0 };
    reshard_status status = pickle_parse_with_ids(copy, size, 0, limits, &first, report, err);
    value_graph_release(&first);
    free(copy);
    return status ? status : pickle_parse_with_ids(bytes, size, 0, limits, graph, report, err);
}

static void check_same(const struct sample *sample, const struct value_graph *graph)
{
    struct value_graph wanted = { 0 };
    wanted.root = value_from_text(&wanted, sample->expected);
    if (!value_equal(graph->root, wanted.root)) {
        struct buffer text = { 0 };
        value_to_repr(graph->root, &text, NULL);
        fail_msg("expected %s, found %.*s", sample->expected, STR_ARG(buffer_str(&text)));
    }
    value_graph_release(&wanted);
}

static const struct sample scalars[] = {
    { P("N."), "None" },
    { P("\x80\x02\x88."), "True" },
    { P("\x80\x02\x89."), "False" },
    { P("I01\n."), "True" },
    { P("I00\n."), "False" },
    { P("I0\n."), "0" },
    { P("I-12\n."), "-12" },
    { P("I9223372036854775807\n."), "9223372036854775807" },
    { P("L-9223372036854775808L\n."), "-9223372036854775808" },
    { P("L5\n."), "5" },
    { P("K\xff."), "255" },
    { P("M\xff\xff."), "65535" },
    { P("J\xff\xff\xff\xff."), "-1" },
    { P("\x8a\x00."), "0" },
    { P("\x8a\x01\x80."), "-128" },
    { P("\x8a\x02\xff\x00."), "255" },
    { P("\x8a\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff."), "-1" },
    { P("\x8b\x01\x00\x00\x00\x7f."), "127" },
    { P("F1.5\n."), "1.5" },
    { P("F-1e3\n."), "-1000.0" },
    { P("G\x3f\xf8\x00\x00\x00\x00\x00\x00."), "1.5" },
    { P("S'a\\x41\\n\\'\\101'\n."), "'aA\\x0a\\'A'" },
    { P("S\"q\"\n."), "'q'" },
    { P("T\x02\x00\x00\x00hi."), "'hi'" },
    { P("U\x02hi."), "'hi'" },
    { P("Vh\\u00e9\\U0001f600\\\\u\n."), "'h\xc3\xa9\xf0\x9f\x98\x80\\\\\\\\u'" },
    { P("Vxu0041\n."), "'xu0041'" },
    { P("V\\U0010ffff\n."), "'\xf4\x8f\xbf\xbf'" },
    { P("X\x02\x00\x00\x00\xc3\xa9."), "'\xc3\xa9'" },
    { P("\x8c\x01x."), "'x'" },
    { P("\x8d\x01\x00\x00\x00\x00\x00\x00\x00x."), "'x'" },
    { P("C\x01x."), "b'x'" },
    { P("B\x01\x00\x00\x00x."), "b'x'" },
    { P("\x8e\x01\x00\x00\x00\x00\x00\x00\x00x."), "b'x'" },
    { P("\x96\x01\x00\x00\x00\x00\x00\x00\x00x."), "$bytearray 'x'" },
};

static const struct sample containers[] = {
    { P("]."), "[]" },
    { P(")."), "()" },
    { P("}."), "{}" },
    { P("\x8f."), "$set[]" },
    { P("(K\x01K\x02l."), "[1, 2]" },
    { P("(K\x01K\x02t."), "(1, 2)" },
    { P("(K\x01K\x02" "d."), "{1: 2}" },
    { P("(K\x01\x91."), "$frozenset[1]" },
    { P("K\x01\x85."), "(1,)" },
    { P("K\x01K\x02\x86."), "(1, 2)" },
    { P("K\x01K\x02K\x03\x87."), "(1, 2, 3)" },
    { P("]K\x01" "a."), "[1]" },
    { P("](K\x01K\x02" "e(K\x03" "e."), "[1, 2, 3]" },
    { P("}K\x01K\x02s."), "{1: 2}" },
    { P("}(K\x01K\x02K\x03K\x04u."), "{1: 2, 3: 4}" },
    { P("\x8f(K\x01K\x02\x90."), "$set[1, 2]" },
    { P("K\x01K\x02" "0."), "1" },
    { P("K\x01(K\x02K\x03" "1."), "1" },
    { P("K\x01(0."), "1" },
    { P("]K\x01" "2\x86" "a."), "[(1, 1)]" },
    { P("\x80\x04\x95\x03\x00\x00\x00\x00\x00\x00\x00K\x01."), "1" },
};

static const struct sample memo[] = {
    { P("K\x05q\x07" "0h\x07."), "5" },
    { P("K\x05r\x00\x01\x00\x00" "0j\x00\x01\x00\x00."), "5" },
    { P("K\x05p300\n0g300\n."), "5" },
    { P("](K\x07\x94h\x00\x94h\x01" "e."), "[7, 7, 7]" },
    { P("](K\x07q\x05K\x08\x94h\x01" "e."), "[7, 8, 8]" }, /* MEMOIZE counts the entries, here one */
    { P("](K\x07q\x01K\x08q\x01h\x01" "e."), "[7, 8, 8]" },
};

static const struct sample objects[] = {
    { P("ccollections\nOrderedDict\n)R."), "collections.OrderedDict()" },
    { P("cm\nf\nK\x01\x85R."), "m.f(1)" },
    { P("cm\nC\n)\x81}b."), "$new m.C() ^ {}" },
    { P("cm\nC\n)\x81K\x01\x62K\x02\x62."), "$new m.C() ^ 1 ^ 2" },
    { P("cm\nC\n)\x81(K\x01K\x02" "e."), "$new m.C() ![1, 2]" },
    { P("cm\nf\n)RK\x01K\x02s."), "m.f() !{1: 2}" },
    { P("cm\nf\n)R(K\x01\x90."), "m.f() !$set[1]" },
    { P("(K\x01im\nC\n."), "m.C(1)" },
    { P("(cm\nC\nK\x01o."), "$new m.C(1)" },
    { P("cm\nf\n)R)R."), "$call m.f() ()" },
    { P("Pkey\n."), "$pid 'key'" },
    { P("K\x05Q."), "$pid 5" },
    { P("cos\nsystem\n\x8c\x04true\x85R."), "os.system('true')" },
};

static const struct sample old_names[] = {
    { P("\x80\x02" "c__builtin__\nset\n."), "@builtins.set" },
    { P("c__builtin__\nxrange\n."), "@builtins.range" },
    { P("ccopy_reg\n_reconstructor\n."), "@copyreg._reconstructor" },
    { P("cexceptions\nValueError\n."), "@builtins.ValueError" },
    { P("ccStringIO\nStringIO\n."), "@io.StringIO" },
    { P("curllib\nquote\n."), "@urllib.parse.quote" },
    { P("ccommands\ngetoutput\n."), "@subprocess.getoutput" },
    { P("ctorch.tensor\n_f\n."), "@torch._tensor._f" },
    { P("\x80\x03" "c__builtin__\nset\n."), "@__builtin__.set" },
    { P("\x80\x04\x8c\x08" "commands\x8c\x01x\x93."), "@commands.x" },
};

static void check_table(const struct sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct value_graph graph = { 0 };
        struct pickle_report report = { 0 };
        reshard_error err = { 0 };
        CHECK_OK(parse(samples[i].bytes, samples[i].size, &limits_default, &graph, &report, &err));
        assert_int_equal(report.consumed, samples[i].size);
        check_same(&samples[i], &graph);
        value_graph_release(&graph);
    }
}

#define CHECK_TABLE(table) check_table(table, sizeof(table) / sizeof((table)[0]))

TEST(every_opcode_makes_its_value)
{
    CHECK_TABLE(scalars);
    CHECK_TABLE(containers);
    CHECK_TABLE(memo);
    CHECK_TABLE(objects);
}

TEST(old_names_are_mapped_below_protocol_3_only)
{
    CHECK_TABLE(old_names);
}

/* A pickle that is cut anywhere is refused: no prefix of it ends in STOP. */
static void check_prefixes(const struct sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (size_t size = 0; size < samples[i].size; size++) {
            struct value_graph graph = { 0 };
            reshard_error err = { 0 };
            if (memchr(samples[i].bytes, '.', size))
                continue;
            assert_int_not_equal(parse(samples[i].bytes, size, &limits_default, &graph, NULL, &err), RESHARD_OK);
            assert_true(err.message[0] != '\0');
            value_graph_release(&graph);
        }
    }
}

TEST(a_cut_pickle_is_refused)
{
    check_prefixes(scalars, sizeof(scalars) / sizeof(scalars[0]));
    check_prefixes(containers, sizeof(containers) / sizeof(containers[0]));
    check_prefixes(memo, sizeof(memo) / sizeof(memo[0]));
    check_prefixes(objects, sizeof(objects) / sizeof(objects[0]));
}

static const struct sample refused[] = {
    { P(""), "byte 0: the pickle is empty" },
    { P("\x80\x02N"), "byte 3: the pickle ends without STOP" },
    { P("\x80\x02\xff"), "byte 2: unknown opcode 0xFF" },
    { P("\x00"), "unknown opcode 0x00" },
    { P("."), "empty stack" },
    { P("0."), "empty stack" },
    { P("2."), "empty stack" },
    { P("(."), "below a mark" },
    { P("K\x01(\x85."), "byte 3: values are taken from below a mark" },
    { P("]K\x01(a."), "below a mark" },
    { P("1."), "no mark" },
    { P("K\x01t."), "no mark" },
    { P("(K\x01K\x02u."), "empty stack" },
    { P("}(K\x01u."), "odd number" },
    { P("(K\x01" "d."), "odd number" },
    { P("}K\x01" "a."), "items are appended to a dict" },
    { P("NK\x01" "a."), "items are appended to None" },
    { P("](K\x01K\x02u."), "keys are set in a list" },
    { P("](K\x01\x90."), "members are added to a list" },
    { P("}}b."), "a state is set on a dict" },
    { P("K\x01}b."), "a state is set on an int" },
    { P("cm\nC\n}b."), "a state is set on the global m.C" },
    { P("}]K\x01s."), "a list cannot be a key" },
    { P("}}K\x01s."), "a dict cannot be a key" },
    { P("}]\x85K\x01s."), "a tuple cannot be a key" },
    { P("}]\x85\x85K\x01s."), "a tuple cannot be a key" },
    { P("}\x8fK\x01s."), "a set cannot be a key" },
    { P("}(]K\x01" "d."), "a list cannot be a key" },
    { P("\x8f(]\x90."), "a list cannot be a member of a set" },
    { P("(]\x91."), "a list cannot be a member of a set" },
    { P("}U\x01\xffK\x01s."), "not UTF-8 as a key" },
    { P("K\x05)R."), "a call of an int" },
    { P("cm\nf\nK\x01R."), "the arguments of a call are an int" },
    { P("cm\nC\nK\x01\x81."), "the arguments of a new object are an int" },
    { P("cm\nC\n]\x81."), "the arguments of a new object are a list" },
    { P("cm\nC\n))\x92."), "the named arguments of a new object are a tuple" },
    { P("K\x05)\x81."), "a call of an int" },
    { P("(o."), "without a class" },
    { P("h\x05."), "memo entry 5 does not exist" },
    { P("j\xff\xff\xff\xff."), "memo entry 4294967295 does not exist" },
    { P("gx\n."), "'x' is not a memo index" },
    { P("q\x00."), "empty stack" },
    { P("(q\x00."), "below a mark" },
    { P("c\nf\n."), "empty module" },
    { P("cm\n\n."), "empty name" },
    { P("cm\n\xff\n."), "not UTF-8" },
    { P("\x8c\x01mK\x01\x93."), "not strings" },
    { P("X\x01\x00\x00\x00\xff."), "a string is not UTF-8: byte 0xFF at its index 0" },
    { P("\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."), "bytes, but only 1 follow" },
    { P("X\xff\xff\xff\xff."), "a string of 4294967295 bytes, but only 1 follow" },
    { P("T\xff\xff\xff\xff."), "negative length" },
    { P("\x8b\xff\xff\xff\xff."), "negative length" },
    { P("\x8b\xff\xff\xff\x7f."), "bytes, but only 1 follow" },
    { P("Ix\n."), "'x' is not a decimal number" },
    { P("I007\n."), "not a decimal number" },
    { P("I\n."), "not a decimal number" },
    { P("I0x10\n."), "not a decimal number" },
    { P("Fabc\n."), "is not a number" },
    { P("F1e\n."), "is not a number" },
    { P("F1e999\n."), "too large" },
    { P("Sabc\n."), "without quotes" },
    { P("S'a\n."), "without quotes" },
    { P("S'a\\xg1'\n."), "broken escape" },
    { P("V\\u12\n."), "broken escape" },
    { P("V\\U00110000\n."), "broken escape" },
    { P("cm"), "ends inside a line" },
    { P("\x95\x05\x00\x00\x00\x00\x00\x00\x00N."), "a frame of 5 bytes, but only 2 follow" },
};

TEST(malformed_pickles_are_refused_with_place_and_reason)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        reshard_status status = parse(refused[i].bytes, refused[i].size, &limits_default, &graph, NULL, &err);
        if (status != RESHARD_ERR_FORMAT || !strstr(err.message, refused[i].expected) || !strstr(err.message, "pickle: byte ") ||
            err.offset < 0)
            fail_msg("sample %zu: status %d, '%s' instead of '%s'", i, status, err.message, refused[i].expected);
        assert_null(graph.root);
        value_graph_release(&graph);
    }
}

static const struct sample unsupported[] = {
    { P("\x80\x06N."), "protocol 6" },
    { P("\x82\x01."), "extension registry" },
    { P("\x83\x01\x00."), "extension registry" },
    { P("\x84\x01\x00\x00\x00."), "extension registry" },
    { P("\x97."), "out-of-band" },
    { P("N\x98."), "out-of-band" },
};

TEST(what_is_not_in_the_file_is_unsupported)
{
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        CHECK_FAILS(parse(unsupported[i].bytes, unsupported[i].size, &limits_default, &graph, NULL, &err), RESHARD_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.message, unsupported[i].expected));
        value_graph_release(&graph);
    }
}

TEST(report_tells_consumed_bytes_protocol_and_leftovers)
{
    struct value_graph graph = { 0 };
    struct pickle_report report = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(parse(P("\x80\x04K\x01K\x02.rest"), &limits_default, &graph, &report, &err));
    assert_int_equal(report.consumed, 7);
    assert_int_equal(report.protocol, 4);
    assert_true(report.stack_left);
    assert_false(report.not_weights_only);
    value_graph_release(&graph);
    CHECK_OK(parse(P("(K\x01."), &limits_default, &graph, &report, &err));
    assert_true(report.stack_left);
    assert_int_equal(report.protocol, 0);
    value_graph_release(&graph);
    CHECK_OK(parse(P("\x80\x02" "K\x01" "2\x86."), &limits_default, &graph, &report, &err));
    assert_true(report.not_weights_only);
    assert_int_equal(report.not_weights_only_offset, 4);
    assert_false(report.stack_left);
    value_graph_release(&graph);
}

TEST(offsets_count_from_the_base)
{
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(pickle_parse(P("\x80\x02K\x05\x85."), 1000, &limits_default, &graph, NULL, &err));
    assert_int_equal(graph.root->offset, 1004);
    assert_int_equal(graph.root->list.items[0]->offset, 1002);
    value_graph_release(&graph);
    CHECK_FAILS(pickle_parse(P("\x80\x02\xff"), 1000, &limits_default, &graph, NULL, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(err.offset, 1002);
    value_graph_release(&graph);
}

TEST(a_persistent_id_is_for_who_can_read_it)
{
    static const struct sample samples[] = { { P("\x80\x02K\x05Q."), NULL }, { P("(Pname\nl."), NULL } };
    static const uint64_t offsets[] = { 1004, 1001 };
    for (size_t i = 0; i < sizeof(samples) / sizeof(samples[0]); i++) {
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        CHECK_OK(pickle_parse_with_ids(samples[i].bytes, samples[i].size, 1000, &limits_default, &graph, NULL, &err));
        value_graph_release(&graph);
        graph = (struct value_graph){ 0 };
        CHECK_FAILS(pickle_parse(samples[i].bytes, samples[i].size, 1000, &limits_default, &graph, NULL, &err), RESHARD_ERR_FORMAT);
        assert_int_equal(err.offset, offsets[i]);
        assert_non_null(strstr(err.message, "a persistent id"));
        value_graph_release(&graph);
    }
}

TEST(a_name_may_hold_dots)
{
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(pickle_parse(P("\x8c\x01m\x8c\x03" "a.b\x93."), 0, &limits_default, &graph, NULL, &err));
    assert_true(value_is_global(graph.root, "m", "a.b"));
    value_graph_release(&graph);
}

TEST(cycles_and_sharing_are_kept)
{
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(pickle_parse(P("]\x94(h\x00h\x00\x85" "e."), 0, &limits_default, &graph, NULL, &err));
    assert_int_equal(graph.root->list.count, 2);
    assert_ptr_equal(graph.root->list.items[0], graph.root);
    assert_ptr_equal(graph.root->list.items[1]->list.items[0], graph.root);
    value_graph_release(&graph);
}

/* 100000 of open, then 100000 of close. */
static void parse_nested(const char *open, const char *middle, const char *close, reshard_status expected)
{
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    for (int i = 0; i < 100000; i++)
        buffer_append_text(&bytes, open);
    buffer_append_text(&bytes, middle);
    for (int i = 0; i < 100000; i++)
        buffer_append_text(&bytes, close);
    buffer_append_text(&bytes, ".");
    CHECK_FAILS(pickle_parse(bytes.data, bytes.size, 0, &limits_default, &graph, NULL, &err), expected);
    value_graph_release(&graph);
    buffer_release(&bytes);
}

TEST(deep_nesting_needs_no_deep_stack)
{
    parse_nested("", ")", "\x85", RESHARD_OK);
    parse_nested("(", "N", "t", RESHARD_OK);
    parse_nested("](", "N", "e", RESHARD_OK);
    parse_nested("((", "N", "tt", RESHARD_ERR_LIMIT);
}

TEST(every_limit_is_named)
{
    static const struct {
        const char *name;
        uint64_t value;
        struct sample sample;
    } cases[] = {
        { "pickle_values", 2, { P("](K\x01K\x02" "e."), "" } },
        { "pickle_bytes", 100, { P("](K\x01K\x02" "e."), "" } },
        { "pickle_depth", 2, { P("(((ttt."), "" } },
        { "pickle_string_bytes", 2, { P("X\x03\x00\x00\x00" "abc."), "" } },
        { "pickle_string_bytes", 2, { P("C\x03" "abc."), "" } },
        { "bigint_bytes", 8, { P("\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."), "" } },
        { "bigint_bytes", 8, { P("L10000000000000000000000000000000\n."), "" } },
        { "bigint_bytes", 1, { P("L128\n."), "" } },
        { "memo_gap", 10, { P("Nq\x20."), "" } },
        { "memo_gap", 1000000, { P("Nr\xff\xff\xff\xff."), "" } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct limits limits = limits_default;
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        assert_true(limits_set(&limits, str_of(cases[i].name), cases[i].value));
        CHECK_FAILS(parse(cases[i].sample.bytes, cases[i].sample.size, &limits, &graph, NULL, &err), RESHARD_ERR_LIMIT);
        assert_non_null(strstr(err.message, cases[i].name));
        value_graph_release(&graph);
    }
    struct limits one_byte = limits_default;
    struct value_graph graph = { 0 };
    reshard_error err = { 0 };
    one_byte.bigint_bytes = 1;
    CHECK_OK(parse(P("L127\n."), &one_byte, &graph, NULL, &err));
    value_graph_release(&graph);
}

/* Naming a class is cheap to write: the memory that it costs must not be many times the file's. */
TEST(a_class_that_is_named_again_makes_no_node)
{
    enum { TIMES = 100000 };
    static const char *const spellings[] = { "ca\nb\n", "cmodule\nName\nco\np\n" };
    for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
        struct buffer bytes = { 0 };
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        buffer_append_text(&bytes, "\x80\x02(");
        for (int n = 0; n < TIMES; n++)
            buffer_append_text(&bytes, spellings[i]);
        buffer_append_text(&bytes, "l.");
        CHECK_OK(pickle_parse(bytes.data, bytes.size, 0, &limits_default, &graph, NULL, &err));
        assert_true(graph.count < 10);
        assert_true(graph.arena.bytes_used < 4 * bytes.size + (1 << 20));
        assert_ptr_equal(graph.root->list.items[0], graph.root->list.items[graph.root->list.count - (i + 1)]);
        value_graph_release(&graph);
        buffer_release(&bytes);
    }
}

/* What is put in the memo or on the stack over and over makes no node: the budget of work ends it. */
TEST(the_stack_and_the_memo_cost_work)
{
    enum { TIMES = 100000 };
    static const struct {
        const char *name, *before, *again, *after;
    } cases[] = {
        { "stack", "]\x94", "h\x01", "0" }, { "memo", "N", "\x94", "" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer bytes = { 0 };
        struct limits limits = limits_default;
        struct work work;
        reshard_error err = { 0 };
        bool is_stack = i == 0;
        limits.budget = &work;
        buffer_append_text(&bytes, "\x80\x04");
        buffer_append_text(&bytes, cases[i].before);
        for (int t = 0; t < TIMES; t++)
            buffer_append(&bytes, is_stack ? "h\0" : "\x94", is_stack ? 2 : 1);
        for (int t = 0; t < TIMES && is_stack; t++)
            buffer_append_text(&bytes, cases[i].after);
        buffer_append_text(&bytes, ".");
        for (int affordable = 0; affordable <= 1; affordable++) {
            struct value_graph graph = { 0 };
            work_begin(&work, affordable ? 20 * TIMES : 4 * TIMES);
            reshard_status status = pickle_parse(bytes.data, bytes.size, 0, &limits, &graph, NULL, &err);
            if (status != (affordable ? RESHARD_OK : RESHARD_ERR_LIMIT))
                fail_msg("%s: status %d, %s", cases[i].name, status, err.message);
            value_graph_release(&graph);
        }
        assert_non_null(strstr(err.message, "work: "));
        buffer_release(&bytes);
    }
}

TEST(big_integers_are_twos_complement_from_either_spelling)
{
    static const struct sample cases[] = {
        { P("L18446744073709551616\n."), "\x00\x00\x00\x00\x00\x00\x00\x00\x01" },
        { P("L-9223372036854775809\n."), "\xff\xff\xff\xff\xff\xff\xff\x7f\xff" },
        { P("\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00."), "\x00\x00\x00\x00\x00\x00\x00\x00\x01" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        CHECK_OK(pickle_parse(cases[i].bytes, cases[i].size, 0, &limits_default, &graph, NULL, &err));
        assert_int_equal(graph.root->kind, VALUE_BIGINT);
        assert_int_equal(graph.root->text.size, 9);
        assert_memory_equal(graph.root->text.data, cases[i].expected, 9);
        value_graph_release(&graph);
    }
}

TEST(failing_allocations_leave_nothing_behind)
{
    static const char bytes[] = "\x80\x04](K\x01L123456789012345678901234567890\nF1.5\nVa\\u0041\nS'b'\n}(\x8c\x01k\x94\x8c\x01v\x94u"
                                "cm\nf\n(K\x01tR\x94h\x02" "b(N(N(N)tte\x94.";
    unsigned long nth = 0;
    reshard_status status;
    bool hit;
    do {
        struct value_graph graph = { 0 };
        reshard_error err = { 0 };
        fail_malloc_at(++nth);
        status = pickle_parse(P(bytes), 0, &limits_default, &graph, NULL, &err);
        hit = fail_malloc_was_hit();
        /* The arena survives a failure if less memory will do. */
        assert_true(status == RESHARD_OK || (hit && status == RESHARD_ERR_MEMORY));
        value_graph_release(&graph);
    } while (hit);
    assert_true(nth > 4);
}

/* Wherever the memo's array happens to end: an entry that was never put is none. */
TEST(only_entries_that_were_put_can_be_got)
{
    for (unsigned put = 0; put < 70; put += 3)
        for (unsigned get = 0; get < 300; get++) {
            char text[40];
            int size = snprintf(text, sizeof(text), "I7\np%u\n0g%u\n.", put, get);
            struct value_graph graph = { 0 };
            reshard_error err = { 0 };
            reshard_status status = parse(text, (size_t)size, &limits_default, &graph, NULL, &err);
            assert_int_equal(status, put == get ? RESHARD_OK : RESHARD_ERR_FORMAT);
            if (status)
                assert_non_null(strstr(err.message, "does not exist"));
            value_graph_release(&graph);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_opcode_makes_its_value),
        cmocka_unit_test(old_names_are_mapped_below_protocol_3_only),
        cmocka_unit_test(a_cut_pickle_is_refused),
        cmocka_unit_test(malformed_pickles_are_refused_with_place_and_reason),
        cmocka_unit_test(what_is_not_in_the_file_is_unsupported),
        cmocka_unit_test(report_tells_consumed_bytes_protocol_and_leftovers),
        cmocka_unit_test(offsets_count_from_the_base),
        cmocka_unit_test(a_persistent_id_is_for_who_can_read_it),
        cmocka_unit_test(a_name_may_hold_dots),
        cmocka_unit_test(cycles_and_sharing_are_kept),
        cmocka_unit_test(deep_nesting_needs_no_deep_stack),
        cmocka_unit_test(a_class_that_is_named_again_makes_no_node),
        cmocka_unit_test(every_limit_is_named),
        cmocka_unit_test(the_stack_and_the_memo_cost_work),
        cmocka_unit_test(big_integers_are_twos_complement_from_either_spelling),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
        cmocka_unit_test(only_entries_that_were_put_can_be_got),
    };
    return cmocka_run_group_tests_name("pickle_read", tests, NULL, NULL);
}
