/* SPDX-License-Identifier: Apache-2.0 */
/* Single files beside a target, by path. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum store_path_kind store_path_look(const char *path)
{
    struct stat info;
    if (lstat(path, &info) < 0)
        return errno == ENOENT || errno == ENOTDIR ? STORE_PATH_NOTHING : STORE_PATH_UNKNOWN;
    return S_ISREG(info.st_mode) ? STORE_PATH_FILE : STORE_PATH_OTHER;
}

static char *folder_of_path(const char *path)
{
    size_t size = strlen(path);
    while (size && path[size - 1] != '/')
        size--;
    return size ? strndup(path, size) : strdup(".");
}

/* Some file systems cannot sync directories, and need not. */
static int sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd < 0 ? -1 : fsync(fd);
    if (result < 0 && fd >= 0 && (errno == EINVAL || errno == EROFS))
        result = 0;
    int number = errno;
    if (fd >= 0)
        close(fd);
    errno = number;
    return result;
}

reshard_status store_path_remove(const char *path, bool no_sync, reshard_error *err)
{
    char *folder = folder_of_path(path);
    if (!folder)
        return error_set_memory(err);
    bool is_removed = unlink(path) == 0 && (no_sync || sync_folder(folder) == 0);
    int number = errno;
    free(folder);
    if (is_removed || number == ENOENT)
        return RESHARD_OK;
    errno = number;
    reshard_status status = error_set_errno(err, "cannot remove '%s'", path);
    error_object(err, "%s", path);
    return status;
}
