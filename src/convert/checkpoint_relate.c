/* SPDX-License-Identifier: Apache-2.0 */
/* The other view of a checkpoint whose optimizer state is stored by bucket or flattened: state of parameters. */
#include "api/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static reshard_status open_related(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err)
{
    const struct source *source = checkpoint->source;
    const struct open_options options = { .format = source->driver->name, .limits = source->limits, .iteration = -1, .borrow_store = true,
                                          .lenient = source->lenient, .relate_optimizer = true };
    reshard_checkpoint *related = calloc(1, sizeof(*related));
    if (!related)
        return error_set_memory(err);
    related->path = copy_text(checkpoint->path, strlen(checkpoint->path));
    reshard_status status =
        related->path ? format_open(source->store, source->name, &options, &related->source, err) : error_set_memory(err);
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

static reshard_status relate_if_possible(reshard_checkpoint *checkpoint, reshard_checkpoint **out, reshard_error *err)
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

/* Whether the other has every tensor of this one, in its shape. */
static bool is_held(const reshard_checkpoint *checkpoint, const reshard_checkpoint *other)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint), *found_in = checkpoint_catalog(other);
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[checkpoint->listed[i]];
        uint32_t found = catalog_find(found_in, tensor->key);
        if (found == CATALOG_NONE || found_in->tensors[found].rank != tensor->rank ||
            memcmp(catalog_vector_at(found_in, found_in->tensors[found].shape), catalog_vector_at(catalog, tensor->shape),
                   (size_t)tensor->rank * sizeof(int64_t)) != 0)
            return false;
    }
    return true;
}

reshard_status checkpoint_relate_both(reshard_checkpoint **a, reshard_checkpoint **b, reshard_error *err)
{
    reshard_checkpoint *stored_a = *a, *stored_b = *b;
    bool one_stores = checkpoint_catalog(stored_a)->has_stored_optimizer != checkpoint_catalog(stored_b)->has_stored_optimizer;
    reshard_status status = relate_if_possible(stored_a, a, err);
    if (!status)
        status = relate_if_possible(stored_b, b, err);
    if (status || !one_stores)
        return status;
    /* A conversion into a format that takes any tensors has kept them as they were. */
    bool a_stores = checkpoint_catalog(stored_a)->has_stored_optimizer;
    if (!is_held(a_stores ? *a : *b, a_stores ? *b : *a) && is_held(a_stores ? stored_a : stored_b, a_stores ? stored_b : stored_a)) {
        *a = stored_a;
        *b = stored_b;
    }
    return RESHARD_OK;
}
