/* SPDX-License-Identifier: Apache-2.0 */
#include "store/store_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"

struct memory_txn {
    struct store_txn base;
    struct memory_store *store;
    struct memory_partial *partial; /* in the store's list */
    bool overwrite, resume;
};

static struct memory_txn *store_txn_memory_txn_of(struct store_txn *txn)
{
    return (struct memory_txn *)(void *)txn;
}

static bool store_txn_memory_target_exists(const struct memory_store *store, const char *target)
{
    for (size_t i = 0; i < store->set.count; i++) {
        if (memory_name_is_in(store->set.files[i].name, target))
            return true;
    }
    return false;
}

static struct memory_partial **find_partial(struct memory_store *store, const char *target)
{
    struct memory_partial **link = &store->partials;
    while (*link && strcmp((*link)->target, target) != 0)
        link = &(*link)->next;
    return link;
}

static void drop_partial(struct memory_store *store, const char *target)
{
    struct memory_partial **link = find_partial(store, target), *partial = *link;
    if (partial)
        *link = partial->next;
    memory_partial_free(partial);
}

/* What an earlier run of the same plan left, or a new one. */
static reshard_status store_txn_memory_take_partial(struct memory_txn *txn, const char *target, const struct store_txn_options *options,
                                                    reshard_error *err)
{
    struct memory_store *store = txn->store;
    struct memory_partial *old = *find_partial(store, target);
    if (old && old->in_use) {
        errno = EWOULDBLOCK;
        return error_set_errno(err, "another run is writing '%s'", target);
    }
    if (old && options->resume && old->identity == options->identity && old->is_directory == options->is_directory) {
        for (size_t i = 0; i < old->set.count; i++)
            old->set.files[i].is_current = false;
        txn->partial = old;
        txn->base.is_resumed = true;
    } else {
        drop_partial(store, target);
        struct memory_partial *partial = calloc(1, sizeof(*partial));
        char *own_target = strdup(target);
        if (!partial || !own_target) {
            free(partial);
            free(own_target);
            return error_set_memory(err);
        }
        *partial = (struct memory_partial){
            .next = store->partials, .target = own_target, .identity = options->identity, .is_directory = options->is_directory
        };
        store->partials = partial;
        txn->partial = partial;
    }
    txn->partial->in_use = true;
    return RESHARD_OK;
}

static char *full_name(const struct memory_partial *partial, const char *name)
{
    char *full = NULL;
    if (!partial->is_directory)
        return strdup(partial->target);
    return asprintf(&full, "%s/%s", partial->target, name) < 0 ? NULL : full;
}

/* An object of an earlier run, in its new size. */
static reshard_status reopen(struct memory_file *file, uint64_t bytes, reshard_error *err)
{
    if (file->is_current)
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is created twice in one target", file->name);
    if (file->data->size != bytes) {
        struct memory_data *data = memory_data_new(bytes);
        if (!data)
            return error_set_memory(err);
        memcpy(data->bytes, file->data->bytes, (size_t)(bytes < file->data->size ? bytes : file->data->size));
        memory_data_unref(file->data);
        file->data = data;
    }
    file->is_current = true;
    return RESHARD_OK;
}

static reshard_status create_locked(struct memory_txn *txn, char *full, uint64_t bytes, struct memory_data **out, reshard_error *err)
{
    struct memory_set *set = &txn->partial->set;
    bool found;
    size_t at = memory_set_find(set, full, &found);
    if (found) {
        reshard_status status = reopen(&set->files[at], bytes, err);
        *out = set->files[at].data;
        free(full);
        return status;
    }
    struct memory_data *data = memory_data_new(bytes);
    if (data && memory_set_insert(set, full, data)) {
        *out = data;
        return RESHARD_OK;
    }
    memory_data_unref(data);
    free(full);
    return error_set_memory(err);
}

static reshard_status store_txn_memory_txn_create(struct store_txn *base, const char *name, uint64_t bytes, struct store_object **out,
                                                  reshard_error *err)
{
    struct memory_txn *txn = store_txn_memory_txn_of(base);
    struct memory_data *data = NULL;
    char *full = full_name(txn->partial, name);
    if (!full)
        return error_set_memory(err);
    pthread_mutex_lock(&txn->store->lock);
    reshard_status status = create_locked(txn, full, bytes, &data, err);
    if (!status)
        status = memory_object_new(txn->store, name[0] ? name : txn->partial->target, data, true, out, err);
    pthread_mutex_unlock(&txn->store->lock);
    return status;
}

static reshard_status store_txn_memory_txn_journal_read(struct store_txn *base, struct buffer *out, reshard_error *err)
{
    const struct buffer *journal = &store_txn_memory_txn_of(base)->partial->journal;
    return buffer_append(out, journal->data, journal->size) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status store_txn_memory_txn_journal_append(struct store_txn *base, const void *bytes, size_t size, reshard_error *err)
{
    return buffer_append(&store_txn_memory_txn_of(base)->partial->journal, bytes, size) ? RESHARD_OK : error_set_memory(err);
}

static void finish(struct memory_txn *txn, bool keep)
{
    pthread_mutex_lock(&txn->store->lock);
    txn->partial->in_use = false;
    if (!keep)
        drop_partial(txn->store, txn->partial->target);
    pthread_mutex_unlock(&txn->store->lock);
    free(txn);
}

static void store_txn_memory_txn_abort(struct store_txn *base, bool keep_for_resume)
{
    finish(store_txn_memory_txn_of(base), keep_for_resume);
}

static void remove_target(struct memory_set *set, const char *target)
{
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (memory_name_is_in(set->files[i].name, target)) {
            memory_data_unref(set->files[i].data);
            free(set->files[i].name);
        } else {
            set->files[kept++] = set->files[i];
        }
    }
    set->count = kept;
}

static reshard_status publish_locked(struct memory_txn *txn, reshard_error *err)
{
    struct memory_set *from = &txn->partial->set, *to = &txn->store->set;
    const char *target = txn->partial->target;
    if (!txn->partial->is_directory && from->count != 1)
        return error_set(err, RESHARD_ERR_USAGE, "'%s' is a single file, %zu were created", target, from->count);
    if (!txn->overwrite && store_txn_memory_target_exists(txn->store, target))
        return store_error_exists(target, err);
    /* Everything that moving the files can need is taken first, so that the moving cannot fail half-way. */
    if (!ARRAY_RESERVE(to->files, (uint64_t)to->count + from->count, to->capacity))
        return error_set_memory(err);
    remove_target(to, target);
    size_t left = 0;
    for (size_t i = 0; i < from->count; i++) {
        if (from->files[i].is_current)
            memory_set_insert(to, from->files[i].name, from->files[i].data);
        else
            from->files[left++] = from->files[i];
    }
    from->count = left;
    return RESHARD_OK;
}

static reshard_status store_txn_memory_txn_commit(struct store_txn *base, reshard_error *err)
{
    struct memory_txn *txn = store_txn_memory_txn_of(base);
    pthread_mutex_lock(&txn->store->lock);
    reshard_status status = publish_locked(txn, err);
    pthread_mutex_unlock(&txn->store->lock);
    finish(txn, status && txn->resume);
    return status;
}

static const struct txn_ops memory_txn_ops = {
    .create = store_txn_memory_txn_create,
    .journal_read = store_txn_memory_txn_journal_read,
    .journal_append = store_txn_memory_txn_journal_append,
    .commit = store_txn_memory_txn_commit,
    .abort = store_txn_memory_txn_abort,
};

reshard_status memory_txn_begin(struct store *store, const char *name, const struct store_txn_options *options, struct store_txn **out,
                                reshard_error *err)
{
    struct memory_txn *txn = calloc(1, sizeof(*txn));
    if (!txn)
        return error_set_memory(err);
    txn->base = (struct store_txn){ .ops = &memory_txn_ops, .is_directory = options->is_directory };
    txn->store = memory_store_of(store);
    txn->overwrite = options->overwrite;
    txn->resume = options->resume;
    pthread_mutex_lock(&txn->store->lock);
    reshard_status status = RESHARD_OK;
    if (!options->overwrite && store_txn_memory_target_exists(txn->store, name))
        status = store_error_exists(name, err);
    if (!status)
        status = store_txn_memory_take_partial(txn, name, options, err);
    pthread_mutex_unlock(&txn->store->lock);
    if (status) {
        free(txn);
        return status;
    }
    *out = &txn->base;
    return RESHARD_OK;
}
