/* SPDX-License-Identifier: Apache-2.0 */
/* Structs as programs of any version may pass them, to plans, writers, stores of the caller's, and saves in the background. */
#include "api/arguments.h"
#include "api/public_members.h"

#include <errno.h>
#include <unistd.h>

#define SOURCE "torch-dcp/dcp-small/ckpt"

static const int64_t four[] = { 4 }, zero[] = { 0 };
static float numbers[4];
static char scratch[TEST_FOLDER_SIZE], source_path[4096], target_path[64];
static reshard_checkpoint *source;
static reshard_plan *plan;
static reshard_shards *list;
static reshard_saver *saver;

static const reshard_convert_options convert_init = { .struct_size = sizeof(convert_init), .to = "safetensors", .overwrite = 1,
                                                      .no_sync = 1, .no_space_check = 1 };
static const reshard_run_options run_init = { sizeof(run_init), 1 << 20, 1, "buffered", NULL, NULL, NULL };

/* What a call has written goes, and the next finds nothing in its way. */
static reshard_status target_end(reshard_status status)
{
    char command[160];
    snprintf(command, sizeof(command), "rm -rf '%s' %s/.[a-z]*", target_path, scratch);
    assert_int_equal(system(command), 0);
    return unless_lacking(status);
}

/* ---- conversions and plans ---- */

static reshard_status plan_new(const reshard_convert_options *options, const reshard_run_options *run)
{
    reshard_plan *made = plan;
    reshard_status status = reshard_plan_new(source, target_path, options, run, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_plan_free(made);
    return unless_lacking(status);
}

static reshard_status call_convert(void *given) { return target_end(reshard_convert(source, target_path, given, NULL, NULL, &err)); }
static reshard_status call_run(void *given) { return target_end(reshard_convert(source, target_path, &convert_init, given, NULL, &err)); }
static reshard_status call_converted(void *given)
{
    reshard_status status = target_end(reshard_convert(source, target_path, &convert_init, NULL, given, &err));
    reshard_report_release(given);
    return status;
}
static reshard_status call_plan(void *given) { return plan_new(given, NULL); }
static reshard_status call_plan_run(void *given) { return plan_new(&convert_init, given); }
static reshard_status call_step(void *given) { return reshard_plan_step_at(plan, 0, given, &err); }
static reshard_status fail_step(void *given) { return reshard_plan_step_at(NULL, 0, given, &err); }
static reshard_status fail_step_index(void *given) { return reshard_plan_step_at(plan, SIZE_MAX, given, &err); }
static reshard_status fail_plan_report(void *given) { return reshard_plan_report(NULL, given, &err); }

static reshard_status call_plan_report(void *given)
{
    reshard_status status = reshard_plan_report(plan, given, &err);
    reshard_report_release(given);
    return status;
}

static reshard_status call_preview(void *given)
{
    reshard_checkpoint *shown = source;
    reshard_status status = reshard_preview(source, NULL, given, NULL, NULL, &shown, &err);
    assert_true((status == RESHARD_OK) == (shown != NULL));
    reshard_close(shown);
    return unless_lacking(status);
}

/* There are no parts to be made visible: that is said behind what is wrong with the options. */
static reshard_status call_commit(void *given)
{
    reshard_status status = reshard_commit(source, target_path, given, NULL, NULL, &err);
    assert_int_not_equal(status, RESHARD_OK);
    target_end(RESHARD_OK);
    return status == RESHARD_ERR_USAGE && strstr(err.message, " bytes: byte") ? status
           : strstr(err.message, "struct_size")                              ? status
                                                                              : RESHARD_OK;
}

static reshard_status fail_commit(void *given)
{
    reshard_status status = reshard_commit(source, target_path, &convert_init, NULL, given, &err);
    target_end(RESHARD_OK);
    return status;
}

/* ---- writers ---- */

static const reshard_writer_tensor tensor_member = { { "w", 1 }, "F32", 1, four };
static const reshard_state_item item_member = { { "i", 1 }, { "7", 1 } };
static const reshard_writer_input input_init = { sizeof(input_init), &tensor_member, sizeof(tensor_member), 1, &item_member,
                                                 sizeof(item_member), 1, NULL, "job" };
static const reshard_piece piece_init = { sizeof(piece_init), 0, zero, four, 0, 0, 0, "F32", NULL, numbers, sizeof(numbers), NULL, NULL };

static reshard_status writer_open(const reshard_writer_input *input, const reshard_convert_options *options, const reshard_run_options *run,
                                  reshard_report *report)
{
    reshard_writer *made = (void *)target_path;
    reshard_status status = reshard_writer_open(input, target_path, options, run, report, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    reshard_writer_free(made);
    return target_end(status);
}

static reshard_status call_input(void *given) { return writer_open(given, &convert_init, NULL, NULL); }
static reshard_status call_writer(void *given) { return writer_open(&input_init, given, NULL, NULL); }
static reshard_status call_writer_run(void *given) { return writer_open(&input_init, &convert_init, given, NULL); }

static reshard_status call_writer_report(void *given)
{
    reshard_status status = writer_open(&input_init, &convert_init, NULL, given);
    reshard_report_release(given);
    return status;
}

static reshard_status fail_writer_report(void *given)
{
    const reshard_convert_options none = { .struct_size = sizeof(none), .to = "no such format" };
    reshard_writer *made = NULL;
    return reshard_writer_open(&input_init, target_path, &none, NULL, given, &made, &err);
}

static reshard_status fail_writer_commit(void *given)
{
    reshard_status status = reshard_writer_commit(&input_init, target_path, &convert_init, NULL, given, &err);
    target_end(RESHARD_OK);
    return status;
}

/* A piece that is cut before its values lacks them. */
static reshard_status call_piece(void *given)
{
    reshard_writer *writer;
    CHECK_OK(reshard_writer_open(&input_init, target_path, &convert_init, NULL, NULL, &writer, &err));
    reshard_status status = reshard_writer_put(writer, given, &err);
    reshard_writer_free(writer);
    if (status == RESHARD_ERR_USAGE && (strstr(err.message, "0 bytes") || strstr(err.message, "memory")))
        status = RESHARD_OK;
    return target_end(status);
}

/* ---- stores ---- */

static int look(const char *path, int *is_folder, uint64_t *bytes, uint64_t *version, void *context)
{
    (void)path, (void)is_folder, (void)bytes, (void)version, (void)context;
    return ENOENT;
}

static int list_none(const char *folder, reshard_store_sink sink, void *sink_context, void *context)
{
    (void)folder, (void)sink, (void)sink_context, (void)context;
    return 0;
}

static int open_none(const char *path, void **object, uint64_t *bytes, void *context)
{
    (void)path, (void)object, (void)bytes, (void)context;
    return ENOENT;
}

static int read_none(void *object, uint64_t offset, void *out, size_t size, size_t *done, void *context)
{
    (void)object, (void)offset, (void)out, (void)size, (void)done, (void)context;
    return EIO;
}

static int close_none(void *object, void *context)
{
    (void)object, (void)context;
    return 0;
}

static int create_none(const char *path, uint64_t bytes, void **object, void *context)
{
    (void)path, (void)bytes, (void)object, (void)context;
    return EIO;
}

static int write_none(void *object, uint64_t offset, const void *bytes, size_t size, void *context)
{
    (void)object, (void)offset, (void)bytes, (void)size, (void)context;
    return EIO;
}

static int rename_none(const char *from, const char *to, void *context)
{
    (void)from, (void)to, (void)context;
    return EIO;
}

static int remove_none(const char *path, void *context)
{
    (void)path, (void)context;
    return ENOENT;
}

static const reshard_store store_init = { .struct_size = sizeof(store_init), .name = "nothing", .look = look, .list = list_none,
                                          .open = open_none, .read_at = read_none, .close = close_none, .create = create_none,
                                          .write_at = write_none, .rename = rename_none, .remove = remove_none };

/* Nothing is there, or nothing can be written: the store was asked. */
static reshard_status unless_asked(reshard_status status)
{
    assert_int_not_equal(status, RESHARD_OK);
    return status == RESHARD_ERR_IO || strstr(err.message, "can only be read") ? RESHARD_OK : unless_lacking(status);
}

static reshard_status open_in(const reshard_store *store, const reshard_open_options *options)
{
    reshard_checkpoint *opened = source;
    reshard_status status = reshard_open_in(store, "a", options, &opened, &err);
    assert_null(opened);
    return unless_asked(status);
}

static const reshard_open_options open_init = { .struct_size = sizeof(open_init), .limit_stride = sizeof(reshard_limit_change) };
static reshard_status call_store(void *given) { return open_in(given, NULL); }
static reshard_status call_open_in(void *given) { return open_in(&store_init, given); }

static reshard_status call_store_target(void *given)
{
    reshard_convert_options options = { .struct_size = sizeof(options), .to = "safetensors", .store = given };
    return unless_asked(reshard_convert(source, "a", &options, NULL, NULL, &err));
}

/* ---- savers ---- */

static int copy_plainly(void *to, const void *from, size_t bytes, void *context)
{
    (void)context;
    memcpy(to, from, bytes);
    return 0;
}

static const reshard_saver_options saver_init = { sizeof(saver_init), RESHARD_SAVER_THREAD, NULL, 2, copy_plainly, NULL, NULL };
static const reshard_convert_options saved_init = { .struct_size = sizeof(saved_init), .to = "safetensors", .overwrite = 1, .no_sync = 1 };
static reshard_state state_init = { sizeof(state_init), NULL, &item_member, sizeof(item_member), 1, "job", NULL };
static reshard_save_request request_init = { sizeof(request_init), &state_init, target_path, &saved_init, &run_init, NULL, NULL, NULL };

static reshard_status call_saver(void *given)
{
    reshard_saver *made = saver;
    reshard_status status = reshard_saver_open(given, &made, &err);
    assert_true((status == RESHARD_OK) == (made != NULL));
    if (made)
        CHECK_OK(reshard_saver_close(made, &err));
    return status;
}

/* What cannot be begun is no save. */
static reshard_status request(const reshard_save_request *given)
{
    int64_t number = 0;
    reshard_status status = reshard_saver_save(saver, given, &number, &err);
    assert_true((status == RESHARD_OK) == (number >= 0));
    if (!status)
        status = reshard_saver_wait(saver, -1, &err);
    return target_end(status);
}

static reshard_status call_request(void *given) { return request(given); }

static reshard_status call_request_state(void *given)
{
    reshard_save_request changed = request_init;
    changed.state = given;
    return request(&changed);
}

static reshard_status call_request_convert(void *given)
{
    reshard_save_request changed = request_init;
    changed.options = given;
    return request(&changed);
}

static reshard_status call_request_run(void *given)
{
    reshard_save_request changed = request_init;
    changed.run = given;
    return request(&changed);
}

static const struct struct_case cases[] = {
    IN(reshard_convert_options, &convert_init, call_convert),
    IN(reshard_convert_options, &convert_init, call_plan),
    IN(reshard_convert_options, &convert_init, call_preview),
    IN(reshard_convert_options, &convert_init, call_commit),
    IN(reshard_convert_options, &convert_init, call_writer),
    IN(reshard_convert_options, &saved_init, call_request_convert),
    IN(reshard_run_options, &run_init, call_run),
    IN(reshard_run_options, &run_init, call_plan_run),
    IN(reshard_run_options, &run_init, call_writer_run),
    IN(reshard_run_options, &run_init, call_request_run),
    OUT(reshard_report, call_converted, fail_commit),
    OUT(reshard_report, call_plan_report, fail_plan_report),
    OUT(reshard_report, call_writer_report, fail_writer_report),
    OUT(reshard_report, call_writer_report, fail_writer_commit),
    OUT(reshard_plan_step, call_step, fail_step),
    OUT(reshard_plan_step, call_step, fail_step_index),
    IN(reshard_writer_input, &input_init, call_input),
    IN(reshard_piece, &piece_init, call_piece),
    IN(reshard_store, &store_init, call_store),
    IN(reshard_store, &store_init, call_store_target),
    IN(reshard_open_options, &open_init, call_open_in),
    IN(reshard_saver_options, &saver_init, call_saver),
    IN(reshard_save_request, &request_init, call_request),
    IN(reshard_state, &state_init, call_request_state),
};

STRUCT_TESTS(cases)

/* What cannot go along to the background is refused by its name, and never left out unseen. */
TEST(a_save_in_the_background_refuses_options_that_it_does_not_take)
{
    const struct {
        const char *name;
        reshard_convert_options options;
    } refused[] = {
        { "store", { .struct_size = sizeof(reshard_convert_options), .to = "safetensors", .store = &store_init } },
        { "resume", { .struct_size = sizeof(reshard_convert_options), .to = "safetensors", .resume = 1 } },
        { "part_count", { .struct_size = sizeof(reshard_convert_options), .to = "safetensors", .part_count = 2 } },
        { "part_words", { .struct_size = sizeof(reshard_convert_options), .to = "safetensors", .part_words = { "a", 1 } } },
        { "open", { .struct_size = sizeof(reshard_convert_options), .to = "safetensors", .open = &open_init } },
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        reshard_save_request changed = request_init;
        char expected[64];
        int64_t number = 0;
        changed.options = &refused[i].options;
        CHECK_FAILS(reshard_saver_save(saver, &changed, &number, &err), RESHARD_ERR_USAGE);
        assert_int_equal(number, -1);
        snprintf(expected, sizeof(expected), "reshard_convert_options.%s", refused[i].name);
        if (!strstr(err.message, expected))
            fail_msg("%s: %s", expected, err.message);
    }
}

static int set_up(void **state)
{
    (void)state;
    const reshard_shard shard = { sizeof(shard), { "w", 1 }, "F32", 1, four, zero, four, 0, 0, 0, numbers, NULL, NULL, NULL, NULL };
    snprintf(source_path, sizeof(source_path), "%s/" SOURCE, test_fixtures());
    reshard_status status = test_mkdtemp(scratch) ? reshard_open(source_path, NULL, &source, &err) : RESHARD_ERR_IO;
    snprintf(target_path, sizeof(target_path), "%s/target", scratch);
    if (!status)
        status = reshard_plan_new(source, target_path, &convert_init, NULL, &plan, &err) || reshard_shards_new(&list, &err) ||
                 reshard_shards_add(list, &shard, &err);
    state_init.shards = list;
    return status ? status : reshard_saver_open(NULL, &saver, &err);
}

static int tear_down(void **state)
{
    (void)state;
    reshard_status status = reshard_saver_close(saver, &err);
    reshard_shards_free(list);
    reshard_plan_free(plan);
    reshard_close(source);
    return status || rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STRUCT_TEST_NAMES,
        cmocka_unit_test(a_save_in_the_background_refuses_options_that_it_does_not_take),
    };
    return cmocka_run_group_tests_name("arguments of writing", tests, set_up, tear_down);
}
