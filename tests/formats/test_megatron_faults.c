/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation fails once while legacy Megatron checkpoints are opened, planned into another layout and written: an error, never worse.
 */
#include "check.h"

#include "fail_malloc.h"

#include "reshard/reshard.h"
#include "test_folder.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#define NTH_MAX 100000

static const struct {
    const char *source, *like, *layout;
} cases[] = {
    { "megatron-moe-legacy-tp2ep2etp1", NULL, "tp=1,pp=2,ep=2" },
    { "megatron-tied-legacy-tp2pp2", NULL, "tp=1,pp=2" },
    { "megatron-moe-gmm-legacy-tp2", "megatron-moe-gmm-legacy-ep2", NULL },
    { "megatron-repad-legacy-tp1", NULL, "tp=2" },
    { "megatron-optim-dense-legacy-pp2", NULL, "tp=2" },
    { "megatron-repad-dist-tp1", "megatron-repad-legacy-tp2", NULL },
    { "megatron-optim-dense-dpr-dp2", NULL, "tp=2,pp=2" },
    { "megatron-optim-old-gather-v0.12.3-dp2", "megatron-optim-old-modelspace-v0.12.3-tp2dp2", NULL },
    { "megatron-optim-old-modelspace-v0.14.0-dp2", "megatron-optim-dense-legacy-tp1", NULL },
    { "megatron-optim-moe-full-ep2", "megatron-optim-moe-legacy-ep2dp4", NULL },
    { "megatron-optim-plain-dist-tp1", "megatron-optim-plain-legacy-tp1", NULL },
    { "megatron-optim-tied-legacy-pp2dp2", "megatron-optim-dense-full-tp2dp2", NULL },
    { "megatron-optim-dense-legacy-pp2", "megatron-optim-dense-dpr-dp2", NULL },
    { "megatron-optim-moe-full-ep2", "megatron-optim-dense-dpr-dp2", "ep=2,dp=4" },
    { "megatron-optim-dense-full-tp2dp2", "megatron-optim-old-gather-v0.12.3-dp2", NULL },
    { "megatron-optim-dense-full-tp2dp2", "megatron-optim-dense-dpr-dp2", NULL },
};

static char work_path[TEST_FOLDER_SIZE];

static const char *fixture(const char *name, char out[4600])
{
    snprintf(out, 4600, "%s/megatron/%s/ckpt", test_fixtures(), name);
    if (access(out, R_OK) != 0)
        fail_msg("%s: no such fixture", out);
    return out;
}

static reshard_status use(const char *source, const char *like, const char *layout, const char *target, reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.to = like ? NULL : "megatron";
    options.like = like;
    options.layout = layout;
    options.no_sync = 1;
    run.threads = 1;
    reshard_status status = reshard_open(source, NULL, &checkpoint, err);
    if (!status)
        status = target ? reshard_convert(checkpoint, target, &options, &run, NULL, err)
                        : reshard_estimate(checkpoint, work_path, &options, &run, &report, err);
    reshard_report_release(&report);
    reshard_close(checkpoint);
    return status;
}

/* Allocations until the conversion is planned. */
static unsigned long planning(const char *source, const char *like, const char *layout)
{
    reshard_error err = { 0 };
    fail_malloc_at(NTH_MAX);
    CHECK_OK(use(source, like, layout, NULL, &err));
    unsigned long calls = fail_malloc_calls();
    assert_false(fail_malloc_was_hit());
    return calls;
}

/* With a target those behind planning, which fail where there is none. */
static void fail_each(const char *name, const char *source, const char *like, const char *layout, const char *target)
{
    unsigned long first = target ? planning(source, like, layout) : 0, nth = first;
    bool hit;
    do {
        reshard_error err = { 0 };
        nth = first + fail_next(nth - first);
        fail_malloc_at(nth);
        reshard_status status = use(source, like, layout, target, &err);
        hit = fail_malloc_was_hit();
        if (status && status != RESHARD_ERR_MEMORY && status != RESHARD_ERR_IO)
            fail_msg("%s, allocation %lu: status %d: %s", name, nth, status, err.message);
        if (target)
            test_tree_remove(target);
    } while (hit && nth < NTH_MAX);
    assert_true(nth - first > 10);
    print_message("# %s: allocations %lu to %lu\n", name, first + 1, nth - 1);
}

TEST(every_allocation_of_a_plan_may_fail)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char source[4600], like[4600];
        fail_each(cases[i].source, fixture(cases[i].source, source), cases[i].like ? fixture(cases[i].like, like) : NULL, cases[i].layout,
                  NULL);
    }
}

TEST(every_allocation_of_a_conversion_may_fail)
{
    char source[4600], like[4600], target[4200];
    snprintf(target, sizeof(target), "%s/target", work_path);
    fail_each("conversion", fixture("megatron-repad-legacy-tp1", source), NULL, "tp=2", target);
    fixture("megatron-optim-dense-full-tp2dp2", source);
    fail_each("gathered state", source, fixture("megatron-optim-old-gather-v0.12.3-dp2", like), NULL, target);
    fail_each("state by bucket", source, fixture("megatron-optim-dense-dpr-dp2", like), NULL, target);
}

static int set_up(void **state)
{
    (void)state;
    return test_mkdtemp(work_path) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    test_tree_remove(work_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_plan_may_fail),
        cmocka_unit_test(every_allocation_of_a_conversion_may_fail),
    };
    return cmocka_run_group_tests_name("megatron_faults", tests, set_up, tear_down);
}
