/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names below a directory, opened without openat2: the kernel's own answer is the judge. Paths and links are drawn, and each of them opens
 * the same file as openat2 does with RESOLVE_BENEATH, or fails for the same reason.
 */
#include "store/store_beneath.h"
#include "test_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define LINKS_MAX 40 /* that the kernel follows for one path */
#define DRAWS 20000

static int root;

/* What openat2 says: a file, or minus the error. */
static int judge(const char *name, struct stat *info)
{
    struct open_how how = { .flags = O_RDONLY | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    int fd;
    do /* EAGAIN: anything on the machine was renamed while the kernel looked at a ".." */
        fd = (int)syscall(SYS_openat2, root, name, &how, sizeof(how));
    while (fd < 0 && (errno == EAGAIN || errno == EINTR));
    if (fd < 0 && errno == ENOSYS)
        skip(); /* an emulated host: there is no judge */
    if (fd < 0)
        return -errno;
    assert_int_equal(fstat(fd, info), 0);
    close(fd);
    return 0;
}

static int by_hand(const char *name, struct stat *info)
{
    int fd = open_beneath(root, name, O_RDONLY | O_CLOEXEC, true);
    if (fd < 0)
        return -errno;
    assert_int_equal(fstat(fd, info), 0);
    close(fd);
    return 0;
}

/* What both say of a name. */
static int agree(const char *name)
{
    struct stat wanted = { 0 }, found = { 0 };
    int expected = judge(name, &wanted), result = by_hand(name, &found);
    if (expected != result || wanted.st_ino != found.st_ino || wanted.st_dev != found.st_dev)
        fail_msg("'%.200s': %s (inode %ju), the kernel says %s (inode %ju)", name, strerror(-result), (uintmax_t)found.st_ino,
                 strerror(-expected), (uintmax_t)wanted.st_ino);
    return result;
}

static void make_directory(const char *name)
{
    assert_int_equal(mkdirat(root, name, 0700), 0);
}

static void make_file(const char *name)
{
    int fd = openat(root, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static void make_link(const char *name, const char *target)
{
    assert_int_equal(symlinkat(target, root, name), 0);
}

/* A tree with links of every kind: inside, upwards, out, absolute, to nothing, in circles, through files. */
static int tree_make(void **state)
{
    if (test_folder_make(state))
        return -1;
    root = open(test_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return -1;
    make_directory("a");
    make_directory("a/b");
    make_directory("a/b/c");
    make_file("f");
    make_file("a/f");
    make_file("a/b/f");
    make_link("in", "a/b");
    make_link("a/up", "..");
    make_link("a/b/top", "../..");
    make_link("a/b/out", "../../..");
    make_link("out", "..");
    make_link("absolute", "/etc");
    make_link("a/same", "./b/./c/../f");
    make_link("a/slashed", "b//");
    make_link("nothing", "a/none");
    make_link("circle", "circle");
    make_link("a/one", "two");
    make_link("a/two", "one");
    make_link("a/through", "f/b");
    make_link("a/b/back", "../../in/../f");
    make_link("self", ".");
    return 0;
}

static int tree_remove(void **state)
{
    close(root);
    return test_folder_remove(state);
}

static void drawn_paths_are_opened_as_the_kernel_opens_them(void **state)
{
    static const char *const parts[] = { "a", "b", "c", "f", "in", "up", "top", "out", "absolute", "same", "slashed", "nothing", "circle",
                                         "one", "through", "back", "self", "..", ".", "none", "a", "b", "..", "in" };
    uint64_t random = 1;
    int opened = 0, left = 0;
    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        char name[256] = "";
        random = random * 6364136223846793005u + 1442695040888963407u;
        for (int i = 0, count = 1 + (int)(random >> 33) % 6; i < count; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            strcat(name, i ? "/" : "");
            strcat(name, parts[(random >> 33) % (sizeof(parts) / sizeof(parts[0]))]);
        }
        if (random >> 40 & 1)
            strcat(name, "/");
        int result = agree(name);
        opened += result == 0;
        left += result == -EXDEV;
    }
    assert_in_range(opened, DRAWS / 20, DRAWS);
    assert_in_range(left, DRAWS / 20, DRAWS);
}

/* The last of a chain opens as long as no path needs more links than the kernel follows. */
static void as_many_links_are_followed_as_the_kernel_follows(void **state)
{
    char name[32], target[32];
    (void)state;
    make_link("l0", "f");
    for (int i = 1; i <= LINKS_MAX + 1; i++) {
        snprintf(name, sizeof(name), "l%d", i);
        snprintf(target, sizeof(target), "l%d", i - 1);
        make_link(name, target);
    }
    assert_int_equal(agree("l38"), 0);
    assert_int_equal(agree("l39"), 0);
    assert_int_equal(agree("l40"), -ELOOP);
    assert_int_equal(agree("l41"), -ELOOP);
}

/* Links that make what is left of a path longer and longer end as an error. */
static void paths_that_grow_are_bounded(void **state)
{
    char *target = malloc(4096), *name = malloc(20000);
    struct stat info;
    (void)state;
    assert_non_null(target);
    assert_non_null(name);
    memset(target, 0, 4096);
    strcpy(target, "long");
    for (int i = 0; i < 1300; i++)
        strcat(target, "/x");
    make_link("long", target);
    assert_int_equal(by_hand("long", &info), -ENAMETOOLONG);
    memset(name, '/', 19999);
    name[19999] = '\0';
    memcpy(name, "f", 1);
    assert_int_equal(by_hand(name, &info), -ENAMETOOLONG);
    free(target);
    free(name);
}

/* A name that fills what a path may have, and one that does not fit: nothing is written behind it. */
static void deep_folders_are_opened(void **state)
{
    char deep[4096] = "";
    (void)state;
    while (strlen(deep) < 3800) {
        strcat(deep, deep[0] ? "/dddddddddddddddddddddddddddddddddddddddd" : "dddddddddddddddddddddddddddddddddddddddd");
        make_directory(deep);
    }
    assert_int_equal(agree(deep), 0);
    strcat(deep, "/none");
    assert_int_equal(agree(deep), -ENOENT);
}

#define IN_TREE(test) cmocka_unit_test_setup_teardown(test, tree_make, tree_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_TREE(drawn_paths_are_opened_as_the_kernel_opens_them),
        IN_TREE(as_many_links_are_followed_as_the_kernel_follows),
        IN_TREE(paths_that_grow_are_bounded),
        IN_TREE(deep_folders_are_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
