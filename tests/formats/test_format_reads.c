/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call to the files fails once while a checkpoint is read, verified and planned: that is told as the disk's error, or all comes of it
 * that comes of it without. Every fixture that opens takes part in `make faults` (RESHARD_EVERY_FAULT), a fifth of them in `make check`.
 */
#include "check.h"

#include "fail_io.h"
#include "fail_malloc.h"

#include "reshard/reshard.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>

/* What there are at least: fewer would say that something is not asked any more. */
#define CHECKPOINTS_MIN 450
#define CALLS_MIN 50000
#define CHECKED_SHARE 5

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

static const struct {
    const char *what;
    reshard_status (*run)(reshard_checkpoint *checkpoint, unsigned *sum, reshard_error *err);
} operations[] = { { "read", read_values }, { "verify", verify }, { "plan", plan } };
enum { READ, VERIFY, PLAN };

static unsigned long calls_to_open;

static reshard_status run(const char *source, size_t operation, unsigned *sum, reshard_error *err)
{
    reshard_checkpoint *checkpoint = NULL;
    *err = (reshard_error)RESHARD_ERROR_INIT;
    *sum = 0;
    reshard_status status = reshard_open(source, NULL, &checkpoint, err);
    calls_to_open = fail_io_calls();
    if (!status)
        status = operations[operation].run(checkpoint, sum, err);
    reshard_close(checkpoint);
    return status;
}

static unsigned long wrong;

/* The number of calls that failed. Those that open the checkpoint fail for the first operation alone. */
static unsigned long fail_each(const char *source, size_t operation, reshard_status expected_status, unsigned expected)
{
    const unsigned long before = operation == READ ? 0 : calls_to_open;
    unsigned long nth = before;
    bool was_hit;
    do {
        unsigned found;
        reshard_error err;
        fail_io_at(nth = fail_next(nth), EIO, false);
        reshard_status status = run(source, operation, &found, &err);
        was_hit = fail_io_was_hit();
        bool is_told = was_hit && (status == RESHARD_ERR_IO || (operation == VERIFY && status == RESHARD_DIFFERS));
        if (!is_told && (status != expected_status || found != expected))
            print_error("%s: %s, call %lu: status %d, not %d: %s\n", source, operations[operation].what, nth, status, expected_status,
                        err.message), wrong++;
    } while (was_hit);
    return nth - 1 - before;
}

TEST(a_call_that_fails_is_the_disks_error)
{
    const char *seed = getenv("RESHARD_FAULT_SEED");
    const size_t step = getenv("RESHARD_EVERY_FAULT") ? 1 : CHECKED_SHARE, first = (seed ? strtoul(seed, NULL, 10) : 1) % step;
    char pattern[4096];
    glob_t all;
    unsigned long checkpoints = 0, calls = 0, planned = 0;
    one_thread.threads = 1;
    snprintf(pattern, sizeof(pattern), "%s/*/*/ckpt*", test_fixtures());
    assert_int_equal(glob(pattern, 0, NULL, &all), 0);
    for (size_t i = first; i < all.gl_pathc; i += step) {
        if (strstr(all.gl_pathv[i], "-huge/")) // gigabytes of one element, by the same calls
            continue;
        for (size_t operation = 0; operation < sizeof(operations) / sizeof(operations[0]); operation++) {
            unsigned sum;
            reshard_error err;
            fail_io_at(LONG_MAX, EIO, false);
            reshard_status status = run(all.gl_pathv[i], operation, &sum, &err);
            if (status && !(status == RESHARD_DIFFERS && operation == VERIFY))
                continue;
            calls += fail_each(all.gl_pathv[i], operation, status, sum);
            checkpoints += operation == READ;
            planned += operation == PLAN;
        }
    }
    print_message("# %lu checkpoints, %lu of them planned, %lu calls\n", checkpoints, planned, calls);
    assert_int_equal(wrong, 0);
    assert_true(checkpoints >= CHECKPOINTS_MIN / step && calls >= CALLS_MIN / step);
    globfree(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_that_fails_is_the_disks_error),
    };
    return cmocka_run_group_tests_name("format_reads", tests, NULL, NULL);
}
