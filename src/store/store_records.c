/* SPDX-License-Identifier: Apache-2.0 */
/* Records that parts of a run leave beside the target: small files in the partial directory, each whole or not there. */
#include "store/store_posix.h"

#include "base/array.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD_PREFIX ".part-"
#define RECORD_UNFINISHED ".unfinished"
#define RECORD_BYTES_MAX ((off_t)1 << 32)

int part_record_write(int directory_fd, const char *name, const void *bytes, size_t size, bool no_sync)
{
    char *unfinished;
    size_t done;
    if (asprintf(&unfinished, "%s" RECORD_UNFINISHED, name) < 0)
        return -1;
    int fd = openat(directory_fd, unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool good = fd >= 0 && pwrite_whole(fd, 0, bytes, size, &done) && (no_sync || fdatasync(fd) == 0);
    good = (fd < 0 || close(fd) == 0) && good && renameat(directory_fd, unfinished, directory_fd, name) == 0;
    good = good && (no_sync || sync_directory(directory_fd, "."));
    int number = errno;
    free(unfinished);
    errno = number;
    return good ? 0 : -1;
}

static bool is_record(const char *name)
{
    size_t size = strlen(name), end = strlen(RECORD_UNFINISHED);
    return strncmp(name, RECORD_PREFIX, strlen(RECORD_PREFIX)) == 0 && (size < end || strcmp(name + size - end, RECORD_UNFINISHED) != 0);
}

static reshard_status records_collect(DIR *directory, struct arena *arena, char ***names, size_t *count, reshard_error *err)
{
    size_t capacity = 0;
    char **found = NULL;
    reshard_status status = RESHARD_OK;
    for (struct dirent *entry; !status && (entry = readdir(directory));) {
        if (!is_record(entry->d_name))
            continue;
        char *name = arena_copy(arena, entry->d_name, strlen(entry->d_name) + 1);
        if (!name || !ARRAY_ROOM(found, *count, capacity))
            status = error_set_memory(err);
        else
            found[(*count)++] = name;
    }
    *names = status ? NULL : arena_array(arena, *count, sizeof(**names));
    if (*names && *count)
        memcpy(*names, found, *count * sizeof(**names));
    free(found);
    return status || *names ? status : error_set_memory(err);
}

reshard_status records_list(int directory_fd, struct arena *arena, char ***names, size_t *count, reshard_error *err)
{
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    *names = NULL;
    *count = 0;
    if (!directory) {
        error_set_errno(err, "cannot list the records of parts");
        if (fd >= 0)
            close(fd);
        return RESHARD_ERR_IO;
    }
    reshard_status status = records_collect(directory, arena, names, count, err);
    closedir(directory);
    return status;
}

reshard_status part_record_read(int directory_fd, const char *name, struct buffer *out, reshard_error *err)
{
    struct stat info;
    size_t done;
    int fd = openat(directory_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool good = fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size < RECORD_BYTES_MAX;
    uint8_t *room = good ? buffer_extend(out, (size_t)info.st_size) : NULL;
    good = room && pread_whole(fd, 0, room, (size_t)info.st_size, &done);
    int number = errno;
    if (fd >= 0)
        close(fd);
    errno = number;
    if (out->failed)
        return error_set_memory(err);
    return good ? RESHARD_OK : error_set_errno(err, "cannot read the record '%s' of a part", name);
}
