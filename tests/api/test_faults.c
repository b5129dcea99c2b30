/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever fails, at whichever call: a status and a message, no crash, no leak, and never half a target. */
#include "check.h"
#include "fail_io.h"
#include "fail_malloc.h"

#include "reshard/reshard.h"
#include "test_folder.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"
#define NTH_MAX 200000

static char source_path[4096], work_path[TEST_FOLDER_SIZE], target_path[4200], file_path[4200];

static int note_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor;
    unsigned *sum = context;
    for (; *hex; hex++)
        *sum = *sum * 31 + (unsigned char)*hex;
    return 0;
}

static reshard_status hash_of(const char *path, unsigned *sum, reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    *sum = 0;
    reshard_status status = reshard_open(path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_hash(checkpoint, "xxh3", NULL, note_hash, sum, err);
    reshard_close(checkpoint);
    return status;
}

static reshard_status read_once(reshard_error *err)
{
    unsigned sum;
    return hash_of(source_path, &sum, err);
}

static reshard_status verify_once(reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    options.deep = 1;
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_verify(checkpoint, &options, NULL, NULL, NULL, err);
    reshard_close(checkpoint);
    return status;
}

static reshard_status convert_to(const char *path, const char *to, reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    options.to = to;
    run.threads = 2;
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_convert(checkpoint, path, &options, &run, NULL, err);
    reshard_close(checkpoint);
    return status;
}

static reshard_status convert_hf(reshard_error *err)
{
    return convert_to(target_path, "hf", err);
}

static reshard_status convert_torch(reshard_error *err)
{
    return convert_to(file_path, "torch", err);
}

static reshard_status convert_dcp(reshard_error *err)
{
    return convert_to(target_path, "torch-dcp", err);
}

static int ignore_diagnoses(const char *diagnoses, size_t error_count, void *context)
{
    (void)diagnoses, (void)error_count, (void)context;
    return 0;
}

/* Two texts that cut, turn, stack and cast, and in the end give what was there. */
static reshard_status convert_mapped(reshard_error *err)
{
    static const char there[] = "w^T -> t\ni -> p0, p1, p2, unstack=0\nv.x -> u, dtype=\"float32\"\nzeros -> z0, z1, axis=1\n";
    static const char back[] = "t^T -> w\np0, p1, p2 -> i, stack=0\nu -> v.x, dtype=\"bfloat16\"\nz0, z1 -> zeros, axis=1\n";
    const reshard_map_text texts[] = { { "there", there, sizeof(there) - 1 }, { "back", back, sizeof(back) - 1 } };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *checkpoint = NULL;
    map.texts = texts;
    map.text_count = 2;
    map.diagnose = ignore_diagnoses;
    options.to = "torch-dcp";
    options.map = &map;
    options.verify = 1;
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_convert(checkpoint, target_path, &options, NULL, NULL, err);
    reshard_close(checkpoint);
    return status;
}

/* A relation that is recognised, and a reference whose tensors are partly kept. */
static reshard_status plan_related(reshard_error *err)
{
    static const char text[] = "#: from hf\n#: to torch_dist\n#: family small\n#: keys w big !none\n#: ratio half w 1 big 0\n"
                               "#: below m. o.\n#: states o.$STATE.$NAME o.m.$NAME.$STATE\n#: alias .a. .b.\nw -> `x`\n";
    static const char kept[] = "w -> big\n_ -> i\n";
    const reshard_map_text own = { "own.map", text, sizeof(text) - 1 }, statements = { "-m", kept, sizeof(kept) - 1 };
    reshard_map_options related = RESHARD_MAP_OPTIONS_INIT, like = RESHARD_MAP_OPTIONS_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *checkpoint = NULL;
    reshard_report report = RESHARD_REPORT_INIT;
    related.rules_text = &own;
    options.to = "torch_dist";
    options.map = &related;
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_estimate(checkpoint, NULL, &options, NULL, &report, err);
    reshard_report_release(&report);
    like.texts = &statements;
    like.text_count = 1;
    options.map = &like;
    options.to = "hf";
    options.like = source_path;
    if (!status) {
        status = reshard_estimate(checkpoint, NULL, &options, NULL, &report, err);
        reshard_report_release(&report);
        status = status == RESHARD_ERR_USAGE ? RESHARD_OK : status; /* shapes differ, and the diagnosis says so */
    }
    reshard_close(checkpoint);
    return status;
}

static reshard_status diff_mapped(reshard_error *err)
{
    static const char text[] = "w -> a, b, c, d, e, f, g, axis=1\na, b, c, d, e, f, g -> w, axis=1\n";
    const reshard_map_text statements = { "-m", text, sizeof(text) - 1 };
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    reshard_checkpoint *a = NULL, *b = NULL;
    map.texts = &statements;
    map.text_count = 1;
    options.map = &map;
    reshard_status status = reshard_open(source_path, NULL, &a, err);
    if (!status)
        status = reshard_open(source_path, NULL, &b, err);
    if (!status)
        status = reshard_diff(a, b, &options, NULL, NULL, NULL, err);
    reshard_close(a);
    reshard_close(b);
    return status;
}

static int stats_told(size_t tensor, const reshard_tensor_stats *stats, void *context)
{
    (void)tensor;
    *(uint64_t *)context += stats->count;
    return 0;
}

static reshard_status stats_once(reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    uint64_t count = 0;
    reshard_status status = reshard_open(source_path, NULL, &checkpoint, err);
    if (!status)
        status = reshard_stats(checkpoint, NULL, NULL, stats_told, &count, err);
    assert_true(status || count > 0);
    reshard_close(checkpoint);
    return status;
}

/*
 * A run that succeeded leaves the whole target, one that failed none: or, if only the last sync failed, after the rename, the whole.
 */
static void check_target(reshard_status status, const char *message, const char *path, unsigned expected)
{
    reshard_error err = { 0 };
    struct stat info;
    unsigned sum = 0;
    bool exists = stat(path, &info) == 0;
    reshard_status read = exists ? hash_of(path, &sum, &err) : RESHARD_OK;
    test_tree_remove(path);
    if (!exists && !status)
        fail_msg("success, and no target");
    if (exists && (read || sum != expected))
        fail_msg("status %d (%s), and the target is not whole: %s", status, message, err.message);
}

static const struct {
    const char *what;
    reshard_status (*run)(reshard_error *err);
    const char *target;
} operations[] = {
    { "read", read_once, NULL },          { "verify", verify_once, NULL },
    { "convert to hf", convert_hf, target_path }, { "convert to torch", convert_torch, file_path },
    { "convert to torch-dcp", convert_dcp, target_path },
    { "convert through mappings", convert_mapped, target_path },
    { "plan with rules", plan_related, NULL }, { "diff through a mapping", diff_mapped, NULL },
    { "statistics", stats_once, NULL },
};

static unsigned expected_sum(void)
{
    reshard_error err = { 0 };
    unsigned sum;
    CHECK_OK(hash_of(source_path, &sum, &err));
    return sum;
}

TEST(every_allocation_may_fail)
{
    unsigned expected = expected_sum();
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        unsigned long nth = 0;
        bool hit;
        do {
            reshard_error err = { 0 };
            fail_malloc_at(nth = fail_next(nth));
            reshard_status status = operations[i].run(&err);
            hit = fail_malloc_was_hit();
            if (status && status != RESHARD_ERR_MEMORY && status != RESHARD_ERR_IO)
                fail_msg("%s, allocation %lu: status %d: %s", operations[i].what, nth, status, err.message);
            if (operations[i].target)
                check_target(status, err.message, operations[i].target, expected);
        } while (hit && nth < NTH_MAX);
        print_message("# %s: up to %lu allocations\n", operations[i].what, nth - 1);
    }
}

static void fail_every_io(int error_number, bool is_sticky)
{
    unsigned expected = expected_sum();
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        unsigned long nth = 0;
        bool hit;
        do {
            reshard_error err = { 0 };
            fail_io_at(nth = fail_next(nth), error_number, is_sticky);
            reshard_status status = operations[i].run(&err);
            hit = fail_io_was_hit();
            if (status && !err.message[0])
                fail_msg("%s, call %lu: status %d without a message", operations[i].what, nth, status);
            if (operations[i].target)
                check_target(status, err.message, operations[i].target, expected);
        } while (hit && nth < NTH_MAX);
        print_message("# %s: up to %lu calls\n", operations[i].what, nth - 1);
    }
}

TEST(every_file_operation_may_fail)
{
    fail_every_io(EIO, false);
}

TEST(the_disk_may_be_full_from_any_moment_on)
{
    fail_every_io(ENOSPC, true);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    if (!test_mkdtemp(work_path))
        return -1;
    snprintf(target_path, sizeof(target_path), "%s/target", work_path);
    snprintf(file_path, sizeof(file_path), "%s/target.pt", work_path);
    return 0;
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
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_file_operation_may_fail),
        cmocka_unit_test(the_disk_may_be_full_from_any_moment_on),
    };
    return cmocka_run_group_tests_name("faults", tests, set_up, tear_down);
}
