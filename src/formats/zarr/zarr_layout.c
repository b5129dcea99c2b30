/* SPDX-License-Identifier: Apache-2.0 */
/* Lays a store out: the documents of groups and arrays, and the chunk files. */
#include <stdlib.h>

#include "formats/zarr/zarr_array.h"
#include "base/array.h"
#include "formats/shared/file_tree.h"
#include "formats/zarr/zarr_target.h"
#include "formats/zarr/zarr_write.h"

#define ATTRIBUTES ".zattrs"
#define DIMENSION_NAMES "dimension_names"

struct zarr_laying {
    const struct layout_request *request;
    struct target *target;
    struct zarr_target *state;
    struct zarr_style style;
    struct name_map arrays;    /* keys of the arrays */
    struct name_map groups;    /* their folders, "" first */
    struct name_map items;     /* keys of wanted items; number: the item */
    bool *item_is_used;
};

/* ---- names ---- */

static reshard_status key_parts_check(const struct zarr_laying *laying, struct str key, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (struct str rest = key; rest.size && !status;) {
        struct str part = str_take(&rest, '/');
        if (laying->style.format == 3 && str_starts_with(part, "__"))
            status = error_set(err, RESHARD_ERR_UNSUPPORTED, "names in format 3 may not begin with '__'");
    }
    return status;
}

static reshard_status key_check(const struct zarr_laying *laying, struct str key, reshard_error *err)
{
    reshard_status status = key.size ? file_name_check(key, err) : RESHARD_OK;
    if (!status)
        status = key_parts_check(laying, key, err);
    if (!status)
        return RESHARD_OK;
    error_prefix(err, "tensor '%.*s' cannot be a folder of that name", STR_ARG(key));
    error_hint(err, "reshard_convert_options.renames gives it another name, reshard_convert_options.exclude leaves it out");
    return RESHARD_ERR_UNSUPPORTED;
}

static bool zarr_layout_is_stored(const struct catalog_tensor *tensor)
{
    return !(tensor->flags & (TENSOR_HIDDEN | TENSOR_NO_DATA));
}

static reshard_status collect_arrays(struct zarr_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        bool was_new;
        if (!zarr_layout_is_stored(tensor))
            continue;
        reshard_status status = key_check(laying, tensor->key, err);
        if (status)
            return status;
        if (name_map_intern(&laying->arrays, tensor->key, &was_new) == NAME_NONE)
            return error_set_memory(err);
        if (!was_new)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "two tensors have the key '%.*s'", STR_ARG(tensor->key));
    }
    return RESHARD_OK;
}

/* The folders that the keys lie in. None may be an array itself. */
static reshard_status collect_groups(struct zarr_laying *laying, reshard_error *err)
{
    bool is_root_array = laying->arrays.count == 1 && name_map_at(&laying->arrays, 0).size == 0;
    if (!is_root_array && name_map_intern(&laying->groups, STR(""), NULL) == NAME_NONE)
        return error_set_memory(err);
    for (uint32_t i = 0; i < laying->arrays.count && !is_root_array; i++) {
        struct str key = name_map_at(&laying->arrays, i);
        for (size_t at = 0; at <= key.size; at++) {
            struct str group = { key.data, at };
            bool is_folder = at < key.size && (at == 0 || key.data[at] == '/');
            if (!is_folder && !(at == 0 && key.size == 0))
                continue;
            if (name_map_find(&laying->arrays, group) != NAME_NONE) {
                error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' would lie inside the array '%.*s'", STR_ARG(key), STR_ARG(group));
                error_hint(err, "-m 'OLD -> NEW' gives one of them another name");
                return RESHARD_ERR_UNSUPPORTED;
            }
            if (name_map_intern(&laying->groups, group, NULL) == NAME_NONE)
                return error_set_memory(err);
        }
    }
    return RESHARD_OK;
}

/* ---- items ---- */

static reshard_status collect_items(struct zarr_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    laying->item_is_used = array_zeroed(wanted->item_count, sizeof(bool));
    if (!laying->item_is_used)
        return error_set_memory(err);
    for (uint32_t i = 0; i < wanted->item_count; i++) {
        bool was_new;
        uint32_t number = name_map_intern(&laying->items, wanted->items[i].key, &was_new);
        if (number == NAME_NONE)
            return error_set_memory(err);
        /* A key that two items share is none of ours; numbers would no longer be items. */
        if (!was_new && name_map_intern(&laying->items, (struct str){ (const char *)&i, sizeof(i) }, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* The JSON text of the item that belongs to a node: its attributes, or the names of its axes. Empty: it has none. */
static reshard_status item_text(struct zarr_laying *laying, struct str node, const char *name, struct buffer *out, reshard_error *err)
{
    struct buffer key = { 0 };
    buffer_append_str(&key, node);
    buffer_append_text(&key, node.size ? "/" : "");
    buffer_append_text(&key, name);
    uint32_t number = key.failed ? NAME_NONE : name_map_find(&laying->items, buffer_str(&key));
    reshard_status status = key.failed ? error_set_memory(err) : RESHARD_OK;
    buffer_release(&key);
    if (status || number == NAME_NONE)
        return status;
    const struct catalog_item *item;
    status = layout_item(laying->request, number, &item, err);
    if (status)
        return status;
    const struct value *value = item->value;
    if (!value || (strcmp(name, ATTRIBUTES) == 0 && value->kind != VALUE_DICT) ||
        (strcmp(name, DIMENSION_NAMES) == 0 && value->kind != VALUE_LIST))
        return RESHARD_OK;
    laying->item_is_used[number] = true;
    return value_to_python_json(value, out, NAMED_LIMIT(&laying->request->limits, json_bytes), err);
}

static reshard_status zarr_layout_note_items(struct zarr_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->item_count && !status; i++)
        if (!laying->item_is_used[i])
            status =
                target_note_dropped(laying->target, NOTE_NO_PLACE, wanted->items[i].key, err, "zarr holds arrays and attributes of nodes");
    return status;
}

/* ---- nodes ---- */

static reshard_status text_add(struct zarr_laying *laying, struct str node, const char *name, struct buffer *text, reshard_error *err)
{
    struct buffer path = { 0 };
    buffer_append_text(&path, laying->style.folder);
    buffer_append_str(&path, node);
    buffer_append_text(&path, node.size ? "/" : "");
    buffer_append_text(&path, name);
    reshard_status status = path.failed || text->failed ? error_set_memory(err) : RESHARD_OK;
    if (!status)
        status = zarr_target_add_text(laying->state, laying->target, buffer_str(&path), text, err);
    buffer_release(&path);
    return status;
}

/* A node's attributes, which format 2 keeps in a file of their own. */
static reshard_status attributes_add(struct zarr_laying *laying, struct str node, struct buffer *attributes, reshard_error *err)
{
    reshard_status status = laying->style.flavour->arrays_only ? RESHARD_OK : item_text(laying, node, ATTRIBUTES, attributes, err);
    if (status || laying->style.format != 2 || !attributes->size)
        return status;
    return text_add(laying, node, ATTRIBUTES, attributes, err);
}

static reshard_status group_add(struct zarr_laying *laying, struct str node, reshard_error *err)
{
    struct buffer attributes = { 0 }, text = { 0 };
    reshard_status status = attributes_add(laying, node, &attributes, err);
    if (!status)
        status = zarr_document_group(&laying->style, buffer_str(&attributes), &text, err);
    if (!status)
        status = text_add(laying, node, laying->style.format == 2 ? ".zgroup" : "zarr.json", &text, err);
    buffer_release(&attributes);
    buffer_release(&text);
    return status;
}

static reshard_status array_document_add(struct zarr_laying *laying, const struct catalog_tensor *tensor, struct str name,
                                         const int64_t *chunk, reshard_error *err)
{
    struct buffer attributes = { 0 }, names = { 0 }, text = { 0 };
    reshard_status status = attributes_add(laying, tensor->key, &attributes, err);
    if (!status && laying->style.format == 3)
        status = item_text(laying, tensor->key, DIMENSION_NAMES, &names, err);
    if (!status)
        status = zarr_document_array(&laying->style, tensor->dtype, tensor->rank, catalog_vector_at(laying->request->wanted, tensor->shape),
                                     chunk, buffer_str(&attributes), buffer_str(&names), &text, err);
    if (!status)
        status = text_add(laying, name, laying->style.format == 2 ? ".zarray" : "zarr.json", &text, err);
    buffer_release(&attributes);
    buffer_release(&names);
    buffer_release(&text);
    return status;
}

static reshard_status array_add(struct zarr_laying *laying, uint32_t index, reshard_error *err)
{
    const struct catalog_tensor *tensor = &laying->request->wanted->tensors[index];
    int64_t chunk[RANK_MAX];
    const char *name = laying->style.format == 2 ? zarr_dtype_name_v2(tensor->dtype) : zarr_dtype_name_v3(tensor->dtype);
    if (!name) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': zarr format %d has no name for %s", STR_ARG(tensor->key),
                  laying->style.format, dtype_info(tensor->dtype)->name);
        error_hint(err,
                   "reshard_convert_options.dtypes 'KEY=f32' writes it as another type, reshard_convert_options.exclude KEY leaves it out");
        return RESHARD_ERR_UNSUPPORTED;
    }
    /* Beside others each array has a folder; alone, without a name, it is the group itself to plain zarr. */
    if (laying->style.flavour->array_name && !tensor->key.size) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "a tensor without a name has no folder in a checkpoint of this flavour");
        error_hint(err, "reshard_convert_options.renames 's/^$/NAME/' gives it one");
        return RESHARD_ERR_UNSUPPORTED;
    }
    zarr_chunk_choose(laying->request, &laying->style, index, chunk);
    struct str stored = laying->style.flavour->array_name ? laying->style.flavour->array_name(laying->target, tensor->key) : tensor->key;
    reshard_status status =
        stored.size || !tensor->key.size ? array_document_add(laying, tensor, stored, chunk, err) : error_set_memory(err);
    const struct str prefix = ARENA_JOIN(&laying->target->catalog->arena, str_of(laying->style.folder), stored,
                                         stored.size ? STR("/") : STR(""));
    if (!status && !prefix.data)
        status = error_set_memory(err);
    if (!status && !str_equal(stored, tensor->key))
        status = target_read_as(laying->target, index, stored, err);
    if (!status)
        status = zarr_chunks_lay_out(laying->request, &laying->style, laying->target, index, prefix, chunk, err);
    if (status) {
        error_prefix(err, "tensor '%.*s'", STR_ARG(tensor->key));
        error_object(err, "%.*s", STR_ARG(tensor->key));
    }
    if (!status && tensor->tied_to != CATALOG_NONE)
        status = target_note_changed(laying->target, NOTE_TIE, tensor->key, err, "written in full, though it shares its bytes with '%.*s'",
                                     STR_ARG(laying->request->wanted->tensors[tensor->tied_to].key));
    return status;
}

static reshard_status nodes_add(struct zarr_laying *laying, reshard_error *err)
{
    const struct catalog *wanted = laying->request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < laying->groups.count && !status && !laying->style.flavour->arrays_only; i++)
        status = group_add(laying, name_map_at(&laying->groups, i), err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++)
        if (zarr_layout_is_stored(&wanted->tensors[i]))
            status = array_add(laying, i, err);
    return status;
}

reshard_status zarr_lay_out(const struct layout_request *request, struct target *target, const struct zarr_style *style,
                            struct zarr_target *state, reshard_error *err)
{
    struct zarr_laying laying = { .request = request, .target = target, .state = state, .style = *style };
    reshard_status status = collect_arrays(&laying, err);
    if (!status)
        status = collect_groups(&laying, err);
    if (!status)
        status = collect_items(&laying, err);
    if (!status)
        status = nodes_add(&laying, err);
    if (!status && !style->flavour->arrays_only)
        status = zarr_layout_note_items(&laying, err);
    name_map_release(&laying.arrays);
    name_map_release(&laying.groups);
    name_map_release(&laying.items);
    free(laying.item_is_used);
    return status;
}
