/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of a store, one after the other: groups, arrays, attributes, and what is said about them all in one place. */
#include "formats/zarr/zarr_read.h"

#include <inttypes.h>

#include "encoding/json.h"

#define ATTRIBUTES ".zattrs"
#define DIMENSION_NAMES "dimension_names"

/* ---- documents ---- */

static reshard_status document_read(struct zarr_reading *reading, const struct zarr_entry *entry, struct value_graph *out,
                                    reshard_error *err)
{
    struct source *source = reading->source;
    struct buffer bytes = { 0 };
    *out = (struct value_graph){ 0 };
    reshard_status status =
        zarr_keys_read(source->store, &reading->keys, entry, &source->limits, NAMED_LIMIT(&source->limits, json_bytes), &bytes, err);
    if (!status) {
        status = json_parse_python(bytes.data ? (const void *)bytes.data : "", bytes.size, &source->limits, out, err);
        if (status) {
            error_prefix(err, "'%.*s'", STR_ARG(entry->name));
            error_object(err, "%.*s", STR_ARG(entry->name));
        }
    }
    buffer_release(&bytes);
    return status;
}

static reshard_status add_value(struct zarr_reading *reading, struct str prefix, const char *name, const struct value *value,
                                const struct value_graph *graph, reshard_error *err)
{
    struct buffer key = { 0 };
    struct value *copy = value_copy(reading->kept, value, graph->count);
    buffer_append_str(&key, prefix);
    buffer_append_text(&key, name);
    struct catalog_item item = { .key = buffer_str(&key), .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = copy, .graph = reading->kept };
    reshard_status status =
        copy && !key.failed ? catalog_add_item(reading->source->catalog, &item, NULL, 0, NULL, err) : error_set_memory(err);
    buffer_release(&key);
    return status;
}

/* An empty object says nothing. */
static reshard_status add_attributes(struct zarr_reading *reading, struct str prefix, const struct value *attributes,
                                     const struct value_graph *graph, reshard_error *err)
{
    if (!attributes || (attributes->kind == VALUE_DICT && attributes->list.count == 0))
        return RESHARD_OK;
    if (attributes->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "attributes are no object");
    return add_value(reading, prefix, ATTRIBUTES, attributes, graph, err);
}

/* ---- consolidated metadata ---- */

/* Names in it must be names in the store. What it says otherwise is not used: the documents themselves are there. */
static reshard_status check_consolidated(struct zarr_reading *reading, const struct value *metadata, const char *suffix, reshard_error *err)
{
    uint64_t absent = 0;
    struct buffer name = { 0 };
    reshard_status status = RESHARD_OK;
    if (!metadata || metadata->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "consolidated metadata has no object 'metadata'");
    for (size_t i = 0; i + 1 < metadata->list.count && !status; i += 2) {
        struct str path = metadata->list.items[i]->text;
        if (path.size)
            status = store_name_check(path, err);
        if (status) {
            error_prefix(err, "consolidated metadata");
            break;
        }
        buffer_clear(&name);
        buffer_append_str(&name, path);
        if (path.size && suffix[0])
            buffer_append_byte(&name, '/');
        buffer_append_text(&name, suffix);
        if (name.failed)
            status = error_set_memory(err);
        else
            absent += !zarr_keys_find(&reading->keys, buffer_str(&name));
    }
    buffer_release(&name);
    if (!status && absent)
        catalog_warn(reading->source->catalog, false, "consolidated metadata names %" PRIu64 " documents that are not there", absent);
    return status;
}

/* ---- nodes ---- */

/* That of the array or group which a document describes: the path of its folder. */
static struct str key_of(const struct zarr_entry *document)
{
    struct str prefix = str_folder(document->name);
    return prefix.size ? (struct str){ prefix.data, prefix.size - 1 } : prefix;
}

static reshard_status add_array(struct zarr_reading *reading, const struct zarr_array *array, uint32_t entry_index, reshard_error *err)
{
    struct str prefix = str_folder(reading->keys.entries[entry_index].name), key = key_of(&reading->keys.entries[entry_index]);
    uint32_t tensor;
    reshard_status status = catalog_add_tensor(reading->source->catalog, key, array->dtype, array->rank, array->shape, &tensor, err);
    if (!status)
        status = zarr_chunks_add(reading, array, tensor, entry_index, prefix, err);
    if (status)
        error_object(err, "%.*s", STR_ARG(key));
    reading->array_count += !status;
    reading->format_counts[array->format] += !status;
    return status;
}

static reshard_status read_zarray(struct zarr_reading *reading, uint32_t entry_index, const struct value_graph *graph, reshard_error *err)
{
    struct zarr_array array;
    reshard_status status = zarr_array_parse_v2(graph->root, &reading->hints, &array, err);
    return status ? status : add_array(reading, &array, entry_index, err);
}

static reshard_status read_zgroup(struct zarr_reading *reading, uint32_t entry_index, const struct value_graph *graph, reshard_error *err)
{
    const struct value *format = graph->root->kind == VALUE_DICT ? value_dict_get(graph->root, "zarr_format") : NULL;
    int64_t number;
    (void)entry_index;
    if (!format || !value_as_int(format, &number) || number != 2)
        return error_set(err, RESHARD_ERR_FORMAT, "zarr_format of a group is not 2");
    reading->group_count++;
    return RESHARD_OK;
}

static reshard_status read_zattrs(struct zarr_reading *reading, uint32_t entry_index, const struct value_graph *graph, reshard_error *err)
{
    return add_attributes(reading, str_folder(reading->keys.entries[entry_index].name), graph->root, graph, err);
}

static reshard_status read_zmetadata(struct zarr_reading *reading, uint32_t entry_index, const struct value_graph *graph,
                                     reshard_error *err)
{
    const struct value *metadata = graph->root->kind == VALUE_DICT ? value_dict_get(graph->root, "metadata") : NULL;
    (void)entry_index;
    return check_consolidated(reading, metadata, "", err);
}

static reshard_status read_group_v3(struct zarr_reading *reading, struct str prefix, const struct value_graph *graph, reshard_error *err)
{
    const struct value *consolidated = value_dict_get(graph->root, "consolidated_metadata");
    reshard_status status = add_attributes(reading, prefix, value_dict_get(graph->root, "attributes"), graph, err);
    reading->group_count++;
    if (status || !consolidated || consolidated->kind == VALUE_NONE)
        return status;
    return check_consolidated(reading, consolidated->kind == VALUE_DICT ? value_dict_get(consolidated, "metadata") : NULL, "zarr.json",
                              err);
}

/* Where both formats describe a node, the older one is taken: it is what tools of both kinds read. */
static bool has_v2_document(const struct zarr_reading *reading, struct str prefix, bool *no_memory)
{
    static const char *const documents[] = { ".zarray", ".zgroup" };
    struct buffer name = { 0 };
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        buffer_clear(&name);
        buffer_append_str(&name, prefix);
        buffer_append_text(&name, documents[i]);
        *no_memory = name.failed;
        found = !name.failed && zarr_keys_find(&reading->keys, buffer_str(&name));
    }
    buffer_release(&name);
    return found;
}

static reshard_status read_zarr_json(struct zarr_reading *reading, uint32_t entry_index, const struct value_graph *graph,
                                     reshard_error *err)
{
    struct str prefix = str_folder(reading->keys.entries[entry_index].name);
    const struct value *type = graph->root->kind == VALUE_DICT ? value_dict_get(graph->root, "node_type") : NULL;
    struct zarr_array array;
    bool no_memory = false;
    if (has_v2_document(reading, prefix, &no_memory)) {
        catalog_warn(reading->source->catalog, false, "'%.*s': described in format 2 and in format 3; format 2 is taken", STR_ARG(prefix));
        return RESHARD_OK;
    }
    if (no_memory)
        return error_set_memory(err);
    if (!type || type->kind != VALUE_STR)
        return error_set(err, RESHARD_ERR_FORMAT, "node_type is missing");
    if (str_is(type->text, "group"))
        return read_group_v3(reading, prefix, graph, err);
    if (!str_is(type->text, "array"))
        return error_set(err, RESHARD_ERR_FORMAT, "node_type '%.*s' is neither 'array' nor 'group'", STR_ARG(type->text));
    reshard_status status = zarr_array_parse_v3(graph->root, &array, err);
    if (!status)
        status = add_array(reading, &array, entry_index, err);
    if (!status)
        status = add_attributes(reading, prefix, array.attributes, graph, err);
    if (!status && array.dimension_names)
        status = add_value(reading, prefix, DIMENSION_NAMES, array.dimension_names, graph, err);
    return status;
}

static const struct {
    const char *name;
    reshard_status (*read)(struct zarr_reading *reading, uint32_t entry, const struct value_graph *graph, reshard_error *err);
} documents[] = {
    { ".zarray", read_zarray },       { ".zgroup", read_zgroup },      { ".zattrs", read_zattrs },
    { ".zmetadata", read_zmetadata }, { "zarr.json", read_zarr_json },
};

/* What is only unsupported is left out if the caller takes what there is. */
static reshard_status read_document(struct zarr_reading *reading, uint32_t entry_index, size_t kind, reshard_error *err)
{
    struct zarr_entry *entry = &reading->keys.entries[entry_index];
    struct catalog *catalog = reading->source->catalog;
    struct value_graph graph;
    reshard_error found = { 0 };
    entry->is_used = true;
    reshard_status status = document_read(reading, entry, &graph, err);
    if (status) {
        value_graph_release(&graph);
        return status;
    }
    uint32_t tensors = catalog->tensor_count;
    status = documents[kind].read(reading, entry_index, &graph, &found);
    value_graph_release(&graph);
    if (status == RESHARD_ERR_UNSUPPORTED && reading->source->skip_unsupported && catalog->tensor_count == tensors) {
        source_warn_left_out(reading->source, key_of(entry), false, "%s", found.message);
        return RESHARD_OK;
    }
    if (!status)
        return RESHARD_OK;
    if (err)
        *err = found;
    error_prefix(err, "'%.*s'", STR_ARG(entry->name));
    error_object(err, "%.*s", STR_ARG(entry->name));
    if (status == RESHARD_ERR_UNSUPPORTED)
        error_hint(err, "reshard_open_options.lenient leaves out arrays that are not supported");
    return status;
}

/* Locks of flattened writes stay behind: an empty file KEY.sync/FILE for every file of the array that was written to, its document too. */
static bool is_lock(const struct zarr_entry *entry)
{
    static const char mark[] = ".sync/";
    return entry->bytes == 0 && memmem(entry->name.data, entry->name.size, mark, sizeof(mark) - 1) != NULL;
}

reshard_status zarr_read_documents(struct zarr_reading *reading, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < reading->keys.count && !status; i++) {
        struct str base = str_base_name(reading->keys.entries[i].name);
        for (size_t kind = 0; kind < sizeof(documents) / sizeof(documents[0]) && !status; kind++)
            if (str_is(base, documents[kind].name) && !is_lock(&reading->keys.entries[i]))
                status = read_document(reading, i, kind, err);
    }
    return status;
}

/* ---- the store ---- */

static void warn_of_rest(struct zarr_reading *reading)
{
    uint32_t count = 0;
    struct str first = { 0 };
    for (uint32_t i = 0; i < reading->keys.count; i++) {
        const struct zarr_entry *entry = &reading->keys.entries[i];
        if (entry->is_used || is_lock(entry) || str_is(entry->name, SIDECAR_NAME))
            continue;
        first = count++ ? first : entry->name;
    }
    if (count)
        catalog_warn(reading->source->catalog, false, "%" PRIu32 " files belong to nothing that is known here, the first is '%.*s'", count,
                     STR_ARG(first));
}

static reshard_status note_facts(struct zarr_reading *reading, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    uint32_t v2 = reading->format_counts[2], v3 = reading->format_counts[3];
    reshard_status status = catalog_add_fact(catalog, "zarr format", err, "%s", v2 && v3 ? "2 and 3" : v3 ? "3" : "2");
    if (!status && reading->flavour)
        status = catalog_add_fact(catalog, "flavour", err, "%s", reading->flavour);
    if (!status && reading->group_count)
        status = catalog_add_fact(catalog, "groups", err, "%" PRIu32, reading->group_count);
    return status;
}

reshard_status zarr_read_over(struct zarr_reading *reading, struct zarr_keys *keys, reshard_error *err)
{
    reading->keys = *keys;
    *keys = (struct zarr_keys){ 0 };
    reading->kept = catalog_adopt_graph(reading->source->catalog, (struct value_graph){ 0 });
    return reading->kept ? RESHARD_OK : error_set_memory(err);
}

reshard_status zarr_read_begin(struct zarr_reading *reading, reshard_error *err)
{
    struct source *source = reading->source;
    struct zarr_keys none = { 0 };
    reading->hints.null_is_zero = source->lenient && !source->is_salvage;
    reshard_status status = zarr_read_over(reading, &none, err);
    if (!status)
        status = zarr_keys_list(source->store, source->name, &source->limits, &reading->keys, err);
    if (!status && reading->keys.zip.superseded_count)
        catalog_warn(source->catalog, false, "%" PRIu32 " members of the zip file were written anew: of each name the last one counts",
                     reading->keys.zip.superseded_count);
    return status;
}

reshard_status zarr_read_end(struct zarr_reading *reading, reshard_error *err)
{
    if (!reading->array_count && !reading->group_count && !reading->flavour && !reading->source->lenient)
        return reading->keys.count
                   ? error_set(err, RESHARD_ERR_FORMAT,
                               "no .zarray, .zgroup or zarr.json anywhere: nothing says of which array '%.*s' is a chunk",
                               STR_ARG(reading->keys.entries[0].name))
                   : error_set(err, RESHARD_ERR_FORMAT, "no .zarray, .zgroup or zarr.json anywhere");
    warn_of_rest(reading);
    return note_facts(reading, err);
}

void zarr_reading_release(struct zarr_reading *reading)
{
    zarr_keys_release(&reading->keys);
    chain_scratch_release(&reading->scratch);
}
