/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_posix.h"

#include "base/array.h"
#include "base/hash.h"
#include "store/store_beneath.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK: opening a FIFO must not wait for its other end. */
#define READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

struct posix_store {
    struct store base;
    int fd;
    unsigned flags;
    char *path;
    char *named_file; /* the file that the caller named: its own link may lead anywhere */
};

static struct posix_store *posix_of(struct store *store)
{
    return (struct posix_store *)(void *)store;
}

static void posix_free(struct store *store)
{
    struct posix_store *posix = posix_of(store);
    if (posix->fd >= 0)
        close(posix->fd);
    store_links_release(store);
    free(posix->path);
    free(posix->named_file);
    free(posix);
}

static const char *posix_path(const struct store *store)
{
    return ((const struct posix_store *)(const void *)store)->path;
}

static bool posix_follows_links(const struct store *store)
{
    return ((const struct posix_store *)(const void *)store)->flags & STORE_FOLLOW_LINKS;
}

static bool may_follow(const struct posix_store *posix, const char *name)
{
    return (posix->flags & STORE_FOLLOW_LINKS) || (posix->named_file && strcmp(posix->named_file, name) == 0);
}

static int open_name(const struct posix_store *posix, const char *name, int flags)
{
    if (may_follow(posix, name))
        return openat(posix->fd, name[0] ? name : ".", flags);
    return open_beneath(posix->fd, name, flags, (posix->flags & STORE_LINKS_BY_HAND) != 0);
}

/* As fstatat, but of nothing that a link which may not be followed leads to: then -1 with errno EXDEV, whatever lies there. */
static int store_posix_look_at(const struct posix_store *posix, const char *name, struct stat *info)
{
    if (may_follow(posix, name))
        return fstatat(posix->fd, name, info, 0);
    int fd = open_name(posix, name, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = fstat(fd, info), number = errno;
    close(fd);
    errno = number;
    return result;
}

static reshard_status cannot_open(const char *name, reshard_error *err)
{
    reshard_status status;
    if (errno == EXDEV) {
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': a symbolic link leads out of the checkpoint's directory", name);
        if (err)
            err->sys_errno = EXDEV;
        error_hint(err, "reshard_open_options.follow_links follows it, if you trust where it leads");
    } else {
        int number = errno;
        status = error_set_errno(err, "cannot open '%s'", name);
        if (number == EMFILE)
            error_hint(err, "raise the limit of open files (ulimit -n)");
    }
    error_object(err, "%s", name);
    return status;
}

static const char *store_posix_kind_of(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a directory";
    case S_IFIFO:
        return "a FIFO";
    case S_IFSOCK:
        return "a socket";
    case S_IFCHR:
    case S_IFBLK:
        return "a device";
    default:
        return "no regular file";
    }
}

static reshard_status not_regular(const char *name, mode_t mode, reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT, "'%s' is %s, not a regular file", name, store_posix_kind_of(mode));
    error_object(err, "%s", name);
    return RESHARD_ERR_FORMAT;
}

/* Looks before it opens, because opening a device can do things; and again afterwards, because names change. */
static reshard_status open_regular(const struct posix_store *posix, const char *name, int *out, reshard_error *err)
{
    struct stat info;
    if (store_posix_look_at(posix, name, &info) == 0 && !S_ISREG(info.st_mode))
        return not_regular(name, info.st_mode, err);
    int fd = open_name(posix, name, READ_FLAGS);
    if (fd < 0)
        return cannot_open(name, err);
    reshard_status status = RESHARD_OK;
    if (fstat(fd, &info) < 0)
        status = cannot_open(name, err);
    else if (!S_ISREG(info.st_mode))
        status = not_regular(name, info.st_mode, err);
    if (status) {
        close(fd);
        return status;
    }
    *out = fd;
    return RESHARD_OK;
}

static reshard_status posix_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                        reshard_error *err)
{
    const struct posix_store *posix = posix_of(store);
    int fd, direct_fd = -1;
    reshard_status status = open_regular(posix, name, &fd, err);
    if (status)
        return status;
    access |= posix->flags;
    if (access & STORE_DIRECT)
        direct_fd = open_name(posix, name, READ_FLAGS | O_DIRECT);
    return posix_object_new(name, fd, direct_fd, access, out, err);
}

static bool posix_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    struct stat info;
    if (store_posix_look_at(posix_of(store), name, &info) < 0) {
        if (errno == EXDEV) {
            store_note_link_out(store, name);
            *is_directory = false;
            *bytes = 0;
            return true;
        }
        if (!store_errno_is_answer(errno))
            store_note_failure(store, name, errno, RESHARD_OK, NULL);
        return false;
    }
    if (!(S_ISDIR(info.st_mode) || S_ISREG(info.st_mode)))
        return false;
    *is_directory = S_ISDIR(info.st_mode);
    *bytes = *is_directory ? 0 : (uint64_t)info.st_size;
    return true;
}

/* The time of the last change, too: whoever copies or restores a file into it may set that of the last modification, but not this one. */
static uint64_t posix_version(struct store *store, const char *name)
{
    struct stat info;
    if (store_posix_look_at(posix_of(store), name, &info) < 0)
        return 0;
    const uint64_t parts[] = { info.st_dev,
                               info.st_ino,
                               (uint64_t)info.st_size,
                               (uint64_t)info.st_mtim.tv_sec,
                               (uint64_t)info.st_mtim.tv_nsec,
                               (uint64_t)info.st_ctim.tv_sec,
                               (uint64_t)info.st_ctim.tv_nsec };
    return hash64(parts, sizeof(parts), 0);
}

/* ---- listing ---- */

struct listing {
    struct posix_store *posix;
    struct arena *arena;
    const char *directory;
    struct store_entry *entries; /* heap, copied at the end */
    size_t count, capacity;
};

/* A link's target is looked at only where it may be opened: -1 with errno EXDEV elsewhere. */
static int look_at_entry(const struct listing *listing, int directory, const char *base, const char *full, struct stat *info)
{
    if (fstatat(directory, base, info, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    return S_ISLNK(info->st_mode) ? store_posix_look_at(listing->posix, full, info) : 0;
}

static reshard_status listing_add(struct listing *listing, int directory, const char *base, reshard_error *err)
{
    const char *full = store_join(listing->arena, listing->directory, str_of(base));
    struct stat info;
    if (!full)
        return error_set_memory(err);
    if (store_name_check(str_of(full), NULL))
        return RESHARD_OK; /* nothing that could be opened */
    struct store_entry entry = { .name = str_of(full) };
    if (look_at_entry(listing, directory, base, full, &info) == 0) {
        if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode))
            return RESHARD_OK;
        entry.is_directory = S_ISDIR(info.st_mode);
        entry.bytes = entry.is_directory ? 0 : (uint64_t)info.st_size;
    } else if (errno == EXDEV) {
        entry.leads_out = true;
        store_note_link_out(&listing->posix->base, full);
    } else if (store_errno_is_answer(errno)) {
        return RESHARD_OK; /* a link that leads nowhere, for example */
    } else {
        return error_set_errno(err, "cannot look at '%s' in '%s'", base, listing->directory);
    }
    if (!ARRAY_ROOM(listing->entries, listing->count, listing->capacity))
        return error_set_memory(err);
    listing->entries[listing->count++] = entry;
    return RESHARD_OK;
}

static reshard_status listing_fill(struct listing *listing, DIR *stream, reshard_error *err)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry)
            return errno ? error_set_errno(err, "cannot list '%s'", listing->directory) : RESHARD_OK;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        reshard_status status = listing_add(listing, dirfd(stream), entry->d_name, err);
        if (status)
            return status;
    }
}

static reshard_status posix_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                 size_t *count, reshard_error *err)
{
    int fd = open_name(posix_of(store), directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cannot_open(directory[0] ? directory : posix_of(store)->path, err);
    DIR *stream = fdopendir(fd);
    if (!stream) {
        close(fd);
        return error_set_memory(err);
    }
    struct listing listing = { .posix = posix_of(store), .arena = arena, .directory = directory };
    reshard_status status = listing_fill(&listing, stream, err);
    closedir(stream);
    struct store_entry *array = status ? NULL : arena_array(arena, listing.count, sizeof(*array));
    if (!status && !array)
        status = error_set_memory(err);
    if (!status) {
        if (listing.count)
            memcpy(array, listing.entries, listing.count * sizeof(*array));
        store_entries_sort(array, listing.count);
        *entries = array;
        *count = listing.count;
    }
    free(listing.entries);
    return status;
}

/* ---- opening a store ---- */

static reshard_status posix_store_txn_begin(struct store *store, const char *name, const struct store_txn_options *options,
                                            struct store_txn **out, reshard_error *err)
{
    const struct posix_store *posix = posix_of(store);
    const char *slash = strrchr(name, '/');
    char *parent = strndup(name, slash ? (size_t)(slash - name) : 0), *path = NULL;
    if (!parent || asprintf(&path, "%s%s%s", posix->path, slash ? "/" : "", parent) < 0) {
        free(parent);
        return error_set_memory(err);
    }
    reshard_status status;
    int fd = open_name(posix, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        status = cannot_open(parent, err);
    else
        status = posix_txn_begin(fd, path, slash ? slash + 1 : name, options, out, err);
    free(path);
    free(parent);
    return status;
}

static const struct store_ops posix_ops = {
    .free = posix_free,
    .path = posix_path,
    .list = posix_list,
    .exists = posix_exists,
    .version = posix_version,
    .follows_links = posix_follows_links,
    .open_object = posix_open_object,
    .txn_begin = posix_store_txn_begin,
};

/* Takes over fd and path. */
static reshard_status make_store(int fd, char *path, char *named_file, unsigned flags, struct store **out, reshard_error *err)
{
    struct posix_store *posix = calloc(1, sizeof(*posix));
    if (!posix) {
        close(fd);
        free(path);
        free(named_file);
        return error_set_memory(err);
    }
    *posix = (struct posix_store){ .base = { &posix_ops }, .fd = fd, .flags = flags, .path = path, .named_file = named_file };
    pthread_mutex_init(&posix->base.links.lock, NULL);
    *out = &posix->base;
    return RESHARD_OK;
}

/* path names a file: the store is its directory. */
static reshard_status open_parent(const char *path, unsigned flags, struct store **out, char **file_name, reshard_error *err)
{
    struct stat info;
    if (stat(path, &info) < 0)
        return cannot_open(path, err);
    if (!S_ISREG(info.st_mode))
        return not_regular(path, info.st_mode, err);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    reshard_status status = store_name_check(str_of(name), err);
    if (status)
        return status;
    /* The parent of "/x" is "/". */
    size_t parent_size = slash ? (size_t)(slash - path) + (slash == path) : 0;
    char *parent = slash ? strndup(path, parent_size) : strdup("."), *named = strdup(name), *copy = strdup(name);
    int fd = parent && named && copy ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        status = make_store(fd, parent, named, flags, out, err);
        parent = named = NULL;
    } else {
        status = parent && named && copy ? cannot_open(parent, err) : error_set_memory(err);
    }
    if (!status && file_name) {
        *file_name = copy;
        copy = NULL;
    }
    free(parent);
    free(named);
    free(copy);
    return status;
}

/* Where nothing is there, parts of it may be. */
static reshard_status cannot_open_path(const char *path, reshard_error *err)
{
    const bool is_absent = errno == ENOENT;
    struct buffer record = { 0 };
    bool has_parts = false;
    reshard_status status = cannot_open(path, err);
    if (is_absent && !store_partial_record(path, &has_parts, &record, NULL) && has_parts)
        error_hint(err, "parts of it are there: 'reshard commit %s' makes them visible, once all are", path);
    buffer_release(&record);
    return status;
}

reshard_status store_open_path(const char *path, unsigned flags, struct store **out, char **file_name, reshard_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOTDIR ? open_parent(path, flags, out, file_name, err) : cannot_open_path(path, err);
    char *own_path = strdup(path), *empty = strdup("");
    if (!own_path || !empty) {
        close(fd);
        free(own_path);
        free(empty);
        return error_set_memory(err);
    }
    reshard_status status = make_store(fd, own_path, NULL, flags, out, err);
    if (!status && file_name) {
        *file_name = empty;
        empty = NULL;
    }
    free(empty);
    return status;
}

/* ---- transactions by path ---- */

/* The directory of a target's path, open, and the name in it. */
struct target_place {
    int fd;
    char *copy, *name;
    const char *parent; /* in copy */
};

static void target_place_release(struct target_place *place)
{
    free(place->copy);
    free(place->name);
}

static reshard_status target_place_find(const char *path, struct target_place *out, reshard_error *err)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    *out = (struct target_place){ .fd = -1 };
    if (store_path_is_url(path))
        return store_error_url(path, err);
    out->copy = strndup(path, size);
    if (!out->copy)
        return error_set_memory(err);
    char *slash = strrchr(out->copy, '/'), *name = slash ? slash + 1 : out->copy;
    if (store_name_check(str_of(name), NULL))
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is no name for a target", path);
    out->name = strdup(name);
    if (!out->name)
        return error_set_memory(err);
    if (slash)
        slash[slash == out->copy] = '\0';
    out->parent = slash ? out->copy : ".";
    out->fd = open(out->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return out->fd < 0 ? cannot_open(out->parent, err) : RESHARD_OK;
}

reshard_status store_txn_begin(const char *path, const struct store_txn_options *options, struct store_txn **out, reshard_error *err)
{
    struct target_place place;
    reshard_status status = target_place_find(path, &place, err);
    if (!status)
        status = posix_txn_begin(place.fd, place.parent, place.name, options, out, err);
    target_place_release(&place);
    return status;
}

reshard_status store_partial_record(const char *path, bool *found, struct buffer *out, reshard_error *err)
{
    struct target_place place;
    *found = false;
    reshard_status status = target_place_find(path, &place, err);
    if (!status)
        status = posix_partial_record(place.fd, place.parent, place.name, found, out, err);
    target_place_release(&place);
    return status;
}
