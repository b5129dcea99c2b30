/* SPDX-License-Identifier: Apache-2.0 */
/* Other views of a checkpoint: whose optimizer state is stored by bucket or flattened, state of parameters; F4 in pairs. */
#include "convert/checkpoint.h"
#include "formats/source_pairs.h"

#include <string.h>

static reshard_status make_related(struct checkpoint *checkpoint, reshard_error *err)
{
    struct source *view;
    reshard_status status = source_by_parameter(checkpoint->source, &view, err);
    return status ? status : checkpoint_of(view, checkpoint->path, &checkpoint->related, err);
}

reshard_status checkpoint_relate(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *out = checkpoint;
    if (!checkpoint->source->has_other_view)
        return RESHARD_OK;
    if (!checkpoint->related)
        status = make_related(checkpoint, err);
    if (status)
        error_prefix(err, "optimizer state cannot be related to parameters");
    else
        *out = checkpoint->related;
    return status;
}

reshard_status checkpoint_pair(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err)
{
    struct source *view;
    reshard_status status = RESHARD_OK;
    *out = checkpoint;
    if (!source_has_pairs(checkpoint->source))
        return RESHARD_OK;
    if (!checkpoint->paired)
        status = source_in_pairs(checkpoint->source, &view, err);
    if (!status && !checkpoint->paired)
        status = checkpoint_of(view, checkpoint->path, &checkpoint->paired, err);
    if (!status)
        *out = checkpoint->paired;
    return status;
}

reshard_status checkpoint_relate_if_possible(struct checkpoint *checkpoint, struct checkpoint **out, reshard_error *err)
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
static bool is_held(const struct checkpoint *checkpoint, const struct checkpoint *other)
{
    const struct catalog *catalog = checkpoint->source->catalog, *found_in = other->source->catalog;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[checkpoint->listed[i]];
        uint32_t found = catalog_find(found_in, tensor->key);
        if (found == CATALOG_NONE || !catalog_same_shape(found_in, &found_in->tensors[found], catalog, tensor))
            return false;
    }
    return true;
}

reshard_status checkpoint_relate_both(struct checkpoint **a, struct checkpoint **b, reshard_error *err)
{
    struct checkpoint *stored_a = *a, *stored_b = *b;
    bool one_stores = stored_a->source->has_other_view != stored_b->source->has_other_view;
    reshard_status status = checkpoint_relate_if_possible(stored_a, a, err);
    if (!status)
        status = checkpoint_relate_if_possible(stored_b, b, err);
    if (status || !one_stores)
        return status;
    /* A conversion into a format that takes any tensors has kept them as they were. */
    bool a_stores = stored_a->source->has_other_view;
    if (!is_held(a_stores ? *a : *b, a_stores ? *b : *a) && is_held(a_stores ? stored_a : stored_b, a_stores ? stored_b : stored_a)) {
        *a = stored_a;
        *b = stored_b;
    }
    return RESHARD_OK;
}
