/* SPDX-License-Identifier: Apache-2.0 */
/* The other view of a checkpoint whose optimizer state is stored by bucket or flattened: state of parameters. */
#include "api/checkpoint.h"

#include <stdlib.h>

static reshard_status open_related(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err)
{
    const struct source *source = checkpoint->source;
    const struct open_options options = { .format = source->driver->name, .limits = source->limits, .iteration = -1, .borrow_store = true,
                                          .lenient = source->lenient, .relate_optimizer = true };
    reshard_checkpoint *related = calloc(1, sizeof(*related));
    if (!related)
        return error_set_memory(err);
    related->path = copy_text(checkpoint->path, strlen(checkpoint->path));
    reshard_status status = related->path ? format_open(source->store, source->name, &options, &related->source, err) : error_set_memory(err);
    if (!status)
        status = checkpoint_list_tensors(related, err);
    if (status)
        reshard_close(related);
    else
        *out = related;
    return status;
}

reshard_status checkpoint_relate(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *out = checkpoint;
    if (!checkpoint_catalog(checkpoint)->has_stored_optimizer)
        return RESHARD_OK;
    if (!checkpoint->related)
        status = open_related(checkpoint, &checkpoint->related, err);
    if (status)
        error_prefix(err, "optimizer state cannot be related to parameters");
    else
        *out = checkpoint->related;
    return status;
}

reshard_status checkpoint_relate_if_possible(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err)
{
    reshard_error reason = { 0 };
    reshard_status status = checkpoint_relate(checkpoint, out, &reason);
    if (status == RESHARD_ERR_UNSUPPORTED || status == RESHARD_ERR_FORMAT) {
        catalog_warn(checkpoint->source->catalog, false, "%s; it is taken as it is stored", reason.message);
        return RESHARD_OK;
    }
    if (status && err)
        *err = reason;
    return status;
}
