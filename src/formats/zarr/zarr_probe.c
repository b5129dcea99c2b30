/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr.h"

#include <stdio.h>

#include "formats/zarr/zarr_keys.h"

#define FOLDERS_LOOKED_AT 64

static bool zarr_probe_has_file(struct store *store, const char *directory, const char *base)
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
        found = name && (zarr_probe_has_file(store, name, ".zarray") || zarr_probe_has_file(store, name, "zarr.json"));
    }
    arena_release(&arena);
    return found;
}

int zarr_probe(struct store *store, const char *name, reshard_error *err)
{
    bool is_directory = true;
    uint64_t bytes;
    if (name[0] && !store_exists(store, name, &is_directory, &bytes))
        return 0;
    if (!is_directory)
        return zarr_zip_probe(store, name, err) ? 95 : 0;
    if (zarr_probe_has_file(store, name, ".zarray") || zarr_probe_has_file(store, name, ".zgroup") ||
        zarr_probe_has_file(store, name, "zarr.json") || zarr_probe_has_file(store, name, ".zmetadata"))
        return 90;
    return holds_arrays(store, name, err) ? ZARR_SCORE_OF_ARRAYS : 0;
}
