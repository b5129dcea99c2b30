/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch_alone.h"

#include "encoding/torch_shard.h"

#include <inttypes.h>
#include <stdio.h>

static bool torch_alone_is_whole(const struct torch_archive *archive, const struct torch_shard *shard)
{
    if (shard->tensor == UINT32_MAX || shard->is_partial)
        return false;
    const struct torch_tensor *local = &archive->tensors[shard->tensor];
    return memcmp(local->shape, shard->global_shape, (size_t)shard->rank * sizeof(*local->shape)) == 0;
}

reshard_status torch_open_alone(struct source *source, const char *name, uint32_t *file, reshard_error *err)
{
    reshard_status status = torch_source_open_file(source, name, -1, file, err);
    if (status)
        return status;
    struct torch_archive *archive = &torch_source_of(source)->files[*file].archive;
    for (uint32_t i = 0; i < archive->shard_count; i++) {
        const struct torch_shard *shard = &archive->shards[i];
        if (!torch_alone_is_whole(archive, shard))
            continue;
        ((struct value *)shard->node)->tensor = shard->tensor + 1;
        archive->tensors[shard->tensor].flags |= torch_shard_flags(shard->node);
    }
    return RESHARD_OK;
}

void torch_warn_of_pieces(struct source *source)
{
    const struct catalog *catalog = source->catalog;
    struct str first = { 0 };
    uint32_t count = 0;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct value *value = catalog->items[i].value;
        if (!value || !torch_is_shard(value))
            continue;
        first = count++ ? first : catalog->items[i].key;
    }
    char more[40] = "";
    if (count > 1)
        snprintf(more, sizeof(more), " and %" PRIu32 " other items", count - 1);
    if (count)
        catalog_warn(source->catalog, false,
                     "'%.*s'%s: one rank's piece of a tensor; with the files of the other ranks beside it, called NAME_rank_0.pt and so "
                     "on, reshard_open_options.format fsdp-ranks joins them", STR_ARG(first), more);
}
