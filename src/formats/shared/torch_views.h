/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a file of torch.save are the very same bytes, such as weights that are tied: one storage seen in the same way. */
#ifndef FORMATS_SHARED_TORCH_VIEWS_H
#define FORMATS_SHARED_TORCH_VIEWS_H

#include "base/buffer.h"
#include "base/name_map.h"
#include "encoding/torch_save.h"

/* { 0 } is valid and empty. */
struct torch_views {
    struct name_map keys;
    uint32_t *tensors; /* by number of a key: the first tensor */
    uint32_t capacity;
    struct buffer key;
};

/* *out: the tensor, of the caller's numbers, that was given first for these bytes; UINT32_MAX: none, and `index` is it from now on. */
reshard_status torch_views_find(struct torch_views *views, const struct torch_tensor *tensor, uint32_t index, uint32_t *out,
                                reshard_error *err);
void torch_views_release(struct torch_views *views);

#endif
