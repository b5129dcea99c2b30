/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the arguments of a run, with allocations failing one by one: a status, nothing lost, and the source has its own items
 * again. */
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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_allocation_may_fail) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
