/* SPDX-License-Identifier: Apache-2.0 */
/* Plans that are kept: run twice they write what a conversion writes, in parts too; values may have changed; hashes and steps tell. */
#include "check.h"

#include "reshard/plan.h"
#include "reshard/state.h"
#include "test_folder.h"

#include <inttypes.h>
#include <stdbool.h>
#include <unistd.h>

static reshard_error err;

static void shell(const char *command)
{
    if (system(command))
        fail_msg("%s", command);
}

#define SHELL(...)                                       \
    do {                                                 \
        char command[1024];                              \
        snprintf(command, sizeof(command), __VA_ARGS__); \
        shell(command);                                  \
    } while (0)

static reshard_checkpoint *open_sample(void)
{
    char path[4096];
    reshard_checkpoint *opened;
    snprintf(path, sizeof(path), "%s/torch-dcp/dcp-fsdp2-4/ckpt", test_fixtures());
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

/* Base names are part of what some formats write: all targets have one. */
static char *path_in(const char *folder)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, 256, "%s/%s/target", test_folder, folder);
    SHELL("mkdir -p %s/%s", test_folder, folder);
    return path;
}

static reshard_convert_options options_of(const char *format, const char *layout)
{
    static const char *const exclude[] = { "extra.f8", NULL }; /* Paddle has no such type */
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.exclude = exclude;
    options.to = format;
    options.layout = layout;
    options.no_sync = 1;
    options.overwrite = 1;
    return options;
}

static void plan_runs_as_convert(reshard_checkpoint *source, const char *format, const char *layout)
{
    const reshard_convert_options options = options_of(format, layout);
    const char *expected = path_in("expected"), *first = path_in("first"), *second = path_in("second");
    reshard_plan *plan;
    CHECK_OK(reshard_convert(source, expected, &options, NULL, NULL, &err));
    CHECK_OK(reshard_plan_new(source, first, &options, NULL, &plan, &err));
    CHECK_OK(reshard_plan_run(plan, NULL, &err));
    CHECK_OK(reshard_plan_run(plan, second, &err));
    SHELL("diff -r %s %s >&2", expected, first);
    SHELL("diff -r %s %s >&2", expected, second);
    reshard_plan_free(plan);
    SHELL("rm -r %s %s", expected, first);
    SHELL("rm -r %s", second);
}

TEST(a_plan_writes_what_a_conversion_writes_again_and_again)
{
    static const char *const formats[][2] = { { "safetensors", NULL },    { "hf", NULL },
                                              { "torch", NULL },          { "torch-dcp", "ranks=3" },
                                              { "torch_dist", NULL },     { "torch_dcp", NULL },
                                              { "fsdp_dtensor", "dp=2" }, { "fsdp-ranks", "ranks=2" },
                                              { "zarr", NULL },           { "paddle-flex", "ranks=2" },
                                              { "paddle", NULL } };
    reshard_checkpoint *source = open_sample();
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        plan_runs_as_convert(source, formats[i][0], formats[i][1]);
    reshard_close(source);
}

TEST(parts_of_a_plan_make_the_whole)
{
    const reshard_convert_options options = options_of("torch-dcp", "ranks=3");
    const char *expected = path_in("expected"), *target = path_in("parts");
    reshard_checkpoint *source = open_sample();
    reshard_plan *plan, *part, *inner = NULL;
    reshard_report whole = RESHARD_REPORT_INIT;
    size_t steps = 0;
    CHECK_OK(reshard_convert(source, expected, &options, NULL, NULL, &err));
    CHECK_OK(reshard_plan_new(source, target, &options, NULL, &plan, &err));
    CHECK_OK(reshard_plan_report(plan, &whole, &err));
    for (uint64_t number = 3; number-- > 0;) {
        reshard_report report = RESHARD_REPORT_INIT;
        CHECK_OK(reshard_plan_part(plan, number, 3, &part, &err));
        CHECK_OK(reshard_plan_report(part, &report, &err));
        steps += reshard_plan_step_count(part);
        assert_int_equal(report.steps, reshard_plan_step_count(part));
        assert_true(report.write_bytes < whole.write_bytes);
        if (number == 0)
            assert_int_equal(reshard_plan_commit(plan, NULL, &err), RESHARD_DIFFERS);
        assert_int_equal(reshard_plan_commit(part, NULL, &err), RESHARD_ERR_USAGE);
        assert_int_equal(reshard_plan_part(part, 0, 2, &inner, &err), RESHARD_ERR_USAGE);
        CHECK_OK(reshard_plan_run(part, NULL, &err));
        assert_int_not_equal(access(target, F_OK), 0);
        reshard_report_release(&report);
        reshard_plan_free(part);
    }
    assert_int_equal(steps, whole.steps);
    CHECK_OK(reshard_plan_commit(plan, NULL, &err));
    SHELL("diff -r %s %s >&2", expected, target);
    assert_int_equal(reshard_plan_part(plan, 3, 3, &part, &err), RESHARD_ERR_USAGE);
    assert_null(part);
    reshard_report_release(&whole);
    reshard_plan_free(plan);
    reshard_close(source);
}

static uint64_t hash_of(reshard_checkpoint *source, const char *format, const char *layout, const char *path)
{
    const reshard_convert_options options = options_of(format, layout);
    reshard_plan *plan;
    CHECK_OK(reshard_plan_new(source, path, &options, NULL, &plan, &err));
    uint64_t hash = reshard_plan_hash(plan);
    reshard_plan_free(plan);
    return hash;
}

TEST(hashes_tell_plans_apart)
{
    reshard_checkpoint *source = open_sample(), *again = open_sample();
    uint64_t hash = hash_of(source, "torch-dcp", "ranks=2", "/tmp/a");
    assert_true(hash == hash_of(again, "torch-dcp", "ranks=2", "/tmp/b"));
    assert_true(hash != hash_of(source, "torch-dcp", "ranks=3", "/tmp/a"));
    assert_true(hash != hash_of(source, "hf", NULL, "/tmp/a"));
    reshard_close(source);
    reshard_close(again);
}

struct text {
    char *bytes;
    size_t size;
};

static int text_take(const void *bytes, size_t size, void *context)
{
    struct text *text = context;
    text->bytes = realloc(text->bytes, text->size + size + 1);
    assert_non_null(text->bytes);
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = '\0';
    return 0;
}

static int text_refuse(const void *bytes, size_t size, void *context)
{
    (void)bytes;
    (void)size;
    (void)context;
    return 1;
}

TEST(steps_can_be_looked_at_and_printed)
{
    const reshard_convert_options options = options_of("torch-dcp", "ranks=3");
    reshard_checkpoint *source = open_sample();
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_plan_step step = RESHARD_PLAN_STEP_INIT;
    struct text lines = { 0 }, json = { 0 };
    reshard_plan *plan;
    uint64_t bytes = 0;
    size_t count = 0;
    CHECK_OK(reshard_plan_new(source, path_in("printed"), &options, NULL, &plan, &err));
    CHECK_OK(reshard_plan_report(plan, &report, &err));
    for (size_t i = 0; i < reshard_plan_step_count(plan); i++) {
        CHECK_OK(reshard_plan_step_at(plan, i, &step, &err));
        bytes += step.bytes;
        assert_true(step.file.size && step.source_file.size && step.key.size);
    }
    assert_int_equal(bytes, report.write_bytes);
    assert_int_equal(reshard_plan_step_at(plan, reshard_plan_step_count(plan), &step, &err), RESHARD_ERR_USAGE);
    CHECK_OK(reshard_plan_print(plan, 0, text_take, &lines, &err));
    CHECK_OK(reshard_plan_print(plan, 1, text_take, &json, &err));
    for (const char *at = lines.bytes; (at = strchr(at, '\n')); at++)
        count++;
    assert_int_equal(count, reshard_plan_step_count(plan));
    char path[256];
    snprintf(path, sizeof(path), "%s/plan.json", test_folder);
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite(json.bytes, 1, json.size, file), json.size);
    fclose(file);
    SHELL("python3 -c \"import json; p = json.load(open('%s')); assert sum(s['bytes'] for s in p['steps']) == p['write_bytes']%s\"", path,
          "");
    assert_int_equal(reshard_plan_print(plan, 1, text_refuse, NULL, &err), RESHARD_ERR_CANCELLED);
    free(lines.bytes);
    free(json.bytes);
    reshard_report_release(&report);
    reshard_plan_free(plan);
    reshard_close(source);
}

TEST(values_may_change_between_runs)
{
    static int32_t values[64];
    static const int64_t shape[] = { 8, 8 }, start[] = { 0, 0 };
    reshard_convert_options options = options_of("safetensors", NULL);
    reshard_state given = RESHARD_STATE_INIT;
    reshard_shard shard = RESHARD_SHARD_INIT;
    reshard_checkpoint *live, *saved;
    reshard_shards *shards;
    reshard_plan *plan;
    int32_t found[64];
    options.exclude = NULL;
    CHECK_OK(reshard_shards_new(&shards, &err));
    shard.key = (reshard_str){ "w", 1 };
    shard.dtype = "I32";
    shard.rank = 2;
    shard.global_shape = shard.extent = shape;
    shard.start = start;
    shard.data = values;
    CHECK_OK(reshard_shards_add(shards, &shard, &err));
    given.shards = shards;
    CHECK_OK(reshard_open_shards(&given, NULL, &live, &err));
    CHECK_OK(reshard_plan_new(live, path_in("live"), &options, NULL, &plan, &err));
    for (int32_t step = 1; step <= 3; step++) {
        for (int32_t i = 0; i < 64; i++)
            values[i] = step * 1000 + i;
        CHECK_OK(reshard_plan_run(plan, NULL, &err));
        CHECK_OK(reshard_open(path_in("live"), NULL, &saved, &err));
        CHECK_OK(reshard_read_into(saved, 0, NULL, NULL, NULL, found, sizeof(found), &err));
        assert_memory_equal(found, values, sizeof(values));
        reshard_close(saved);
    }
    reshard_plan_free(plan);
    reshard_close(live);
    reshard_shards_free(shards);
}

TEST(null_and_what_cannot_be_is_refused)
{
    reshard_convert_options options = options_of("torch-dcp", NULL);
    reshard_checkpoint *source = open_sample();
    reshard_plan *plan;
    assert_int_equal(reshard_plan_new(NULL, "x", &options, NULL, &plan, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_plan_new(source, NULL, &options, NULL, &plan, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_plan_new(source, "x", NULL, NULL, &plan, &err), RESHARD_ERR_USAGE);
    options.part_count = 2;
    assert_int_equal(reshard_plan_new(source, "x", &options, NULL, &plan, &err), RESHARD_ERR_USAGE);
    assert_null(plan);
    assert_int_equal(reshard_plan_run(NULL, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_plan_commit(NULL, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_plan_step_count(NULL), 0);
    assert_true(reshard_plan_hash(NULL) == 0);
    reshard_plan_free(NULL);
    reshard_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(a_plan_writes_what_a_conversion_writes_again_and_again),
        TEST_IN_FOLDER(parts_of_a_plan_make_the_whole),
        TEST_IN_FOLDER(hashes_tell_plans_apart),
        TEST_IN_FOLDER(steps_can_be_looked_at_and_printed),
        TEST_IN_FOLDER(values_may_change_between_runs),
        TEST_IN_FOLDER(null_and_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("plans", tests, NULL, NULL);
}
