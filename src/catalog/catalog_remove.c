/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog.h"

#include "base/array.h"

#include <stdlib.h>

reshard_status catalog_remove_tensors(struct catalog *catalog, const uint8_t *is_removed, reshard_error *err)
{
    uint32_t tensors = 0, chunks = 0;
    uint32_t *new_index = array_zeroed(catalog->tensor_count, sizeof(*new_index));
    if (!new_index)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        new_index[i] = is_removed[i] ? CATALOG_NONE : tensors;
        if (!is_removed[i])
            catalog->tensors[tensors++] = catalog->tensors[i];
    }
    catalog->tensor_count = tensors;
    for (uint32_t i = 0; i < tensors; i++) {
        if (catalog->tensors[i].tied_to != CATALOG_NONE)
            catalog->tensors[i].tied_to = new_index[catalog->tensors[i].tied_to];
    }
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        uint32_t tensor = new_index[catalog->chunks[i].tensor];
        if (tensor == CATALOG_NONE)
            continue;
        catalog->chunks[chunks] = catalog->chunks[i];
        catalog->chunks[chunks++].tensor = tensor;
    }
    catalog->chunk_count = chunks;
    free(new_index);
    return RESHARD_OK;
}
