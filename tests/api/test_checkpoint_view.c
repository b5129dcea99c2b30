/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a checkpoint, seen under other names. */
#include "check.h"

#include "reshard/state.h"

#include <stdlib.h>

static reshard_error err;

static reshard_checkpoint *open_three(void)
{
    static const float values[6] = { 1, 2, 3, 4, 5, 6 };
    static const char *const keys[] = { "m.layers.0.w", "m.layers.1.w", "head" };
    static const int64_t shape[] = { 2 }, start[] = { 0 };
    const reshard_state_item items[] = { { { "m.note", 6 }, { "\"n\"", 3 } }, { { "step", 4 }, { "7", 1 } } };
    reshard_shards *shards = NULL;
    reshard_checkpoint *checkpoint = NULL;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < 3; i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        shard.key = (reshard_str){ keys[i], strlen(keys[i]) };
        shard.dtype = "F32";
        shard.rank = 1;
        shard.global_shape = shard.extent = shape;
        shard.start = start;
        shard.data = (void *)(uintptr_t)&values[2 * i];
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    reshard_state state = RESHARD_STATE_INIT;
    state.shards = shards;
    state.items = items;
    state.item_count = 2;
    CHECK_OK(reshard_open_shards(&state, NULL, &checkpoint, &err));
    reshard_shards_free(shards);
    return checkpoint;
}

static void check_key(const reshard_checkpoint *checkpoint, size_t index, const char *key)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    assert_int_equal(reshard_tensor_at(checkpoint, index, &tensor), RESHARD_OK);
    assert_int_equal(tensor.key.size, strlen(key));
    assert_memory_equal(tensor.key.data, key, tensor.key.size);
}

TEST(a_view_counts_from_zero_under_its_own_names)
{
    static const char *const renames[] = { "m.layers.* -> h.*", "s/^m\\.//", NULL }, *const exclude[] = { "h.0.*", NULL };
    reshard_checkpoint *checkpoint = open_three();
    reshard_view view = RESHARD_VIEW_INIT;
    reshard_item item = RESHARD_ITEM_INIT;
    float values[2];
    char *json = NULL;
    size_t size;
    view.renames = renames;
    view.exclude = exclude;
    CHECK_OK(reshard_checkpoint_view(checkpoint, &view, &err));
    assert_int_equal(reshard_tensor_count(checkpoint), 2);
    check_key(checkpoint, 0, "h.1.w");
    check_key(checkpoint, 1, "head");
    assert_int_equal(reshard_tensor_find(checkpoint, "h.1.w", 5), 0);
    assert_int_equal(reshard_tensor_find(checkpoint, "h.0.w", 5), -1);
    assert_int_equal(reshard_tensor_find(checkpoint, "m.layers.1.w", 12), -1);
    CHECK_OK(reshard_read_into(checkpoint, 0, NULL, NULL, NULL, values, sizeof(values), &err));
    assert_true(values[0] == 3 && values[1] == 4);
    assert_int_equal(reshard_item_count(checkpoint), 2);
    assert_int_equal(reshard_item_at(checkpoint, 0, &item), RESHARD_OK);
    assert_memory_equal(item.key.data, "note", 4);
    assert_int_equal(reshard_item_find(checkpoint, "step", 4), 1);
    CHECK_OK(reshard_item_json(checkpoint, 1, &json, &size, &err));
    assert_string_equal(json, "7");
    reshard_free(json);
    reshard_close(checkpoint);
}

TEST(what_matches_nothing_leaves_the_handle_as_it_was)
{
    static const char *const nothing[] = { "m.layer.0.w", NULL }, *const same[] = { "s/.*/x/", NULL };
    reshard_checkpoint *checkpoint = open_three();
    reshard_view view = RESHARD_VIEW_INIT;
    view.include = nothing;
    CHECK_FAILS(reshard_checkpoint_view(checkpoint, &view, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.hint, "'m.layers.0.w'"));
    view.include = NULL;
    view.renames = same;
    CHECK_FAILS(reshard_checkpoint_view(checkpoint, &view, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'m.layers.0.w' and 'm.layers.1.w' would both be called 'x'"));
    assert_int_equal(reshard_tensor_count(checkpoint), 3);
    check_key(checkpoint, 2, "head");
    reshard_close(checkpoint);
}

TEST(a_view_is_not_converted_or_compared)
{
    static const char *const head[] = { "head", NULL };
    reshard_checkpoint *part = open_three(), *whole = open_three();
    reshard_view view = RESHARD_VIEW_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    view.include = head;
    CHECK_OK(reshard_checkpoint_view(part, &view, &err));
    assert_int_equal(reshard_item_count(part), 0);
    options.to = "hf";
    CHECK_FAILS(reshard_estimate(part, NULL, &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_diff(whole, part, NULL, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(reshard_diff(part, whole, NULL, NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
    reshard_coverage covered = RESHARD_COVERAGE_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    verify.coverage = &covered;
    CHECK_OK(reshard_verify(part, &verify, NULL, NULL, NULL, &err));
    assert_int_equal(covered.tensors, 1);
    CHECK_FAILS(reshard_checkpoint_view(part, &view, &err), RESHARD_ERR_USAGE);
    reshard_close(part);
    reshard_close(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_view_counts_from_zero_under_its_own_names),
        cmocka_unit_test(what_matches_nothing_leaves_the_handle_as_it_was),
        cmocka_unit_test(a_view_is_not_converted_or_compared),
    };
    return cmocka_run_group_tests_name("checkpoint_view", tests, NULL, NULL);
}
