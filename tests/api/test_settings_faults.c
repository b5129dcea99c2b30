/* SPDX-License-Identifier: Apache-2.0 */
/* Settings of a conversion, with allocations failing one by one: a status, nothing lost. Of config.json of the arguments of a run the
 * source has its own items again; tensors that the source lacks are made up, all of them, or there is an error. */
#include "check.h"
#include "fail_malloc.h"

#include "reshard/reshard.h"

#define SOURCE "megatron/megatron-dense-legacy-tp1/ckpt"

static reshard_status plan_once(reshard_checkpoint *checkpoint, const char *family, size_t *config_notes, reshard_error *err)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    *config_notes = 0;
    options.to = "hf";
    map.rules = family;
    options.map = &map;
    reshard_status status = reshard_estimate(checkpoint, "target", &options, NULL, &report, err);
    reshard_note note = RESHARD_NOTE_INIT;
    for (size_t i = 0; reshard_report_note_at(&report, i, &note) == RESHARD_OK; i++)
        *config_notes += note.what == RESHARD_NOTE_CHANGED && strstr(note.text.data, "config.json") != NULL;
    reshard_report_release(&report);
    return status;
}

TEST(every_allocation_may_fail)
{
    char path[4096];
    size_t notes;
    reshard_error err = { 0 };
    reshard_checkpoint *checkpoint = NULL;
    snprintf(path, sizeof(path), "%s/%s", test_fixtures(), SOURCE);
    CHECK_OK(reshard_open(path, NULL, &checkpoint, &err));
    size_t items = reshard_item_count(checkpoint);
    for (unsigned long nth = 1;; nth++) {
        fail_malloc_at(nth);
        reshard_status status = plan_once(checkpoint, "auto", &notes, &err);
        bool was_hit = fail_malloc_was_hit();
        if (status ? status != RESHARD_ERR_MEMORY : notes != 2)
            fail_msg("allocation %lu: status %d: %s, %zu notes", nth, status, err.message, notes);
        assert_int_equal(reshard_item_count(checkpoint), items);
        if (!was_hit)
            break;
    }
    CHECK_FAILS(plan_once(checkpoint, "qwen3", &notes, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_map_options.rules says 'qwen3', but the model is one of llama"));
    assert_int_equal(reshard_item_count(checkpoint), items);
    reshard_close(checkpoint);
}

static reshard_status make_up(reshard_checkpoint *source, const char *like, const char *missing, uint64_t *tensors, reshard_error *err)
{
    static const char *const dtypes[] = { "c=bf16", NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.like = like;
    options.missing = missing;
    options.dtypes = dtypes;
    reshard_status status = reshard_estimate(source, NULL, &options, NULL, &report, err);
    *tensors = report.tensors;
    reshard_report_release(&report);
    return status;
}

#define VALUES(name, begin, end) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[" begin "," end "]}"

TEST(what_is_made_up_is_all_there_or_an_error)
{
    char root[TEST_FOLDER_SIZE], one[64], two[64];
    reshard_error err = { 0 };
    reshard_checkpoint *source = NULL;
    uint64_t tensors;
    assert_non_null(test_mkdtemp(root));
    snprintf(one, sizeof(one), "%s/one.safetensors", root);
    snprintf(two, sizeof(two), "%s/two.safetensors", root);
    test_write_safetensors(one, "{" VALUES("a", "0", "8") "}", 8);
    test_write_safetensors(two, "{" VALUES("a", "0", "8") "," VALUES("b", "8", "16") "," VALUES("c", "16", "24") "}", 24);
    CHECK_OK(reshard_open(one, NULL, &source, &err));
    const char *const missing[] = { "zeros", "2.5", two };
    for (int i = 0; i < 3; i++) {
        bool was_hit = true;
        for (unsigned long nth = 1; was_hit; nth++) {
            fail_malloc_at(nth);
            reshard_status status = make_up(source, two, missing[i], &tensors, &err);
            was_hit = fail_malloc_was_hit();
            if (status ? status != RESHARD_ERR_MEMORY || !was_hit : tensors != 3)
                fail_msg("%s, allocation %lu: status %d: %s, %ju tensors", missing[i], nth, status, err.message, (uintmax_t)tensors);
        }
    }
    reshard_close(source);
    assert_int_equal(test_tree_remove(root), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_may_fail),
                                        cmocka_unit_test(what_is_made_up_is_all_there_or_an_error) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
