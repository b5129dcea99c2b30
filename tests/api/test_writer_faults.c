/* SPDX-License-Identifier: Apache-2.0 */
/* Writers, their parts, plans and items without memory: whichever allocation fails, nothing is visible, and nothing is lost. */
#include "check.h"

#include "fail_malloc.h"
#include "reshard/plan.h"
#include "reshard/writer.h"
#include "test_folder.h"

#include <unistd.h>

static reshard_error err;
static char path[128];
static const int64_t shape[] = { 12, 5 };
static float values[60];

static int work_make(void **state)
{
    if (test_folder_make(state))
        return -1;
    snprintf(path, sizeof(path), "%s/target", test_folder);
    return 0;
}

static void target_remove(void)
{
    char partial[256];
    snprintf(partial, sizeof(partial), "%s/.target.reshard-partial", test_folder);
    assert_int_equal(test_tree_remove(path) | test_tree_remove(partial), 0);
}

static reshard_status items_make(reshard_items **out)
{
    reshard_value_info list = RESHARD_VALUE_INFO_INIT, text = RESHARD_VALUE_INFO_INIT;
    reshard_value *holder;
    list.kind = RESHARD_VALUE_LIST;
    text.kind = RESHARD_VALUE_TEXT;
    text.text = (reshard_str){ "text", 4 };
    reshard_status status = reshard_items_new(out, &err);
    if (!status)
        status = reshard_items_add(*out, NULL, (reshard_str){ "list", 4 }, &list, &holder, &err);
    for (int i = 0; i < 6 && !status; i++)
        status = reshard_items_add(*out, holder, (reshard_str){ NULL, 0 }, &text, NULL, &err);
    return status;
}

/* Columns 2 and up as strided memory, the others as two runs. */
static reshard_status pieces_put(reshard_writer *writer)
{
    const int64_t left[] = { 0, 0 }, right[] = { 0, 2 }, left_extent[] = { 12, 2 }, right_extent[] = { 12, 3 }, strides[] = { 5, 1 };
    reshard_piece piece = RESHARD_PIECE_INIT;
    piece.start = right;
    piece.extent = right_extent;
    piece.strides = strides;
    piece.data = values + 2;
    piece.size = sizeof(values) - 8;
    reshard_status status = reshard_writer_put(writer, &piece, &err);
    piece.start = left;
    piece.extent = left_extent;
    piece.strides = NULL;
    piece.is_flattened = 1;
    for (int run = 0; run < 2 && !status; run++) {
        piece.flat_begin = run ? 7 : 0;
        piece.flat_end = run ? 24 : 7;
        status = reshard_writer_put(writer, &piece, &err);
    }
    return status;
}

static reshard_status feed(const reshard_writer_input *input, const reshard_convert_options *options)
{
    reshard_writer *writer = NULL;
    reshard_status status = reshard_writer_open(input, path, options, NULL, NULL, &writer, &err);
    if (!status)
        status = pieces_put(writer);
    if (!status)
        status = reshard_writer_finish(writer, &err);
    reshard_writer_free(writer);
    return status;
}

static reshard_status commit(const reshard_writer_input *input, const reshard_convert_options *options)
{
    return reshard_writer_commit(input, path, options, NULL, NULL, &err);
}

static reshard_status commit_declared(const reshard_writer_input *input, const reshard_convert_options *options)
{
    (void)input, (void)options;
    return reshard_writer_commit(NULL, path, NULL, NULL, NULL, &err);
}

static reshard_status with_input(reshard_status (*call)(const reshard_writer_input *, const reshard_convert_options *), const char *format,
                                 int is_part)
{
    const reshard_writer_tensor tensor = { { "w", 1 }, "F32", 2, shape };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_items *items = NULL;
    options.to = format;
    options.no_sync = 1;
    options.part_count = (uint64_t)is_part;
    reshard_status status = items_make(&items);
    input.tensors = &tensor;
    input.tensor_count = 1;
    input.values = items;
    if (!status)
        status = call(&input, &options);
    reshard_items_free(items);
    return status;
}

static reshard_status write_target(const char *format, int is_part)
{
    reshard_status status = with_input(feed, format, is_part);
    return status || !is_part ? status : with_input(commit, format, is_part);
}

static reshard_status run_plan(const char *format, int is_part)
{
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_state state = RESHARD_STATE_INIT;
    reshard_checkpoint *live = NULL;
    reshard_shards *shards;
    reshard_plan *plan = NULL, *part = NULL;
    (void)is_part;
    options.to = format;
    options.no_sync = 1;
    reshard_status status = reshard_shards_new(&shards, &err);
    if (status)
        return status;
    state.shards = shards;
    status = reshard_open_shards(&state, NULL, &live, &err);
    if (!status)
        status = reshard_plan_new(live, path, &options, NULL, &plan, &err);
    if (!status)
        status = reshard_plan_part(plan, 0, 2, &part, &err);
    if (!status)
        status = reshard_plan_run(plan, NULL, &err);
    reshard_plan_free(part);
    reshard_plan_free(plan);
    reshard_close(live);
    reshard_shards_free(shards);
    return status;
}

static void try_all(reshard_status (*work_of)(const char *format, int is_part), const char *format, int is_part)
{
    unsigned long nth = 0;
    bool hit = true;
    while (hit) {
        target_remove();
        fail_malloc_at(nth = fail_next(nth));
        reshard_status status = work_of(format, is_part);
        hit = fail_malloc_was_hit();
        if (status)
            assert_int_equal(status, RESHARD_ERR_MEMORY);
        if (!hit)
            assert_int_equal(status, RESHARD_OK);
        assert_int_equal(access(path, F_OK) == 0, status == RESHARD_OK);
    }
    assert_true(nth > 50);
}

TEST(a_writer_without_memory_leaves_nothing)
{
    try_all(write_target, "torch", 0);
    try_all(write_target, "torch-dcp", 0);
}

TEST(parts_without_memory_are_not_committed)
{
    try_all(write_target, "torch-dcp", 1);
}

/* The parts are still there, and make the same target. */
static void try_commits(reshard_status (*made)(const reshard_writer_input *, const reshard_convert_options *))
{
    unsigned long nth = 0, failed = 0;
    bool hit = true;
    while (hit) {
        target_remove();
        CHECK_OK(with_input(feed, "torch-dcp", 1));
        fail_malloc_at(nth = fail_next(nth));
        reshard_status status = with_input(made, "torch-dcp", 1);
        hit = fail_malloc_was_hit();
        if (!status)
            continue;
        failed++;
        assert_int_equal(status, RESHARD_ERR_MEMORY);
        assert_int_equal(access(path, F_OK), -1);
        CHECK_OK(with_input(made, "torch-dcp", 1));
        assert_int_equal(access(path, F_OK), 0);
    }
    assert_true(failed > 20 / fail_stride());
}

TEST(a_commit_that_failed_is_made_again)
{
    try_commits(commit);
    try_commits(commit_declared);
}

TEST(plans_without_memory_write_nothing)
{
    try_all(run_plan, "torch", 0);
}

#define IN_WORK(test) cmocka_unit_test_setup_teardown(test, work_make, test_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORK(a_writer_without_memory_leaves_nothing),
        IN_WORK(parts_without_memory_are_not_committed),
        IN_WORK(a_commit_that_failed_is_made_again),
        IN_WORK(plans_without_memory_write_nothing),
    };
    return cmocka_run_group_tests_name("writer_faults", tests, NULL, NULL);
}
