/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many tensors a target has. Those that share a storage are as many as there are names, whether the target stores each of them, the
 * first one, or the storage as a hidden tensor, which then is none; other hidden tensors are of items.
 */
#include "convert/conversion.h"

#include "base/array.h"

#include <stdlib.h>

/* Listed tensors: what nothing is stored of is there all the same, unless it was said to be left out. */
static reshard_status conversion_count_listed(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    struct name_map left_out = { 0 };
    reshard_status status = note_list_keys(&conversion->target.dropped, false, &left_out, err);
    if (!status)
        status = note_list_keys(&conversion->target.changed, true, &left_out, err);
    for (uint32_t i = 0; i < target->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &target->tensors[i];
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        conversion->is_counted[i] = conversion_stores(conversion, i) ||
                                    (!(tensor->flags & TENSOR_NO_DATA) && name_map_find(&left_out, tensor->key) == NAME_NONE);
    }
    name_map_release(&left_out);
    return status;
}

/* Hidden ones that are stored, and are not the storage of what was counted. */
static reshard_status conversion_count_hidden(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    size_t groups = 1;
    for (uint32_t i = 0; i < target->tensor_count; i++)
        if (target->tensors[i].storage_group != CATALOG_NONE && target->tensors[i].storage_group >= groups)
            groups = (size_t)target->tensors[i].storage_group + 1;
    bool *is_seen = array_zeroed(groups, sizeof(*is_seen));
    if (!is_seen)
        return error_set_memory(err);
    for (uint32_t i = 0; i < target->tensor_count; i++)
        if (conversion->is_counted[i] && target->tensors[i].storage_group != CATALOG_NONE)
            is_seen[target->tensors[i].storage_group] = true;
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        uint32_t group = target->tensors[i].storage_group;
        if (target->tensors[i].flags & TENSOR_HIDDEN)
            conversion->is_counted[i] = conversion_stores(conversion, i) && (group == CATALOG_NONE || !is_seen[group]);
    }
    free(is_seen);
    return RESHARD_OK;
}

reshard_status conversion_count(struct conversion *conversion, reshard_error *err)
{
    const uint32_t count = conversion->target.catalog->tensor_count;
    conversion->is_counted = array_zeroed(count, sizeof(*conversion->is_counted));
    reshard_status status = conversion->is_counted ? conversion_count_listed(conversion, err) : error_set_memory(err);
    if (!status)
        status = conversion_count_hidden(conversion, err);
    for (uint32_t i = 0; i < count && !status; i++)
        conversion->tensor_count += conversion->is_counted[i];
    return status;
}
