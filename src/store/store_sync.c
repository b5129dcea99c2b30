/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define THREADS_MAX 8

/*
 * One journal commit of the file system serves all the syncs that wait for it, so syncs side by side cost little more than
 * one alone.
 */
struct sync_work {
    struct written_file **files;
    size_t count;
    atomic_size_t next;
    bool data_only;
};

static void sync_file(struct written_file *file, bool data_only)
{
    if ((file->fd < 0 && !file->is_parked) || !atomic_exchange(&file->is_dirty, false))
        return;
    int result, fd = written_file_take(file);
    do {
        result = data_only ? fdatasync(fd) : fsync(fd);
    } while (result < 0 && errno == EINTR);
    if (!written_file_give(file, fd) || result < 0)
        file->sync_errno = errno;
}

static void *sync_run(void *opaque)
{
    struct sync_work *work = opaque;
    for (;;) {
        size_t index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count)
            return NULL;
        sync_file(work->files[index], work->data_only);
    }
}

static size_t count_dirty(struct written_file **files, size_t count)
{
    size_t dirty = 0;
    for (size_t i = 0; i < count; i++) {
        bool is_open = files[i]->fd >= 0;
        if ((!is_open && !files[i]->is_parked) || !atomic_load(&files[i]->is_dirty))
            continue;
        dirty++;
        if (is_open)
            sync_file_range(files[i]->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
    return dirty;
}

static reshard_status first_failure(struct written_file **files, size_t count, reshard_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (!files[i]->sync_errno)
            continue;
        errno = files[i]->sync_errno;
        error_set_errno(err, "cannot write '%s' to the disk", files[i]->name);
        error_object(err, "%s", files[i]->name);
        return RESHARD_ERR_IO;
    }
    return RESHARD_OK;
}

reshard_status written_files_sync(struct written_file **files, size_t count, bool data_only, reshard_error *err)
{
    struct sync_work work = { .files = files, .count = count, .data_only = data_only };
    size_t dirty = count_dirty(files, count), started = 0;
    pthread_t threads[THREADS_MAX];
    while (started + 1 < dirty && started < THREADS_MAX && pthread_create(&threads[started], NULL, sync_run, &work) == 0)
        started++;
    sync_run(&work);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return first_failure(files, count, err);
}

reshard_status written_files_flush(struct written_file **files, size_t count, reshard_error *err)
{
    for (size_t i = 0; i < count; i++) {
        struct written_file *file = files[i];
        int copy = file->fd < 0 ? -1 : fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
        if (copy >= 0 && close(copy) < 0 && !file->sync_errno)
            file->sync_errno = errno;
    }
    return first_failure(files, count, err);
}

bool sync_directory(int directory_fd, const char *name)
{
    int fd = openat(directory_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    /* Some file systems cannot sync directories, and need not. */
    bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == EROFS);
    int number = errno;
    if (fd >= 0)
        close(fd);
    errno = number;
    return good;
}
