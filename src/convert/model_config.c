/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/model_config.h"

#include "encoding/json.h"

#include <stdlib.h>

enum dtype model_config_main_type(const struct catalog *catalog)
{
    uint64_t bytes[DTYPE_COUNT] = { 0 };
    enum dtype main = DTYPE_COUNT;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        const struct catalog_tensor *tensor = &catalog->tensors[i];
        uint64_t size = catalog_tensor_bytes(catalog, tensor);
        if (tensor->flags & TENSOR_HIDDEN || dtype_info(tensor->dtype)->class_ != DTYPE_CLASS_FLOAT)
            continue;
        bytes[tensor->dtype] += size;
        if (main == DTYPE_COUNT || bytes[tensor->dtype] > bytes[main])
            main = tensor->dtype;
    }
    return main;
}

/* ---- the item ---- */

reshard_status model_config_read(const struct conversion *conversion, struct buffer *out, reshard_error *err)
{
    const struct catalog *wanted = conversion->selection.wanted;
    const struct source *source = conversion->source->source;
    uint32_t index = catalog_find_item(wanted, STR(MODEL_CONFIG_KEY));
    if (index == CATALOG_NONE)
        return RESHARD_OK;
    const struct catalog_item *item = &wanted->items[index];
    if (item->kind == ITEM_VALUE && item->value && item->value->kind == VALUE_BYTES)
        return buffer_append_str(out, item->value->text) ? RESHARD_OK : error_set_memory(err);
    if (item->kind != ITEM_FILE)
        return RESHARD_OK;
    char *name = str_copy(source->catalog->objects[layout_item_stored(&conversion->request, index)->object].name);
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), out, err) : error_set_memory(err);
    free(name);
    return status;
}

/* A text as a value that the wanted catalog keeps; NULL: no memory. */
static struct value_graph *config_text_keep(struct catalog *wanted, struct str text)
{
    struct value_graph graph = { 0 };
    graph.root = value_new(&graph, VALUE_BYTES);
    if (!graph.root || !arena_str(&graph.arena, text, &graph.root->text)) {
        value_graph_release(&graph);
        return NULL;
    }
    return catalog_adopt_graph(wanted, graph);
}

reshard_status model_config_put(struct conversion *conversion, struct str text, reshard_error *err)
{
    struct catalog *wanted = conversion->selection.wanted;
    uint32_t index = catalog_find_item(wanted, STR(MODEL_CONFIG_KEY));
    struct catalog_item item = { .key = STR(MODEL_CONFIG_KEY), .kind = ITEM_VALUE };
    struct value_graph *kept = config_text_keep(wanted, text);
    if (!kept)
        return error_set_memory(err);
    item.value = kept->root;
    item.graph = kept;
    if (index != CATALOG_NONE) {
        item.key = wanted->items[index].key;
        wanted->items[index] = item;
    } else {
        reshard_status status = catalog_add_item(wanted, &item, NULL, 0, &index, err);
        if (status)
            return status;
    }
    conversion->selection.wanted_items[index] = CATALOG_NONE;
    return RESHARD_OK;
}

/* ---- one that is given ---- */

reshard_status model_config_take_given(struct conversion *conversion, bool *is_put, reshard_error *err)
{
    const struct mapping_options *map = conversion->options->map;
    const bool is_held = conversion->target.driver->abilities & FORMAT_HOLDS_CONFIG;
    struct value_graph parsed = { 0 };
    *is_put = false;
    if (!map || !map->config.size)
        return RESHARD_OK;
    if (!is_held && !conversion->mapping.stage)
        return note_add(&conversion->warnings, &conversion->notes, NOTE_CONFIG, (struct str){ 0 }, err,
                        "reshard_map_options.config is not read: no mapping runs, and %s has no " MODEL_CONFIG_KEY,
                        conversion->target.driver->name);
    if (!is_held || conversion->options->selection.drop_items)
        return RESHARD_OK;
    reshard_status status = json_parse_python(map->config.data, map->config.size, &conversion->request.limits, &parsed, err);
    value_graph_release(&parsed);
    if (status) {
        error_prefix(err, MODEL_CONFIG_KEY);
        return status;
    }
    status = model_config_put(conversion, map->config, err);
    *is_put = !status;
    return status ? status : target_note_changed(&conversion->target, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err, "as it was given");
}

/* ---- the type that it names ---- */

static bool names_type(struct str key)
{
    return str_is(key, "dtype") || str_is(key, "torch_dtype");
}

/* Copies the text with another type where a member names one: of the model, or of a part of it. *count: how many changed. */
static reshard_status config_retype(struct str text, const char *type, const struct limits *limits, struct buffer *out, uint32_t *count,
                                    reshard_error *err)
{
    struct json_parser *json = json_new(text.data, text.size, 0, limits);
    enum json_event event = JSON_NULL;
    struct str word;
    size_t copied = 0;
    bool is_type = false;
    reshard_status status = json ? RESHARD_OK : error_set_memory(err);
    if (json)
        json_take_non_finite(json);
    for (*count = 0; !status && event != JSON_END;) {
        enum dtype named;
        status = json_next(json, &event, &word, err);
        const size_t at = status ? 0 : (size_t)json_offset(json) + 1; /* behind the quote; no type has an escape in its name */
        if (!status && event == JSON_STRING && is_type && dtype_from_torch(word, &named) &&
            dtype_info(named)->class_ == DTYPE_CLASS_FLOAT && !str_is(word, type) && word.data == text.data + at) {
            buffer_append(out, text.data + copied, at - copied);
            buffer_append_text(out, type);
            copied = at + word.size;
            ++*count;
        }
        is_type = !status && event == JSON_KEY && names_type(word);
    }
    buffer_append(out, text.data + copied, text.size - copied);
    json_free(json);
    return status || !out->failed ? status : error_set_memory(err);
}

reshard_status model_config_follow_types(struct conversion *conversion, reshard_error *err)
{
    const char *const *asked = conversion->options->selection.dtypes;
    const enum dtype now = model_config_main_type(conversion->selection.wanted);
    struct buffer text = { 0 }, changed = { 0 };
    uint32_t count = 0;
    if (!asked || !asked[0] || !(conversion->target.driver->abilities & FORMAT_HOLDS_CONFIG) || now == DTYPE_COUNT ||
        now == model_config_main_type(conversion->source->source->catalog))
        return RESHARD_OK;
    reshard_status status = model_config_read(conversion, &text, err);
    /* What is no JSON is carried along as it is. */
    if (!status && text.size &&
        config_retype(buffer_str(&text), dtype_info(now)->torch_name, &conversion->request.limits, &changed, &count, NULL) == RESHARD_OK &&
        count)
        status = model_config_put(conversion, buffer_str(&changed), err);
    if (!status && count)
        status = target_note_changed(&conversion->target, NOTE_CONFIG, STR(MODEL_CONFIG_KEY), err,
                                     "the type that it names is %s, as the weights are", dtype_info(now)->torch_name);
    buffer_release(&text);
    buffer_release(&changed);
    return status;
}
