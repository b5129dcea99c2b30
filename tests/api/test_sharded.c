/* SPDX-License-Identifier: Apache-2.0 */
/* Sharded state dicts: the cases of Megatron Core's unit tests test_mapping, test_validation and test_fully_parallel. */
#include "check.h"

#include "api/sharded_handle.h"

#include <stdbool.h>

static reshard_error err;

static reshard_str text_of(const char *text)
{
    return (reshard_str){ text, strlen(text) };
}

static reshard_sharded *state_new(void)
{
    reshard_sharded *held;
    CHECK_OK(reshard_sharded_new(&held, &err));
    return held;
}

static reshard_sharded_tensor tensor_of(const char *key, size_t rank, size_t prepended, const int64_t *local)
{
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    tensor.key = text_of(key);
    tensor.dtype = "torch.float32";
    tensor.rank = rank;
    tensor.prepended = prepended;
    tensor.local_shape = local;
    return tensor;
}

static reshard_status add_at(reshard_sharded *held, const reshard_sharded_tensor *tensor, const reshard_rank_offset *offsets, size_t count)
{
    return reshard_sharded_add_offsets(held, tensor, offsets, sizeof(*offsets), count, &err);
}

static reshard_sharded_tensor got(const reshard_sharded *held, size_t index)
{
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    assert_int_equal(reshard_sharded_at(held, index, &tensor), RESHARD_OK);
    return tensor;
}

#define CHECK_VECTOR(found, ...)                                                                \
    do {                                                                                        \
        const int64_t expected[] = { __VA_ARGS__ };                                             \
        for (size_t check_i = 0; check_i < sizeof(expected) / sizeof(*expected); check_i++)     \
            assert_int_equal((found)[check_i], expected[check_i]);                              \
    } while (0)

TEST(tensors_are_made_from_rank_offsets)
{
    const int64_t local[] = { 1, 3, 7, 9 }, layer[] = { 12, 8 };
    const reshard_rank_offset offsets[] = { { 0, 0, 10 }, { 2, 3, 6 } }, stacked[] = { { 0, 5, 24 }, { 1, 1, 2 } };
    reshard_sharded *held = state_new();
    reshard_sharded_tensor tensor = tensor_of("w", 4, 0, local);
    CHECK_OK(add_at(held, &tensor, offsets, 2));
    reshard_sharded_tensor made = got(held, 0);
    CHECK_VECTOR(made.global_shape, 10, 3, 42, 9);
    CHECK_VECTOR(made.global_offset, 0, 0, 21, 0);
    CHECK_VECTOR(made.fragments, 10, 1, 6, 1);
    tensor = tensor_of("layers", 3, 1, layer);
    CHECK_OK(add_at(held, &tensor, stacked, 2));
    made = got(held, 1);
    int64_t cell[3], start[3], extent[3];
    CHECK_VECTOR(made.global_shape, 24, 24, 8);
    CHECK_VECTOR(made.global_offset, 5, 12, 0);
    CHECK_OK(reshard_sharded_cell(&made, cell, &err));
    CHECK_VECTOR(cell, 5, 1, 0);
    CHECK_OK(reshard_sharded_slice(&made, start, extent, &err));
    CHECK_VECTOR(extent, 1, 12, 8);
    CHECK_VECTOR(made.local_shape, 12, 8);
    CHECK_OK(reshard_sharded_largest_chunk(&made, cell, &err));
    CHECK_VECTOR(cell, 1, 12, 8);
    reshard_sharded_free(held);
}

TEST(what_is_no_piece_is_refused)
{
    const int64_t local[] = { 2, 3 };
    static const reshard_rank_offset bad[] = { { 2, 0, 1 }, { -1, 0, 1 }, { 0, 1, 1 }, { 0, -1, 2 }, { 0, 0, 0 } };
    reshard_sharded *held = state_new();
    reshard_sharded_tensor tensor = tensor_of("w", 2, 0, local);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK_FAILS(add_at(held, &tensor, &bad[i], 1), RESHARD_ERR_USAGE);
    const int64_t global[] = { 4, 3 }, offset[] = { 1, 0 }, fragments[] = { 2, 1 };
    tensor.global_shape = global;
    tensor.global_offset = offset;
    tensor.fragments = fragments;
    CHECK_FAILS(reshard_sharded_add(held, &tensor, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Global offset (1) must be divisible by local shape (2)"));
    tensor.fragments = NULL;
    CHECK_OK(reshard_sharded_add(held, &tensor, &err));
    int64_t cell[2];
    CHECK_FAILS(reshard_sharded_cell(&tensor, cell, &err), RESHARD_ERR_USAGE);
    const int64_t three[] = { 3, 1 }, at_start[] = { 0, 0 };
    tensor.global_offset = at_start;
    tensor.fragments = three;
    CHECK_FAILS(reshard_sharded_largest_chunk(&tensor, cell, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Axis shape (4) not divisible by axis fragmentation (3)"));
    assert_int_equal(reshard_sharded_count(held), 1);
    reshard_sharded_free(held);
}

TEST(tensors_are_narrowed)
{
    const int64_t local[] = { 1, 3, 7, 9 };
    const reshard_rank_offset offsets[] = { { 0, 0, 10 }, { 2, 3, 6 } };
    float values[3 * 7 * 9];
    reshard_sharded *held = state_new(), *narrowed = state_new();
    reshard_sharded_tensor tensor = tensor_of("w", 4, 0, local);
    tensor.data = values;
    CHECK_OK(add_at(held, &tensor, offsets, 2));
    const reshard_sharded_tensor whole = got(held, 0);
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &whole, 1, 1, 2, &err));
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &whole, 2, 3, 2, &err));
    reshard_sharded_tensor made = got(narrowed, 0);
    CHECK_VECTOR(made.local_shape, 1, 2, 7, 9);
    CHECK_VECTOR(made.global_shape, 10, 2, 42, 9);
    CHECK_VECTOR(made.global_offset, 0, 0, 21, 0);
    assert_ptr_equal(made.data, values + 63);
    assert_null(made.strides);
    made = got(narrowed, 1);
    CHECK_VECTOR(made.local_shape, 1, 3, 2, 9);
    CHECK_VECTOR(made.global_shape, 10, 3, 12, 9);
    CHECK_VECTOR(made.global_offset, 0, 0, 6, 0);
    assert_ptr_equal(made.data, values + 27);
    CHECK_VECTOR(made.strides, 189, 63, 9, 1);
    CHECK_FAILS(reshard_sharded_add_narrow(narrowed, &whole, 2, 6, 2, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_sharded_add_narrow(narrowed, &whole, 4, 0, 1, &err), RESHARD_ERR_USAGE);
    reshard_sharded_free(held);
    reshard_sharded_free(narrowed);
}

TEST(flat_ranges_are_made_and_narrowed)
{
    const int64_t local[] = { 1, 4, 7 }, rows[] = { 4, 7 };
    const reshard_rank_offset offsets[] = { { 1, 0, 2 }, { 2, 3, 5 } }, at[] = { { 0, 1, 2 }, { 1, 3, 5 } };
    float values[5];
    reshard_sharded *held = state_new(), *narrowed = state_new();
    reshard_sharded_tensor tensor = tensor_of("w", 3, 0, local);
    tensor.is_flattened = 1;
    tensor.flat_begin = 4;
    tensor.flat_end = 9;
    tensor.data = values;
    CHECK_OK(add_at(held, &tensor, offsets, 2));
    reshard_sharded_tensor made = got(held, 0);
    CHECK_VECTOR(made.global_shape, 1, 8, 35);
    CHECK_VECTOR(made.global_offset, 0, 0, 21);
    tensor.rank = 2;
    tensor.local_shape = rows;
    CHECK_OK(add_at(held, &tensor, at, 2));
    const reshard_sharded_tensor flat = got(held, 1);
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &flat, 0, 0, 1, &err));
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &flat, 0, 0, 3, &err));
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &flat, 0, 2, 1, &err));
    CHECK_OK(reshard_sharded_add_narrow(narrowed, &flat, 0, 1, 1, &err));
    CHECK_FAILS(reshard_sharded_add_narrow(narrowed, &flat, 1, 0, 1, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_sharded_count(narrowed), 3);
    made = got(narrowed, 0);
    assert_int_equal(made.flat_begin, 4);
    assert_int_equal(made.flat_end, 7);
    CHECK_VECTOR(made.local_shape, 1, 7);
    CHECK_VECTOR(made.global_shape, 2, 35);
    CHECK_VECTOR(made.global_offset, 1, 21);
    made = got(narrowed, 1);
    assert_int_equal(made.flat_end, 9);
    CHECK_VECTOR(made.local_shape, 3, 7);
    CHECK_VECTOR(made.global_shape, 6, 35);
    CHECK_VECTOR(made.global_offset, 3, 21);
    made = got(narrowed, 2);
    assert_int_equal(made.flat_begin, 0);
    assert_int_equal(made.flat_end, 2);
    assert_ptr_equal(made.data, values + 3);
    tensor.flat_begin = tensor.flat_end = 3; /* nothing is left out */
    CHECK_OK(add_at(held, &tensor, at, 2));
    assert_int_equal(reshard_sharded_count(held), 2);
    reshard_sharded_free(held);
    reshard_sharded_free(narrowed);
}

TEST(main_replicas_have_only_zeros)
{
    const int64_t ids[] = { 0, 0, 1, 0, 1, 1, 1 };
    assert_true(reshard_replica_is_main(NULL, 0));
    assert_true(reshard_replica_is_main(ids, 1));
    assert_true(reshard_replica_is_main(ids, 2));
    assert_false(reshard_replica_is_main(ids + 2, 1));
    assert_false(reshard_replica_is_main(ids + 2, 2));
    assert_false(reshard_replica_is_main(ids + 4, 3));
}

/* ---- factories ---- */

static int build_halves(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context)
{
    const int64_t half[] = { whole->local_shape[0] / 2, whole->local_shape[1] };
    (void)context;
    for (int64_t i = 0; i < 2; i++) {
        reshard_sharded_tensor part = *whole;
        const reshard_rank_offset at = { 0, i * 4 + 1, 8 };
        part.local_shape = half;
        part.data = (float *)whole->data + i * half[0] * half[1];
        if (reshard_sharded_add_offsets(parts, &part, &at, sizeof(at), 1, NULL))
            return 1;
    }
    return 0;
}

static int merge_halves(const reshard_sharded_tensor *whole, const reshard_sharded *parts, void *context)
{
    reshard_sharded_tensor second = RESHARD_SHARDED_TENSOR_INIT;
    (void)whole;
    if (reshard_sharded_at(parts, 1, &second))
        return 1;
    *(float *)context = *(float *)second.data;
    return 0;
}

static int build_nested(const reshard_sharded_tensor *whole, reshard_sharded *parts, void *context)
{
    reshard_sharded_factory inner = RESHARD_SHARDED_FACTORY_INIT;
    inner.whole = whole;
    inner.build = build_halves;
    inner.context = context;
    return reshard_sharded_add_factory(parts, &inner, NULL) != RESHARD_OK;
}

TEST(factories_make_parts_and_merge_them)
{
    const int64_t local[] = { 4, 3 };
    float values[12], merged = 0;
    reshard_sharded *held = state_new();
    reshard_sharded_factory factory = RESHARD_SHARDED_FACTORY_INIT;
    reshard_sharded_tensor whole = tensor_of("fc1", 2, 0, local);
    whole.data = values;
    factory.whole = &whole;
    factory.build = build_halves;
    factory.merge = merge_halves;
    factory.context = &merged;
    values[6] = 7;
    CHECK_OK(reshard_sharded_add_factory(held, &factory, &err));
    CHECK_OK(reshard_sharded_add_prefix(held, text_of("model."), &err));
    CHECK_OK(reshard_sharded_expand(held, &err));
    CHECK_OK(reshard_sharded_expand(held, &err));
    assert_int_equal(reshard_sharded_count(held), 2);
    reshard_sharded_tensor made = got(held, 1);
    assert_int_equal(made.key.size, 9);
    CHECK_VECTOR(made.global_shape, 16, 3);
    CHECK_VECTOR(made.global_offset, 10, 0);
    CHECK_OK(reshard_sharded_merge(held, &err));
    assert_true(merged == 7);
    factory.build = build_nested;
    CHECK_OK(reshard_sharded_add_factory(held, &factory, &err));
    CHECK_FAILS(reshard_sharded_expand(held, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_sharded_count(held), 2);
    reshard_sharded_free(held);
}

/* ---- keys ---- */

TEST(objects_have_unique_keys)
{
    const int64_t shape[] = { 2, 4 }, offset[] = { 1, 3 };
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded *held = state_new();
    char *key;
    object.key = text_of("a/rng");
    object.rank = 2;
    object.global_shape = shape;
    object.global_offset = offset;
    object.json = text_of("[1]");
    CHECK_OK(reshard_object_key(&object, &key, &err));
    assert_string_equal(key, "a/rng/shard_1.3_2.4");
    CHECK_OK(reshard_sharded_add_object_key(held, text_of(key), &err));
    reshard_free(key);
    reshard_sharded_object back = RESHARD_SHARDED_OBJECT_INIT;
    CHECK_OK(reshard_sharded_object_at(held, 0, &back));
    assert_int_equal(back.key.size, 5);
    CHECK_VECTOR(back.global_shape, 2, 4);
    CHECK_VECTOR(back.global_offset, 1, 3);
    static const char *const bad[] = { "rng", "rng/shard_1_", "rng/shard_1.0_2", "rng/shard_2_2", "rng/shard_-1_2", "/shard_0_1", "a/b_0_1",
                                       "a/shard_0_1_1" };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        CHECK_FAILS(reshard_sharded_add_object_key(held, text_of(bad[i]), &err), RESHARD_ERR_USAGE);
    reshard_sharded_free(held);
}

TEST(prefixes_are_put_and_replaced)
{
    const int64_t local[] = { 2 };
    const reshard_str old[] = { { "model.a", 7 }, { "model.", 6 } }, instead[] = { { "x", 1 }, { "", 0 } };
    reshard_sharded *held = state_new();
    reshard_sharded_tensor a = tensor_of("a", 1, 0, local), b = tensor_of("b", 1, 0, local);
    CHECK_OK(add_at(held, &a, NULL, 0));
    CHECK_OK(add_at(held, &b, NULL, 0));
    CHECK_OK(reshard_sharded_add_prefix(held, text_of("net."), &err));
    CHECK_FAILS(reshard_sharded_replace_prefix(held, text_of("net.a"), text_of(""), &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Expected net.b to begin with prefix net.a"));
    assert_memory_equal(got(held, 0).key.data, "net.a", 5);
    CHECK_OK(reshard_sharded_replace_prefix(held, text_of("net."), text_of("model."), &err));
    CHECK_OK(reshard_sharded_map_prefixes(held, old, instead, 2, &err));
    assert_int_equal(got(held, 0).key.size, 1);
    assert_memory_equal(got(held, 0).key.data, "x", 1);
    assert_memory_equal(got(held, 1).key.data, "b", 1);
    reshard_sharded_free(held);
}

TEST(common_values_are_compared)
{
    reshard_sharded *first = state_new(), *other = state_new();
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    char *text;
    value.key = text_of("rank");
    value.json = text_of("0");
    CHECK_OK(reshard_sharded_add_value(first, &value, &err));
    value.json = text_of("1");
    CHECK_OK(reshard_sharded_add_value(other, &value, &err));
    CHECK_OK(reshard_sharded_compare_common(first, other, 1, &text, &err));
    assert_string_equal(text, "Rank 1 common state dict differs from rank 0 common state dict. Keys only on rank 0: [], "
                              "Keys only on 1: [], Mismatched keys: [(('rank',), int, int)]");
    reshard_free(text);
    value.key = text_of("args");
    value.json = text_of("{\"a\":[1,2,{\"x\":1.5}],\"b\":null}");
    CHECK_OK(reshard_sharded_add_value(first, &value, &err));
    value.json = text_of("{\"a\":[1,2,{\"x\":\"y\"},4],\"c\":1}");
    CHECK_OK(reshard_sharded_add_value(other, &value, &err));
    CHECK_OK(reshard_sharded_compare_common(first, other, 3, &text, &err));
    assert_non_null(strstr(text, "Keys only on rank 0: [('args', 'b')], Keys only on 3: [('args', 'c'), ('args', 'a', 3)]"));
    assert_non_null(strstr(text, "(('args', 'a', 2, 'x'), float, str)"));
    reshard_free(text);
    CHECK_OK(reshard_sharded_compare_common(first, first, 1, &text, &err));
    assert_null(text);
    reshard_sharded_free(first);
    reshard_sharded_free(other);
}

static size_t values_of(const reshard_sharded *held, char *out, size_t size)
{
    *out = 0;
    for (size_t i = 0; i < reshard_sharded_value_count(held); i++) {
        reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
        assert_int_equal(reshard_sharded_value_at(held, i, &value), RESHARD_OK);
        snprintf(out + strlen(out), size - strlen(out), "%.*s=%.*s;", (int)value.key.size, value.key.data, (int)value.json.size,
                 value.json.data);
    }
    return strlen(out);
}

/* What Megatron-LM takes out before it compares: args.rank and args.local_rank. */
TEST(common_values_are_taken_out)
{
    const reshard_str rank[] = { text_of("args"), text_of("rank") }, local[] = { text_of("args"), text_of("local_rank") };
    const reshard_str deep[] = { text_of("args"), text_of("more"), text_of("x") };
    const reshard_str none[] = { text_of("args"), text_of("lr"), text_of("x") };
    reshard_sharded *held = state_new();
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    char text[200];
    value.key = text_of("args");
    value.json = text_of("{\"rank\":3,\"lr\":0.5,\"local_rank\":1,\"more\":{\"x\":[1],\"y\":null}}");
    CHECK_OK(reshard_sharded_add_value(held, &value, &err));
    value.key = text_of("iteration");
    value.json = text_of("7");
    CHECK_OK(reshard_sharded_add_value(held, &value, &err));
    CHECK_OK(reshard_sharded_remove_value(held, rank, 2, &err));
    CHECK_OK(reshard_sharded_remove_value(held, local, 2, &err));
    CHECK_OK(reshard_sharded_remove_value(held, local, 2, &err));
    CHECK_OK(reshard_sharded_remove_value(held, deep, 3, &err));
    CHECK_OK(reshard_sharded_remove_value(held, none, 3, &err));
    CHECK_OK(reshard_sharded_remove_value(held, none, 0, &err));
    values_of(held, text, sizeof(text));
    assert_string_equal(text, "args={\"lr\": 0.5, \"more\": {\"y\": null}};iteration=7;");
    CHECK_OK(reshard_sharded_remove_value(held, rank, 1, &err));
    values_of(held, text, sizeof(text));
    assert_string_equal(text, "iteration=7;");
    value.key = text_of("broken");
    value.json = text_of("{");
    CHECK_OK(reshard_sharded_add_value(held, &value, &err));
    CHECK_FAILS(reshard_sharded_remove_value(held, (const reshard_str[]){ text_of("broken"), text_of("x") }, 2, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "common value 'broken'"));
    reshard_sharded_free(held);
}

/* ---- integrity ---- */

/* Rows of (8, 3) by rank, of which `left_out` is missing and `moved` is at its neighbour's place. */
static reshard_status rows_check(int left_out, int moved, int regular)
{
    const int64_t local[] = { 2, 3 };
    reshard_sharded *ranks[4];
    for (int r = 0; r < 4; r++) {
        ranks[r] = state_new();
        reshard_sharded_tensor tensor = tensor_of("w", 2, 0, local);
        const reshard_rank_offset at = { 0, r == moved ? r - 1 : r, 4 };
        const int64_t whole[] = { 8, 3 }, start[] = { at.offset * 2, 0 };
        if (r == left_out)
            continue;
        tensor.global_shape = whole;
        tensor.global_offset = start;
        CHECK_OK(regular ? add_at(ranks[r], &tensor, &at, 1) : reshard_sharded_add(ranks[r], &tensor, &err));
    }
    reshard_status status = reshard_sharded_check((const reshard_sharded *const *)ranks, 4, &err);
    for (int r = 0; r < 4; r++)
        reshard_sharded_free(ranks[r]);
    return status;
}

TEST(each_element_has_one_main_copy)
{
    CHECK_OK(rows_check(-1, -1, 1));
    CHECK_OK(rows_check(-1, -1, 0));
    CHECK_FAILS(rows_check(2, -1, 1), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Invalid access pattern for 'w', global shape (8, 3), fragments (4, 1): [[1] [1] [0] [1]]"));
    CHECK_FAILS(rows_check(-1, 2, 1), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "[[1] [2] [0] [1]]; ranks 1 and 2 have main copies of cell (1, 0)"));
    CHECK_FAILS(rows_check(2, -1, 0), RESHARD_ERR_USAGE);
    CHECK_FAILS(rows_check(-1, 3, 0), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'w'"));
}

/* Rank 1 says something else of the tensor than rank 0. */
TEST(who_says_something_else_is_named)
{
    static const int64_t local[] = { 2, 3 }, other[] = { 2, 4 }, whole[] = { 4, 3 }, starts[3][2] = { { 0, 0 }, { 2, 0 }, { 1, 0 } };
    static const char *const expected[] = { "do not agree on the dtype: rank 1's with rank 0's",
                                            "do not agree on the global shape: rank 1's with rank 0's",
                                            "do not agree on whether the grid is regular: rank 1's with rank 0's",
                                            "main copies of 'w' overlap of ranks 0 and 2: 18 elements of 12" };
    for (int what = 0; what < 4; what++) {
        reshard_sharded *ranks[3] = { state_new(), state_new(), state_new() };
        for (int64_t r = 0; r < (what == 3 ? 3 : 2); r++) {
            reshard_sharded_tensor tensor = tensor_of("w", 2, 0, r == 1 && what == 1 ? other : local);
            const reshard_rank_offset at = { 0, r, 2 };
            tensor.dtype = r == 1 && what == 0 ? "F16" : "F32";
            tensor.global_shape = whole;
            tensor.global_offset = starts[r];
            CHECK_OK(what == 3 || (what == 2 && r == 1) ? reshard_sharded_add(ranks[r], &tensor, &err) : add_at(ranks[r], &tensor, &at, 1));
        }
        CHECK_FAILS(reshard_sharded_check((const reshard_sharded *const *)ranks, 3, &err), RESHARD_ERR_USAGE);
        if (!strstr(err.message, expected[what]))
            fail_msg("%s", err.message);
        assert_string_equal(err.object, "w");
        for (int r = 0; r < 3; r++)
            reshard_sharded_free(ranks[r]);
    }
}

TEST(two_main_copies_of_a_cell_are_refused)
{
    const int64_t local[] = { 2, 3 }, copy = 1;
    reshard_sharded *held = state_new();
    const reshard_sharded *ranks[] = { held };
    reshard_sharded_tensor tensor = tensor_of("w", 2, 0, local);
    for (int64_t r = 0; r < 2; r++) {
        const reshard_rank_offset at = { 0, r, 2 };
        CHECK_OK(add_at(held, &tensor, &at, 1));
        tensor.replica_ids = &copy;
        tensor.replica_count = 1;
        CHECK_OK(add_at(held, &tensor, &at, 1));
        tensor.replica_count = 0;
    }
    CHECK_OK(reshard_sharded_check(ranks, 1, &err));
    CHECK_OK(add_at(held, &tensor, &(reshard_rank_offset){ 0, 1, 2 }, 1));
    CHECK_FAILS(reshard_sharded_check(ranks, 1, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "[[1] [2]]"));
    reshard_sharded_free(held);
}

/* Megatron's case: ranks 0, 1 and 2 hold 1, 2 and 3 elements of a row of 6, the others whole rows. */
static reshard_status ranges_check_without(int left_out)
{
    static const int64_t ranges[] = { 0, 1, 3, 6 }, local[] = { 1, 6 };
    reshard_sharded *ranks[6];
    for (int r = 0; r < 6; r++) {
        ranks[r] = state_new();
        reshard_sharded_tensor tensor = tensor_of("w", 2, 0, local);
        const reshard_rank_offset at = { 0, r < 3 ? 0 : r - 2, 4 };
        tensor.is_flattened = 1;
        tensor.flat_begin = r < 3 ? ranges[r] : 0;
        tensor.flat_end = r < 3 ? ranges[r + 1] : 6;
        if (r != left_out)
            CHECK_OK(add_at(ranks[r], &tensor, &at, 1));
    }
    reshard_status status = reshard_sharded_check((const reshard_sharded *const *)ranks, 6, &err);
    for (int r = 0; r < 6; r++)
        reshard_sharded_free(ranks[r]);
    return status;
}

TEST(flat_ranges_tile_their_cell)
{
    CHECK_OK(ranges_check_without(-1));
    CHECK_FAILS(ranges_check_without(1), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Flattened ranges dont cover the whole shard of 'w': that of rank 0 ends at 1, that of rank 2 "
                                        "begins at 3"));
    CHECK_FAILS(ranges_check_without(2), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'w': the last, of rank 1, ends at 3 of 6"));
    CHECK_FAILS(ranges_check_without(0), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'w': the first, of rank 1, begins at 1"));
    CHECK_FAILS(ranges_check_without(4), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Invalid access pattern"));
}

/* Two runs of one box do not meet; the third rank's box meets both. */
TEST(of_flat_ranges_those_that_overlap_are_named)
{
    static const int64_t whole[] = { 4, 3 }, local[][2] = { { 2, 3 }, { 2, 3 }, { 2, 3 }, { 1, 3 } };
    static const int64_t starts[][2] = { { 0, 0 }, { 0, 0 }, { 1, 0 }, { 3, 0 } }, ranges[][2] = { { 0, 3 }, { 3, 6 }, { 0, 6 }, { 0, 3 } };
    reshard_sharded *ranks[4];
    for (int r = 0; r < 4; r++) {
        ranks[r] = state_new();
        reshard_sharded_tensor tensor = tensor_of("w", 2, 0, local[r]);
        tensor.global_shape = whole;
        tensor.global_offset = starts[r];
        tensor.is_flattened = 1;
        tensor.flat_begin = ranges[r][0];
        tensor.flat_end = ranges[r][1];
        CHECK_OK(reshard_sharded_add(ranks[r], &tensor, &err));
    }
    CHECK_FAILS(reshard_sharded_check((const reshard_sharded *const *)ranks, 4, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "main copies of 'w' overlap of ranks 0 and 2: 15 elements of 12"));
    for (int r = 0; r < 4; r++)
        reshard_sharded_free(ranks[r]);
}

TEST(objects_fill_their_grid)
{
    const int64_t shape[] = { 3 };
    reshard_sharded *held = state_new();
    const reshard_sharded *ranks[] = { held };
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    object.key = text_of("o");
    object.rank = 1;
    object.global_shape = shape;
    for (int64_t i = 0; i < 3; i++) {
        object.global_offset = &i;
        CHECK_OK(reshard_sharded_add_object(held, &object, &err));
        if (i < 2) {
            CHECK_FAILS(reshard_sharded_check(ranks, 1, &err), RESHARD_ERR_USAGE);
            assert_non_null(strstr(err.message, i ? "1 ShardedObject are missing" : "2 ShardedObject are missing"));
        }
    }
    CHECK_OK(reshard_sharded_check(ranks, 1, &err));
    for (int64_t outside = -1; outside <= 3; outside += 4) {
        object.global_offset = &outside;
        CHECK_FAILS(reshard_sharded_add_object(held, &object, &err), RESHARD_ERR_USAGE);
    }
    static const int64_t grids[][2] = { { -1, 3 }, { 3, -1 }, { INT64_C(1) << 40, INT64_C(1) << 40 } };
    object.rank = 2;
    for (size_t i = 0; i < sizeof(grids) / sizeof(grids[0]); i++) {
        object.global_shape = grids[i];
        object.global_offset = (const int64_t[]){ 0, 0 };
        CHECK_FAILS(reshard_sharded_add_object(held, &object, &err), RESHARD_ERR_USAGE);
        assert_non_null(strstr(err.message, "its grid has a negative extent or too many cells"));
    }
    object.rank = 1;
    object.global_shape = shape;
    const int64_t last = 2, other = 1;
    object.global_offset = &last;
    object.replica_ids = &other;
    object.replica_count = 1;
    CHECK_OK(reshard_sharded_add_object(held, &object, &err));
    CHECK_OK(reshard_sharded_check(ranks, 1, &err));
    object.replica_count = 0;
    CHECK_OK(reshard_sharded_add_object(held, &object, &err));
    CHECK_FAILS(reshard_sharded_check(ranks, 1, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "Duplicate ShardedObject keys: ['o/shard_2_3']"));
    reshard_sharded_free(held);
}

/* ---- spreading ---- */

/* Example E of the specification: w and x on all of four ranks, y on two, z on one. */
TEST(copies_are_spread_by_bytes)
{
    const int64_t sizes[] = { 200, 100, 25, 12 };
    static const char *const keys[] = { "w", "x", "y", "z" };
    static const int owner[] = { 1, 3, 0, 2 };
    reshard_sharded *ranks[4];
    for (int r = 0; r < 4; r++) {
        ranks[r] = state_new();
        for (int k = 0; k < 4; k++) {
            reshard_sharded_tensor tensor = tensor_of(keys[k], 1, 0, &sizes[k]);
            const int64_t replica = k == 3 ? 0 : r;
            tensor.replica_ids = &replica;
            tensor.replica_count = 1;
            if (k < 2 || (k == 2 && r < 2) || (k == 3 && r == 2))
                CHECK_OK(add_at(ranks[r], &tensor, NULL, 0));
        }
    }
    CHECK_OK(reshard_sharded_spread(ranks, 4, &err));
    CHECK_OK(reshard_sharded_check((const reshard_sharded *const *)ranks, 4, &err));
    for (int r = 0; r < 4; r++) {
        for (size_t i = 0; i < reshard_sharded_count(ranks[r]); i++) {
            const reshard_sharded_tensor tensor = got(ranks[r], i);
            int is_main = reshard_replica_is_main(tensor.replica_ids, tensor.replica_count);
            assert_int_equal(is_main, owner[strchr("wxyz", tensor.key.data[0]) - strchr("wxyz", 'w')] == r);
        }
        reshard_sharded_free(ranks[r]);
    }
}

/* Megatron's own cases (test_fully_parallel): 8 ranks, tensor parallel in pairs. B has a piece on each rank, C, D and E are whole on all,
 * two tensors are cut by tensor parallelism. */
enum spread_key { SPREAD_B, SPREAD_C, SPREAD_D, SPREAD_E, SPREAD_FIRST, SPREAD_SECOND, SPREAD_KEYS };

static reshard_sharded *spread_rank(int64_t rank)
{
    static const char *const keys[] = { "keyB", "keyC", "keyD", "keyE", "key_TP_repl1", "key_TP_repl2" };
    static const int64_t sizes[] = { 20, 100, 1000, 100, 10, 10 };
    const reshard_rank_offset by_rank = { 0, rank, 8 }, by_tensor = { 0, rank % 2, 2 };
    reshard_sharded *made = state_new();
    for (int k = 0; k < SPREAD_KEYS; k++) {
        const bool is_cut = k >= SPREAD_FIRST;
        const int64_t replica = k == SPREAD_B ? 0 : is_cut ? rank / 2 : rank;
        reshard_sharded_tensor tensor = tensor_of(keys[k], 1, 0, &sizes[k]);
        tensor.replica_ids = &replica;
        tensor.replica_count = 1;
        CHECK_OK(add_at(made, &tensor, is_cut ? &by_tensor : &by_rank, k == SPREAD_B || is_cut));
    }
    return made;
}

/* Owners within a group of `count` ranks, the first of which is `first`, `step` apart: by rank of the group and key; -1: nobody's. */
static void spread_check(int64_t first, int64_t step, int count, enum spread_purpose purpose, const int (*expected)[SPREAD_KEYS])
{
    reshard_sharded *ranks[8];
    const struct sharded_dict *dicts[8];
    struct spread_owner **owners;
    for (int r = 0; r < count; r++) {
        ranks[r] = spread_rank(first + r * step);
        dicts[r] = &ranks[r]->dict;
    }
    CHECK_OK(sharded_owners_new(dicts, (size_t)count, &owners, &err));
    CHECK_OK(sharded_spread(dicts, (size_t)count, purpose, owners, &err));
    for (int r = 0; r < count; r++) {
        for (int k = 0; k < SPREAD_KEYS; k++) {
            const int owner = owners[r][k].rank == SPREAD_NONE ? -1 : (int)owners[r][k].rank;
            const int wanted = k == SPREAD_B ? r : expected[r % 2][k];
            if (owner != wanted)
                fail_msg("rank %d of %d by %d, tensor %d: %d, not %d", r, count, (int)step, k, owner, wanted);
        }
    }
    sharded_owners_free(owners, (size_t)count);
    for (int r = 0; r < count; r++)
        reshard_sharded_free(ranks[r]);
}

/* a and b on all of three ranks, b's main copy is rank 2's; c on ranks 1 and 2; d's halves cross. */
TEST(copies_without_numbers_are_told_apart)
{
    static const struct {
        int rank;
        const char *key;
        int64_t half, replica; /* half: 0 and 1, -1: all of it */
        bool is_main;
    } held[] = {
        { 0, "a", -1, RESHARD_REPLICA_ANY, true }, { 0, "b", -1, RESHARD_REPLICA_ANY, false },
        { 0, "d", 1, RESHARD_REPLICA_ANY, true }, { 1, "a", -1, RESHARD_REPLICA_ANY, false }, { 1, "b", -1, 3, false },
        { 1, "c", -1, RESHARD_REPLICA_ANY, true }, { 1, "d", 0, RESHARD_REPLICA_ANY, true }, { 2, "a", -1, RESHARD_REPLICA_ANY, false },
        { 2, "b", -1, 0, true }, { 2, "c", -1, RESHARD_REPLICA_ANY, false }, { 2, "d", 0, RESHARD_REPLICA_ANY, false },
    };
    struct sharded_dict dicts[3] = { 0 };
    const struct sharded_dict *ranks[] = { &dicts[0], &dicts[1], &dicts[2] };
    static const int64_t whole = 8, piece = 4, starts[] = { 0, 4 };
    for (size_t i = 0; i < sizeof(held) / sizeof(*held); i++) {
        const struct sharded_tensor tensor = {
            .shard = { .key = str_of(held[i].key), .dtype = DTYPE_F32, .rank = 1, .shape = &whole, .start = &starts[held[i].half == 1],
                       .extent = held[i].half < 0 ? &whole : &piece },
            .replica = { &held[i].replica, 1 },
        };
        CHECK_OK(sharded_add(&dicts[held[i].rank], &tensor, &err));
    }
    CHECK_OK(sharded_number_copies(dicts, ranks, 3, &err));
    CHECK_OK(sharded_check(ranks, 3, &err));
    size_t next[3] = { 0 };
    for (size_t i = 0; i < sizeof(held) / sizeof(*held); i++) {
        const struct sharded_tensor *tensor = &dicts[held[i].rank].tensors[next[held[i].rank]++];
        assert_int_equal(replica_is_main(&tensor->replica), held[i].is_main);
        assert_false(replica_is_unnumbered(&tensor->replica));
    }
    /* Two of one rank are none. */
    static const int64_t any = RESHARD_REPLICA_ANY;
    struct sharded_tensor twice = dicts[0].tensors[0];
    twice.replica = (struct replica){ &any, 1 };
    CHECK_OK(sharded_add(&dicts[0], &twice, &err));
    dicts[0].tensors[0].replica = twice.replica;
    CHECK_OK(sharded_number_copies(dicts, ranks, 3, &err));
    CHECK_FAILS(sharded_check(ranks, 3, &err), RESHARD_ERR_USAGE);
    for (int r = 0; r < 3; r++)
        sharded_dict_release(&dicts[r]);
}

TEST(copies_are_spread_as_megatron_does)
{
    static const int world[2][SPREAD_KEYS] = { { 0, 5, 4, 6, 0, 2 }, { 0, 5, 4, 6, 1, 3 } };
    static const int even[2][SPREAD_KEYS] = { { 0, 1, 0, 2, 3, 3 }, { 0, 1, 0, 2, 3, 3 } };
    static const int odd[2][SPREAD_KEYS] = { { 0, -1, -1, -1, 0, 1 }, { 0, -1, -1, -1, 0, 1 } }; /* main copies are elsewhere */
    static const int odd_load[2][SPREAD_KEYS] = { { 0, 3, 2, 0, 0, 1 }, { 0, 3, 2, 0, 0, 1 } };  /* these come last */
    spread_check(0, 1, 8, SPREAD_TO_SAVE, world);
    spread_check(0, 1, 8, SPREAD_TO_LOAD, world);
    spread_check(0, 2, 4, SPREAD_TO_SAVE, even);
    spread_check(0, 2, 4, SPREAD_TO_LOAD, even);
    spread_check(1, 2, 4, SPREAD_TO_SAVE, odd);
    spread_check(1, 2, 4, SPREAD_TO_LOAD, odd_load);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_made_from_rank_offsets), cmocka_unit_test(what_is_no_piece_is_refused),
        cmocka_unit_test(tensors_are_narrowed),               cmocka_unit_test(flat_ranges_are_made_and_narrowed),
        cmocka_unit_test(main_replicas_have_only_zeros),      cmocka_unit_test(factories_make_parts_and_merge_them),
        cmocka_unit_test(objects_have_unique_keys),           cmocka_unit_test(prefixes_are_put_and_replaced),
        cmocka_unit_test(common_values_are_compared),         cmocka_unit_test(each_element_has_one_main_copy),
        cmocka_unit_test(common_values_are_taken_out),        cmocka_unit_test(who_says_something_else_is_named),
        cmocka_unit_test(two_main_copies_of_a_cell_are_refused),
        cmocka_unit_test(flat_ranges_tile_their_cell),
        cmocka_unit_test(of_flat_ranges_those_that_overlap_are_named),
        cmocka_unit_test(objects_fill_their_grid),
        cmocka_unit_test(copies_are_spread_by_bytes),        cmocka_unit_test(copies_are_spread_as_megatron_does),
        cmocka_unit_test(copies_without_numbers_are_told_apart),
    };
    return cmocka_run_group_tests_name("sharded", tests, NULL, NULL);
}
