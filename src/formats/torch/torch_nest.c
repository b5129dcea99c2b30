/* SPDX-License-Identifier: Apache-2.0 */
/* A nested object from flat paths: what was flattened before, or comes from a format with flat names. */
#include "formats/torch/torch_target.h"

#include "base/name_map.h"

#include <inttypes.h>
#include <stdlib.h>

/* Lists may be sparse to this degree; beyond, positions become integer keys of a dict. */
#define LIST_GAPS_MAX 1024

#define NO_NODE UINT32_MAX

/* A place in the nested object. Children have larger numbers than their parents. */
struct nest_node {
    struct path_part part;
    struct value *leaf;
    uint32_t first_child, last_child, next_sibling, child_count;
    bool is_list;     /* all children are list positions so far */
    int64_t index_max;
};

struct nest {
    struct nest_node *nodes;
    uint32_t count, capacity;
    struct name_map children; /* parent, kind, key -> node number - 1 */
    struct buffer scratch;
    struct value_graph *graph;
};

static bool nest_node_add(struct nest *nest, const struct path_part *part, uint32_t *out)
{
    if (nest->count == nest->capacity) {
        uint32_t wanted = nest->capacity ? nest->capacity * 2 : 64;
        struct nest_node *grown = nest->capacity > UINT32_MAX / 2 ? NULL : reallocarray(nest->nodes, wanted, sizeof(*grown));
        if (!grown)
            return false;
        nest->nodes = grown;
        nest->capacity = wanted;
    }
    nest->nodes[nest->count] = (struct nest_node){ .first_child = NO_NODE, .last_child = NO_NODE, .next_sibling = NO_NODE, .is_list = true };
    if (part)
        nest->nodes[nest->count].part = *part;
    *out = nest->count++;
    return true;
}

/* The child of parent at part, made if it is not there. */
static bool nest_child(struct nest *nest, uint32_t parent, const struct path_part *part, uint32_t *out, bool *was_new)
{
    buffer_clear(&nest->scratch);
    buffer_append_u32le(&nest->scratch, parent);
    buffer_append_byte(&nest->scratch, part->kind == PATH_KEY);
    if (part->kind == PATH_KEY)
        buffer_append_str(&nest->scratch, part->key);
    else
        buffer_append_u64le(&nest->scratch, (uint64_t)part->index);
    uint32_t number = nest->scratch.failed ? NAME_NONE : name_map_intern(&nest->children, buffer_str(&nest->scratch), was_new);
    if (number == NAME_NONE)
        return false;
    if (!*was_new) {
        *out = number + 1; /* node 0 is the root, which is nobody's child */
        return true;
    }
    if (!nest_node_add(nest, part, out))
        return false;
    struct nest_node *above = &nest->nodes[parent];
    if (above->last_child == NO_NODE)
        above->first_child = *out;
    else
        nest->nodes[above->last_child].next_sibling = *out;
    above->last_child = *out;
    above->child_count++;
    above->is_list = above->is_list && part->kind == PATH_INDEX && part->index >= 0;
    if (part->kind == PATH_INDEX && part->index > above->index_max)
        above->index_max = part->index;
    return true;
}

/* *is_taken: the path runs through a leaf, or ends where something is already. */
static bool nest_put(struct nest *nest, const struct path_part *parts, size_t count, struct value *leaf, bool *is_taken)
{
    uint32_t node = 0;
    bool was_new = false;
    *is_taken = true;
    for (size_t i = 0; i < count; i++) {
        if (nest->nodes[node].leaf)
            return true;
        if (!nest_child(nest, node, &parts[i], &node, &was_new))
            return false;
    }
    if (!was_new)
        return true;
    nest->nodes[node].leaf = leaf;
    *is_taken = false;
    return true;
}

static reshard_status nest_put_leaf(struct nest *nest, struct target *target, struct str key, const struct path_part *parts, size_t count,
                                    struct value *leaf, reshard_error *err)
{
    bool is_taken;
    struct path_part flat = { .kind = PATH_KEY, .key = key };
    if (!nest_put(nest, parts, count, leaf, &is_taken))
        return error_set_memory(err);
    if (!is_taken)
        return RESHARD_OK;
    if (!nest_put(nest, &flat, 1, leaf, &is_taken))
        return error_set_memory(err);
    if (is_taken)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "two entries would be called '%.*s'", STR_ARG(key));
    return target_note_changed(target, err, "'%.*s' is written under its joined name: its place in the nested object is taken", STR_ARG(key));
}

/* ---- leaves ---- */

static reshard_status put_tensors(struct nest *nest, const struct layout_request *request, struct target *target, reshard_error *err)
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
        if (!leaf)
            return error_set_memory(err);
        leaf->tensor = i + 1;
        status = nest_put_leaf(nest, target, tensor->key, parts, count, leaf, err);
    }
    return status;
}

/* The value of a wanted item, copied into the graph; *out NULL if it has none that could be written. */
static reshard_status copy_item(struct nest *nest, const struct layout_request *request, struct target *target, uint32_t index, struct value **out,
                                reshard_error *err)
{
    const struct catalog_item *wanted = &request->wanted->items[index];
    struct source *source = request->source;
    *out = NULL;
    if (wanted->kind == ITEM_FILE)
        return target_note_dropped(target, err, "%.*s: a file beside the weights, which a single file cannot hold", STR_ARG(wanted->key));
    reshard_status status = source_load_item(source, request->wanted_items[index], err);
    if (status == RESHARD_ERR_UNSUPPORTED)
        return target_note_dropped(target, err, "%.*s: its value is not known", STR_ARG(wanted->key));
    if (status)
        return status;
    const struct catalog_item *item = &source->catalog->items[request->wanted_items[index]];
    if (!item->value || !item->graph)
        return target_note_dropped(target, err, "%.*s: it has no value", STR_ARG(wanted->key));
    *out = value_copy(nest->graph, item->value, item->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status put_items(struct nest *nest, const struct layout_request *request, struct target *target, uint32_t *item_ids,
                                reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->item_count; i++) {
        struct path_part single;
        const struct path_part *parts;
        size_t count = catalog_item_path(wanted, &wanted->items[i], &single, &parts);
        struct value *leaf;
        item_ids[i] = nest->graph->count;
        status = copy_item(nest, request, target, i, &leaf, err);
        if (!status && leaf)
            status = nest_put_leaf(nest, target, wanted->items[i].key, parts, count, leaf, err);
    }
    item_ids[wanted->item_count] = nest->graph->count;
    return status;
}

/* ---- values ---- */

static struct value *make_list(struct nest *nest, const struct nest_node *node)
{
    size_t count = (size_t)node->index_max + 1;
    struct value **items = arena_zalloc(&nest->graph->arena, count * sizeof(*items));
    if (!items)
        return NULL;
    for (uint32_t child = node->first_child; child != NO_NODE; child = nest->nodes[child].next_sibling)
        items[nest->nodes[child].part.index] = nest->nodes[child].leaf;
    for (size_t i = 0; i < count; i++)
        if (!items[i] && !(items[i] = value_new(nest->graph, VALUE_NONE)))
            return NULL;
    return value_new_list(nest->graph, VALUE_LIST, items, count);
}

static struct value *make_dict(struct nest *nest, const struct nest_node *node)
{
    size_t count = 0;
    struct value **items = arena_array(&nest->graph->arena, 2 * (size_t)node->child_count + 1, sizeof(*items));
    if (!items)
        return NULL;
    for (uint32_t child = node->first_child; child != NO_NODE; child = nest->nodes[child].next_sibling) {
        const struct path_part *part = &nest->nodes[child].part;
        items[count] = part->kind == PATH_KEY ? value_new_str(nest->graph, part->key) : value_new_int(nest->graph, part->index);
        if (!items[count])
            return NULL;
        items[count + 1] = nest->nodes[child].leaf;
        count += 2;
    }
    return value_new_list(nest->graph, VALUE_DICT, items, count);
}

/* Children first: they have the larger numbers. */
static reshard_status make_values(struct nest *nest, reshard_error *err)
{
    for (uint32_t i = nest->count; i-- > 0;) {
        struct nest_node *node = &nest->nodes[i];
        if (node->leaf)
            continue;
        bool is_list = node->is_list && node->child_count > 0 && node->index_max < (int64_t)node->child_count * 4 + LIST_GAPS_MAX;
        node->leaf = is_list ? make_list(nest, node) : make_dict(nest, node);
        if (!node->leaf)
            return error_set_memory(err);
    }
    nest->graph->root = nest->nodes[0].leaf;
    return RESHARD_OK;
}

reshard_status torch_nest(const struct layout_request *request, struct target *target, struct value_graph *graph, uint32_t **item_ids,
                          reshard_error *err)
{
    struct nest nest = { .graph = graph };
    uint32_t root;
    reshard_status status = RESHARD_OK;
    *item_ids = calloc((size_t)request->wanted->item_count + 1, sizeof(**item_ids));
    if (!*item_ids || !nest_node_add(&nest, NULL, &root))
        status = error_set_memory(err);
    if (!status)
        status = put_tensors(&nest, request, target, err);
    if (!status)
        status = put_items(&nest, request, target, *item_ids, err);
    if (!status)
        status = make_values(&nest, err);
    free(nest.nodes);
    name_map_release(&nest.children);
    buffer_release(&nest.scratch);
    return status;
}
