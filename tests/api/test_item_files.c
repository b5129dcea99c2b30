/* SPDX-License-Identifier: Apache-2.0 */
/* Items as files of torch.save: out of a checkpoint that torch wrote, into live state and state dicts of ranks, and back. */
#include "check.h"

#include "reshard/sharded.h"

#include "fail_malloc.h"
#include "test_folder.h"

static reshard_error err;

/* The item of a fixture that holds tensors. */
static reshard_checkpoint *fixture_open(int64_t *item)
{
    char path[4096];
    reshard_checkpoint *checkpoint;
    snprintf(path, sizeof(path), "%s/megatron/megatron-dense-dist-tp2/ckpt", getenv("RESHARD_FIXTURES"));
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    *item = reshard_item_find(checkpoint, "rng_state/shard_0.1_1.2", 23);
    assert_true(*item >= 0);
    return checkpoint;
}

static char *json_of(const reshard_checkpoint *checkpoint, const char *key)
{
    char *json;
    size_t size;
    int64_t item = reshard_item_find(checkpoint, key, strlen(key));
    assert_true(item >= 0);
    CHECK_OK(reshard_item_json(checkpoint, (size_t)item, &json, &size, &err));
    return json;
}

/* Whether the item of a checkpoint is this, as JSON. */
static void item_check(const char *path, const char *key, const char *json)
{
    reshard_checkpoint *opened;
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    char *back = json_of(opened, key);
    assert_string_equal(back, json);
    reshard_free(back);
    reshard_close(opened);
}

static void *file_of_fixture(size_t *size, char **json)
{
    int64_t item;
    void *bytes;
    reshard_checkpoint *checkpoint = fixture_open(&item);
    CHECK_OK(reshard_item_file(checkpoint, (size_t)item, &bytes, size, &err));
    *json = json_of(checkpoint, "rng_state/shard_0.1_1.2");
    reshard_close(checkpoint);
    return bytes;
}

static reshard_status state_write(const reshard_items *items, const char *path)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_shards *shards = NULL;
    reshard_checkpoint *live = NULL;
    float four[4] = { 1, 2, 3, 4 };
    const int64_t shape[] = { 4 }, start[] = { 0 };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ "w", 1 };
    shard.dtype = "F32";
    shard.rank = 1;
    shard.global_shape = shard.extent = shape;
    shard.start = start;
    shard.data = four;
    options.to = "torch-dcp";
    options.overwrite = options.no_sync = 1;
    reshard_status status = reshard_shards_new(&shards, &err);
    if (!status)
        status = reshard_shards_add(shards, &shard, &err);
    state.shards = shards;
    state.values = items;
    if (!status)
        status = reshard_open_shards(&state, NULL, &live, &err);
    if (!status)
        status = reshard_convert(live, path, &options, NULL, NULL, &err);
    reshard_close(live);
    reshard_shards_free(shards);
    return status;
}

TEST(files_are_items)
{
    char path[4096], *json;
    size_t size;
    void *bytes = file_of_fixture(&size, &json);
    reshard_items *items;
    reshard_checkpoint *opened;
    snprintf(path, sizeof(path), "%s/live", test_folder);
    CHECK_OK(reshard_items_new(&items, &err));
    CHECK_OK(reshard_items_add_file(items, (reshard_str){ "rng", 3 }, bytes, size, &err));
    CHECK_FAILS(reshard_items_add_file(items, (reshard_str){ "rng", 3 }, bytes, size, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "is there twice"));
    CHECK_FAILS(reshard_items_add_file(items, (reshard_str){ NULL, 0 }, bytes, size, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "has no key"));
    CHECK_OK(state_write(items, path));
    reshard_items_free(items);
    item_check(path, "rng", json);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    void *none;
    size_t none_size;
    CHECK_FAILS(reshard_item_file(opened, reshard_item_count(opened), &none, &none_size, &err), RESHARD_ERR_USAGE);
    assert_null(none);
    reshard_close(opened);
    CHECK_OK(reshard_items_new(&items, &err));
    CHECK_OK(reshard_items_add_file(items, (reshard_str){ "rng", 3 }, bytes, size / 2, &err));
    CHECK_FAILS(state_write(items, path), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "item 'rng'"));
    reshard_items_free(items);
    reshard_free(bytes);
    reshard_free(json);
}

/* What holds tensors is copied, too. */
TEST(tensors_inside_are_copied)
{
    int64_t item;
    char path[4096], *json;
    reshard_checkpoint *checkpoint = fixture_open(&item);
    reshard_items *items;
    snprintf(path, sizeof(path), "%s/copied", test_folder);
    json = json_of(checkpoint, "rng_state/shard_0.1_1.2");
    assert_non_null(strstr(json, "__persistent_id__"));
    CHECK_OK(reshard_items_new(&items, &err));
    CHECK_OK(reshard_items_copy(items, checkpoint, (size_t)item, (reshard_str){ "rng", 3 }, &err));
    reshard_close(checkpoint);
    CHECK_OK(state_write(items, path));
    reshard_items_free(items);
    item_check(path, "rng", json);
    reshard_free(json);
}

/* ---- state dicts of ranks ---- */

static reshard_sharded *dict_make(const void *bytes, size_t size)
{
    const int64_t grid[] = { 1, 2 }, cell[] = { 0, 1 }, other[] = { 0, 0 };
    reshard_sharded *dict;
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    CHECK_OK(reshard_sharded_new(&dict, &err));
    object.key = (reshard_str){ "rng_state", 9 };
    object.rank = 2;
    object.global_shape = grid;
    object.global_offset = cell;
    object.file = (reshard_str){ bytes, size };
    CHECK_OK(reshard_sharded_add_object(dict, &object, &err));
    object.global_offset = other;
    object.file = (reshard_str){ NULL, 0 };
    object.json = (reshard_str){ "[7]", 3 };
    CHECK_OK(reshard_sharded_add_object(dict, &object, &err));
    value.key = (reshard_str){ "state", 5 };
    value.file = (reshard_str){ bytes, size };
    CHECK_OK(reshard_sharded_add_value(dict, &value, &err));
    return dict;
}

static reshard_status dict_save(reshard_sharded *dict, const char *path)
{
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    const char *const kept[] = { "state=as-is", "root=none", NULL };
    convert.to = "torch_dist";
    convert.format_options = kept;
    convert.overwrite = convert.no_sync = 1;
    options.convert = &convert;
    return reshard_save(NULL, path, dict, &options, NULL, &err);
}

/* Whether a result's object or value is the fixture's: opened as a file, it has the same JSON. */
static void file_check(reshard_str file, const char *json)
{
    reshard_items *items;
    reshard_checkpoint *live;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_shards *shards;
    assert_non_null(file.data);
    CHECK_OK(reshard_shards_new(&shards, &err));
    CHECK_OK(reshard_items_new(&items, &err));
    CHECK_OK(reshard_items_add_file(items, (reshard_str){ "x", 1 }, file.data, file.size, &err));
    state.shards = shards;
    state.values = items;
    CHECK_OK(reshard_open_shards(&state, NULL, &live, &err));
    reshard_items_free(items);
    char *back = json_of(live, "x");
    assert_string_equal(back, json);
    reshard_free(back);
    reshard_close(live);
    reshard_shards_free(shards);
}

TEST(ranks_have_files)
{
    char path[4096], *json;
    size_t size;
    void *bytes = file_of_fixture(&size, &json);
    reshard_sharded *dict = dict_make(bytes, size), *result;
    reshard_sharded_object object = RESHARD_SHARDED_OBJECT_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    snprintf(path, sizeof(path), "%s/ranks", test_folder);
    CHECK_OK(dict_save(dict, path));
    for (int64_t as_files = 0; as_files < 3; as_files++) {
        reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
        options.as_files = as_files;
        CHECK_OK(reshard_load(NULL, path, dict, &options, NULL, &result, &err));
        CHECK_OK(reshard_sharded_object_at(result, 0, &object));
        CHECK_OK(reshard_sharded_value_at(result, 0, &value));
        assert_int_equal(reshard_sharded_value_count(result), 1);
        if (as_files) {
            assert_int_equal(object.json.size + value.json.size, 0);
            file_check(object.file, json);
            file_check(value.file, json);
            CHECK_OK(reshard_sharded_object_at(result, 1, &object));
            file_check(object.file, "[7]");
        } else {
            assert_null(object.file.data);
            assert_null(value.file.data);
            assert_string_equal(object.json.data, json);
            assert_string_equal(value.json.data, json);
        }
        reshard_sharded_free(result);
    }
    reshard_sharded_free(dict);
    reshard_free(bytes);
    reshard_free(json);
}

TEST(files_of_ranks_are_compared)
{
    char *json, *text;
    size_t size;
    void *bytes = file_of_fixture(&size, &json);
    reshard_sharded *first = dict_make(bytes, size), *same = dict_make(bytes, size), *other;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    CHECK_OK(reshard_sharded_compare_common(first, same, 1, &text, &err));
    assert_null(text);
    CHECK_OK(reshard_sharded_new(&other, &err));
    value.key = (reshard_str){ "state", 5 };
    value.json = (reshard_str){ "[[{\"random_rng_state\": 3}]]", 27 };
    CHECK_OK(reshard_sharded_add_value(other, &value, &err));
    CHECK_OK(reshard_sharded_compare_common(first, other, 1, &text, &err));
    assert_non_null(strstr(text, "Mismatched keys: [(('state',), object, object)]"));
    reshard_free(text);
    reshard_sharded_free(other);
    other = dict_make(bytes, size - 1);
    CHECK_OK(reshard_sharded_compare_common(first, other, 1, &text, &err));
    assert_non_null(strstr(text, "Mismatched keys: [(('state',), object, object)]"));
    reshard_free(text);
    const reshard_str named = { "state", 5 };
    CHECK_OK(reshard_sharded_remove_value(other, &named, 1, &err));
    CHECK_OK(reshard_sharded_compare_common(first, other, 1, &text, &err));
    assert_non_null(strstr(text, "Keys only on rank 0: [('state',)]"));
    reshard_free(text);
    const reshard_str member[] = { { "state", 5 }, { "x", 1 } };
    CHECK_OK(reshard_sharded_remove_value(same, member, 2, &err));
    CHECK_OK(reshard_sharded_compare_common(first, same, 1, &text, &err));
    assert_null(text);
    CHECK_OK(reshard_sharded_remove_value(same, member, 1, &err));
    assert_int_equal(reshard_sharded_value_count(same), 0);
    reshard_sharded_free(first);
    reshard_sharded_free(same);
    reshard_sharded_free(other);
    reshard_free(bytes);
    reshard_free(json);
}

/* ---- without memory ---- */

TEST(no_allocation_is_lost)
{
    int64_t item;
    char path[4096], *json;
    size_t size, file_size;
    void *bytes = file_of_fixture(&size, &json), *file;
    reshard_checkpoint *checkpoint = fixture_open(&item);
    reshard_sharded *dict = dict_make(bytes, size);
    unsigned long nth = 0, hits = 0;
    bool was_hit;
    snprintf(path, sizeof(path), "%s/faults", test_folder);
    do {
        nth = fail_next(nth);
        fail_malloc_at(nth);
        reshard_status status = reshard_item_file(checkpoint, (size_t)item, &file, &file_size, &err);
        was_hit = fail_malloc_was_hit();
        hits += was_hit;
        assert_int_equal(status, was_hit ? RESHARD_ERR_MEMORY : RESHARD_OK);
        if (!status)
            file_check((reshard_str){ file, file_size }, json);
        reshard_free(file);
    } while (was_hit);
    nth = 0;
    do {
        reshard_items *items = NULL;
        nth = fail_next(nth);
        fail_malloc_at(nth);
        reshard_status status = reshard_items_new(&items, &err);
        if (!status)
            status = reshard_items_copy(items, checkpoint, (size_t)item, (reshard_str){ NULL, 0 }, &err);
        if (!status)
            status = state_write(items, path);
        was_hit = fail_malloc_was_hit();
        hits += was_hit;
        reshard_items_free(items);
        assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY));
    } while (was_hit);
    nth = 0;
    do {
        nth = fail_next(nth);
        fail_malloc_at(nth);
        reshard_status status = dict_save(dict, path);
        was_hit = fail_malloc_was_hit();
        hits += was_hit;
        assert_true(status == RESHARD_OK || (was_hit && status == RESHARD_ERR_MEMORY));
    } while (was_hit);
    assert_true(hits > 30);
    reshard_close(checkpoint);
    reshard_sharded_free(dict);
    reshard_free(bytes);
    reshard_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST_IN_FOLDER(files_are_items), TEST_IN_FOLDER(tensors_inside_are_copied),
                                        TEST_IN_FOLDER(ranks_have_files), TEST_IN_FOLDER(files_of_ranks_are_compared),
                                        TEST_IN_FOLDER(no_allocation_is_lost) };
    return cmocka_run_group_tests_name("item files", tests, NULL, NULL);
}
