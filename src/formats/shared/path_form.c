/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/path_form.h"

#include "base/array.h"
#include "formats/shared/torch_flatten.h"

#include <stdlib.h>

struct taking {
    struct path_tree *tree;
    uint32_t *order; /* by node: its place in the walk over the object */
    uint32_t next;
};

static reshard_status path_form_note(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct taking *taking = context;
    uint32_t number = path_tree_find(taking->tree, leaf->parts, leaf->part_count);
    if (taking->tree->key.failed)
        return error_set_memory(err);
    if (number == CATALOG_NONE)
        return RESHARD_OK;
    struct path_tree_node *node = &taking->tree->nodes[number];
    bool is_told = !leaf->key || leaf->key->kind == VALUE_STR || leaf->key->kind == VALUE_INT;
    node->form = leaf->value;
    node->is_form_open = leaf->is_container;
    node->key = is_told ? NULL : leaf->key;
    taking->order[number] = taking->next++;
    return RESHARD_OK;
}

static int by_walk(const void *a, const void *b, void *context)
{
    const uint32_t *order = context, x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (order[x] != order[y])
        return order[x] < order[y] ? -1 : 1;
    return x < y ? -1 : x > y; /* as they were added */
}

static void path_form_sort(struct taking *taking, struct path_tree_node *container, uint32_t *children)
{
    struct path_tree_node *nodes = taking->tree->nodes;
    size_t count = 0;
    for (uint32_t child = container->first; child != CATALOG_NONE; child = nodes[child].next)
        children[count++] = child;
    if (count < 2)
        return;
    qsort_r(children, count, sizeof(*children), by_walk, taking->order);
    for (size_t i = 0; i < count; i++)
        nodes[children[i]].next = i + 1 < count ? children[i + 1] : CATALOG_NONE;
    container->first = children[0];
    container->last = children[count - 1];
}

reshard_status path_form_take(struct path_tree *tree, const struct catalog *source, const struct limits *limits, reshard_error *err)
{
    struct taking taking = { .tree = tree };
    uint32_t root;
    size_t depth;
    enum path_place place;
    if (!source->tree || !source->tree_graph)
        return RESHARD_OK;
    if (!path_tree_place(tree, NULL, 0, &root, &depth, &place))
        return error_set_memory(err);
    size_t count = (size_t)tree->node_count + 1;
    uint32_t *children = array_new(count, sizeof(*children));
    taking.order = array_new(count, sizeof(*taking.order));
    reshard_status status = children && taking.order ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        memset(taking.order, 0xFF, count * sizeof(*taking.order));
        status = torch_flatten_structure(source->tree_graph, limits, path_form_note, &taking, err);
    }
    for (uint32_t i = 0; i < tree->node_count && !status; i++)
        path_form_sort(&taking, &tree->nodes[i], children);
    free(children);
    free(taking.order);
    return status;
}

enum path_form path_form_of(const struct path_tree_node *node)
{
    const struct value *form = node->is_form_open ? node->form : NULL;
    if (node->is_list)
        return form && form->kind == VALUE_TUPLE ? FORM_TUPLE : FORM_LIST;
    return form && (form->kind == VALUE_CALL || form->kind == VALUE_NEW) ? FORM_OBJECT : FORM_DICT;
}
