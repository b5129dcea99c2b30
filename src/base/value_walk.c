/* SPDX-License-Identifier: Apache-2.0 */
/* Visiting and copying whole graphs with an explicit stack. */
#include "base/value_parts.h"

#include <stdlib.h>

#include "base/array.h"

#define STEPS_AT_ONCE 256
#define FEW_MAX 16
#define BITMAP_NODES_PER_UNIT 64 /* clearing memory is cheap */

struct frame {
    const struct value *node;
    size_t next; /* child to go to */
};

struct frames {
    struct frame *items;
    size_t count, capacity;
};

static bool frames_push(struct frames *frames, const struct value *node)
{
    if (!ARRAY_ROOM(frames->items, frames->count, frames->capacity))
        return false;
    frames->items[frames->count++] = (struct frame){ .node = node };
    return true;
}

/* The next child of the node on top that is there; NULL when it has no more. */
static struct value *frame_next(struct frame *frame)
{
    struct value *child = NULL;
    while (!child && value_child(frame->node, frame->next, &child))
        frame->next++;
    return child;
}

/* Nodes that were seen. The few of a small value are in a list: a graph of a hundred thousand of them is walked one by one. */
struct seen {
    uint32_t few[FEW_MAX];
    size_t count;     /* of the list */
    uint64_t *bitmap; /* NULL: they are in the list */
    uint32_t graph_count;
};

static bool mark(uint64_t *bitmap, uint32_t id)
{
    uint64_t bit = UINT64_C(1) << (id % 64);
    bool was_set = bitmap[id / 64] & bit;
    bitmap[id / 64] |= bit;
    return !was_set;
}

/* Whether the node is seen for the first time, in *is_new. false without memory, or when the work is spent. */
static bool seen_add(struct seen *seen, uint32_t id, struct work *work, bool *is_new)
{
    *is_new = !seen->bitmap || mark(seen->bitmap, id);
    if (seen->bitmap)
        return true;
    for (size_t i = 0; *is_new && i < seen->count; i++)
        *is_new = seen->few[i] != id;
    if (!*is_new)
        return true;
    if (seen->count < FEW_MAX) {
        seen->few[seen->count++] = id;
        return true;
    }
    if (!work_take(work, seen->graph_count / BITMAP_NODES_PER_UNIT) ||
        !(seen->bitmap = array_zeroed((size_t)seen->graph_count / 64 + 1, sizeof(*seen->bitmap))))
        return false;
    for (size_t i = 0; i < seen->count; i++)
        mark(seen->bitmap, seen->few[i]);
    mark(seen->bitmap, id);
    return true;
}

/* A node whose id is not below graph_count belongs to another graph and ends the walk: the bitmap cannot hold it. */
static bool walk(struct frames *frames, struct seen *seen, const struct value *root, struct work *work,
                 bool (*visit)(const struct value *value, void *context), void *context, bool *no_memory)
{
    const struct value *node = root;
    uint64_t visited = 0;
    while (node || frames->count) {
        bool is_new = false;
        if (node && node->id >= seen->graph_count)
            return false;
        if (node && !seen_add(seen, node->id, work, &is_new)) {
            *no_memory = true;
            return false;
        }
        if (is_new) {
            if (!visit(node, context))
                return false;
            if ((++visited % STEPS_AT_ONCE == 0 && !work_take_steps(work, STEPS_AT_ONCE)) ||
                (!value_is_leaf(node) && !frames_push(frames, node))) {
                *no_memory = true;
                return false;
            }
        }
        node = frames->count ? frame_next(&frames->items[frames->count - 1]) : NULL;
        if (!node && frames->count)
            frames->count--;
    }
    return true;
}

bool value_walk(const struct value *root, uint32_t graph_count, struct work *work, bool (*visit)(const struct value *value, void *context),
                void *context, bool *no_memory)
{
    struct frames frames = { 0 };
    struct seen seen = { .graph_count = graph_count };
    bool out_of_memory = !work_take_steps(work, 1);
    bool done = !out_of_memory && walk(&frames, &seen, root, work, visit, context, &out_of_memory);
    if (no_memory)
        *no_memory = out_of_memory;
    free(frames.items);
    free(seen.bitmap);
    return done;
}

/* Copies of nodes. The few of a small value are in a list, as of those that are seen. */
struct copier {
    struct value_graph *into;
    struct {
        uint32_t id; /* of the source */
        struct value *copy;
    } few[FEW_MAX];
    size_t count;          /* of the list */
    struct value **copies; /* by the source's id, NULL: not copied; NULL: they are in the list */
    uint32_t source_count;
};

static bool value_walk_copy_leaf(struct value_graph *into, const struct value *source, struct value *copy)
{
    struct arena *arena = &into->arena;
    if (source->kind == VALUE_GLOBAL)
        return arena_str(arena, source->global.module, &copy->global.module) && arena_str(arena, source->global.name, &copy->global.name);
    if (source->kind >= VALUE_STR || source->kind == VALUE_BIGINT)
        return arena_str(arena, source->text, &copy->text);
    if (source->kind == VALUE_FLOAT)
        copy->real = source->real;
    else if (source->kind == VALUE_INT)
        copy->integer = source->integer;
    else if (source->kind == VALUE_BOOL)
        copy->boolean = source->boolean;
    return true;
}

/* NULL: of none, or not copied. */
static struct value *copy_of(const struct copier *copier, const struct value *source)
{
    if (!source || copier->copies)
        return source ? copier->copies[source->id] : NULL;
    for (size_t i = 0; i < copier->count; i++)
        if (copier->few[i].id == source->id)
            return copier->few[i].copy;
    return NULL;
}

static bool keep_copy(struct copier *copier, uint32_t id, struct value *copy)
{
    if (!copier->copies && copier->count < FEW_MAX) {
        copier->few[copier->count].id = id;
        copier->few[copier->count++].copy = copy;
        return true;
    }
    if (!copier->copies) {
        copier->copies = array_zeroed(copier->source_count, sizeof(struct value *));
        for (size_t i = 0; copier->copies && i < copier->count; i++)
            copier->copies[copier->few[i].id] = copier->few[i].copy;
    }
    if (copier->copies)
        copier->copies[id] = copy;
    return copier->copies;
}

/* Runs when all the children have copies, so that arrays are filled at once; false without memory. */
static bool copy_items(const struct copier *copier, struct value *const *items, size_t count, struct value ***out)
{
    if (!items || !count)
        return true;
    struct value **copies = arena_array(&copier->into->arena, count, sizeof(*copies));
    if (!copies)
        return false;
    for (size_t i = 0; i < count; i++)
        copies[i] = copy_of(copier, items[i]);
    *out = copies;
    return true;
}

static bool copy_parts(const struct copier *copier, const struct value *source, struct value *copy)
{
    if (source->kind == VALUE_PERSID) {
        copy->inner = copy_of(copier, source->inner);
        return true;
    }
    if (source->kind != VALUE_CALL && source->kind != VALUE_NEW) {
        copy->list.count = source->list.count;
        return copy_items(copier, source->list.items, source->list.count, &copy->list.items);
    }
    const struct value_object *from = source->object;
    struct value_object *to = copy->object;
    to->callable = copy_of(copier, from->callable);
    to->args = copy_of(copier, from->args);
    to->kwargs = copy_of(copier, from->kwargs);
    to->state_count = from->state_count;
    to->list_count = from->list_count;
    to->dict_count = from->dict_count;
    to->set_count = from->set_count;
    return copy_items(copier, from->states, from->state_count, &to->states) &&
           copy_items(copier, from->list_items, from->list_count, &to->list_items) &&
           copy_items(copier, from->dict_items, from->dict_count, &to->dict_items) &&
           copy_items(copier, from->set_items, from->set_count, &to->set_items);
}

/* The node without its children; NULL without memory. */
static struct value *copy_node(struct value_graph *into, const struct value *source)
{
    struct value *copy = value_new(into, (enum value_kind)source->kind);
    if (!copy)
        return NULL;
    copy->via_inst = source->via_inst;
    copy->tensor = source->tensor;
    copy->storage = source->storage;
    copy->offset = source->offset;
    return !value_is_leaf(source) || value_walk_copy_leaf(into, source, copy) ? copy : NULL;
}

static bool copy_visit(const struct value *source, void *context)
{
    struct copier *copier = context;
    struct value *copy = copy_node(copier->into, source);
    return copy && keep_copy(copier, source->id, copy);
}

static bool parts_visit(const struct value *source, void *context)
{
    struct copier *copier = context;
    return value_is_leaf(source) || copy_parts(copier, source, copy_of(copier, source));
}

struct value *value_copy(struct value_graph *into, const struct value *value, uint32_t source_count)
{
    struct copier copier = { .into = into, .source_count = source_count };
    bool done = value_walk(value, source_count, into->arena.work, copy_visit, &copier, NULL) &&
                value_walk(value, source_count, into->arena.work, parts_visit, &copier, NULL);
    struct value *copy = done ? copy_of(&copier, value) : NULL;
    free(copier.copies);
    return copy;
}
