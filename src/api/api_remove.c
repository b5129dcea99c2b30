/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors taken out of a checkpoint where it lies. */
#include "reshard/sharded.h"

#include "api/public_options.h"
#include "convert/removal.h"

API_EXPORT reshard_status reshard_remove(const char *path, reshard_str prefix, const reshard_remove_options *options,
                                         reshard_remove_report *report, reshard_error *err)
{
    const reshard_remove_options none = RESHARD_REMOVE_OPTIONS_INIT;
    reshard_remove_options given;
    struct open_call open;
    struct removal_counts counts;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_remove_report", err);
    if (!status)
        status = struct_take(&given, sizeof(given), options ? options : &none, "reshard_remove_options", err);
    if (!status)
        status = open_options_read(given.open, &open, err);
    if (status)
        return status;
    NEEDS(path, err);
    if (!prefix.data)
        return argument_missing(__func__, "prefix", err);
    if (!prefix.size)
        return error_set(err, RESHARD_ERR_USAGE, "the prefix is empty: that is all there is");
    status = removal_run(path, (struct str){ prefix.data, prefix.size }, &open.options, given.no_sync != 0, &counts, err);
    if (status || !report)
        return status;
    const reshard_remove_report made = {
        .tensors = counts.tensors, .objects = counts.items, .files = counts.files, .bytes = counts.file_bytes
    };
    struct_give(report, &made, sizeof(made));
    return RESHARD_OK;
}
