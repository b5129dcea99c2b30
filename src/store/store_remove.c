/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include "base/name_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Removing a tree of any depth without recursion and with two descriptors: the directories found in a directory are
 * moved up to the top under made-up names, where they wait for their turn.
 */
struct removal {
    int top_fd;
    const char *keep;
    uint64_t moved;   /* number of made-up names given */
    bool found_more;  /* a directory was left at the top */
    int first_errno;
};

static void store_remove_note(struct removal *removal)
{
    if (!removal->first_errno)
        removal->first_errno = errno;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static DIR *open_stream(int directory_fd, const char *name)
{
    int fd = openat(directory_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !stream)
        close(fd);
    return stream;
}

static void move_up(struct removal *removal, int directory_fd, const char *name)
{
    char moved[48];
    for (;;) {
        snprintf(moved, sizeof(moved), ".reshard-removed-%llu", (unsigned long long)removal->moved++);
        if (renameat2(directory_fd, name, removal->top_fd, moved, RENAME_NOREPLACE) == 0)
            break;
        bool lacks_flag = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
        if (lacks_flag && renameat(directory_fd, name, removal->top_fd, moved) == 0)
            break;
        /* An earlier run that was killed here has left something of that name. */
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) {
            store_remove_note(removal);
            return;
        }
    }
    removal->found_more = true;
}

/* Empties one directory below the top. */
static void store_remove_flatten(struct removal *removal, const char *name)
{
    DIR *stream = open_stream(removal->top_fd, name);
    if (!stream) {
        store_remove_note(removal);
        return;
    }
    struct dirent *entry;
    while ((entry = readdir(stream))) {
        if (is_dots(entry->d_name) || unlinkat(dirfd(stream), entry->d_name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno == EISDIR || errno == EPERM) /* what unlink says about directories */
            move_up(removal, dirfd(stream), entry->d_name);
        else
            store_remove_note(removal);
    }
    closedir(stream);
}

static void remove_entry(struct removal *removal, const char *name)
{
    if (unlinkat(removal->top_fd, name, 0) == 0 || errno == ENOENT)
        return;
    if (errno != EISDIR && errno != EPERM) {
        store_remove_note(removal);
        return;
    }
    if (unlinkat(removal->top_fd, name, AT_REMOVEDIR) == 0)
        return;
    store_remove_flatten(removal, name);
    if (unlinkat(removal->top_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        store_remove_note(removal);
}

int remove_contents(int directory_fd, const char *keep)
{
    struct removal removal = { .top_fd = directory_fd, .keep = keep };
    do {
        removal.found_more = false;
        DIR *stream = open_stream(directory_fd, ".");
        if (!stream) {
            store_remove_note(&removal);
            break;
        }
        struct dirent *entry;
        while ((entry = readdir(stream))) {
            if (!is_dots(entry->d_name) && !(keep && strcmp(entry->d_name, keep) == 0))
                remove_entry(&removal, entry->d_name);
        }
        closedir(stream);
    } while (removal.found_more && !removal.first_errno);
    return removal.first_errno;
}

/* ---- strays ---- */

/* Directories still to be looked through, as a queue of relative names that all stay in the map. */
struct sweep {
    int top_fd;
    const struct name_map *names;
    struct name_map directories;
    struct buffer path;
    int first_errno;
};

static const char *store_remove_join(struct sweep *sweep, struct str directory, const char *name)
{
    buffer_clear(&sweep->path);
    buffer_append_str(&sweep->path, directory);
    if (directory.size)
        buffer_append_byte(&sweep->path, '/');
    buffer_append(&sweep->path, name, strlen(name) + 1);
    return sweep->path.failed ? NULL : (const char *)sweep->path.data;
}

static bool sweep_entry(struct sweep *sweep, struct str directory, int directory_fd, const char *name)
{
    struct stat info;
    const char *path = store_remove_join(sweep, directory, name);
    if (!path)
        return false;
    if (fstatat(directory_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(info.st_mode))
        return name_map_intern(&sweep->directories, str_of(path), NULL) != NAME_NONE;
    if (name_map_find(sweep->names, str_of(path)) == NAME_NONE && unlinkat(directory_fd, name, 0) < 0 && !sweep->first_errno)
        sweep->first_errno = errno;
    return true;
}

static bool sweep_directory(struct sweep *sweep, struct str directory)
{
    const char *path = directory.size ? store_remove_join(sweep, directory, "") : ".";
    DIR *stream = path ? open_stream(sweep->top_fd, path) : NULL;
    if (!stream)
        return false;
    bool good = true;
    struct dirent *entry;
    while (good && (entry = readdir(stream))) {
        if (!is_dots(entry->d_name))
            good = sweep_entry(sweep, directory, dirfd(stream), entry->d_name);
    }
    closedir(stream);
    return good;
}

int remove_strays(int directory_fd, const struct name_map *names)
{
    struct sweep sweep = { .top_fd = directory_fd, .names = names };
    bool good = name_map_intern(&sweep.directories, STR(""), NULL) != NAME_NONE;
    for (uint32_t i = 0; good && i < sweep.directories.count; i++) {
        errno = ENOMEM;
        good = sweep_directory(&sweep, name_map_at(&sweep.directories, i));
    }
    if (!good && !sweep.first_errno)
        sweep.first_errno = errno;
    /* Directories that hold nothing any more go, the deepest first; the others stay. */
    for (uint32_t i = sweep.directories.count; i-- > 1;) {
        const char *path = store_remove_join(&sweep, name_map_at(&sweep.directories, i), "");
        if (path)
            unlinkat(directory_fd, path, AT_REMOVEDIR);
    }
    buffer_release(&sweep.path);
    name_map_release(&sweep.directories);
    return sweep.first_errno;
}
