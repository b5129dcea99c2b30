/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/safetensors/safetensors.h"

#include "base/cursor.h"
#include "formats/shared/safetensors_items.h"
#include "formats/shared/safetensors_target.h"

#include <inttypes.h>

#define PROBE_BYTES 9

/* ---- reading ---- */

static bool starts_like_header(const struct store_object *object, reshard_error *err)
{
    uint8_t first[PROBE_BYTES];
    uint64_t bytes = store_object_size(object);
    if (bytes < sizeof(first) || store_read_at(object, 0, first, sizeof(first), err))
        return false;
    uint64_t length = load_le(first, 8);
    return length >= 2 && length <= bytes - 8 && first[8] && strchr("{ \t\r\n", first[8]);
}

/* The name alone is nearly enough, so that a damaged or disguised file is refused for what it claims to be. */
static int st_probe(struct store *store, const char *name, reshard_error *err)
{
    struct store_object *object = NULL;
    if (!store_is_file(store, name))
        return 0;
    if (str_ends_with(str_of(name), ".safetensors"))
        return 99;
    if (store_open_object(store, name, &object, err))
        return 0;
    int score = starts_like_header(object, err) ? 90 : 0;
    store_object_close(object);
    return score;
}

static reshard_status safetensors_driver_add_entries(struct catalog *catalog, const struct st_header *header, uint32_t object,
                                                     reshard_error *err)
{
    for (uint32_t i = 0; i < header->count; i++) {
        const struct st_entry *entry = &header->entries[i];
        uint32_t tensor;
        reshard_status status = catalog_add_tensor(catalog, name_map_at(&header->names, i), entry->dtype, entry->rank,
                                                   st_entry_shape(header, entry), &tensor, err);
        if (status)
            return status;
        status =
            catalog_add_chunk(catalog, tensor, NULL, NULL, object, header->data_start + entry->begin, entry->end - entry->begin, NULL, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

static reshard_status safetensors_driver_add_metadata(struct catalog *catalog, const struct st_header *header, reshard_error *err)
{
    struct st_metadata metadata = { 0 };
    reshard_status status = RESHARD_OK;
    struct str framework;
    if (!header->has_metadata)
        return RESHARD_OK;
    for (uint32_t i = 0; i < header->metadata_keys.count && !status; i++)
        status = st_metadata_put(&metadata, name_map_at(&header->metadata_keys, i), header->metadata_values[i], err);
    if (!status)
        status = st_metadata_add_item(catalog, metadata.pairs, metadata.count, err);
    if (!status && st_metadata_find(header, "format", &framework))
        status = catalog_add_fact(catalog, "framework", err, "%.*s", STR_ARG(framework));
    st_metadata_release(&metadata);
    return status;
}

static reshard_status fill_catalog(struct source *source, const struct store_object *object, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct reader reader = store_object_reader(object);
    struct st_header header = { 0 };
    uint32_t index;
    reshard_status status = st_header_read(&reader, &source->limits, source->is_salvage ? ST_CUT_OFF : source->lenient, &header, err);
    if (status)
        return status;
    status = catalog_add_object(catalog, str_of(source->name), reader.size, &index, err);
    if (status)
        goto out;
    if (header.starts_with_space)
        catalog_warn(catalog, false, "'%s': white space before the header's object, which the format does not allow", source->name);
    status = catalog_add_fact(catalog, "header", err, "%" PRIu64 " bytes", header.data_start - 8);
    if (status)
        goto out;
    status = safetensors_driver_add_entries(catalog, &header, index, err);
    if (status)
        goto out;
    status = safetensors_driver_add_metadata(catalog, &header, err);

out:
    st_header_release(&header);
    return status;
}

static reshard_status st_read_catalog(struct source *source, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, source->name, &object, err);
    if (status)
        return status;
    status = fill_catalog(source, object, err);
    if (status)
        error_object(err, "%s", source->name);
    store_object_close(object);
    return status;
}

/* ---- writing ---- */

static reshard_status check_request(const struct layout_request *request, const struct st_pieces *pieces, reshard_error *err)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < pieces->count; i++)
        total += pieces->items[i].bytes;
    if (request->max_shard_bytes > 0 && total > (uint64_t)request->max_shard_bytes) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "one file of %" PRIu64 " bytes, the shard limit is %" PRId64, total,
                  request->max_shard_bytes);
        error_hint(err, "reshard_convert_options.to hf writes several files");
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

static reshard_status put_ties(struct st_metadata *metadata, const struct st_metadata *ties, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < ties->count && !status; i++)
        status = st_metadata_put(metadata, ties->pairs[i].key, ties->pairs[i].value, err);
    return status;
}

static reshard_status st_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const char *tied = layout_option(request, "tied");
    struct st_pieces pieces = { 0 };
    struct st_metadata ties = { 0 };
    struct st_items items = { .kept.bytes_max = ST_KEPT_ITEMS_BYTES };
    reshard_status status;
    target->driver_state = st_target_new();
    if (!target->driver_state)
        return error_set_memory(err);
    status = target_add_tensors(request, target, err);
    if (status)
        goto out;
    status = st_pieces_collect(request, target, tied && strcmp(tied, "drop") == 0, &pieces, &ties, err);
    if (status)
        goto out;
    status = check_request(request, &pieces, err);
    if (status)
        goto out;
    status = st_items_take(request, target, false, &items, err);
    if (status)
        goto out;
    status = st_metadata_set_framework(request, &items.metadata, err);
    if (status)
        goto out;
    status = st_items_merge_index(&items, target, err);
    if (status)
        goto out;
    status = put_ties(&items.metadata, &ties, err);
    if (!status && items.kept.text.size)
        status = st_metadata_put(&items.metadata, STR(ST_KEPT_ITEMS_KEY), buffer_str(&items.kept.text), err);
    if (status)
        goto out;
    /* A single-file target's one object has no name of its own. */
    status = st_target_add_file(target, STR(""), pieces.items, pieces.count, &items.metadata, &request->limits, err);

out:
    st_items_release(&items);
    st_metadata_release(&ties);
    st_pieces_release(&pieces);
    return status;
}

static const struct format_option st_options[] = {
    { "tied", "copy|drop", "copy", "tensors that share their bytes: write each, or one and record the others in __metadata__" },
    { "framework", "NAME|none", "", "the format key of __metadata__; without it as the reference or the source has it, else pt" },
    { 0 },
};

static const char *const st_endings[] = { ".safetensors", NULL };

const struct format_driver format_safetensors = {
    .name = "safetensors",
    .name_space = "hf",
    .summary = "one safetensors file",
    .abilities = FORMAT_READS | FORMAT_WRITES | FORMAT_LIMITS_FILES | FORMAT_HOLDS_ITEMS | FORMAT_NAMES_FRAMEWORK,
    .options = st_options,
    .file_endings = st_endings,
    .probe = st_probe,
    .read_catalog = st_read_catalog,
    .lay_out = st_lay_out,
    .publish_object = st_target_publish_object,
    .commit = st_target_commit,
    .close_target = st_target_close,
};
