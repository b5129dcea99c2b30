/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/name_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

/*
 * A transaction for PARENT/NAME works in the directory PARENT/.NAME.reshard-partial, which holds
 *   .journal   locked as long as the run lives; says whose the rest is
 *   NAME       the target to be
 * Publishing renames NAME one level up, or exchanges it with what is there; then the directory goes, the journal last,
 * because whoever finds a journal that is not locked may clean up.
 */
#define PARTIAL_SUFFIX ".reshard-partial"
#define BEGIN_TRIES_MAX 32
#define PREALLOCATE_BYTES_MIN (UINT64_C(1) << 20)
#define PART_PAUSE_NS 20000000
#define PART_TRIES_MAX 500

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

struct posix_txn {
    struct store_txn base;
    struct store_txn_options options;
    int parent_fd, partial_fd, journal_fd;
    int data_fd;               /* of the target to be, if it is a directory */
    bool is_shared;            /* other parts hold the lock too */
    char *name, *partial_name; /* in parent_fd */
    char *data_path;           /* of the target to be */
    char *target_path;         /* for messages */
    uint64_t journal_end;
    struct sync_group *group;
    struct written_file **files;
    size_t file_count, file_capacity;
    struct name_map names, directories; /* created in this run; directories relative to data_fd, the root not among them */
    bool names_changed;        /* directories were changed since they were last synced */
    bool allocates;            /* the file system can reserve blocks at no cost */
    uint64_t room_bytes, planned_bytes; /* what was free, UINT64_MAX if unknown, and what will be written */
};

static struct posix_txn *store_txn_posix_txn_of(struct store_txn *txn)
{
    return (struct posix_txn *)(void *)txn;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* Gives the lock back: a process that was forked meanwhile has the descriptor too, and closing ours would leave the lock to it. */
static void close_journal(int fd)
{
    if (fd >= 0)
        flock(fd, LOCK_UN);
    close_fd(fd);
}

static void close_files(struct posix_txn *txn)
{
    for (size_t i = 0; i < txn->file_count; i++)
        written_file_unref(txn->files[i]);
    txn->file_count = 0;
}

static void txn_free(struct posix_txn *txn)
{
    close_files(txn);
    free(txn->files);
    sync_group_unref(txn->group);
    name_map_release(&txn->names);
    name_map_release(&txn->directories);
    close_fd(txn->data_fd);
    close_fd(txn->partial_fd);
    close_fd(txn->parent_fd);
    close_journal(txn->journal_fd);
    free(txn->name);
    free(txn->partial_name);
    free(txn->data_path);
    free(txn->target_path);
    free(txn);
}

static reshard_status failed(const struct posix_txn *txn, const char *what, reshard_error *err)
{
    int number = errno;
    if (number == ENOMEM)
        return error_set_memory(err);
    error_set_errno(err, "%s", what);
    error_object(err, "%s", txn->target_path);
    hint_room(number, err);
    return RESHARD_ERR_IO;
}

/*
 * The journal goes last: until then the lock keeps other runs away. NFS and FUSE give a file that is removed while it is open another name,
 * under which it keeps its directory: all are closed before. Who makes a journal anew meanwhile has a directory that is not empty.
 */
static void remove_partial(struct posix_txn *txn)
{
    /* An old target that cannot go back to its place must not go with the rest. */
    if (txn->partial_fd < 0 || publish_undo(txn->partial_fd, txn->parent_fd, txn->name) < 0)
        return;
    close_files(txn);
    if (remove_contents(txn->partial_fd, JOURNAL_NAME) != 0 || unlinkat(txn->partial_fd, JOURNAL_NAME, 0) < 0)
        return;
    close_journal(txn->journal_fd);
    txn->journal_fd = -1;
    unlinkat(txn->parent_fd, txn->partial_name, AT_REMOVEDIR);
}

/* What others wrote, or what a later run of the same identity may take up, is not removed. */
static bool txn_keeps(const struct posix_txn *txn)
{
    return txn->options.resume || txn->options.share != STORE_TXN_ALONE;
}

/* ---- beginning ---- */

static bool store_txn_posix_target_exists(const struct posix_txn *txn)
{
    struct stat info;
    return fstatat(txn->parent_fd, txn->name, &info, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Whether the open file is still the one of that name: a run that ends removes its journal while others wait for the lock. */
static bool store_txn_posix_is_named(int directory_fd, const char *name, int fd)
{
    struct stat named, opened;
    return fstatat(directory_fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

/* 0: locked, or the file system has no locks. */
static int lock_try(int fd, int kind)
{
    while (flock(fd, kind | LOCK_NB) < 0) {
        if (errno == EINTR)
            continue;
        return errno == EWOULDBLOCK ? -1 : 0;
    }
    return 0;
}

/* Parts share the lock once the journal says whose they are; who begins it has it alone for a moment, which the others wait. */
static int lock_journal(struct posix_txn *txn)
{
    const struct timespec pause = { .tv_nsec = PART_PAUSE_NS };
    txn->is_shared = false;
    for (int i = 0; lock_try(txn->journal_fd, LOCK_EX) < 0; i++) {
        if (txn->options.share != STORE_TXN_PART || i == PART_TRIES_MAX)
            return -1;
        if (lock_try(txn->journal_fd, LOCK_SH) == 0) {
            txn->is_shared = true;
            return 0;
        }
        nanosleep(&pause, NULL);
    }
    return 0;
}

/*
 * What lies in the partial directory becomes the target, or is removed: it must be ours alone. One that this run has just made is, whatever
 * the file system says about owners and permissions (some map all of them to one).
 */
static reshard_status check_ours(const struct posix_txn *txn, bool is_new, reshard_error *err)
{
    struct stat info;
    if (fstat(txn->partial_fd, &info) < 0)
        return failed(txn, "cannot look at the directory of the unfinished target", err);
    bool is_foreign = info.st_uid != geteuid();
    if (is_new || (!is_foreign && !(info.st_mode & (S_IWGRP | S_IWOTH))))
        return RESHARD_OK;
    if (is_foreign)
        error_set(err, RESHARD_ERR_IO, "'%s' beside the target belongs to another user (number %ju)", txn->partial_name,
                  (uintmax_t)info.st_uid);
    else
        error_set(err, RESHARD_ERR_IO, "other users may write to '%s' beside the target (mode %04o)", txn->partial_name,
                  (unsigned)info.st_mode & 07777);
    error_object(err, "%s", txn->target_path);
    error_hint(err, "it would become the target: remove it, or write elsewhere");
    return RESHARD_ERR_IO;
}

static reshard_status enter_partial(struct posix_txn *txn, bool is_new, bool *again, reshard_error *err)
{
    txn->partial_fd = openat(txn->parent_fd, txn->partial_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (txn->partial_fd < 0) {
        *again = errno == ENOENT;
        return *again ? RESHARD_OK : failed(txn, "cannot open the directory of the unfinished target", err);
    }
    reshard_status status = check_ours(txn, is_new, err);
    if (status)
        return status;
    txn->journal_fd = openat(txn->partial_fd, JOURNAL_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (txn->journal_fd < 0) {
        *again = errno == ENOENT;
        return *again ? RESHARD_OK : failed(txn, "cannot open the journal of the unfinished target", err);
    }
    if (lock_journal(txn) < 0) {
        error_set_errno(err, "another run is writing this target (it holds the lock on '%s/%s')", txn->partial_name, JOURNAL_NAME);
        error_object(err, "%s", txn->target_path);
        return RESHARD_ERR_IO;
    }
    *again = !store_txn_posix_is_named(txn->partial_fd, JOURNAL_NAME, txn->journal_fd) ||
             !store_txn_posix_is_named(txn->parent_fd, txn->partial_name, txn->partial_fd);
    return RESHARD_OK;
}

static reshard_status not_begun_here(const struct posix_txn *txn, reshard_error *err)
{
    error_set(err, RESHARD_ERR_IO, "'%s' beside the target, which rank 0 has made, is not seen here", txn->partial_name);
    error_object(err, "%s", txn->target_path);
    error_hint(err, "give all ranks one path, on a file system that all of them share");
    return RESHARD_ERR_IO;
}

/* One try to make or take over the partial directory; *again: another run removed it meanwhile. */
static reshard_status store_txn_posix_take_partial(struct posix_txn *txn, bool *again, reshard_error *err)
{
    *again = false;
    bool is_new = !txn->options.is_begun && mkdirat(txn->parent_fd, txn->partial_name, 0700) == 0;
    if (!txn->options.is_begun && !is_new && errno != EEXIST)
        return failed(txn, "cannot make a directory beside the target", err);
    reshard_status status = enter_partial(txn, is_new, again, err);
    if (!status && *again && txn->options.is_begun)
        return not_begun_here(txn, err);
    if (status && is_new)
        unlinkat(txn->parent_fd, txn->partial_name, AT_REMOVEDIR);
    return status;
}

static reshard_status lock_partial(struct posix_txn *txn, reshard_error *err)
{
    for (int i = 0; i < BEGIN_TRIES_MAX; i++) {
        bool again;
        reshard_status status = store_txn_posix_take_partial(txn, &again, err);
        if (status || !again)
            return status;
        close_journal(txn->journal_fd);
        close_fd(txn->partial_fd);
        txn->journal_fd = txn->partial_fd = -1;
    }
    errno = EAGAIN;
    return failed(txn, "other runs keep beginning and ending beside this target", err);
}

/* A run that was killed between the two renames of a target that cannot be exchanged has left the old one without its name. */
static reshard_status put_back_target(struct posix_txn *txn, reshard_error *err)
{
    if (publish_undo(txn->partial_fd, txn->parent_fd, txn->name) < 0)
        return failed(txn, "cannot put back the target that an earlier run set aside", err);
    return !txn->options.overwrite && store_txn_posix_target_exists(txn) ? store_error_exists(txn->target_path, err) : RESHARD_OK;
}

/* Enters the directory of the target to be. */
static reshard_status enter_data(struct posix_txn *txn, reshard_error *err)
{
    txn->data_fd = openat(txn->partial_fd, txn->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (txn->data_fd < 0)
        return failed(txn, "cannot open the directory of the unfinished target", err);
    /* Without it files are never parked. */
    txn->group->directory_fd = fcntl(txn->data_fd, F_DUPFD_CLOEXEC, 0);
    return RESHARD_OK;
}

/* What lies there is of the same run, which goes on; a part may be the first. */
static reshard_status take_share(struct posix_txn *txn, reshard_error *err)
{
    bool is_directory = txn->options.is_directory, is_part = txn->options.share == STORE_TXN_PART;
    if (is_part && !txn->options.is_begun && !txn->is_shared && journal_is_free(txn->journal_fd)) {
        bool is_good = !is_directory || mkdirat(txn->partial_fd, txn->name, 0777) == 0 || errno == EEXIST;
        if (!is_good || journal_start(txn->journal_fd, txn->options.identity, is_directory, &txn->journal_end) < 0)
            return failed(txn, "cannot begin a target in parts", err);
    } else if (!journal_matches(txn->journal_fd, txn->options.identity, is_directory, &txn->journal_end)) {
        error_set(err, RESHARD_DIFFERS, "what lies in '%s' beside the target is of another run", txn->partial_name);
        error_object(err, "%s", txn->target_path);
        error_hint(err, "the source or the options are not those of the other parts; remove that folder to begin anew");
        return RESHARD_DIFFERS;
    }
    if (is_part && !txn->is_shared)
        flock(txn->journal_fd, LOCK_SH);
    txn->base.is_resumed = true;
    return is_directory ? enter_data(txn, err) : RESHARD_OK;
}

/* Keeps what an earlier run left if it is for the same plan; otherwise starts from nothing. */
static reshard_status store_txn_posix_take_over(struct posix_txn *txn, reshard_error *err)
{
    bool is_directory = txn->options.is_directory;
    struct stat info;
    if (txn->options.share != STORE_TXN_ALONE)
        return take_share(txn, err);
    txn->base.is_resumed = txn->options.resume &&
                           journal_matches(txn->journal_fd, txn->options.identity, is_directory, &txn->journal_end) &&
                           fstatat(txn->partial_fd, txn->name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                           (is_directory ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode));
    if (!txn->base.is_resumed) {
        errno = remove_contents(txn->partial_fd, JOURNAL_NAME);
        if (errno)
            return failed(txn, "cannot remove what an earlier run left beside the target", err);
        if (journal_start(txn->journal_fd, txn->options.identity, is_directory, &txn->journal_end) < 0)
            return failed(txn, "cannot write the journal", err);
    }
    if (!is_directory)
        return RESHARD_OK;
    if (!txn->base.is_resumed && mkdirat(txn->partial_fd, txn->name, 0777) < 0)
        return failed(txn, "cannot make the directory of the unfinished target", err);
    return enter_data(txn, err);
}

/*
 * Whether the disk holds the target should be known before it is written: the free space is compared, and where reserving blocks is
 * a matter of metadata it is done (tmpfs would fill pages, network file systems may write zeros).
 */
static void look_at_space(struct posix_txn *txn)
{
    struct statfs type;
    struct statvfs space;
    txn->room_bytes = UINT64_MAX;
    if (txn->options.no_space_check)
        return;
    if (fstatfs(txn->partial_fd, &type) == 0)
        txn->allocates = type.f_type == EXT4_SUPER_MAGIC || type.f_type == (long)XFS_SUPER_MAGIC ||
                         type.f_type == (long)BTRFS_SUPER_MAGIC || type.f_type == (long)F2FS_SUPER_MAGIC;
    if (fstatvfs(txn->partial_fd, &space) == 0 && space.f_blocks && !checked_mul_u64(space.f_bavail, space.f_frsize, &txn->room_bytes))
        txn->room_bytes = UINT64_MAX;
}

static const struct txn_ops posix_txn_ops;

static reshard_status txn_new(int parent_fd, const char *parent_path, const char *name, const struct store_txn_options *options,
                              struct posix_txn **out, reshard_error *err)
{
    struct posix_txn *txn = calloc(1, sizeof(*txn));
    if (!txn) {
        close(parent_fd);
        return error_set_memory(err);
    }
    *txn = (struct posix_txn){ .options = *options, .parent_fd = parent_fd, .partial_fd = -1, .journal_fd = -1, .data_fd = -1 };
    txn->base = (struct store_txn){ .ops = &posix_txn_ops, .is_directory = options->is_directory };
    txn->group = sync_group_new(options->no_sync);
    txn->name = strdup(name);
    const char *slash = strcmp(parent_path, "/") == 0 ? "" : "/";
    if (asprintf(&txn->partial_name, ".%s" PARTIAL_SUFFIX, name) < 0)
        txn->partial_name = NULL;
    if (asprintf(&txn->target_path, "%s%s%s", parent_path, slash, name) < 0)
        txn->target_path = NULL;
    if (txn->partial_name && asprintf(&txn->data_path, "%s%s%s/%s", parent_path, slash, txn->partial_name, name) < 0)
        txn->data_path = NULL;
    if (!txn->group || !txn->name || !txn->partial_name || !txn->data_path || !txn->target_path) {
        txn_free(txn);
        return error_set_memory(err);
    }
    *out = txn;
    return RESHARD_OK;
}

reshard_status posix_txn_begin(int parent_fd, const char *parent_path, const char *name, const struct store_txn_options *options,
                               struct store_txn **out, reshard_error *err)
{
    struct posix_txn *txn;
    reshard_status status = txn_new(parent_fd, parent_path, name, options, &txn, err);
    if (status)
        return status;
    if (strcmp(name, JOURNAL_NAME) == 0)
        status = error_set(err, RESHARD_ERR_USAGE, "a target cannot be called '%s'", name);
    else if (!options->overwrite && store_txn_posix_target_exists(txn))
        status = store_error_exists(txn->target_path, err);
    if (!status)
        status = lock_partial(txn, err);
    bool is_locked = !status;
    if (!status)
        status = put_back_target(txn, err);
    if (!status)
        status = store_txn_posix_take_over(txn, err);
    if (status) {
        if (is_locked && !txn_keeps(txn))
            remove_partial(txn);
        txn_free(txn);
        return status;
    }
    look_at_space(txn);
    txn->names_changed = true;
    *out = &txn->base;
    return RESHARD_OK;
}

/* ---- objects ---- */

static reshard_status no_room(const char *name, uint64_t bytes, uint64_t room, reshard_error *err)
{
    errno = ENOSPC;
    error_set_errno(err, "cannot write '%s': %" PRIu64 " bytes are needed, %" PRIu64 " are free", name, bytes, room);
    error_object(err, "%s", name);
    error_hint(err, "free some space, or write to another file system");
    return RESHARD_ERR_IO;
}

static reshard_status allocate(const struct posix_txn *txn, int fd, const char *name, uint64_t bytes, reshard_error *err)
{
    if (bytes < PREALLOCATE_BYTES_MIN)
        return RESHARD_OK;
    int result;
    do {
        result = fallocate(fd, 0, 0, (off_t)bytes);
    } while (result < 0 && errno == EINTR);
    if (result < 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
        int number = errno;
        no_room(name, bytes, txn->room_bytes, err);
        if (err)
            err->sys_errno = number;
        return RESHARD_ERR_IO;
    }
    return RESHARD_OK;
}

/* Sizes the file and makes sure of its room. */
static reshard_status size_file(struct posix_txn *txn, int fd, const char *name, uint64_t bytes, reshard_error *err)
{
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || ((uint64_t)info.st_size != bytes && ftruncate(fd, (off_t)bytes) < 0)) {
        int number = errno;
        error_set_errno(err, "cannot give '%s' its %" PRIu64 " bytes", name, bytes);
        error_object(err, "%s", name);
        hint_room(number, err);
        return RESHARD_ERR_IO;
    }
    /* Asked for more than there is, fallocate would take all of it before it fails. */
    uint64_t present = (uint64_t)info.st_blocks * 512;
    txn->planned_bytes += bytes > present ? bytes - present : 0;
    if (txn->planned_bytes > txn->room_bytes)
        return no_room(name, txn->planned_bytes, txn->room_bytes, err);
    return txn->allocates ? allocate(txn, fd, name, bytes, err) : RESHARD_OK;
}

/* Makes the directories that lead to name. */
static reshard_status make_directories(struct posix_txn *txn, const char *name, reshard_error *err)
{
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        bool was_new;
        uint32_t index = name_map_intern(&txn->directories, (struct str){ name, (size_t)(slash - name) }, &was_new);
        char *path = index == NAME_NONE || !was_new ? NULL : strndup(name, (size_t)(slash - name));
        if (index == NAME_NONE || (was_new && !path))
            return error_set_memory(err);
        int result = path ? mkdirat(txn->data_fd, path, 0777) : 0, number = errno;
        free(path);
        errno = number;
        if (result < 0 && errno != EEXIST)
            return failed(txn, "cannot make a directory inside the target", err);
    }
    return RESHARD_OK;
}

static reshard_status store_txn_posix_open_file(struct posix_txn *txn, const char *name, int *out, reshard_error *err)
{
    bool was_new;
    if (name_map_intern(&txn->names, str_of(name), &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is created twice in one target", name);
    bool is_directory = txn->options.is_directory;
    reshard_status status = is_directory ? make_directories(txn, name, err) : RESHARD_OK;
    if (status)
        return status;
    int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | (txn->base.is_resumed ? 0 : O_EXCL);
    int fd = openat(is_directory ? txn->data_fd : txn->partial_fd, is_directory ? name : txn->name, flags, 0666);
    if (fd < 0) {
        error_set_errno(err, "cannot create '%s'", is_directory ? name : txn->name);
        error_object(err, "%s", is_directory ? name : txn->name);
        return RESHARD_ERR_IO;
    }
    *out = fd;
    return RESHARD_OK;
}

static reshard_status posix_create(struct store_txn *base, const char *name, uint64_t bytes, struct store_object **out, reshard_error *err)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    int fd;
    const char *shown = txn->options.is_directory ? name : txn->name;
    if (!ARRAY_ROOM(txn->files, txn->file_count, txn->file_capacity))
        return error_set_memory(err);
    reshard_status status = store_txn_posix_open_file(txn, name, &fd, err);
    if (status)
        return status;
    txn->names_changed = true;
    status = size_file(txn, fd, shown, bytes, err);
    if (status) {
        close(fd);
        return status;
    }
    struct written_file *file = written_file_new(txn->group, shown, fd, bytes);
    if (!file)
        return error_set_memory(err);
    txn->files[txn->file_count++] = file;
    return posix_object_for_writing(file, out, err);
}

/* ---- syncing ---- */

static reshard_status sync_directories(struct posix_txn *txn, reshard_error *err)
{
    bool good = true;
    for (uint32_t i = txn->directories.count; good && i-- > 0;) {
        struct str name = name_map_at(&txn->directories, i);
        char *path = strndup(name.data, name.size);
        if (!path)
            return error_set_memory(err);
        good = sync_directory(txn->data_fd, path);
        int number = errno;
        free(path);
        errno = number;
    }
    good = good && (txn->data_fd < 0 || sync_directory(txn->data_fd, ".")) && sync_directory(txn->partial_fd, ".");
    if (!good)
        return failed(txn, "cannot write the target's directories to the disk", err);
    txn->names_changed = false;
    return RESHARD_OK;
}

static reshard_status sync_all(struct posix_txn *txn, bool data_only, reshard_error *err)
{
    if (txn->options.no_sync)
        return RESHARD_OK;
    /* Under the lock no other thread closes a descriptor that is being synced. */
    pthread_mutex_lock(&txn->group->lock);
    reshard_status status = written_files_sync(txn->files, txn->file_count, data_only && !txn->names_changed, err);
    pthread_mutex_unlock(&txn->group->lock);
    if (!status && txn->names_changed)
        status = sync_directories(txn, err);
    return status;
}

static reshard_status flush_all(struct posix_txn *txn, reshard_error *err)
{
    pthread_mutex_lock(&txn->group->lock);
    reshard_status status = written_files_flush(txn->files, txn->file_count, err);
    pthread_mutex_unlock(&txn->group->lock);
    return status;
}

/* ---- journal ---- */

static reshard_status posix_journal_read(struct store_txn *base, struct buffer *out, reshard_error *err)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    return journal_read(txn->journal_fd, txn->journal_end, out, err);
}

static reshard_status posix_journal_append(struct store_txn *base, const void *bytes, size_t size, reshard_error *err)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    reshard_status status = sync_all(txn, true, err);
    if (status)
        return status;
    if (journal_append(txn->journal_fd, bytes, size, &txn->journal_end) < 0)
        return failed(txn, "cannot write the journal", err);
    if (!txn->options.no_sync && fdatasync(txn->journal_fd) < 0)
        return failed(txn, "cannot write the journal to the disk", err);
    return RESHARD_OK;
}

/* ---- parts ---- */

static reshard_status posix_leave(struct store_txn *base, const char *record, const void *bytes, size_t size, reshard_error *err)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    reshard_status status = sync_all(txn, false, err);
    if (!status)
        status = flush_all(txn, err);
    if (!status && part_record_write(txn->partial_fd, record, bytes, size, txn->options.no_sync) < 0)
        status = failed(txn, "cannot write the record of a part", err);
    txn_free(txn);
    return status;
}

static reshard_status posix_records(struct store_txn *base, struct arena *arena, char ***names, size_t *count, reshard_error *err)
{
    return records_list(store_txn_posix_txn_of(base)->partial_fd, arena, names, count, err);
}

static reshard_status posix_record_read(struct store_txn *base, const char *name, struct buffer *out, reshard_error *err)
{
    return part_record_read(store_txn_posix_txn_of(base)->partial_fd, name, out, err);
}

/* The first of the records beside the target, by name: that of part 0, if it is there. */
static reshard_status record_read_any(const struct posix_txn *txn, bool *found, struct buffer *out, reshard_error *err)
{
    struct arena arena = { 0 };
    char **names;
    size_t count = 0;
    reshard_status status = check_ours(txn, false, err);
    if (!status)
        status = records_list(txn->partial_fd, &arena, &names, &count, err);
    *found = !status && count > 0;
    const char *first = *found ? names[0] : NULL;
    for (size_t i = 1; i < count; i++)
        first = strcmp(names[i], first) < 0 ? names[i] : first;
    if (*found)
        status = part_record_read(txn->partial_fd, first, out, err);
    arena_release(&arena);
    return status;
}

reshard_status posix_partial_record(int parent_fd, const char *parent_path, const char *name, bool *found, struct buffer *out,
                                    reshard_error *err)
{
    const struct store_txn_options options = { .is_directory = true };
    struct posix_txn *txn;
    *found = false;
    reshard_status status = txn_new(parent_fd, parent_path, name, &options, &txn, err);
    if (status)
        return status;
    txn->partial_fd = openat(parent_fd, txn->partial_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (txn->partial_fd >= 0)
        status = record_read_any(txn, found, out, err);
    txn_free(txn);
    return status;
}

/* ---- ending ---- */

static void posix_abort(struct store_txn *base, bool keep_for_resume)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    if (!keep_for_resume && txn->options.share == STORE_TXN_ALONE)
        remove_partial(txn);
    txn_free(txn);
}

static reshard_status check_complete(struct posix_txn *txn, reshard_error *err)
{
    if (!txn->options.is_directory && txn->file_count != 1)
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is a single file, %zu were created", txn->target_path, txn->file_count);
    if (!txn->base.is_resumed || !txn->options.is_directory)
        return RESHARD_OK;
    errno = remove_strays(txn->data_fd, &txn->names);
    return errno ? failed(txn, "cannot remove what an earlier run left in the target", err) : RESHARD_OK;
}

static reshard_status keep_access(struct posix_txn *txn, reshard_error *err)
{
    if (!txn->options.overwrite)
        return RESHARD_OK;
    const struct replacement job = {
        .new_fd = txn->options.is_directory ? txn->data_fd : txn->partial_fd,
        .is_directory = txn->options.is_directory,
        .files = txn->files,
        .file_count = txn->file_count,
        .directories = &txn->directories,
    };
    txn->names_changed = true;
    pthread_mutex_lock(&txn->group->lock);
    int result = access_keep(&job, txn->parent_fd, txn->name);
    pthread_mutex_unlock(&txn->group->lock);
    return result < 0 ? failed(txn, "cannot give the target the permissions of what it replaces", err) : RESHARD_OK;
}

static int sync_journal(const struct posix_txn *txn)
{
    return txn->options.no_sync ? 0 : fdatasync(txn->journal_fd);
}

static reshard_status publish(struct posix_txn *txn, reshard_error *err)
{
    int result = -1;
    errno = EAGAIN;
    for (int i = 0; result < 0 && i < BEGIN_TRIES_MAX; i++) {
        bool replaces = txn->options.overwrite && store_txn_posix_target_exists(txn);
        result = replaces ? publish_over(txn->partial_fd, txn->parent_fd, txn->name, txn->options.no_sync)
                          : publish_new(txn->partial_fd, txn->parent_fd, txn->name, txn->options.is_directory);
        /* The old target appeared or went away meanwhile: look again. */
        if (result < 0 && !(txn->options.overwrite && errno == (replaces ? ENOENT : EEXIST)))
            break;
    }
    if (result == 0)
        return RESHARD_OK;
    return errno == EEXIST ? store_error_exists(txn->target_path, err) : failed(txn, "cannot rename the finished target into place", err);
}

/* What lies in the partial directory may be the old target as soon as the two are exchanged, also to whoever looks after a crash: nobody
 * shall take it for a run to resume. Where nothing was exchanged it is this run's as before. */
static reshard_status retire_and_publish(struct posix_txn *txn, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (journal_retire(txn->journal_fd) < 0 || sync_journal(txn) < 0)
        status = failed(txn, "cannot close the journal", err);
    if (!status)
        status = publish(txn, err);
    if (status && txn_keeps(txn) && publish_undo(txn->partial_fd, txn->parent_fd, txn->name) == 0 &&
        journal_revive(txn->journal_fd) == 0)
        sync_journal(txn);
    return status;
}

static reshard_status posix_commit(struct store_txn *base, reshard_error *err)
{
    struct posix_txn *txn = store_txn_posix_txn_of(base);
    reshard_status status = check_complete(txn, err);
    if (!status)
        status = keep_access(txn, err);
    if (!status)
        status = sync_all(txn, false, err);
    if (!status)
        status = flush_all(txn, err);
    if (!status)
        status = retire_and_publish(txn, err);
    bool keep = status && txn_keeps(txn);
    if (!status && !txn->options.no_sync && !sync_directory(txn->parent_fd, "."))
        status = failed(txn, "the target is in place, but its directory cannot be written to the disk", err);
    if (!keep)
        remove_partial(txn);
    txn_free(txn);
    return status;
}

static const char *posix_data_path(const struct store_txn *base)
{
    return ((const struct posix_txn *)(const void *)base)->data_path;
}

static const struct txn_ops posix_txn_ops = {
    .path = posix_data_path,
    .create = posix_create,
    .journal_read = posix_journal_read,
    .journal_append = posix_journal_append,
    .leave = posix_leave,
    .records = posix_records,
    .record_read = posix_record_read,
    .commit = posix_commit,
    .abort = posix_abort,
};
