/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints in a store of the caller's, which here is a folder behind callbacks: converted into it and out of it, written into it by
 * pieces; replaced there; and what becomes of callbacks that fail at any call, read too little, take their time, or lie about sizes and
 * names.
 */
#include "check.h"
#include "fail_malloc.h"

#include "reshard/plan.h"
#include "reshard/sharded.h"
#include "reshard/store.h"
#include "reshard/writer.h"
#include "test_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static reshard_error err;

/* How the store misbehaves. */
static struct {
    atomic_int calls; /* made so far; removing does not count */
    int fails_at;     /* the call of that number fails; 0: none */
    int dies_at;      /* and all from this one on, removing too: the process is killed there */
    int number;       /* with this */
    int adds_to_size;
    bool reads_short, reads_nothing, reads_beyond, is_slow, finds_folders, finds_files;
    const char *lists; /* a name more */
} manners;

static int called(void)
{
    int call = atomic_fetch_add(&manners.calls, 1) + 1;
    if (manners.is_slow && call % 3 == 0)
        nanosleep(&(struct timespec){ 0, 3000000 }, NULL);
    return call == manners.fails_at || (manners.dies_at && call >= manners.dies_at) ? manners.number : 0;
}

static void behave(void)
{
    memset(&manners, 0, sizeof(manners));
    manners.number = EIO;
}

/* ---- the store ---- */

struct object {
    int fd;
};

static void full_path(const char *path, char out[512])
{
    snprintf(out, 512, "%s/store/%s", test_folder, path);
}

static void make_parents(const char *full)
{
    char folder[512];
    for (const char *slash = strchr(full + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - full), full);
        mkdir(folder, 0777);
    }
}

static int do_look(const char *path, int *is_folder, uint64_t *bytes, uint64_t *version, void *context)
{
    struct stat info;
    char full[512];
    int number = called();
    (void)context;
    full_path(path, full);
    if (number)
        return number;
    if (stat(full, &info))
        return errno;
    *is_folder = manners.finds_folders || (S_ISDIR(info.st_mode) && !manners.finds_files);
    *bytes = (uint64_t)info.st_size;
    *version = (uint64_t)info.st_mtime;
    return 0;
}

static int do_list(const char *folder, reshard_store_sink sink, void *sink_context, void *context)
{
    char full[512];
    int number = called();
    (void)context;
    full_path(folder, full);
    DIR *stream = number ? NULL : opendir(full);
    if (!stream)
        return number ? number : errno;
    for (struct dirent *entry; !number && (entry = readdir(stream));) {
        char inner[1024];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof(inner), "%s/%s", full, entry->d_name);
        if (stat(inner, &info) == 0)
            number = sink(entry->d_name, strlen(entry->d_name), S_ISDIR(info.st_mode), (uint64_t)info.st_size, sink_context);
    }
    if (!number && manners.lists)
        number = sink(manners.lists, strlen(manners.lists), 0, 1, sink_context);
    closedir(stream);
    return number;
}

static int open_as(const char *path, int flags, void **object, struct stat *info)
{
    char full[512];
    int number = called();
    if (number)
        return number;
    full_path(path, full);
    if (flags & O_CREAT)
        make_parents(full);
    struct object *made = malloc(sizeof(*made));
    if (!made)
        return ENOMEM;
    made->fd = open(full, flags, 0666);
    if (made->fd < 0 || fstat(made->fd, info)) {
        number = errno;
        free(made);
        return number;
    }
    *object = made;
    return 0;
}

static int do_open(const char *path, void **object, uint64_t *bytes, void *context)
{
    struct stat info;
    (void)context;
    int number = open_as(path, O_RDONLY, object, &info);
    if (!number)
        *bytes = (uint64_t)(info.st_size + manners.adds_to_size);
    return number;
}

static int do_read_at(void *object, uint64_t offset, void *out, size_t size, size_t *done, void *context)
{
    int number = called();
    (void)context;
    if (number)
        return number;
    ssize_t got = pread(((struct object *)object)->fd, out, manners.reads_short ? size / 2 + 1 : size, (off_t)offset);
    *done = manners.reads_nothing ? 0 : manners.reads_beyond ? size + 1 : (size_t)got;
    return got < 0 ? errno : 0;
}

static int do_close(void *object, void *context)
{
    int number = called();
    (void)context;
    close(((struct object *)object)->fd);
    free(object);
    return number;
}

static int do_create(const char *path, uint64_t bytes, void **object, void *context)
{
    struct stat info;
    (void)context;
    int number = open_as(path, O_RDWR | O_CREAT | O_EXCL, object, &info);
    if (!number)
        assert_int_equal(ftruncate(((struct object *)*object)->fd, (off_t)bytes), 0);
    return number;
}

static int do_write_at(void *object, uint64_t offset, const void *bytes, size_t size, void *context)
{
    int number = called();
    (void)context;
    if (number)
        return number;
    return pwrite(((struct object *)object)->fd, bytes, size, (off_t)offset) == (ssize_t)size ? 0 : EIO;
}

static int do_resize(void *object, uint64_t bytes, void *context)
{
    int number = called();
    (void)context;
    return number ? number : ftruncate(((struct object *)object)->fd, (off_t)bytes) ? errno : 0;
}

static int do_sync(void *object, void *context)
{
    (void)object;
    (void)context;
    return called();
}

static int do_rename(const char *from, const char *to, void *context)
{
    char full_from[512], full_to[512];
    struct stat info;
    int number = called();
    (void)context;
    full_path(from, full_from);
    full_path(to, full_to);
    assert_int_equal(stat(full_to, &info), -1); /* as the header promises */
    return number ? number : rename(full_from, full_to) ? errno : 0;
}

static int do_remove(const char *path, void *context)
{
    char full[512];
    (void)context;
    if (manners.dies_at && atomic_load(&manners.calls) + 1 >= manners.dies_at)
        return manners.number;
    full_path(path, full);
    return test_tree_remove(full) ? EIO : 0;
}

static reshard_store store_make(void)
{
    reshard_store store = RESHARD_STORE_INIT;
    store.name = "test://";
    store.look = do_look;
    store.list = do_list;
    store.open = do_open;
    store.read_at = do_read_at;
    store.close = do_close;
    store.create = do_create;
    store.write_at = do_write_at;
    store.resize = do_resize;
    store.sync = do_sync;
    store.rename = do_rename;
    store.remove = do_remove;
    return store;
}

static int work_make(void **state)
{
    char store[128];
    behave();
    if (test_folder_make(state))
        return -1;
    snprintf(store, sizeof(store), "%s/store", test_folder);
    return mkdir(store, 0777);
}

/* Whether nothing is in the store, or in a folder of it; folders of parents stay. */
static bool is_empty(const char *folder)
{
    char command[512];
    snprintf(command, sizeof(command), "test -z \"$(find %s/store/%s -mindepth 1 ! -name deep)\"", test_folder, folder);
    return system(command) == 0;
}

static reshard_checkpoint *open_sample(void)
{
    char path[4096];
    reshard_checkpoint *opened;
    snprintf(path, sizeof(path), "%s/torch-dcp/dcp-small/ckpt", test_fixtures());
    CHECK_OK(reshard_open(path, NULL, &opened, &err));
    return opened;
}

static reshard_status put_sample(reshard_checkpoint *sample, const char *format, const char *option, const char *path)
{
    const reshard_store store = store_make();
    const char *format_options[] = { option, NULL };
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    options.to = format;
    options.format_options = option ? format_options : NULL;
    options.store = &store;
    return reshard_convert(sample, path, &options, NULL, NULL, &err);
}

/* ---- what works ---- */

TEST(checkpoints_go_into_a_store_and_out_of_it)
{
    static const struct {
        const char *format, *option, *path;
    } targets[] = { { "torch-dcp", NULL, "deep/dcp" },
                    { "safetensors", NULL, "deep/one.safetensors" },
                    { "torch", NULL, "one.pt" },
                    { "hf", NULL, "hf" },
                    { "zarr", "codec=zstd", "deep/deep/zarr" },
                    { "paddle-flex", NULL, "flex" } };
    const reshard_store store = store_make();
    reshard_checkpoint *sample = open_sample(), *opened;
    reshard_diff_options diff = RESHARD_DIFF_OPTIONS_INIT;
    diff.ignore_items = 1;
    manners.reads_short = true;
    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        CHECK_OK(put_sample(sample, targets[i].format, targets[i].option, targets[i].path));
        assert_int_equal(put_sample(sample, targets[i].format, targets[i].option, targets[i].path), RESHARD_ERR_IO);
        CHECK_OK(reshard_open_in(&store, targets[i].path, NULL, &opened, &err));
        assert_string_equal(reshard_checkpoint_format(opened), targets[i].format);
        CHECK_OK(reshard_diff(sample, opened, &diff, NULL, NULL, NULL, &err));
        CHECK_OK(reshard_verify(opened, NULL, NULL, NULL, NULL, &err));
        reshard_close(opened);
    }
    reshard_close(sample);
}

TEST(what_is_written_is_verified_and_summed_there)
{
    const reshard_store store = store_make();
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *sample = open_sample(), *opened;
    options.to = "torch-dcp";
    options.store = &store;
    options.verify = 1;
    options.checksum = "crc32c";
    CHECK_OK(reshard_convert(sample, "target", &options, NULL, NULL, &err));
    CHECK_OK(reshard_open_in(&store, "target", NULL, &opened, &err));
    reshard_coverage coverage = RESHARD_COVERAGE_INIT;
    reshard_verify_options verify = RESHARD_VERIFY_OPTIONS_INIT;
    verify.coverage = &coverage;
    CHECK_OK(reshard_verify(opened, &verify, NULL, NULL, NULL, &err));
    assert_true(coverage.has_sidecar);
    assert_int_equal(coverage.checked_tensors, coverage.tensors);
    reshard_close(opened);
    reshard_close(sample);
}

TEST(pieces_go_into_a_store)
{
    static const float values[] = { 1, 2, 3, 4, 5, 6 };
    const int64_t shape[] = { 2, 3 };
    const reshard_store store = store_make();
    const reshard_writer_tensor tensor = { { "w", 1 }, "F32", 2, shape };
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_checkpoint *opened;
    reshard_writer *writer;
    float found[6];
    options.to = "safetensors";
    options.store = &store;
    input.tensors = &tensor;
    input.tensor_count = 1;
    piece.data = values;
    piece.size = sizeof(values);
    CHECK_OK(reshard_writer_open(&input, "deep/w.safetensors", &options, NULL, NULL, &writer, &err));
    reshard_writer_free(writer);
    assert_true(is_empty(""));
    CHECK_OK(reshard_writer_open(&input, "deep/w.safetensors", &options, NULL, NULL, &writer, &err));
    CHECK_OK(reshard_writer_put(writer, &piece, &err));
    CHECK_OK(reshard_writer_finish(writer, &err));
    reshard_writer_free(writer);
    CHECK_OK(reshard_open_in(&store, "deep/w.safetensors", NULL, &opened, &err));
    CHECK_OK(reshard_read_into(opened, 0, NULL, NULL, NULL, found, sizeof(found), &err));
    assert_memory_equal(found, values, sizeof(values));
    reshard_close(opened);
}

TEST(callbacks_may_take_their_time)
{
    const reshard_store store = store_make();
    reshard_run_options run = RESHARD_RUN_OPTIONS_INIT;
    reshard_checkpoint *sample = open_sample(), *opened;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    manners.is_slow = true;
    options.to = "hf";
    options.store = &store;
    options.verify = 1;
    run.threads = 4;
    run.memory_bytes = 1 << 16;
    CHECK_OK(reshard_convert(sample, "slow", &options, &run, NULL, &err));
    CHECK_OK(reshard_open_in(&store, "slow", NULL, &opened, &err));
    options.to = "torch-dcp";
    CHECK_OK(reshard_convert(opened, "slower", &options, &run, NULL, &err));
    reshard_close(opened);
    reshard_close(sample);
}

/* ---- replacing ---- */

/* A checkpoint of one tensor, whose values are this number, at a path, in place of what is there. */
static reshard_status put_number(const char *format, const char *path, float number, bool overwrite)
{
    const float values[] = { number, number, number };
    const int64_t shape[] = { 3 };
    const reshard_store store = store_make();
    const reshard_writer_tensor tensor = { { "w", 1 }, "F32", 1, shape };
    reshard_writer_input input = RESHARD_WRITER_INPUT_INIT;
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_piece piece = RESHARD_PIECE_INIT;
    reshard_writer *writer;
    options.to = format;
    options.store = &store;
    options.overwrite = overwrite;
    input.tensors = &tensor;
    input.tensor_count = 1;
    piece.data = values;
    piece.size = sizeof(values);
    reshard_status status = reshard_writer_open(&input, path, &options, NULL, NULL, &writer, &err);
    if (!status)
        status = reshard_writer_put(writer, &piece, &err);
    if (!status)
        status = reshard_writer_finish(writer, &err);
    reshard_writer_free(writer);
    return status;
}

/* The number that is there, 0 if nothing is. */
static float number_at(const char *path)
{
    const reshard_store store = store_make();
    reshard_checkpoint *opened;
    float found[3] = { 0 };
    if (reshard_open_in(&store, path, NULL, &opened, &err))
        return 0;
    CHECK_OK(reshard_read_into(opened, 0, NULL, NULL, NULL, found, sizeof(found), &err));
    reshard_close(opened);
    return found[0];
}

TEST(a_checkpoint_replaces_another)
{
    static const char *const formats[] = { "torch-dcp", "hf", "safetensors", "zarr" };
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof(path), "deep/%s", i == 2 ? "one.safetensors" : formats[i]);
        CHECK_OK(put_number(formats[i], path, 1, true));
        assert_int_equal(put_number(formats[i], path, 2, false), RESHARD_ERR_IO);
        assert_true(number_at(path) == 1);
        CHECK_OK(put_number(formats[i], path, 2, true));
        assert_true(number_at(path) == 2);
        do_remove(path, NULL);
        assert_true(is_empty("")); /* the old one is gone, under every name */
    }
    CHECK_OK(put_number("hf", "other", 1, false));
    CHECK_OK(put_number("torch-dcp", "other", 2, true)); /* of another format */
    assert_true(number_at("other") == 2);
}

/* After a failure the old one is there, or the new one, whole; killed anywhere, too, at the latest once a run has looked. */
static void check_replacing(const char *format, const char *path, bool dies)
{
    int calls, lost = 0, kept = 0;
    do_remove(path, NULL);
    CHECK_OK(put_number(format, path, 1, false));
    behave();
    CHECK_OK(put_number(format, path, 2, true));
    calls = atomic_load(&manners.calls);
    assert_true(calls > 8);
    for (int at = 1; at <= calls; at++) {
        behave();
        do_remove(path, NULL);
        CHECK_OK(put_number(format, path, 1, true));
        behave();
        *(dies ? &manners.dies_at : &manners.fails_at) = at;
        reshard_status status = put_number(format, path, 2, true);
        behave();
        float found = number_at(path);
        if (status ? (found != 1 && !(dies && found != 2)) : found != 2)
            fail_msg("%s, call %d of %d: status %d and %g", format, at, calls, status, (double)found);
        lost += found == 0;
        assert_int_equal(put_number(format, path, 3, false), RESHARD_ERR_IO); /* there is something, or it comes back */
        kept += number_at(path) == 1;
        assert_true(number_at(path) == 1 || number_at(path) == 2);
        CHECK_OK(put_number(format, path, 4, true));
        assert_true(number_at(path) == 4);
        do_remove(path, NULL);
        assert_true(is_empty(""));
    }
    assert_true(kept > calls / 2);
    assert_int_equal(lost, dies); /* only between the two renames is nothing there */
}

TEST(what_is_replaced_is_there_until_the_new_one_is)
{
    check_replacing("torch-dcp", "target", false);
    check_replacing("torch-dcp", "target", true);
    check_replacing("safetensors", "deep/one.safetensors", false);
    check_replacing("safetensors", "deep/one.safetensors", true);
}

static void file_put(const char *path)
{
    char full[512];
    full_path(path, full);
    make_parents(full);
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_int_equal(fputs("precious", file) < 0, 0);
    fclose(file);
}

TEST(what_is_no_checkpoint_is_not_replaced)
{
    const reshard_store store = store_make();
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *opened;
    file_put("thesis/chapter.txt");
    file_put("notes.txt");
    assert_int_equal(put_number("torch-dcp", "thesis", 1, true), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'thesis' is no checkpoint"));
    assert_int_equal(put_number("safetensors", "notes.txt", 1, true), RESHARD_ERR_USAGE);
    CHECK_OK(put_number("torch-dcp", "good", 1, true));
    file_put("good/plots/precious.png");
    assert_int_equal(put_number("torch-dcp", "good", 2, true), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "'plots'"));
    assert_true(number_at("good") == 1);
    /* Nor is what is being read. */
    CHECK_OK(put_number("torch-dcp", "source", 1, true));
    CHECK_OK(reshard_open_in(&store, "source", NULL, &opened, &err));
    options.to = "torch-dcp";
    options.store = &store;
    options.overwrite = 1;
    assert_int_equal(reshard_convert(opened, "source", &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "the source"));
    assert_int_equal(reshard_convert(opened, "source/inner", &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    CHECK_OK(reshard_convert(opened, "source-2", &options, NULL, NULL, &err));
    reshard_close(opened);
    assert_true(number_at("source") == 1);
}

/* ---- what does not work ---- */

TEST(a_target_is_whole_or_not_there_whichever_call_fails)
{
    reshard_checkpoint *sample = open_sample();
    int calls;
    CHECK_OK(put_sample(sample, "zarr", "codec=zstd", "target"));
    calls = atomic_load(&manners.calls);
    assert_true(calls > 20);
    for (int at = 1; at <= calls; at += at < 60 ? 1 : 7) {
        do_remove("target", NULL);
        behave();
        manners.fails_at = at;
        assert_int_equal(put_sample(sample, "zarr", "codec=zstd", "target"), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "the store cannot"));
        assert_true(is_empty(""));
    }
    behave();
    manners.fails_at = 5;
    manners.number = ECANCELED;
    assert_int_equal(put_sample(sample, "zarr", "codec=zstd", "target"), RESHARD_ERR_CANCELLED);
    reshard_close(sample);
}

static reshard_status read_all(const char *path)
{
    const reshard_store store = store_make();
    reshard_checkpoint *opened;
    reshard_status status = reshard_open_in(&store, path, NULL, &opened, &err);
    if (status)
        return status;
    status = reshard_verify(opened, NULL, NULL, NULL, NULL, &err);
    for (size_t i = 0; !status && i < reshard_tensor_count(opened); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        CHECK_OK(reshard_tensor_at(opened, i, &tensor));
        void *values = malloc(tensor.bytes + 1);
        status = values ? reshard_read_into(opened, i, NULL, NULL, NULL, values, tensor.bytes, &err) : RESHARD_ERR_MEMORY;
        free(values);
    }
    reshard_close(opened);
    return status;
}

TEST(reading_fails_where_a_call_does)
{
    reshard_checkpoint *sample = open_sample();
    CHECK_OK(put_sample(sample, "torch-dcp", NULL, "target"));
    behave();
    CHECK_OK(read_all("target"));
    int calls = atomic_load(&manners.calls), failed = 0;
    for (int at = 1; at <= calls; at++) {
        behave();
        manners.fails_at = at;
        reshard_status status = read_all("target"); /* closing what was read cannot hurt */
        failed += status == RESHARD_ERR_IO;
        assert_true(status == RESHARD_ERR_IO || !status);
    }
    assert_true(failed > calls / 2);
    reshard_close(sample);
}

/* A caller who stops any call is heard, and nothing is taken for something else instead. */
TEST(reading_ends_where_it_is_told_to)
{
    static const char *const formats[] = { "torch-dcp", "hf", "paddle-flex", "zarr" };
    static const struct {
        int number;
        reshard_status status;
    } reasons[] = { { ECANCELED, RESHARD_ERR_CANCELLED }, { ENOMEM, RESHARD_ERR_MEMORY }, { EIO, RESHARD_ERR_IO } };
    reshard_checkpoint *sample = open_sample();
    for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
        const reshard_store store = store_make();
        reshard_checkpoint *opened;
        CHECK_OK(put_sample(sample, formats[f], NULL, formats[f]));
        behave();
        CHECK_OK(reshard_open_in(&store, formats[f], NULL, &opened, &err));
        const size_t items = reshard_item_count(opened);
        reshard_close(opened);
        const int calls = atomic_load(&manners.calls);
        for (int at = 1; at <= calls; at++) {
            for (size_t r = 0; r < sizeof(reasons) / sizeof(*reasons); r++) {
                behave();
                manners.fails_at = at;
                manners.number = reasons[r].number;
                reshard_status status = reshard_open_in(&store, formats[f], NULL, &opened, &err);
                if (status ? status != reasons[r].status : strcmp(reshard_checkpoint_format(opened), formats[f]) != 0)
                    fail_msg("%s, call %d, errno %d: status %d: %s", formats[f], at, manners.number, status, err.message);
                if (!status)
                    assert_int_equal(reshard_item_count(opened), items);
                reshard_close(status ? NULL : opened);
            }
        }
    }
    reshard_close(sample);
}

/* The store's own allocations too, which it tells as ENOMEM. */
TEST(reading_takes_memory_or_fails)
{
    reshard_checkpoint *sample = open_sample();
    unsigned long failed = 0;
    bool is_hit = true;
    CHECK_OK(put_sample(sample, "torch-dcp", NULL, "target"));
    behave();
    for (unsigned long nth = 1; is_hit; nth = fail_next(nth)) {
        fail_malloc_at(nth);
        reshard_status status = read_all("target");
        is_hit = fail_malloc_was_hit();
        if (status && (!is_hit || (status != RESHARD_ERR_MEMORY && (status != RESHARD_ERR_IO || err.sys_errno != ENOMEM))))
            fail_msg("allocation %lu: status %d, errno %d: %s", nth, status, err.sys_errno, err.message);
        failed += status != RESHARD_OK;
    }
    assert_true(failed > 10);
    reshard_close(sample);
}

TEST(lies_are_found)
{
    reshard_checkpoint *sample = open_sample();
    CHECK_OK(put_sample(sample, "torch-dcp", NULL, "target"));
    behave();
    manners.reads_nothing = true;
    assert_int_equal(read_all("target"), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.object, ".metadata"));
    behave();
    manners.reads_beyond = true;
    assert_int_equal(read_all("target"), RESHARD_ERR_FORMAT);
    behave();
    manners.adds_to_size = 100000;
    assert_int_not_equal(read_all("target"), RESHARD_OK);
    for (int i = 0; i < 4; i++) { /* and less than there is, files that are folders, folders that are files, numbers that are no errno */
        behave();
        manners.adds_to_size = i == 0 ? -100 : 0;
        manners.finds_folders = i == 1;
        manners.finds_files = i == 2;
        manners.fails_at = i == 3 ? 7 : 0;
        manners.number = -5000;
        assert_int_not_equal(read_all("target"), RESHARD_OK);
    }
    static const char *const names[] = { "../other", "other/folder", "" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        behave();
        manners.lists = names[i];
        assert_int_equal(read_all("target"), RESHARD_ERR_FORMAT);
        assert_non_null(strstr(err.message, names[i]));
    }
    reshard_close(sample);
}

TEST(what_cannot_be_is_refused)
{
    reshard_store store = store_make();
    reshard_convert_options options = RESHARD_CONVERT_OPTIONS_INIT;
    reshard_checkpoint *sample = open_sample(), *opened;
    options.to = "torch-dcp";
    options.store = &store;
    options.resume = 1;
    assert_int_equal(reshard_convert(sample, "target", &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    options.resume = 0;
    options.part_count = 2;
    assert_int_equal(reshard_convert(sample, "target", &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    options.part_count = 0;
    assert_int_equal(reshard_commit(sample, "target", &options, NULL, NULL, &err), RESHARD_ERR_USAGE);
    reshard_plan *plan, *part;
    CHECK_OK(reshard_plan_new(sample, "target", &options, NULL, &plan, &err));
    CHECK_OK(reshard_plan_part(plan, 0, 2, &part, &err));
    assert_int_equal(reshard_plan_run(part, NULL, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_plan_commit(plan, NULL, &err), RESHARD_ERR_USAGE);
    reshard_plan_free(part);
    reshard_plan_free(plan);
    reshard_sharded *sharded;
    reshard_save_options saving = RESHARD_SAVE_OPTIONS_INIT;
    saving.convert = &options;
    CHECK_OK(reshard_sharded_new(&sharded, &err));
    assert_int_equal(reshard_save(NULL, "target", sharded, &saving, NULL, &err), RESHARD_ERR_USAGE);
    assert_non_null(strstr(err.message, "reshard_convert_options.store"));
    reshard_sharded_free(sharded);
    assert_int_equal(reshard_convert(sample, "../target", &options, NULL, NULL, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(reshard_convert(sample, "/target", &options, NULL, NULL, &err), RESHARD_ERR_FORMAT);
    store.create = NULL;
    assert_int_equal(reshard_convert(sample, "target", &options, NULL, NULL, &err), RESHARD_ERR_UNSUPPORTED);
    assert_int_equal(reshard_open_in(&store, "nothing", NULL, &opened, &err), RESHARD_ERR_IO);
    assert_int_equal(reshard_open_in(&store, "../x", NULL, &opened, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(reshard_open_in(NULL, "x", NULL, &opened, &err), RESHARD_ERR_USAGE);
    assert_int_equal(reshard_open_in(&store, NULL, NULL, &opened, &err), RESHARD_ERR_USAGE);
    store.look = NULL;
    assert_int_equal(reshard_open_in(&store, "x", NULL, &opened, &err), RESHARD_ERR_USAGE);
    assert_null(opened);
    assert_true(is_empty(""));
    reshard_close(sample);
}

#define IN_WORK(test) cmocka_unit_test_setup_teardown(test, work_make, test_folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_WORK(checkpoints_go_into_a_store_and_out_of_it),
        IN_WORK(what_is_written_is_verified_and_summed_there),
        IN_WORK(pieces_go_into_a_store),
        IN_WORK(callbacks_may_take_their_time),
        IN_WORK(a_checkpoint_replaces_another),
        IN_WORK(what_is_replaced_is_there_until_the_new_one_is),
        IN_WORK(what_is_no_checkpoint_is_not_replaced),
        IN_WORK(a_target_is_whole_or_not_there_whichever_call_fails),
        IN_WORK(reading_fails_where_a_call_does),
        IN_WORK(reading_ends_where_it_is_told_to),
        IN_WORK(reading_takes_memory_or_fails),
        IN_WORK(lies_are_found),
        IN_WORK(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("store_calls", tests, NULL, NULL);
}
