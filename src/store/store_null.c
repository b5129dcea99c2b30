/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_parts.h"

#include <stdlib.h>

/* Holds nothing: what is written goes nowhere, and reads of what is being written give zeros. */

static void null_free(struct store *store)
{
    free(store);
}

static reshard_status null_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                size_t *count, reshard_error *err)
{
    (void)store;
    if (directory[0])
        return store_error_missing(directory, err);
    struct store_entry *none = arena_alloc(arena, 0);
    if (!none)
        return error_set_memory(err);
    *entries = none;
    *count = 0;
    return RESHARD_OK;
}

static bool null_exists(struct store *store, const char *name, bool *is_directory, uint64_t *bytes)
{
    (void)store, (void)name, (void)is_directory, (void)bytes;
    return false;
}

static reshard_status null_open_object(struct store *store, const char *name, unsigned access, struct store_object **out,
                                       reshard_error *err)
{
    (void)access;
    (void)store, (void)out;
    return store_error_missing(name, err);
}

static void store_null_object_close(struct store_object *object)
{
    free(object);
}

static reshard_status store_null_object_read_at(const struct store_object *object, uint64_t offset, void *out, size_t size,
                                                reshard_error *err)
{
    (void)object, (void)offset, (void)err;
    memset(out, 0, size);
    return RESHARD_OK;
}

static reshard_status store_null_object_write_at(struct store_object *object, uint64_t offset, const void *bytes, size_t size,
                                                 reshard_error *err)
{
    (void)object, (void)offset, (void)bytes, (void)size, (void)err;
    return RESHARD_OK;
}

static reshard_status store_null_object_resize(struct store_object *object, uint64_t bytes, reshard_error *err)
{
    (void)object, (void)bytes, (void)err;
    return RESHARD_OK;
}

static const struct object_ops null_object_ops = {
    .close = store_null_object_close,
    .read_at = store_null_object_read_at,
    .write_at = store_null_object_write_at,
    .resize = store_null_object_resize,
};

static reshard_status store_null_txn_create(struct store_txn *txn, const char *name, uint64_t bytes, struct store_object **out,
                                            reshard_error *err)
{
    (void)txn;
    struct store_object *object = malloc(sizeof(*object));
    char *own_name = strdup(name);
    if (!object || !own_name) {
        free(object);
        free(own_name);
        return error_set_memory(err);
    }
    *object = (struct store_object){ &null_object_ops, own_name, bytes };
    *out = object;
    return RESHARD_OK;
}

static reshard_status store_null_txn_journal_read(struct store_txn *txn, struct buffer *out, reshard_error *err)
{
    (void)txn, (void)out, (void)err;
    return RESHARD_OK;
}

static reshard_status store_null_txn_journal_append(struct store_txn *txn, const void *bytes, size_t size, reshard_error *err)
{
    (void)txn, (void)bytes, (void)size, (void)err;
    return RESHARD_OK;
}

static reshard_status store_null_txn_commit(struct store_txn *txn, reshard_error *err)
{
    (void)err;
    free(txn);
    return RESHARD_OK;
}

static void store_null_txn_abort(struct store_txn *txn, bool keep_for_resume)
{
    (void)keep_for_resume;
    free(txn);
}

static const struct txn_ops null_txn_ops = {
    .create = store_null_txn_create,
    .journal_read = store_null_txn_journal_read,
    .journal_append = store_null_txn_journal_append,
    .commit = store_null_txn_commit,
    .abort = store_null_txn_abort,
};

static reshard_status null_txn_begin(struct store *store, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                     reshard_error *err)
{
    (void)store, (void)name;
    struct store_txn *txn = malloc(sizeof(*txn));
    if (!txn)
        return error_set_memory(err);
    *txn = (struct store_txn){ .ops = &null_txn_ops, .is_directory = options->is_directory };
    *out = txn;
    return RESHARD_OK;
}

static const struct store_ops null_ops = {
    .free = null_free,
    .list = null_list,
    .exists = null_exists,
    .open_object = null_open_object,
    .txn_begin = null_txn_begin,
};

struct store *store_new_null(void)
{
    struct store *store = malloc(sizeof(*store));
    if (store)
        *store = (struct store){ .ops = &null_ops };
    return store;
}
