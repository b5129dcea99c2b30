/* SPDX-License-Identifier: Apache-2.0 */
/* The handle behind reshard_checkpoint. Public tensor indices count the listed tensors. */
#ifndef API_HANDLE_H
#define API_HANDLE_H

#include "reshard/reshard.h"

#include "convert/checkpoint.h"

#define API_EXPORT __attribute__((visibility("default")))

struct reshard_checkpoint {
    struct checkpoint *opened;
    uint32_t *public_index;   /* by catalog index; CATALOG_NONE for hidden tensors */
    uint32_t *sorted;         /* public indices by key; made on first use */
    reshard_path_part *parts; /* scratch of reshard_path_of */
    size_t part_capacity;
    size_t json_item, members_item; /* 1 + the last one shown: going back begins another run, with a full budget of work */
    struct buffer class_name;       /* scratch of reshard_item_at */
};

static inline struct source *checkpoint_source(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->source;
}

static inline const struct catalog *checkpoint_catalog(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->source->catalog;
}

/* Catalog index of the listed tensor with a public index. */
static inline uint32_t checkpoint_listed(const reshard_checkpoint *checkpoint, size_t index)
{
    return checkpoint->opened->listed[index];
}

/* Public indices in the order of keys: bytewise; equal keys by index, last first. Owned by the handle; NULL without memory. */
const uint32_t *checkpoint_sorted(reshard_checkpoint *checkpoint);

/* The handle of an open checkpoint, which it takes over, also on failure. */
reshard_status checkpoint_handle(struct checkpoint *opened, reshard_checkpoint **out, reshard_error *err);

#endif
