/* SPDX-License-Identifier: Apache-2.0 */
/* How nodes are spelled that a written file cannot say as they were read: storages, and names of protocol 4. */
#ifndef FORMATS_SHARED_TORCH_SPELL_H
#define FORMATS_SHARED_TORCH_SPELL_H

#include "catalog/catalog.h"
#include "encoding/torch_save.h"

/* UNSUPPORTED if torch has no such type. */
reshard_status torch_check_type(const struct catalog_tensor *tensor, reshard_error *err);

/* Which record of the file to be written holds the storage of a persistent id, and its bytes. */
struct torch_storage_finder {
    reshard_status (*find)(void *context, const struct value *persid, uint32_t *record, uint64_t *bytes);
    void *context;
};

/* Appends the node if it is of this kind; false: it is none, or is written as it is. A failing find is kept in *status and out->failed. */
bool torch_spell(const struct value *value, const struct torch_storage_finder *finder, reshard_status *status, struct buffer *out);

#endif
