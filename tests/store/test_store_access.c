/* SPDX-License-Identifier: Apache-2.0 */
/* Who may read and write what a transaction works on: what it replaces, what an earlier run left, and what closing has to say. */
#include "store/store.h"
#include "temp_directory.h"

#include <errno.h>
#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>

static reshard_error err;

/* ---- close ---- */

static int close_errno; /* of every close of a file that can be written to; 0: none */
int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    struct stat info;
    bool is_written = flags >= 0 && (flags & O_ACCMODE) == O_RDWR && fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    int result = __real_close(fd);
    if (!close_errno || !is_written)
        return result;
    errno = close_errno;
    return -1;
}

static struct store_txn *begin(const char *name, struct store_txn_options options)
{
    struct store_txn *txn = NULL;
    CHECK_OK(store_txn_begin(temp_path(name), &options, &txn, &err));
    return txn;
}

static void put(struct store_txn *txn, const char *name, const char *text)
{
    struct store_object *object = NULL;
    CHECK_OK(store_txn_create(txn, name, strlen(text), &object, &err));
    CHECK_OK(store_write_at(object, 0, text, strlen(text), &err));
    store_object_close(object);
}

static void start_clean(void)
{
    test_folder_remove(NULL);
    mkdir(test_folder, 0777);
    umask(022);
}

TEST(a_close_that_fails_is_told_before_anything_is_published)
{
    for (int no_sync = 0; no_sync < 2; no_sync++) {
        for (int is_directory = 0; is_directory < 2; is_directory++) {
            start_clean();
            struct store_txn *txn = begin("target", (struct store_txn_options){ .is_directory = is_directory, .no_sync = no_sync });
            put(txn, is_directory ? "a" : "", "alpha");
            close_errno = ENOSPC;
            reshard_status status = store_txn_commit(txn, &err);
            close_errno = 0;
            assert_int_equal(status, RESHARD_ERR_IO);
            assert_int_equal(err.sys_errno, ENOSPC);
            assert_string_equal(err.object, is_directory ? "a" : "target");
            assert_int_equal(temp_count(""), 0);
        }
    }
}

TEST(a_close_that_fails_early_is_told_as_well)
{
    start_clean();
    struct store_txn *txn = begin("target", (struct store_txn_options){ .is_directory = true, .no_sync = true });
    for (int i = 0; i < 300; i++) { /* more than wait for the end with their descriptor open */
        char name[16];
        snprintf(name, sizeof(name), "f%d", i);
        close_errno = i == 280 ? EIO : 0;
        put(txn, name, "text");
    }
    close_errno = 0;
    CHECK_FAILS(store_txn_commit(txn, &err), RESHARD_ERR_IO);
    assert_int_equal(err.sys_errno, EIO);
    assert_string_equal(err.object, "f280");
    assert_int_equal(temp_count(""), 0);
}

/* Beyond the files that may stay open, each access opens the file and closes it again. */
TEST(a_close_that_fails_after_an_access_is_told_by_that_access)
{
    struct rlimit files;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    struct rlimit few = { .rlim_cur = 64, .rlim_max = files.rlim_max };
    start_clean();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct store_txn *txn = begin("target", (struct store_txn_options){ .is_directory = true });
    for (int i = 0; i < 32; i++) {
        char name[16];
        snprintf(name, sizeof(name), "f%d", i);
        put(txn, name, "text");
    }
    struct store_object *object = NULL;
    CHECK_OK(store_txn_create(txn, "parked", 4, &object, &err));
    CHECK_OK(store_write_at(object, 0, "text", 4, &err));
    char bytes[4];
    close_errno = ENOSPC;
    reshard_status writing = store_write_at(object, 0, "text", 4, &err);
    int writing_errno = err.sys_errno;
    reshard_status reading = store_read_at(object, 0, bytes, 4, NULL);
    reshard_status resizing = store_resize(object, 2, NULL);
    close_errno = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(writing, RESHARD_ERR_IO);
    assert_int_equal(writing_errno, ENOSPC);
    assert_int_equal(reading, RESHARD_ERR_IO);
    assert_int_equal(resizing, RESHARD_ERR_IO);
    store_object_close(object);
    store_txn_abort(txn, false);
    assert_int_equal(temp_count(""), 0);
}

/* ---- what is replaced ---- */

static mode_t mode_of(const char *name)
{
    struct stat info;
    assert_int_equal(lstat(temp_path(name), &info), 0);
    return info.st_mode & 07777;
}

static void write_as(const char *name, mode_t mode)
{
    temp_write(name, "old");
    assert_int_equal(chmod(temp_path(name), mode), 0);
}

static void replace(bool is_directory, bool no_sync)
{
    struct store_txn *txn =
        begin("target", (struct store_txn_options){ .is_directory = is_directory, .overwrite = true, .no_sync = no_sync });
    static const char *const names[] = { "kept", "renamed", "d/kept", "d/renamed", "e/new" };
    for (size_t i = 0; is_directory && i < sizeof(names) / sizeof(names[0]); i++)
        put(txn, names[i], "new");
    for (int i = 0; is_directory && i < 300; i++) { /* some are closed by then */
        char name[16];
        snprintf(name, sizeof(name), "d/f%d", i);
        put(txn, name, "new");
    }
    if (!is_directory)
        put(txn, "", "new");
    CHECK_OK(store_txn_commit(txn, &err));
    assert_int_equal(temp_count(""), 1);
}

static void make_old_directory(mode_t mode)
{
    start_clean();
    mkdir(temp_path("target"), 0777);
    mkdir(temp_path("target/d"), 0777);
    write_as("target/kept", 0640);
    write_as("target/gone", 0644);
    write_as("target/d/kept", 0600);
    write_as("target/d/f299", 0444);
    assert_int_equal(chmod(temp_path("target/d"), 02750), 0);
    assert_int_equal(chmod(temp_path("target"), mode), 0);
}

TEST(permissions_of_what_is_replaced_are_kept)
{
    for (int no_sync = 0; no_sync < 2; no_sync++) {
        make_old_directory(0700);
        replace(true, no_sync);
        static const struct {
            const char *name;
            mode_t mode;
        } cases[] = {
            { "target", 0700 },        { "target/kept", 0640 },      { "target/renamed", 0640 }, { "target/d", 02750 },
            { "target/d/kept", 0600 }, { "target/d/renamed", 0600 }, { "target/d/f7", 0600 },    { "target/d/f298", 0600 },
            { "target/d/f299", 0444 }, { "target/e", 0755 },         { "target/e/new", 0644 },
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            if (mode_of(cases[i].name) != cases[i].mode)
                fail_msg("%s: %04o, expected %04o", cases[i].name, mode_of(cases[i].name), cases[i].mode);
        }
    }
    start_clean();
    write_as("target", 0604);
    replace(false, false);
    assert_int_equal(mode_of("target"), 0604);
}

TEST(a_directory_and_a_file_that_replace_each_other_serve_the_same_people)
{
    start_clean();
    write_as("target", 0640);
    replace(true, false);
    assert_int_equal(mode_of("target"), 0750);
    make_old_directory(0710);
    replace(false, false);
    assert_int_equal(mode_of("target"), 0600);
}

TEST(without_an_old_target_the_umask_decides)
{
    start_clean();
    umask(027);
    replace(true, false);
    assert_int_equal(mode_of("target"), 0750);
    assert_int_equal(mode_of("target/kept"), 0640);
    umask(022);
}

/* ---- other users ---- */

#define SOMEBODY 54321

static bool skips_without_root(void)
{
    if (geteuid() == 0)
        return false;
    print_message("SKIP: another user can only be played by root\n");
    skip();
    return true;
}

TEST(owners_of_what_is_replaced_are_kept_by_root)
{
    if (skips_without_root())
        return;
    make_old_directory(0700);
    assert_int_equal(chown(temp_path("target"), SOMEBODY, SOMEBODY + 1), 0);
    assert_int_equal(chown(temp_path("target/kept"), SOMEBODY + 2, SOMEBODY + 3), 0);
    replace(true, false);
    static const struct {
        const char *name;
        uid_t uid;
        gid_t gid;
    } cases[] = {
        { "target", SOMEBODY, SOMEBODY + 1 },
        { "target/kept", SOMEBODY + 2, SOMEBODY + 3 },
        { "target/renamed", SOMEBODY, SOMEBODY + 1 },
        { "target/e", SOMEBODY, SOMEBODY + 1 },
        { "target/d/kept", 0, 0 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stat info;
        assert_int_equal(lstat(temp_path(cases[i].name), &info), 0);
        assert_int_equal(info.st_uid, cases[i].uid);
        assert_int_equal(info.st_gid, cases[i].gid);
    }
}

/* Runs check in a process of somebody without rights; its result is 0 if all was well. */
static int as_somebody(int (*check)(void))
{
    pid_t child = fork();
    if (child == 0)
        _exit(setgroups(0, NULL) || setgid(SOMEBODY) || setuid(SOMEBODY) ? 99 : check());
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    return WIFEXITED(result) ? WEXITSTATUS(result) : 100;
}

static int replace_file(void)
{
    struct store_txn_options options = { .overwrite = true };
    struct store_txn *txn = NULL;
    struct store_object *object = NULL;
    if (store_txn_begin(temp_path("target"), &options, &txn, NULL) || store_txn_create(txn, "", 1, &object, NULL))
        return 1;
    store_object_close(object);
    return store_txn_commit(txn, NULL) ? 2 : 0;
}

TEST(a_group_that_cannot_be_kept_lets_no_other_group_in)
{
    if (skips_without_root())
        return;
    start_clean();
    chmod(test_folder, 0777);
    write_as("target", 0664);
    assert_int_equal(chown(temp_path("target"), SOMEBODY, 7), 0);
    assert_int_equal(as_somebody(replace_file), 0);
    assert_int_equal(mode_of("target"), 0644);
}

static int refused_as_foreign(void)
{
    struct store_txn_options options = { .is_directory = true, .resume = true, .identity = 7 };
    struct store_txn *txn = NULL;
    reshard_error error = { 0 };
    if (store_txn_begin(temp_path("target"), &options, &txn, &error) != RESHARD_ERR_IO)
        return 1;
    return strstr(error.message, "another user") && strstr(error.hint, "remove it") ? 0 : 2;
}

static void leave_partial(void)
{
    struct store_txn *txn = begin("target", (struct store_txn_options){ .is_directory = true, .resume = true, .identity = 7 });
    put(txn, "a", "planted");
    store_txn_abort(txn, true);
}

TEST(what_another_user_left_beside_the_target_is_not_taken_over)
{
    if (skips_without_root())
        return;
    start_clean();
    chmod(test_folder, 01777);
    leave_partial();
    chmod(temp_path(".target.reshard-partial"), 0755);
    assert_int_equal(as_somebody(refused_as_foreign), 0);

    /* Nor by root. */
    assert_int_equal(chown(temp_path(".target.reshard-partial"), SOMEBODY, 0), 0);
    assert_int_equal(refused_as_foreign(), 0);
    assert_string_equal(temp_read(".target.reshard-partial/target/a"), "planted");
    assert_int_equal(temp_count(""), 1);
}

TEST(what_others_may_write_to_is_not_taken_over)
{
    static const mode_t modes[] = { 0770, 0707, 01777, 0720 };
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        start_clean();
        leave_partial();
        assert_int_equal(mode_of(".target.reshard-partial"), 0700);
        chmod(temp_path(".target.reshard-partial"), modes[i]);
        struct store_txn_options options = { .is_directory = true };
        struct store_txn *txn = NULL;
        CHECK_FAILS(store_txn_begin(temp_path("target"), &options, &txn, &err), RESHARD_ERR_IO);
        assert_non_null(strstr(err.message, "other users may write"));
        chmod(temp_path(".target.reshard-partial"), 0755);
        txn = begin("target", (struct store_txn_options){ .is_directory = true, .resume = true, .identity = 7 });
        assert_true(store_txn_is_resumed(txn));
        store_txn_abort(txn, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_close_that_fails_is_told_before_anything_is_published),
        cmocka_unit_test(a_close_that_fails_early_is_told_as_well),
        cmocka_unit_test(a_close_that_fails_after_an_access_is_told_by_that_access),
        cmocka_unit_test(permissions_of_what_is_replaced_are_kept),
        cmocka_unit_test(a_directory_and_a_file_that_replace_each_other_serve_the_same_people),
        cmocka_unit_test(without_an_old_target_the_umask_decides),
        cmocka_unit_test(owners_of_what_is_replaced_are_kept_by_root),
        cmocka_unit_test(a_group_that_cannot_be_kept_lets_no_other_group_in),
        cmocka_unit_test(what_another_user_left_beside_the_target_is_not_taken_over),
        cmocka_unit_test(what_others_may_write_to_is_not_taken_over),
    };
    return cmocka_run_group_tests(tests, test_folder_make, test_folder_remove);
}
