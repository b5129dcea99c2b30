/* SPDX-License-Identifier: Apache-2.0 */
/* What a writer's first part keeps of what it was opened with: anybody commits by it, and it is believed in nothing. */
#include "check.h"

#include "base/crc32.h"
#include "reshard/writer.h"
#include "test_folder.h"

#include <math.h>
#include <unistd.h>

static reshard_error err;
static char path[128];

static const reshard_state_item items[] = { { { "step", 4 }, { "12", 2 } }, { { "args", 4 }, { "{\"lr\": 0.5}", 11 } } };
static const int64_t shape[] = { 0, 3 };
static const reshard_writer_tensor tensor = { { "none", 4 }, "BF16", 2, shape };

static reshard_writer_input input_make(void)
{
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    input.tensors = &tensor;
    input.tensor_count = 1;
    input.items = items;
    input.item_count = 2;
    return input;
}

/* Knows nothing but the path. */
static reshard_status commit(void)
{
    return reshard_writer_commit(NULL, path, NULL, NULL, NULL, &err);
}

static size_t file_read(const char *name, uint8_t *bytes, size_t most)
{
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    size_t size = fread(bytes, 1, most, file);
    fclose(file);
    assert_true(size < most);
    return size;
}

static void file_write(const char *name, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* The item "step", as a file of torch.save. */
static void file_make(void **file, size_t *size)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = input_make();
    reshard_writer *writer;
    reshard_checkpoint *opened;
    options.to = "torch-dcp";
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    CHECK_OK(reshard_item_file(opened, (size_t)reshard_item_find(opened, "step", 4), file, size, &err));
    reshard_close(opened);
    assert_int_equal(test_tree_remove(path), 0);
}

/* Items as values, such as JSON cannot say, and as files; and parts that keep no declaration. */
TEST(parts_keep_what_they_were_opened_with)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = input_make();
    reshard_value_info bytes = RESHARD_VALUE_INFO_INIT, real = RESHARD_VALUE_INFO_INIT;
    reshard_items *values;
    reshard_writer *writer;
    reshard_checkpoint *opened;
    char *json;
    void *file;
    size_t size;
    file_make(&file, &size);
    bytes.kind = RESHARD_VALUE_BYTES;
    bytes.text = (reshard_str){ "\xff\0\x80", 3 };
    real.kind = RESHARD_VALUE_REAL;
    real.real = -INFINITY;
    CHECK_OK(reshard_items_new(&values, &err));
    CHECK_OK(reshard_items_add(values, NULL, (reshard_str){ "seed", 4 }, &bytes, NULL, &err));
    CHECK_OK(reshard_items_add(values, NULL, (reshard_str){ "least", 5 }, &real, NULL, &err));
    CHECK_OK(reshard_items_add_file(values, (reshard_str){ "again", 5 }, file, size, &err));
    reshard_free(file);
    input.values = values;
    options.to = "torch-dcp";
    options.part_count = 1;
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    reshard_items_free(values); /* they were copied */
    input.values = NULL;
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_OK(reshard_part_words(path, &json, &size, &err));
    assert_int_equal(size, 0);
    reshard_free(json);
    CHECK_OK(commit());
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    assert_int_equal(reshard_item_count(opened), 5);
    CHECK_OK(reshard_item_json(opened, (size_t)reshard_item_find(opened, "again", 5), &json, &size, &err));
    assert_string_equal(json, "12");
    reshard_free(json);
    CHECK_OK(reshard_item_json(opened, (size_t)reshard_item_find(opened, "seed", 4), &json, &size, &err));
    assert_string_equal(json, "{\"__bytes__\": \"ff0080\"}");
    reshard_free(json);
    CHECK_OK(reshard_item_json(opened, (size_t)reshard_item_find(opened, "least", 5), &json, &size, &err));
    assert_string_equal(json, "\"-inf\"");
    reshard_free(json);
    reshard_close(opened);
    options.part_words = (reshard_str){ "ours", 4 };
    options.overwrite = 1;
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_FAILS(commit(), RESHARD_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "their program commits them"));
}

/* Any byte of it: what is visible then was asked for, and what is not asked for is not visible. */
TEST(damaged_declarations_are_refused)
{
    static uint8_t whole[1 << 12], bytes[1 << 12];
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = input_make();
    reshard_writer *writer;
    char record[256];
    size_t refused = 0;
    snprintf(record, sizeof(record), "%s/.target.reshard-partial/.part-0-of-1", test_folder);
    options.to = "torch-dcp";
    options.no_sync = 1;
    options.part_count = 1;
    CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    const size_t size = file_read(record, whole, sizeof(whole)), words = (size_t)whole[24] + 256 * whole[25];
    assert_true(words > 60 && 28 + words < size);
    for (size_t i = 0; i < 2 * words; i++) {
        memcpy(bytes, whole, size);
        bytes[28 + i / 2] ^= i % 2 ? 0xFF : 1;
        uint32_t crc = crc32c(0, bytes, size - 4);
        memcpy(bytes + size - 4, &crc, 4);
        file_write(record, bytes, size);
        reshard_status status = commit();
        refused += status != RESHARD_OK;
        assert_int_equal(status == RESHARD_OK, access(path, F_OK) == 0);
        if (!status) {
            assert_int_equal(test_tree_remove(path), 0);
            CHECK_OK(reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err));
            CHECK_OK(reshard_writer_finish(writer, &err));
            reshard_writer_free(writer);
        }
    }
    assert_true(refused > words);
}

static int target_make(void **state)
{
    int failed = test_folder_make(state);
    snprintf(path, sizeof(path), "%s/target", test_folder);
    return failed;
}

#define WITH_TARGET(test) cmocka_unit_test_setup_teardown(test, target_make, test_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_TARGET(parts_keep_what_they_were_opened_with),
        WITH_TARGET(damaged_declarations_are_refused),
    };
    return cmocka_run_group_tests_name("writer_declaration", tests, NULL, NULL);
}
