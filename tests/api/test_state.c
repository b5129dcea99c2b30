/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards in memory: resharded in memory between random layouts against a naive model, saved in every writable format and loaded into other
 * layouts, and what is refused. Whole tensors are the model: each shard's values are taken from them, or compared with them.
 */
#include "check.h"

#include "reshard/state.h"
#include "tensor/box.h"

#include <inttypes.h>
#include <stdbool.h>
#include <unistd.h>

#define TENSORS_MAX 6
#define CASES 400
#define RANK_USED_MAX 4

static reshard_error err;
static uint64_t seed;

static int64_t choose(int64_t count)
{
    return (int64_t)(test_random(&seed) % (uint64_t)count);
}

/* A whole tensor of 2-byte elements. */
struct whole {
    char key[24];
    size_t rank;
    int64_t shape[RANK_USED_MAX], volume;
    uint16_t *values;
};

static void whole_make(struct whole *whole, size_t number, size_t rank_max)
{
    static const char *const names[] = {
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "norm.weight", "embed.weight", "head.weight"
    };
    strcpy(whole->key, names[number]);
    whole->rank = (size_t)choose((int64_t)rank_max + 1);
    whole->volume = 1;
    for (size_t i = 0; i < whole->rank; i++) {
        whole->shape[i] = 1 + choose(6);
        whole->volume *= whole->shape[i];
    }
    whole->values = calloc((size_t)whole->volume, 2);
    assert_non_null(whole->values);
    for (int64_t i = 0; i < whole->volume; i++)
        whole->values[i] = (uint16_t)test_random(&seed) & 0x3FFF;
}

static reshard_shard shard_of(const struct whole *whole, const int64_t *start, const int64_t *extent)
{
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ whole->key, strlen(whole->key) };
    shard.dtype = "bfloat16";
    shard.rank = whole->rank;
    shard.global_shape = whole->shape;
    shard.start = start;
    shard.extent = extent;
    return shard;
}

/* Number in the whole tensor of element `index` of a shard's box, in the order of the box. */
static int64_t global_of(const struct whole *whole, const reshard_shard *shard, int64_t index)
{
    int64_t number = 0, at[RANK_USED_MAX];
    for (size_t i = whole->rank; i-- > 0; index /= shard->extent[i])
        at[i] = index % shard->extent[i] + shard->start[i];
    for (size_t i = 0; i < whole->rank; i++)
        number = number * whole->shape[i] + at[i];
    return number;
}

/* Adds a shard with values of its own: the tensor's, or a mark. */
static void shard_put(reshard_shards *shards, const struct whole *whole, reshard_shard shard, bool has_values)
{
    int64_t volume = 1;
    for (size_t i = 0; i < whole->rank; i++)
        volume *= shard.extent[i];
    int64_t begin = shard.is_flattened ? shard.flat_begin : 0, end = shard.is_flattened ? shard.flat_end : volume;
    if (begin == end)
        return;
    uint16_t *values = malloc((size_t)(end - begin) * 2);
    assert_non_null(values);
    for (int64_t i = begin; i < end; i++)
        values[i - begin] = has_values ? whole->values[global_of(whole, &shard, i)] : 0xFFFF;
    shard.data = values;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
}

/* The box as it is, twice, or as flat runs. */
static void box_put(reshard_shards *shards, const struct whole *whole, const int64_t *start, const int64_t *extent, bool has_values)
{
    reshard_shard shard = shard_of(whole, start, extent);
    int64_t way = choose(4), volume = 1;
    for (size_t i = 0; i < whole->rank; i++)
        volume *= extent[i];
    if (way < 2) {
        for (int64_t i = 0; i <= way; i++)
            shard_put(shards, whole, shard, has_values);
        return;
    }
    int64_t cut = choose(volume + 1);
    shard.is_flattened = 1;
    shard.flat_end = cut;
    shard_put(shards, whole, shard, has_values);
    shard.flat_begin = cut;
    shard.flat_end = volume;
    shard_put(shards, whole, shard, has_values);
}

/* Cuts a tensor into boxes by halving, at random. */
static void whole_put(reshard_shards *shards, const struct whole *whole, const int64_t *start, const int64_t *extent, int depth,
                      bool has_values)
{
    int64_t inner_start[RANK_USED_MAX], inner_extent[RANK_USED_MAX];
    size_t axis = whole->rank ? (size_t)choose((int64_t)whole->rank) : 0;
    if (!whole->rank || depth == 0 || extent[axis] < 2 || choose(3) == 0) {
        box_put(shards, whole, start, extent, has_values);
        return;
    }
    int64_t cut = 1 + choose(extent[axis] - 1);
    memcpy(inner_start, start, sizeof(inner_start));
    memcpy(inner_extent, extent, sizeof(inner_extent));
    inner_extent[axis] = cut;
    whole_put(shards, whole, inner_start, inner_extent, depth - 1, has_values);
    inner_start[axis] += cut;
    inner_extent[axis] = extent[axis] - cut;
    whole_put(shards, whole, inner_start, inner_extent, depth - 1, has_values);
}

static reshard_shards *layout_new(const struct whole *wholes, size_t count, bool has_values)
{
    static const int64_t origin[RANK_USED_MAX];
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < count; i++) {
        int64_t extent[RANK_USED_MAX];
        memcpy(extent, wholes[i].shape, sizeof(extent));
        whole_put(shards, &wholes[i], origin, extent, 3, has_values);
    }
    return shards;
}

static void layout_free(reshard_shards *shards)
{
    for (size_t i = 0; i < reshard_shards_count(shards); i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        CHECK_OK(reshard_shards_at(shards, i, &shard));
        free(shard.data);
    }
    reshard_shards_free(shards);
}

static const struct whole *whole_find(const struct whole *wholes, reshard_str key)
{
    while (strlen(wholes->key) != key.size || memcmp(wholes->key, key.data, key.size) != 0)
        wholes++;
    return wholes;
}

static void layout_check(const reshard_shards *shards, const struct whole *wholes)
{
    for (size_t i = 0; i < reshard_shards_count(shards); i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        CHECK_OK(reshard_shards_at(shards, i, &shard));
        const struct whole *whole = whole_find(wholes, shard.key);
        const uint16_t *values = shard.data;
        int64_t begin = shard.is_flattened ? shard.flat_begin : 0, end = shard.is_flattened ? shard.flat_end : 1;
        for (size_t axis = 0; !shard.is_flattened && axis < shard.rank; axis++)
            end *= shard.extent[axis];
        for (int64_t at = begin; at < end; at++) {
            if (values[at - begin] != whole->values[global_of(whole, &shard, at)])
                fail_msg("'%s', shard %zu, element %" PRId64, whole->key, i, at);
        }
    }
}

static reshard_checkpoint *layout_open(const reshard_shards *shards, const reshard_state_item *items, size_t item_count)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_state state = RESHARD_STATE_INIT;
    state.shards = shards;
    state.items = items;
    state.item_count = item_count;
    CHECK_OK(reshard_open_shards(&state, NULL, &checkpoint, &err));
    return checkpoint;
}

TEST(any_layout_becomes_any_other_in_memory)
{
    for (uint64_t number = 1; number <= CASES; number++) {
        struct whole wholes[TENSORS_MAX];
        seed = number;
        size_t count = 1 + (size_t)choose(TENSORS_MAX);
        for (size_t i = 0; i < count; i++)
            whole_make(&wholes[i], i, RANK_USED_MAX);
        reshard_shards *source = layout_new(wholes, count, true), *target = layout_new(wholes, count, false);
        reshard_checkpoint *checkpoint = layout_open(source, NULL, 0);
        reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
        run.memory_bytes = 1 << 20;
        CHECK_OK(reshard_load_shards(checkpoint, target, &run, &err));
        layout_check(target, wholes);
        reshard_close(checkpoint);
        layout_free(source);
        layout_free(target);
        for (size_t i = 0; i < count; i++)
            free(wholes[i].values);
    }
}

/* ---- files ---- */

static void save_and_load(const char *format, const reshard_checkpoint *live, const struct whole *wholes, size_t count, const char *work)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_checkpoint *saved = NULL;
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", work, format);
    options.to = format;
    options.verify = 1;
    CHECK_OK(reshard_convert((reshard_checkpoint *)(uintptr_t)live, path, &options, NULL, &report, &err));
    reshard_report_release(&report);
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    reshard_shards *target = layout_new(wholes, count, false);
    CHECK_OK(reshard_load_shards(saved, target, NULL, &err));
    layout_check(target, wholes);
    layout_free(target);
    reshard_close(saved);
}

TEST(shards_are_saved_in_every_format_and_loaded_into_another_layout)
{
    static const char *const formats[] = { "safetensors", "hf", "torch", "torch-dcp", "torch_dist", "zarr", "paddle-flex" };
    char work[TEST_FOLDER_SIZE], command[64];
    struct whole wholes[TENSORS_MAX];
    const reshard_state_item items[] = { { { "step", 4 }, { "12", 2 } }, { { "args", 4 }, { "{\"lr\": 0.5}", 11 } } };
    assert_non_null(test_mkdtemp(work));
    seed = 77;
    for (size_t i = 0; i < TENSORS_MAX; i++)
        whole_make(&wholes[i], i, 2);
    reshard_shards *source = layout_new(wholes, TENSORS_MAX, true);
    reshard_checkpoint *live = layout_open(source, items, 2);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        save_and_load(formats[i], live, wholes, TENSORS_MAX, work);
    reshard_close(live);
    layout_free(source);
    for (size_t i = 0; i < TENSORS_MAX; i++)
        free(wholes[i].values);
    snprintf(command, sizeof(command), "rm -r %s", work);
    assert_int_equal(system(command), 0);
}

TEST(items_are_typed)
{
    const reshard_state_item items[] = { { { "step", 4 }, { "12", 2 } } }, broken[] = { { { "step", 4 }, { "{", 1 } } };
    reshard_state live = RESHARD_STATE_INIT;
    reshard_checkpoint *checkpoint = NULL;
    const reshard_value *value = NULL;
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    checkpoint = layout_open(shards, items, 1);
    assert_string_equal(reshard_checkpoint_format(checkpoint), "memory");
    CHECK_OK(reshard_item_value(checkpoint, 0, &value, &err));
    CHECK_OK(reshard_value_look(checkpoint, value, &info));
    assert_int_equal(info.kind, RESHARD_VALUE_INT);
    reshard_close(checkpoint);
    live.shards = shards;
    live.items = broken;
    live.item_count = 1;
    assert_int_not_equal(reshard_open_shards(&live, NULL, &checkpoint, &err), RESHARD_OK);
    assert_null(checkpoint);
    assert_non_null(strstr(err.message, "step"));
    reshard_shards_free(shards);
}

/* ---- what is refused ---- */

struct part {
    int64_t start, extent;
    const char *dtype;
    int64_t length;
};

/* Opens row parts of a vector of 8; the status. */
static reshard_status open_parts(const struct part *parts, size_t count, reshard_checkpoint **out)
{
    static uint16_t values[8];
    reshard_state state = RESHARD_STATE_INIT;
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    for (size_t i = 0; i < count; i++) {
        reshard_shard shard = RESHARD_SHARD_INIT;
        shard.key = (reshard_str){ "w", 1 };
        shard.dtype = parts[i].dtype;
        shard.rank = 1;
        shard.global_shape = &parts[i].length;
        shard.start = &parts[i].start;
        shard.extent = &parts[i].extent;
        shard.data = values;
        CHECK_OK(reshard_shards_add(shards, &shard, &err));
    }
    state.shards = shards;
    reshard_status status = reshard_open_shards(&state, NULL, out, &err);
    reshard_shards_free(shards);
    return status;
}

TEST(shards_that_are_no_whole_are_refused_by_name)
{
    reshard_checkpoint *checkpoint;
    const struct part gap[] = { { 0, 3, "BF16", 8 }, { 5, 3, "BF16", 8 } }, overlap[] = { { 0, 5, "BF16", 8 }, { 3, 5, "BF16", 8 } },
                      types[] = { { 0, 4, "BF16", 8 }, { 4, 4, "F16", 8 } }, shapes[] = { { 0, 4, "BF16", 8 }, { 4, 4, "BF16", 9 } };
    const struct part *const wrong[] = { gap, overlap, types, shapes };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(open_parts(wrong[i], 2, &checkpoint), RESHARD_ERR_FORMAT);
        assert_null(checkpoint);
        assert_non_null(strstr(err.message, "'w'"));
        assert_true(wrong[i] != overlap || strstr(err.message, "[3:8] in 'shard 1'"));
    }
}

static reshard_status load_one(const reshard_checkpoint *checkpoint, const char *key, int64_t length)
{
    uint16_t values[16];
    const int64_t start = 0, extent = 8;
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = "BF16";
    shard.rank = 1;
    shard.global_shape = &length;
    shard.extent = &extent;
    shard.start = &start;
    shard.data = values;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    reshard_status status = reshard_load_shards(checkpoint, shards, NULL, &err);
    reshard_shards_free(shards);
    return status;
}

TEST(what_the_checkpoint_lacks_is_named)
{
    const struct part whole = { 0, 8, "BF16", 8 };
    reshard_checkpoint *checkpoint;
    CHECK_OK(open_parts(&whole, 1, &checkpoint));
    CHECK_OK(load_one(checkpoint, "w", 8));
    assert_int_equal(load_one(checkpoint, "v", 8), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'v'"));
    assert_int_equal(load_one(checkpoint, "w", 9), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'w'"));
    reshard_close(checkpoint);
}

TEST(null_is_refused)
{
    reshard_state live = RESHARD_STATE_INIT;
    reshard_checkpoint *checkpoint;
    assert_int_equal(reshard_open_shards(NULL, NULL, &checkpoint, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_open_shards(&live, NULL, &checkpoint, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_open_shards(&live, NULL, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_load_shards(NULL, NULL, NULL, &err), RESHARD_ERR_USAGE);
}

/* The same tensor in memory by rows, and by columns with room between them. */
TEST(values_lie_with_strides)
{
    const int64_t shape[] = { 3, 4 }, start[] = { 0, 0 }, by_column[] = { 1, 5 }, twice[] = { 1, 1 };
    uint16_t rows[12], columns[20] = { 0 }, back[12] = { 0 };
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_state live = RESHARD_STATE_INIT;
    reshard_checkpoint *checkpoint;
    shard.key = (reshard_str){ "w", 1 };
    shard.dtype = "U16";
    shard.rank = 2;
    shard.global_shape = shard.extent = shape;
    shard.start = start;
    for (int i = 0; i < 12; i++)
        columns[i % 4 * 5 + i / 4] = rows[i] = (uint16_t)(i + 1);
    for (int strided_first = 0; strided_first < 2; strided_first++) {
        reshard_shards *from, *to;
        CHECK_OK(reshard_shards_new(&from, &err));
        CHECK_OK(reshard_shards_new(&to, &err));
        shard.data = strided_first ? (void *)columns : (void *)rows;
        shard.strides = strided_first ? by_column : NULL;
        CHECK_OK(reshard_shards_add(from, &shard, &err));
        shard.data = strided_first ? (void *)back : (void *)columns;
        shard.strides = strided_first ? NULL : by_column;
        CHECK_OK(reshard_shards_add(to, &shard, &err));
        if (!strided_first)
            memset(columns, 0, sizeof(columns));
        live.shards = from;
        CHECK_OK(reshard_open_shards(&live, NULL, &checkpoint, &err));
        CHECK_OK(reshard_load_shards(checkpoint, to, NULL, &err));
        for (int i = 0; i < 12; i++)
            assert_int_equal(columns[i % 4 * 5 + i / 4], i + 1);
        reshard_close(checkpoint);
        reshard_shards_free(from);
        reshard_shards_free(to);
    }
    assert_memory_equal(back, rows, sizeof(rows));
    assert_int_equal(columns[3], 0);
    reshard_shards *refused;
    CHECK_OK(reshard_shards_new(&refused, &err));
    shard.strides = twice;
    CHECK_FAILS(reshard_shards_add(refused, &shard, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "strides"));
    reshard_shards_free(refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_becomes_any_other_in_memory),
        cmocka_unit_test(shards_are_saved_in_every_format_and_loaded_into_another_layout),
        cmocka_unit_test(items_are_typed),
        cmocka_unit_test(shards_that_are_no_whole_are_refused_by_name),
        cmocka_unit_test(what_the_checkpoint_lacks_is_named),
        cmocka_unit_test(values_lie_with_strides),
        cmocka_unit_test(null_is_refused),
    };
    return cmocka_run_group_tests_name("state", tests, NULL, NULL);
}
