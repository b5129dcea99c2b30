/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_target.h"

#include "base/array.h"
#include "store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static enum target_kind store_target_kind_of(mode_t mode)
{
    if (S_ISREG(mode))
        return TARGET_FILE;
    return S_ISDIR(mode) ? TARGET_DIRECTORY : S_ISLNK(mode) ? TARGET_LINK : TARGET_SPECIAL;
}

/* The path without links and dots; its last part need not exist. NULL with errno if there is no such folder. */
static char *resolve_folder(const char *path)
{
    size_t size = strlen(path), name;
    while (size > 1 && path[size - 1] == '/')
        size--;
    for (name = size; name && path[name - 1] != '/';)
        name--;
    char *folder = NULL, *out = NULL;
    if (asprintf(&folder, "%.*s.", (int)name, path) < 0)
        return NULL;
    char *real = realpath(folder, NULL);
    if (real && asprintf(&out, "%s/%.*s", real[1] ? real : "", (int)(size - name), path + name) < 0)
        out = NULL;
    int number = errno;
    free(folder);
    free(real);
    errno = number;
    return out;
}

reshard_status store_target_look(const char *path, struct store_target *out, reshard_error *err)
{
    struct stat info;
    *out = (struct store_target){ .path = NULL };
    if (store_path_is_url(path))
        return store_error_url(path, err);
    out->path = resolve_folder(path);
    if (!out->path) {
        if (errno == ENOMEM)
            return error_set_memory(err);
        error_set_errno(err, "cannot write '%s'", path);
        error_hint(err, "the folder that is to hold the target must exist");
        return RESHARD_ERR_IO;
    }
    if (lstat(out->path, &info) < 0)
        return RESHARD_OK; /* whoever writes there says what is wrong */
    out->kind = store_target_kind_of(info.st_mode);
    out->bytes = (uint64_t)info.st_size;
    out->is_known = stat(out->path, &info) == 0;
    out->device = info.st_dev;
    out->inode = info.st_ino;
    return RESHARD_OK;
}

void store_target_release(struct store_target *target)
{
    free(target->path);
    *target = (struct store_target){ 0 };
}

bool store_target_is(const struct store_target *target, const char *path)
{
    struct stat info;
    return target->is_known && stat(path, &info) == 0 && info.st_dev == target->device && info.st_ino == target->inode;
}

static bool is_within(const char *path, const char *folder)
{
    size_t size = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    return strncmp(path, folder, size) == 0 && path[size] == '/';
}

bool store_target_free_bytes(const struct store_target *target, uint64_t *out)
{
    struct statvfs info;
    char *folder = NULL;
    const char *last = strrchr(target->path, '/');
    if (!last || asprintf(&folder, "%.*s/", (int)(last - target->path), target->path) < 0)
        return false;
    bool is_known = statvfs(folder, &info) == 0 && info.f_blocks > 0; /* without blocks it is one that does not count */
    free(folder);
    return is_known && !__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, out);
}

enum target_relation store_target_relation(const struct store_target *target, const char *path)
{
    enum target_relation relation = TARGET_BESIDE;
    char *real = realpath(path, NULL), *real_target = realpath(target->path, NULL);
    const char *to = real_target ? real_target : target->path;
    if (store_target_is(target, path) || (real && strcmp(real, to) == 0))
        relation = TARGET_IS;
    else if (real && (is_within(target->path, real) || is_within(to, real)))
        relation = TARGET_WITHIN;
    else if (real && is_within(real, to))
        relation = TARGET_AROUND;
    free(real);
    free(real_target);
    return relation;
}

reshard_status store_target_entries(const char *folder, struct arena *arena, struct target_entry **entries, size_t *count,
                                    reshard_error *err)
{
    struct target_entry *found = NULL;
    size_t capacity = 0;
    reshard_status status = RESHARD_OK;
    DIR *stream = opendir(folder);
    if (!stream)
        return error_set_errno(err, "cannot list '%s'", folder);
    *count = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        struct stat info = { 0 };
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *name = arena_copy(arena, entry->d_name, strlen(entry->d_name));
        if (!name || !ARRAY_ROOM(found, *count, capacity)) {
            status = error_set_memory(err);
            break;
        }
        bool is_directory = fstatat(dirfd(stream), name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode);
        found[(*count)++] = (struct target_entry){ name, is_directory };
    }
    if (!status && errno)
        status = error_set_errno(err, "cannot list '%s'", folder);
    closedir(stream);
    *entries = status ? NULL : arena_array(arena, *count, sizeof(**entries));
    if (!status && !*entries)
        status = error_set_memory(err);
    if (!status && *count)
        memcpy(*entries, found, *count * sizeof(**entries));
    free(found);
    return status;
}
