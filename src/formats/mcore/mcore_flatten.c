/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nested items leaf by leaf, as torch flattens a state dict from 2.4 on: a mapping is always entered, a list if a mapping lies anywhere in
 * the lists that it holds, and everything else is a leaf. Keys become strings. An empty mapping has no leaf.
 */
#include "formats/mcore/mcore_items.h"

#include "encoding/torch_save.h"
#include "formats/mcore/mcore_target.h"

#include <stdlib.h>

#define DEPTH_MAX 100

/* A container that is being gone through. */
struct level {
    struct value **items;
    size_t count, next;       /* nodes: two a pair in a mapping */
    bool is_mapping;
};

struct flattening {
    const struct layout_request *request;
    struct target *target;
    uint32_t item;
    const struct value_graph *graph;
    struct level levels[DEPTH_MAX];
    struct path_part parts[DEPTH_MAX + 1];
    size_t depth, base; /* base: parts of the item's own path */
    uint64_t key_bytes;
    bool shortens;        /* fsdp_dtensor: the optimizer's own optimizer is not on paths to param_groups */
};

/* Whether torch looks for leaves in the list: it holds a tensor or a mapping, or a list that does. A list that is shared is gone through as
 * often as it is met: it spends work; false also once that is spent. */
static bool list_is_entered(const struct value *list, int depth, struct work *work, bool *is_too_deep)
{
    /* One list after the other, the first child first; a fixed stack, since torch itself recurses here. */
    const struct value *open[DEPTH_MAX];
    size_t next[DEPTH_MAX];
    size_t count = 1;
    open[0] = list;
    next[0] = 0;
    work_take_steps(work, list->list.count);
    while (count > 0 && !work_is_spent(work)) {
        const struct value *top = open[count - 1];
        struct value **pairs;
        size_t pair_count;
        if (next[count - 1] == top->list.count) {
            count--;
            continue;
        }
        const struct value *member = top->list.items[next[count - 1]++];
        if (value_as_mapping(member, &pairs, &pair_count) || torch_save_is_tensor_node(member))
            return true;
        if (member->kind != VALUE_LIST || member->list.count == 0)
            continue;
        if ((size_t)depth + count >= DEPTH_MAX) {
            *is_too_deep = true;
            return false;
        }
        work_take_steps(work, member->list.count);
        open[count] = member;
        next[count++] = 0;
    }
    return false;
}

/* str() of a key, in the target's arena. */
static bool mcore_flatten_key_text(struct arena *arena, const struct value *key, struct str *out)
{
    struct buffer text = { 0 };
    bool done = value_as_str(key, out);
    if (!done && value_to_repr(key, &text, arena->work))
        done = arena_str(arena, buffer_str(&text), out);
    buffer_release(&text);
    return done;
}

/* optimizer.optimizer.param_groups is optimizer.param_groups in fsdp_dtensor. */
static bool is_longer(const struct flattening *flattening, size_t count)
{
    const struct path_part *parts = flattening->parts;
    return flattening->shortens && count > 2 && str_is(parts[0].key, "optimizer") && parts[1].kind == PATH_KEY &&
           str_is(parts[1].key, "optimizer") && parts[2].kind == PATH_KEY && str_is(parts[2].key, "param_groups");
}

/* Stores the value that the parts lead to. */
static reshard_status add_leaf(struct flattening *flattening, const struct value *value, reshard_error *err)
{
    struct arena *arena = &flattening->target->catalog->arena;
    size_t count = flattening->base + flattening->depth;
    struct buffer key = { 0 };
    struct dcp_stored stored = {
        .wanted = flattening->item, .node = CATALOG_NONE, .value = value, .graph_count = flattening->graph->count
    };
    struct path_part *parts = arena_array(arena, count, sizeof(*parts));
    if (parts)
        memcpy(parts, flattening->parts, count * sizeof(*parts));
    if (parts && is_longer(flattening, count))
        memmove(parts + 1, parts + 2, (--count - 1) * sizeof(*parts));
    bool done = parts && path_join(parts, count, &key) && arena_str(arena, buffer_str(&key), &stored.key);
    const uint64_t made = key.size + count * sizeof(*parts) + sizeof(stored);
    flattening->key_bytes += key.size;
    buffer_release(&key);
    if (!done)
        return error_set_memory(err);
    reshard_status status = work_spend(flattening->request->limits.budget, made, err);
    if (status)
        return status;
    if (flattening->key_bytes > flattening->request->limits.item_bytes)
        return error_set_limit(err, "item_bytes", flattening->key_bytes, flattening->request->limits.item_bytes);
    stored.parts = parts;
    stored.part_count = (uint32_t)count;
    return dcp_stored_add(&mcore_target_state(flattening->target)->dcp, &stored, err);
}

/* Enters a container, or stores a leaf. */
static reshard_status visit(struct flattening *flattening, const struct value *value, reshard_error *err)
{
    struct level level = { 0 };
    bool is_too_deep = false;
    level.is_mapping = value_as_mapping(value, &level.items, &level.count);
    if (!level.is_mapping) {
        struct work *work = flattening->request->limits.budget;
        bool is_entered = value->kind == VALUE_LIST && list_is_entered(value, (int)flattening->depth, work, &is_too_deep);
        if (work_is_spent(work))
            return work_error(work, err);
        if (!is_entered && !is_too_deep)
            return add_leaf(flattening, value, err);
        level.items = value->list.items;
        level.count = value->list.count;
    }
    if (is_too_deep || flattening->base + flattening->depth >= DEPTH_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "it is nested more than %d deep", DEPTH_MAX);
    if (level.count == 0) {
        struct buffer key = { 0 };
        bool done = path_join(flattening->parts, flattening->base + flattening->depth, &key);
        reshard_status status =
            done ? target_note_dropped(flattening->target, NOTE_NO_PLACE, buffer_str(&key), err, "an empty dict has no place in DCP")
                 : error_set_memory(err);
        buffer_release(&key);
        return status;
    }
    flattening->levels[flattening->depth++] = level;
    return RESHARD_OK;
}

static reshard_status name_child(struct flattening *flattening, const struct level *level, reshard_error *err)
{
    struct path_part *part = &flattening->parts[flattening->base + flattening->depth - 1];
    if (!level->is_mapping) {
        *part = (struct path_part){ .kind = PATH_INDEX, .index = (int64_t)level->next };
        return RESHARD_OK;
    }
    *part = (struct path_part){ .kind = PATH_KEY };
    return mcore_flatten_key_text(&flattening->target->catalog->arena, level->items[level->next], &part->key) ? RESHARD_OK
                                                                                                              : error_set_memory(err);
}

static reshard_status mcore_flatten_flatten(struct flattening *flattening, const struct value *root, reshard_error *err)
{
    reshard_status status = visit(flattening, root, err);
    while (flattening->depth > 0 && !status) {
        struct level *level = &flattening->levels[flattening->depth - 1];
        size_t step = level->is_mapping ? 2 : 1;
        if (level->next + step > level->count) {
            flattening->depth--;
            continue;
        }
        status = name_child(flattening, level, err);
        const struct value *child = level->items[level->next + step - 1];
        level->next += step;
        if (!status)
            status = visit(flattening, child, err);
    }
    return status;
}

static reshard_status flatten_at(const struct layout_request *request, struct target *target, uint32_t item, const struct path_part *parts,
                                 size_t count, const struct value *value, reshard_error *err)
{
    if (count >= DEPTH_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "it is nested more than %d deep", DEPTH_MAX);
    struct flattening *flattening = calloc(1, sizeof(*flattening));
    if (!flattening)
        return error_set_memory(err);
    flattening->request = request;
    flattening->target = target;
    flattening->item = item;
    flattening->graph = layout_item_stored(request, item)->graph;
    flattening->shortens = mcore_target_state(target)->flavour->has_group_meta;
    flattening->base = count;
    memcpy(flattening->parts, parts, count * sizeof(*parts));
    reshard_status status = mcore_flatten_flatten(flattening, value, err);
    free(flattening);
    return status;
}

/* The value of a wanted item; *out NULL and a note if it has none. */
static reshard_status load(const struct layout_request *request, struct target *target, uint32_t item, const struct value **out,
                           reshard_error *err)
{
    const struct catalog_item *loaded;
    reshard_status status = layout_item(request, item, &loaded, err);
    *out = !status && loaded->graph ? loaded->value : NULL;
    if (status || *out)
        return status;
    return target_note_dropped(target, NOTE_NO_VALUE, loaded->key, err, "it has no value");
}

reshard_status mcore_flatten_item(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err)
{
    struct path_part single;
    const struct path_part *parts;
    const struct value *value;
    reshard_status status = load(request, target, item, &value, err);
    if (status || !value)
        return status;
    size_t count = catalog_item_path(request->wanted, &request->wanted->items[item], &single, &parts);
    return flatten_at(request, target, item, parts, count, value, err);
}

reshard_status mcore_flatten_object(const struct layout_request *request, struct target *target, uint32_t item,
                                   const struct path_part *parts, size_t count, reshard_error *err)
{
    const struct value *value;
    reshard_status status = load(request, target, item, &value, err);
    if (status || !value)
        return status;
    bool is_wrapped = value->kind == VALUE_LIST && value->list.count == 1;
    return flatten_at(request, target, item, parts, count, is_wrapped ? value->list.items[0] : value, err);
}
