/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_chain.h"

#include "base/array.h"
#include "mapping/map_permute.h"

#include <stdlib.h>

static bool append_edge(struct map_chain *chain, struct map_edge edge)
{
    if (!ARRAY_ROOM(chain->edges, chain->count, chain->capacity))
        return false;
    chain->edges[chain->count++] = edge;
    return true;
}

static bool record_statement(struct map_chain *chain, const struct map_statement *statement)
{
    const struct map_attribute *permute = map_attribute_find(statement, "permute"), *stack = map_attribute_find(statement, "stack");
    const struct map_attribute *change = stack ? stack : map_attribute_find(statement, "unstack");
    for (uint32_t i = 0; i < statement->left_count; i++) {
        struct str left;
        bool is_transposed = map_strip_transpose(statement->left[i].text, &left);
        for (uint32_t j = 0; j < statement->right_count; j++) {
            if (map_is_hole(&statement->left[i]) || map_is_hole(&statement->right[j]))
                continue;
            struct map_edge edge = { .is_transposed = is_transposed, .permute = permute, .stack = change, .is_stack = stack != NULL };
            edge.from = name_map_intern(&chain->names, left, NULL);
            edge.to = name_map_intern(&chain->names, statement->right[j].text, NULL);
            if (edge.from == NAME_NONE || edge.to == NAME_NONE || !append_edge(chain, edge))
                return false;
        }
    }
    return true;
}

static int compare_from(const void *a, const void *b)
{
    const struct map_edge *x = a, *y = b;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static int compare_to(const void *a, const void *b, void *context)
{
    const struct map_edge *edges = context;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (edges[x].to != edges[y].to)
        return edges[x].to < edges[y].to ? -1 : 1;
    return x < y ? -1 : x > y;
}

static bool needs_record(const struct map_program *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->statements[i].flag)
            return true;
    }
    return false;
}

reshard_status map_chain_record(const struct map_program *list, struct map_chain *out, reshard_error *err)
{
    if (!needs_record(list))
        return RESHARD_OK;
    for (uint32_t i = 0; i < list->count; i++) {
        if (!record_statement(out, &list->statements[i]))
            return error_set_memory(err);
    }
    out->by_target = array_new(out->count, sizeof(*out->by_target));
    if (!out->by_target)
        return error_set_memory(err);
    if (out->count)
        qsort(out->edges, out->count, sizeof(out->edges[0]), compare_from);
    for (uint32_t i = 0; i < out->count; i++)
        out->by_target[i] = i;
    if (out->count)
        qsort_r(out->by_target, out->count, sizeof(out->by_target[0]), compare_to, out->edges);
    return RESHARD_OK;
}

void map_chain_release(struct map_chain *chain)
{
    name_map_release(&chain->names);
    free(chain->edges);
    free(chain->by_target);
    *chain = (struct map_chain){ 0 };
}

/* ---- walking ---- */

/* The i-th edge in the order of the end that is looked from. */
static const struct map_edge *edge_at(const struct map_chain *chain, bool backwards, uint32_t index)
{
    return &chain->edges[backwards ? chain->by_target[index] : index];
}

/* Edges at the name: number of the first, and how many. */
static uint32_t edges_of(const struct map_chain *chain, bool backwards, uint32_t name, uint32_t *count)
{
    uint32_t low = 0, high = chain->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct map_edge *edge = edge_at(chain, backwards, middle);
        if ((backwards ? edge->to : edge->from) < name)
            low = middle + 1;
        else
            high = middle;
    }
    *count = 0;
    for (uint32_t i = low; i < chain->count; i++, (*count)++) {
        const struct map_edge *edge = edge_at(chain, backwards, i);
        if ((backwards ? edge->to : edge->from) != name)
            break;
    }
    return low;
}

/* The path from a name to a key: numbers of edges in the order of the walk. */
struct walk {
    uint32_t *steps;
    uint32_t count, capacity;
    uint32_t weight; /* MAP_NONE: no key was found */
};

enum walk_result { WALK_DONE, WALK_AMBIGUOUS, WALK_LOOP, WALK_NO_MEMORY };

static bool append_step(struct walk *walk, uint32_t step)
{
    if (!ARRAY_ROOM(walk->steps, walk->count, walk->capacity))
        return false;
    walk->steps[walk->count++] = step;
    return true;
}

/* Whether a name is made of itself with the axes that it has, as by a cast: it goes on as it would without that. */
static bool is_same_again(const struct map_edge *edge)
{
    return edge->from == edge->to && !edge->is_transposed && !edge->permute && !edge->stack;
}

static enum walk_result walk_to_key(const struct map_chain *chain, const struct map_space *space, struct str start, bool backwards,
                                    struct walk *walk)
{
    uint32_t name = name_map_find(&chain->names, start), count;
    struct str text = start;
    walk->weight = MAP_NONE;
    for (;;) {
        uint32_t weight = map_space_find(space, text);
        if (weight != MAP_NONE && map_space_shaped(space, weight)) {
            walk->weight = weight;
            return WALK_DONE;
        }
        uint32_t first = name == NAME_NONE ? 0 : edges_of(chain, backwards, name, &count);
        if (name == NAME_NONE || !count)
            return WALK_DONE;
        uint32_t chosen = MAP_NONE, next = name;
        for (uint32_t i = first; i < first + count; i++) {
            const struct map_edge *edge = edge_at(chain, backwards, i);
            const uint32_t other = backwards ? edge->from : edge->to;
            if (is_same_again(edge))
                continue;
            if (chosen != MAP_NONE && other != next)
                return WALK_AMBIGUOUS;
            chosen = chosen == MAP_NONE ? i : chosen;
            next = other;
        }
        if (next == name) /* made of itself, and on this side nobody has it: the walk ends here */
            return WALK_DONE;
        if (walk->count > chain->count)
            return WALK_LOOP;
        if (!append_step(walk, backwards ? chain->by_target[chosen] : chosen))
            return WALK_NO_MEMORY;
        name = next;
        text = name_map_at(&chain->names, name);
    }
}

/* How many axes more a name has than the one that the walk comes to over this edge. */
static int axes_more(const struct map_edge *edge, bool backwards)
{
    return !edge->stack ? 0 : edge->is_stack == backwards ? 1 : -1;
}

/* The axis on the other side of a stack or unstack; -1: there is none, it was added here. */
static int64_t axis_across_stack(const struct map_edge *edge, bool backwards, int64_t axis)
{
    int64_t changed = edge->stack->number;
    if (axes_more(edge, backwards) < 0)
        return axis + (axis >= changed);
    return axis == changed ? -1 : axis - (axis > changed);
}

/* The axis on the other side of an edge, where the name on this side has `rank` axes; -1 if there is none. */
static int64_t axis_across(const struct map_edge *edge, bool backwards, int rank, int64_t axis)
{
    uint8_t axes[RANK_MAX];
    int64_t values[RANK_MAX];
    int count;
    if (axis < 0 || axis >= rank)
        return -1;
    if (edge->stack && edge->is_transposed && !backwards)
        return axis_across_stack(edge, backwards, rank - 1 - axis);
    if (edge->stack) {
        axis = axis_across_stack(edge, backwards, axis);
        return edge->is_transposed && axis >= 0 ? rank - axes_more(edge, backwards) - 1 - axis : axis;
    }
    if (edge->is_transposed && !backwards)
        axis = rank - 1 - axis;
    if (edge->permute) {
        if (map_list_parse(edge->permute->value, values, &count) != MAP_LIST_OK || !map_permutation_of(values, count, rank, axes))
            return -1;
        int64_t found = backwards ? axes[axis] : -1;
        for (int i = 0; i < rank && !backwards; i++) {
            if (axes[i] == axis)
                found = i;
        }
        axis = found;
    }
    return edge->is_transposed && backwards ? rank - 1 - axis : axis;
}

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Distinct starts of a tensor's shards along an axis; 0 without memory. */
static int64_t tensor_degree(const struct map_tensor *tensor, int64_t axis)
{
    int64_t degree = 0;
    if (axis < 0 || axis >= tensor->rank || tensor->shard_count == 1)
        return 1;
    int64_t *starts = array_zeroed(tensor->shard_count, sizeof(*starts));
    for (uint32_t i = 0; starts && i < tensor->shard_count; i++)
        starts[i] = tensor->shards[i].start[axis];
    if (starts)
        qsort(starts, tensor->shard_count, sizeof(*starts), compare_i64);
    for (uint32_t i = 0; starts && i < tensor->shard_count; i++)
        degree += i == 0 || starts[i] != starts[i - 1];
    free(starts);
    return degree;
}

/* The degree of a weight, on which its states must agree; 0 if it was diagnosed. */
static int64_t weight_degree(const struct map_macro_context *context, const struct map_space *space, uint32_t weight, int64_t axis,
                             struct map_span span)
{
    int64_t degree = 0;
    const char *first = "";
    struct str base;
    for (int state = 0; state < MAP_STATE_COUNT; state++) {
        uint32_t tensor = space->weights[weight].tensors[state];
        if (!map_state_is_shaped[state] || tensor == MAP_NONE)
            continue;
        /* How the optimizers of other frameworks cut their states says nothing about the weight. */
        if (map_state_of(space->tensors[tensor].key, &base) != (enum map_state)state)
            continue;
        int64_t found = tensor_degree(&space->tensors[tensor], axis);
        if (!found) {
            context->diagnoses->no_memory = true;
            return 0;
        }
        if (degree && found != degree) {
            struct str name = space->weights[weight].name;
            map_diagnose(context->diagnoses, MAP_ERROR, span, NULL, "%s of '%.*s' is cut into %lld parts along axis %lld, %s into %lld",
                         first, STR_ARG(name), (long long)degree, (long long)axis, map_state_name[state], (long long)found);
            return 0;
        }
        first = degree ? first : map_state_name[state];
        degree = found;
    }
    return degree;
}

static bool fail_walk(const struct map_macro_context *context, enum walk_result result, const struct map_name *name, struct str text,
                      bool is_left)
{
    if (result == WALK_NO_MEMORY) {
        context->diagnoses->no_memory = true;
        return false;
    }
    return map_diagnose(context->diagnoses, MAP_ERROR, name->span,
                        "a fused macro needs to know how many ranks cut the tensor: name a key here",
                        result == WALK_LOOP ? "'%.*s' and other names are made from each other in a circle: no key of the %s is found"
                                            : "'%.*s' is tied to several keys of the %s: how many ranks cut it is not clear",
                        STR_ARG(text), is_left != context->reverse ? "source" : "target");
}

bool map_chain_degree(const struct map_macro_context *context, const struct map_chain *chain, const struct map_name *name, bool is_left,
                      int64_t axis, int64_t *degree)
{
    const struct map_space *space = is_left ? map_left_space(context) : map_right_space(context);
    struct str text = name->transpose_of.size ? name->transpose_of : name->text;
    struct walk walk = { 0 };
    *degree = 1;
    if (!space)
        return true;
    enum walk_result result = walk_to_key(chain, space, text, is_left, &walk);
    if (result != WALK_DONE) {
        free(walk.steps);
        return fail_walk(context, result, name, text, is_left);
    }
    if (walk.weight == MAP_NONE) {
        free(walk.steps);
        map_diagnose(context->diagnoses, MAP_WARNING, name->span, NULL,
                     "no key of the %s is found for '%.*s': it is taken to be cut into 1 part",
                     is_left != context->reverse ? "source" : "target", STR_ARG(text));
        return true;
    }
    int rank = map_space_shaped(space, walk.weight)->rank;
    for (uint32_t i = 0; i < walk.count; i++)
        rank += axes_more(&chain->edges[walk.steps[i]], is_left);
    if (name->transpose_of.size && axis < rank)
        axis = rank - 1 - axis;
    for (uint32_t i = 0; i < walk.count; i++) {
        axis = axis_across(&chain->edges[walk.steps[i]], is_left, rank, axis);
        rank -= axes_more(&chain->edges[walk.steps[i]], is_left);
    }
    free(walk.steps);
    *degree = weight_degree(context, space, walk.weight, axis, name->span);
    return *degree > 0;
}
