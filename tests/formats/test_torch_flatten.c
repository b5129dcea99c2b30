/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include "encoding/pickle.h"
#include "fail_malloc.h"
#include "formats/shared/torch_flatten.h"

static reshard_error err;

/* Leaves as text: "path:kind" separated by blanks; list positions in brackets, integer keys in braces. */
static reshard_status write_leaf(const struct torch_leaf *leaf, void *context, reshard_error *ignored)
{
    struct buffer *out = context;
    (void)ignored;
    buffer_append_text(out, out->size ? " " : "");
    for (size_t i = 0; i < leaf->part_count; i++) {
        const struct path_part *part = &leaf->parts[i];
        if (part->kind == PATH_KEY) {
            buffer_append_text(out, i ? "." : "");
            buffer_append_str(out, part->key);
        } else {
            buffer_printf(out, part->kind == PATH_INDEX ? "[%lld]" : "{%lld}", (long long)part->index);
        }
    }
    buffer_printf(out, ":%s", leaf->value->tensor ? "T" : value_kind_name(leaf->value));
    return out->failed ? RESHARD_ERR_MEMORY : RESHARD_OK;
}

static bool mark_tensors(const struct value *value, void *context)
{
    (void)context;
    if (value_is_call(value, "torch", "T"))
        ((struct value *)value)->tensor = 1;
    return true;
}

/* Flattens a pickle in which the call torch.T() stands for a tensor. */
static reshard_status flatten(const char *pickle, size_t size, struct buffer *out)
{
    struct value_graph graph = { 0 };
    struct pickle_report report;
    CHECK_OK(pickle_parse_with_ids(pickle, size, 0, &limits_default, &graph, &report, &err));
    assert_true(value_walk(graph.root, graph.count, NULL, mark_tensors, NULL, NULL));
    reshard_status status = torch_flatten(&graph, &limits_default, write_leaf, out, &err);
    value_graph_release(&graph);
    return status;
}

#define T "ctorch\nT\n)R"
#define CASE(why, literal, expected) { why, literal, sizeof(literal) - 1, expected }

TEST(containers_are_opened_where_they_hold_a_tensor)
{
    static const struct {
        const char *why, *pickle;
        size_t size;
        const char *expected;
    } cases[] = {
        CASE("a flat dict", "}(U\1a" T "U\1bK\1u.", "a:T b:int"),
        CASE("containers without a tensor are one leaf", "}(U\1a](K\1K\2eU\1b}U\1cK\1su.", "a:list b:dict"),
        CASE("the outermost is opened always", "](K\1K\2e.", "[0]:int [1]:int"),
        CASE("a tensor at any depth opens the way to it", "}(U\1a]" T "aU\1b](K\1](K\2" T "eeu.", "a[0]:T b[0]:int b[1][0]:int b[1][1]:T"),
        CASE("tuples and ordered dicts", "(ccollections\nOrderedDict\n)R(U\1x" T "uK\5t.", "[0].x:T [1]:int"),
        CASE("pairs given to OrderedDict", "ccollections\nOrderedDict\n(](](U\1k" T "eetR.", "k:T"),
        CASE("a Counter's mapping", "ccollections\nCounter\n(}U\1kK\3stR.", "k:int"),
        CASE("a defaultdict's items", "ccollections\ndefaultdict\n(c__builtin__\nlist\ntRU\1k" T "s.", "k:T"),
        CASE("integer keys", "}(K\0" T "J\xFD\xFF\xFF\xFF" T "u.", "{0}:T {-3}:T"),
        CASE("other keys as Python prints them", "}(\x88" T "N" T "G?\xF8\0\0\0\0\0\0" T "(K\1U\1at" T "u.",
             "True:T None:T 1.5:T (1, 'a'):T"),
        CASE("objects are leaves, whatever hangs inside", "\x80\x02}(U\1acargparse\nNamespace\n)\x81}U\1t" T "sbu.", "a:object"),
        CASE("of equal keys the last counts", "}(U\1aK\1U\1bK\2U\1a" T "u.", "b:int a:T"),
        CASE("a list inside itself is a leaf there", "]q\0(" T "h\0e.", "[0]:T [1]:list"),
        CASE("shared containers are opened at each place", "](](" T "eq\0h\0e.", "[0][0]:T [1][0]:T"),
        CASE("a tensor alone", T ".", ":T"),
        CASE("a number alone", "K\7.", ":int"),
        CASE("an empty dict", "}.", ""),
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buffer out = { 0 };
        reshard_status status = flatten(cases[i].pickle, cases[i].size, &out);
        buffer_append_byte(&out, '\0');
        if (status || strcmp((const char *)out.data, cases[i].expected) != 0)
            fail_msg("%s: status %d, '%s' instead of '%s'", cases[i].why, status, (const char *)out.data, cases[i].expected);
        buffer_release(&out);
    }
}

TEST(a_tensor_is_no_key)
{
    struct buffer out = { 0 };
    CHECK_FAILS(flatten("}(" T T "u.", sizeof("}(" T T "u.") - 1, &out), RESHARD_ERR_UNSUPPORTED);
    buffer_release(&out);
}

/* 40 lists, each with ten times the one before: 10^40 leaves if it were a tree. */
TEST(sharing_that_explodes_is_refused)
{
    struct buffer pickle = { 0 }, out = { 0 };
    buffer_append_text(&pickle, "](" T "eq");
    buffer_append_byte(&pickle, 0);
    for (uint8_t i = 1; i <= 40; i++) {
        buffer_append_text(&pickle, "](");
        for (int j = 0; j < 10; j++) {
            buffer_append_byte(&pickle, 'h');
            buffer_append_byte(&pickle, (uint8_t)(i - 1));
        }
        buffer_append_text(&pickle, "eq");
        buffer_append_byte(&pickle, i);
    }
    buffer_append_byte(&pickle, '.');
    assert_false(pickle.failed);
    CHECK_FAILS(flatten((const char *)pickle.data, pickle.size, &out), RESHARD_ERR_LIMIT);
    buffer_release(&pickle);
    buffer_release(&out);
}

TEST(depth_needs_no_stack)
{
    struct buffer pickle = { 0 }, out = { 0 };
    buffer_append_text(&pickle, T);
    for (int i = 0; i < 50000; i++)
        buffer_append_byte(&pickle, 0x85);
    buffer_append_byte(&pickle, '.');
    CHECK_OK(flatten((const char *)pickle.data, pickle.size, &out));
    assert_int_equal(out.size, 50000 * strlen("[0]") + 2);
    buffer_release(&pickle);
    buffer_release(&out);
}

static void fail_each_allocation(const char *pickle, size_t size)
{
    struct value_graph graph = { 0 };
    struct pickle_report report;
    unsigned long nth = 0;
    bool was_hit;
    CHECK_OK(pickle_parse_with_ids(pickle, size, 0, &limits_default, &graph, &report, &err));
    assert_true(value_walk(graph.root, graph.count, NULL, mark_tensors, NULL, NULL));
    struct buffer all = { 0 };
    CHECK_OK(torch_flatten(&graph, &limits_default, write_leaf, &all, &err));
    do {
        struct buffer out = { 0 };
        fail_malloc_at(++nth);
        reshard_status status = torch_flatten(&graph, &limits_default, write_leaf, &out, &err);
        was_hit = fail_malloc_was_hit();
        assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY)); /* an arena may do with less */
        assert_true(status || out.failed || str_equal(buffer_str(&out), buffer_str(&all)));
        buffer_release(&out);
    } while (was_hit);
    assert_true(nth > 10);
    buffer_release(&all);
    value_graph_release(&graph);
}

TEST(a_failed_allocation_is_an_error_and_leaks_nothing)
{
    static const char many[] = "}(U\1a]" T "aU\1b](K\1](K\2" T "eeU\1a" T "u.";
    static const char chain[] = "}(U\1b](](](](](](](](](](](](](](](](](](](](" T "eeeeeeeeeeeeeeeeeeeeu.";
    fail_each_allocation(many, sizeof(many) - 1);
    fail_each_allocation(chain, sizeof(chain) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(containers_are_opened_where_they_hold_a_tensor),
        cmocka_unit_test(a_tensor_is_no_key),
        cmocka_unit_test(sharing_that_explodes_is_refused),
        cmocka_unit_test(depth_needs_no_stack),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests_name("torch_flatten", tests, NULL, NULL);
}
