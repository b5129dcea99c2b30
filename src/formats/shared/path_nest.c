/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/path_nest.h"

#include "base/array.h"

#include <stdlib.h>

/* Lists may be sparse to this degree; beyond, positions become integer keys of a dict. */
#define LIST_GAPS_MAX 1024

bool nest_begin(struct nest *nest, struct value_graph *graph)
{
    uint32_t root;
    size_t depth;
    enum path_place place;
    *nest = (struct nest){ .graph = graph };
    return path_tree_place(&nest->tree, NULL, 0, &root, &depth, &place);
}

bool nest_put(struct nest *nest, const struct path_part *parts, size_t count, struct value *leaf, bool *is_taken)
{
    uint32_t node;
    size_t depth;
    enum path_place place;
    if (!path_tree_place(&nest->tree, parts, count, &node, &depth, &place) || !ARRAY_ROOM(nest->made, node, nest->capacity))
        return false;
    *is_taken = place != PATH_PLACED;
    if (*is_taken)
        return true;
    nest->tree.nodes[node].is_leaf = true;
    nest->made[node] = leaf;
    return true;
}

void nest_release(struct nest *nest)
{
    path_tree_release(&nest->tree);
    free(nest->made);
}

/* How long a list with these members is; 0: they are no list's. */
static size_t list_length(const struct path_tree *tree, const struct path_tree_node *node)
{
    int64_t last = -1;
    for (uint32_t child = node->first; child != CATALOG_NONE; child = tree->nodes[child].next) {
        const struct path_part *part = &tree->nodes[child].part;
        if (part->kind != PATH_INDEX || part->index < 0)
            return 0;
        last = part->index > last ? part->index : last;
    }
    return last < (int64_t)node->child_count * 4 + LIST_GAPS_MAX ? (size_t)(last + 1) : 0;
}

static struct value *path_nest_make_list(struct nest *nest, const struct path_tree_node *node, size_t count)
{
    struct value **items = arena_zalloc(&nest->graph->arena, count * sizeof(*items));
    if (!items)
        return NULL;
    for (uint32_t child = node->first; child != CATALOG_NONE; child = nest->tree.nodes[child].next)
        items[nest->tree.nodes[child].part.index] = nest->made[child];
    for (size_t i = 0; i < count; i++)
        if (!items[i] && !(items[i] = value_new(nest->graph, VALUE_NONE)))
            return NULL;
    bool is_tuple = node->form && node->is_form_open && node->form->kind == VALUE_TUPLE;
    return value_new_list(nest->graph, is_tuple ? VALUE_TUPLE : VALUE_LIST, items, count);
}

static bool is_no_tensor(const struct value *value, void *context)
{
    (void)context;
    return !value->tensor && !value->storage;
}

/* A mapping becomes an OrderedDict if it was one, with the attributes that hold no tensors. */
static struct value *path_nest_dress(struct nest *nest, const struct path_tree_node *node, struct value *dict)
{
    const struct value *form = node->is_form_open ? node->form : NULL;
    if (!form || !value_is_call(form, "collections", "OrderedDict"))
        return dict;
    struct value *class = value_new_global(nest->graph, "collections", "OrderedDict");
    struct value *made = class ? value_new_call(nest->graph, class, NULL, 0) : NULL;
    struct value **states = arena_array(&nest->graph->arena, form->object->state_count, sizeof(*states));
    if (!made || !states)
        return NULL;
    made->object->dict_items = dict->list.items;
    made->object->dict_count = (uint32_t)dict->list.count;
    made->object->states = states;
    for (uint32_t i = 0; i < form->object->state_count; i++) {
        const struct value *state = form->object->states[i];
        bool no_memory = false;
        if (!value_walk(state, nest->form_count, nest->graph->arena.work, is_no_tensor, NULL, &no_memory)) {
            if (no_memory)
                return NULL;
            continue;
        }
        struct value *copy = value_copy(nest->graph, state, nest->form_count);
        if (!copy)
            return NULL;
        states[made->object->state_count++] = copy;
    }
    return made;
}

static struct value *path_nest_key(struct nest *nest, const struct path_tree_node *node)
{
    bool no_memory = false;
    if (node->key && value_walk(node->key, nest->form_count, nest->graph->arena.work, is_no_tensor, NULL, &no_memory))
        return value_copy(nest->graph, node->key, nest->form_count);
    if (no_memory)
        return NULL;
    return node->part.kind == PATH_KEY ? value_new_str(nest->graph, node->part.key) : value_new_int(nest->graph, node->part.index);
}

static struct value *make_dict(struct nest *nest, const struct path_tree_node *node)
{
    size_t count = 0;
    struct value **items = arena_array(&nest->graph->arena, 2 * (size_t)node->child_count, sizeof(*items));
    if (!items)
        return NULL;
    for (uint32_t child = node->first; child != CATALOG_NONE; child = nest->tree.nodes[child].next) {
        items[count] = path_nest_key(nest, &nest->tree.nodes[child]);
        if (!items[count])
            return NULL;
        items[count + 1] = nest->made[child];
        count += 2;
    }
    struct value *dict = value_new_list(nest->graph, VALUE_DICT, items, count);
    return dict ? path_nest_dress(nest, node, dict) : NULL;
}

/* What was saved by itself has no container around it. */
static bool path_nest_is_one(const struct nest *nest, uint32_t number)
{
    const struct path_tree_node *nodes = nest->tree.nodes, *node = &nodes[number];
    if (number || !node->form || node->is_form_open || node->child_count != 1)
        return false;
    return nodes[node->first].is_leaf && nodes[node->first].part.kind == PATH_KEY && !nodes[node->first].part.key.size;
}

reshard_status nest_take_form(struct nest *nest, const struct catalog *source, const struct limits *limits, reshard_error *err)
{
    nest->form_count = source->tree_graph ? source->tree_graph->count : 0;
    return path_form_take(&nest->tree, source, limits, err);
}

/* Children first: they have the larger numbers. */
reshard_status nest_finish(struct nest *nest, reshard_error *err)
{
    if (!ARRAY_ROOM(nest->made, nest->tree.node_count, nest->capacity))
        return error_set_memory(err);
    for (uint32_t i = nest->tree.node_count; i-- > 0;) {
        const struct path_tree_node *node = &nest->tree.nodes[i];
        if (node->is_leaf)
            continue;
        size_t length = list_length(&nest->tree, node);
        bool is_empty = !node->child_count && node->form && (node->form->kind == VALUE_LIST || node->form->kind == VALUE_TUPLE);
        if (path_nest_is_one(nest, i)) {
            nest->made[i] = nest->made[node->first];
            continue;
        }
        nest->made[i] = length || is_empty ? path_nest_make_list(nest, node, length) : make_dict(nest, node);
        if (!nest->made[i])
            return error_set_memory(err);
    }
    nest->graph->root = nest->made[0];
    return RESHARD_OK;
}
