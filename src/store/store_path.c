/* SPDX-License-Identifier: Apache-2.0 */
/* Single files beside a target, by path. */
#include "store/store.h"

#include "store/store_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

bool store_path_is_url(const char *path)
{
    size_t size = 0;
    while ((path[size] >= 'a' && path[size] <= 'z') || (path[size] >= 'A' && path[size] <= 'Z') ||
           (size && ((path[size] >= '0' && path[size] <= '9') || strchr("+.-", path[size]) != NULL) && path[size]))
        size++;
    return size && strncmp(path + size, "://", 3) == 0;
}

const char *store_path_shown(const char *path, char out[STORE_SHOWN_MAX])
{
    const char *host = store_path_is_url(path) ? strstr(path, "://") + 3 : NULL;
    if (!host)
        return path;
    const size_t whole = strcspn(host, "?#"), name = strcspn(host, "/?#");
    const char *user = memrchr(host, '@', name), *server = user ? user + 1 : host;
    snprintf(out, STORE_SHOWN_MAX, "%.*s%.*s", (int)(host - path), path, (int)(host + whole - server), server);
    return out;
}

reshard_status store_error_url(const char *url, reshard_error *err)
{
    char shown[STORE_SHOWN_MAX];
    error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s' is a URL: nothing is written there", store_path_shown(url, shown));
    error_hint(err, "write to a folder of this machine, and copy that");
    return RESHARD_ERR_UNSUPPORTED;
}

static char *folder_of_path(const char *path)
{
    size_t size = strlen(path);
    while (size && path[size - 1] != '/')
        size--;
    return size ? strndup(path, size) : strdup(".");
}

reshard_status store_path_remove(const char *path, bool no_sync, reshard_error *err)
{
    char *folder = no_sync ? NULL : folder_of_path(path);
    if (!no_sync && !folder)
        return error_set_memory(err);
    bool is_removed = unlink(path) == 0 && (no_sync || sync_directory(AT_FDCWD, folder));
    int number = errno;
    free(folder);
    if (is_removed || number == ENOENT)
        return RESHARD_OK;
    errno = number;
    reshard_status status = error_set_errno(err, "cannot remove '%s'", path);
    error_object(err, "%s", path);
    return status;
}
