/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/torch_flatten.h"

#include "base/array.h"
#include "encoding/torch_save.h"

#include <stdlib.h>

/* Leaves a node of the graph may stand for on average, before sharing counts as an attack. */
#define LEAVES_PER_NODE_MAX 16

enum container_kind { NOT_CONTAINER, SEQUENCE, MAPPING };

static enum container_kind container_kind(const struct value *value)
{
    if (value->tensor)
        return NOT_CONTAINER; /* a tuple may spell a tensor */
    switch (value->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
        return SEQUENCE;
    case VALUE_DICT:
        return MAPPING;
    case VALUE_CALL:
    case VALUE_NEW:
        if (value_is_call(value, "collections", "OrderedDict") || value_is_call(value, "collections", "defaultdict") ||
            value_is_call(value, "collections", "Counter"))
            return MAPPING;
        return NOT_CONTAINER;
    default:
        return NOT_CONTAINER;
    }
}

const struct value *torch_flatten_initial(const struct value *value)
{
    if ((value->kind != VALUE_CALL && value->kind != VALUE_NEW) || !value->object->args)
        return NULL;
    size_t position = value_is_call(value, "collections", "defaultdict") ? 1 : 0;
    const struct value *args = value->object->args;
    return args->list.count > position ? args->list.items[position] : NULL;
}

/* Members of a container in order: keys (NULL for sequences) and values. */
struct member {
    struct value *key, *value;
};

static size_t initial_count(const struct value *initial)
{
    if (!initial)
        return 0;
    if (initial->kind == VALUE_DICT)
        return initial->list.count / 2;
    return initial->kind == VALUE_LIST || initial->kind == VALUE_TUPLE ? initial->list.count : 0;
}

/* Member index of what a mapping was called with: a dict, or a sequence of pairs. */
static bool initial_member(const struct value *initial, size_t index, struct member *out)
{
    if (initial->kind == VALUE_DICT) {
        *out = (struct member){ initial->list.items[2 * index], initial->list.items[2 * index + 1] };
        return true;
    }
    const struct value *pair = initial->list.items[index];
    if ((pair->kind != VALUE_LIST && pair->kind != VALUE_TUPLE) || pair->list.count != 2)
        return false;
    *out = (struct member){ pair->list.items[0], pair->list.items[1] };
    return true;
}

static size_t member_count(const struct value *value)
{
    if (value->kind == VALUE_LIST || value->kind == VALUE_TUPLE)
        return value->list.count;
    if (value->kind == VALUE_DICT)
        return value->list.count / 2;
    return initial_count(torch_flatten_initial(value)) + value->object->dict_count / 2;
}

/* Member index of a container; false if it makes no sense (a pair that is none). */
static bool member_at(const struct value *value, size_t index, struct member *out)
{
    if (value->kind == VALUE_LIST || value->kind == VALUE_TUPLE) {
        *out = (struct member){ NULL, value->list.items[index] };
        return true;
    }
    if (value->kind == VALUE_DICT) {
        *out = (struct member){ value->list.items[2 * index], value->list.items[2 * index + 1] };
        return true;
    }
    const struct value *initial = torch_flatten_initial(value);
    size_t initials = initial_count(initial);
    if (index < initials)
        return initial_member(initial, index, out);
    index -= initials;
    *out = (struct member){ value->object->dict_items[2 * index], value->object->dict_items[2 * index + 1] };
    return true;
}

/* ---- which containers hold a tensor ---- */

struct edge {
    uint32_t child, parent;
};

/* Containers are numbered from 0 as they are found from the root. */
struct survey {
    const struct value **containers;
    uint32_t *number; /* by node id: 1 + container number, 0 if not seen */
    bool *holds_tensor;
    struct edge *edges;
    size_t container_count, container_capacity, edge_count, edge_capacity;
};

static bool survey_add(struct survey *survey, const struct value *container, size_t parent)
{
    if (survey->number[container->id] == 0) {
        if (!ARRAY_ROOM(survey->containers, survey->container_count, survey->container_capacity))
            return false;
        survey->containers[survey->container_count++] = container;
        survey->number[container->id] = (uint32_t)survey->container_count;
    }
    if (parent == SIZE_MAX)
        return true;
    if (!ARRAY_ROOM(survey->edges, survey->edge_count, survey->edge_capacity))
        return false;
    survey->edges[survey->edge_count++] = (struct edge){ survey->number[container->id] - 1, (uint32_t)parent };
    return true;
}

static int edge_order(const void *a, const void *b)
{
    const struct edge *x = a, *y = b;
    return x->child < y->child ? -1 : x->child > y->child;
}

/* First edge whose child is not below the number. */
static size_t first_edge(const struct survey *survey, uint32_t child)
{
    size_t low = 0, high = survey->edge_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (survey->edges[middle].child < child)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Spreads holds_tensor from children to parents. */
static bool torch_flatten_spread(struct survey *survey)
{
    uint32_t *queue = array_new(survey->container_count, sizeof(*queue));
    size_t head = 0, tail = 0;
    if (!queue)
        return false;
    if (survey->edge_count > 0)
        qsort(survey->edges, survey->edge_count, sizeof(*survey->edges), edge_order);
    for (size_t i = 0; i < survey->container_count; i++)
        if (survey->holds_tensor[i])
            queue[tail++] = (uint32_t)i;
    while (head < tail) {
        uint32_t child = queue[head++];
        for (size_t i = first_edge(survey, child); i < survey->edge_count && survey->edges[i].child == child; i++) {
            uint32_t parent = survey->edges[i].parent;
            if (!survey->holds_tensor[parent]) {
                survey->holds_tensor[parent] = true;
                queue[tail++] = parent;
            }
        }
    }
    free(queue);
    return true;
}

static bool survey_make(struct survey *survey, const struct value_graph *graph)
{
    survey->number = array_zeroed(graph->count, sizeof(*survey->number));
    if (!survey->number || !survey_add(survey, graph->root, SIZE_MAX))
        return false;
    for (size_t i = 0; i < survey->container_count; i++) {
        const struct value *container = survey->containers[i];
        size_t count = member_count(container);
        for (size_t j = 0; j < count; j++) {
            struct member member;
            if (member_at(container, j, &member) && container_kind(member.value) != NOT_CONTAINER && !survey_add(survey, member.value, i))
                return false;
        }
    }
    survey->holds_tensor = array_zeroed(survey->container_count, sizeof(*survey->holds_tensor));
    if (!survey->holds_tensor)
        return false;
    for (size_t i = 0; i < survey->container_count; i++) {
        size_t count = member_count(survey->containers[i]);
        for (size_t j = 0; j < count && !survey->holds_tensor[i]; j++) {
            struct member member;
            survey->holds_tensor[i] = member_at(survey->containers[i], j, &member) && torch_save_is_tensor_node(member.value);
        }
    }
    return torch_flatten_spread(survey);
}

static void survey_release(struct survey *survey)
{
    free(survey->containers);
    free(survey->number);
    free(survey->holds_tensor);
    free(survey->edges);
}

/* ---- keys ---- */

/* String and integer keys are themselves, others what Python prints for them. */
static reshard_status key_part(const struct member *member, size_t index, struct arena *arena, struct path_part *out, reshard_error *err)
{
    const struct value *key = member->key;
    if (!key) {
        *out = (struct path_part){ .kind = PATH_INDEX, .index = (int64_t)index };
        return RESHARD_OK;
    }
    *out = (struct path_part){ .kind = PATH_KEY };
    if (key->kind == VALUE_STR) {
        out->key = key->text;
        return RESHARD_OK;
    }
    if (key->kind == VALUE_INT) {
        *out = (struct path_part){ .kind = PATH_INT_KEY, .index = key->integer };
        return RESHARD_OK;
    }
    if (torch_save_is_tensor_node(key))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, key->offset, "a tensor as a dictionary key");
    struct buffer text = { .limit = 65536 };
    bool good = value_to_repr(key, &text, arena->work);
    good = good && arena_str(arena, buffer_str(&text), &out->key);
    const bool is_long = text.over_limit;
    buffer_release(&text);
    if (good)
        return RESHARD_OK;
    if (work_is_spent(arena->work) || !is_long)
        return work_error(arena->work, err);
    return error_set_at(err, RESHARD_ERR_UNSUPPORTED, key->offset, "a dictionary key of more than 65536 characters");
}

/* An open container: the parts that its members add to the path, and which members later ones with the same key replace. */
struct frame {
    const struct value *container;
    struct path_part *parts;
    bool *is_replaced;
    size_t next, count;
};

static void frame_release(struct frame *frame)
{
    free(frame->parts);
    free(frame->is_replaced);
}

/* Marks members whose key occurs again: of equal keys the last one counts. */
static reshard_status mark_replaced(struct frame *frame, reshard_error *err)
{
    struct name_map keys = { 0 };
    struct buffer text = { 0 };
    uint32_t *last = array_new(frame->count, sizeof(*last));
    reshard_status status = last ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i < frame->count; i++) {
        const struct path_part *part = &frame->parts[i];
        bool was_new;
        struct member member = { 0 };
        bool is_good = member_at(frame->container, i, &member);
        buffer_clear(&text);
        buffer_append_byte(&text, (uint8_t)part->kind);
        buffer_append_byte(&text, is_good ? member.key->kind : 0); /* None and 'None' are two */
        if (part->kind == PATH_KEY)
            buffer_append_str(&text, part->key);
        else
            buffer_append_u64le(&text, (uint64_t)part->index);
        uint32_t number = text.failed ? NAME_NONE : name_map_intern(&keys, buffer_str(&text), &was_new);
        if (number == NAME_NONE) {
            status = error_set_memory(err);
            break;
        }
        if (!was_new)
            frame->is_replaced[last[number]] = true;
        last[number] = (uint32_t)i;
    }
    free(last);
    buffer_release(&text);
    name_map_release(&keys);
    return status;
}

static reshard_status frame_open(struct frame *frame, const struct value *container, struct arena *arena, reshard_error *err)
{
    *frame = (struct frame){ .container = container, .count = member_count(container) };
    if (frame->count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "container of %zu members", frame->count);
    frame->parts = array_zeroed(frame->count, sizeof(*frame->parts));
    frame->is_replaced = array_zeroed(frame->count, sizeof(*frame->is_replaced));
    if (!frame->parts || !frame->is_replaced)
        return error_set_memory(err);
    for (size_t i = 0; i < frame->count; i++) {
        struct member member;
        if (!member_at(container, i, &member))
            return error_set_at(err, RESHARD_ERR_FORMAT, container->offset, "mapping made from something that is no pair");
        reshard_status status = key_part(&member, i, arena, &frame->parts[i], err);
        if (status)
            return status;
    }
    return container_kind(container) == MAPPING ? mark_replaced(frame, err) : RESHARD_OK;
}

/* ---- the walk ---- */

struct walk {
    const struct survey *survey;
    bool *is_open; /* by container number: on the way from the root to here */
    struct frame *frames;
    struct path_part *path;
    size_t depth, depth_max, frame_capacity, path_capacity;
    struct arena keys;
    uint64_t leaf_count, leaf_max;
    const char *const *closed;
    bool opens_all, tells_containers;
    torch_leaf_sink sink;
    void *context;
};

static reshard_status torch_flatten_push(struct walk *walk, struct value *container, const struct value *key, reshard_error *err)
{
    struct torch_leaf opened = { .value = container, .key = key, .parts = walk->path, .part_count = walk->depth, .is_container = true };
    if (walk->depth >= walk->depth_max)
        return error_set_limit(err, "pickle_depth", walk->depth + 1, walk->depth_max);
    reshard_status status = work_spend_steps(walk->keys.work, (uint64_t)member_count(container) + 1, err);
    if (!status && walk->tells_containers)
        status = walk->sink(&opened, walk->context, err);
    if (status)
        return status;
    if (!ARRAY_ROOM(walk->frames, walk->depth, walk->frame_capacity) ||
        !ARRAY_ROOM(walk->path, walk->depth, walk->path_capacity))
        return error_set_memory(err);
    walk->is_open[walk->survey->number[container->id] - 1] = true;
    return frame_open(&walk->frames[walk->depth++], container, &walk->keys, err);
}

static void pop(struct walk *walk)
{
    struct frame *frame = &walk->frames[--walk->depth];
    walk->is_open[walk->survey->number[frame->container->id] - 1] = false;
    frame_release(frame);
}

/* Whether the place where the walk is, is one of the members that stay closed. */
static bool is_closed(const struct walk *walk)
{
    if (walk->depth != 1 || walk->path[0].kind != PATH_KEY)
        return false;
    for (size_t i = 0; walk->closed && walk->closed[i]; i++)
        if (str_is(walk->path[0].key, walk->closed[i]))
            return true;
    return false;
}

static bool is_opened(const struct walk *walk, const struct value *value)
{
    if (is_closed(walk))
        return false;
    uint32_t number = walk->survey->number[value->id];
    if (container_kind(value) == NOT_CONTAINER || number == 0 || walk->is_open[number - 1])
        return false;
    return walk->opens_all ? member_count(value) > 0 : walk->survey->holds_tensor[number - 1];
}

static reshard_status torch_flatten_emit(struct walk *walk, struct value *value, const struct value *key, reshard_error *err)
{
    if (++walk->leaf_count > walk->leaf_max)
        return error_set(err, RESHARD_ERR_LIMIT, "containers that share members make more than %llu leaves",
                         (unsigned long long)walk->leaf_max);
    struct torch_leaf leaf = { .value = value, .key = key, .parts = walk->path, .part_count = walk->depth };
    return walk->sink(&leaf, walk->context, err);
}

static reshard_status torch_flatten_step(struct walk *walk, reshard_error *err)
{
    struct frame *frame = &walk->frames[walk->depth - 1];
    if (frame->next >= frame->count) {
        pop(walk);
        return RESHARD_OK;
    }
    size_t index = frame->next++;
    struct member member;
    if (frame->is_replaced[index] || !member_at(frame->container, index, &member))
        return RESHARD_OK;
    walk->path[walk->depth - 1] = frame->parts[index];
    return is_opened(walk, member.value) ? torch_flatten_push(walk, member.value, member.key, err)
                                         : torch_flatten_emit(walk, member.value, member.key, err);
}

reshard_status torch_flatten(const struct value_graph *graph, const struct limits *limits, torch_leaf_sink sink, void *context,
                             reshard_error *err)
{
    return torch_flatten_closed(graph, limits, NULL, sink, context, err);
}

/* walk: closed, opens_all, tells_containers, sink and context are set. */
static reshard_status torch_flatten_any(struct walk walk, const struct value_graph *graph, const struct limits *limits, reshard_error *err)
{
    struct survey survey = { 0 };
    walk.survey = &survey;
    walk.depth_max = (size_t)limits->pickle_depth;
    walk.keys.work = limits->budget;
    walk.leaf_max = (uint64_t)graph->count * LEAVES_PER_NODE_MAX + 1000;
    if (container_kind(graph->root) == NOT_CONTAINER)
        return torch_flatten_emit(&walk, graph->root, NULL, err);

    reshard_status status = RESHARD_OK;
    if (!survey_make(&survey, graph))
        status = error_set_memory(err);
    walk.is_open = status ? NULL : array_zeroed(survey.container_count, sizeof(*walk.is_open));
    if (!status && !walk.is_open)
        status = error_set_memory(err);
    if (!status)
        status = torch_flatten_push(&walk, graph->root, NULL, err);
    while (!status && walk.depth > 0)
        status = torch_flatten_step(&walk, err);

    while (walk.depth > 0)
        pop(&walk);
    free(walk.frames);
    free(walk.path);
    free(walk.is_open);
    arena_release(&walk.keys);
    survey_release(&survey);
    return status;
}

reshard_status torch_flatten_closed(const struct value_graph *graph, const struct limits *limits, const char *const *closed,
                                    torch_leaf_sink sink, void *context, reshard_error *err)
{
    return torch_flatten_any((struct walk){ .closed = closed, .sink = sink, .context = context }, graph, limits, err);
}

reshard_status torch_flatten_all(const struct value_graph *graph, const struct limits *limits, const char *const *closed,
                                 torch_leaf_sink sink, void *context, reshard_error *err)
{
    return torch_flatten_any((struct walk){ .closed = closed, .opens_all = true, .sink = sink, .context = context }, graph, limits, err);
}

reshard_status torch_flatten_structure(const struct value_graph *graph, const struct limits *limits, torch_leaf_sink sink, void *context,
                                       reshard_error *err)
{
    struct walk walk = { .opens_all = true, .tells_containers = true, .sink = sink, .context = context };
    return torch_flatten_any(walk, graph, limits, err);
}
