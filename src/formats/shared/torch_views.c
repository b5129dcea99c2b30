/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_views.h"

#include "base/array.h"

#include <stdlib.h>

/* Storage, type, flags, offset, shape and strides: equal keys are equal tensors. */
static bool view_key(const struct torch_tensor *tensor, struct buffer *out)
{
    buffer_clear(out);
    buffer_append_u32le(out, tensor->storage);
    buffer_append_u32le(out, (uint32_t)tensor->dtype);
    buffer_append_u32le(out, tensor->flags & (TORCH_TENSOR_CONJ | TORCH_TENSOR_NEG));
    buffer_append_u64le(out, tensor->offset_bytes);
    buffer_append(out, tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape));
    buffer_append(out, tensor->strides, (size_t)tensor->rank * sizeof(*tensor->strides));
    return !out->failed;
}

reshard_status torch_views_find(struct torch_views *views, const struct torch_tensor *tensor, uint32_t index, uint32_t *out,
                                reshard_error *err)
{
    bool was_new;
    if (!view_key(tensor, &views->key))
        return error_set_memory(err);
    uint32_t number = name_map_intern(&views->keys, buffer_str(&views->key), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(views->tensors, number, views->capacity))
        return error_set_memory(err);
    if (was_new)
        views->tensors[number] = index;
    *out = was_new ? UINT32_MAX : views->tensors[number];
    return RESHARD_OK;
}

void torch_views_release(struct torch_views *views)
{
    name_map_release(&views->keys);
    free(views->tensors);
    buffer_release(&views->key);
}
