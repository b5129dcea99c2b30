/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_items.h"

#include <stdlib.h>

#include "base/array.h"
#include "formats/shared/kept_items.h"

reshard_status st_metadata_add_item(struct catalog *catalog, const struct st_pair *pairs, uint32_t count, reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct value **nodes = arena_array(&graph.arena, (size_t)count * 2, sizeof(*nodes));
    const struct st_pair *kept_items = NULL;
    bool made = nodes != NULL;
    size_t next = 0;
    for (uint32_t i = 0; i < count && made; i++) {
        if (str_is(pairs[i].key, ST_KEPT_ITEMS_KEY)) {
            kept_items = &pairs[i];
            continue;
        }
        nodes[next] = value_new_str(&graph, pairs[i].key);
        nodes[next + 1] = value_new_str(&graph, pairs[i].value);
        made = nodes[next] && nodes[next + 1];
        next += 2;
    }
    if (made)
        graph.root = value_new_list(&graph, VALUE_DICT, nodes, next);
    if (!graph.root) {
        value_graph_release(&graph);
        return error_set_memory(err);
    }
    struct value_graph *kept = catalog_adopt_graph(catalog, graph);
    if (!kept)
        return error_set_memory(err);
    struct catalog_item item = { .key = STR(ST_METADATA_KEY), .kind = ITEM_VALUE, .value = kept->root, .graph = kept };
    reshard_status status = catalog_add_item(catalog, &item, NULL, 0, NULL, err);
    if (status || !kept_items)
        return status;
    status = kept_items_read(catalog, kept_items->value, err);
    if (status)
        error_prefix(err, ST_METADATA_KEY ": " ST_KEPT_ITEMS_KEY);
    return status;
}

/* ---- what a target keeps ---- */

void st_items_release(struct st_items *items)
{
    st_metadata_release(&items->metadata);
    free(items->files);
    buffer_release(&items->kept.text);
    *items = (struct st_items){ 0 };
}

/* A dict of strings becomes metadata; the strings stay where they are, in the source's graph. */
static reshard_status take_metadata(const struct value *value, struct st_metadata *out, bool *is_taken, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    struct str key, text;
    *is_taken = value && value_as_mapping(value, &pairs, &count);
    for (size_t i = 0; *is_taken && i < count; i += 2)
        *is_taken = value_as_str(pairs[i], &key) && str_is_utf8(key, false, NULL) && value_as_str(pairs[i + 1], &text) &&
                    str_is_utf8(text, false, NULL);
    if (!*is_taken)
        return RESHARD_OK;
    out->is_present = true;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < count && !status; i += 2) {
        value_as_str(pairs[i], &key);
        value_as_str(pairs[i + 1], &text);
        status = st_metadata_put(out, key, text, err);
    }
    return status;
}

bool st_item_is_config(const struct catalog_item *item)
{
    return item->kind == ITEM_VALUE && item->value && item->value->kind == VALUE_BYTES && str_is(item->key, "config.json");
}

static const char *safetensors_items_kind_of(const struct catalog_item *item)
{
    switch (item->kind) {
    case ITEM_VALUE:
    case ITEM_LATE:
        return item->value ? value_kind_name(item->value) : "value";
    case ITEM_BLOB:
        return "pickled object";
    case ITEM_RAW:
        return "bytes";
    case ITEM_FILE:
        return "side file";
    }
    return "item";
}

static reshard_status safetensors_items_note_member(struct target *target, struct str key, const struct value *value, reshard_error *err)
{
    const struct str name = ARENA_JOIN(&target->catalog->arena, STR(ST_INDEX_METADATA_KEY "."), key);
    return name.data ? target_note_dropped(target, NOTE_NO_PLACE, name, err, "%s, without an index file only strings have a place",
                                      value_kind_name(value))
                : error_set_memory(err);
}

static reshard_status safetensors_items_note_item(struct target *target, const struct catalog_item *item, reshard_error *err)
{
    return target_note_dropped(target, NOTE_NO_PLACE, item->key, err, "%s, which %s cannot hold", safetensors_items_kind_of(item),
                               target->catalog->format);
}

/* Values of the two keys that this family of formats has a place for; they may come as blobs of another format. */
static reshard_status take_value(const struct layout_request *request, struct target *target, uint32_t index, struct st_items *out,
                                 reshard_error *err)
{
    const struct catalog_item *item = &request->wanted->items[index];
    const struct catalog_item *loaded;
    bool is_taken = false;
    reshard_status status = layout_item(request, index, &loaded, err);
    if (status && status != RESHARD_ERR_UNSUPPORTED)
        return status;
    const struct value *value = status ? NULL : loaded->value;
    status = RESHARD_OK;
    if (str_equal(item->key, STR(ST_METADATA_KEY))) {
        status = take_metadata(value, &out->metadata, &is_taken, err);
    } else if (value && value->kind == VALUE_DICT) {
        out->index = value;
        is_taken = true;
    }
    return status || is_taken ? status : safetensors_items_note_item(target, item, err);
}

/* A value that is dropped, by its class if it has one. */
static reshard_status note_value(struct target *target, struct str key, const struct value *value, reshard_error *err)
{
    struct buffer name = { 0 };
    const bool is_nest = value->kind == VALUE_LIST || value->kind == VALUE_TUPLE || value->kind == VALUE_DICT;
    const bool is_object = value_class_name(value, &name) && name.size;
    const struct str what = is_object ? buffer_str(&name) : str_of(value_kind_name(value));
    reshard_status status = name.failed ? buffer_error(&name, err) : RESHARD_OK;
    if (!status)
        status = target_note_dropped(target, NOTE_NO_PLACE, key, err, "%.*s%s, which %s cannot hold", STR_ARG(what),
                                     is_nest && !is_object ? " that is not made of plain values" : "", target->catalog->format);
    buffer_release(&name);
    return status;
}

/* An item beside the weights; what is not made of plain values is noted as dropped, by what it is. */
static reshard_status keep_or_note(const struct layout_request *request, struct target *target, uint32_t index, struct st_items *out,
                                   reshard_error *err)
{
    const struct catalog_item *item = &request->wanted->items[index], *loaded = NULL;
    bool is_kept = false;
    reshard_status status = item->kind == ITEM_FILE ? RESHARD_OK : layout_item(request, index, &loaded, err);
    if (status && status != RESHARD_ERR_UNSUPPORTED)
        return status;
    if (!status && loaded && loaded->value) {
        struct catalog_item kept = *item; /* its name here, its value there */
        kept.value = loaded->value;
        status = kept_items_append(&out->kept, request->wanted, &kept, &is_kept, err);
        if (status || is_kept)
            return status;
        if (out->kept.is_full)
            return target_note_dropped(target, NOTE_NO_PLACE, item->key, err, "%s, items take at most %llu bytes of text: %s holds it",
                                       value_kind_name(loaded->value), (unsigned long long)out->kept.bytes_max,
                                       target->driver->abilities & FORMAT_IS_DIRECTORY ? "torch-dcp" : "hf");
        return note_value(target, item->key, loaded->value, err);
    }
    return safetensors_items_note_item(target, item, err);
}

reshard_status st_items_take(const struct layout_request *request, struct target *target, bool carries_files, struct st_items *out,
                             reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    out->files = array_new(wanted->item_count, sizeof(*out->files));
    if (!out->files)
        return error_set_memory(err);
    for (uint32_t i = 0; i < wanted->item_count && !status; i++) {
        const struct catalog_item *item = &wanted->items[i];
        if (str_equal(item->key, STR(ST_METADATA_KEY)) || str_equal(item->key, STR(ST_INDEX_METADATA_KEY)))
            status = take_value(request, target, i, out, err);
        else if (carries_files && (item->kind == ITEM_FILE || st_item_is_config(item)))
            out->files[out->file_count++] = i;
        else
            status = keep_or_note(request, target, i, out, err);
    }
    return status || !out->kept.text.size ? status : kept_items_end(&out->kept.text, err);
}

reshard_status st_items_merge_index(struct st_items *items, struct target *target, reshard_error *err)
{
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!items->index || !value_as_mapping(items->index, &pairs, &count))
        return RESHARD_OK;
    for (size_t i = 0; i < count && !status; i += 2) {
        struct str key, text;
        if (!value_as_str(pairs[i], &key))
            continue;
        if (value_as_str(pairs[i + 1], &text) && str_is_utf8(text, false, NULL))
            status = st_metadata_put(&items->metadata, key, text, err);
        else
            status = safetensors_items_note_member(target, key, pairs[i + 1], err);
    }
    return status;
}

/* ---- the format key ---- */

static bool reference_framework(const struct source *like, struct str *out)
{
    uint32_t item = catalog_find_item(like->catalog, STR(ST_METADATA_KEY));
    const struct value *metadata = item == CATALOG_NONE ? NULL : like->catalog->items[item].value;
    const struct value *value = metadata ? value_dict_get(metadata, "format") : NULL;
    return value && value_as_str(value, out);
}

reshard_status st_metadata_set_framework(const struct layout_request *request, struct st_metadata *metadata, reshard_error *err)
{
    const char *wanted = layout_option(request, "framework");
    struct str framework;
    if (wanted && strcmp(wanted, "none") != 0)
        return st_metadata_put(metadata, STR("format"), str_of(wanted), err);
    if (wanted)
        return RESHARD_OK;
    if (request->like && reference_framework(request->like, &framework))
        return st_metadata_put(metadata, STR("format"), framework, err);
    if (metadata->is_present || request->like || (request->source && request->source->driver->abilities & FORMAT_NAMES_FRAMEWORK))
        return RESHARD_OK;
    return st_metadata_put(metadata, STR("format"), STR("pt"), err);
}
