/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch's consolidation (all versions up to 2.13) writes 0-d tensors as zero bytes. The shards that it consolidated stay in the folder
 * `sharded`, with the right values: where they differ from the consolidated ones, they count.
 */
#include "formats/hf/hf_read.h"

#define SHARDED "sharded"

static reshard_status load_sharded(struct hf_read *read, reshard_error *err)
{
    struct hf_folder folder = { 0 };
    struct store *store = read->source->store;
    read->looked_for_sharded = true;
    char *path = arena_printf(&read->arena, "%s" SHARDED, read->folder.directory.data);
    if (!path)
        return error_set_memory(err);
    if (!store_is_directory(store, path))
        return RESHARD_OK;
    reshard_status status = hf_folder_scan(store, path, &read->arena, &folder, err);
    if (status || folder.kind != HF_DCP)
        return status;
    status = st_files_read(read->source, folder.files, folder.file_count, NULL, &read->sharded, err);
    return status ? status : st_files_add_objects(read->source, &read->sharded, err);
}

reshard_status hf_scalar_find(struct hf_read *read, const struct st_file **file, const struct st_entry **entry, struct str key,
                              reshard_error *err)
{
    reshard_status status = read->looked_for_sharded ? RESHARD_OK : load_sharded(read, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < read->sharded.count; i++) {
        const struct st_file *shard = &read->sharded.items[i];
        uint32_t found = name_map_find(&shard->header.names, key);
        const struct st_entry *piece = found == NAME_NONE ? NULL : &shard->header.entries[found];
        if (!piece || piece->rank != 0 || piece->dtype != (*entry)->dtype || !st_entry_is_there(shard, piece))
            continue;
        bool equal;
        status = st_ranges_equal(read->source->store, (*file)->name, (*file)->header.data_start + (*entry)->begin, shard->name,
                                 shard->header.data_start + piece->begin, piece->end - piece->begin, &equal, err);
        if (status || equal)
            return status;
        catalog_warn(read->source->catalog, false, "tensor '%.*s': its value in '%.*s' is wrong, that of '%.*s' is taken", STR_ARG(key),
                     STR_ARG((*file)->name), STR_ARG(shard->name));
        *file = shard;
        *entry = piece;
        return RESHARD_OK;
    }
    return RESHARD_OK;
}
