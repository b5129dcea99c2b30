/* SPDX-License-Identifier: Apache-2.0 */
/* What every unit test includes: cmocka, and a few helpers. Checks print both values. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"

#define TEST(name) static void name(void **state __attribute__((unused)))

/* The call must succeed; its error message is printed otherwise. */
#define CHECK_OK(call)                                                                            \
    do {                                                                                          \
        reshard_status check_status = (call);                                                     \
        if (check_status)                                                                         \
            fail_msg("%s: status %d: %s: %s", #call, check_status, err.object, err.message);      \
    } while (0)

/* The call must fail with this status. */
#define CHECK_FAILS(call, expected) assert_int_equal((call), (expected))

/* The folder of all fixtures, which the build makes of tests/fixtures. A test that needs it fails without it: it never passes unseen. */
static inline const char *test_fixtures(void)
{
    const char *root = getenv("RESHARD_FIXTURES");
    if (!root)
        fail_msg("RESHARD_FIXTURES is not set: run the tests by `make check` or `meson test`");
    return root;
}

/* Makes a folder of a test's own in TMPDIR, which is in memory where tools/run_tests.py finds room there. Its path is short, as are the
 * buffers for paths in it. NULL if there is none to be had. */
#define TEST_FOLDER_SIZE 40
static inline char *test_mkdtemp(char path[TEST_FOLDER_SIZE])
{
    static const char name[] = "/t-XXXXXX";
    const char *parent = getenv("TMPDIR");
    if (!parent || strlen(parent) + sizeof(name) > TEST_FOLDER_SIZE)
        parent = "/tmp";
    strcpy(stpcpy(path, parent), name);
    return mkdtemp(path);
}

static inline int test_entry_remove(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

/* A file, or a folder and all in it; links are not followed. Nothing there is no failure. */
static inline int test_tree_remove(const char *path)
{
    return access(path, F_OK) == 0 ? nftw(path, test_entry_remove, 16, FTW_DEPTH | FTW_PHYS) : 0;
}

/* Of many cases one in `part` is taken, or RESHARD_TEST_TIMES as many: how far it is to the next. */
static inline uint64_t test_step(uint64_t part)
{
    const char *times = getenv("RESHARD_TEST_TIMES");
    uint64_t more = times ? strtoull(times, NULL, 10) : 1;
    return more >= part ? 1 : part / (more ? more : 1);
}

/* A safetensors file with this header, and the bytes 0, 1, 2 … behind it. */
static inline void test_write_safetensors(const char *path, const char *header, size_t data)
{
    uint64_t size = strlen(header);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(&size, sizeof(size), 1, file);
    fwrite(header, size, 1, file);
    for (size_t i = 0; i < data; i++)
        fputc((int)i, file);
    assert_int_equal(fclose(file), 0);
}

/* A small deterministic random number generator; tests print their seed. */
static inline uint64_t test_random(uint64_t *seed)
{
    *seed += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = *seed;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

#endif
