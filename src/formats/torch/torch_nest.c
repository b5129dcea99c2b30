/* SPDX-License-Identifier: Apache-2.0 */
/* A nested object from flat paths: what was flattened before, or comes from a format with flat names. */
#include "formats/torch/torch_target.h"

#include "base/array.h"
#include "formats/shared/path_nest.h"

#include <stdlib.h>

/* *is_joined: under its key as one name. */
static reshard_status nest_put_leaf(struct nest *nest, struct target *target, struct str key, const struct path_part *parts, size_t count,
                                    struct value *leaf, bool *is_joined, reshard_error *err)
{
    bool is_taken;
    struct path_part flat = { .kind = PATH_KEY, .key = key };
    if (!nest_put(nest, parts, count, leaf, &is_taken))
        return error_set_memory(err);
    *is_joined = is_taken;
    if (!is_taken)
        return RESHARD_OK;
    if (!nest_put(nest, &flat, 1, leaf, &is_taken))
        return error_set_memory(err);
    if (is_taken)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "two entries would be called '%.*s'", STR_ARG(key));
    return target_note_changed(target, NOTE_JOINED_NAME, key, err,
                               "is written under its joined name: its place in the nested object is taken");
}

/* ---- leaves ---- */

static reshard_status torch_nest_put_tensors(struct nest *nest, const struct layout_request *request, struct target *target,
                                             reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        if (tensor->flags & TENSOR_HIDDEN)
            continue;
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_tensor_path(wanted, tensor, &single, &parts);
        struct value *leaf = value_new(nest->graph, VALUE_NONE);
        bool is_joined;
        if (!leaf)
            return error_set_memory(err);
        leaf->tensor = i + 1;
        status = nest_put_leaf(nest, target, tensor->key, parts, count, leaf, &is_joined, err);
        if (!status && !is_joined)
            status = target_read_as_path(target, i, parts, count, err);
    }
    return status;
}

/* The value of a wanted item, copied into the graph; *out NULL if it has none that could be written. */
static reshard_status torch_nest_copy_item(struct nest *nest, const struct layout_request *request, struct target *target, uint32_t index,
                                           struct value **out, reshard_error *err)
{
    const struct catalog_item *wanted = &request->wanted->items[index];
    const struct catalog_item *item;
    *out = NULL;
    if (wanted->kind == ITEM_FILE)
        return target_note_dropped(target, NOTE_NO_PLACE, wanted->key, err, "a file beside the weights, which a single file cannot hold");
    if (wanted->is_beside)
        return target_note_dropped(target, NOTE_NO_PLACE, wanted->key, err,
                                   "it lies beside the model in files of its own, and is no part of the one state dict of a single file");
    reshard_status status = layout_item(request, index, &item, err);
    if (status == RESHARD_ERR_UNSUPPORTED)
        return target_note_dropped(target, NOTE_NO_VALUE, wanted->key, err, "its value is not known");
    if (status)
        return status;
    if (!item->value || !item->graph)
        return target_note_dropped(target, NOTE_NO_VALUE, wanted->key, err, "it has no value");
    *out = value_copy(nest->graph, item->value, item->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

/* What a driver tells about the whole object has a place only in a dict. */
static bool torch_nest_has_no_place(const struct value *tree, const struct path_part *first)
{
    struct value **pairs;
    size_t count;
    return tree && !value_as_mapping(tree, &pairs, &count) && first->kind == PATH_KEY && first->key.size;
}

static reshard_status torch_nest_put_items(struct nest *nest, const struct layout_request *request, struct target *target,
                                           uint32_t *item_ids, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->item_count; i++) {
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_item_path(wanted, &wanted->items[i], &single, &parts);
        struct value *leaf = NULL;
        bool is_joined;
        item_ids[i] = nest->graph->count;
        if (torch_nest_has_no_place(request->source_catalog->tree, &parts[0]))
            status = target_note_dropped(target, NOTE_NO_PLACE, wanted->items[i].key, err, "the outermost object is no dict");
        else
            status = torch_nest_copy_item(nest, request, target, i, &leaf, err);
        if (!status && leaf)
            status = nest_put_leaf(nest, target, wanted->items[i].key, parts, count, leaf, &is_joined, err);
    }
    item_ids[wanted->item_count] = nest->graph->count;
    return status;
}

reshard_status torch_nest(const struct layout_request *request, struct target *target, struct value_graph *graph, uint32_t **item_ids,
                          reshard_error *err)
{
    struct nest nest = { 0 };
    reshard_status status = RESHARD_OK;
    *item_ids = array_zeroed((size_t)request->wanted->item_count + 1, sizeof(**item_ids));
    if (!*item_ids || !nest_begin(&nest, graph))
        status = error_set_memory(err);
    if (!status)
        status = torch_nest_put_tensors(&nest, request, target, err);
    if (!status)
        status = torch_nest_put_items(&nest, request, target, *item_ids, err);
    if (!status)
        status = nest_take_form(&nest, request->source_catalog, &request->limits, err);
    if (!status)
        status = nest_finish(&nest, err);
    nest_release(&nest);
    return status;
}
