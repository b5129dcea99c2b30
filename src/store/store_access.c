/* SPDX-License-Identifier: Apache-2.0 */
/* What replaces a target can be read and written by the same people: owner, group and permissions are carried over. */
#include "store/store_posix.h"

#include "base/array.h"
#include "base/name_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define MASK_UNKNOWN ((mode_t)-1)
#define FILE_BITS ((mode_t)0777)

/* The old target beside the new one. Masks are by directory of the new one, 0 being its root, and found on demand. */
struct replaced {
    const struct replacement *job;
    int old_fd;
    struct stat old;
    mode_t *masks;
};

/* Where the group could not be kept, its successor gets no more than everybody gets. */
static mode_t without_group(mode_t mode)
{
    return mode & ~(S_IRWXG & ~((mode & S_IRWXO) << 3));
}

/* Gives the open file or directory what `wanted` has. 1: something changed, 0: nothing, -1: errno. */
static int give_access(int fd, const struct stat *wanted)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return -1;
    int changed = 0;
    if (info.st_uid != wanted->st_uid || info.st_gid != wanted->st_gid) {
        /* Only root may give a file away; the group is often ours as well. */
        changed = fchown(fd, wanted->st_uid, wanted->st_gid) == 0 || fchown(fd, (uid_t)-1, wanted->st_gid) == 0;
        if (fstat(fd, &info) < 0)
            return -1;
    }
    mode_t mode = wanted->st_mode & (S_ISDIR(info.st_mode) ? FILE_BITS | S_ISGID | S_ISVTX : FILE_BITS);
    if (info.st_gid != wanted->st_gid)
        mode = without_group(mode);
    if ((info.st_mode & 07777) == mode)
        return changed;
    return fchmod(fd, mode) < 0 ? -1 : 1;
}

/* The permissions that all files of an old directory grant; all of them if there is no such directory. */
static mode_t common_mode(int old_fd, const char *path)
{
    mode_t common = FILE_BITS;
    int fd = openat(old_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        if (fd >= 0)
            close(fd);
        return common;
    }
    struct dirent *entry;
    struct stat info;
    while ((entry = readdir(stream))) {
        if (fstatat(dirfd(stream), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode))
            common &= info.st_mode;
    }
    closedir(stream);
    return common;
}

/* That of the file's directory; false without memory. */
static bool common_mode_beside(struct replaced *replaced, const char *name, mode_t *out)
{
    const char *slash = strrchr(name, '/');
    struct str directory = { name, slash ? (size_t)(slash - name) : 0 };
    uint32_t known = slash ? name_map_find(replaced->job->directories, directory) : 0;
    mode_t *mask = &replaced->masks[slash && known != NAME_NONE ? known + 1 : 0];
    if (*mask == MASK_UNKNOWN) {
        char *path = slash ? strndup(name, directory.size) : strdup(".");
        if (!path)
            return false;
        *mask = common_mode(replaced->old_fd, path);
        free(path);
    }
    *out = *mask;
    return true;
}

/* What has no counterpart keeps the permissions that it was made with, and belongs to whom the old target did. */
static bool own_access(const struct replaced *replaced, int fd, struct stat *out)
{
    if (fstat(fd, out) < 0)
        return false;
    out->st_uid = replaced->old.st_uid;
    out->st_gid = replaced->old.st_gid;
    return true;
}

/* What the file that takes the place of an old one is to have; otherwise it may be used by those that may use all files beside it. */
static bool wanted_access(struct replaced *replaced, const char *name, int fd, struct stat *out)
{
    const struct replacement *job = replaced->job;
    *out = replaced->old;
    if (!job->is_directory || !S_ISDIR(replaced->old.st_mode)) {
        out->st_mode &= S_ISDIR(replaced->old.st_mode) ? 0666 : FILE_BITS;
        return true;
    }
    if (fstatat(replaced->old_fd, name, out, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(out->st_mode))
        return true;
    mode_t common;
    if (!own_access(replaced, fd, out) || !common_mode_beside(replaced, name, &common))
        return false;
    out->st_mode &= common | S_IRUSR | S_IWUSR;
    return true;
}

/* A file that is still open is synced later with all others; one that is not was synced already, and is once more. */
static int keep_file(struct replaced *replaced, struct written_file *file)
{
    const struct replacement *job = replaced->job;
    struct stat wanted;
    bool is_open = file->fd >= 0;
    int fd = is_open ? file->fd : openat(job->new_fd, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int result = fd >= 0 && wanted_access(replaced, file->name, fd, &wanted) ? give_access(fd, &wanted) : -1;
    if (result > 0 && is_open)
        atomic_store(&file->is_dirty, true);
    if (result > 0 && !is_open && !file->group->no_sync && fsync(fd) < 0)
        result = -1;
    int number = errno;
    if (fd >= 0 && !is_open)
        close(fd);
    errno = number;
    return result;
}

/* wanted NULL: there is no counterpart. */
static int keep_directory(const struct replaced *replaced, const char *path, const struct stat *wanted)
{
    struct stat access;
    int fd = openat(replaced->job->new_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool good = fd >= 0 && (wanted || own_access(replaced, fd, &access));
    if (wanted)
        access = *wanted;
    access.st_mode |= S_IRWXU; /* what lies in it must be removable */
    int result = good ? give_access(fd, &access) : -1, number = errno;
    if (fd >= 0)
        close(fd);
    errno = number;
    return result;
}

static int keep_directories(const struct replaced *replaced)
{
    const struct replacement *job = replaced->job;
    struct stat wanted = replaced->old;
    /* Who may read a file may enter the directory that replaces it. */
    if (!S_ISDIR(wanted.st_mode))
        wanted.st_mode |= (wanted.st_mode & 0444) >> 2;
    int result = keep_directory(replaced, ".", &wanted);
    for (uint32_t i = 0; result >= 0 && i < job->directories->count; i++) {
        struct str name = name_map_at(job->directories, i);
        char *path = strndup(name.data, name.size);
        if (!path)
            return -1;
        bool is_old =
            S_ISDIR(replaced->old.st_mode) && fstatat(replaced->old_fd, path, &wanted, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(wanted.st_mode);
        result = keep_directory(replaced, path, is_old ? &wanted : NULL);
        free(path);
    }
    return result;
}

static int keep_all(struct replaced *replaced)
{
    const struct replacement *job = replaced->job;
    int result = 0;
    replaced->masks = array_new(job->directories->count + 1, sizeof(*replaced->masks));
    if (!replaced->masks)
        return -1;
    for (uint32_t i = 0; i <= job->directories->count; i++)
        replaced->masks[i] = MASK_UNKNOWN;
    for (size_t i = 0; result >= 0 && i < job->file_count; i++)
        result = keep_file(replaced, job->files[i]);
    if (result >= 0 && job->is_directory)
        result = keep_directories(replaced);
    free(replaced->masks);
    return result < 0 ? -1 : 0;
}

int access_keep(const struct replacement *job, int parent_fd, const char *name)
{
    struct replaced replaced = { .job = job };
    replaced.old_fd = openat(parent_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (replaced.old_fd < 0)
        return errno == ENOENT ? 0 : -1;
    int result = fstat(replaced.old_fd, &replaced.old);
    /* A link says nothing about who may read what replaces it. */
    if (result == 0 && (S_ISDIR(replaced.old.st_mode) || S_ISREG(replaced.old.st_mode)))
        result = keep_all(&replaced);
    int number = errno;
    close(replaced.old_fd);
    errno = number;
    return result;
}
