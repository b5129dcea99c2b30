/* SPDX-License-Identifier: Apache-2.0 */
/* Names and missing tensors of a conversion, decided by the caller's functions. */
#include "check.h"

#include "reshard/reshard.h"

#include <stdlib.h>
#include <unistd.h>

static char work[TEST_FOLDER_SIZE], source_path[64], like_path[64], target_path[64];
static reshard_error err;

static void make_files(void)
{
    assert_non_null(test_mkdtemp(work));
    snprintf(source_path, sizeof(source_path), "%s/source.safetensors", work);
    snprintf(like_path, sizeof(like_path), "%s/like.safetensors", work);
    snprintf(target_path, sizeof(target_path), "%s/target.safetensors", work);
    test_write_safetensors(source_path, "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    test_write_safetensors(like_path,
                           "{\"m.w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"new\":{\"dtype\":\"I8\",\"shape\":[2],"
                           "\"data_offsets\":[4,6]},\"odd\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[6,7]}}", 7);
}

struct decisions {
    int renamed, asked, stops;
    char name[32];
};

static int rename_key(reshard_str key, reshard_str *out, void *context)
{
    struct decisions *decisions = context;
    decisions->renamed++;
    out->size = (size_t)snprintf(decisions->name, sizeof(decisions->name), "m.%.*s", (int)key.size, key.data);
    out->data = decisions->name;
    return decisions->stops;
}

static int choose(const reshard_tensor *tensor, int *what, double *value, void *context)
{
    struct decisions *decisions = context;
    decisions->asked++;
    assert_string_equal(tensor->dtype, "I8");
    *what = tensor->key.data[0] == 'n' ? RESHARD_MISSING_FILL : RESHARD_MISSING_LEAVE_OUT;
    *value = -3;
    return 0;
}

static reshard_status convert(struct decisions *decisions)
{
    reshard_checkpoint *source = NULL;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    CHECK_OK(reshard_open(source_path, NULL, &source, &err));
    options.like = like_path;
    options.rename = rename_key;
    options.choose_missing = choose;
    options.context = decisions;
    options.overwrite = 1;
    options.verify = 1;
    reshard_status status = reshard_convert(source, target_path, &options, NULL, NULL, &err);
    reshard_close(source);
    return status;
}

TEST(callers_name_tensors_and_decide_what_is_missing)
{
    struct decisions decisions = { 0 };
    reshard_checkpoint *made = NULL;
    signed char filled[2] = { 0 };
    make_files();
    CHECK_OK(convert(&decisions));
    assert_int_equal(decisions.renamed, 1);
    assert_int_equal(decisions.asked, 2);
    CHECK_OK(reshard_open(target_path, NULL, &made, &err));
    assert_int_equal(reshard_tensor_count(made), 2);
    assert_true(reshard_tensor_find(made, "m.w", 3) >= 0);
    int64_t found = reshard_tensor_find(made, "new", 3);
    assert_true(found >= 0);
    CHECK_OK(reshard_read_into(made, (size_t)found, NULL, NULL, NULL, filled, sizeof(filled), &err));
    assert_int_equal(filled[0], -3);
    assert_int_equal(filled[1], -3);
    reshard_close(made);
}

TEST(callers_stop_a_conversion)
{
    struct decisions decisions = { .stops = 1 };
    assert_int_equal(convert(&decisions), RESHARD_ERR_CANCELLED);
    assert_int_equal(decisions.renamed, 1);
    assert_int_equal(unlink(target_path), 0); /* of the test before: it stays as it was */
    unlink(source_path);
    unlink(like_path);
    rmdir(work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_name_tensors_and_decide_what_is_missing),
        cmocka_unit_test(callers_stop_a_conversion),
    };
    return cmocka_run_group_tests_name("naming", tests, NULL, NULL);
}
