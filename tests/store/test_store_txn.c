/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"
#include "temp_directory.h"

#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>

static reshard_error err;

/* Most rules hold for directories on disk and for memory stores alike. */
enum kind { ON_DISK, IN_MEMORY, KIND_COUNT };

static struct store *open_kind(enum kind kind)
{
    struct store *store = NULL;
    if (kind == IN_MEMORY)
        return store_new_memory();
    test_folder_remove(NULL);
    mkdir(test_folder, 0777);
    CHECK_OK(store_open_path(test_folder, 0, &store, NULL, &err));
    return store;
}

static struct store_txn *begin(struct store *store, const char *name, struct store_txn_options options)
{
    struct store_txn *txn = NULL;
    CHECK_OK(store_txn_begin_in(store, name, &options, &txn, &err));
    return txn;
}

static void put(struct store_txn *txn, const char *name, const char *text)
{
    struct store_object *object = NULL;
    CHECK_OK(store_txn_create(txn, name, strlen(text), &object, &err));
    CHECK_OK(store_write_at(object, 0, text, strlen(text), &err));
    store_object_close(object);
}

static void put_target(struct store *store, const char *target, const char *name, const char *text)
{
    struct store_txn_options options = { .is_directory = name[0] != '\0', .overwrite = true };
    struct store_txn *txn = begin(store, target, options);
    put(txn, name, text);
    CHECK_OK(store_txn_commit(txn, &err));
}

/* The object's content, "-" if there is none. */
static const char *get(struct store *store, const char *name)
{
    static char text[256];
    struct buffer bytes = { 0 };
    if (store_read_all(store, name, AT_MOST(sizeof(text) - 1), &bytes, NULL))
        return "-";
    memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = '\0';
    buffer_release(&bytes);
    return text;
}

static bool exists(struct store *store, const char *name)
{
    bool is_directory;
    uint64_t bytes;
    return store_exists(store, name, &is_directory, &bytes);
}

static size_t count_entries(struct store *store)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    CHECK_OK(store_list(store, "", &arena, &entries, &count, &err));
    arena_release(&arena);
    return count;
}

TEST(nothing_is_visible_before_commit_and_nothing_else_after)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true });
        put(txn, "a", "alpha");
        put(txn, "d/e/b", "beta");
        put(txn, "d/c", "");
        assert_false(exists(store, "target"));
        CHECK_OK(store_txn_commit(txn, &err));
        assert_string_equal(get(store, "target/a"), "alpha");
        assert_string_equal(get(store, "target/d/e/b"), "beta");
        assert_string_equal(get(store, "target/d/c"), "");
        assert_int_equal(count_entries(store), 1);
        store_free(store);
    }
}

TEST(a_single_file_is_published_alone)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn *txn = begin(store, "file.bin", (struct store_txn_options){ 0 });
        struct store_object *object = NULL;
        CHECK_FAILS(store_txn_create(txn, "name", 1, &object, &err), RESHARD_ERR_USAGE);
        put(txn, "", "content");
        CHECK_FAILS(store_txn_create(txn, "", 1, &object, &err), RESHARD_ERR_USAGE);
        assert_false(exists(store, "file.bin"));
        CHECK_OK(store_txn_commit(txn, &err));
        assert_string_equal(get(store, "file.bin"), "content");
        assert_int_equal(count_entries(store), 1);
        txn = begin(store, "none", (struct store_txn_options){ 0 });
        CHECK_FAILS(store_txn_commit(txn, &err), RESHARD_ERR_USAGE);
        assert_int_equal(count_entries(store), 1);
        store_free(store);
    }
}

TEST(abort_leaves_nothing)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true });
        struct store_object *object = NULL;
        put(txn, "d/e/f/a", "alpha");
        CHECK_OK(store_txn_create(txn, "open", 5, &object, &err));
        store_txn_abort(txn, false);
        CHECK_OK(store_write_at(object, 0, "after", 5, &err)); /* an object may be closed after its transaction */
        store_object_close(object);
        assert_int_equal(count_entries(store), 0);
        store_free(store);
    }
    store_txn_abort(NULL, false);
}

TEST(a_target_that_exists_is_kept_without_overwrite)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn *txn = NULL;
        struct store_txn_options options = { .is_directory = true };
        put_target(store, "target", "old", "old");
        CHECK_FAILS(store_txn_begin_in(store, "target", &options, &txn, &err), RESHARD_ERR_IO);
        assert_int_equal(err.sys_errno, EEXIST);
        assert_non_null(strstr(err.hint, "reshard_convert_options.overwrite"));
        assert_null(txn);
        assert_string_equal(get(store, "target/old"), "old");
        assert_int_equal(count_entries(store), 1);
        store_free(store);
    }
}

TEST(a_target_that_appears_meanwhile_is_kept_without_overwrite)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        for (int is_directory = 0; is_directory < 2; is_directory++) {
            struct store *store = open_kind(kind);
            struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = is_directory });
            put(txn, is_directory ? "new" : "", "new");
            if (kind == IN_MEMORY)
                CHECK_OK(store_memory_put(store, "target", "old", 3, &err));
            else
                temp_write("target", "old");
            CHECK_FAILS(store_txn_commit(txn, &err), RESHARD_ERR_IO);
            assert_int_equal(err.sys_errno, EEXIST);
            assert_string_equal(get(store, "target"), "old");
            assert_int_equal(count_entries(store), 1);
            store_free(store);
        }
    }
}

TEST(overwrite_replaces_files_and_directories_by_either)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        for (int pair = 0; pair < 4; pair++) {
            struct store *store = open_kind(kind);
            bool old_directory = pair & 1, new_directory = pair & 2;
            put_target(store, "target", old_directory ? "deep/er/old" : "", "old");
            put_target(store, "other", "", "other");
            struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = new_directory, .overwrite = true });
            put(txn, new_directory ? "new" : "", "new");
            assert_string_equal(get(store, old_directory ? "target/deep/er/old" : "target"), "old");
            CHECK_OK(store_txn_commit(txn, &err));
            assert_string_equal(get(store, new_directory ? "target/new" : "target"), "new");
            assert_false(exists(store, "target/deep"));
            assert_string_equal(get(store, "other"), "other");
            assert_int_equal(count_entries(store), 2);
            store_free(store);
        }
    }
}

/* ---- resuming ---- */

static void leave_unfinished(struct store *store, uint64_t identity)
{
    struct store_txn *txn =
        begin(store, "target", (struct store_txn_options){ .is_directory = true, .resume = true, .identity = identity });
    assert_false(store_txn_is_resumed(txn));
    put(txn, "d/kept", "kept");
    put(txn, "d/stray", "stray");
    put(txn, "s/stray", "stray");
    CHECK_OK(store_txn_journal_append(txn, "first,", 6, &err));
    CHECK_OK(store_txn_journal_append(txn, "", 0, &err));
    CHECK_OK(store_txn_journal_append(txn, "second", 6, &err));
    store_txn_abort(txn, true);
    assert_false(exists(store, "target"));
}

TEST(a_run_of_the_same_plan_goes_on)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        leave_unfinished(store, 7);
        struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true, .resume = true, .identity = 7 });
        assert_true(store_txn_is_resumed(txn));
        struct buffer journal = { 0 };
        CHECK_OK(store_txn_journal_append(txn, ".", 1, &err));
        CHECK_OK(store_txn_journal_read(txn, &journal, &err));
        assert_int_equal(journal.size, 13);
        assert_memory_equal(journal.data, "first,second.", 13);
        buffer_release(&journal);
        struct store_object *object = NULL;
        char text[5] = { 0 };
        CHECK_OK(store_txn_create(txn, "d/kept", 4, &object, &err));
        CHECK_OK(store_read_at(object, 0, text, 4, &err));
        assert_string_equal(text, "kept");
        store_object_close(object);
        put(txn, "new", "new");
        CHECK_FAILS(store_txn_create(txn, "d/kept", 4, &object, &err), RESHARD_ERR_USAGE);
        CHECK_OK(store_txn_commit(txn, &err));
        assert_string_equal(get(store, "target/d/kept"), "kept");
        assert_string_equal(get(store, "target/new"), "new");
        assert_false(exists(store, "target/d/stray"));
        assert_false(exists(store, "target/s"));
        assert_int_equal(count_entries(store), 1);
        store_free(store);
    }
}

/* What is there is whole: that it found no place is no reason to make it again. */
TEST(a_run_that_cannot_be_published_goes_on_where_there_is_a_place)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        for (int is_directory = 0; is_directory < 2; is_directory++) {
            struct store *store = open_kind(kind);
            struct store_txn_options options = { .is_directory = is_directory, .resume = true, .identity = 7 };
            const char *name = is_directory ? "a" : "";
            struct store_txn *txn = begin(store, "target", options);
            put(txn, name, "done");
            CHECK_OK(store_txn_journal_append(txn, "done", 4, &err));
            if (kind == IN_MEMORY)
                CHECK_OK(store_memory_put(store, "target", "in the way", 10, &err));
            else
                temp_write("target", "in the way");
            CHECK_FAILS(store_txn_commit(txn, &err), RESHARD_ERR_IO);
            assert_int_equal(err.sys_errno, EEXIST);
            assert_string_equal(get(store, "target"), "in the way");
            options.overwrite = true;
            txn = begin(store, "target", options);
            assert_true(store_txn_is_resumed(txn));
            struct buffer journal = { 0 };
            CHECK_OK(store_txn_journal_read(txn, &journal, &err));
            assert_int_equal(journal.size, 4);
            buffer_release(&journal);
            struct store_object *object = NULL;
            char text[5] = { 0 };
            CHECK_OK(store_txn_create(txn, name, 4, &object, &err));
            CHECK_OK(store_read_at(object, 0, text, 4, &err));
            assert_string_equal(text, "done");
            store_object_close(object);
            CHECK_OK(store_txn_commit(txn, &err));
            assert_int_equal(count_entries(store), 1);
            store_free(store);
        }
    }
}

TEST(what_another_plan_left_is_removed)
{
    static const struct {
        const char *why;
        struct store_txn_options options;
    } cases[] = {
        { "another plan", { .is_directory = true, .resume = true, .identity = 8 } },
        { "no wish to resume", { .is_directory = true, .identity = 7 } },
        { "another kind of target", { .resume = true, .identity = 7 } },
    };
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct store *store = open_kind(kind);
            leave_unfinished(store, 7);
            struct store_txn *txn = begin(store, "target", cases[i].options);
            struct buffer journal = { 0 };
            CHECK_OK(store_txn_journal_read(txn, &journal, &err));
            if (store_txn_is_resumed(txn) || journal.size)
                fail_msg("%s: taken over", cases[i].why);
            put(txn, cases[i].options.is_directory ? "only" : "", "only");
            CHECK_OK(store_txn_commit(txn, &err));
            assert_string_equal(get(store, cases[i].options.is_directory ? "target/only" : "target"), "only");
            assert_false(exists(store, "target/d"));
            assert_int_equal(count_entries(store), 1);
            store_free(store);
        }
    }
}

TEST(two_runs_for_one_target_do_not_collide)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn_options options = { .is_directory = true, .overwrite = true, .resume = true };
        struct store_txn *first = begin(store, "target", options), *second = NULL;
        put(first, "a", "first");
        CHECK_FAILS(store_txn_begin_in(store, "target", &options, &second, &err), RESHARD_ERR_IO);
        assert_int_equal(err.sys_errno, EWOULDBLOCK);
        second = begin(store, "other", options);
        put(second, "a", "second");
        CHECK_OK(store_txn_commit(first, &err));
        CHECK_OK(store_txn_commit(second, &err));
        assert_string_equal(get(store, "target/a"), "first");
        assert_string_equal(get(store, "other/a"), "second");
        store_free(store);
    }
}

/* ---- on disk only ---- */

TEST(a_killed_run_leaves_what_the_next_one_can_take)
{
    for (int resume = 0; resume < 2; resume++) {
        struct store *store = open_kind(ON_DISK);
        struct store_txn_options options = { .is_directory = true, .resume = resume, .identity = 3 };
        struct store_txn *txn = NULL;
        pid_t child = fork();
        if (child == 0) {
            struct store_object *object = NULL;
            bool good = !store_txn_begin(temp_path("target"), &options, &txn, NULL) && !store_txn_create(txn, "a", 4, &object, NULL) &&
                        !store_write_at(object, 0, "done", 4, NULL) && !store_txn_journal_append(txn, "a", 1, NULL);
            _exit(good ? 0 : 1);
        }
        int result;
        assert_int_equal(waitpid(child, &result, 0), child);
        assert_int_equal(result, 0);
        assert_true(temp_exists(".target.reshard-partial"));
        assert_false(temp_exists("target"));
        CHECK_OK(store_txn_begin(temp_path("target"), &options, &txn, &err));
        assert_int_equal(store_txn_is_resumed(txn), resume);
        struct store_object *object = NULL;
        CHECK_OK(store_txn_create(txn, "a", 4, &object, &err));
        store_object_close(object);
        CHECK_OK(store_txn_commit(txn, &err));
        char text[4];
        CHECK_OK(store_open_object(store, "target/a", &object, &err));
        CHECK_OK(store_read_at(object, 0, text, 4, &err));
        assert_memory_equal(text, resume ? "done" : "\0\0\0", 4);
        store_object_close(object);
        assert_int_equal(temp_count(""), 1);
        store_free(store);
    }
}

/* As a trainer's workers are, which live on when the save is done. */
TEST(a_process_that_was_forked_meanwhile_keeps_no_lock)
{
    struct store *store = open_kind(ON_DISK);
    const struct store_txn_options part = { .is_directory = true, .overwrite = true, .identity = 3, .share = STORE_TXN_PART };
    struct store_txn_options rest = part;
    struct store_txn *txn = begin(store, "target", part);
    int alive[2];
    char byte;
    assert_int_equal(pipe(alive), 0);
    pid_t child = fork();
    if (child == 0) {
        close(alive[1]);
        _exit(read(alive[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(alive[0]);
    put(txn, "a", "whole");
    CHECK_OK(store_txn_leave(txn, "part", "r", 1, &err));
    rest.share = STORE_TXN_REST;
    txn = begin(store, "target", rest);
    put(txn, "a", "whole");
    CHECK_OK(store_txn_commit(txn, &err));
    assert_string_equal(get(store, "target/a"), "whole");
    put_target(store, "target", "a", "anew");
    assert_string_equal(get(store, "target/a"), "anew");
    close(alive[1]);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    store_free(store);
}

TEST(a_torn_journal_ends_at_its_last_whole_record)
{
    struct store *store = open_kind(ON_DISK);
    static const struct {
        const char *why;
        int cut;      /* bytes taken off the end */
        int flip;     /* offset from the end of a byte to change, 0: none */
        const char *expected;
    } cases[] = {
        { "whole", 0, 0, "first,second" },     { "last byte lost", 1, 0, "first," },      { "only its header is left", 6, 0, "first," },
        { "half a header", 10, 0, "first," },  { "damaged record", 0, 2, "first," },      { "damaged size", 0, 13, "first," },
        { "both lost", 40, 0, NULL },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        leave_unfinished(store, 7);
        const char *path = temp_path(".target.reshard-partial/.journal");
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        if (cases[i].flip) {
            int fd = open(path, O_RDWR);
            assert_int_equal(pwrite(fd, "\x7f", 1, info.st_size - cases[i].flip), 1);
            close(fd);
        }
        assert_int_equal(truncate(path, info.st_size - cases[i].cut), 0);
        struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true, .resume = true, .identity = 7 });
        struct buffer journal = { 0 };
        CHECK_OK(store_txn_journal_append(txn, "!", 1, &err));
        CHECK_OK(store_txn_journal_read(txn, &journal, &err));
        buffer_append_byte(&journal, 0);
        char expected[64];
        snprintf(expected, sizeof(expected), "%s!", cases[i].expected ? cases[i].expected : "");
        if (strcmp((const char *)journal.data, expected) != 0)
            fail_msg("%s: '%s', expected '%s'", cases[i].why, (const char *)journal.data, expected);
        assert_int_equal(store_txn_is_resumed(txn), cases[i].expected != NULL);
        buffer_release(&journal);
        store_txn_abort(txn, false);
    }
    store_free(store);
}

TEST(links_in_place_of_our_own_directory_are_not_followed)
{
    struct store *store = open_kind(ON_DISK);
    struct store_txn_options options = { .is_directory = true };
    struct store_txn *txn = NULL;
    mkdir(temp_path("victim"), 0777);
    temp_write("victim/file", "kept");
    assert_int_equal(symlink("victim", temp_path(".target.reshard-partial")), 0);
    CHECK_FAILS(store_txn_begin_in(store, "target", &options, &txn, &err), RESHARD_ERR_IO);
    assert_string_equal(temp_read("victim/file"), "kept");
    unlink(temp_path(".target.reshard-partial"));

    /* A link inside what an earlier run left, and a target that is a link: only the links go. */
    mkdir(temp_path(".target.reshard-partial"), 0777);
    assert_int_equal(symlink("../victim", temp_path(".target.reshard-partial/target")), 0);
    assert_int_equal(symlink("victim", temp_path("target")), 0);
    options.overwrite = true;
    txn = begin(store, "target", options);
    put(txn, "a", "new");
    CHECK_OK(store_txn_commit(txn, &err));
    assert_string_equal(temp_read("victim/file"), "kept");
    assert_string_equal(temp_read("target/a"), "new");
    assert_int_equal(temp_count(""), 2);
    store_free(store);
}

TEST(a_deep_old_target_is_removed_whole)
{
    struct store *store = open_kind(ON_DISK);
    put_target(store, "target", "x", "x");
    int fd = open(temp_path("target"), O_RDONLY | O_DIRECTORY);
    static const char name[] = "a directory whose name takes a good part of what a path may have";
    for (int depth = 0; depth < 100; depth++) { /* deeper than any path can name */
        assert_int_equal(mkdirat(fd, name, 0777), 0);
        int file = openat(fd, "f", O_WRONLY | O_CREAT, 0666), next = openat(fd, name, O_RDONLY | O_DIRECTORY);
        assert_true(file >= 0 && next >= 0);
        close(file);
        close(fd);
        fd = next;
    }
    close(fd);
    put_target(store, "target", "y", "y");
    assert_string_equal(get(store, "target/y"), "y");
    assert_int_equal(temp_count(""), 1);
    assert_int_equal(temp_count("target"), 1);
    store_free(store);
}

TEST(more_room_than_the_disk_has_is_refused_before_writing)
{
    struct store *store = open_kind(ON_DISK);
    struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true });
    struct store_object *object = NULL;
    CHECK_FAILS(store_txn_create(txn, "huge", UINT64_C(8) << 40, &object, &err), RESHARD_ERR_IO);
    assert_true(err.sys_errno == ENOSPC || err.sys_errno == EFBIG);
    assert_string_equal(err.object, "huge");
    CHECK_FAILS(store_txn_create(txn, "more", UINT64_MAX, &object, &err), RESHARD_ERR_LIMIT);
    store_txn_abort(txn, false);
    assert_int_equal(temp_count(""), 0);
    store_free(store);
}

TEST(many_files_are_written_with_few_descriptors)
{
    struct store *store = open_kind(ON_DISK);
    struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true });
    for (int i = 0; i < 700; i++) {
        char name[32];
        snprintf(name, sizeof(name), "d%d/f%d", i % 7, i);
        put(txn, name, name);
        if (i == 350)
            CHECK_OK(store_txn_journal_append(txn, "x", 1, &err));
    }
    CHECK_OK(store_txn_commit(txn, &err));
    assert_string_equal(get(store, "target/d6/f699"), "d6/f699");
    store_free(store);
}

enum { WRITERS = 4, FILES_EACH = 100 };

struct writer {
    struct store_object *objects[FILES_EACH];
    reshard_status status;
};

static void *write_and_close(void *context)
{
    struct writer *writer = context;
    for (int i = 0; i < FILES_EACH; i++) {
        if (!writer->status)
            writer->status = store_write_at(writer->objects[i], 0, "text", 4, NULL);
        store_write_behind(writer->objects[i], 0, 4);
        store_object_close(writer->objects[i]);
    }
    return NULL;
}

TEST(threads_write_and_close_while_the_journal_grows)
{
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        struct store *store = open_kind(kind);
        struct store_txn *txn = begin(store, "target", (struct store_txn_options){ .is_directory = true });
        static struct writer writers[WRITERS];
        pthread_t threads[WRITERS];
        for (int i = 0; i < WRITERS * FILES_EACH; i++) {
            char name[32];
            snprintf(name, sizeof(name), "f%d", i);
            CHECK_OK(store_txn_create(txn, name, 4, &writers[i % WRITERS].objects[i / WRITERS], &err));
        }
        for (int i = 0; i < WRITERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, write_and_close, &writers[i]), 0);
        for (int i = 0; i < 5; i++)
            CHECK_OK(store_txn_journal_append(txn, "x", 1, &err));
        for (int i = 0; i < WRITERS; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(writers[i].status, RESHARD_OK);
        }
        CHECK_OK(store_txn_commit(txn, &err));
        for (int i = 0; i < WRITERS * FILES_EACH; i++) {
            char name[32];
            snprintf(name, sizeof(name), "target/f%d", i);
            assert_string_equal(get(store, name), "text");
        }
        store_free(store);
    }
}

TEST(the_kernel_copies_between_files)
{
    struct store *store = open_kind(ON_DISK);
    struct store *memory = store_new_memory();
    put_target(store, "source", "", "0123456789");
    CHECK_OK(store_memory_put(memory, "source", "0123456789", 10, &err));
    struct store_txn *txn = begin(store, "target", (struct store_txn_options){ 0 });
    struct store_object *from = NULL, *to = NULL, *other = NULL;
    CHECK_OK(store_open_object(store, "source", &from, &err));
    CHECK_OK(store_open_object(memory, "source", &other, &err));
    CHECK_OK(store_txn_create(txn, "", 8, &to, &err));
    CHECK_OK(store_write_at(to, 0, "abcdefgh", 8, &err));
    reshard_status status = store_copy_range(from, 3, to, 2, 5, &err);
    if (status != RESHARD_ERR_UNSUPPORTED)
        CHECK_OK(status);
    else
        CHECK_OK(store_write_at(to, 2, "34567", 5, &err));
    CHECK_FAILS(store_copy_range(from, 6, to, 0, 5, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(store_copy_range(from, 0, to, 4, 5, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(store_copy_range(other, 0, to, 0, 5, &err), RESHARD_ERR_UNSUPPORTED);
    CHECK_FAILS(store_copy_range(to, 0, from, 0, 5, &err), RESHARD_ERR_UNSUPPORTED);
    store_write_behind(to, 0, 8);
    store_write_behind(from, 0, 8);
    store_write_behind(other, 0, 8);
    store_object_close(from);
    store_object_close(to);
    store_object_close(other);
    CHECK_OK(store_txn_commit(txn, &err));
    assert_string_equal(get(store, "target"), "ab34567h");
    store_free(memory);
    store_free(store);
}

TEST(paths_of_targets)
{
    struct store *store = open_kind(ON_DISK);
    struct store_txn_options options = { 0 };
    struct store_txn *txn = NULL;
    static const char *const bad[] = { "", "/", ".", "..", "a/..", "a/." };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_FAILS(store_txn_begin(bad[i], &options, &txn, &err), RESHARD_ERR_USAGE);
    CHECK_FAILS(store_txn_begin(temp_path("absent/target"), &options, &txn, &err), RESHARD_ERR_IO);
    assert_int_equal(err.sys_errno, ENOENT);
    options.is_directory = true;
    options.no_sync = true;
    CHECK_OK(store_txn_begin(temp_path("slashes//"), &options, &txn, &err));
    put(txn, "a", "alpha");
    char path[2048];
    snprintf(path, sizeof(path), "%s/a", store_txn_path(txn));
    assert_int_equal(access(path, R_OK), 0);
    CHECK_OK(store_txn_commit(txn, &err));
    assert_string_equal(get(store, "slashes/a"), "alpha");
    store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_visible_before_commit_and_nothing_else_after),
        cmocka_unit_test(a_single_file_is_published_alone),
        cmocka_unit_test(abort_leaves_nothing),
        cmocka_unit_test(a_target_that_exists_is_kept_without_overwrite),
        cmocka_unit_test(a_target_that_appears_meanwhile_is_kept_without_overwrite),
        cmocka_unit_test(overwrite_replaces_files_and_directories_by_either),
        cmocka_unit_test(a_run_of_the_same_plan_goes_on),
        cmocka_unit_test(a_run_that_cannot_be_published_goes_on_where_there_is_a_place),
        cmocka_unit_test(what_another_plan_left_is_removed),
        cmocka_unit_test(two_runs_for_one_target_do_not_collide),
        cmocka_unit_test(a_killed_run_leaves_what_the_next_one_can_take),
        cmocka_unit_test(a_process_that_was_forked_meanwhile_keeps_no_lock),
        cmocka_unit_test(a_torn_journal_ends_at_its_last_whole_record),
        cmocka_unit_test(links_in_place_of_our_own_directory_are_not_followed),
        cmocka_unit_test(a_deep_old_target_is_removed_whole),
        cmocka_unit_test(more_room_than_the_disk_has_is_refused_before_writing),
        cmocka_unit_test(many_files_are_written_with_few_descriptors),
        cmocka_unit_test(threads_write_and_close_while_the_journal_grows),
        cmocka_unit_test(the_kernel_copies_between_files),
        cmocka_unit_test(paths_of_targets),
    };
    return cmocka_run_group_tests_name("store_txn", tests, test_folder_make, test_folder_remove);
}
