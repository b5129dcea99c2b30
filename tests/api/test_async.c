/* SPDX-License-Identifier: Apache-2.0 */
/* Saves in the background: by a thread and by a program, their order, their errors, and what is left when somebody is killed. */
#include "check.h"

#include "api/saver_request.h"
#include "reshard/async.h"
#include "reshard/comm.h"
#include "test_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static reshard_error err = RESHARD_ERROR_INIT;

#define NAME(text) ((reshard_str){ (text), sizeof(text) - 1 })

/* ---- a state ---- */

#define ROWS 6
#define COLUMNS 4

struct model {
    float whole[ROWS * COLUMNS], wide[ROWS * 9], part[10];
    reshard_shards *shards;
    reshard_state_item item;
    reshard_state state;
};

static void model_fill(struct model *model, float from)
{
    for (int i = 0; i < ROWS * COLUMNS; i++)
        model->whole[i] = from + (float)i;
    for (int i = 0; i < ROWS * 9; i++)
        model->wide[i] = -from - (float)i;
    for (int i = 0; i < 10; i++)
        model->part[i] = 100 + from + (float)i;
}

static void model_add(struct model *model, const char *key, const int64_t *extent, const int64_t *strides, void *data, int64_t begin,
                      int64_t end)
{
    const int64_t zeros[2] = { 0 };
    reshard_shard shard = RESHARD_SHARD_INIT;
    shard.key = (reshard_str){ key, strlen(key) };
    shard.dtype = "float32";
    shard.rank = 2;
    shard.global_shape = shard.extent = extent;
    shard.start = zeros;
    shard.data = data;
    shard.strides = strides;
    shard.is_flattened = end > 0;
    shard.flat_begin = begin;
    shard.flat_end = end;
    CHECK_OK(reshard_shards_add(model->shards, &shard, &err));
}

static void model_make(struct model *model, float from)
{
    static const int64_t whole[] = { ROWS, COLUMNS }, strides[] = { 9, 2 }, flat[] = { 2, 5 };
    model_fill(model, from);
    CHECK_OK(reshard_shards_new(&model->shards, &err));
    model_add(model, "whole", whole, NULL, model->whole, 0, 0);
    model_add(model, "strided", whole, strides, model->wide, 0, 0);
    model_add(model, "flat", flat, NULL, model->part, 0, 7);
    model_add(model, "flat", flat, NULL, model->part + 7, 7, 10);
    model->item = (reshard_state_item){ NAME("step"), NAME("17") };
    model->state = (reshard_state)RESHARD_STATE_INIT;
    model->state.shards = model->shards;
    model->state.items = &model->item;
    model->state.item_count = 1;
}

static float value_read(const reshard_checkpoint *checkpoint, const char *key, int64_t row, int64_t column)
{
    const int64_t start[] = { row, column }, extent[] = { 1, 1 };
    const int64_t found = reshard_tensor_find(checkpoint, key, strlen(key));
    float value = 0;
    assert_true(found >= 0);
    CHECK_OK(reshard_read_into(checkpoint, (size_t)found, start, extent, NULL, &value, sizeof(value), &err));
    return value;
}

static void check_saved(const char *path, float from)
{
    reshard_checkpoint *saved;
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    assert_true(value_read(saved, "whole", 3, 1) == from + 13);
    assert_true(value_read(saved, "strided", 2, 3) == -from - 24);
    assert_true(value_read(saved, "flat", 0, 0) == 100 + from);
    assert_true(value_read(saved, "flat", 1, 4) == 100 + from + 9);
    assert_true(reshard_item_find(saved, "step", 4) >= 0);
    reshard_close(saved);
}

/* ---- helpers ---- */

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", test_folder, name);
    return path;
}

static reshard_saver *saver_of(int64_t kind, int64_t depth)
{
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_saver *saver;
    options.kind = kind;
    options.depth = depth;
    CHECK_OK(reshard_saver_open(&options, &saver, &err));
    return saver;
}

struct save {
    reshard_convert_options options;
    reshard_save_request request;
};

static reshard_save_request *save_of(struct save *save, const struct model *model, const char *path)
{
    save->options = (reshard_convert_options)RESHARD_CONVERT_OPTIONS_INIT;
    save->options.to = "torch-dcp";
    save->options.overwrite = save->options.no_sync = 1;
    save->request = (reshard_save_request)RESHARD_SAVE_REQUEST_INIT;
    save->request.state = model ? &model->state : NULL;
    save->request.path = path;
    save->request.options = &save->options;
    return &save->request;
}

static void nap(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
}

static bool is_there(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0;
}

/* The program that a saver of this process has started. */
static pid_t child_find(void)
{
    char path[64], text[64] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    return (pid_t)atoi(text);
}

static long resident_pages(pid_t pid)
{
    char path[64];
    long size, resident;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &size, &resident), 2);
    fclose(file);
    return resident;
}

static int open_files(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    return test_entries_count(path, "");
}

/* ---- saving ---- */

static void check_copies(int64_t kind)
{
    struct model model;
    struct save save;
    int64_t number;
    reshard_saver *saver = saver_of(kind, 0);
    model_make(&model, 5);
    for (int64_t i = 0; i < 3; i++) {
        model_fill(&model, (float)(10 * i));
        CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path_of("copies")), &number, &err));
        assert_int_equal(number, i);
        model_fill(&model, -1);
        memset(&save, 0xee, sizeof(save));
        CHECK_OK(reshard_saver_wait(saver, number, &err));
        check_saved(path_of("copies"), (float)(10 * i));
    }
    CHECK_OK(reshard_saver_close(saver, &err));
    reshard_shards_free(model.shards);
}

TEST(a_thread_saves_what_was_there)
{
    check_copies(RESHARD_SAVER_THREAD);
}

TEST(a_program_saves_what_was_there)
{
    check_copies(RESHARD_SAVER_PROCESS);
}

TEST(options_go_along)
{
    static const char *const excluded[] = { "model.str*", NULL }, *const renames[] = { "s/^wh/p/", NULL };
    struct model model;
    struct save save;
    reshard_checkpoint *saved;
    model_make(&model, 0);
    for (int64_t kind = 0; kind < 2; kind++) {
        reshard_saver *saver = saver_of(kind, 0);
        char before[256];
        assert_non_null(getcwd(before, sizeof(before)));
        assert_int_equal(chdir(test_folder), 0);
        save_of(&save, &model, "options");
        save.options.to = "safetensors";
        save.options.exclude = excluded;
        save.options.renames = renames;
        save.options.add_prefix = "model.";
        CHECK_OK(reshard_saver_save(saver, &save.request, NULL, &err));
        assert_int_equal(chdir(before), 0);
        CHECK_OK(reshard_saver_close(saver, &err));
        CHECK_OK(reshard_open(path_of("options"), NULL, &saved, &err));
        assert_int_equal(reshard_tensor_count(saved), 2);
        assert_true(reshard_tensor_find(saved, "model.pole", 10) >= 0);
        reshard_close(saved);
    }
    reshard_shards_free(model.shards);
}

struct order {
    int64_t next;
    reshard_status worst;
};

static int order_note(int64_t number, reshard_status status, void *context)
{
    struct order *order = context;
    assert_int_equal(number, order->next++);
    order->worst = status ? status : order->worst;
    return 0;
}

TEST(saves_end_in_their_order)
{
    struct model model;
    struct save save;
    model_make(&model, 0);
    for (int64_t kind = 0; kind < 2; kind++) {
        reshard_saver *saver = saver_of(kind, 3);
        struct order order = { 0 };
        int64_t unfinished = 1;
        for (int i = 0; i < 20; i++) {
            save_of(&save, &model, path_of("order"));
            save.request.finished = order_note;
            save.request.context = &order;
            CHECK_OK(reshard_saver_save(saver, &save.request, NULL, &err));
        }
        while (unfinished > 0) {
            CHECK_OK(reshard_saver_test(saver, &unfinished, &err));
            nap();
        }
        assert_int_equal(order.next, 20);
        assert_int_equal(order.worst, RESHARD_OK);
        CHECK_FAILS(reshard_saver_wait(saver, 20, &err), RESHARD_ERR_USAGE);
        CHECK_OK(reshard_saver_close(saver, &err));
    }
    reshard_shards_free(model.shards);
}

/* ---- ranks ---- */

/* What a rank has: its row of a matrix, and a copy of a norm that all have. */
struct rank_state {
    reshard_comm *comm;
    int64_t rank, ranks, kind;
    float row[3 * 2], norm[2]; /* the row's elements lie two apart */
    reshard_error err;
    reshard_status status;
};

static void rank_fill(struct rank_state *state, float from)
{
    for (int i = 0; i < 6; i++)
        state->row[i] = from + (float)state->rank * 10 + (float)i;
    state->norm[0] = from;
    state->norm[1] = -from;
}

static reshard_status rank_describe(struct rank_state *state, reshard_sharded *sharded)
{
    const int64_t row[] = { 1, 3 }, whole[] = { state->ranks, 3 }, offset[] = { state->rank, 0 }, strides[] = { 0, 2 };
    const int64_t two[] = { 2 }, zero[] = { 0 }, one[] = { 1 }, fragments[] = { state->ranks, 1 };
    reshard_sharded_tensor tensor = RESHARD_SHARDED_TENSOR_INIT;
    reshard_sharded_value value = RESHARD_SHARDED_VALUE_INIT;
    tensor.key = NAME("matrix");
    tensor.dtype = "float32";
    tensor.rank = 2;
    tensor.local_shape = row;
    tensor.global_shape = whole;
    tensor.global_offset = offset;
    tensor.fragments = fragments;
    tensor.strides = strides;
    tensor.data = state->row;
    reshard_status status = reshard_sharded_add(sharded, &tensor, &state->err);
    tensor.key = NAME("norm");
    tensor.rank = 1;
    tensor.local_shape = tensor.global_shape = two;
    tensor.global_offset = zero;
    tensor.fragments = one;
    tensor.strides = NULL;
    tensor.replica_ids = &state->rank;
    tensor.replica_count = 1;
    tensor.data = state->norm;
    status = status ? status : reshard_sharded_add(sharded, &tensor, &state->err);
    value.key = NAME("step");
    value.json = NAME("17");
    return status ? status : reshard_sharded_add_value(sharded, &value, &state->err);
}

static void *rank_save(void *context)
{
    struct rank_state *state = context;
    struct save save;
    char path[256];
    reshard_saver *saver = NULL;
    reshard_sharded *sharded = NULL;
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    options.kind = state->kind;
    options.comm = state->comm;
    options.depth = 2;
    snprintf(path, sizeof(path), "%s/ranks", test_folder);
    reshard_status status = reshard_saver_open(&options, &saver, &state->err);
    status = status ? status : reshard_sharded_new(&sharded, &state->err);
    status = status ? status : rank_describe(state, sharded);
    for (int i = 0; i < 5 && !status; i++) {
        rank_fill(state, (float)(1000 * i));
        save_of(&save, NULL, path);
        save.request.state = NULL;
        save.request.sharded = sharded;
        status = reshard_saver_save(saver, &save.request, NULL, &state->err);
        rank_fill(state, -7);
    }
    const reshard_status closed = reshard_saver_close(saver, status ? NULL : &state->err);
    state->status = status ? status : closed;
    reshard_sharded_free(sharded);
    return NULL;
}

static void check_ranks(int64_t ranks, int64_t kind)
{
    struct rank_state states[4] = { 0 };
    reshard_comm *comms[4] = { NULL };
    pthread_t threads[4];
    reshard_checkpoint *saved;
    if (ranks > 1)
        CHECK_OK(reshard_comm_threads(ranks, NULL, comms, &err));
    for (int64_t i = 0; i < ranks; i++) {
        states[i] = (struct rank_state){ .comm = comms[i], .rank = i, .ranks = ranks, .kind = kind, .err = RESHARD_ERROR_INIT };
        assert_int_equal(pthread_create(&threads[i], NULL, rank_save, &states[i]), 0);
    }
    for (int64_t i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    for (int64_t i = 0; i < ranks; i++) {
        if (states[i].status)
            fail_msg("rank %d: %s", (int)i, states[i].err.message);
        reshard_comm_free(comms[i]);
    }
    CHECK_OK(reshard_open(path_of("ranks"), NULL, &saved, &err));
    for (int64_t i = 0; i < ranks; i++)
        assert_true(value_read(saved, "matrix", i, 2) == 4000 + (float)i * 10 + 4);
    assert_true(reshard_tensor_find(saved, "norm", 4) >= 0 && reshard_item_find(saved, "step", 4) >= 0);
    reshard_close(saved);
}

TEST(ranks_save_together)
{
    check_ranks(4, RESHARD_SAVER_THREAD);
    check_ranks(1, RESHARD_SAVER_THREAD);
    check_ranks(1, RESHARD_SAVER_PROCESS);
}

/* ---- errors ---- */

static void save_in_vain(reshard_saver *saver, const struct model *model)
{
    struct save save;
    save_of(&save, model, path_of("taken"));
    save.options.overwrite = 0;
    CHECK_OK(reshard_saver_save(saver, &save.request, NULL, &err));
}

TEST(errors_come_out_of_the_next_call)
{
    struct model model;
    struct save save;
    int64_t unfinished;
    model_make(&model, 1);
    for (int64_t kind = 0; kind < 2; kind++) {
        reshard_saver *saver = saver_of(kind, 1);
        struct order order = { 0 };
        CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path_of("taken")), NULL, &err));
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        save_in_vain(saver, &model);
        CHECK_FAILS(reshard_saver_wait(saver, -1, &err), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "save 1 to '"));
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        save_in_vain(saver, &model);
        unfinished = 1;
        while (unfinished > 0 && !reshard_saver_test(saver, &unfinished, &err))
            nap();
        assert_non_null(strstr(err.message, "save 2 to '"));
        save_in_vain(saver, &model);
        save_of(&save, &model, path_of("taken"));
        save.request.finished = order_note;
        save.request.context = &order;
        order.next = 4;
        CHECK_FAILS(reshard_saver_save(saver, &save.request, NULL, &err), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "save 3 to '"));
        CHECK_OK(reshard_saver_save(saver, &save.request, NULL, &err));
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        assert_int_equal(order.next, 5);
        save_in_vain(saver, &model);
        CHECK_FAILS(reshard_saver_close(saver, &err), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "save 5 to '"));
        check_saved(path_of("taken"), 1);
    }
    reshard_shards_free(model.shards);
}

TEST(requests_are_checked_at_once)
{
    struct model model;
    struct save save;
    reshard_saver *saver = saver_of(RESHARD_SAVER_THREAD, 0);
    model_make(&model, 1);
    save_of(&save, &model, path_of("checked"));
    save.options.resume = 1;
    CHECK_FAILS(reshard_saver_save(saver, &save.request, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "resume"));
    save_of(&save, &model, NULL);
    CHECK_FAILS(reshard_saver_save(saver, &save.request, NULL, &err), RESHARD_ERR_USAGE);
    save_of(&save, NULL, path_of("checked"));
    CHECK_FAILS(reshard_saver_save(saver, &save.request, NULL, &err), RESHARD_ERR_USAGE);
    model_add(&model, "nothing", ((const int64_t[]){ 1, 1 }), NULL, NULL, 0, 0);
    CHECK_FAILS(reshard_saver_save(saver, save_of(&save, &model, path_of("checked")), NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "nothing"));
    CHECK_OK(reshard_saver_close(saver, &err));
    reshard_shards_free(model.shards);
}

TEST(the_program_must_be_there)
{
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_saver *saver;
    options.kind = RESHARD_SAVER_PROCESS;
    options.program = "/nonexistent/reshard-saver";
    CHECK_FAILS(reshard_saver_open(&options, &saver, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "/nonexistent/reshard-saver"));
    assert_null(saver);
    options.program = "/bin/true";
    CHECK_FAILS(reshard_saver_open(&options, &saver, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "no reshard-saver"));
    options.kind = 2;
    CHECK_FAILS(reshard_saver_open(&options, &saver, &err), RESHARD_ERR_USAGE);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* ---- killing ---- */

/* A tensor that takes a while to write. */
struct large {
    size_t count;
    float *values;
    struct model model;
};

static void square_make(struct large *large, int64_t edge, float value)
{
    const int64_t extent[] = { edge, edge };
    large->count = (size_t)(edge * edge);
    large->values = malloc(large->count * sizeof(*large->values));
    assert_non_null(large->values);
    for (size_t i = 0; i < large->count; i++)
        large->values[i] = value;
    CHECK_OK(reshard_shards_new(&large->model.shards, &err));
    model_add(&large->model, "large", extent, NULL, large->values, 0, 0);
    large->model.state = (reshard_state)RESHARD_STATE_INIT;
    large->model.state.shards = large->model.shards;
}

static void large_make(struct large *large, float value)
{
    square_make(large, 4096, value);
}

static void large_release(struct large *large)
{
    reshard_shards_free(large->model.shards);
    free(large->values);
}

static void check_large(const char *path, float value)
{
    reshard_checkpoint *saved;
    reshard_verify_options options = RESHARD_VERIFY_OPTIONS_INIT;
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    assert_true(value_read(saved, "large", 0, 0) == value && value_read(saved, "large", 4095, 4095) == value);
    CHECK_OK(reshard_verify(saved, &options, NULL, NULL, NULL, &err));
    reshard_close(saved);
}

/* ---- memory for copies ---- */

/* What the kernel answers who asks for pages: an errno, or 0 as it would. */
static _Atomic int pages_answer;
static _Atomic unsigned pages_asked;
int __real_madvise(void *memory, size_t size, int advice);
int __wrap_madvise(void *memory, size_t size, int advice);
int __wrap_madvise(void *memory, size_t size, int advice)
{
    if (advice != MADV_POPULATE_WRITE)
        return __real_madvise(memory, size, advice);
    pages_asked++;
    if (!pages_answer)
        return __real_madvise(memory, size, advice);
    errno = pages_answer;
    return -1;
}

TEST(copies_that_get_no_memory_fail_before_anything_is_copied)
{
    struct large large, middle;
    struct model small;
    struct save save;
    reshard_saver *saver = saver_of(RESHARD_SAVER_THREAD, 0);
    large_make(&large, 5);
    square_make(&middle, 3072, 7); /* over 32 MiB: what malloc maps and gives back as it is */
    model_make(&small, 2);
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &small, path_of("room")), NULL, &err));
    CHECK_OK(reshard_saver_wait(saver, -1, &err));
    pages_answer = ENOMEM;
    CHECK_FAILS(reshard_saver_save(saver, save_of(&save, &large.model, path_of("no-room")), NULL, &err), RESHARD_ERR_IO);
    assert_int_equal(err.sys_errno, ENOMEM);
    assert_non_null(strstr(err.message, "bytes of memory for copies"));
    assert_false(is_there(path_of("no-room")));
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &small, path_of("room-again")), NULL, &err)); /* what there was is enough */
    CHECK_OK(reshard_saver_wait(saver, -1, &err));
    check_saved(path_of("room-again"), 2);
    pages_answer = 0; /* less than what there was no memory for, and more than what there was */
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &middle.model, path_of("room-between")), NULL, &err));
    CHECK_OK(reshard_saver_wait(saver, -1, &err));
    pages_answer = EINVAL; /* a kernel that has no such advice */
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &large.model, path_of("old-kernel")), NULL, &err));
    pages_answer = 0;
    CHECK_OK(reshard_saver_close(saver, &err));
    check_large(path_of("old-kernel"), 5);
    large_release(&large);
    large_release(&middle);
    reshard_shards_free(small.shards);
}

/* 64 MiB and the request behind them, by parts of 32 MiB. */
TEST(pages_of_copies_are_asked_for_once)
{
    struct large large;
    struct save save;
    reshard_saver *saver = saver_of(RESHARD_SAVER_THREAD, 0);
    large_make(&large, 6);
    pages_asked = 0;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(reshard_saver_save(saver, save_of(&save, &large.model, path_of("once")), NULL, &err));
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        assert_int_equal(pages_asked, 3);
    }
    CHECK_OK(reshard_saver_close(saver, &err));
    check_large(path_of("once"), 6);
    large_release(&large);
}

/* Files in the folder beside what is saved: a save is under way. */
static bool is_being_written(void)
{
    DIR *files = opendir(test_folder);
    const struct dirent *entry;
    bool found = false;
    while ((entry = readdir(files)))
        found |= strncmp(entry->d_name, ".", 1) == 0 && strlen(entry->d_name) > 2;
    closedir(files);
    return found;
}

TEST(a_killed_program_leaves_what_was_there)
{
    struct large large;
    struct save save;
    reshard_saver *saver = saver_of(RESHARD_SAVER_PROCESS, 0);
    large_make(&large, 1);
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &large.model, path_of("killed")), NULL, &err));
    CHECK_OK(reshard_saver_wait(saver, -1, &err));
    large.values[0] = large.values[large.count - 1] = 2;
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &large.model, path_of("killed")), NULL, &err));
    while (!is_being_written())
        ;
    kill(child_find(), SIGKILL);
    CHECK_FAILS(reshard_saver_wait(saver, -1, &err), RESHARD_ERR_IO);
    assert_non_null(strstr(err.message, "killed by signal 9"));
    check_large(path_of("killed"), 1);
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &large.model, path_of("killed")), NULL, &err));
    CHECK_OK(reshard_saver_close(saver, &err));
    check_large(path_of("killed"), 2);
    assert_false(is_being_written());
    large_release(&large);
}

static int stop_at_second(void *context)
{
    int *count = context;
    return ++*count == 2;
}

TEST(a_caller_waits_as_long_as_it_says_so)
{
    struct model model;
    struct save save;
    int count = 0;
    reshard_saver_options options = RESHARD_SAVER_OPTIONS_INIT;
    reshard_saver *saver;
    options.kind = RESHARD_SAVER_PROCESS;
    options.waiting = stop_at_second;
    options.context = &count;
    CHECK_OK(reshard_saver_open(&options, &saver, &err));
    model_make(&model, 3);
    kill(child_find(), SIGSTOP);
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path_of("waits")), NULL, &err));
    CHECK_FAILS(reshard_saver_wait(saver, -1, &err), RESHARD_ERR_CANCELLED);
    count = 0;
    CHECK_FAILS(reshard_saver_save(saver, save_of(&save, &model, path_of("waits-not")), NULL, &err), RESHARD_ERR_CANCELLED);
    assert_int_equal(count, 2);
    kill(child_find(), SIGCONT);
    CHECK_OK(reshard_saver_close(saver, &err)); /* which does not ask */
    check_saved(path_of("waits"), 3);
    reshard_shards_free(model.shards);
}

TEST(a_program_killed_between_saves_is_replaced)
{
    struct model model;
    struct save save;
    reshard_saver *saver = saver_of(RESHARD_SAVER_PROCESS, 0);
    model_make(&model, 3);
    kill(child_find(), SIGKILL);
    nap();
    if (reshard_saver_save(saver, save_of(&save, &model, path_of("between")), NULL, &err) || reshard_saver_wait(saver, -1, &err)) {
        CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path_of("between")), NULL, &err));
    }
    CHECK_OK(reshard_saver_close(saver, &err));
    check_saved(path_of("between"), 3);
    reshard_shards_free(model.shards);
}

/* As a trainer's workers are, which have all that this process had open. */
TEST(a_closed_saver_does_not_wait_for_processes_that_were_forked)
{
    reshard_saver *saver = saver_of(RESHARD_SAVER_PROCESS, 0);
    int ended[2];
    char byte;
    assert_int_equal(pipe(ended), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ended[1]);
        alarm(20); /* what waits for it goes on then */
        _exit(read(ended[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ended[0]);
    CHECK_OK(reshard_saver_close(saver, &err));
    close(ended[1]);
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
}

/* In a process of its own, where no check may go on to other tests. */
static void job_save_and_die(void)
{
    struct large large;
    struct save save;
    setpgid(0, 0);
    reshard_saver *saver = saver_of(RESHARD_SAVER_PROCESS, 2);
    large_make(&large, 7);
    if (reshard_saver_save(saver, save_of(&save, &large.model, path_of("orphan")), NULL, &err) ||
        reshard_saver_save(saver, save_of(&save, &large.model, path_of("orphan-next")), NULL, &err))
        _exit(1);
    kill(0, SIGKILL); /* with all of its process group, as a terminal or a scheduler does */
}

TEST(a_killed_job_has_its_save)
{
    const pid_t job = fork();
    if (job == 0)
        job_save_and_die();
    int how;
    assert_int_equal(waitpid(job, &how, 0), job);
    assert_true(WIFSIGNALED(how));
    for (int i = 0; i < 5000 && !is_there(path_of("orphan-next")); i++)
        nap();
    check_large(path_of("orphan"), 7);
    check_large(path_of("orphan-next"), 7);
}

/* Sanitizers keep what was freed for a while. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH_PAGES 200000
#else
#define GROWTH_PAGES 128
#endif

TEST(a_thousand_saves_take_no_more_memory)
{
    struct model model;
    struct save save;
    model_make(&model, 0);
    for (int64_t kind = 0; kind < 2; kind++) {
        reshard_saver *saver = saver_of(kind, 2);
        const pid_t writer = kind ? child_find() : getpid();
        long own = 0, others = 0;
        int files = 0;
        for (int i = 0; i < 1000; i++) {
            save_of(&save, &model, path_of("thousand"));
            save.options.to = "safetensors";
            CHECK_OK(reshard_saver_save(saver, &save.request, NULL, &err));
            if (i == 200) {
                CHECK_OK(reshard_saver_wait(saver, -1, &err));
                own = resident_pages(getpid());
                others = resident_pages(writer);
                files = open_files(writer) + open_files(getpid());
            }
        }
        CHECK_OK(reshard_saver_wait(saver, -1, &err));
        assert_true(resident_pages(getpid()) - own < GROWTH_PAGES);
        assert_true(resident_pages(writer) - others < GROWTH_PAGES);
        assert_int_equal(open_files(writer) + open_files(getpid()), files);
        CHECK_OK(reshard_saver_close(saver, &err));
    }
    reshard_shards_free(model.shards);
}

/* ---- the request's bytes ---- */

static void check_item(const reshard_checkpoint *checkpoint, reshard_str key, const char *expected)
{
    char *json;
    size_t size;
    const int64_t found = reshard_item_find(checkpoint, key.data, key.size);
    assert_true(found >= 0);
    CHECK_OK(reshard_item_json(checkpoint, (size_t)found, &json, &size, &err));
    assert_string_equal(json, expected);
    reshard_free(json);
}

/* Beside texts: values that JSON cannot say, and files of torch.save. */
static void check_items_go_along(int64_t kind)
{
    struct model model;
    struct save save;
    reshard_value_info seed = RESHARD_VALUE_INFO_INIT;
    reshard_items *values;
    reshard_checkpoint *saved;
    void *file;
    size_t size;
    char path[256];
    snprintf(path, sizeof(path), "%s/items", test_folder);
    reshard_saver *saver = saver_of(kind, 1);
    model_make(&model, 0);
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path), NULL, &err));
    CHECK_OK(reshard_saver_wait(saver, -1, &err));
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    CHECK_OK(reshard_item_file(saved, (size_t)reshard_item_find(saved, "step", 4), &file, &size, &err));
    reshard_close(saved);
    seed.kind = RESHARD_VALUE_BYTES;
    seed.text = NAME("\xff\0\x80");
    CHECK_OK(reshard_items_new(&values, &err));
    CHECK_OK(reshard_items_add(values, NULL, NAME("seed"), &seed, NULL, &err));
    CHECK_OK(reshard_items_add_file(values, NAME("again"), file, size, &err));
    reshard_free(file);
    model.state.values = values;
    CHECK_OK(reshard_saver_save(saver, save_of(&save, &model, path), NULL, &err));
    reshard_items_free(values);
    CHECK_OK(reshard_saver_close(saver, &err));
    check_saved(path, 0);
    CHECK_OK(reshard_open(path, NULL, &saved, &err));
    assert_int_equal(reshard_item_count(saved), 3);
    check_item(saved, NAME("seed"), "{\"__bytes__\": \"ff0080\"}");
    check_item(saved, NAME("again"), "17");
    reshard_close(saved);
    reshard_shards_free(model.shards);
}

TEST(items_of_all_kinds_go_along)
{
    check_items_go_along(RESHARD_SAVER_THREAD);
    check_items_go_along(RESHARD_SAVER_PROCESS);
}

/* The linker gives the wrapped function this name. */
static bool disk_is_full;
int __real_statvfs64(const char *path, struct statvfs *out);
int __wrap_statvfs64(const char *path, struct statvfs *out);
int __wrap_statvfs64(const char *path, struct statvfs *out)
{
    int result = __real_statvfs64(path, out);
    if (disk_is_full)
        out->f_bavail = 0;
    return result;
}

/* What is damaged, and a whole one whose options say whether the disk's room counts. */
TEST(damaged_requests_are_refused)
{
    struct model model;
    struct save save;
    const reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    const uint64_t offsets[4] = { 0, 128, 256, 320 };
    const uint8_t values[384] = { 0 };
    const uint64_t outside = sizeof(values) - 8;
    struct buffer bytes = { 0 }, other = { 0 };
    model_make(&model, 0);
    save_of(&save, &model, path_of("damaged"));
    struct saver_request request = {
        .items = &model.item, .item_count = 1, .path = save.request.path, .options = &save.options, .run = &run
    };
    struct shard_list list = { 0 };
    const int64_t shape[] = { 2, 3 }, start[] = { 0, 0 };
    const struct shard shard = { .key = STR("w"),
                                 .dtype = DTYPE_F32,
                                 .rank = 2,
                                 .shape = shape,
                                 .start = start,
                                 .extent = shape,
                                 .data = (uint8_t *)(uintptr_t)values };
    CHECK_OK(shard_list_add(&list, &shard, &err));
    request.shards = &list;
    CHECK_OK(saver_request_write(&request, offsets, &bytes, &err));
    for (size_t size = 0; size < bytes.size; size++) {
        uint8_t *own = malloc(size + 1);
        memcpy(own, bytes.data, size);
        CHECK_FAILS(saver_request_run(own, size, values, sizeof(values), NULL, &err), RESHARD_ERR_FORMAT);
        free(own);
    }
    CHECK_FAILS(saver_request_run(bytes.data, bytes.size, values, 16, NULL, &err), RESHARD_ERR_FORMAT);
    CHECK_OK(saver_request_write(&request, &outside, &other, &err));
    CHECK_FAILS(saver_request_run(other.data, other.size, values, sizeof(values), NULL, &err), RESHARD_ERR_FORMAT);
    buffer_release(&other);
    assert_false(is_there(path_of("damaged")));
    disk_is_full = true;
    CHECK_FAILS(saver_request_run(bytes.data, bytes.size, values, sizeof(values), NULL, &err), RESHARD_ERR_IO);
    save.options.no_space_check = 1;
    buffer_clear(&bytes);
    CHECK_OK(saver_request_write(&request, offsets, &bytes, &err));
    CHECK_OK(saver_request_run(bytes.data, bytes.size, values, sizeof(values), NULL, &err));
    disk_is_full = false;
    assert_true(is_there(path_of("damaged")));
    buffer_release(&bytes);
    shard_list_release(&list);
    reshard_shards_free(model.shards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_saves_what_was_there),
        cmocka_unit_test(a_program_saves_what_was_there),
        cmocka_unit_test(options_go_along),
        cmocka_unit_test(items_of_all_kinds_go_along),
        cmocka_unit_test(saves_end_in_their_order),
        cmocka_unit_test(ranks_save_together),
        cmocka_unit_test(errors_come_out_of_the_next_call),
        cmocka_unit_test(requests_are_checked_at_once),
        cmocka_unit_test(the_program_must_be_there),
        cmocka_unit_test(copies_that_get_no_memory_fail_before_anything_is_copied),
        cmocka_unit_test(pages_of_copies_are_asked_for_once),
        cmocka_unit_test(a_killed_program_leaves_what_was_there),
        cmocka_unit_test(a_caller_waits_as_long_as_it_says_so),
        cmocka_unit_test(a_program_killed_between_saves_is_replaced),
        cmocka_unit_test(a_closed_saver_does_not_wait_for_processes_that_were_forked),
        cmocka_unit_test(a_killed_job_has_its_save),
        cmocka_unit_test(a_thousand_saves_take_no_more_memory),
        cmocka_unit_test(damaged_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
