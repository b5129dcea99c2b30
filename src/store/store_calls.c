/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_calls.h"

#include "base/array.h"
#include "base/checked.h"
#include "store/store_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTIAL_SUFFIX ".reshard-partial"
#define OLD_SUFFIX ".reshard-old"

struct calls_store {
    struct store base;
    struct store_calls calls;
    char *path;   /* for messages: name of the store and folder */
    char *folder; /* "" or ending with '/' */
};

struct calls_object {
    struct store_object base;
    const struct calls_store *store;
    struct calls_txn *txn; /* NULL: it is read */
    void *handle;
};

struct calls_txn {
    struct store_txn base;
    struct calls_store *store;
    char *target, *partial, *data; /* full names: of the target, of the folder beside it, and of the target to be in that */
    char *data_name;               /* the last relative to the store */
    char *old;                     /* full name of the target that is replaced, until the new one is there */
    bool no_sync, overwrite;
    pthread_mutex_t lock;  /* of what follows */
    reshard_status status; /* of objects that were closed */
    reshard_error error;
};

static struct calls_store *calls_store_of(const struct store *store)
{
    return (struct calls_store *)(uintptr_t)store;
}

/* What a function of the caller's returned: an errno number, or something else that is no 0. */
static reshard_status calls_failed(const struct store_calls *calls, int number, const char *what, const char *name, reshard_error *err)
{
    if (number == ENOMEM)
        return error_set_memory(err);
    if (calls->tell) {
        reshard_status status = calls->tell(err, calls->context);
        error_prefix(err, "cannot %s '%s/%s'", what, calls->name, name);
        error_object(err, "%s", name);
        return status;
    }
    if (number == ECANCELED) {
        error_set(err, RESHARD_ERR_CANCELLED, "cannot %s '%s': the store was told to stop", what, name);
        error_object(err, "%s", name);
        return RESHARD_ERR_CANCELLED;
    }
    errno = number > 0 && number < 4096 ? number : EIO;
    error_set_errno(err, "the store cannot %s '%s'", what, name);
    error_object(err, "%s", name);
    return RESHARD_ERR_IO;
}

static char *calls_full_name(const struct calls_store *store, const char *name)
{
    char *full = NULL;
    return asprintf(&full, "%s%s", store->folder, name) < 0 ? NULL : full;
}

/* ---- objects ---- */

static struct calls_object *calls_object_of(const struct store_object *object)
{
    return (struct calls_object *)(uintptr_t)object;
}

/* The first failure of an object that was written is the transaction's. */
static void txn_note(struct calls_txn *txn, reshard_status status, const reshard_error *error)
{
    pthread_mutex_lock(&txn->lock);
    if (!txn->status) {
        txn->status = status;
        txn->error = *error;
    }
    pthread_mutex_unlock(&txn->lock);
}

static void calls_object_close(struct store_object *base)
{
    struct calls_object *object = calls_object_of(base);
    const struct store_calls *calls = &object->store->calls;
    reshard_error error = RESHARD_ERROR_INIT;
    bool syncs = object->txn && !object->txn->no_sync && calls->sync;
    int number = syncs ? calls->sync(object->handle, calls->context) : 0;
    if (number)
        txn_note(object->txn, calls_failed(calls, number, "sync", base->name, &error), &error);
    number = calls->close(object->handle, calls->context);
    if (number && object->txn)
        txn_note(object->txn, calls_failed(calls, number, "close", base->name, &error), &error);
    free(object);
}

static reshard_status calls_object_read_at(const struct store_object *base, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct calls_object *object = calls_object_of(base);
    const struct store_calls *calls = &object->store->calls;
    for (size_t done = 0; done < size;) {
        size_t got = 0;
        int number = calls->read_at(object->handle, offset + done, (uint8_t *)out + done, size - done, &got, calls->context);
        if (number)
            return calls_failed(calls, number, "read", base->name, err);
        if (got == 0 || got > size - done) {
            error_set_at(err, RESHARD_ERR_FORMAT, offset + done,
                         "the store says that '%s' has %" PRIu64 " bytes, and gave %zu of the %zu at %" PRIu64, base->name, base->size, got,
                         size - done, offset + done);
            error_object(err, "%s", base->name);
            return RESHARD_ERR_FORMAT;
        }
        done += got;
    }
    return RESHARD_OK;
}

static reshard_status calls_object_write_at(struct store_object *base, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    const struct calls_object *object = calls_object_of(base);
    const struct store_calls *calls = &object->store->calls;
    int number = calls->write_at(object->handle, offset, bytes, size, calls->context);
    return number ? calls_failed(calls, number, "write", base->name, err) : RESHARD_OK;
}

static reshard_status calls_object_resize(struct store_object *base, uint64_t bytes, reshard_error *err)
{
    const struct calls_object *object = calls_object_of(base);
    const struct store_calls *calls = &object->store->calls;
    int number = calls->resize ? calls->resize(object->handle, bytes, calls->context) : ENOTSUP;
    return number ? calls_failed(calls, number, "resize", base->name, err) : RESHARD_OK;
}

static const struct object_ops calls_object_ops = {
    .close = calls_object_close,
    .read_at = calls_object_read_at,
    .write_at = calls_object_write_at,
    .resize = calls_object_resize,
};

/* Takes over the handle, also on failure. */
static reshard_status calls_object_new(const struct calls_store *store, struct calls_txn *txn, const char *name, void *handle,
                                       uint64_t bytes, struct store_object **out, reshard_error *err)
{
    struct calls_object *object = calloc(1, sizeof(*object));
    char *own_name = strdup(name);
    if (!object || !own_name) {
        free(object);
        free(own_name);
        store->calls.close(handle, store->calls.context);
        return error_set_memory(err);
    }
    *object = (struct calls_object){ { &calls_object_ops, own_name, bytes }, store, txn, handle };
    *out = &object->base;
    return RESHARD_OK;
}

/* ---- the store ---- */

static void calls_free(struct store *base)
{
    struct calls_store *store = calls_store_of(base);
    if (store->calls.release)
        store->calls.release(store->calls.context);
    free(store->path);
    free(store->folder);
    free(store);
}

static const char *calls_path(const struct store *store)
{
    return calls_store_of(store)->path;
}

static int calls_look(const struct calls_store *store, const char *name, int *is_folder, uint64_t *bytes, uint64_t *version)
{
    char *full = calls_full_name(store, name);
    *is_folder = 0;
    *bytes = *version = 0;
    if (!full)
        return ENOMEM;
    int number = store->calls.look(full, is_folder, bytes, version, store->calls.context);
    free(full);
    return number;
}

static bool calls_exists(struct store *base, const char *name, bool *is_directory, uint64_t *bytes)
{
    int is_folder;
    uint64_t version;
    int number = calls_look(calls_store_of(base), name, &is_folder, bytes, &version);
    if (number && !store_errno_is_answer(number)) {
        reshard_error said = RESHARD_ERROR_INIT;
        reshard_status status = calls_failed(&calls_store_of(base)->calls, number, "look at", name, &said);
        store_note_failure(base, name, number > 0 ? number : EIO, status, &said);
    }
    *is_directory = is_folder != 0;
    return number == 0;
}

static uint64_t calls_version(struct store *base, const char *name)
{
    int is_folder;
    uint64_t bytes, version;
    return calls_look(calls_store_of(base), name, &is_folder, &bytes, &version) ? 0 : version;
}

struct calls_listing {
    struct arena *arena;
    const char *directory;
    struct store_entry *entries;
    size_t count, capacity;
    reshard_status status;
    reshard_error *err;
};

static int listing_take(const char *name, size_t name_size, int is_folder, uint64_t bytes, void *context)
{
    struct calls_listing *listing = context;
    struct str last = { name ? name : "", name ? name_size : 0 };
    size_t slash;
    if (!listing->status)
        listing->status = store_name_check(last, listing->err);
    if (!listing->status && str_find_char(last, '/', &slash))
        listing->status =
            error_set(listing->err, RESHARD_ERR_FORMAT, "the store lists '%.*s', which is no name in a folder", STR_ARG(last));
    if (listing->status)
        return ECANCELED;
    const char *full = store_join(listing->arena, listing->directory, last);
    if (!full || !ARRAY_ROOM(listing->entries, listing->count, listing->capacity)) {
        listing->status = error_set_memory(listing->err);
        return ECANCELED;
    }
    listing->entries[listing->count++] = (struct store_entry){ .name = str_of(full), .bytes = bytes, .is_directory = is_folder != 0 };
    return 0;
}

static reshard_status calls_list(struct store *base, const char *directory, struct arena *arena, struct store_entry **entries,
                                 size_t *count, reshard_error *err)
{
    struct calls_store *store = calls_store_of(base);
    struct calls_listing listing = { .arena = arena, .directory = directory, .err = err };
    char *full = calls_full_name(store, directory);
    *count = 0;
    if (!full)
        return error_set_memory(err);
    size_t size = strlen(full);
    if (size && full[size - 1] == '/')
        full[size - 1] = '\0';
    int number = store->calls.list(full, listing_take, &listing, store->calls.context);
    if (number && !listing.status)
        listing.status = calls_failed(&store->calls, number, "list", full, err);
    *entries = listing.status ? NULL : arena_array(arena, listing.count, sizeof(**entries));
    if (!listing.status && !*entries)
        listing.status = error_set_memory(err);
    if (!listing.status && listing.count)
        memcpy(*entries, listing.entries, listing.count * sizeof(**entries));
    if (!listing.status) {
        *count = listing.count;
        store_entries_sort(*entries, *count);
    }
    free(listing.entries);
    free(full);
    return listing.status;
}

static reshard_status calls_open(struct store *base, const char *name, unsigned access, struct store_object **out, reshard_error *err)
{
    struct calls_store *store = calls_store_of(base);
    char *full = calls_full_name(store, name);
    void *handle = NULL;
    uint64_t bytes = 0;
    (void)access;
    if (!full)
        return error_set_memory(err);
    int number = store->calls.open(full, &handle, &bytes, store->calls.context);
    free(full);
    if (number)
        return calls_failed(&store->calls, number, "open", name, err);
    return calls_object_new(store, NULL, name, handle, bytes, out, err);
}

/* ---- transactions ---- */

static struct calls_txn *calls_txn_of(const struct store_txn *txn)
{
    return (struct calls_txn *)(uintptr_t)txn;
}

static void calls_txn_free(struct calls_txn *txn)
{
    pthread_mutex_destroy(&txn->lock);
    free(txn->target);
    free(txn->partial);
    free(txn->data);
    free(txn->data_name);
    free(txn->old);
    free(txn);
}

static const char *calls_txn_path(const struct store_txn *txn)
{
    return calls_txn_of(txn)->data_name;
}

static reshard_status calls_txn_create(struct store_txn *base, const char *name, uint64_t bytes, struct store_object **out,
                                       reshard_error *err)
{
    struct calls_txn *txn = calls_txn_of(base);
    const struct store_calls *calls = &txn->store->calls;
    char *full = NULL;
    void *handle = NULL;
    if (asprintf(&full, name[0] ? "%s/%s" : "%s", txn->data, name) < 0)
        return error_set_memory(err);
    int number = calls->create(full, bytes, &handle, calls->context);
    free(full);
    if (number)
        return calls_failed(calls, number, "create", name[0] ? name : txn->target, err);
    return calls_object_new(txn->store, txn, name[0] ? name : txn->target, handle, bytes, out, err);
}

/* Nothing is resumed here. */
static reshard_status calls_journal_read(struct store_txn *txn, struct buffer *out, reshard_error *err)
{
    (void)txn;
    (void)out;
    (void)err;
    return RESHARD_OK;
}

static reshard_status calls_journal_append(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err)
{
    (void)txn;
    (void)bytes;
    (void)size;
    (void)err;
    return RESHARD_OK;
}

static int calls_remove(const struct calls_txn *txn, const char *name)
{
    const struct store_calls *calls = &txn->store->calls;
    int number = calls->remove(name, calls->context);
    return number == ENOENT ? 0 : number;
}

/* Whether something is there. */
static reshard_status txn_look(const struct calls_txn *txn, const char *name, bool *is_there, reshard_error *err)
{
    const struct store_calls *calls = &txn->store->calls;
    uint64_t bytes, version;
    int is_folder, number = calls->look(name, &is_folder, &bytes, &version, calls->context);
    *is_there = number == 0;
    return number && number != ENOENT ? calls_failed(&txn->store->calls, number, "look at", name, err) : RESHARD_OK;
}

static void calls_txn_abort(struct store_txn *base, bool keep_for_resume)
{
    struct calls_txn *txn = calls_txn_of(base);
    (void)keep_for_resume;
    calls_remove(txn, txn->partial);
    calls_txn_free(txn);
}

static reshard_status txn_target_check(const struct calls_txn *txn, bool *is_there, reshard_error *err)
{
    reshard_status status = txn_look(txn, txn->target, is_there, err);
    if (status || !*is_there || txn->overwrite)
        return status;
    errno = EEXIST;
    error_set_errno(err, "cannot write '%s'", txn->target);
    error_object(err, "%s", txn->target);
    error_hint(err, "reshard_convert_options.overwrite replaces it, if it is a checkpoint");
    return RESHARD_ERR_IO;
}

/* A run that was killed between the two renames has left the old target under its other name, a later one what is to be removed. */
static reshard_status txn_old_settle(const struct calls_txn *txn, reshard_error *err)
{
    const struct store_calls *calls = &txn->store->calls;
    bool is_left, is_there;
    reshard_status status = txn_look(txn, txn->old, &is_left, err);
    if (!status && is_left)
        status = txn_look(txn, txn->target, &is_there, err);
    if (status || !is_left)
        return status;
    int number = is_there ? calls_remove(txn, txn->old) : calls->rename(txn->old, txn->target, calls->context);
    return number ? calls_failed(&txn->store->calls, number, is_there ? "remove" : "rename back", txn->old, err) : RESHARD_OK;
}

/* The target gets its name; what had it before keeps it if that fails. */
static reshard_status txn_rename(const struct calls_txn *txn, bool replaces, reshard_error *err)
{
    const struct store_calls *calls = &txn->store->calls;
    int number = replaces ? calls->rename(txn->target, txn->old, calls->context) : 0;
    if (number)
        return calls_failed(&txn->store->calls, number, "rename", txn->target, err);
    number = calls->rename(txn->data, txn->target, calls->context);
    if (number) {
        reshard_status status = calls_failed(&txn->store->calls, number, "rename its file to", txn->target, err);
        if (replaces && calls->rename(txn->old, txn->target, calls->context))
            error_hint(err, "what was there is whole, as '%s': rename it back, or let the next run that writes the target do so", txn->old);
        return status;
    }
    if (replaces)
        calls_remove(txn, txn->old); /* else the next run does */
    return RESHARD_OK;
}

static reshard_status calls_txn_commit(struct store_txn *base, reshard_error *err)
{
    struct calls_txn *txn = calls_txn_of(base);
    bool is_there = false;
    reshard_status status = txn->status;
    if (status && err)
        *err = txn->error;
    if (!status)
        status = txn_target_check(txn, &is_there, err);
    if (!status)
        status = txn_rename(txn, is_there, err);
    calls_remove(txn, txn->partial);
    calls_txn_free(txn);
    return status;
}

static const struct txn_ops calls_txn_ops = {
    .path = calls_txn_path,
    .create = calls_txn_create,
    .journal_read = calls_journal_read,
    .journal_append = calls_journal_append,
    .commit = calls_txn_commit,
    .abort = calls_txn_abort,
};

static reshard_status txn_names(struct calls_txn *txn, const char *name, reshard_error *err)
{
    const char *slash = strrchr(name, '/'), *last = slash ? slash + 1 : name;
    int parent = slash ? (int)(slash + 1 - name) : 0;
    txn->target = calls_full_name(txn->store, name);
    if (asprintf(&txn->partial, "%s%.*s.%s" PARTIAL_SUFFIX, txn->store->folder, parent, name, last) < 0)
        txn->partial = NULL;
    if (asprintf(&txn->data_name, "%.*s.%s" PARTIAL_SUFFIX "/%s", parent, name, last, last) < 0)
        txn->data_name = NULL;
    if (asprintf(&txn->old, "%s%.*s.%s" OLD_SUFFIX, txn->store->folder, parent, name, last) < 0)
        txn->old = NULL;
    txn->data = txn->data_name ? calls_full_name(txn->store, txn->data_name) : NULL;
    return txn->target && txn->partial && txn->data && txn->old ? RESHARD_OK : error_set_memory(err);
}

static reshard_status txn_options_check(const struct calls_store *store, const struct store_txn_options *options, reshard_error *err)
{
    const struct store_calls *calls = &store->calls;
    if (!calls->create || !calls->write_at || !calls->rename || !calls->remove)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the store '%s' can only be read: it lacks create, write_at, rename or remove",
                         store->path);
    if (options->resume || options->share != STORE_TXN_ALONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "in a store of the caller's nothing is resumed or written in parts");
    return RESHARD_OK;
}

static reshard_status calls_txn_begin(struct store *base, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                      reshard_error *err)
{
    struct calls_store *store = calls_store_of(base);
    bool is_there;
    reshard_status status = txn_options_check(store, options, err);
    if (status)
        return status;
    struct calls_txn *txn = calloc(1, sizeof(*txn));
    if (!txn || pthread_mutex_init(&txn->lock, NULL)) {
        free(txn);
        return error_set_memory(err);
    }
    txn->base = (struct store_txn){ .ops = &calls_txn_ops, .is_directory = options->is_directory };
    txn->store = store;
    txn->no_sync = options->no_sync;
    txn->overwrite = options->overwrite;
    txn->error = (reshard_error)RESHARD_ERROR_INIT;
    status = txn_names(txn, name, err);
    if (!status)
        status = txn_old_settle(txn, err);
    if (!status)
        status = txn_target_check(txn, &is_there, err);
    int number = status ? 0 : calls_remove(txn, txn->partial); /* what a run left that was killed */
    if (number)
        status = calls_failed(&txn->store->calls, number, "remove", txn->partial, err);
    if (status)
        calls_txn_free(txn);
    else
        *out = &txn->base;
    return status;
}

static const struct store_ops calls_ops = {
    .free = calls_free,
    .path = calls_path,
    .list = calls_list,
    .exists = calls_exists,
    .version = calls_version,
    .open_object = calls_open,
    .txn_begin = calls_txn_begin,
};

bool store_calls_are_of(const struct store *store, const struct store_calls *calls)
{
    const struct store_calls *own = &calls_store_of(store)->calls;
    return store && store->ops == &calls_ops && own->context == calls->context && own->open == calls->open;
}

/* ---- opening ---- */

reshard_status store_new_calls(const struct store_calls *calls, const char *folder, struct store **out, reshard_error *err)
{
    struct calls_store *store = calloc(1, sizeof(*store));
    *out = NULL;
    if (!store)
        return error_set_memory(err);
    store->base.ops = &calls_ops;
    store->calls = *calls;
    if (asprintf(&store->folder, folder[0] ? "%s/" : "%s", folder) < 0)
        store->folder = NULL;
    if (asprintf(&store->path, folder[0] ? "%s/%s" : "%s", calls->name ? calls->name : "store", folder) < 0)
        store->path = NULL;
    if (!store->folder || !store->path) {
        store->calls.release = NULL;
        calls_free(&store->base);
        return error_set_memory(err);
    }
    *out = &store->base;
    return RESHARD_OK;
}

reshard_status store_open_calls(const struct store_calls *calls, const char *path, struct store **out, char **file_name, reshard_error *err)
{
    const char *slash = strrchr(path, '/');
    uint64_t bytes = 0, version = 0;
    int is_folder = 1;
    *out = NULL;
    *file_name = NULL;
    reshard_status status = path[0] ? store_name_check(str_of(path), err) : RESHARD_OK;
    int number = status || !path[0] ? 0 : calls->look(path, &is_folder, &bytes, &version, calls->context);
    if (number)
        return calls_failed(calls, number, "look at", path, err);
    char *folder = is_folder ? strdup(path) : strndup(path, slash ? (size_t)(slash - path) : 0);
    *file_name = strdup(is_folder ? "" : slash ? slash + 1 : path);
    if (!status && (!folder || !*file_name))
        status = error_set_memory(err);
    if (!status)
        status = store_new_calls(calls, folder, out, err);
    free(folder);
    if (status) {
        free(*file_name);
        *file_name = NULL;
    }
    return status;
}
