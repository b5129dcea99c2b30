/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/path_tree.h"

#include "base/array.h"
#include "encoding/pickle_write.h"

#include <stdlib.h>

/* ---- building ---- */

static bool add_node(struct path_tree *tree, const struct path_tree_node *node, uint32_t *out)
{
    if (!ARRAY_ROOM(tree->nodes, tree->node_count, tree->node_capacity))
        return false;
    *out = tree->node_count;
    tree->nodes[tree->node_count] = *node;
    tree->nodes[tree->node_count].first = tree->nodes[tree->node_count].last = tree->nodes[tree->node_count].next = CATALOG_NONE;
    tree->nodes[tree->node_count++].child_count = 0;
    return true;
}

/* Spells a child so that no two different ones are spelled alike. */
static bool path_tree_spell(struct path_tree *tree, uint32_t parent, const struct path_part *part)
{
    buffer_clear(&tree->key);
    buffer_append_u32le(&tree->key, parent);
    buffer_append_byte(&tree->key, (uint8_t)part->kind);
    if (part->kind == PATH_KEY)
        buffer_append_str(&tree->key, part->key);
    else
        buffer_append_u64le(&tree->key, (uint64_t)part->index);
    return !tree->key.failed; /* an append may succeed behind one that did not */
}

/* The child, made if need be. */
static bool descend(struct path_tree *tree, uint32_t parent, const struct path_part *part, uint32_t *out, bool *was_new)
{
    if (!path_tree_spell(tree, parent, part))
        return false;
    uint32_t index = name_map_intern(&tree->children, buffer_str(&tree->key), was_new);
    if (index == NAME_NONE)
        return false;
    *out = index + 1;
    if (!*was_new)
        return true;
    struct path_tree_node made = { .part = *part, .wanted = CATALOG_NONE };
    if (!add_node(tree, &made, out))
        return false;
    struct path_tree_node *container = &tree->nodes[parent];
    if (container->last == CATALOG_NONE)
        container->first = *out;
    else
        tree->nodes[container->last].next = *out;
    container->last = *out;
    container->child_count++;
    return true;
}

bool path_tree_place(struct path_tree *tree, const struct path_part *parts, size_t count, uint32_t *out, size_t *depth,
                     enum path_place *place)
{
    struct path_tree_node root = { .wanted = CATALOG_NONE };
    bool was_new = tree->node_count == 0;
    *out = 0;
    *place = PATH_THROUGH_LEAF;
    if (was_new && !add_node(tree, &root, out))
        return false;
    for (*depth = 0; *depth < count; ++*depth) {
        if (tree->nodes[*out].is_leaf)
            return true;
        if (!descend(tree, *out, &parts[*depth], out, &was_new))
            return false;
    }
    *place = was_new ? PATH_PLACED : PATH_TAKEN;
    return true;
}

static reshard_status path_error(const struct path_part *parts, size_t count, const char *what, reshard_error *err)
{
    struct buffer text = { 0 };
    if (path_join(parts, count, &text))
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' %s", STR_ARG(buffer_str(&text)), what);
    else
        error_set_memory(err);
    reshard_status status = text.failed ? RESHARD_ERR_MEMORY : RESHARD_ERR_UNSUPPORTED;
    buffer_release(&text);
    return status;
}

reshard_status path_tree_add(struct path_tree *tree, const struct path_part *parts, size_t count, struct path_tree_node leaf,
                            reshard_error *err)
{
    uint32_t at;
    size_t depth;
    enum path_place place;
    if (!path_tree_place(tree, parts, count, &at, &depth, &place))
        return error_set_memory(err);
    if (place == PATH_THROUGH_LEAF)
        return path_error(parts, depth, "is a value and a container at once", err);
    if (place == PATH_TAKEN)
        return path_error(parts, count, "is there twice", err);
    struct path_tree_node *node = &tree->nodes[at];
    node->is_leaf = true;
    node->wanted = leaf.wanted;
    node->tensor = leaf.tensor;
    node->value = leaf.value;
    node->graph_count = leaf.graph_count;
    return RESHARD_OK;
}

uint32_t path_tree_find(struct path_tree *tree, const struct path_part *parts, size_t count)
{
    uint32_t node = tree->node_count ? 0 : CATALOG_NONE;
    for (size_t i = 0; i < count && node != CATALOG_NONE; i++) {
        uint32_t index = path_tree_spell(tree, node, &parts[i]) ? name_map_find(&tree->children, buffer_str(&tree->key)) : NAME_NONE;
        node = index == NAME_NONE ? CATALOG_NONE : index + 1;
    }
    return node;
}

uint32_t path_tree_child(struct path_tree *tree, uint32_t parent, struct str name)
{
    struct path_part part = { .kind = PATH_KEY, .key = name };
    if (tree->node_count == 0 || !path_tree_spell(tree, parent, &part))
        return CATALOG_NONE;
    uint32_t index = name_map_find(&tree->children, buffer_str(&tree->key));
    return index == NAME_NONE ? CATALOG_NONE : index + 1;
}

/* ---- lists ---- */

static int by_position(const void *a, const void *b, void *context)
{
    const struct path_tree_node *nodes = context;
    int64_t x = nodes[*(const uint32_t *)a].part.index, y = nodes[*(const uint32_t *)b].part.index;
    return x < y ? -1 : x > y;
}

static bool all_positions(const struct path_tree *tree, uint32_t node)
{
    for (uint32_t child = tree->nodes[node].first; child != CATALOG_NONE; child = tree->nodes[child].next) {
        if (tree->nodes[child].part.kind != PATH_INDEX)
            return false;
    }
    return tree->nodes[node].child_count > 0;
}

/* Puts the children, all of which have positions, in their order; returns whether there is a hole. */
static bool sort_children(struct path_tree *tree, uint32_t node, uint32_t *order)
{
    struct path_tree_node *container = &tree->nodes[node];
    uint32_t count = 0;
    for (uint32_t child = container->first; child != CATALOG_NONE; child = tree->nodes[child].next)
        order[count++] = child;
    qsort_r(order, count, sizeof(*order), by_position, tree->nodes);
    bool has_hole = false;
    for (uint32_t i = 0; i < count; i++) {
        tree->nodes[order[i]].next = i + 1 < count ? order[i + 1] : CATALOG_NONE;
        has_hole = has_hole || tree->nodes[order[i]].part.index != (int64_t)i;
    }
    container->first = order[0];
    container->last = order[count - 1];
    return has_hole;
}

reshard_status path_tree_finish(struct path_tree *tree, bool *has_hole, reshard_error *err)
{
    *has_hole = false;
    uint32_t *order = array_new(tree->node_count, sizeof(*order));
    if (!order)
        return error_set_memory(err);
    for (uint32_t i = 0; i < tree->node_count; i++) {
        const struct path_tree_node *node = &tree->nodes[i];
        bool was_sequence = node->form && (node->form->kind == VALUE_LIST || node->form->kind == VALUE_TUPLE);
        tree->nodes[i].is_list = was_sequence && node->is_form_open && !node->child_count;
        if (node->is_leaf || (!i && !was_sequence) || !all_positions(tree, i))
            continue;
        bool hole = sort_children(tree, i, order);
        tree->nodes[i].is_list = !hole;
        *has_hole = *has_hole || hole;
    }
    free(order);
    return RESHARD_OK;
}

/* ---- writing ---- */

struct open_node {
    uint32_t node, child;
};

static bool begin_container(const struct path_tree_node *node, struct buffer *out)
{
    pickle_put_opcode(out, node->is_list ? PICKLE_EMPTY_LIST : PICKLE_EMPTY_DICT);
    pickle_put_opcode(out, PICKLE_MARK);
    return !out->failed;
}

static void path_tree_put_name(const struct path_tree_node *container, const struct path_part *part, struct buffer *out)
{
    if (container->is_list)
        return;
    if (part->kind == PATH_KEY)
        pickle_put_str(out, part->key);
    else
        pickle_put_int(out, part->index);
}

static bool path_tree_push(struct open_node **stack, size_t *depth, size_t *capacity, const struct path_tree *tree, uint32_t node)
{
    if (!ARRAY_ROOM(*stack, *depth, *capacity))
        return false;
    (*stack)[(*depth)++] = (struct open_node){ node, tree->nodes[node].first };
    return true;
}

reshard_status path_tree_write(const struct path_tree *tree, uint32_t node, path_tree_put_leaf put_leaf, void *context, struct buffer *out,
                              reshard_error *err)
{
    struct open_node *stack = NULL;
    size_t depth = 0, capacity = 0;
    reshard_status status = RESHARD_OK;
    if (tree->node_count == 0) {
        pickle_put_opcode(out, PICKLE_EMPTY_DICT);
        return out->failed ? error_set_memory(err) : RESHARD_OK;
    }
    if (tree->nodes[node].is_leaf)
        return put_leaf(context, node, out, err);
    if (!begin_container(&tree->nodes[node], out) || !path_tree_push(&stack, &depth, &capacity, tree, node))
        status = error_set_memory(err);
    while (depth > 0 && !status) {
        struct open_node *top = &stack[depth - 1];
        const struct path_tree_node *container = &tree->nodes[top->node];
        if (top->child == CATALOG_NONE) {
            pickle_put_opcode(out, container->is_list ? PICKLE_APPENDS : PICKLE_SETITEMS);
            depth--;
            continue;
        }
        uint32_t child = top->child;
        top->child = tree->nodes[child].next;
        if (tree->nodes[child].is_left_out)
            continue;
        path_tree_put_name(container, &tree->nodes[child].part, out);
        if (tree->nodes[child].is_leaf)
            status = put_leaf(context, child, out, err);
        else if (!begin_container(&tree->nodes[child], out) || !path_tree_push(&stack, &depth, &capacity, tree, child))
            status = error_set_memory(err);
    }
    free(stack);
    return !status && out->failed ? error_set_memory(err) : status;
}

void path_tree_release(struct path_tree *tree)
{
    name_map_release(&tree->children);
    buffer_release(&tree->key);
    free(tree->nodes);
    *tree = (struct path_tree){ 0 };
}
