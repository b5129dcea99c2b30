/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"

#include <stdlib.h>

reshard_status dcp_source_new(struct source *source, const char *directory, reshard_error *err)
{
    struct dcp_source *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    source->driver_state = state;
    state->safetensors.object = CATALOG_NONE;
    state->directory = strdup(directory);
    return state->directory ? RESHARD_OK : error_set_memory(err);
}

void dcp_close_source(struct source *source)
{
    struct dcp_source *state = dcp_state(source);
    if (!state)
        return;
    while (state->archives) {
        struct dcp_archive *archive = state->archives;
        state->archives = archive->next;
        torch_save_release(&archive->archive);
        buffer_release(&archive->decoded);
        free(archive);
    }
    if (state->flavour_free)
        state->flavour_free(state->flavour_state);
    dcp_safetensors_release(&state->safetensors);
    free(state->item_archive);
    free(state->directory);
    free(state);
    source->driver_state = NULL;
}

reshard_status dcp_name_join(const char *directory, struct str name, char **out, reshard_error *err)
{
    reshard_status status = store_name_check(name, err);
    if (status)
        return status;
    size_t directory_size = strlen(directory);
    char *joined = malloc(directory_size + name.size + 1);
    if (!joined)
        return error_set_memory(err);
    memcpy(joined, directory, directory_size);
    memcpy(joined + directory_size, name.data, name.size);
    joined[directory_size + name.size] = '\0';
    *out = joined;
    return RESHARD_OK;
}

reshard_status dcp_open_object(const struct source *source, uint32_t object, struct store_object **out, reshard_error *err)
{
    char *name = NULL;
    reshard_status status = dcp_name_join("", source->catalog->objects[object].name, &name, err);
    if (!status)
        status = store_open_object(source->store, name, out, err);
    free(name);
    return status;
}

/* ---- where the checkpoint is ---- */

reshard_status dcp_directory_find(struct store *store, const char *name, char **out, reshard_error *err)
{
    struct str directory = str_of(name);
    if (store_is_file(store, name)) {
        if (!str_ends_with(directory, DCP_METADATA))
            return error_set(err, RESHARD_ERR_FORMAT, "'%s' is no directory and no .metadata file", name);
        directory = str_folder(directory);
    }
    char *found = malloc(directory.size + 2 + DCP_MODEL_FOLDER_MAX);
    if (!found)
        return error_set_memory(err);
    if (directory.size)
        memcpy(found, directory.data, directory.size);
    if (directory.size && directory.data[directory.size - 1] != '/')
        found[directory.size++] = '/';
    found[directory.size] = '\0';
    strcat(found, dcp_model_folder(store, found));
    *out = found;
    return RESHARD_OK;
}
