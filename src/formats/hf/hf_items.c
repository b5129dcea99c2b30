/* SPDX-License-Identifier: Apache-2.0 */
/* Items of a Hugging Face folder: what its headers and its index say, and the files beside the weights. */
#include "formats/hf/hf_read.h"

#include <stdlib.h>

#include "formats/shared/kept_items.h"
#include "formats/shared/safetensors_items.h"
#include "formats/shared/safetensors_names.h"

/* What belongs to one file's pieces, not to the model. */
static bool is_of_pieces(struct str key)
{
    return str_is(key, HF_SHARDING_INFO) || str_is(key, HF_DCP_VERSION);
}

static bool all_agree(const struct hf_read *read, struct str key, struct str value)
{
    for (uint32_t f = 1; f < read->set.files.count; f++) {
        const struct st_header *header = &read->set.files.items[f].header;
        uint32_t number = name_map_find(&header->metadata_keys, key);
        if (number == NAME_NONE || !str_equal(header->metadata_values[number], value))
            return false;
    }
    return true;
}

static uint32_t count_of_model(const struct st_header *header)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < header->metadata_keys.count; i++)
        count += !is_of_pieces(name_map_at(&header->metadata_keys, i));
    return count;
}

/* The pairs that every file has. A difference is odd but harmless: it is told. */
static reshard_status merge_metadata(const struct hf_read *read, struct st_metadata *out, reshard_error *err)
{
    const struct st_header *first = &read->set.files.items[0].header;
    reshard_status status = RESHARD_OK;
    out->is_present = true;
    for (uint32_t f = 0; f < read->set.files.count; f++)
        out->is_present = out->is_present && read->set.files.items[f].header.has_metadata;
    for (uint32_t i = 0; i < first->metadata_keys.count && out->is_present && !status; i++) {
        struct str key = name_map_at(&first->metadata_keys, i);
        if (!is_of_pieces(key) && all_agree(read, key, first->metadata_values[i]))
            status = st_metadata_put(out, key, first->metadata_values[i], err);
    }
    for (uint32_t f = 0; f < read->set.files.count && !status; f++) {
        if (count_of_model(&read->set.files.items[f].header) == out->count)
            continue;
        catalog_warn(read->source->catalog, false, "'%.*s' has metadata that other files do not have; only what all have is kept",
                     STR_ARG(read->set.files.items[f].name));
        break;
    }
    return status;
}

static reshard_status hf_items_add_metadata(const struct hf_read *read, reshard_error *err)
{
    struct st_metadata metadata = { 0 };
    if (!read->set.files.count)
        return RESHARD_OK;
    reshard_status status = merge_metadata(read, &metadata, err);
    bool is_item = metadata.count || (metadata.is_present && read->folder.kind != HF_DCP);
    if (!status && is_item)
        status = st_metadata_add_item(read->source->catalog, metadata.pairs, metadata.count, err);
    const struct str *framework = st_metadata_get(&metadata, STR("format"));
    if (!status && framework)
        status = catalog_add_fact(read->source->catalog, "framework", err, "%.*s", STR_ARG(*framework));
    st_metadata_release(&metadata);
    return status;
}

/* The index's metadata without total_size, which is counted anew by whoever writes one. */
static reshard_status add_index_metadata(struct hf_read *read, reshard_error *err)
{
    struct value *root = read->set.index.graph.root;
    size_t kept = 0;
    if (!root || root->kind != VALUE_DICT)
        return RESHARD_OK;
    for (size_t i = 0; i < root->list.count; i += 2) {
        struct str key;
        if (value_as_str(root->list.items[i], &key) && str_is(key, "total_size"))
            continue;
        root->list.items[kept] = root->list.items[i];
        root->list.items[kept + 1] = root->list.items[i + 1];
        kept += 2;
    }
    root->list.count = kept;
    if (!kept)
        return RESHARD_OK;
    struct value_graph *graph = catalog_adopt_graph(read->source->catalog, read->set.index.graph);
    read->set.index.graph = (struct value_graph){ 0 };
    if (!graph)
        return error_set_memory(err);
    struct catalog_item item = { .key = STR(ST_INDEX_METADATA_KEY), .kind = ITEM_VALUE, .value = graph->root, .graph = graph };
    return catalog_add_item(read->source->catalog, &item, NULL, 0, NULL, err);
}

static reshard_status read_kept_items(const struct hf_read *read, const struct store_entry *entry, reshard_error *err)
{
    struct source *source = read->source;
    struct buffer text = { 0 };
    char *name = str_copy(entry->name);
    uint32_t object;
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &text, err) : error_set_memory(err);
    if (!status)
        status = kept_items_read(source->catalog, buffer_str(&text), err);
    if (!status)
        status = catalog_add_object(source->catalog, entry->name, entry->bytes, &object, err);
    buffer_release(&text);
    free(name);
    return status;
}

static reshard_status hf_items_add_side_files(const struct hf_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < read->folder.entry_count && !status; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        struct str base = str_base_name(entry->name);
        if (!entry->is_directory && !entry->leads_out && str_is(base, KEPT_ITEMS_NAME))
            status = read_kept_items(read, entry, err);
        else if (!entry->is_directory && !entry->leads_out && st_name_is_side_file(base))
            status = catalog_add_file(catalog, base, entry->name, entry->bytes, err);
    }
    return status;
}

reshard_status hf_read_items(struct hf_read *read, reshard_error *err)
{
    reshard_status status = hf_items_add_metadata(read, err);
    if (!status)
        status = add_index_metadata(read, err);
    if (!status)
        status = hf_items_add_side_files(read, err);
    if (!status)
        status = hf_beside_add(read, err);
    return status;
}
