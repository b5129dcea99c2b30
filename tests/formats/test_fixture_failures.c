/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to the files fail, one at a time, while a checkpoint is read, verified, planned into its own format, and written into another: that
 * is told as the disk's error, and nothing is visible then, or all comes of it that comes of it without. So do allocations. Of the fixtures
 * that open a part is drawn, a larger one by `make faults` (RESHARD_MANY_FIXTURES).
 */
#include "check.h"

#include "fail_io.h"
#include "fail_malloc.h"
#include "test_folder.h"

#include "reshard/reshard.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* What there are at least: fewer would say that something is not asked any more. */
#define CHECKPOINTS_MIN 450

static reshard_run_options one_thread = RESHARD_RUN_OPTIONS_INIT;

static void add_text(unsigned *sum, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        *sum = *sum * 31 + (unsigned char)text[i];
}

static int add_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor;
    add_text(context, hex, strlen(hex));
    return 0;
}

static reshard_status read_values(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err)
{
    reshard_status status = reshard_hash(checkpoint, "xxh3", &one_thread, add_hash, sum, err);
    for (size_t i = 0; !status && i < reshard_item_count(checkpoint); i++) {
        char *json;
        size_t size;
        status = reshard_item_json(checkpoint, i, &json, &size, err);
        if (!status)
            add_text(sum, json, size);
        free(json);
    }
    return status;
}

static int add_finding(const reshard_finding *finding, void *context)
{
    add_text(context, finding->text, strlen(finding->text));
    return 0;
}

static reshard_status verify(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err)
{
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    options.deep = 1;
    return reshard_verify(checkpoint, &options, &one_thread, add_finding, sum, err);
}

/* Into its own format, as it is laid out. */
static reshard_status plan(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.to = reshard_checkpoint_format(checkpoint);
    reshard_status status = reshard_estimate(checkpoint, "/tmp/reshard-nothing", &options, &one_thread, &report, err);
    *sum += (unsigned)report.write_bytes;
    reshard_report_release(&report);
    return status;
}

static size_t other_format; /* the turn of each fixture goes on by one */
static unsigned long wrong;

/* What was written is read when nothing fails any more. What cannot be read counts for a value of its own. */
static void read_back(const char *target, unsigned *sum)
{
    reshard_checkpoint *made = NULL;
    reshard_error err = RESHARD_ERROR_INIT;
    reshard_status status = reshard_open(target, NULL, &made, &err);
    if (!status)
        status = read_values(made, sum, &err);
    *sum += (unsigned)status;
    reshard_close(made);
}

static reshard_status write_other(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err)
{
    reshard_format format = RESHARD_FORMAT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    char folder[TEST_FOLDER_SIZE], target[128];
    assert_non_null(test_mkdtemp(folder));
    snprintf(target, sizeof(target), "%s/target", folder);
    reshard_format_at(other_format % reshard_format_count(), &format);
    options.to = format.name;
    options.no_sync = 1;
    reshard_status status = reshard_convert(checkpoint, target, &options, &one_thread, NULL, err);
    (void)fail_io_was_hit(), (void)fail_malloc_was_hit(); // nothing fails any more
    if (!status)
        read_back(target, sum);
    else if (access(target, F_OK) == 0)
        print_error("%s: visible after status %d: %s\n", format.name, status, err->message), wrong++;
    test_tree_remove(folder);
    return status;
}

static const struct {
    const char *what;
    reshard_status (*run)(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err);
} operations[] = { { "read", read_values }, { "verify", verify }, { "plan", plan }, { "write", write_other } };
enum { READ, VERIFY };

/* What fails, and what that is told as. Behind the first of an operation, ever less of them fail. */
struct fault {
    const char *what;
    void (*fail_at)(unsigned long nth);
    unsigned long (*calls)(void);
    bool (*was_hit)(void);
    reshard_status told;
    unsigned long each;  /* of one operation, from where it begins */
    size_t part, checked_part; /* of the fixtures, drawn by the seed: by `make faults`, and by `make check` */
    unsigned long failures_min;
    unsigned long calls_to_open;
};

/* What warnings of verify and odd keys are made of: these take part in every run, and all of their allocations fail. */
static const char *const always[] = { "/bad-torch-file-sparse-index-beyond/", "/dcp-stale/", "/torch-file-int-keys/" };

static bool is_always_chosen(const char *path)
{
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (strstr(path, always[i]))
            return true;
    return false;
}

static uint64_t random_state;

static unsigned long next_failure(const struct fault *fault, const char *source, unsigned long before, unsigned long nth)
{
    const unsigned long done = nth - before;
    return nth + 1 + (done < fault->each || is_always_chosen(source) ? 0 : test_random(&random_state) % (done / 4));
}

static reshard_status run(struct fault *fault, const char *source, size_t operation, unsigned *sum, reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    *err = (reshard_error)RESHARD_ERROR_INIT;
    *sum = 0;
    reshard_status status = reshard_open(source, NULL, &checkpoint, err);
    fault->calls_to_open = fault->calls();
    if (!status)
        status = operations[operation].run(checkpoint, sum, err);
    reshard_close(checkpoint);
    return status;
}

/* The number of failures. What opens the checkpoint fails for the first operation alone. */
static unsigned long fail_each(struct fault *fault, const char *source, size_t operation, reshard_status expected_status,
                               unsigned expected)
{
    const unsigned long before = operation == READ ? 0 : fault->calls_to_open;
    unsigned long nth = before, failures = 0;
    bool was_hit;
    do {
        unsigned found;
        reshard_error err;
        fault->fail_at(nth = next_failure(fault, source, before, nth));
        reshard_status status = run(fault, source, operation, &found, &err);
        was_hit = fault->was_hit();
        bool is_told = was_hit && status == fault->told;
        is_told |= was_hit && status == RESHARD_DIFFERS && operation == VERIFY && fault->told == RESHARD_ERR_IO;
        if (!is_told && (status != expected_status || found != expected))
            print_error("%s: %s, %s %lu: status %d, not %d: %s\n", source, operations[operation].what, fault->what, nth, status,
                        expected_status, err.message), wrong++;
        failures += was_hit;
    } while (was_hit);
    return failures;
}

static void fail_every_fixture(struct fault *fault)
{
    const char *given = getenv("RESHARD_FAULT_SEED");
    const unsigned long seed = given ? strtoul(given, NULL, 10) : 1;
    const size_t checked_part = fault->checked_part * fail_stride();
    const size_t step = getenv("RESHARD_MANY_FIXTURES") ? fault->part : checked_part, first = seed % step;
    char pattern[4096];
    glob_t all;
    unsigned long checkpoints = 0, failures = 0;
    one_thread.threads = 1;
    wrong = 0;
    random_state = seed;
    snprintf(pattern, sizeof(pattern), "%s/*/*/ckpt*", test_fixtures());
    assert_int_equal(glob(pattern, 0, NULL, &all), 0);
    for (size_t i = 0; i < all.gl_pathc; i++) {
        const bool is_chosen = i % step == first || is_always_chosen(all.gl_pathv[i]);
        if (!is_chosen || strstr(all.gl_pathv[i], "-huge/")) // gigabytes of one element, by the same calls
            continue;
        other_format++;
        for (size_t operation = 0; operation < sizeof(operations) / sizeof(operations[0]); operation++) {
            unsigned sum;
            reshard_error err;
            fault->fail_at(LONG_MAX);
            reshard_status status = run(fault, all.gl_pathv[i], operation, &sum, &err);
            if (status && !(status == RESHARD_DIFFERS && operation == VERIFY))
                continue;
            failures += fail_each(fault, all.gl_pathv[i], operation, status, sum);
            checkpoints += operation == READ;
        }
    }
    print_message("# %s: %lu checkpoints, %lu failures\n", fault->what, checkpoints, failures);
    globfree(&all);
    assert_int_equal(wrong, 0);
    assert_true(checkpoints >= CHECKPOINTS_MIN / step && failures >= fault->failures_min / step);
}

static void fail_call_at(unsigned long nth)
{
    fail_io_at(nth, EIO, false);
}

TEST(a_call_that_fails_is_the_disks_error)
{
    fail_every_fixture(&(struct fault){ .what = "call",
                                        .fail_at = fail_call_at,
                                        .calls = fail_io_calls,
                                        .was_hit = fail_io_was_hit,
                                        .told = RESHARD_ERR_IO,
                                        .each = 100,
                                        .part = 2,
                                        .checked_part = 10,
                                        .failures_min = 25000 });
}

static void fail_allocations(const char *what, void (*fail_at)(unsigned long nth))
{
    fail_every_fixture(&(struct fault){ .what = what,
                                        .fail_at = fail_at,
                                        .calls = fail_malloc_calls,
                                        .was_hit = fail_malloc_was_hit,
                                        .told = RESHARD_ERR_MEMORY,
                                        .each = 8,
                                        .part = 5,
                                        .checked_part = 20,
                                        .failures_min = 30000 });
}

TEST(an_allocation_that_fails_is_want_of_memory)
{
    fail_allocations("allocation", fail_malloc_at);
}

TEST(an_allocation_in_an_arena_that_fails_is_want_of_memory)
{
    fail_allocations("allocation in an arena", fail_arena_at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fails_is_the_disks_error),
        cmocka_unit_test(an_allocation_that_fails_is_want_of_memory),
        cmocka_unit_test(an_allocation_in_an_arena_that_fails_is_want_of_memory),
    };
    return cmocka_run_group_tests_name("fixture_failures", tests, NULL, NULL);
}
