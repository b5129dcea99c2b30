/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr.h"

#include <stdio.h>

#include "formats/dcp/dcp_source.h"
#include "formats/zarr/zarr_read.h"
#include "formats/zarr/zarr_target.h"
#include "formats/zarr/zarr_write.h"

#define FOLDERS_LOOKED_AT 64

static bool has_file(struct store *store, const char *directory, const char *base)
{
    char name[4096];
    bool is_directory;
    uint64_t bytes;
    int size = snprintf(name, sizeof(name), "%s%s%s", directory, directory[0] ? "/" : "", base);
    return size > 0 && (size_t)size < sizeof(name) && store_exists(store, name, &is_directory, &bytes) && !is_directory;
}

/* Whether one of the first folders in it holds an array. */
static bool holds_arrays(struct store *store, const char *directory, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count, looked = 0;
    bool found = false;
    if (store_list(store, directory, &arena, &entries, &count, err))
        count = 0;
    for (size_t i = 0; i < count && !found && looked < FOLDERS_LOOKED_AT; i++) {
        char *name = entries[i].is_directory ? arena_copy(&arena, entries[i].name.data, entries[i].name.size) : NULL;
        if (entries[i].is_directory && !name)
            error_set_memory(err);
        looked += name != NULL;
        found = name && (has_file(store, name, ".zarray") || has_file(store, name, "zarr.json"));
    }
    arena_release(&arena);
    return found;
}

/* Megatron writes metadata.json last: with common.pt and arrays, but without it, this is a save that was not finished. */
static int zarr_probe(struct store *store, const char *name, reshard_error *err)
{
    bool is_directory = true;
    uint64_t bytes;
    char directory[4096] = "";
    if (name[0] && !store_exists(store, name, &is_directory, &bytes))
        return 0;
    if (!is_directory)
        return zarr_zip_probe(store, name, err) ? 95 : 0;
    if (name[0] && snprintf(directory, sizeof(directory), "%s/", name) >= (int)sizeof(directory))
        return 0;
    if (zarr_is_megatron(store, directory, err))
        return 100;
    if (has_file(store, name, ".zarray") || has_file(store, name, ".zgroup") || has_file(store, name, "zarr.json") ||
        has_file(store, name, ".zmetadata"))
        return 90;
    if (!holds_arrays(store, name, err))
        return 0;
    return has_file(store, name, "common.pt") ? 96 : 70;
}

static const char *const folder_entries[] = { ".zarray", ".zattrs",   ".zgroup",    ".zmetadata",    "zarr.json", "c/",
                                              "*.sync/", "common.pt", "shard_*.pt", "metadata.json", NULL };

const struct format_driver format_zarr = {
    .name = "zarr",
    .summary = "zarr arrays and groups of format 2 or 3, and Megatron Core's zarr checkpoints",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_IS_DIRECTORY | FORMAT_HOLDS_ITEMS | FORMAT_SHARDED,
    .options = zarr_options,
    .target_names = zarr_target_names,
    .folder_entries = folder_entries,
    .probe = zarr_probe,
    .read_catalog = zarr_read_catalog,
    .load_item = dcp_load_item,
    .read_item_storage = dcp_read_item_storage,
    .verify = dcp_verify_archives,
    .lay_out = zarr_lay_out,
    .publish = zarr_publish,
    .close_source = dcp_close_source,
    .close_target = zarr_close_target,
};
