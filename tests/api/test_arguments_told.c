/* SPDX-License-Identifier: Apache-2.0 */
/* What callbacks are told: structs say how large they are; and that anything but 0 stops the call. */
#include "api/arguments.h"

#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"
#define PLAIN "safetensors/odd-safetensors-escaped-names/ckpt.safetensors" /* without checksums */

static const int64_t four[] = { 4 };
static float numbers[4];
static char scratch[TEST_FOLDER_SIZE];
static char source_path[4096], plain_path[4096], one_path[64], two_path[64];
static reshard_checkpoint *source, *one, *two;
static reshard_sharded *held;

/* ---- structs ---- */

/* What a callback of the library is handed says the size that this version has. */
struct told {
    size_t calls, size;
    int stops;
};

static int take_size(const void *given, struct told *told)
{
    size_t size;
    memcpy(&size, given, sizeof(size));
    assert_int_equal(size, told->size);
    told->calls++;
    return told->stops;
}

static int told_progress(const reshard_progress *given, void *context) { return take_size(given, context); }
static int told_finding(const reshard_finding *given, void *context) { return take_size(given, context); }
static int told_tensor(const reshard_diff_tensor *given, void *context) { return take_size(given, context); }

static int told_stats(size_t tensor, const reshard_tensor_stats *given, void *context)
{
    (void)tensor;
    return take_size(given, context);
}

static int told_member(const reshard_item *given, const char *json, size_t size, void *context)
{
    (void)json, (void)size;
    return take_size(given, context);
}

static int told_missing(const reshard_tensor *given, int *what, double *value, void *context)
{
    *what = RESHARD_MISSING_FILL;
    *value = 0;
    return take_size(given, context);
}

static int told_build(const reshard_sharded_tensor *given, reshard_sharded *parts, void *context)
{
    int stops = take_size(given, context);
    return stops || reshard_sharded_add_offsets(parts, given, NULL, sizeof(reshard_rank_offset), 0, NULL) != RESHARD_OK;
}

static int told_merge(const reshard_sharded_tensor *given, const reshard_sharded *parts, void *context)
{
    assert_int_equal(reshard_sharded_count(parts), 1);
    return take_size(given, context);
}

static reshard_status call_open(void *context)
{
    reshard_open_options options = RESHARD_OPEN_OPTIONS_INIT;
    reshard_checkpoint *opened = NULL;
    options.progress = told_progress;
    options.context = context;
    reshard_status status = reshard_open(source_path, &options, &opened, &err);
    reshard_close(opened);
    return status;
}

static reshard_status call_run(void *context)
{
    const reshard_run_options run = { sizeof(run), 0, 1, NULL, told_progress, context, NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    char target[64];
    options.to = "safetensors";
    snprintf(target, sizeof(target), "%s/target", scratch);
    reshard_status status = reshard_convert(source, target, &options, &run, NULL, &err);
    assert_int_equal(test_tree_remove(target), 0);
    return status;
}

static reshard_status call_missing(void *context)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_report report = RESHARD_REPORT_INIT;
    options.like = two_path;
    options.choose_missing = told_missing;
    options.context = context;
    reshard_status status = reshard_estimate(one, NULL, &options, NULL, &report, &err);
    reshard_report_release(&report);
    return status;
}

static reshard_status unless_different(reshard_status status)
{
    assert_int_not_equal(status, RESHARD_OK);
    return status == RESHARD_DIFFERS ? RESHARD_OK : status;
}

static reshard_status call_diff(void *context)
{
    reshard_diff_options options = RESHARD_DIFF_OPTIONS_INIT;
    options.tensor = told_tensor;
    options.context = context;
    return unless_different(reshard_diff(one, two, &options, NULL, NULL, NULL, &err));
}

static reshard_status call_members(void *context)
{
    const reshard_state_item item = { { "i", 1 }, { "{\"a\": 1, \"b\": 2}", 16 } };
    reshard_state state = RESHARD_STATE_INIT;
    reshard_shards *none;
    reshard_checkpoint *opened;
    CHECK_OK(reshard_shards_new(&none, &err));
    state.shards = none, state.items = &item, state.item_count = 1;
    CHECK_OK(reshard_open_shards(&state, NULL, &opened, &err));
    reshard_status status = reshard_item_members(opened, 0, told_member, context, &err);
    reshard_close(opened);
    reshard_shards_free(none);
    return status;
}

static reshard_status factory(void *context, bool merges)
{
    const reshard_sharded_tensor whole = { .struct_size = sizeof(whole), .key = { "f", 1 }, .dtype = "F32", .rank = 1, .local_shape = four,
                                           .data = numbers };
    struct told quiet = { .size = sizeof(reshard_sharded_tensor) };
    reshard_sharded_factory made = RESHARD_SHARDED_FACTORY_INIT;
    reshard_sharded *state;
    CHECK_OK(reshard_sharded_new(&state, &err));
    made.whole = &whole;
    made.build = told_build;
    made.merge = told_merge;
    made.context = merges ? &quiet : context;
    CHECK_OK(reshard_sharded_add_factory(state, &made, &err));
    reshard_status status = reshard_sharded_expand(state, &err);
    if (merges && !status) {
        ((struct told *)context)->calls++;
        quiet.stops = ((struct told *)context)->stops;
        status = reshard_sharded_merge(state, &err);
        assert_int_equal(quiet.calls, 2);
    }
    reshard_sharded_free(state);
    return status;
}

static reshard_status call_findings(void *context)
{
    return unless_different(reshard_diff(one, two, NULL, NULL, told_finding, context, &err));
}

static reshard_status call_stats(void *context) { return reshard_stats(source, NULL, NULL, told_stats, context, &err); }
static reshard_status call_build(void *context) { return factory(context, false); }
static reshard_status call_merge(void *context) { return factory(context, true); }

#define TOLD(type, call) { #type, sizeof(type), call }

TEST(what_callbacks_are_told_says_its_size)
{
    static const struct {
        const char *name;
        size_t size;
        reshard_status (*call)(void *context);
    } cases[] = {
        TOLD(reshard_progress, call_open),
        TOLD(reshard_progress, call_run),
        TOLD(reshard_tensor, call_missing),
        TOLD(reshard_tensor_stats, call_stats),
        TOLD(reshard_finding, call_findings),
        TOLD(reshard_diff_tensor, call_diff),
        TOLD(reshard_item, call_members),
        TOLD(reshard_sharded_tensor, call_build),
        TOLD(reshard_sharded_tensor, call_merge),
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct told told = { .size = cases[i].size };
        if (cases[i].call(&told) || !told.calls)
            fail_msg("%s, case %zu: told %zu times: %s", cases[i].name, i, told.calls, err.message);
        told = (struct told){ .size = cases[i].size, .stops = 1 };
        reshard_status status = cases[i].call(&told);
        if (status != RESHARD_ERR_CANCELLED || told.calls != 1)
            fail_msg("%s, case %zu is stopped: %d, told %zu times: %s", cases[i].name, i, status, told.calls, err.message);
    }
}

/* ---- all of them ---- */

struct stopping {
    size_t calls, stop_at;
};

static int count_call(struct stopping *stopping)
{
    return ++stopping->calls == stopping->stop_at;
}

static int stop_progress(const reshard_progress *progress, void *context)
{
    (void)progress;
    return count_call(context);
}

static int stop_sink(const void *bytes, size_t size, void *context)
{
    (void)bytes, (void)size;
    return count_call(context);
}

static int stop_hash(size_t tensor, const char *hex, void *context)
{
    (void)tensor, (void)hex;
    return count_call(context);
}

static int stop_uncovered(reshard_str key, uint64_t bytes, void *context)
{
    (void)key, (void)bytes;
    return count_call(context);
}

static int stop_diagnose(const char *diagnoses, size_t error_count, void *context)
{
    (void)diagnoses, (void)error_count;
    return count_call(context);
}

static int stop_finding(const reshard_finding *finding, void *context)
{
    (void)finding;
    return count_call(context);
}

#define STOPPED(call, stopping)                                \
    do {                                                       \
        assert_int_equal(call, RESHARD_ERR_CANCELLED);         \
        assert_int_equal((stopping).calls, (stopping).stop_at); \
        (stopping).calls = 0;                                  \
    } while (0)

TEST(every_callback_stops_its_call_with_anything_but_zero)
{
    struct stopping stopping = { .stop_at = 1 };
    reshard_open_options open = RESHARD_OPEN_OPTIONS_INIT;
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    reshard_map_options map = RESHARD_MAP_OPTIONS_INIT;
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    reshard_checkpoint *opened = NULL;
    char *path = NULL;
    open.progress = stop_progress;
    open.context = run.context = verify.context = map.context = &stopping;
    STOPPED(reshard_open(source_path, &open, &opened, &err), stopping);
    stopping.stop_at = 2;
    STOPPED(reshard_open(source_path, &open, &opened, &err), stopping);
    stopping.stop_at = 1;
    STOPPED(reshard_read(source, 0, NULL, NULL, NULL, stop_sink, &stopping, &err), stopping);
    stopping.stop_at = 2;
    STOPPED(reshard_hash(source, "xxh3", NULL, stop_hash, &stopping, &err), stopping);
    verify.uncovered = stop_uncovered;
    stopping.stop_at = 1;
    CHECK_OK(reshard_open(plain_path, NULL, &opened, &err));
    STOPPED(reshard_verify(opened, &verify, NULL, NULL, NULL, &err), stopping);
    reshard_close(opened);
    map.texts = &(const reshard_map_text){ "bad", "nothing -> x", 12 };
    map.text_count = 1;
    map.diagnose = stop_diagnose;
    diff.map = &map;
    STOPPED(reshard_diff(source, source, &diff, NULL, NULL, NULL, &err), stopping);
    /* Below a root of one folder whose name ends in a number; what is in it is no checkpoint. */
    char root[TEST_FOLDER_SIZE], folder[64];
    assert_non_null(test_mkdtemp(root));
    snprintf(folder, sizeof(folder), "%s/step-1", root);
    char command[5000];
    snprintf(command, sizeof(command), "cp -r '%s' '%s'", source_path, folder);
    assert_int_equal(system(command), 0);
    STOPPED(reshard_latest_good(root, &open, NULL, NULL, NULL, NULL, &path, &err), stopping);
    assert_null(path);
    snprintf(command, sizeof(command), "rm -f '%s'/*", folder);
    assert_int_equal(system(command), 0);
    STOPPED(reshard_latest_good(root, NULL, NULL, NULL, stop_finding, &stopping, &path, &err), stopping);
    assert_int_equal(test_tree_remove(root), 0);
}

static int stop_rename(reshard_str key, reshard_str *out, void *context)
{
    *out = key;
    return count_call(context);
}

static int stop_read(void *out, uint64_t offset, size_t size, void *context)
{
    (void)offset;
    memset(out, 0, size);
    return count_call(context);
}

static int stop_copy(void *to, const void *from, size_t bytes, void *context)
{
    memcpy(to, from, bytes);
    return count_call(context);
}

static int stop_finished(int64_t number, reshard_status status, void *context)
{
    assert_true(number >= 0 && !status);
    return count_call(context);
}

TEST(callbacks_of_writing_stop_their_call_too)
{
    struct stopping stopping = { .stop_at = 1 };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    const reshard_writer_tensor tensor = { { "w", 1 }, "F32", 1, four };
    reshard_report report = RESHARD_REPORT_INIT;
    reshard_writer *writer;
    reshard_plan *plan;
    options.to = "safetensors";
    options.context = piece.context = &stopping;
    options.rename = stop_rename;
    STOPPED(reshard_estimate(one, NULL, &options, NULL, &report, &err), stopping);
    options.rename = NULL;
    CHECK_OK(reshard_plan_new(one, "/tmp/never", &options, NULL, &plan, &err));
    STOPPED(reshard_plan_print(plan, 1, stop_sink, &stopping, &err), stopping);
    reshard_plan_free(plan);
    input.tensors = &tensor;
    input.tensor_count = 1;
    CHECK_OK(reshard_writer_open(&input, "/tmp/reshard-arguments-told", &options, NULL, NULL, &writer, &err));
    piece.read = stop_read;
    STOPPED(reshard_writer_put(writer, &piece, &err), stopping);
    assert_int_not_equal(reshard_writer_finish(writer, &err), RESHARD_OK);
    reshard_writer_free(writer);
    assert_int_not_equal(access("/tmp/reshard-arguments-told", F_OK), 0);
}

/* What copy stops was no save; after what finished stops, the save is there, and those behind it go on. */
TEST(callbacks_of_savers_stop_their_call_too)
{
    struct stopping stopping = { .stop_at = 1 };
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    char path[64];
    int64_t number = 9;
    reshard_saver *saver;
    snprintf(path, sizeof(path), "%s/saved.safetensors", scratch);
    convert.to = "safetensors";
    convert.no_sync = 1;
    request.sharded = held;
    request.path = path;
    request.options = &convert;
    options.copy = stop_copy;
    options.context = request.context = &stopping;
    CHECK_OK(reshard_saver_open(&options, &saver, &err));
    STOPPED(reshard_saver_save(saver, &request, &number, &err), stopping);
    assert_int_equal(number, -1);
    CHECK_OK(reshard_saver_close(saver, &err));
    CHECK_OK(reshard_saver_open(NULL, &saver, &err));
    request.finished = stop_finished;
    CHECK_OK(reshard_saver_save(saver, &request, &number, &err));
    STOPPED(reshard_saver_wait(saver, -1, &err), stopping);
    CHECK_OK(reshard_saver_close(saver, &err));
    assert_int_equal(unlink(path), 0);
}

/* ---- files ---- */

static int set_up(void **state)
{
    (void)state;
    const reshard_sharded_tensor whole = { .struct_size = sizeof(whole), .key = { "w", 1 }, .dtype = "F32", .rank = 1, .local_shape = four,
                                           .data = numbers };
    assert_non_null(test_mkdtemp(scratch));
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    snprintf(plain_path, sizeof(plain_path), "%s/" PLAIN, test_fixtures());
    snprintf(one_path, sizeof(one_path), "%s/one.safetensors", scratch);
    snprintf(two_path, sizeof(two_path), "%s/two.safetensors", scratch);
    test_write_safetensors(one_path, "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    test_write_safetensors(two_path, "{\"v\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                     "\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}", 6);
    return reshard_open(source_path, NULL, &source, &err) || reshard_open(one_path, NULL, &one, &err) ||
           reshard_open(two_path, NULL, &two, &err) || reshard_sharded_new(&held, &err) ||
           reshard_sharded_add_offsets(held, &whole, NULL, sizeof(reshard_rank_offset), 0, &err);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_sharded_free(held);
    reshard_close(one);
    reshard_close(two);
    reshard_close(source);
    return unlink(one_path) || unlink(two_path) || rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_callbacks_are_told_says_its_size),
        cmocka_unit_test(every_callback_stops_its_call_with_anything_but_zero),
        cmocka_unit_test(callbacks_of_writing_stop_their_call_too),
        cmocka_unit_test(callbacks_of_savers_stop_their_call_too),
    };
    return cmocka_run_group_tests_name("what callbacks are told", tests, set_up, tear_down);
}
