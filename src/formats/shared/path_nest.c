/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/path_nest.h"

#include <stdlib.h>

#include "base/array.h"

/* Lists may be sparse to this degree; beyond, positions become integer keys of a dict. */
#define LIST_GAPS_MAX 1024

#define NO_NODE UINT32_MAX

static bool nest_node_add(struct nest *nest, const struct path_part *part, uint32_t *out)
{
    if (!ARRAY_ROOM(nest->nodes, nest->count, nest->capacity))
        return false;
    nest->nodes[nest->count] =
        (struct nest_node){ .first_child = NO_NODE, .last_child = NO_NODE, .next_sibling = NO_NODE, .is_list = true };
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

bool nest_put(struct nest *nest, const struct path_part *parts, size_t count, struct value *leaf, bool *is_taken)
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

bool nest_begin(struct nest *nest, struct value_graph *graph)
{
    uint32_t root;
    *nest = (struct nest){ .graph = graph };
    return nest_node_add(nest, NULL, &root);
}

void nest_release(struct nest *nest)
{
    free(nest->nodes);
    name_map_release(&nest->children);
    buffer_release(&nest->scratch);
}

static struct value *path_nest_make_list(struct nest *nest, const struct nest_node *node)
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
reshard_status nest_finish(struct nest *nest, reshard_error *err)
{
    for (uint32_t i = nest->count; i-- > 0;) {
        struct nest_node *node = &nest->nodes[i];
        if (node->leaf)
            continue;
        bool is_list = node->is_list && node->child_count > 0 && node->index_max < (int64_t)node->child_count * 4 + LIST_GAPS_MAX;
        node->leaf = is_list ? path_nest_make_list(nest, node) : make_dict(nest, node);
        if (!node->leaf)
            return error_set_memory(err);
    }
    nest->graph->root = nest->nodes[0].leaf;
    return RESHARD_OK;
}
