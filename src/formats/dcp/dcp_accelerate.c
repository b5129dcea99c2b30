/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What accelerate saves with SHARDED_STATE_DICT: a folder with one DCP directory for the model, one for the optimizer.
 *
 *   pytorch_model_fsdp_0/   keys begin with "model."
 *   optimizer_0/            keys begin with "optimizer."
 *
 * The folder opens as the model, whose keys then are the model's own. The optimizer opens by its own path.
 */
#include "formats/dcp/dcp_source.h"

#include <stdio.h>

#define MODEL_FOLDER "pytorch_model_fsdp_0/"
#define OPTIMIZER_FOLDER "optimizer_0/"
#define MODEL_PREFIX "model."

static bool has_metadata(struct store *store, const char *directory, const char *folder)
{
    char name[4096];
    bool is_directory = true;
    uint64_t bytes;
    int size = snprintf(name, sizeof(name), "%s%s" DCP_METADATA, directory, folder);
    return size > 0 && (size_t)size < sizeof(name) && store_exists(store, name, &is_directory, &bytes) && !is_directory;
}

const char *dcp_model_folder(struct store *store, const char *directory)
{
    return !has_metadata(store, directory, "") && has_metadata(store, directory, MODEL_FOLDER) ? MODEL_FOLDER : "";
}

/* The key without its prefix, and its path without its first part. */
static void strip_key(struct str *key, uint32_t *path, uint16_t *path_count)
{
    size_t size = sizeof(MODEL_PREFIX) - 1;
    *key = (struct str){ key->data + size, key->size - size };
    if (*path_count > 1) {
        (*path)++;
        (*path_count)--;
    } else {
        *path_count = 0;
    }
}

static bool begins_with_model(struct str key)
{
    return str_starts_with(key, MODEL_PREFIX) && key.size > sizeof(MODEL_PREFIX) - 1;
}

void dcp_strip_model(struct source *source)
{
    struct catalog *catalog = source->catalog;
    const char *directory = dcp_state(source)->directory;
    size_t size = strlen(directory), folder = sizeof(MODEL_FOLDER) - 1, name = strlen(source->name);
    if (size < folder || strcmp(directory + size - folder, MODEL_FOLDER) != 0 || name + 1 >= size)
        return; /* opened by its own path */
    bool is_model = true;
    for (uint32_t i = 0; i < catalog->tensor_count; i++)
        is_model = is_model && begins_with_model(catalog->tensors[i].key);
    for (uint32_t i = 0; i < catalog->item_count; i++)
        is_model = is_model && begins_with_model(catalog->items[i].key);
    for (uint32_t i = 0; is_model && i < catalog->tensor_count; i++)
        strip_key(&catalog->tensors[i].key, &catalog->tensors[i].path, &catalog->tensors[i].path_count);
    for (uint32_t i = 0; is_model && i < catalog->item_count; i++)
        strip_key(&catalog->items[i].key, &catalog->items[i].path, &catalog->items[i].path_count);
    char *above = arena_copy(&catalog->arena, directory, size - folder);
    if (above && has_metadata(source->store, above, OPTIMIZER_FOLDER))
        catalog_warn(catalog, false, "the model alone is read; the optimizer's state opens by its own path, '%s" OPTIMIZER_FOLDER "'",
                     above);
}
