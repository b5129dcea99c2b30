/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python's numbers are arrays without axes, which _METADATA calls scalars: they become items, and so do texts, which are in a file of their
 * own, and what is empty. Without _METADATA all arrays are tensors.
 */
#include "formats/orbax/orbax_source.h"

#include "base/array.h"
#include "base/cursor.h"
#include "encoding/json.h"
#include "formats/source_root.h"

#include <stdlib.h>

#define METADATA "_METADATA"
#define STRINGS "_strings.json"
#define SCALAR_BYTES_MAX 8

/* Files of Orbax that hold nothing of the tree, or what was read of them by name. */
static const char *const own_files[] = { METADATA, "_CHECKPOINT_METADATA", "_sharding", STRINGS, "commit_success.txt", "checkpoint",
                                         "orbax.checkpoint", NULL };
static const char *const own_folders[] = { "array_metadatas/", "ocdbt.process_", "d/", NULL };

struct tree_reading {
    struct zarr_reading *reading;
    struct name_map tensors; /* keys of the catalog's, by number */
    uint32_t *chunks;        /* by tensor: the first of the catalog, CATALOG_NONE: none */
    uint8_t *is_removed;     /* by tensor */
    uint32_t tensor_count;
    struct buffer key;
};

/* The JSON of a file of the folder; *out is NULL where there is none. The graph is the catalog's. */
static reshard_status json_of(struct source *source, const char *base, const struct value_graph **out, reshard_error *err)
{
    struct arena arena = { 0 };
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    char *name = store_join(&arena, source->name, str_of(base));
    *out = NULL;
    reshard_status status = name ? RESHARD_OK : error_set_memory(err);
    if (!status && store_is_file(source->store, name)) {
        status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &bytes, err);
        if (!status)
            status = json_parse_python(bytes.data ? (const void *)bytes.data : "", bytes.size, &source->limits, &graph, err);
        if (!status && !(*out = catalog_adopt_graph(source->catalog, graph)))
            status = error_set_memory(err);
        else if (status)
            value_graph_release(&graph);
        if (status) {
            error_prefix(err, "'%s'", name);
            error_object(err, "%s", name);
        }
    }
    buffer_release(&bytes);
    arena_release(&arena);
    return status;
}

static reshard_status tree_index(struct tree_reading *tree, reshard_error *err)
{
    const struct catalog *catalog = tree->reading->source->catalog;
    tree->tensor_count = catalog->tensor_count;
    tree->chunks = array_new(tree->tensor_count, sizeof(*tree->chunks));
    tree->is_removed = array_zeroed(tree->tensor_count, sizeof(*tree->is_removed));
    if (!tree->chunks || !tree->is_removed)
        return error_set_memory(err);
    for (uint32_t i = 0; i < tree->tensor_count; i++) {
        tree->chunks[i] = CATALOG_NONE;
        uint32_t number = name_map_intern(&tree->tensors, catalog->tensors[i].key, NULL);
        if (number == NAME_NONE)
            return error_set_memory(err);
        if (number != i)
            return error_set(err, RESHARD_ERR_FORMAT, "there are two arrays '%.*s'", STR_ARG(catalog->tensors[i].key));
    }
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        if (tree->chunks[catalog->chunks[i].tensor] == CATALOG_NONE)
            tree->chunks[catalog->chunks[i].tensor] = i;
    return RESHARD_OK;
}

/* ---- numbers ---- */

/* The bytes of an array without axes, decoded. */
static reshard_status scalar_bytes(struct tree_reading *tree, uint32_t tensor, uint8_t *out, reshard_error *err)
{
    struct source *source = tree->reading->source;
    struct catalog *catalog = source->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[tree->chunks[tensor]];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    const struct chain *chain = layout ? layout->chain : NULL;
    size_t bytes = (size_t)catalog_tensor_bytes(catalog, &catalog->tensors[tensor]);
    struct store_object *object = NULL;
    struct buffer stored = { 0 };
    if (chain && (chain->literal || chain->decoded_bytes != bytes)) {
        if (!chain->literal || chain->decoded_bytes < bytes)
            return error_set(err, RESHARD_ERR_FORMAT, "a number has other bytes than its type");
        memcpy(out, chain->literal, bytes);
        return RESHARD_OK;
    }
    reshard_status status = store_open_object(source->store, catalog->objects[chunk->object].name.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = chain ? reader_append(&reader, layout->coded_offset, layout->coded_bytes, &stored, err)
                   : reader_append(&reader, chunk->offset, bytes, &stored, err);
    store_object_close(object);
    if (!status && chain)
        status = chain_decode(chain, stored.data, stored.size, out, &tree->reading->scratch, err);
    else if (!status)
        memcpy(out, stored.data, bytes);
    buffer_release(&stored);
    for (size_t i = 0; !status && chunk->flags & CHUNK_SWAP && i < bytes / 2; i++) {
        uint8_t byte = out[i];
        out[i] = out[bytes - 1 - i];
        out[bytes - 1 - i] = byte;
    }
    return status;
}

/* Python's numbers are written as int64, float64 or bool, by older releases as narrower ones. NULL in *out: of another type. */
static reshard_status scalar_value(struct tree_reading *tree, uint32_t tensor, struct value **out, reshard_error *err)
{
    const enum dtype dtype = tree->reading->source->catalog->tensors[tensor].dtype;
    uint8_t bytes[SCALAR_BYTES_MAX] = { 0 };
    bool is_int = dtype == DTYPE_I64 || dtype == DTYPE_I32, is_float = dtype == DTYPE_F64 || dtype == DTYPE_F32;
    *out = NULL;
    if (!is_int && !is_float && dtype != DTYPE_BOOL)
        return RESHARD_OK;
    reshard_status status = scalar_bytes(tree, tensor, bytes, err);
    if (status)
        return status;
    *out = value_new(tree->reading->kept, is_int ? VALUE_INT : is_float ? VALUE_FLOAT : VALUE_BOOL);
    if (!*out)
        return error_set_memory(err);
    uint64_t bits = load_le(bytes, dtype == DTYPE_BOOL ? 1 : dtype == DTYPE_I32 || dtype == DTYPE_F32 ? 4 : 8);
    uint32_t half = (uint32_t)bits;
    float real;
    memcpy(&real, &half, sizeof(real));
    if (dtype == DTYPE_F32)
        (*out)->real = real;
    else if (is_float)
        memcpy(&(*out)->real, &bits, sizeof(bits));
    else if (is_int)
        (*out)->integer = dtype == DTYPE_I32 ? (int32_t)half : (int64_t)bits;
    else
        (*out)->boolean = bits != 0;
    return RESHARD_OK;
}

/* ---- the tree ---- */

static reshard_status tree_add_item(struct tree_reading *tree, const struct value *value, const struct value_graph *graph,
                                    reshard_error *err)
{
    struct catalog_item item = { .key = buffer_str(&tree->key), .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = value, .graph = graph };
    return catalog_add_item(tree->reading->source->catalog, &item, NULL, 0, NULL, err);
}

/* The name of an array: the keys of the path with dots between. false: it has none. */
static bool leaf_name(struct tree_reading *tree, const struct value *leaf)
{
    const struct value *keys = value_dict_get(leaf, "key_metadata");
    struct value **items;
    size_t count;
    buffer_clear(&tree->key);
    if (!keys || !value_as_sequence(keys, &items, &count) || !count)
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct value *key = value_dict_get(items[i], "key");
        struct str text;
        if (!key || !value_as_str(key, &text))
            return false;
        if (i)
            buffer_append_byte(&tree->key, '.');
        buffer_append_str(&tree->key, text);
    }
    return true;
}

static reshard_status take_scalar(struct tree_reading *tree, reshard_error *err)
{
    const struct catalog *catalog = tree->reading->source->catalog;
    uint32_t tensor = name_map_find(&tree->tensors, buffer_str(&tree->key));
    struct value *value;
    if (tensor == NAME_NONE || catalog->tensors[tensor].rank || tree->chunks[tensor] == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = scalar_value(tree, tensor, &value, err);
    if (status || !value)
        return status;
    tree->is_removed[tensor] = 1;
    return tree_add_item(tree, value, tree->reading->kept, err);
}

static reshard_status tree_take_leaf(struct tree_reading *tree, const struct value *leaf, const struct value *strings,
                                     const struct value_graph *strings_graph, reshard_error *err)
{
    const struct value *metadata = value_dict_get(leaf, "value_metadata");
    const struct value *type = metadata ? value_dict_get(metadata, "value_type") : NULL;
    struct str name;
    if (!type || !value_as_str(type, &name) || !leaf_name(tree, leaf))
        return RESHARD_OK;
    if (tree->key.failed)
        return error_set_memory(err);
    if (str_is(name, "scalar"))
        return take_scalar(tree, err);
    if (str_is(name, "string")) {
        const struct value *text = strings ? value_dict_find(strings, buffer_str(&tree->key)) : NULL;
        return text ? tree_add_item(tree, text, strings_graph, err) : RESHARD_OK;
    }
    bool is_none = str_is(name, "None"), is_dict = str_is(name, "Dict"), is_list = str_is(name, "List") || str_is(name, "Tuple");
    if (!is_none && !is_dict && !is_list)
        return RESHARD_OK;
    struct value *empty = is_none ? value_new(tree->reading->kept, VALUE_NONE)
                                  : value_new_list(tree->reading->kept, is_dict ? VALUE_DICT : VALUE_LIST, NULL, 0);
    return empty ? tree_add_item(tree, empty, tree->reading->kept, err) : error_set_memory(err);
}

static reshard_status tree_read(struct tree_reading *tree, const struct value_graph *metadata, reshard_error *err)
{
    const struct value_graph *strings;
    const struct value *leaves = value_dict_get(metadata->root, "tree_metadata");
    struct value **pairs;
    size_t count;
    if (!leaves || !value_as_mapping(leaves, &pairs, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "'" METADATA "' has no object 'tree_metadata'");
    reshard_status status = json_of(tree->reading->source, STRINGS, &strings, err);
    if (!status)
        status = tree_index(tree, err);
    for (size_t i = 0; !status && i + 1 < count; i += 2)
        status = tree_take_leaf(tree, pairs[i + 1], strings ? strings->root : NULL, strings, err);
    if (!status)
        status = catalog_remove_tensors(tree->reading->source->catalog, tree->is_removed, err);
    name_map_release(&tree->tensors);
    buffer_release(&tree->key);
    free(tree->chunks);
    free(tree->is_removed);
    return status;
}

/* Of folders that zarr lists: those files are known here. */
static void note_own_files(struct zarr_reading *reading)
{
    for (uint32_t i = 0; i < reading->keys.count; i++) {
        struct zarr_entry *entry = &reading->keys.entries[i];
        for (size_t k = 0; own_files[k]; k++)
            entry->is_used = entry->is_used || str_is(entry->name, own_files[k]);
        for (size_t k = 0; own_folders[k]; k++)
            entry->is_used = entry->is_used || str_starts_with(entry->name, own_folders[k]);
    }
}

reshard_status orbax_metadata_read(struct zarr_reading *reading, reshard_error *err)
{
    struct tree_reading tree = { .reading = reading };
    const struct value_graph *metadata;
    reshard_status status = json_of(reading->source, METADATA, &metadata, err);
    note_own_files(reading);
    return status || !metadata ? status : tree_read(&tree, metadata, err);
}
