/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata. Small values are read at once, the others, such as the hundred thousand words of a tokenizer, when somebody asks for them. */
#include "formats/gguf/gguf_source.h"

#include "base/cursor.h"

#define LATE_BYTES 4096 /* values of more are read late */
#define TYPE_BYTES 4    /* in front of a value */

static bool is_of_split(struct str key)
{
    return str_is(key, "split.no") || str_is(key, "split.count") || str_is(key, "split.tensors.count");
}

static reshard_status add_late(struct gguf_reading *reading, const struct gguf_part *part, struct str key, const struct gguf_pair *pair,
                               reshard_error *err)
{
    const struct catalog_item item = { .key = key,
                                       .path = CATALOG_NONE,
                                       .kind = ITEM_LATE,
                                       .object = part->object,
                                       .offset = pair->offset - TYPE_BYTES,
                                       .bytes = pair->bytes + TYPE_BYTES };
    uint32_t number;
    return catalog_add_item(reading->source->catalog, &item, NULL, 0, &number, err);
}

static reshard_status add_now(struct gguf_reading *reading, struct gguf_scan *scan, struct str key, const struct gguf_pair *pair,
                              struct value_graph *graph, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    struct catalog_item item = { .key = key, .path = CATALOG_NONE, .kind = ITEM_VALUE, .graph = graph };
    struct value *value = NULL;
    uint32_t number;
    scan->at = pair->offset;
    reshard_status status = gguf_value_read(scan, pair->type, graph, &value, err);
    item.value = value;
    if (!status)
        status = catalog_add_item(catalog, &item, NULL, 0, &number, err);
    if (!status && str_is(key, "general.architecture") && value->kind == VALUE_STR)
        status = catalog_add_fact(catalog, "architecture", err, "%.*s", STR_ARG(value->text));
    return status;
}

reshard_status gguf_add_items(struct gguf_reading *reading, struct gguf_part *part, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    const struct limits *limits = &reading->source->limits;
    struct gguf_scan scan = { .reader = &part->reader, .limits = limits, .counted = UINT64_MAX, .is_swapped = part->header.is_swapped };
    struct value_graph *graph =
        catalog_adopt_graph(catalog, (struct value_graph){ .arena = { .work = limits->budget, .bytes_max = (size_t)limits->item_bytes } });
    reshard_status status = graph ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < part->header.keys.count && !status; i++) {
        struct str key = name_map_at(&part->header.keys, i);
        const struct gguf_pair *pair = &part->header.pairs[i];
        bool was_new;
        if (reading->folder.total > 1 && is_of_split(key))
            continue;
        if (name_map_intern(&reading->keys, key, &was_new) == NAME_NONE)
            status = error_set_memory(err);
        else if (!was_new)
            catalog_warn(catalog, false, "'%s' has key '%.*s' again, the value of the part before it counts", part->name, STR_ARG(key));
        else if (pair->bytes > LATE_BYTES)
            status = add_late(reading, part, key, pair, err);
        else
            status = add_now(reading, &scan, key, pair, graph, err);
    }
    gguf_scan_release(&scan);
    return status;
}

/* ---- later ---- */

static reshard_status value_load(struct source *source, struct catalog_item *item, const struct reader *reader, struct value_graph *graph,
                                 struct value **out, reshard_error *err)
{
    struct gguf_scan scan = { .reader = reader,
                              .limits = &source->limits,
                              .at = item->offset,
                              .is_swapped = ((const struct gguf_state *)source->driver_state)->is_swapped };
    uint64_t type = GGUF_TYPE_COUNT;
    reshard_status status = gguf_scan_number(&scan, TYPE_BYTES, "a value's type", &type, err);
    if (!status && type >= GGUF_TYPE_COUNT)
        status = error_set_at(err, RESHARD_ERR_FORMAT, item->offset, "the file has changed since it was opened");
    if (!status)
        status = gguf_value_read(&scan, (enum gguf_type)type, graph, out, err);
    gguf_scan_release(&scan);
    return status;
}

reshard_status gguf_load_item(struct source *source, uint32_t index, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct catalog_item *item = &catalog->items[index];
    const struct limits *limits = &source->limits;
    struct value_graph graph = { .arena = { .work = limits->budget, .bytes_max = (size_t)limits->item_bytes } };
    struct store_object *object = NULL;
    struct value *value = NULL;
    const char *name = catalog->objects[item->object].name.data;
    if (item->bytes > limits->item_bytes)
        return error_set_limit(err, "item_bytes", item->bytes, limits->item_bytes);
    reshard_status status = store_open_object(source->store, name, &object, err);
    if (!status) {
        struct reader reader = store_object_reader(object);
        status = value_load(source, item, &reader, &graph, &value, err);
    }
    store_object_close(object);
    if (status) {
        value_graph_release(&graph);
        error_prefix(err, "'%s': key '%.*s'", name, STR_ARG(item->key));
        error_object(err, "%s", name);
        return status;
    }
    item->graph = catalog_adopt_graph(catalog, graph);
    if (!item->graph)
        return error_set_memory(err);
    item->value = value;
    return RESHARD_OK;
}
