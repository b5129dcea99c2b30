/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules are a tree. Where two parameters follow each other in a unit or a group, so do the branches in which they part; sorted by that,
 * branch by branch, the tree is the model's. What nothing tells keeps the order of the source.
 */
#include "formats/atorch/atorch_order.h"

#include "base/array.h"
#include "base/sort.h"

#include <stdlib.h>

#define ORDER_DEPTH_MAX 64 /* modules within modules; deeper names are not taken apart further */

/* A module or parameter. Those that are seen first in the source come first. */
struct order_node {
    uint32_t parent, parameter; /* parameter: CATALOG_NONE for a module */
    uint32_t depth;
};

/* What is believed, from all to next to nothing: groups may be in an order of their own, and names that are numbers too. */
enum { ORDER_GROUPS = 1, ORDER_NUMBERS = 2, ORDER_BELIEFS = 4 };

struct ordering {
    const struct source *source;
    const struct atorch_model *model;
    struct name_map names; /* of nodes; 0 is the root */
    struct order_node *nodes;
    uint32_t nodes_capacity;
    uint32_t *leaf_of; /* by parameter */
    struct sort_entry *edges; /* key: from and to */
    size_t edge_count;
    size_t edges_capacity;
    uint32_t *place;   /* by node: where it stands among all */
    bool contradicts;  /* what is believed has no order */
};

static int64_t order_key(uint32_t from, uint32_t to)
{
    return (int64_t)((uint64_t)from << 32 | (UINT32_MAX - to));
}

static bool order_add_node(struct ordering *ordering, struct str path, uint32_t parent, uint32_t *out)
{
    bool is_new;
    *out = name_map_intern(&ordering->names, path, &is_new);
    if (*out == NAME_NONE || *out >= INT32_MAX || !ARRAY_ROOM(ordering->nodes, *out, ordering->nodes_capacity))
        return false;
    if (is_new)
        ordering->nodes[*out] = (struct order_node){ parent, CATALOG_NONE, path.size ? ordering->nodes[parent].depth + 1 : 0 };
    return true;
}

static bool order_grow_tree(struct ordering *ordering)
{
    uint32_t root;
    bool good = order_add_node(ordering, (struct str){ "", 0 }, 0, &root);
    for (uint32_t i = 0; good && i < ordering->model->parameter_count; i++) {
        struct str name = ordering->model->parameters[i].name;
        uint32_t node = root;
        for (size_t at = 1, depth = 1; good && at < name.size && depth < ORDER_DEPTH_MAX; at++) {
            if (name.data[at] != '.')
                continue;
            good = order_add_node(ordering, (struct str){ name.data, at }, node, &node);
            depth++;
        }
        good = good && (!name.size || order_add_node(ordering, name, node, &node));
        ordering->leaf_of[i] = node;
        if (good && name.size)
            ordering->nodes[node].parameter = i;
    }
    return good;
}

/* ---- what follows what ---- */

static bool order_add_edge(struct ordering *ordering, uint32_t from, uint32_t to)
{
    if (!ARRAY_ROOM(ordering->edges, ordering->edge_count, ordering->edges_capacity))
        return false;
    ordering->edges[ordering->edge_count++] = (struct sort_entry){ order_key(from, to), to };
    return true;
}

/* One parameter comes before another: so do the branches in which they part. */
static bool order_follow(struct ordering *ordering, uint32_t before, uint32_t after)
{
    const struct order_node *nodes = ordering->nodes;
    uint32_t a = ordering->leaf_of[before], b = ordering->leaf_of[after];
    while (a && b && nodes[a].parent != nodes[b].parent) {
        uint32_t depth = nodes[a].depth;
        if (depth >= nodes[b].depth)
            a = nodes[a].parent;
        if (nodes[b].depth >= depth)
            b = nodes[b].parent;
    }
    if (!a || !b || a == b)
        return true;
    bool is_own = nodes[a].parameter != CATALOG_NONE, is_other_own = nodes[b].parameter != CATALOG_NONE;
    ordering->contradicts |= !is_own && is_other_own;
    return is_own != is_other_own || order_add_edge(ordering, a, b);
}

static bool order_follow_units(struct ordering *ordering)
{
    const struct atorch_model *model = ordering->model;
    bool good = true;
    for (uint32_t u = 0; u < model->unit_count; u++) {
        uint32_t before = CATALOG_NONE;
        for (uint32_t i = 0; good && i < model->units[u].count; i++) {
            uint32_t parameter = model->units[u].first + i;
            if (!model->parameters[parameter].name.size)
                continue;
            good = before == CATALOG_NONE || order_follow(ordering, before, parameter);
            before = parameter;
        }
    }
    return good;
}

static bool order_follow_groups(struct ordering *ordering)
{
    const struct catalog *catalog = ordering->source->catalog;
    uint32_t item = catalog_find_item(catalog, str_of("optim_meta"));
    const struct value *groups = item == CATALOG_NONE ? NULL : catalog->items[item].value;
    bool good = true;
    for (size_t g = 0; good && groups && groups->kind == VALUE_LIST && g < groups->list.count; g++) {
        const struct value *members = value_dict_get(groups->list.items[g], "params");
        const struct atorch_parameter *before = NULL;
        for (size_t i = 0; good && members && members->kind == VALUE_LIST && i < members->list.count; i++) {
            const struct value *name = members->list.items[i];
            const struct atorch_parameter *found =
                name->kind == VALUE_STR && name->text.size ? atorch_parameter_find(ordering->model, name->text) : NULL;
            if (!found)
                continue;
            good = !before || order_follow(ordering, (uint32_t)(before - ordering->model->parameters),
                                           (uint32_t)(found - ordering->model->parameters));
            before = found;
        }
    }
    return good;
}

/* Whether what comes behind the last dot is a number, as in lists of modules. */
static bool order_number(const struct ordering *ordering, uint32_t node, uint64_t *out)
{
    struct str name = name_map_at(&ordering->names, node), parent = name_map_at(&ordering->names, ordering->nodes[node].parent);
    size_t skip = parent.size ? parent.size + 1 : 0;
    return node && name.size > skip && str_to_u64((struct str){ name.data + skip, name.size - skip }, out) && *out < INT32_MAX;
}

static bool order_follow_numbers(struct ordering *ordering)
{
    uint32_t count = 0;
    struct sort_entry *entries = array_new(ordering->names.count, 2 * sizeof(*entries));
    bool good = entries != NULL;
    for (uint32_t i = 1; good && i < ordering->names.count; i++) {
        uint64_t number;
        if (ordering->nodes[i].parameter == CATALOG_NONE && order_number(ordering, i, &number))
            entries[count++] = (struct sort_entry){ (int64_t)((uint64_t)ordering->nodes[i].parent << 32 | number), i };
    }
    if (good)
        entries_sort(entries, entries + count, count);
    for (uint32_t i = 1; good && i < count; i++)
        if (entries[i - 1].key >> 32 == entries[i].key >> 32)
            good = order_add_edge(ordering, entries[i - 1].value, entries[i].value);
    free(entries);
    return good;
}

/* ---- sorting ---- */

/* The first edge of that key or a higher one. */
static size_t order_edges_of(const struct ordering *ordering, int64_t key)
{
    return entries_first(ordering->edges, 0, ordering->edge_count, key);
}

/* Gives all nodes their places, each before those that follow it; of others the first seen comes first. Depth first, from the end. */
static bool order_sort(struct ordering *ordering)
{
    enum { UNTOUCHED, OPEN, DONE };
    uint32_t count = ordering->names.count, next = count;
    size_t depth, *cursors = array_new(count, sizeof(*cursors));
    uint32_t *stack = array_new(count, sizeof(*stack));
    uint8_t *states = array_zeroed(count, 1);
    struct sort_entry *spare = array_new(ordering->edge_count, sizeof(*spare));
    bool good = cursors && stack && states && spare;
    if (good)
        entries_sort(ordering->edges, spare, ordering->edge_count);
    for (uint32_t start = count; good && start-- > 0;) {
        if (states[start] != UNTOUCHED)
            continue;
        stack[0] = start;
        cursors[0] = order_edges_of(ordering, order_key(start, UINT32_MAX));
        states[start] = OPEN;
        for (depth = 1; depth > 0;) {
            uint32_t node = stack[depth - 1];
            size_t edge = cursors[depth - 1]++;
            if (edge >= ordering->edge_count || ordering->edges[edge].key >> 32 != node) {
                states[node] = DONE;
                ordering->place[node] = --next;
                depth--;
                continue;
            }
            uint32_t to = ordering->edges[edge].value;
            ordering->contradicts |= states[to] == OPEN;
            if (states[to] != UNTOUCHED)
                continue;
            states[to] = OPEN;
            stack[depth] = to;
            cursors[depth++] = order_edges_of(ordering, order_key(to, UINT32_MAX));
        }
    }
    free(cursors);
    free(stack);
    free(states);
    free(spare);
    return good;
}

static bool order_believe(struct ordering *ordering, unsigned belief)
{
    ordering->edge_count = 0;
    ordering->contradicts = false;
    return order_follow_units(ordering) && (!(belief & ORDER_GROUPS) || order_follow_groups(ordering)) &&
           (!(belief & ORDER_NUMBERS) || order_follow_numbers(ordering)) && order_sort(ordering);
}

/* Whether nodes side by side are told to be so. */
static bool order_is_told(const struct ordering *ordering, uint32_t a, uint32_t b)
{
    size_t edge = order_edges_of(ordering, order_key(a, b));
    bool is_own = ordering->nodes[a].parameter != CATALOG_NONE, is_other_own = ordering->nodes[b].parameter != CATALOG_NONE;
    return is_own != is_other_own || (edge < ordering->edge_count && ordering->edges[edge].key == order_key(a, b));
}

/* Nodes but the root by their parent, parameters before modules, in order; first[i]: where those of node i begin. entries: room for two of
 * each node. */
static void order_children(const struct ordering *ordering, struct sort_entry *entries, uint32_t *first)
{
    uint32_t count = ordering->names.count;
    for (uint32_t i = 1; i < count; i++) {
        bool is_module = ordering->nodes[i].parameter == CATALOG_NONE;
        entries[i - 1] = (struct sort_entry){ (int64_t)ordering->place[i] + (is_module ? count : 0), i };
        first[ordering->nodes[i].parent + 1]++;
    }
    entries_sort(entries, entries + count, count - 1);
    for (uint32_t i = 0; i + 1 < count; i++)
        entries[i].key = ordering->nodes[entries[i].value].parent;
    entries_sort(entries, entries + count, count - 1);
    for (uint32_t i = 0; i < count; i++)
        first[i + 1] += first[i];
}

/* The tree, from its root: a node's own parameters, then its modules. */
static bool order_walk(const struct ordering *ordering, struct arena *arena, struct atorch_order *out)
{
    uint32_t count = ordering->names.count, depth = 0;
    uint32_t *first = array_zeroed((size_t)count + 2, sizeof(*first)), *stack = array_new(count, sizeof(*stack));
    struct sort_entry *children = array_new(count, 2 * sizeof(*children));
    bool good = first && stack && children;
    if (good) {
        order_children(ordering, children, first);
        stack[depth++] = 0;
    }
    while (good && depth > 0) {
        uint32_t node = stack[--depth];
        if (ordering->nodes[node].parameter != CATALOG_NONE)
            out->parameters[out->count++] = ordering->nodes[node].parameter;
        for (uint32_t i = first[node + 1]; good && i-- > first[node];) {
            uint32_t child = children[i].value, before = i > first[node] ? children[i - 1].value : 0;
            stack[depth++] = child;
            if (before && !out->before.size && !order_is_told(ordering, before, child))
                good = arena_str(arena, name_map_at(&ordering->names, before), &out->before) &&
                       arena_str(arena, name_map_at(&ordering->names, child), &out->after);
        }
    }
    free(first);
    free(stack);
    free(children);
    return good;
}

reshard_status atorch_order_find(const struct source *source, struct arena *arena, struct atorch_order *out, reshard_error *err)
{
    const struct atorch_source *state = atorch_source_of(source);
    struct ordering ordering = { .source = source, .model = &state->model };
    *out = (struct atorch_order){ .parameters = arena_array(arena, state->model.parameter_count, sizeof(*out->parameters)) };
    ordering.leaf_of = array_zeroed(state->model.parameter_count, sizeof(*ordering.leaf_of));
    bool good = out->parameters && ordering.leaf_of && order_grow_tree(&ordering);
    ordering.place = good ? array_zeroed(ordering.names.count, sizeof(*ordering.place)) : NULL;
    good = good && ordering.place;
    ordering.contradicts = true;
    for (unsigned belief = ORDER_BELIEFS; good && ordering.contradicts && belief-- > 0;)
        good = order_believe(&ordering, belief);
    good = good && order_walk(&ordering, arena, out);
    free(ordering.leaf_of);
    free(ordering.nodes);
    free(ordering.edges);
    free(ordering.place);
    name_map_release(&ordering.names);
    return good ? RESHARD_OK : error_set_memory(err);
}
