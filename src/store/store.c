/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store.h"

#include "base/checked.h"
#include "store/store_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES_MAX 4096

/* ---- names ---- */

static reshard_status bad_name(struct str name, const char *complaint, reshard_error *err)
{
    return error_set(err, RESHARD_ERR_FORMAT, "file name '%.*s' %s", STR_ARG(name), complaint);
}

static const char *store_part_complaint(struct str part)
{
    if (part.size == 0)
        return "has an empty part";
    if (str_is(part, "."))
        return "has a part '.'";
    if (str_is(part, ".."))
        return "has a part '..': it may not leave the checkpoint's directory";
    return NULL;
}

reshard_status store_name_check(struct str name, reshard_error *err)
{
    if (name.size == 0)
        return bad_name(name, "is empty", err);
    if (name.size > NAME_BYTES_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "file name of %zu bytes, at most %d are allowed", name.size, NAME_BYTES_MAX);
    if (name.data[0] == '/')
        return bad_name(name, "starts with '/': it may not leave the checkpoint's directory", err);
    size_t start = 0;
    for (size_t i = 0; i <= name.size; i++) {
        if (i < name.size && name.data[i] == '\0')
            return bad_name(name, "holds a NUL", err);
        if (i < name.size && name.data[i] == '\\')
            return bad_name(name, "holds a backslash", err);
        if (i < name.size && name.data[i] != '/')
            continue;
        const char *complaint = store_part_complaint((struct str){ name.data + start, i - start });
        if (complaint)
            return bad_name(name, complaint, err);
        start = i + 1;
    }
    return RESHARD_OK;
}

static reshard_status store_check_name(const char *name, reshard_error *err)
{
    return store_name_check(str_of(name), err);
}

reshard_status store_error_missing(const char *name, reshard_error *err)
{
    errno = ENOENT;
    error_set_errno(err, "cannot open '%s'", name);
    error_object(err, "%s", name);
    return RESHARD_ERR_IO;
}

reshard_status store_error_exists(const char *name, reshard_error *err)
{
    errno = EEXIST;
    error_set_errno(err, "cannot write '%s'", name);
    error_object(err, "%s", name);
    error_hint(err, "reshard_convert_options.overwrite replaces it, if it is a checkpoint");
    return RESHARD_ERR_IO;
}

/* ---- stores ---- */

void store_free(struct store *store)
{
    if (store)
        store->ops->free(store);
}

const char *store_path(const struct store *store)
{
    return store->ops->path ? store->ops->path(store) : "";
}

bool store_follows_links(const struct store *store)
{
    return store->ops->follows_links && store->ops->follows_links(store);
}

static int compare_entries(const void *a, const void *b)
{
    const struct store_entry *x = a, *y = b;
    return str_compare(x->name, y->name);
}

void store_entries_sort(struct store_entry *entries, size_t count)
{
    if (count > 1)
        qsort(entries, count, sizeof(*entries), compare_entries);
}

/* Makes sure that the held listing is that of the directory. */
static reshard_status listing_read(struct store *store, const char *directory, reshard_error *err)
{
    struct store_held *held = &store->held;
    if (held->directory && strcmp(held->directory, directory) == 0)
        return RESHARD_OK;
    arena_release(&held->arena);
    held->directory = NULL;
    reshard_status status = store->ops->list(store, directory, &held->arena, &held->entries, &held->count, err);
    if (status)
        return status;
    held->directory = arena_printf(&held->arena, "%s", directory);
    return held->directory ? RESHARD_OK : error_set_memory(err);
}

static reshard_status listing_copy(const struct store_held *held, struct arena *arena, struct store_entry **entries, size_t *count,
                                   reshard_error *err)
{
    *entries = arena_array(arena, held->count, sizeof(**entries));
    *count = held->count;
    bool good = *entries != NULL;
    for (size_t i = 0; i < held->count && good; i++) {
        (*entries)[i] = held->entries[i];
        good = arena_str(arena, held->entries[i].name, &(*entries)[i].name);
    }
    return good ? RESHARD_OK : error_set_memory(err);
}

reshard_status store_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries, size_t *count,
                          reshard_error *err)
{
    reshard_status status = directory[0] ? store_check_name(directory, err) : RESHARD_OK;
    if (status)
        return status;
    if (!store->held.holders)
        return store->ops->list(store, directory, arena, entries, count, err);
    status = listing_read(store, directory, err);
    return status ? status : listing_copy(&store->held, arena, entries, count, err);
}

void store_hold_listing(struct store *store)
{
    store->held.holders++;
}

void store_release_listing(struct store *store)
{
    if (--store->held.holders)
        return;
    arena_release(&store->held.arena);
    store->held = (struct store_held){ 0 };
}

bool store_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    return store_check_name(name, NULL) == RESHARD_OK && store->ops->exists(store, name, is_directory, bytes);
}

bool store_is_directory(struct store *store, const char *name)
{
    bool is_directory = false;
    uint64_t bytes;
    return !name[0] || (store_exists(store, name, &is_directory, &bytes) && is_directory);
}

bool store_is_file(struct store *store, const char *name)
{
    bool is_directory = false;
    uint64_t bytes;
    return store_exists(store, name, &is_directory, &bytes) && !is_directory;
}

bool store_has_file(struct store *store, const char *directory, const char *name, reshard_error *err)
{
    struct arena arena = { 0 };
    const char *full = store_join(&arena, directory, str_of(name));
    if (!full)
        error_set_memory(err);
    const bool has_file = full && store_is_file(store, full);
    arena_release(&arena);
    return has_file;
}

char *store_join(struct arena *arena, const char *directory, struct str name)
{
    const struct str above = str_of(directory);
    const bool is_open = above.size && above.data[above.size - 1] != '/';
    return (char *)ARENA_JOIN(arena, above, is_open ? STR("/") : STR(""), name).data;
}

bool store_errno_is_answer(int number)
{
    switch (number) {
    case ENOENT: case ENOTDIR: case ELOOP: case ENAMETOOLONG: case EACCES: case EPERM: case EXDEV: case EISDIR: case EINVAL: case ENXIO:
        return true;
    default:
        return false;
    }
}

bool store_status_is_answer(reshard_status status, const reshard_error *err)
{
    bool ends_all = status == RESHARD_ERR_MEMORY || status == RESHARD_ERR_CANCELLED;
    return !ends_all && (status != RESHARD_ERR_IO || store_errno_is_answer(err->sys_errno));
}

void store_note_failure(struct store *store, const char *name, int number, reshard_status status, const reshard_error *said)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&store->failure.state, &none, 1))
        return;
    store->failure.sys_errno = number;
    store->failure.status = said ? status : RESHARD_OK;
    if (said)
        store->failure.said = *said;
    snprintf(store->failure.name, sizeof(store->failure.name), "%s", name);
    atomic_store(&store->failure.state, 2);
}

void store_note_link_out(struct store *store, const char *name)
{
    struct store_links *links = &store->links;
    pthread_mutex_lock(&links->lock);
    unsigned count = atomic_load(&links->count), i = 0;
    while (i < count && strcmp(links->names[i], name) != 0)
        i++;
    if (i == count && count < LINKS_OUT_KEPT && (links->names[i] = strdup(name)))
        atomic_store(&links->count, count + 1);
    else if (i == count)
        atomic_store(&links->has_more, true);
    pthread_mutex_unlock(&links->lock);
}

/* Whose links and failures count as the store's. */
static const struct store *main_store(const struct store *store)
{
    while (store->ops->main)
        store = store->ops->main(store);
    return store;
}

bool store_has_more_links_out(const struct store *store)
{
    return atomic_load(&main_store(store)->links.has_more);
}

void store_links_release(struct store *store)
{
    for (unsigned i = 0; i < atomic_load(&store->links.count); i++)
        free(store->links.names[i]);
    pthread_mutex_destroy(&store->links.lock);
}

const char *store_link_out(const struct store *store, size_t index)
{
    const struct store_links *links = &main_store(store)->links;
    return index < atomic_load(&links->count) ? links->names[index] : NULL;
}

reshard_status store_failure(const struct store *store, reshard_error *err)
{
    const struct store_failure *failure = &main_store(store)->failure;
    if (atomic_load(&failure->state) != 2)
        return RESHARD_OK;
    if (failure->status && err)
        *err = failure->said;
    errno = failure->sys_errno;
    if (failure->status)
        error_prefix(err, "cannot look at '%s'", failure->name);
    else
        error_set_errno(err, "cannot look at '%s'", failure->name);
    error_object(err, "%s", failure->name);
    return failure->status ? failure->status : RESHARD_ERR_IO;
}

uint64_t store_version(struct store *store, const char *name)
{
    return store->ops->version && store_check_name(name, NULL) == RESHARD_OK ? store->ops->version(store, name) : 0;
}

/* ---- objects ---- */

reshard_status store_open_object(struct store *store, const char *name, struct store_object **out, reshard_error *err)
{
    return store_open_object_as(store, name, 0, out, err);
}

reshard_status store_open_object_as(struct store *store, const char *name, unsigned access, struct store_object **out, reshard_error *err)
{
    reshard_status status = store_check_name(name, err);
    return status ? status : store->ops->open_object(store, name, access, out, err);
}

void store_object_close(struct store_object *object)
{
    if (!object)
        return;
    char *name = object->name;
    object->ops->close(object);
    free(name);
}

uint64_t store_object_size(const struct store_object *object)
{
    return object->size;
}

const char *store_object_name(const struct store_object *object)
{
    return object->name;
}

uint8_t *store_object_room(struct store_object *object)
{
    return object && object->ops->room ? object->ops->room(object) : NULL;
}

const void *store_object_map(const struct store_object *object)
{
    return object->ops->map ? object->ops->map(object) : NULL;
}

int store_object_fd(const struct store_object *object)
{
    return object->ops->fd ? object->ops->fd(object) : -1;
}

reshard_status store_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    reshard_status status;
    if (!range_fits(offset, size, object->size))
        status = error_set_at(err, RESHARD_ERR_FORMAT, offset, "ends inside %zu bytes at offset %" PRIu64 ": it has %" PRIu64 " bytes",
                              size, offset, object->size);
    else
        status = size ? object->ops->read_at(object, offset, out, size, err) : RESHARD_OK;
    if (status)
        error_object(err, "%s", object->name);
    return status;
}

reshard_status store_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    reshard_status status;
    if (!object->ops->write_at)
        status = error_set(err, RESHARD_ERR_USAGE, "was opened for reading");
    else if (!range_fits(offset, size, object->size))
        status = error_set_at(err, RESHARD_ERR_USAGE, offset, "%zu bytes at offset %" PRIu64 " do not fit into its %" PRIu64 " bytes", size,
                              offset, object->size);
    else
        status = size ? object->ops->write_at(object, offset, bytes, size, err) : RESHARD_OK;
    if (status)
        error_object(err, "%s", object->name);
    return status;
}

reshard_status store_resize(struct store_object *object, uint64_t bytes, reshard_error *err)
{
    reshard_status status;
    if (!object->ops->resize)
        status = error_set(err, RESHARD_ERR_USAGE, "cannot be given another size");
    else
        status = object->ops->resize(object, bytes, err);
    if (!status)
        object->size = bytes;
    else
        error_object(err, "%s", object->name);
    return status;
}

/* A window's offsets are its own, also in errors. */
static reshard_status read_through(const struct reader *reader, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct store_object *object = reader->context;
    reshard_status status;
    if (!range_fits(offset, size, reader->size)) {
        status = error_set_at(err, RESHARD_ERR_FORMAT, offset, "ends inside %zu bytes at offset %" PRIu64 ": it has %" PRIu64 " bytes",
                              size, offset, reader->size);
        error_object(err, "%s", object->name);
        return status;
    }
    status = store_read_at(object, reader->base + offset, out, size, err);
    if (status && err && err->offset >= 0)
        err->offset = (int64_t)offset;
    return status;
}

struct reader store_object_reader(const struct store_object *object)
{
    return (struct reader){ .read_at = read_through, .size = object->size, .context = object, .name = object->name };
}

reshard_status store_read_all(struct store *store, const char *name, struct named_limit limit, struct buffer *out, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(store, name, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    if (object->size > limit.value)
        status = limit_error_bytes(err, limit, "the file is read at once", object->size);
    else
        status = reader_append(&reader, 0, object->size, out, err);
    work_add_input(limit.budget, object->size);
    if (status)
        error_object(err, "%s", name);
    store_object_close(object);
    return status;
}

/* ---- transactions ---- */

reshard_status store_txn_begin_in(struct store *store, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                  reshard_error *err)
{
    reshard_status status = store_check_name(name, err);
    return status ? status : store->ops->txn_begin(store, name, options, out, err);
}

bool store_txn_is_resumed(const struct store_txn *txn)
{
    return txn->is_resumed;
}

const char *store_txn_path(const struct store_txn *txn)
{
    return txn->ops->path ? txn->ops->path(txn) : "";
}

reshard_status store_txn_create(struct store_txn *txn, const char *name, uint64_t bytes, struct store_object **out, reshard_error *err)
{
    if (bytes > INT64_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "'%s' would have %" PRIu64 " bytes, a file has less than 2^63", name, bytes);
    if (!txn->is_directory && name[0])
        return error_set(err, RESHARD_ERR_USAGE, "'%s': the target is a single file, its object has no name", name);
    reshard_status status = txn->is_directory ? store_check_name(name, err) : RESHARD_OK;
    return status ? status : txn->ops->create(txn, name, bytes, out, err);
}

reshard_status store_txn_journal_read(struct store_txn *txn, struct buffer *out, reshard_error *err)
{
    return txn->ops->journal_read(txn, out, err);
}

reshard_status store_txn_journal_append(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err)
{
    return txn->ops->journal_append(txn, bytes, size, err);
}

static reshard_status refuse_parts(reshard_error *err)
{
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "a target in this store is written by one run alone");
}

reshard_status store_txn_leave(struct store_txn *txn, const char *record, const void *bytes, size_t size, reshard_error *err)
{
    if (txn->ops->leave)
        return txn->ops->leave(txn, record, bytes, size, err);
    txn->ops->abort(txn, false);
    return refuse_parts(err);
}

reshard_status store_txn_records(struct store_txn *txn, struct arena *arena, char ***names, size_t *count, reshard_error *err)
{
    *names = NULL;
    *count = 0;
    return txn->ops->records ? txn->ops->records(txn, arena, names, count, err) : refuse_parts(err);
}

reshard_status store_txn_record_read(struct store_txn *txn, const char *name, struct buffer *out, reshard_error *err)
{
    return txn->ops->record_read ? txn->ops->record_read(txn, name, out, err) : refuse_parts(err);
}

reshard_status store_txn_commit(struct store_txn *txn, reshard_error *err)
{
    return txn->ops->commit(txn, err);
}

void store_txn_abort(struct store_txn *txn, bool keep_for_resume)
{
    if (txn)
        txn->ops->abort(txn, keep_for_resume);
}
