/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of the caller's. */
#include "reshard/store.h"

#include "api/convert_call.h"
#include "api/handle.h"

reshard_status store_take(const reshard_store *given, struct store_calls *out, reshard_error *err)
{
    reshard_store taken;
    reshard_status status = struct_take(&taken, sizeof(taken), given, "reshard_store", err);
    if (status)
        return status;
    if (!taken.look || !taken.list || !taken.open || !taken.read_at || !taken.close)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_store: look, list, open, read_at or close is NULL");
    *out = (struct store_calls){
        .name = taken.name,
        .context = taken.context,
        .look = taken.look,
        .list = taken.list,
        .open = taken.open,
        .read_at = taken.read_at,
        .close = taken.close,
        .create = taken.create,
        .write_at = taken.write_at,
        .resize = taken.resize,
        .sync = taken.sync,
        .rename = taken.rename,
        .remove = taken.remove,
    };
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_open_in(const reshard_store *store, const char *path, const reshard_open_options *options,
                                          reshard_checkpoint **out, reshard_error *err)
{
    struct open_call call;
    struct store_calls calls;
    struct checkpoint *opened = NULL;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(store, err);
    NEEDS(path, err);
    reshard_status status = store_take(store, &calls, err);
    if (!status)
        status = open_options_read(options, &call, err);
    if (!status)
        status = checkpoint_open_calls(&calls, path, &call.options, &opened, err);
    return status ? status : handle_make(opened, out, err);
}
