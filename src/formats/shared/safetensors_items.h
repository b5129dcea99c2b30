/* SPDX-License-Identifier: Apache-2.0 */
/* Non-tensor items on both sides of a safetensors file: its __metadata__, and what else a source holds. */
#ifndef FORMATS_SAFETENSORS_ITEMS_H
#define FORMATS_SAFETENSORS_ITEMS_H

#include "formats/driver.h"
#include "encoding/safetensors_header.h"
#include "formats/shared/kept_items.h"
#include "formats/shared/safetensors_pieces.h"

/* Item of a Hugging Face folder: the metadata of its index file, without what is counted from the tensors. */
#define ST_INDEX_METADATA_KEY "__index_metadata__"

/* Key of a header's metadata: items that were kept there, as the text of a reshard_items.json. A header is read whole by whoever opens the
 * file, so that they have a bound. */
#define ST_KEPT_ITEMS_KEY "reshard_items"
#define ST_KEPT_ITEMS_BYTES ((uint64_t)4 << 20)

/* Adds the pairs as an item __metadata__, a dict of str to str, and the items that are kept in them as what they were. */
reshard_status st_metadata_add_item(struct catalog *catalog, const struct st_pair *pairs, uint32_t count, reshard_error *err);

/* What a target can keep of wanted's items. */
struct st_items {
    struct st_metadata metadata; /* from __metadata__ */
    const struct value *index;   /* __index_metadata__, a dict; or NULL */
    uint32_t *files;             /* wanted items that are side files */
    uint32_t file_count;
    struct kept_items kept;      /* reshard_items.json, for the others */
};

/* Whether an item is the text of a config.json that is not one of the source's files. */
bool st_item_is_config(const struct catalog_item *item);

/* Sorts wanted's items; those that cannot be kept are noted as dropped, and side files too unless the target carries them. */
reshard_status st_items_take(const struct layout_request *request, struct target *target, bool carries_files, struct st_items *out,
                             reshard_error *err);
void st_items_release(struct st_items *items);

/* Where no index file is written: moves the index's metadata into the header's, which holds only strings; the rest is noted as dropped. */
reshard_status st_items_merge_index(struct st_items *items, struct target *target, reshard_error *err);

/* The format key of a target's metadata: option framework, else the reference's, else the source's, else "pt" where the source
 * knows no metadata of this kind. framework=none leaves it out. */
reshard_status st_metadata_set_framework(const struct layout_request *request, struct st_metadata *metadata, reshard_error *err);

#endif
