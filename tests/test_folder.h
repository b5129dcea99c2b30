/* SPDX-License-Identifier: Apache-2.0 */
/* A folder of a test's own, as setup and teardown of a test or a group, and what is in a folder. Included by one file a program. */
#ifndef TESTS_TEST_FOLDER_H
#define TESTS_TEST_FOLDER_H

#include "check.h"

#include <dirent.h>

/* Entries of a folder that begin so. */
static inline int test_entries_count(const char *path, const char *prefix)
{
    DIR *stream = opendir(path);
    int count = 0;
    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream));)
        count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(stream);
    return count;
}

static char test_folder[TEST_FOLDER_SIZE];

static inline int test_folder_make(void **state)
{
    (void)state;
    return test_mkdtemp(test_folder) ? 0 : -1;
}

static inline int test_folder_remove(void **state)
{
    (void)state;
    return test_tree_remove(test_folder);
}

/* A test with a folder that is new for it. */
#define TEST_IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, test_folder_make, test_folder_remove)

#endif
