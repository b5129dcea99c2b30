/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_parts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

struct fault_store {
    struct store base;
    struct store *inner;
    enum fault_kind kind;
    uint64_t nth;
    atomic_uint_fast64_t calls;
    atomic_bool was_hit;
};

struct fault_object {
    struct store_object base;
    struct store_object *inner;
    struct fault_store *store;
};

struct fault_txn {
    struct store_txn base;
    struct store_txn *inner;
    struct fault_store *store;
    bool keeps; /* what was written stays when commit fails */
};

/* What a call does to the store: which kinds of faults can hit it. */
enum fault_touch { TOUCH_NAMES, TOUCH_READ, TOUCH_ROOM };

static struct fault_store *fault_of(const struct store *store)
{
    return (struct fault_store *)(uintptr_t)store;
}

static bool can_hit(enum fault_kind kind, enum fault_touch touch)
{
    switch (kind) {
    case FAULT_SHORT_READ:
        return touch == TOUCH_READ;
    case FAULT_DISK_FULL:
        return touch == TOUCH_ROOM;
    default:
        return true;
    }
}

static bool hits(struct fault_store *store, enum fault_touch touch)
{
    if (!can_hit(store->kind, touch) || atomic_fetch_add(&store->calls, 1) + 1 != store->nth)
        return false;
    atomic_store(&store->was_hit, true);
    return true;
}

static reshard_status injected(const struct fault_store *store, const char *what, reshard_error *err)
{
    if (store->kind == FAULT_SHORT_READ)
        return error_set(err, RESHARD_ERR_FORMAT, "file shrank (injected fault): cannot %s", what);
    errno = store->kind == FAULT_DISK_FULL ? ENOSPC : EIO;
    return error_set_errno(err, "injected fault: cannot %s", what);
}

/* ---- store ---- */

static void fault_free(struct store *store)
{
    free(fault_of(store));
}

static const char *fault_path(const struct store *store)
{
    return store_path(fault_of(store)->inner);
}

static reshard_status fault_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                 size_t *count, reshard_error *err)
{
    struct fault_store *fault = fault_of(store);
    if (hits(fault, TOUCH_NAMES))
        return injected(fault, "list", err);
    return store_list(fault->inner, directory, arena, entries, count, err);
}

static bool fault_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    return store_exists(fault_of(store)->inner, name, is_directory, bytes);
}

static uint64_t fault_version(struct store *store, const char *name)
{
    return store_version(fault_of(store)->inner, name);
}

/* ---- objects ---- */

static const struct fault_object *store_fault_object_of(const struct store_object *object)
{
    return (const struct fault_object *)(const void *)object;
}

static void store_fault_object_close(struct store_object *object)
{
    store_object_close(store_fault_object_of(object)->inner);
    free(object);
}

static reshard_status store_fault_object_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size,
                                                 reshard_error *err)
{
    const struct fault_object *fault = store_fault_object_of(object);
    if (!hits(fault->store, TOUCH_READ))
        return store_read_at(fault->inner, offset, out, size, err);
    store_read_at(fault->inner, offset, out, size / 2, NULL);
    reshard_status status = injected(fault->store, "read", err);
    if (err)
        err->offset = (int64_t)(offset + size / 2);
    return status;
}

static reshard_status store_fault_object_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size,
                                                  reshard_error *err)
{
    const struct fault_object *fault = store_fault_object_of(object);
    if (!hits(fault->store, TOUCH_ROOM))
        return store_write_at(fault->inner, offset, bytes, size, err);
    store_write_at(fault->inner, offset, bytes, size / 2, NULL);
    reshard_status status = injected(fault->store, "write", err);
    if (err)
        err->offset = (int64_t)(offset + size / 2);
    return status;
}

static reshard_status store_fault_object_resize(struct store_object *object, uint64_t bytes, reshard_error *err)
{
    const struct fault_object *fault = store_fault_object_of(object);
    return hits(fault->store, TOUCH_NAMES) ? injected(fault->store, "resize", err) : store_resize(fault->inner, bytes, err);
}

static const struct object_ops fault_object_ops = {
    .close = store_fault_object_close,
    .read_at = store_fault_object_read_at,
    .write_at = store_fault_object_write_at,
    .resize = store_fault_object_resize,
};

/* Takes over inner, also on failure. */
static reshard_status wrap_object(struct fault_store *store, struct store_object *inner, struct store_object **out, reshard_error *err)
{
    struct fault_object *object = malloc(sizeof(*object));
    char *own_name = strdup(inner->name);
    if (!object || !own_name) {
        free(object);
        free(own_name);
        store_object_close(inner);
        return error_set_memory(err);
    }
    *object = (struct fault_object){ { &fault_object_ops, own_name, inner->size }, inner, store };
    *out = &object->base;
    return RESHARD_OK;
}

static reshard_status fault_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                        reshard_error *err)
{
    struct fault_store *fault = fault_of(store);
    struct store_object *inner = NULL;
    if (hits(fault, TOUCH_NAMES))
        return injected(fault, "open", err);
    reshard_status status = store_open_object_as(fault->inner, name, access, &inner, err);
    return status ? status : wrap_object(fault, inner, out, err);
}

/* ---- transactions ---- */

static struct fault_txn *store_fault_txn_of(const struct store_txn *txn)
{
    return (struct fault_txn *)(uintptr_t)txn;
}

static const char *txn_path(const struct store_txn *txn)
{
    return store_txn_path(store_fault_txn_of(txn)->inner);
}

static reshard_status store_fault_txn_create(struct store_txn *txn, const char *name, uint64_t bytes, struct store_object **out,
                                             reshard_error *err)
{
    struct fault_txn *fault = store_fault_txn_of(txn);
    struct store_object *inner = NULL;
    if (hits(fault->store, TOUCH_ROOM))
        return injected(fault->store, "create", err);
    reshard_status status = store_txn_create(fault->inner, name, bytes, &inner, err);
    return status ? status : wrap_object(fault->store, inner, out, err);
}

static reshard_status store_fault_txn_journal_read(struct store_txn *txn, struct buffer *out, reshard_error *err)
{
    struct fault_txn *fault = store_fault_txn_of(txn);
    if (hits(fault->store, TOUCH_READ))
        return injected(fault->store, "read the journal", err);
    return store_txn_journal_read(fault->inner, out, err);
}

static reshard_status store_fault_txn_journal_append(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err)
{
    struct fault_txn *fault = store_fault_txn_of(txn);
    if (hits(fault->store, TOUCH_ROOM))
        return injected(fault->store, "write the journal", err);
    return store_txn_journal_append(fault->inner, bytes, size, err);
}

static void store_fault_txn_abort(struct store_txn *txn, bool keep_for_resume)
{
    store_txn_abort(store_fault_txn_of(txn)->inner, keep_for_resume);
    free(txn);
}

static reshard_status store_fault_txn_commit(struct store_txn *txn, reshard_error *err)
{
    struct fault_txn *fault = store_fault_txn_of(txn);
    reshard_status status;
    if (hits(fault->store, TOUCH_ROOM)) {
        status = injected(fault->store, "commit", err);
        store_txn_abort(fault->inner, fault->keeps);
    } else {
        status = store_txn_commit(fault->inner, err);
    }
    free(txn);
    return status;
}

static const struct txn_ops fault_txn_ops = {
    .path = txn_path,
    .create = store_fault_txn_create,
    .journal_read = store_fault_txn_journal_read,
    .journal_append = store_fault_txn_journal_append,
    .commit = store_fault_txn_commit,
    .abort = store_fault_txn_abort,
};

static reshard_status fault_txn_begin(struct store *store, const char *name, const struct store_txn_options *options,
                                      struct store_txn **out, reshard_error *err)
{
    struct fault_store *fault = fault_of(store);
    struct store_txn *inner = NULL;
    if (hits(fault, TOUCH_ROOM))
        return injected(fault, "begin", err);
    struct fault_txn *txn = malloc(sizeof(*txn));
    if (!txn)
        return error_set_memory(err);
    reshard_status status = store_txn_begin_in(fault->inner, name, options, &inner, err);
    if (status) {
        free(txn);
        return status;
    }
    *txn = (struct fault_txn){ { &fault_txn_ops, inner->is_directory, inner->is_resumed }, inner, fault, options->resume };
    *out = &txn->base;
    return RESHARD_OK;
}

static const struct store_ops fault_ops = {
    .free = fault_free,
    .path = fault_path,
    .list = fault_list,
    .exists = fault_exists,
    .version = fault_version,
    .open_object = fault_open_object,
    .txn_begin = fault_txn_begin,
};

struct store *store_new_fault(struct store *inner, enum fault_kind kind, uint64_t nth)
{
    struct fault_store *fault = calloc(1, sizeof(*fault));
    if (!fault)
        return NULL;
    fault->base.ops = &fault_ops;
    fault->inner = inner;
    fault->kind = kind;
    fault->nth = nth;
    return &fault->base;
}

bool store_fault_was_hit(const struct store *store)
{
    return store->ops == &fault_ops && atomic_load(&fault_of(store)->was_hit);
}
