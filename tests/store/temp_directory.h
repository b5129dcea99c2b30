/* SPDX-License-Identifier: Apache-2.0 */
/* Small things to do in a test's own folder (test_folder.h). Included by one file a program. */
#ifndef TESTS_STORE_TEMP_DIRECTORY_H
#define TESTS_STORE_TEMP_DIRECTORY_H

#include "test_folder.h"

#include <stdbool.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* The path of a name in the directory; good until the fourth call after. */
static inline const char *temp_path(const char *name)
{
    static char paths[4][1024];
    static int next;
    next = (next + 1) % 4;
    snprintf(paths[next], sizeof(paths[next]), "%s%s%s", test_folder, name[0] ? "/" : "", name);
    return paths[next];
}

static inline void temp_write(const char *name, const char *text)
{
    int fd = open(temp_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* The file's content as a string, "-" if there is none. */
static inline const char *temp_read(const char *name)
{
    static char text[4096];
    int fd = open(temp_path(name), O_RDONLY);
    if (fd < 0)
        return "-";
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    assert_true(size >= 0);
    text[size] = '\0';
    return text;
}

static inline bool temp_exists(const char *name)
{
    struct stat info;
    return lstat(temp_path(name), &info) == 0;
}

/* Number of entries in a directory, hidden ones too. */
static inline int temp_count(const char *name)
{
    DIR *stream = opendir(temp_path(name));
    assert_non_null(stream);
    int count = -2;
    while (readdir(stream))
        count++;
    closedir(stream);
    return count;
}

#endif
