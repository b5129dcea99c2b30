/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What trainers save as a folder with one DCP directory for the model, one for the optimizer.
 *
 *   pytorch_model_fsdp_0/   keys begin with "model."        accelerate, SHARDED_STATE_DICT, of the first model of a run
 *   optimizer_0/            keys begin with "optimizer."
 *
 *   model/  optimizer/                                      ByteCheckpoint
 *   extra_state/            a file of torch.save for each rank (dcp_extra.c)
 *
 * The folder opens as the model, whose keys then are the model's own. The optimizer opens by its own path.
 */
#include "formats/dcp/dcp_source.h"
#include "formats/shared/accelerate_names.h"

#include <stdio.h>

static const struct parts {
    const char *model, *optimizer;
    const char *prefix; /* of the model's keys, which are told without it */
    const char *extra;  /* NULL: there is none */
} kinds[] = {
    { ACCELERATE_MODEL "_0/", ACCELERATE_OPTIMIZER "_0/", "model.", NULL },
    { "model/", "optimizer/", "", "extra_state/" },
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

static bool has_metadata(struct store *store, const char *directory, const char *folder)
{
    char name[4096];
    int size = snprintf(name, sizeof(name), "%s%s" DCP_METADATA, directory, folder);
    return size > 0 && (size_t)size < sizeof(name) && store_is_file(store, name);
}

const char *dcp_model_folder(struct store *store, const char *directory)
{
    for (size_t i = 0; i < KINDS && !has_metadata(store, directory, ""); i++)
        if (has_metadata(store, directory, kinds[i].model))
            return kinds[i].model;
    return "";
}

/* The key without its prefix, and its path without its first part. */
static void strip_key(size_t size, struct str *key, uint32_t *path, uint16_t *path_count)
{
    *key = (struct str){ key->data + size, key->size - size };
    if (*path_count > 1) {
        (*path)++;
        (*path_count)--;
    } else {
        *path_count = 0;
    }
}

/* Where all keys begin with the prefix, and go on behind it. */
static void strip_model(struct catalog *catalog, struct str prefix)
{
    bool is_model = prefix.size > 0;
    for (uint32_t i = 0; is_model && i < catalog->tensor_count; i++)
        is_model = str_starts_with(catalog->tensors[i].key, prefix.data) && catalog->tensors[i].key.size > prefix.size;
    for (uint32_t i = 0; is_model && i < catalog->item_count; i++)
        is_model = str_starts_with(catalog->items[i].key, prefix.data) && catalog->items[i].key.size > prefix.size;
    for (uint32_t i = 0; is_model && i < catalog->tensor_count; i++)
        strip_key(prefix.size, &catalog->tensors[i].key, &catalog->tensors[i].path, &catalog->tensors[i].path_count);
    for (uint32_t i = 0; is_model && i < catalog->item_count; i++)
        strip_key(prefix.size, &catalog->items[i].key, &catalog->items[i].path, &catalog->items[i].path_count);
}

reshard_status dcp_read_parts(struct source *source, reshard_error *err)
{
    struct str directory = str_of(dcp_state(source)->directory), name = str_of(source->name);
    const struct parts *parts = NULL;
    for (size_t i = 0; i < KINDS && !parts; i++)
        if (str_ends_with(directory, kinds[i].model) && name.size + 1 < directory.size) /* it was not opened by the model's own path */
            parts = &kinds[i];
    if (!parts)
        return RESHARD_OK;
    strip_model(source->catalog, str_of(parts->prefix));
    char *above = arena_copy(&source->catalog->arena, directory.data, directory.size - strlen(parts->model));
    if (!above)
        return error_set_memory(err);
    if (has_metadata(source->store, above, parts->optimizer))
        catalog_warn(source->catalog, false, "the model alone is read; the optimizer's state opens by its own path, '%s%s'", above,
                     parts->optimizer);
    if (str_starts_with(str_of(parts->model), ACCELERATE_MODEL)) {
        struct str folder = str_without_slashes(str_of(above));
        above[folder.size] = '\0';
        return accelerate_warn_further(source, above, 0, err);
    }
    return parts->extra ? dcp_read_extra(source, above, parts->extra, err) : RESHARD_OK;
}
