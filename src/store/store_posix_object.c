/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define TRANSFER_BYTES_MAX ((size_t)1 << 30) /* Linux moves at most 2 GiB - 4096 a call */
#define DIRECT_ALIGN 4096
#define OPEN_FILES_MAX 4096 /* written files that stay open; beyond them each access opens */
#define KEPT_FILES_MAX 256 /* closed files whose descriptor waits for the sync at the end */

struct posix_object {
    struct store_object base;
    int fd, direct_fd;
    void *map;
    struct written_file *file; /* NULL: opened for reading */
};

static struct posix_object *store_posix_object_of(struct store_object *object)
{
    return (struct posix_object *)(void *)object;
}

static const struct posix_object *const_object_of(const struct store_object *object)
{
    return (const struct posix_object *)(const void *)object;
}

/* ---- transfers ---- */

bool pread_whole(int fd, uint64_t offset, void *out, size_t size, size_t *done)
{
    uint8_t *next = out;
    *done = 0;
    while (*done < size) {
        size_t step = size - *done < TRANSFER_BYTES_MAX ? size - *done : TRANSFER_BYTES_MAX;
        ssize_t got = pread(fd, next + *done, step, (off_t)(offset + *done));
        if (got > 0)
            *done += (size_t)got;
        else if (got == 0 || errno != EINTR) {
            errno = got == 0 ? 0 : errno;
            return false;
        }
    }
    return true;
}

bool pwrite_whole(int fd, uint64_t offset, const void *bytes, size_t size, size_t *done)
{
    const uint8_t *next = bytes;
    *done = 0;
    while (*done < size) {
        size_t step = size - *done < TRANSFER_BYTES_MAX ? size - *done : TRANSFER_BYTES_MAX;
        ssize_t put = pwrite(fd, next + *done, step, (off_t)(offset + *done));
        if (put > 0)
            *done += (size_t)put;
        else if (put == 0 || errno != EINTR) {
            errno = put == 0 ? ENOSPC : errno;
            return false;
        }
    }
    return true;
}

void hint_room(int number, reshard_error *err)
{
    if (number == ENOSPC || number == EDQUOT)
        error_hint(err, "free some space, or write to another file system");
    else if (number == EFBIG)
        error_hint(
            err,
            "raise the limit on the size of files (ulimit -f), or write smaller ones (reshard_convert_options.max_shard_bytes, ranks)");
}

static reshard_status read_failed(const struct store_object *object, uint64_t offset, size_t size, size_t done, reshard_error *err)
{
    reshard_status status;
    if (errno == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "file shrank: it ends at byte %" PRIu64 " and had %" PRIu64 " bytes when it was opened",
                           offset + done, object->size);
    else
        status = error_set_errno(err, "cannot read %zu bytes at offset %" PRIu64, size, offset);
    if (err)
        err->offset = (int64_t)(offset + done);
    return status;
}

static bool is_aligned(uint64_t offset, const void *out, size_t size)
{
    return (offset | (uintptr_t)out | size) % DIRECT_ALIGN == 0;
}

static reshard_status posix_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct posix_object *posix = const_object_of(object);
    size_t done = 0;
    if (posix->map && range_fits(offset, size, object->size)) {
        memcpy(out, (const uint8_t *)posix->map + offset, size);
        return RESHARD_OK;
    }
    if (posix->direct_fd >= 0 && is_aligned(offset, out, size) && pread_whole(posix->direct_fd, offset, out, size, &done))
        return RESHARD_OK;
    /* What direct access could not do, the page cache does or explains. */
    int fd = posix->file ? written_file_take(posix->file) : posix->fd;
    bool good = pread_whole(fd, offset, out, size, &done);
    if (posix->file && !written_file_give(posix->file, fd))
        good = false;
    return good ? RESHARD_OK : read_failed(object, offset, size, done, err);
}

static reshard_status posix_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct posix_object *posix = store_posix_object_of(object);
    size_t done;
    atomic_store_explicit(&posix->file->is_dirty, true, memory_order_relaxed);
    int fd = written_file_take(posix->file);
    bool good = pwrite_whole(fd, offset, bytes, size, &done);
    if (!written_file_give(posix->file, fd))
        good = false;
    if (good)
        return RESHARD_OK;
    int number = errno;
    error_set_errno(err, "cannot write %zu bytes at offset %" PRIu64 " of %" PRIu64, size, offset + done, object->size);
    if (err)
        err->offset = (int64_t)(offset + done);
    hint_room(number, err);
    return RESHARD_ERR_IO;
}

static reshard_status posix_resize(struct store_object *object, uint64_t bytes, reshard_error *err)
{
    struct posix_object *posix = store_posix_object_of(object);
    int result;
    atomic_store_explicit(&posix->file->is_dirty, true, memory_order_relaxed);
    int fd = written_file_take(posix->file);
    do {
        result = ftruncate(fd, (off_t)bytes);
    } while (result < 0 && errno == EINTR);
    if (!written_file_give(posix->file, fd) || result < 0) {
        int number = errno;
        error_set_errno(err, "cannot give it %" PRIu64 " bytes", bytes);
        hint_room(number, err);
        return RESHARD_ERR_IO;
    }
    posix->file->size = bytes;
    return RESHARD_OK;
}

/* ---- objects ---- */

static const void *posix_map(const struct store_object *object)
{
    return const_object_of(object)->map;
}

static int posix_fd(const struct store_object *object)
{
    return const_object_of(object)->fd;
}

static void close_read(struct store_object *object)
{
    struct posix_object *posix = store_posix_object_of(object);
    if (posix->map)
        munmap(posix->map, object->size);
    if (posix->direct_fd >= 0)
        close(posix->direct_fd);
    close(posix->fd);
    free(posix);
}

static const struct object_ops read_ops = {
    .close = close_read,
    .read_at = posix_read_at,
    .map = posix_map,
    .fd = posix_fd,
};

reshard_status posix_object_new(const char *name, int fd, int direct_fd, unsigned flags, struct store_object **out, reshard_error *err)
{
    struct stat info;
    struct posix_object *posix = calloc(1, sizeof(*posix));
    char *own_name = strdup(name);
    reshard_status status = RESHARD_OK;
    if (!posix || !own_name)
        status = error_set_memory(err);
    else if (fstat(fd, &info) < 0)
        status = error_set_errno(err, "cannot look at '%s'", name);
    if (status) {
        close(fd);
        if (direct_fd >= 0)
            close(direct_fd);
        free(posix);
        free(own_name);
        return status;
    }
    *posix = (struct posix_object){ .base = { &read_ops, own_name, (uint64_t)info.st_size }, .fd = fd, .direct_fd = direct_fd };
    if ((flags & STORE_MMAP) && info.st_size > 0) {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        posix->map = map == MAP_FAILED ? NULL : map;
    }
    *out = &posix->base;
    return RESHARD_OK;
}

/* ---- written files ---- */

struct sync_group *sync_group_new(bool no_sync)
{
    struct sync_group *group = calloc(1, sizeof(*group));
    if (group && pthread_mutex_init(&group->lock, NULL) != 0) {
        free(group);
        group = NULL;
    }
    if (group) {
        struct rlimit files = { 0 };
        bool is_known = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY;
        group->refs = 1;
        group->no_sync = no_sync;
        group->directory_fd = -1;
        group->open_max = is_known && files.rlim_cur / 2 < OPEN_FILES_MAX ? (size_t)files.rlim_cur / 2 : OPEN_FILES_MAX;
    }
    return group;
}

void sync_group_unref(struct sync_group *group)
{
    if (!group)
        return;
    pthread_mutex_lock(&group->lock);
    bool is_last = --group->refs == 0;
    pthread_mutex_unlock(&group->lock);
    if (is_last) {
        if (group->directory_fd >= 0)
            close(group->directory_fd);
        pthread_mutex_destroy(&group->lock);
        free(group);
    }
}

struct written_file *written_file_new(struct sync_group *group, const char *name, int fd, uint64_t size)
{
    struct written_file *file = calloc(1, sizeof(*file));
    char *own_name = strdup(name);
    if (!file || !own_name) {
        close(fd);
        free(file);
        free(own_name);
        return NULL;
    }
    file->group = group;
    file->name = own_name;
    file->size = size;
    file->fd = fd;
    file->refs = 1;
    atomic_init(&file->is_dirty, true); /* its size is news already */
    pthread_mutex_lock(&group->lock);
    group->refs++;
    file->is_parked = group->directory_fd >= 0 && group->open_count >= group->open_max;
    group->open_count += !file->is_parked;
    pthread_mutex_unlock(&group->lock);
    if (file->is_parked) {
        close(fd);
        file->fd = -1;
    }
    return file;
}

int written_file_take(const struct written_file *file)
{
    if (!file->is_parked)
        return file->fd;
    return openat(file->group->directory_fd, file->name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
}

bool written_file_give(const struct written_file *file, int fd)
{
    int number = errno;
    bool good = !file->is_parked || fd < 0 || close(fd) == 0;
    if (good)
        errno = number;
    return good;
}

void written_file_unref(struct written_file *file)
{
    if (!file)
        return;
    struct sync_group *group = file->group;
    pthread_mutex_lock(&group->lock);
    bool is_last = --file->refs == 0;
    pthread_mutex_unlock(&group->lock);
    if (!is_last)
        return;
    if (file->fd >= 0)
        close(file->fd);
    free(file->name);
    free(file);
    sync_group_unref(group);
}

/*
 * The transaction still wants to sync the file: its descriptor stays open for that, unless too many do. Then it is synced
 * here, without the lock, so that threads that close files sync side by side.
 */
static void retire(struct written_file *file)
{
    struct sync_group *group = file->group;
    if (file->is_parked)
        return;
    pthread_mutex_lock(&group->lock);
    bool keep = file->refs == 1 || group->kept < KEPT_FILES_MAX;
    group->kept += keep;
    pthread_mutex_unlock(&group->lock);
    if (keep)
        return;

    int number = 0;
    if (atomic_exchange(&file->is_dirty, false) && !group->no_sync && fsync(file->fd) < 0)
        number = errno;
    pthread_mutex_lock(&group->lock);
    /* Network file systems tell here that there was no room. */
    if (close(file->fd) < 0 && !number)
        number = errno;
    if (number)
        file->sync_errno = number;
    file->fd = -1;
    pthread_mutex_unlock(&group->lock);
}

static void close_written(struct store_object *object)
{
    struct posix_object *posix = store_posix_object_of(object);
    retire(posix->file);
    written_file_unref(posix->file);
    free(posix);
}

static const struct object_ops write_ops = {
    .close = close_written,
    .read_at = posix_read_at,
    .write_at = posix_write_at,
    .resize = posix_resize,
    .fd = posix_fd,
};

reshard_status posix_object_for_writing(struct written_file *file, struct store_object **out, reshard_error *err)
{
    struct posix_object *posix = calloc(1, sizeof(*posix));
    char *own_name = strdup(file->name);
    if (!posix || !own_name) {
        free(posix);
        free(own_name);
        return error_set_memory(err);
    }
    *posix = (struct posix_object){ .base = { &write_ops, own_name, file->size }, .fd = file->fd, .direct_fd = -1, .file = file };
    pthread_mutex_lock(&file->group->lock);
    file->refs++;
    pthread_mutex_unlock(&file->group->lock);
    *out = &posix->base;
    return RESHARD_OK;
}

/* ---- moving bytes in the kernel ---- */

/* copy_file_range marks its target itself: it does not go through write_at. */
static bool mark_dirty(struct store_object *target)
{
    if (target->ops != &write_ops)
        return false;
    atomic_store_explicit(&store_posix_object_of(target)->file->is_dirty, true, memory_order_relaxed);
    return true;
}

static bool is_inability(int number)
{
    return number == EXDEV || number == EOPNOTSUPP || number == EINVAL || number == ENOSYS || number == EPERM || number == EBADF;
}

static reshard_status copy_failed(const struct store_object *source, uint64_t offset, const struct store_object *target, reshard_error *err)
{
    int number = errno;
    if (is_inability(number))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the kernel cannot copy from '%s' to '%s'", source->name, target->name);
    error_set_errno(err, "cannot copy bytes at offset %" PRIu64 " of '%s' to '%s'", offset, source->name, target->name);
    error_object(err, "%s", number == EIO ? source->name : target->name);
    return RESHARD_ERR_IO;
}

reshard_status store_copy_range(const struct store_object *source, uint64_t source_offset, struct store_object *target,
                                uint64_t target_offset, uint64_t bytes, reshard_error *err)
{
    if (source_offset > source->size || bytes > source->size - source_offset || target_offset > target->size ||
        bytes > target->size - target_offset)
        return error_set(err, RESHARD_ERR_USAGE, "%" PRIu64 " bytes from '%s' to '%s' lie outside of one of them", bytes, source->name,
                         target->name);
    if (target->ops->copy_from)
        return target->ops->copy_from(target, target_offset, source, source_offset, bytes, err);
    int from = store_object_fd(source), to = store_object_fd(target);
    if (from < 0 || to < 0 || !mark_dirty(target))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s' and '%s' are not both files", source->name, target->name);
    loff_t read_at = (loff_t)source_offset, write_at = (loff_t)target_offset;
    while (bytes) {
        size_t step = bytes < TRANSFER_BYTES_MAX ? (size_t)bytes : TRANSFER_BYTES_MAX;
        ssize_t moved = copy_file_range(from, &read_at, to, &write_at, step, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return copy_failed(source, (uint64_t)read_at, target, err);
        /* Some file systems answer 0 where they should say that they cannot: plain reading tells which it is. */
        if (moved == 0)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "the kernel copies nothing at offset %" PRIu64 " of '%s'", (uint64_t)read_at,
                             source->name);
        bytes -= (uint64_t)moved;
    }
    return RESHARD_OK;
}

void store_write_behind(struct store_object *object, uint64_t offset, uint64_t bytes)
{
    int fd = object->ops == &write_ops ? store_posix_object_of(object)->fd : -1;
    if (fd >= 0 && bytes)
        sync_file_range(fd, (off_t)offset, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
}
