/* SPDX-License-Identifier: Apache-2.0 */
/* Items as typed values, and one handle that many threads look at. Run with threads by `test_values threads`. */
#include "check.h"

#include "test_folder.h"

#include "reshard/reshard.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>

#define SMALL "torch-dcp/dcp-small/ckpt"
#define MEGATRON "megatron/megatron-sem-async/ckpt"
#define THREADS 8
#define DEPTH_MAX 6

static reshard_error err;

static reshard_checkpoint *open_fixture(const char *name)
{
    char path[4096];
    reshard_checkpoint *opened = NULL;
    snprintf(path, sizeof(path), "%s/%s", test_fixtures(), name);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

static const reshard_value *value_of_key(const reshard_checkpoint *checkpoint, const char *key)
{
    const reshard_value *value = NULL;
    int64_t item = reshard_item_find(checkpoint, key, strlen(key));
    assert_true(item >= 0);
    CHECK_OK(reshard_item_value(checkpoint, (size_t)item, &value, &err));
    return value;
}

static reshard_value_info look(const reshard_checkpoint *checkpoint, const reshard_value *value)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    CHECK_OK(reshard_value_look(checkpoint, value, &info));
    return info;
}

static bool is_text(reshard_value_info info, const char *text)
{
    return info.kind == RESHARD_VALUE_TEXT && info.text.size == strlen(text) && memcmp(info.text.data, text, info.text.size) == 0;
}

TEST(values_come_typed)
{
    reshard_checkpoint *checkpoint = open_fixture(SMALL);
    reshard_item item = RESHARD_ITEM_INIT;
    const reshard_value *member;
    char *json;
    size_t size, index = (size_t)reshard_item_find(checkpoint, "step", 4);
    CHECK_OK(reshard_item_at(checkpoint, index, &item));
    assert_string_equal(item.kind, "");
    reshard_value_info info = look(checkpoint, value_of_key(checkpoint, "step"));
    CHECK_OK(reshard_item_at(checkpoint, index, &item));
    assert_string_equal(item.kind, "int");
    assert_int_equal(info.kind, RESHARD_VALUE_INT);
    CHECK_OK(reshard_item_json(checkpoint, index, &json, &size, &err));
    assert_int_equal(strtoll(json, NULL, 10), info.integer);
    reshard_free(json);
    assert_int_equal(look(checkpoint, value_of_key(checkpoint, "cfg.name")).kind, RESHARD_VALUE_TEXT);
    const reshard_value *list = value_of_key(checkpoint, "cfg.list");
    info = look(checkpoint, list);
    assert_int_equal(info.kind, RESHARD_VALUE_LIST);
    assert_true(info.count > 0);
    for (size_t i = 0; i < info.count; i++)
        CHECK_OK(reshard_value_at(checkpoint, list, i, NULL, &member));
    CHECK_FAILS(reshard_value_at(checkpoint, list, info.count, NULL, &member), RESHARD_ERR_USAGE);
    assert_null(member);
    assert_null(reshard_value_find(checkpoint, list, "a", 1));
    reshard_close(checkpoint);
}

/* ---- the whole of a checkpoint, as a number ---- */

struct tally {
    const reshard_checkpoint *checkpoint;
    uint64_t sum;
    size_t kinds[RESHARD_VALUE_SET + 1];
    bool failed;
};

static void add_bytes(struct tally *tally, const void *bytes, size_t size)
{
    const uint8_t *next = bytes;
    for (size_t i = 0; i < size; i++)
        tally->sum = (tally->sum ^ next[i]) * UINT64_C(1099511628211);
}

static void add_value(struct tally *tally, const reshard_value *value, int depth)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    tally->failed |= reshard_value_look(tally->checkpoint, value, &info) != RESHARD_OK;
    tally->kinds[info.kind]++;
    add_bytes(tally, &info.kind, sizeof(info.kind));
    add_bytes(tally, &info.integer, sizeof(info.integer));
    add_bytes(tally, &info.real, sizeof(info.real));
    add_bytes(tally, info.text.data, info.text.size);
    for (size_t i = 0; i < info.count && depth < DEPTH_MAX; i++) {
        const reshard_value *key, *member;
        tally->failed |= reshard_value_at(tally->checkpoint, value, i, &key, &member) != RESHARD_OK;
        if (key)
            add_value(tally, key, depth + 1);
        add_value(tally, member, depth + 1);
    }
}

static int add_member(const reshard_item *member, const char *json, size_t size, void *context)
{
    struct tally *tally = context;
    reshard_item item = RESHARD_ITEM_INIT;
    add_bytes(tally, member->key.data, member->key.size);
    add_bytes(tally, json, json ? size : 0);
    return reshard_item_at(tally->checkpoint, 0, &item); /* callbacks may look, too */
}

static void add_item(struct tally *tally, size_t index)
{
    const reshard_checkpoint *checkpoint = tally->checkpoint;
    reshard_item item = RESHARD_ITEM_INIT;
    reshard_path_part part = RESHARD_PATH_PART_INIT;
    const reshard_value *value = NULL;
    char *json = NULL;
    size_t size = 0;
    tally->failed |= reshard_item_value(checkpoint, index, &value, NULL) || reshard_item_at(checkpoint, index, &item) ||
                     reshard_item_json(checkpoint, index, &json, &size, NULL) ||
                     reshard_item_members(checkpoint, index, add_member, tally, NULL);
    add_bytes(tally, item.key.data, item.key.size);
    add_bytes(tally, item.class_name.data, item.class_name.size);
    add_bytes(tally, json, size);
    reshard_free(json);
    for (size_t i = 0; i < reshard_item_path_count(checkpoint, index); i++) {
        tally->failed |= reshard_item_path_at(checkpoint, index, i, &part) != RESHARD_OK;
        add_bytes(tally, part.key.data, part.key.size);
    }
    if (value)
        add_value(tally, value, 0);
}

static void add_tensor(struct tally *tally, size_t index)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    tally->failed |= reshard_tensor_at(tally->checkpoint, index, &tensor) != RESHARD_OK;
    add_bytes(tally, tensor.key.data, tensor.key.size);
    add_bytes(tally, tensor.shape, (size_t)tensor.rank * sizeof(*tensor.shape));
    for (size_t i = 0; i < tensor.chunk_count; i++) {
        tally->failed |= reshard_chunk_at(tally->checkpoint, index, i, &chunk) != RESHARD_OK;
        add_bytes(tally, chunk.extent, (size_t)tensor.rank * sizeof(*chunk.extent));
        add_bytes(tally, chunk.file.data, chunk.file.size);
    }
}

static void *add_all(void *context)
{
    struct tally *tally = context;
    const size_t *order = NULL;
    tally->failed |= reshard_tensor_order(tally->checkpoint, &order, NULL) != RESHARD_OK;
    for (size_t i = 0; order && i < reshard_tensor_count(tally->checkpoint); i++)
        add_tensor(tally, order[i]);
    for (size_t i = 0; i < reshard_item_count(tally->checkpoint); i++)
        add_item(tally, i);
    return NULL;
}

TEST(all_kinds_of_values_are_met)
{
    reshard_checkpoint *checkpoint = open_fixture(MEGATRON);
    struct tally tally = { .checkpoint = checkpoint };
    add_all(&tally);
    assert_false(tally.failed);
    for (int kind = RESHARD_VALUE_NULL; kind <= RESHARD_VALUE_OBJECT; kind++) {
        if (!tally.kinds[kind] && kind != RESHARD_VALUE_BIG_INT)
            fail_msg("kind %d is not met", kind);
    }
    const reshard_value *metadata = value_of_key(checkpoint, "content_metadata");
    assert_int_equal(look(checkpoint, metadata).kind, RESHARD_VALUE_DICT);
    const reshard_value *key, *member;
    CHECK_OK(reshard_value_at(checkpoint, metadata, 0, &key, &member));
    reshard_value_info name = look(checkpoint, key);
    assert_ptr_equal(reshard_value_find(checkpoint, metadata, name.text.data, name.text.size), member);
    assert_false(is_text(name, "no such key"));
    assert_null(reshard_value_find(checkpoint, metadata, "no such key", 11));
    reshard_close(checkpoint);
}

/* What accessors gave stays good while values are read, and metadata grows. */
TEST(what_is_returned_lives_as_long_as_the_handle)
{
    reshard_checkpoint *checkpoint = open_fixture(MEGATRON);
    size_t count = reshard_tensor_count(checkpoint);
    reshard_tensor *tensors = calloc(count, sizeof(*tensors));
    struct tally before = { .checkpoint = checkpoint }, after = { .checkpoint = checkpoint };
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    verify.deep = 1;
    assert_non_null(tensors);
    for (size_t i = 0; i < count; i++) {
        tensors[i].struct_size = sizeof(tensors[i]);
        CHECK_OK(reshard_tensor_at(checkpoint, i, &tensors[i]));
        add_bytes(&before, tensors[i].key.data, tensors[i].key.size);
        add_bytes(&before, tensors[i].shape, (size_t)tensors[i].rank * sizeof(*tensors[i].shape));
    }
    CHECK_OK(reshard_verify(checkpoint, &verify, NULL, NULL, NULL, &err));
    for (size_t i = 0; i < count; i++) {
        add_bytes(&after, tensors[i].key.data, tensors[i].key.size);
        add_bytes(&after, tensors[i].shape, (size_t)tensors[i].rank * sizeof(*tensors[i].shape));
    }
    assert_true(before.sum == after.sum);
    free(tensors);
    reshard_close(checkpoint);
}

TEST(threads_share_a_handle)
{
    static const char *const fixtures[] = { SMALL, MEGATRON };
    for (size_t f = 0; f < sizeof(fixtures) / sizeof(fixtures[0]); f++) {
        reshard_checkpoint *checkpoint = open_fixture(fixtures[f]);
        struct tally tallies[THREADS] = { 0 };
        pthread_t threads[THREADS];
        for (size_t i = 0; i < THREADS; i++) {
            tallies[i].checkpoint = checkpoint;
            assert_int_equal(pthread_create(&threads[i], NULL, add_all, &tallies[i]), 0);
        }
        for (size_t i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        for (size_t i = 0; i < THREADS; i++) {
            assert_false(tallies[i].failed);
            assert_true(tallies[i].sum == tallies[0].sum);
        }
        reshard_close(checkpoint);
    }
}

static int stats_sink(size_t tensor, const reshard_tensor_stats *stats, void *context)
{
    assert_int_equal(tensor, 0);
    *(reshard_tensor_stats *)context = *stats;
    return 0;
}

TEST(statistics_are_of_finite_numbers_and_by_sign)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[9],\"data_offsets\":[0,36]}}";
    const float values[] = { -3, -0.5f, 1, 2, 2.5f, 300, INFINITY, NAN, 0 };
    const uint64_t size = sizeof(header) - 1;
    char path[64];
    reshard_checkpoint *checkpoint = NULL;
    reshard_tensor_stats stats = { 0 };
    snprintf(path, sizeof(path), "%s/w.safetensors", test_folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&size, sizeof(size), 1, file);
    fwrite(header, size, 1, file);
    fwrite(values, sizeof(values), 1, file);
    assert_int_equal(fclose(file), 0);
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    CHECK_OK(reshard_stats(checkpoint, NULL, NULL, stats_sink, &stats, &err));
    assert_true(stats.count == 9 && stats.nan_count == 1 && stats.inf_count == 1 && stats.zero_count == 1);
    assert_true(stats.min == -3 && stats.max == 300 && fabs(stats.mean - 302.0 / 7) < 1e-9);
    assert_true(fabs(stats.norm - sqrt(9 + 0.25 + 1 + 4 + 6.25 + 90000)) < 1e-9);
    for (int bin = 0; bin < RESHARD_STATS_BINS; bin++) {
        assert_int_equal(stats.negative[bin], bin == 126 || bin == 128);
        assert_int_equal(stats.positive[bin], bin == 127 || bin == 135 ? 1 : bin == 128 ? 2 : 0);
    }
    reshard_close(checkpoint);
}

/* Also of one number. */
TEST(statistics_of_parts_are_joined)
{
    reshard_tensor_stats into = RESHARD_TENSOR_STATS_INIT, part = RESHARD_TENSOR_STATS_INIT;
    into.count = part.count = 1;
    into.min = into.max = into.mean = into.norm = 3;
    part.min = part.max = part.mean = -4;
    part.norm = 4;
    assert_int_equal(reshard_stats_join(&into, &part), RESHARD_OK);
    assert_int_equal(into.count, 2);
    assert_true(into.min == -4 && into.max == 3 && into.mean == -0.5 && into.deviation == 3.5 && into.norm == 5);
    part.inf_count = 1; /* it has no finite number then */
    assert_int_equal(reshard_stats_join(&into, &part), RESHARD_OK);
    assert_true(into.count == 3 && into.mean == -0.5 && into.min == -4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_come_typed),
        cmocka_unit_test(all_kinds_of_values_are_met),
        TEST_IN_FOLDER(statistics_are_of_finite_numbers_and_by_sign),
        cmocka_unit_test(statistics_of_parts_are_joined),
        cmocka_unit_test(what_is_returned_lives_as_long_as_the_handle),
    };
    const struct CMUnitTest threads[] = { cmocka_unit_test(threads_share_a_handle) };
    if (argc > 1 && strcmp(argv[1], "threads") == 0)
        return cmocka_run_group_tests_name("shared handle", threads, NULL, NULL);
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
