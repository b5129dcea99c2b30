/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs in protocol 4 are the bytes of CPython's C pickler: CRC-32s of pickle.dumps(object, 4), taken from CPython 3.11. */
#include "check.h"

#include "base/crc32.h"
#include "encoding/pickle_graph.h"

#include <stdlib.h>

static uint32_t dumped_crc(const struct value_graph *graph, const struct value *root)
{
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    CHECK_OK(pickle_graph_write(root, graph->count, NULL, &out, &err));
    uint32_t crc = crc32_zip(0, out.data, out.size);
    buffer_release(&out);
    return crc;
}

/* range(n), of which each is `unit` items, as list, dict, OrderedDict and set. */
static struct value *make_filled(struct value_graph *graph, enum value_kind kind, size_t n, size_t unit)
{
    struct value **items = arena_array(&graph->arena, n * unit + 1, sizeof(*items));
    for (size_t i = 0; i < n * unit; i++)
        items[i] = value_new_int(graph, (int64_t)(i / unit));
    if (kind != VALUE_CALL)
        return value_new_list(graph, kind, items, n * unit);
    struct value *call = value_new_call(graph, value_new_global(graph, "collections", "OrderedDict"), NULL, 0);
    call->object->dict_items = items;
    call->object->dict_count = (uint32_t)(n * unit);
    return call;
}

TEST(batches_are_those_of_cpython)
{
    static const size_t sizes[] = { 0, 1, 2, 999, 1000, 1001, 2000, 2001 };
    static const struct {
        enum value_kind kind;
        size_t unit;
        uint32_t crcs[8];
    } cases[] = {
        { VALUE_LIST, 1, { 0x55392fea, 0x1e41fef7, 0xb0593fb8, 0x09da6f13, 0x2c75d3dc, 0x23156d71, 0xe13720e3, 0xf29cc4eb } },
        { VALUE_DICT, 2, { 0x6d74690a, 0xbc4d3368, 0xcc23e34b, 0x8a3058a7, 0x7f70fe0e, 0x5623fd1b, 0x285d8fd5, 0xd8e98cdc } },
        { VALUE_CALL, 2, { 0xe2628b67, 0x2b77a5c5, 0x04b01557, 0x809e648a, 0xb4671e58, 0xfb6262f9, 0xa5036991, 0x722859a1 } },
        { VALUE_SET, 1, { 0xdb34ceb4, 0x0960fd07, 0xe36343ff, 0x2ff02daa, 0x8b4ec13e, 0x78667f02, 0x9daefcc3, 0x0f57c4f8 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (size_t j = 0; j < 8; j++) {
            struct value_graph graph = { 0 };
            uint32_t crc = dumped_crc(&graph, make_filled(&graph, cases[i].kind, sizes[j], cases[i].unit));
            if (crc != cases[i].crcs[j])
                fail_msg("kind %d of %zu items: %08x instead of %08x", (int)cases[i].kind, sizes[j], crc, cases[i].crcs[j]);
            value_graph_release(&graph);
        }
}

static struct value *make_run(struct value_graph *graph, enum value_kind kind, char letter, size_t size)
{
    char *text = malloc(size + 1);
    memset(text, letter, size);
    struct value *value = value_new_str(graph, (struct str){ text, size });
    value->kind = (uint8_t)kind;
    free(text);
    return value;
}

static struct value *make_ints(struct value_graph *graph, enum value_kind kind, int64_t first, size_t count)
{
    struct value **items = arena_array(&graph->arena, count + 1, sizeof(*items));
    for (size_t i = 0; i < count; i++)
        items[i] = value_new_int(graph, first + (int64_t)i);
    return value_new_list(graph, kind, items, count);
}

/* l = [1, 2]; (l, l, frozenset([3]), b"aa", 2**70, -1.5, None, True, "key", "x" * 300, "z" * 65535, "z" * 65536, b"y" * 65536, (), (1,),
 * (1, 2, 3, 4)) */
TEST(each_kind_is_spelled_as_cpython_does)
{
    struct value_graph graph = { 0 };
    struct value *shared = make_ints(&graph, VALUE_LIST, 1, 2), *big = value_new_str(&graph, STR("\0\0\0\0\0\0\0\0\x40"));
    struct value *real = value_new(&graph, VALUE_FLOAT), *truth = value_new(&graph, VALUE_BOOL);
    big->kind = VALUE_BIGINT;
    big->text.size = 9;
    real->real = -1.5;
    truth->boolean = true;
    struct value *items[] = {
        shared,
        shared,
        make_ints(&graph, VALUE_FROZENSET, 3, 1),
        make_run(&graph, VALUE_BYTES, 'a', 2),
        big,
        real,
        value_new(&graph, VALUE_NONE),
        truth,
        value_new_str(&graph, STR("key")),
        make_run(&graph, VALUE_STR, 'x', 300),
        make_run(&graph, VALUE_STR, 'z', 65535),
        make_run(&graph, VALUE_STR, 'z', 65536),
        make_run(&graph, VALUE_BYTES, 'y', 65536),
        make_ints(&graph, VALUE_TUPLE, 0, 0),
        make_ints(&graph, VALUE_TUPLE, 1, 1),
        make_ints(&graph, VALUE_TUPLE, 1, 4),
    };
    struct value *root = value_new_list(&graph, VALUE_TUPLE, items, sizeof(items) / sizeof(*items));
    assert_int_equal(dumped_crc(&graph, root), 0x7e5083f8);
    value_graph_release(&graph);
}

TEST(what_is_not_known_is_refused)
{
    struct value_graph graph = { 0 };
    struct value *item = value_new(&graph, VALUE_PERSID), *ring;
    struct buffer out = { 0 };
    reshard_error err = { 0 };
    item->inner = value_new_int(&graph, 1);
    CHECK_FAILS(pickle_graph_write(item, graph.count, NULL, &out, &err), RESHARD_ERR_UNSUPPORTED);
    ring = value_new_list(&graph, VALUE_TUPLE, &item, 1);
    item = ring;
    CHECK_FAILS(pickle_graph_write(ring, graph.count, NULL, &out, &err), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a tuple inside itself"));
    buffer_release(&out);
    value_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_cpython),
        cmocka_unit_test(each_kind_is_spelled_as_cpython_does),
        cmocka_unit_test(what_is_not_known_is_refused),
    };
    return cmocka_run_group_tests_name("pickle_graph", tests, NULL, NULL);
}
