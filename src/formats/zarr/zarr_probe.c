/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "formats/source_probe.h"
#include "formats/zarr/zarr_keys.h"

#define FOLDERS_LOOKED_AT 64

/* Whether a file has the name of an array's first chunk: 0, 0.0, 0.0.0 … */
static bool is_first_chunk(struct str name)
{
    for (size_t i = 0; i < name.size; i++)
        if (name.data[i] != (i % 2 ? '.' : '0'))
            return false;
    return name.size % 2 == 1;
}

/* Whether a folder has an array's chunks and nothing else: what said which array it is was lost. */
static bool has_chunks_alone(struct store *store, const char *directory, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count;
    bool is_begun = false, is_alone = true;
    if (store_list(store, directory, &arena, &entries, &count, err))
        count = 0;
    for (size_t i = 0; i < count && is_alone; i++) {
        const struct str name = str_base_name(entries[i].name);
        for (size_t k = 0; k < name.size; k++)
            is_alone = is_alone && (name.data[k] == '.' || isdigit((unsigned char)name.data[k]));
        is_alone = is_alone && !entries[i].is_directory;
        is_begun = is_begun || is_first_chunk(name);
    }
    arena_release(&arena);
    return is_begun && is_alone;
}

static bool is_array(struct store *store, const char *directory, reshard_error *err)
{
    return store_has_file(store, directory, ".zarray", err) || store_has_file(store, directory, "zarr.json", err);
}

/* Whether one of the first folders in it is so. */
static bool has_folder(struct store *store, const char *directory, bool (*is_so)(struct store *store, const char *name, reshard_error *err),
                       reshard_error *err)
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
        found = name && is_so(store, name, err);
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
    if (is_array(store, name, err) || store_has_file(store, name, ".zgroup", err) || store_has_file(store, name, ".zmetadata", err))
        return 90;
    return has_folder(store, name, is_array, err) ? ZARR_SCORE_OF_ARRAYS : 0;
}

bool zarr_probe_rest(struct store *store, const char *name, reshard_error *err)
{
    return store_is_directory(store, name) && has_folder(store, name, has_chunks_alone, err);
}
