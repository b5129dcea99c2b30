/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"

#include <stdlib.h>

reshard_status checkpoint_handle(struct checkpoint *opened, reshard_checkpoint **out, reshard_error *err)
{
    const struct catalog *catalog = opened->source->catalog;
    reshard_checkpoint *handle = calloc(1, sizeof(*handle));
    uint32_t *public_index = malloc(((size_t)catalog->tensor_count + 1) * sizeof(*public_index));
    if (!handle || !public_index) {
        free(handle);
        free(public_index);
        checkpoint_close(opened);
        return error_set_memory(err);
    }
    memset(public_index, 0xFF, ((size_t)catalog->tensor_count + 1) * sizeof(*public_index)); /* CATALOG_NONE */
    for (uint32_t i = 0; i < opened->listed_count; i++)
        public_index[opened->listed[i]] = i;
    handle->opened = opened;
    handle->public_index = public_index;
    *out = handle;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_open(const char *path, const reshard_open_options *options, reshard_checkpoint **out, reshard_error *err)
{
    struct checkpoint_options open;
    struct checkpoint *opened = NULL;
    reshard_status status = open_options_read(options, &open, err);
    if (!status)
        status = checkpoint_open(path, &open, &opened, err);
    return status ? status : checkpoint_handle(opened, out, err);
}

API_EXPORT void reshard_close(reshard_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    checkpoint_close(checkpoint->opened);
    buffer_release(&checkpoint->class_name);
    free(checkpoint->public_index);
    free(checkpoint->sorted);
    free(checkpoint->parts);
    free(checkpoint);
}
