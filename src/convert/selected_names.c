/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/selected_names.h"

#include "base/array.h"

#include <stdlib.h>

static reshard_status selected_names_take(struct selected_names *names, uint32_t tensor, const struct selection_options *options,
                                          reshard_error *err)
{
    bool is_lost = options->lost_tensors && options->lost_tensors[tensor], is_wanted = false;
    if (is_lost || names->catalog->tensors[tensor].flags & TENSOR_HIDDEN)
        return RESHARD_OK;
    reshard_status status = naming_apply(&names->naming, NAMING_TENSOR, &names->keys[tensor], err);
    if (!status)
        status = key_filter_wants(&names->filter, names->keys[tensor], &is_wanted, err);
    names->is_wanted[tensor] = is_wanted;
    if (!status && names->naming.is_active)
        names->tensors[names->naming.made.count - 1] = tensor;
    return status;
}

reshard_status selected_names_make(const struct catalog *catalog, const struct selection_options *options, struct selected_names *out,
                                   reshard_error *err)
{
    size_t count = (size_t)catalog->tensor_count + 1;
    *out = (struct selected_names){ .catalog = catalog };
    reshard_status status = naming_begin(&out->naming, &options->naming, err);
    if (!status)
        status = key_filter_begin(&out->filter, options->include, options->exclude, err);
    if (status)
        return status;
    out->keys = array_new(count, sizeof(*out->keys));
    out->is_wanted = array_zeroed(count, sizeof(*out->is_wanted));
    out->tensors = array_new(count, sizeof(*out->tensors));
    if (!out->keys || !out->is_wanted || !out->tensors)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        out->keys[i] = catalog->tensors[i].key;
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++)
        status = selected_names_take(out, i, options, err);
    return status;
}

void selected_names_release(struct selected_names *names)
{
    naming_end(&names->naming);
    key_filter_release(&names->filter);
    free(names->keys);
    free(names->is_wanted);
    free(names->tensors);
    *names = (struct selected_names){ 0 };
}

uint32_t selected_names_find(const struct selected_names *names, struct str key)
{
    if (!names->naming.is_active)
        return catalog_find(names->catalog, key);
    uint32_t number = name_map_find(&names->naming.made, key);
    return number == NAME_NONE ? CATALOG_NONE : names->tensors[number];
}
