/* SPDX-License-Identifier: Apache-2.0 */
#include "fail_malloc.h"
#include "store/store_posix.h"
#include "temp_directory.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/wait.h>

static reshard_error err;

static struct store *open_store(unsigned flags)
{
    struct store *store = NULL;
    CHECK_OK(store_open_path(test_folder, flags, &store, NULL, &err));
    return store;
}

/* ---- names ---- */

TEST(names_that_could_leave_the_directory_are_refused)
{
    static const struct {
        struct str name;
        bool is_good;
    } cases[] = {
        { STR("a"), true },           { STR("a/b.c"), true },   { STR("..."), true },   { STR("a/..b"), true }, { STR(".hidden"), true },
        { STR("a b\n\xc3\xa9"), true }, { STR(""), false },     { STR("/a"), false },   { STR("a/"), false },   { STR("a//b"), false },
        { STR("."), false },          { STR(".."), false },     { STR("a/.."), false }, { STR("../a"), false }, { STR("a/./b"), false },
        { STR("a\\b"), false },       { STR("a\0b"), false },   { STR("a/../../b"), false },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        reshard_status status = store_name_check(cases[i].name, &err);
        if ((status == RESHARD_OK) != cases[i].is_good)
            fail_msg("case %zu '%.*s': status %d", i, STR_ARG(cases[i].name), status);
    }
    char long_name[4098];
    memset(long_name, 'a', sizeof(long_name));
    CHECK_OK(store_name_check((struct str){ long_name, 4096 }, &err));
    CHECK_FAILS(store_name_check((struct str){ long_name, 4097 }, &err), RESHARD_ERR_FORMAT);
}

TEST(every_call_with_a_name_checks_it)
{
    struct store *store = open_store(0);
    struct store_object *object = NULL;
    struct store_txn *txn = NULL;
    struct store_txn_options options = { 0 };
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    bool is_directory;
    uint64_t bytes;
    CHECK_FAILS(store_open_object(store, "../etc/passwd", &object, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(store_list(store, "..", &arena, &entries, &count, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(store_txn_begin_in(store, "../x", &options, &txn, &err), RESHARD_ERR_FORMAT);
    assert_false(store_exists(store, "..", &is_directory, &bytes));
    store_free(store);
}

/* ---- reading ---- */

TEST(a_file_is_read_by_ranges_and_through_windows)
{
    temp_write("ten", "0123456789");
    static const unsigned flags[] = { 0, STORE_MMAP, STORE_DIRECT, STORE_FOLLOW_LINKS };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        struct store *store = open_store(flags[i]);
        struct store_object *object = NULL;
        char text[11] = { 0 };
        CHECK_OK(store_open_object(store, "ten", &object, &err));
        assert_int_equal(store_object_size(object), 10);
        CHECK_OK(store_read_at(object, 3, text, 4, &err));
        assert_string_equal(text, "3456");
        struct reader whole = store_object_reader(object), part;
        CHECK_OK(reader_window(&whole, 4, 5, &part, &err));
        CHECK_OK(reader_read(&part, 1, text, 4, &err));
        assert_string_equal(text, "5678");
        CHECK_FAILS(reader_read(&part, 2, text, 4, &err), RESHARD_ERR_FORMAT);
        assert_int_equal(err.offset, 2);
        assert_string_equal(err.object, "ten");
        CHECK_FAILS(store_read_at(object, 8, text, 3, &err), RESHARD_ERR_FORMAT);
        CHECK_FAILS(store_write_at(object, 0, "x", 1, &err), RESHARD_ERR_USAGE);
        assert_true((store_object_map(object) != NULL) == (flags[i] == STORE_MMAP));
        assert_true(store_object_fd(object) >= 0);
        store_object_close(object);
        store_free(store);
    }
}

TEST(direct_reading_gives_the_same_bytes)
{
    enum { SIZE = 3 * 4096 + 77 };
    uint8_t *bytes = malloc(SIZE), *room = aligned_alloc(4096, 4 * 4096);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)(i * 31 >> 3);
    int fd = open(temp_path("direct"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_int_equal(write(fd, bytes, SIZE), SIZE);
    close(fd);
    struct store *store = open_store(STORE_DIRECT);
    struct store_object *object = NULL;
    CHECK_OK(store_open_object(store, "direct", &object, &err));
    static const struct {
        uint64_t offset;
        size_t size;
    } cases[] = { { 0, 4096 }, { 4096, 8192 }, { 100, 4096 }, { 3 * 4096, 77 }, { 0, SIZE }, { 8192, 0 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_OK(store_read_at(object, cases[i].offset, room, cases[i].size, &err));
        assert_memory_equal(room, bytes + cases[i].offset, cases[i].size ? cases[i].size : 1);
    }
    store_object_close(object);
    store_free(store);
    free(bytes);
    free(room);
}

TEST(a_file_that_shrinks_is_named_with_the_offset)
{
    temp_write("shrinks", "0123456789");
    struct store *store = open_store(0);
    struct store_object *object = NULL;
    char text[10];
    CHECK_OK(store_open_object(store, "shrinks", &object, &err));
    assert_int_equal(truncate(temp_path("shrinks"), 6), 0);
    CHECK_FAILS(store_read_at(object, 2, text, 8, &err), RESHARD_ERR_FORMAT);
    assert_int_equal(err.offset, 6);
    assert_string_equal(err.object, "shrinks");
    store_object_close(object);
    store_free(store);
}

TEST(whole_files_are_read_up_to_a_limit)
{
    temp_write("small", "abc");
    struct store *store = open_store(0);
    struct buffer bytes = { 0 };
    CHECK_OK(store_read_all(store, "small", AT_MOST(3), &bytes, &err));
    assert_int_equal(bytes.size, 3);
    CHECK_FAILS(store_read_all(store, "small", AT_MOST(2), &bytes, &err), RESHARD_ERR_LIMIT);
    CHECK_FAILS(store_read_all(store, "absent", AT_MOST(2), &bytes, &err), RESHARD_ERR_IO);
    assert_int_equal(err.sys_errno, ENOENT);
    assert_string_equal(err.object, "absent");
    buffer_release(&bytes);
    store_free(store);
}

/* ---- links and special files ---- */

static void make_links(void)
{
    mkdir(temp_path("root"), 0777);
    mkdir(temp_path("root/d"), 0777);
    mkdir(temp_path("outside"), 0777);
    temp_write("outside/secret", "secret");
    temp_write("root/file", "inside");
    temp_write("root/d/file", "deep");
    static const char *const links[][2] = {
        { "file", "root/good" },
        { "d/../file", "root/round" },
        { "../file", "root/d/up" },
        { "good", "root/chain" },
        { "../outside/secret", "root/bad" },
        { "/etc/passwd", "root/absolute" },
        { "d", "root/dir" },
        { "../../outside", "root/d/out" },
        { "loop", "root/loop" },
        { "../root/file", "root/back" },
        { "nowhere", "root/dangling" },
        { "..", "root/parent" },
    };
    for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++)
        assert_int_equal(symlink(links[i][0], temp_path(links[i][1])), 0);
    assert_int_equal(mkfifo(temp_path("root/fifo"), 0666), 0);
}

TEST(links_may_lead_inside_but_not_out)
{
    static const struct {
        const char *name;
        reshard_status expected, followed;
    } cases[] = {
        { "file", RESHARD_OK, RESHARD_OK },
        { "good", RESHARD_OK, RESHARD_OK },
        { "chain", RESHARD_OK, RESHARD_OK },
        { "round", RESHARD_OK, RESHARD_OK },
        { "d/up", RESHARD_OK, RESHARD_OK },
        { "dir/file", RESHARD_OK, RESHARD_OK },
        { "dir/up", RESHARD_OK, RESHARD_OK },
        { "bad", RESHARD_ERR_UNSUPPORTED, RESHARD_OK },
        { "absolute", RESHARD_ERR_UNSUPPORTED, RESHARD_OK },
        { "back", RESHARD_ERR_UNSUPPORTED, RESHARD_OK }, /* comes back, but by way of outside */
        { "d/out/secret", RESHARD_ERR_UNSUPPORTED, RESHARD_OK },
        { "parent/outside/secret", RESHARD_ERR_UNSUPPORTED, RESHARD_OK },
        { "loop", RESHARD_ERR_IO, RESHARD_ERR_IO },
        { "dangling", RESHARD_ERR_IO, RESHARD_ERR_IO },
        { "file/x", RESHARD_ERR_IO, RESHARD_ERR_IO },
        { "fifo", RESHARD_ERR_FORMAT, RESHARD_ERR_FORMAT },
        { "d", RESHARD_ERR_FORMAT, RESHARD_ERR_FORMAT },
    };
    static const unsigned flags[] = { 0, STORE_LINKS_BY_HAND, STORE_FOLLOW_LINKS };
    make_links();
    for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
        struct store *store = NULL;
        CHECK_OK(store_open_path(temp_path("root"), flags[f], &store, NULL, &err));
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            struct store_object *object = NULL;
            reshard_status expected = flags[f] == STORE_FOLLOW_LINKS ? cases[i].followed : cases[i].expected;
            reshard_status status = store_open_object(store, cases[i].name, &object, &err);
            if (status != expected)
                fail_msg("flags %u, '%s': status %d, expected %d (%s)", flags[f], cases[i].name, status, expected, err.message);
            if (status == RESHARD_ERR_UNSUPPORTED)
                assert_non_null(strstr(err.hint, "reshard_open_options.follow_links"));
            store_object_close(object);
        }
        store_free(store);
    }
}

/* Opening a device can rewind a tape, opening a FIFO lets its writer go on: what is no regular file is never opened at all. */
TEST(special_files_are_refused_without_being_opened)
{
    struct store *store = open_store(0);
    struct store_object *object = NULL;
    char event[4096];
    assert_int_equal(mkfifo(temp_path("pipe"), 0666), 0);
    temp_write("plain", "bytes");
    int opens = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(inotify_add_watch(opens, temp_path("pipe"), IN_OPEN) >= 0);
    CHECK_FAILS(store_open_object(store, "pipe", &object, &err), RESHARD_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'pipe' is a FIFO, not a regular file"));
    assert_int_equal(read(opens, event, sizeof(event)), -1);
    assert_int_equal(errno, EAGAIN);
    assert_true(inotify_add_watch(opens, temp_path("plain"), IN_OPEN) >= 0);
    CHECK_OK(store_open_object(store, "plain", &object, &err));
    assert_true(read(opens, event, sizeof(event)) > 0); /* an open is seen */
    store_object_close(object);
    close(opens);
    store_free(store);
}

TEST(a_link_that_the_caller_names_is_followed)
{
    struct store *store = NULL;
    struct store_object *object = NULL;
    char *name = NULL;
    CHECK_OK(store_open_path(temp_path("root/bad"), 0, &store, &name, &err));
    assert_string_equal(name, "bad");
    CHECK_OK(store_open_object(store, name, &object, &err));
    assert_int_equal(store_object_size(object), 6);
    store_object_close(object);
    CHECK_FAILS(store_open_object(store, "absolute", &object, &err), RESHARD_ERR_UNSUPPORTED);
    free(name);
    store_free(store);
}

static void list_root(unsigned flags, struct buffer *text)
{
    struct store *store = NULL;
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    CHECK_OK(store_open_path(temp_path("root"), flags, &store, NULL, &err));
    CHECK_OK(store_list(store, "", &arena, &entries, &count, &err));
    buffer_clear(text);
    for (size_t i = 0; i < count; i++) {
        bool is_foreign = str_is(entries[i].name, "absolute") && !entries[i].leads_out; /* the size of /etc/passwd differs */
        buffer_printf(text, "%.*s%s %d%s,", STR_ARG(entries[i].name), entries[i].is_directory ? "/" : "",
                      is_foreign ? 0 : (int)entries[i].bytes, entries[i].leads_out ? " out" : "");
    }
    buffer_append_byte(text, 0);
    arena_release(&arena);
    store_free(store);
}

static size_t listed_in(struct store *store, const char *directory)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    CHECK_OK(store_list(store, directory, &arena, &entries, &count, &err));
    arena_release(&arena);
    return count;
}

TEST(a_held_listing_is_read_once_and_read_again_when_it_is_released)
{
    struct store *store = store_new_memory();
    CHECK_OK(store_memory_put(store, "a", "x", 1, &err));
    CHECK_OK(store_memory_put(store, "d/b", "x", 1, &err));
    assert_int_equal(listed_in(store, ""), 2);
    store_hold_listing(store);
    store_hold_listing(store);
    assert_int_equal(listed_in(store, ""), 2);
    CHECK_OK(store_memory_put(store, "c", "x", 1, &err));
    assert_int_equal(listed_in(store, ""), 2);
    assert_int_equal(listed_in(store, "d"), 1);
    assert_int_equal(listed_in(store, ""), 3); /* only the last one is held */
    store_release_listing(store);
    CHECK_OK(store_memory_put(store, "e", "x", 1, &err));
    assert_int_equal(listed_in(store, ""), 3);
    store_release_listing(store);
    assert_int_equal(listed_in(store, ""), 4);
    store_free(store);
}

TEST(nothing_shows_of_what_links_out_of_the_directory_lead_to)
{
    static const unsigned flags[] = { 0, STORE_LINKS_BY_HAND };
    static const char *const names[] = { "bad", "absolute", "back", "parent", "d/out", "d/out/secret", "d/out/absent", "gone" };
    const size_t count = sizeof(names) / sizeof(names[0]);
    assert_int_equal(symlink("../outside/absent", temp_path("root/gone")), 0);
    for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
        struct store *store = NULL;
        bool is_directory = true;
        uint64_t bytes = 1;
        CHECK_OK(store_open_path(temp_path("root"), flags[f], &store, NULL, &err));
        assert_true(store_exists(store, "good", &is_directory, &bytes));
        assert_int_equal(bytes, 6);
        assert_true(store_version(store, "good") != 0);
        assert_null(store_link_out(store, 0));
        for (size_t i = 0; i < 2 * count; i++) { /* a second look names nothing twice */
            assert_true(store_exists(store, names[i % count], &is_directory, &bytes));
            assert_false(is_directory);
            assert_int_equal(bytes, 0);
            assert_int_equal(store_version(store, names[i % count]), 0);
            assert_string_equal(store_link_out(store, i % count), names[i % count]);
        }
        assert_null(store_link_out(store, count));
        assert_false(store_exists(store, "dangling", &is_directory, &bytes));
        store_free(store);
    }
    unlink(temp_path("root/gone"));
}

TEST(listing_is_sorted_resolves_links_and_leaves_special_files_out)
{
    struct store *store = NULL;
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    struct buffer text = { 0 };
    list_root(STORE_FOLLOW_LINKS, &text);
    assert_string_equal((const char *)text.data, "absolute 0,back 6,bad 6,chain 6,d/ 0,dir/ 0,file 6,good 6,parent/ 0,round 6,");
    static const unsigned flags[] = { 0, STORE_LINKS_BY_HAND };
    for (size_t f = 0; f < sizeof(flags) / sizeof(flags[0]); f++) {
        list_root(flags[f], &text);
        assert_string_equal((const char *)text.data,
                            "absolute 0 out,back 0 out,bad 0 out,chain 6,d/ 0,dir/ 0,file 6,good 6,parent 0 out,round 6,");
    }
    CHECK_OK(store_open_path(temp_path("root"), 0, &store, NULL, &err));
    CHECK_OK(store_list(store, "d", &arena, &entries, &count, &err));
    assert_int_equal(count, 3);
    assert_true(str_is(entries[0].name, "d/file"));
    CHECK_FAILS(store_list(store, "file", &arena, &entries, &count, &err), RESHARD_ERR_IO);
    CHECK_FAILS(store_list(store, "parent", &arena, &entries, &count, &err), RESHARD_ERR_UNSUPPORTED);
    buffer_release(&text);
    arena_release(&arena);
    store_free(store);
}

TEST(paths_open_as_directory_or_as_file_of_their_directory)
{
    struct store *store = NULL;
    char *name = NULL;
    CHECK_OK(store_open_path(temp_path("root/d"), 0, &store, &name, &err));
    assert_string_equal(name, "");
    assert_string_equal(store_path(store), temp_path("root/d"));
    free(name);
    store_free(store);
    CHECK_OK(store_open_path(temp_path("root/d/file"), 0, &store, &name, &err));
    assert_string_equal(name, "file");
    assert_string_equal(store_path(store), temp_path("root/d"));
    bool is_directory;
    uint64_t bytes;
    assert_true(store_exists(store, "file", &is_directory, &bytes));
    assert_false(is_directory);
    assert_int_equal(bytes, 4);
    free(name);
    store_free(store);
    store = NULL;
    CHECK_FAILS(store_open_path(temp_path("absent"), 0, &store, &name, &err), RESHARD_ERR_IO);
    CHECK_FAILS(store_open_path(temp_path("root/fifo"), 0, &store, &name, &err), RESHARD_ERR_FORMAT);
    CHECK_FAILS(store_open_path("/dev/null", 0, &store, &name, &err), RESHARD_ERR_FORMAT);
    assert_null(store);
}

TEST(a_target_is_begun_in_a_directory_that_is_there_and_inside)
{
    static const struct {
        const char *name, *object;
        reshard_status status;
        int sys_errno;
    } cases[] = {
        { "d/out/new", "d/out", RESHARD_ERR_UNSUPPORTED, EXDEV }, { "parent/new", "parent", RESHARD_ERR_UNSUPPORTED, EXDEV },
        { "absent/new", "absent", RESHARD_ERR_IO, ENOENT },       { "d/absent/new", "d/absent", RESHARD_ERR_IO, ENOENT },
        { "file/new", "file", RESHARD_ERR_IO, ENOTDIR },
    };
    static const char *const good[][2] = { { "new", "root/.new.reshard-partial/new" },
                                           { "d/new", "root/d/.new.reshard-partial/new" },
                                           { "dir/new", "root/dir/.new.reshard-partial/new" } };
    static const struct store_txn_options options = { 0 };
    struct store *store = NULL;
    struct store_txn *txn = NULL;
    CHECK_OK(store_open_path(temp_path("root"), 0, &store, NULL, &err));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_FAILS(store_txn_begin_in(store, cases[i].name, &options, &txn, &err), cases[i].status);
        assert_null(txn);
        assert_int_equal(err.sys_errno, cases[i].sys_errno);
        assert_string_equal(err.object, cases[i].object);
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CHECK_OK(store_txn_begin_in(store, good[i][0], &options, &txn, &err));
        assert_string_equal(store_txn_path(txn), temp_path(good[i][1]));
        store_txn_abort(txn, false);
        txn = NULL;
    }
    store_free(store);
}

/* The parent of a file in the root is the root, in a child for which the directory is the root, where that is allowed; 2: it is not. */
static int open_in_root(void)
{
    struct store *store = NULL;
    char *name = NULL;
    bool is_directory, is_good;
    uint64_t bytes;
    if (chroot(test_folder) && (unshare(CLONE_NEWUSER) || chroot(test_folder)))
        return 2;
    is_good = !store_open_path("/in-root", 0, &store, &name, &err) && strcmp(store_path(store), "/") == 0 && strcmp(name, "in-root") == 0 &&
              store_exists(store, name, &is_directory, &bytes) && bytes == 4;
    return is_good ? 0 : 1;
}

TEST(the_parent_of_a_file_in_the_root_is_the_root)
{
    int status;
    temp_write("in-root", "root");
    pid_t child = fork();
    if (child == 0)
        _exit(open_in_root());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- memory and null ---- */

TEST(a_memory_store_lists_directories_by_their_files)
{
    struct store *store = store_new_memory();
    static const char *const names[] = { "b/x/1", "a", "b/y", "a.b", "b-c", "b/x/2" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        CHECK_OK(store_memory_put(store, names[i], "123456", i + 1, &err));
    static const struct {
        const char *directory, *expected;
    } cases[] = { { "", "a 2,a.b 4,b/ 0,b-c 5," }, { "b", "b/x/ 0,b/y 3," }, { "b/x", "b/x/1 1,b/x/2 6," } };
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct arena arena = { 0 };
        struct store_entry *entries;
        size_t count;
        struct buffer text = { 0 };
        CHECK_OK(store_list(store, cases[c].directory, &arena, &entries, &count, &err));
        for (size_t i = 0; i < count; i++)
            buffer_printf(&text, "%.*s%s %d,", STR_ARG(entries[i].name), entries[i].is_directory ? "/" : "", (int)entries[i].bytes);
        buffer_append_byte(&text, 0);
        assert_string_equal((const char *)text.data, cases[c].expected);
        buffer_release(&text);
        arena_release(&arena);
    }
    bool is_directory;
    uint64_t bytes;
    assert_true(store_exists(store, "b", &is_directory, &bytes) && is_directory);
    assert_true(store_exists(store, "b-c", &is_directory, &bytes) && !is_directory && bytes == 5);
    assert_false(store_exists(store, "b/", &is_directory, &bytes));
    assert_false(store_exists(store, "b/z", &is_directory, &bytes));
    assert_true(store_is_directory(store, "") && store_is_directory(store, "b"));
    assert_false(store_is_directory(store, "b-c") || store_is_directory(store, "none"));
    assert_true(store_is_file(store, "b-c") && store_is_file(store, "b/y"));
    assert_false(store_is_file(store, "") || store_is_file(store, "b") || store_is_file(store, "none"));
    assert_true(store_has_file(store, "", "b-c", &err) && store_has_file(store, "b", "y", &err) && store_has_file(store, "b/", "y", &err));
    assert_false(store_has_file(store, "", "b", &err) || store_has_file(store, "b", "z", &err));
    struct store_object *object = NULL;
    CHECK_OK(store_open_object(store, "b/y", &object, &err));
    CHECK_OK(store_memory_put(store, "b/y", "other", 5, &err)); /* what is open stays as it was */
    assert_memory_equal(store_object_map(object), "123", 3);
    store_object_close(object);
    CHECK_FAILS(store_open_object(store, "b", &object, &err), RESHARD_ERR_IO);
    CHECK_FAILS(store_memory_put(store, "../x", "1", 1, &err), RESHARD_ERR_FORMAT);
    store_free(store);
}

TEST(names_are_joined_by_one_slash)
{
    struct arena arena = { 0 }, full = { .bytes_max = 1 };
    assert_string_equal(store_join(&arena, "", STR("a")), "a");
    assert_string_equal(store_join(&arena, "a", STR("b/c")), "a/b/c");
    assert_string_equal(store_join(&arena, "a/b/", STR("c")), "a/b/c");
    assert_string_equal(store_join(&arena, "a", STR("")), "a/");
    assert_string_equal(store_join(&arena, "", STR("")), "");
    assert_null(store_join(&full, "a", STR("b")));
    arena_release(&full);
    arena_release(&arena);
}

TEST(a_null_store_swallows_what_is_written)
{
    struct store *store = store_new_null();
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    struct store_txn_options options = { .is_directory = true };
    bool is_directory;
    uint64_t bytes;
    CHECK_OK(store_txn_begin_in(store, "x", &options, &txn, &err));
    assert_string_equal(store_txn_path(txn), "");
    CHECK_OK(store_txn_create(txn, "a", UINT64_C(1) << 40, &object, &err));
    CHECK_OK(store_write_at(object, (UINT64_C(1) << 40) - 3, "abc", 3, &err));
    CHECK_FAILS(store_write_at(object, (UINT64_C(1) << 40) - 2, "abc", 3, &err), RESHARD_ERR_USAGE);
    assert_int_equal(store_object_fd(object), -1);
    char zeros[3] = "xyz";
    CHECK_OK(store_read_at(object, (UINT64_C(1) << 40) - 3, zeros, 3, &err));
    assert_memory_equal(zeros, "\0\0\0", 3);
    CHECK_OK(store_resize(object, 2, &err));
    CHECK_FAILS(store_write_at(object, 0, "abc", 3, &err), RESHARD_ERR_USAGE);
    store_object_close(object);
    struct buffer journal = { 0 };
    CHECK_OK(store_txn_journal_append(txn, "x", 1, &err));
    CHECK_OK(store_txn_journal_read(txn, &journal, &err));
    assert_int_equal(journal.size, 0);
    buffer_release(&journal);
    CHECK_OK(store_txn_commit(txn, &err));
    assert_false(store_exists(store, "x", &is_directory, &bytes));
    CHECK_FAILS(store_open_object(store, "x/a", &object, &err), RESHARD_ERR_IO);
    CHECK_OK(store_txn_begin_in(store, "y", &options, &txn, &err));
    store_txn_abort(txn, true);
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 9;
    CHECK_OK(store_list(store, "", &arena, &entries, &count, &err));
    assert_int_equal(count, 0);
    CHECK_FAILS(store_list(store, "x", &arena, &entries, &count, &err), RESHARD_ERR_IO);
    arena_release(&arena);
    store_free(store);
}

/* ---- a caller's memory ---- */

static reshard_status read_dots(void *context, uint64_t offset, void *out, size_t size, reshard_error *error)
{
    (void)context, (void)error;
    memset(out, '.', size);
    return offset ? RESHARD_OK : RESHARD_ERR_IO;
}

static int give_digits(void *out, uint64_t offset, size_t size, void *context)
{
    for (size_t i = 0; i < size; i++)
        ((char *)out)[i] = (char)('0' + offset + i);
    return *(int *)context;
}

TEST(memory_of_a_caller_is_found_by_its_number_alone)
{
    static const char *const names[] = { "shard 4", "shard 18446744073709551616", "shard 4294967296", "shard 00", "shard  0", "shard +1",
                                         "shard -1", "shard 1x", "shard 1 ", "shard ", "shard", "shard x", "Shard 1", "1" };
    int failure = 0;
    const struct store_region regions[] = { { .memory = "abc", .bytes = 3 },
                                            { .bytes = 7, .read = read_dots },
                                            { .bytes = 5, .give = give_digits, .context = &failure },
                                            { .bytes = 2 } };
    struct store *store = NULL;
    struct store_object *object = NULL;
    char text[8] = "", name[STORE_REGION_NAME_MAX];
    bool is_directory;
    uint64_t bytes;
    CHECK_OK(store_new_over(regions, 4, &store, &err));
    assert_int_equal(listed_in(store, ""), 4);
    for (uint32_t i = 0; i < 4; i++) {
        store_region_name(i, name);
        assert_true(store_exists(store, name, &is_directory, &bytes) && !is_directory);
        assert_int_equal(bytes, regions[i].bytes);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_false(store_exists(store, names[i], &is_directory, &bytes));
        CHECK_FAILS(store_open_object(store, names[i], &object, &err), RESHARD_ERR_IO);
    }
    CHECK_OK(store_open_object(store, "shard 0", &object, &err));
    assert_ptr_equal(store_object_map(object), regions[0].memory);
    store_object_close(object);
    CHECK_OK(store_open_object(store, "shard 1", &object, &err));
    CHECK_OK(store_read_at(object, 1, text, 6, &err));
    assert_string_equal(text, "......");
    CHECK_FAILS(store_read_at(object, 0, text, 1, &err), RESHARD_ERR_IO);
    CHECK_FAILS(store_read_at(object, 2, text, 6, &err), RESHARD_ERR_FORMAT);
    store_object_close(object);
    CHECK_OK(store_open_object(store, "shard 2", &object, &err));
    CHECK_OK(store_read_at(object, 2, text, 3, &err));
    assert_memory_equal(text, "234", 3);
    failure = 1;
    CHECK_FAILS(store_read_at(object, 2, text, 3, &err), RESHARD_ERR_CANCELLED);
    store_object_close(object);
    CHECK_FAILS(store_open_object(store, "shard 3", &object, &err), RESHARD_ERR_UNSUPPORTED);
    store_region_move(store, 3, &(struct store_region){ .memory = "xyz", .bytes = 3 });
    store_region_move(store, 4, &regions[0]);
    CHECK_OK(store_open_object(store, "shard 3", &object, &err));
    assert_int_equal(store_object_size(object), 2); /* the same bytes, elsewhere */
    CHECK_OK(store_read_at(object, 0, text, 2, &err));
    assert_memory_equal(text, "xy", 2);
    store_object_close(object);
    store_free(store);
}

/* A listing is whole or an error. */
TEST(want_of_memory_for_a_listing_is_an_error)
{
    enum { FILES = 300 };
    struct store *stores[2] = { store_new_memory(), NULL };
    mkdir(temp_path("many"), 0777);
    for (int i = 0; i < FILES; i++) {
        char name[64];
        snprintf(name, sizeof(name), "many/a-name-that-takes-some-room-%d", i);
        CHECK_OK(store_memory_put(stores[0], name, "x", 1, &err));
        temp_write(name, "x");
    }
    stores[1] = open_store(0);
    for (int s = 0; s < 2; s++) {
        unsigned failed = 0;
        reshard_status status = RESHARD_ERR_MEMORY;
        for (size_t room = 512; status; room += 512) {
            struct arena arena = { .bytes_max = room };
            struct store_entry *entries;
            size_t count = 0;
            status = store_list(stores[s], "many", &arena, &entries, &count, &err);
            assert_true(status ? status == RESHARD_ERR_MEMORY : count == FILES);
            failed += status != RESHARD_OK;
            arena_release(&arena);
        }
        assert_true(failed > 20);
        store_free(stores[s]);
    }
}

static reshard_status list_over(const struct store_region *regions, size_t count)
{
    struct store *store = NULL;
    struct arena arena = { 0 };
    struct store_entry *entries;
    struct store_object *object = NULL;
    size_t listed;
    reshard_status status = store_new_over(regions, count, &store, &err);
    if (!status)
        status = store_list(store, "", &arena, &entries, &listed, &err);
    for (size_t i = 0; i < count && !status; i++) {
        char name[STORE_REGION_NAME_MAX];
        store_region_name((uint32_t)i, name);
        status = store_open_object(store, name, &object, &err);
        if (!status)
            store_object_close(object);
    }
    arena_release(&arena);
    if (store)
        store_free(store);
    return status;
}

TEST(want_of_memory_for_a_store_over_memory_is_an_error)
{
    const struct store_region regions[] = { { .memory = "abc", .bytes = 3 }, { .bytes = 7, .read = read_dots } };
    CHECK_OK(list_over(regions, 0));
    unsigned failed = 0;
    bool is_hit = true;
    for (unsigned long nth = 1; is_hit; nth++) {
        fail_malloc_at(nth);
        reshard_status status = list_over(regions, 2);
        is_hit = fail_malloc_was_hit();
        assert_true(!status || (is_hit && status == RESHARD_ERR_MEMORY));
        failed += status != RESHARD_OK;
    }
    assert_int_equal(failed, 7); /* the store, its regions, the listing, and each object with its name */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_could_leave_the_directory_are_refused),
        cmocka_unit_test(every_call_with_a_name_checks_it),
        cmocka_unit_test(a_file_is_read_by_ranges_and_through_windows),
        cmocka_unit_test(direct_reading_gives_the_same_bytes),
        cmocka_unit_test(a_file_that_shrinks_is_named_with_the_offset),
        cmocka_unit_test(whole_files_are_read_up_to_a_limit),
        cmocka_unit_test(links_may_lead_inside_but_not_out),
        cmocka_unit_test(special_files_are_refused_without_being_opened),
        cmocka_unit_test(a_link_that_the_caller_names_is_followed),
        cmocka_unit_test(nothing_shows_of_what_links_out_of_the_directory_lead_to),
        cmocka_unit_test(listing_is_sorted_resolves_links_and_leaves_special_files_out),
        cmocka_unit_test(paths_open_as_directory_or_as_file_of_their_directory),
        cmocka_unit_test(a_target_is_begun_in_a_directory_that_is_there_and_inside),
        cmocka_unit_test(the_parent_of_a_file_in_the_root_is_the_root),
        cmocka_unit_test(a_memory_store_lists_directories_by_their_files),
        cmocka_unit_test(a_held_listing_is_read_once_and_read_again_when_it_is_released),
        cmocka_unit_test(names_are_joined_by_one_slash),
        cmocka_unit_test(a_null_store_swallows_what_is_written),
        cmocka_unit_test(memory_of_a_caller_is_found_by_its_number_alone),
        cmocka_unit_test(want_of_memory_for_a_listing_is_an_error),
        cmocka_unit_test(want_of_memory_for_a_store_over_memory_is_an_error),
    };
    return cmocka_run_group_tests_name("store", tests, test_folder_make, test_folder_remove);
}
