/* SPDX-License-Identifier: Apache-2.0 */
/* Items made as values, without JSON: written, read back, copied out of a checkpoint, and as those of live state. */
#include "check.h"

#include "reshard/writer.h"
#include "test_folder.h"

static reshard_error err;

static reshard_value_info info_of(int64_t kind, int64_t integer, double real, const char *text)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    info.kind = kind;
    info.integer = integer;
    info.real = real;
    info.text = (reshard_str){ text, text ? strlen(text) : 0 };
    return info;
}

static reshard_value *value_add(reshard_items *list, reshard_value *holder, const char *key, reshard_value_info info)
{
    reshard_value *made = NULL;
    CHECK_OK(reshard_items_add(list, holder, (reshard_str){ key, key ? strlen(key) : 0 }, &info, &made, &err));
    return made;
}

static reshard_items *items_make(void)
{
    reshard_items *list;
    CHECK_OK(reshard_items_new(&list, &err));
    reshard_value *args = value_add(list, NULL, "args", info_of(RESHARD_VALUE_DICT, 0, 0, NULL));
    value_add(list, args, "lr", info_of(RESHARD_VALUE_REAL, 0, 0.25, NULL));
    value_add(list, args, "name", info_of(RESHARD_VALUE_TEXT, 0, 0, "run"));
    reshard_value *betas = value_add(list, args, "betas", info_of(RESHARD_VALUE_LIST, 0, 0, NULL));
    for (int64_t i = 0; i < 6; i++)
        value_add(list, betas, NULL, info_of(RESHARD_VALUE_INT, i, 0, NULL));
    reshard_value_info tuple = info_of(RESHARD_VALUE_LIST, 0, 0, NULL);
    tuple.is_tuple = 1;
    reshard_value *pair = value_add(list, NULL, "pair", tuple);
    value_add(list, pair, NULL, info_of(RESHARD_VALUE_REAL, 0, 0.5, NULL));
    value_add(list, value_add(list, pair, NULL, info_of(RESHARD_VALUE_SET, 0, 0, NULL)), NULL, info_of(RESHARD_VALUE_INT, 7, 0, NULL));
    value_add(list, NULL, "done", info_of(RESHARD_VALUE_BOOL, 1, 0, NULL));
    value_add(list, NULL, "none", info_of(RESHARD_VALUE_NULL, 0, 0, NULL));
    value_add(list, NULL, "raw", info_of(RESHARD_VALUE_BYTES, 0, 0, "\377\1"));
    return list;
}

static reshard_value_info look(const reshard_checkpoint *opened, const reshard_value *value)
{
    reshard_value_info info = RESHARD_VALUE_INFO_INIT;
    CHECK_OK(reshard_value_look(opened, value, &info));
    return info;
}

/* A tuple of a number and a set, which JSON does not tell from lists. */
static void pair_check(const reshard_checkpoint *opened)
{
    const reshard_value *pair, *set, *member;
    CHECK_OK(reshard_item_value(opened, (size_t)reshard_item_find(opened, "pair", 4), &pair, &err));
    assert_int_equal(look(opened, pair).kind, RESHARD_VALUE_LIST);
    assert_int_equal(look(opened, pair).is_tuple, 1);
    CHECK_OK(reshard_value_at(opened, pair, 1, NULL, &set));
    assert_int_equal(look(opened, set).kind, RESHARD_VALUE_SET);
    assert_int_equal(look(opened, set).count, 1);
    CHECK_OK(reshard_value_at(opened, set, 0, NULL, &member));
    assert_int_equal(look(opened, member).integer, 7);
    CHECK_OK(reshard_item_value(opened, (size_t)reshard_item_find(opened, "args", 4), &pair, &err));
    assert_int_equal(look(opened, reshard_value_find(opened, pair, "betas", 5)).is_tuple, 0);
}

static void items_check(const reshard_checkpoint *opened)
{
    static const char *const expected[][2] = { { "args", "{\"lr\": 0.25, \"name\": \"run\", \"betas\": [0, 1, 2, 3, 4, 5]}" },
                                               { "done", "true" },
                                               { "none", "null" },
                                               { "raw", "{\"__bytes__\": \"ff01\"}" } };
    for (size_t i = 0; i < 4; i++) {
        char *json;
        size_t size;
        int64_t item = reshard_item_find(opened, expected[i][0], strlen(expected[i][0]));
        assert_true(item >= 0);
        CHECK_OK(reshard_item_json(opened, (size_t)item, &json, &size, &err));
        assert_string_equal(json, expected[i][1]);
        reshard_free(json);
    }
    pair_check(opened);
}

/* Writes items alone. */
static void items_write(const reshard_items *list, const char *path)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer *writer;
    options.to = "torch";
    input.values = list;
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
}

/* Live state has them too. */
static void live_items_check(const reshard_items *list)
{
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *live;
    reshard_shards *shards;
    CHECK_OK(reshard_shards_new(&shards, &err));
    state.shards = shards;
    state.values = list;
    CHECK_OK(reshard_open_shards(&state, NULL, &live, &err));
    items_check(live);
    reshard_close(live);
    reshard_shards_free(shards);
}

TEST(items_are_values)
{
    char path[128], copy[128];
    reshard_items *list = items_make(), *copied;
    reshard_checkpoint *opened;
    reshard_value_info object = info_of(RESHARD_VALUE_OBJECT, 0, 0, NULL), broken = info_of(RESHARD_VALUE_TEXT, 0, 0, "\377");
    snprintf(path, sizeof(path), "%s/items.pt", test_folder);
    snprintf(copy, sizeof(copy), "%s/copy.pt", test_folder);
    assert_int_equal(reshard_items_add(list, NULL, (reshard_str){ "x", 1 }, &object, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_items_add(list, NULL, (reshard_str){ "x", 1 }, &broken, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_items_add(list, NULL, (reshard_str){ "done", 4 }, &object, NULL, &err), RESHARD_ERR_USAGE);
    const reshard_value_info huge = info_of(RESHARD_VALUE_BIG_INT, 0, 0, NULL);
    CHECK_FAILS(reshard_items_add(list, NULL, (reshard_str){ "huge", 4 }, &huge, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "a big integer without bytes"));
    items_write(list, path);
    live_items_check(list);
    reshard_items_free(list);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    items_check(opened);
    CHECK_OK(reshard_items_new(&copied, &err));
    for (size_t i = 0; i < reshard_item_count(opened); i++)
        CHECK_OK(reshard_items_copy(copied, opened, i, (reshard_str){ NULL, 0 }, &err));
    CHECK_FAILS(reshard_items_copy(copied, opened, 0, (reshard_str){ NULL, 0 }, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "is there twice"));
    reshard_close(opened);
    items_write(copied, copy);
    reshard_items_free(copied);
    CHECK_OK(reshard_open(copy, NULL, &opened, &err));
    items_check(opened);
    reshard_close(opened);
}

int main(void)
{
    const struct CMUnitTest tests[] = { TEST_IN_FOLDER(items_are_values) };
    return cmocka_run_group_tests_name("items", tests, NULL, NULL);
}
