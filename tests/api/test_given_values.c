/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors whose values a function of the caller's gives: saved by ranks, with a plan that is kept and without, and in the background; a
 * function that fails on one rank; and where such a tensor cannot be. Random layouts of such tensors: test_saved_layouts.c.
 */
#include "check.h"

#include "comm/ranks.h"

#include "reshard/async.h"
#include "test_folder.h"

#include <stdbool.h>
#include <unistd.h>

#define RANKS 3
#define ROW 5

static reshard_error err;

/* Of a row: element i is number * 100 + i. */
struct giver {
    float number;
    bool fails;
};

static int row_give(void *out, uint64_t offset, size_t size, void *context)
{
    const struct giver *giver = context;
    float row[ROW];
    for (int i = 0; i < ROW; i++)
        row[i] = giver->number * 100 + (float)i;
    if (offset + size > sizeof(row))
        return 1;
    memcpy(out, (const char *)row + offset, size);
    return giver->fails;
}

static reshard_sharded_tensor row_of(int64_t rank, const int64_t *local, const int64_t *offset)
{
    static const int64_t whole[] = { RANKS, ROW };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    (void)rank;
    tensor.key = (reshard_str){ "rows", 4 };
    tensor.dtype = "F32";
    tensor.rank = 2;
    tensor.local_shape = local;
    tensor.global_shape = whole;
    tensor.global_offset = offset;
    return tensor;
}

static reshard_status row_add(reshard_sharded *sharded, int64_t rank, struct giver *giver, reshard_error *why)
{
    const int64_t local[] = { 1, ROW }, offset[] = { rank, 0 };
    reshard_sharded_tensor tensor = row_of(rank, local, offset);
    tensor.read = row_give;
    tensor.context = giver;
    return reshard_sharded_add(sharded, &tensor, why);
}

/* Whether row r is that of number + r. */
static bool rows_are(const char *path, float number)
{
    float found[RANKS][ROW];
    reshard_checkpoint *saved;
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    assert_true(reshard_tensor_find(saved, "rows", 4) == 0);
    CHECK_OK(reshard_read_into(saved, 0, NULL, NULL, NULL, found, sizeof(found), &err));
    reshard_close(saved);
    for (int r = 0; r < RANKS; r++)
        for (int i = 0; i < ROW; i++)
            if (found[r][i] != (number + (float)r) * 100 + (float)i)
                return false;
    return true;
}

/* ---- ranks ---- */

struct saves {
    const char *format;
    bool keeps, fails; /* a plan is kept; rank 1's function fails at the last save */
    uint64_t uses[RANKS];
};

static void rank_saves(struct test_rank *rank)
{
    struct saves *saves = rank->context;
    reshard_save_options options = RESHARD_SAVE_OPTIONS_INIT;
    reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_kept *kept = NULL;
    convert.to = saves->format;
    convert.no_sync = 1;
    options.convert = &convert;
    if (saves->keeps)
        rank->status = reshard_kept_new(&kept, &rank->err);
    options.kept = kept;
    struct giver givers[3] = { { 0, true }, { 0, true }, { 0, true } }; /* each time another function's context */
    for (int i = 0; i < 3 && !rank->status; i++) {
        givers[i] = (struct giver){ (float)(10 * i + rank->rank), saves->fails && i == 2 && rank->rank == 1 };
        char path[128];
        reshard_sharded *sharded;
        snprintf(path, sizeof(path), "%s/save-%d", test_folder, i);
        rank->status = reshard_sharded_new(&sharded, &rank->err);
        if (!rank->status)
            rank->status = row_add(sharded, rank->rank, &givers[i], &rank->err);
        if (!rank->status)
            rank->status = reshard_save(rank->comm, path, sharded, &options, NULL, &rank->err);
        reshard_sharded_free(sharded);
    }
    saves->uses[rank->rank] = reshard_kept_uses(kept);
    reshard_kept_free(kept);
}

TEST(ranks_save_what_functions_give)
{
    static const char *const formats[] = { "torch-dcp", "torch_dist", "paddle-flex", "hf", "torch" };
    for (int f = 0; f < 10; f++) {
        struct saves saves = { formats[f / 2], f % 2, false, { 0 } };
        struct test_rank ranks[RANKS];
        char path[128], command[128];
        test_ranks(RANKS, 20, &saves, rank_saves, ranks);
        for (int r = 0; r < RANKS; r++) {
            if (ranks[r].status)
                fail_msg("%s, rank %d: %d %s", saves.format, r, ranks[r].status, ranks[r].err.message);
            assert_int_equal(saves.uses[r], saves.keeps ? 2 : 0);
        }
        for (int i = 0; i < 3; i++) {
            snprintf(path, sizeof(path), "%s/save-%d", test_folder, i);
            assert_true(rows_are(path, (float)(10 * i)));
        }
        snprintf(command, sizeof(command), "rm -r %s/save-*", test_folder);
        assert_int_equal(system(command), 0);
    }
}

TEST(a_function_that_fails_ends_the_save_of_all)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        struct saves saves = { "torch-dcp", keeps, true, { 0 } };
        struct test_rank ranks[RANKS];
        char command[128];
        int before = test_entries_count(test_folder, "");
        test_ranks(RANKS, 20, &saves, rank_saves, ranks);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(ranks[r].status, RESHARD_ERR_CANCELLED);
            assert_non_null(strstr(ranks[r].err.message, "rank 1: "));
            assert_non_null(strstr(ranks[r].err.message, "function that gives values"));
        }
        /* Of the third nothing is left, under whatever name. */
        snprintf(command, sizeof(command), "rm -r %s/save-0 %s/save-1", test_folder, test_folder);
        assert_int_equal(system(command), 0);
        assert_int_equal(test_entries_count(test_folder, ""), before);
    }
}

/* ---- in the background ---- */

TEST(savers_ask_before_they_return)
{
    for (int64_t kind = RESHARD_SAVER_THREAD; kind <= RESHARD_SAVER_PROCESS; kind++) {
        reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
        reshard_convert_options convert = RESHARD_CONVERT_OPTIONS_INIT;
        reshard_save_request request = RESHARD_SAVE_REQUEST_INIT;
        struct giver givers[RANKS];
        reshard_saver *saver;
        reshard_sharded *sharded;
        char path[128];
        options.kind = kind;
        CHECK_OK(reshard_saver_open(&options, &saver, &err));
        CHECK_OK(reshard_sharded_new(&sharded, &err));
        for (int r = 0; r < RANKS; r++) {
            givers[r] = (struct giver){ (float)(40 + r), false };
            CHECK_OK(row_add(sharded, r, &givers[r], &err));
        }
        snprintf(path, sizeof(path), "%s/background-%d", test_folder, (int)kind);
        convert.to = "torch-dcp";
        request.sharded = sharded;
        request.path = path;
        request.options = &convert;
        CHECK_OK(reshard_saver_save(saver, &request, NULL, &err));
        for (int r = 0; r < RANKS; r++)
            givers[r] = (struct giver){ 0, true };
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        assert_true(rows_are(path, 40));
        assert_int_equal(reshard_saver_save(saver, &request, NULL, &err), RESHARD_ERR_CANCELLED);
        assert_non_null(strstr(err.message, "'rows'"));
        CHECK_OK(reshard_saver_close(saver, &err));
        reshard_sharded_free(sharded);
    }
}

/* ---- where it cannot be ---- */

static void rank_loads(struct test_rank *rank)
{
    struct giver giver = { 1, false };
    reshard_load_options options = RESHARD_LOAD_OPTIONS_INIT;
    const int64_t local[] = { 1, ROW }, offset[] = { rank->rank, 0 };
    reshard_sharded_tensor tensor = row_of(rank->rank, local, offset);
    float row[ROW];
    reshard_sharded *sharded;
    tensor.data = row;
    options.no_check = 1;
    rank->status = reshard_sharded_new(&sharded, &rank->err);
    if (!rank->status)
        rank->status = rank->rank == 1 ? row_add(sharded, 1, &giver, &rank->err) : reshard_sharded_add(sharded, &tensor, &rank->err);
    if (!rank->status)
        rank->status = reshard_load(rank->comm, rank->context, sharded, &options, NULL, NULL, &rank->err);
    reshard_sharded_free(sharded);
}

TEST(what_functions_give_is_neither_filled_nor_narrowed)
{
    const int64_t local[] = { 1, ROW }, offset[] = { 0, 0 }, strides[] = { ROW, 1 };
    struct giver giver = { 0, false };
    struct saves saves = { "torch-dcp", false, false, { 0 } };
    struct test_rank ranks[RANKS];
    reshard_sharded_tensor tensor = row_of(0, local, offset);
    reshard_sharded *sharded;
    char path[128];
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    tensor.read = row_give;
    tensor.context = &giver;
    assert_int_equal(reshard_sharded_add_narrow(sharded, &tensor, 1, 0, 2, &err), RESHARD_ERR_USAGE);
    tensor.data = path;
    assert_int_equal(reshard_sharded_add(sharded, &tensor, &err), RESHARD_ERR_USAGE);
    tensor.data = NULL;
    tensor.strides = strides;
    assert_int_equal(reshard_sharded_add(sharded, &tensor, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_sharded_count(sharded), 0);
    tensor.strides = NULL;
    CHECK_OK(reshard_sharded_add(sharded, &tensor, &err));
    CHECK_OK(reshard_sharded_at(sharded, 0, &tensor));
    assert_true(tensor.read == row_give && tensor.context == &giver && !tensor.data);
    reshard_sharded_free(sharded);
    test_ranks(RANKS, 20, &saves, rank_saves, ranks);
    snprintf(path, sizeof(path), "%s/save-0", test_folder);
    test_ranks(RANKS, 20, path, rank_loads, ranks);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ranks[r].status, RESHARD_ERR_USAGE);
        assert_non_null(strstr(ranks[r].err.message, "rank 1: 'rows': it has a function that gives values (read)"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_IN_FOLDER(ranks_save_what_functions_give),
        TEST_IN_FOLDER(a_function_that_fails_ends_the_save_of_all),
        TEST_IN_FOLDER(savers_ask_before_they_return),
        TEST_IN_FOLDER(what_functions_give_is_neither_filled_nor_narrowed),
    };
    return cmocka_run_group_tests_name("given_values", tests, NULL, NULL);
}
