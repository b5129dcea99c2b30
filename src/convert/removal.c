/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The new metadata is written beside the old. Then goes what vouches for the whole (digests of files and of tensors), the metadata is
 * replaced by one rename, the files that nothing needs are removed, and digests of files are written anew. A run that is killed leaves the
 * old checkpoint or the new one, perhaps with files too many.
 */
#include "convert/removal.h"

#include "formats/shared/integrity_file.h"

#include <string.h>

struct removing {
    struct source *source;
    struct removal removal;
    struct arena arena;
    struct buffer integrity; /* the file of that name as it is to be; empty: there is none */
    bool no_sync;
};

/* The path of a file beside the metadata, or of one in the store. */
static const char *removing_path(struct removing *removing, const char *name, const char *beside, reshard_error *err)
{
    const char *object = beside ? ARENA_JOIN(&removing->arena, str_folder(str_of(name)), str_of(beside)).data : name,
               *path = object ? store_join(&removing->arena, store_path(removing->source->store), str_of(object)) : NULL;
    if (!path)
        error_set_memory(err);
    return path;
}

/* Writes a file beside the one that it is to replace. */
static reshard_status file_write(const char *path, const struct buffer *bytes, bool no_sync, struct store_txn **out, reshard_error *err)
{
    const struct store_txn_options options = { .overwrite = true, .no_sync = no_sync };
    struct store_object *object = NULL;
    reshard_status status = store_txn_begin(path, &options, out, err);
    if (status)
        return status;
    status = store_txn_create(*out, "", bytes->size, &object, err);
    if (!status)
        status = store_write_at(object, 0, bytes->data, bytes->size, err);
    store_object_close(object);
    if (status)
        store_txn_abort(*out, false);
    return status;
}

static reshard_status vouchers_remove(struct removing *removing, const char *integrity, reshard_error *err)
{
    const char *sidecar = removing_path(removing, removing->removal.name, SIDECAR_NAME, err);
    if (!sidecar)
        return RESHARD_ERR_MEMORY;
    reshard_status status = store_path_remove(sidecar, removing->no_sync, err);
    return status ? status : store_path_remove(integrity, removing->no_sync, err);
}

static reshard_status files_remove(struct removing *removing, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < removing->removal.file_count && !status; i++) {
        const char *path = removing_path(removing, removing->removal.files[i], NULL, err);
        status = path ? store_path_remove(path, removing->no_sync, err) : RESHARD_ERR_MEMORY;
    }
    if (status)
        error_prefix(err, "the metadata is replaced; what it no longer names is still there");
    return status;
}

static reshard_status removing_apply(struct removing *removing, reshard_error *err)
{
    const char *metadata = removing_path(removing, removing->removal.name, NULL, err);
    const char *integrity = removing_path(removing, removing->removal.name, INTEGRITY_FILE, err);
    struct store_txn *txn;
    if (!metadata || !integrity)
        return RESHARD_ERR_MEMORY;
    reshard_status status = file_write(metadata, &removing->removal.bytes, removing->no_sync, &txn, err);
    if (status)
        return status;
    status = vouchers_remove(removing, integrity, err);
    if (status)
        store_txn_abort(txn, false);
    else
        status = store_txn_commit(txn, err);
    if (!status)
        status = files_remove(removing, err);
    if (status || !removing->integrity.size)
        return status;
    status = file_write(integrity, &removing->integrity, removing->no_sync, &txn, err);
    return status ? status : store_txn_commit(txn, err);
}

static reshard_status removing_prepare(struct removing *removing, struct str prefix, reshard_error *err)
{
    struct source *source = removing->source;
    if (!source->driver->leave_out) {
        error_hint(err, "reshard_convert with exclude writes a checkpoint without them");
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "format %s: nothing can be taken out of a checkpoint where it lies",
                         source->driver->name);
    }
    reshard_status status = source->driver->leave_out(source, prefix, &removing->removal, err);
    if (!status && !removing->removal.tensors && !removing->removal.items)
        status = error_set(err, RESHARD_ERR_USAGE, "no tensor or object begins with '%.*s'", STR_ARG(prefix));
    return status ? status : integrity_without(source->store, &removing->removal, &removing->integrity, err);
}

reshard_status removal_run(const char *path, struct str prefix, const struct checkpoint_options *options, bool no_sync,
                           struct removal_counts *out, reshard_error *err)
{
    struct checkpoint *checkpoint;
    *out = (struct removal_counts){ 0 };
    reshard_status status = checkpoint_open(path, options, &checkpoint, err);
    if (status)
        return status;
    struct removing removing = { .source = checkpoint->source, .no_sync = no_sync };
    status = removing_prepare(&removing, prefix, err);
    if (!status)
        status = removing_apply(&removing, err);
    if (!status)
        *out = (struct removal_counts){ removing.removal.tensors, removing.removal.items, removing.removal.file_count,
                                        removing.removal.file_bytes };
    removal_release(&removing.removal);
    buffer_release(&removing.integrity);
    arena_release(&removing.arena);
    checkpoint_close(checkpoint);
    return status;
}
