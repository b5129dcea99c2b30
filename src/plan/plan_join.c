/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/plan_join.h"

#include <stdlib.h>

#include "base/array.h"

#define FEW 4 /* with so few boxes on one side, comparing all is linear in the other */
#define ALL_PAIRS_MAX 256

/* Two lists in the stack, of sides[0] (sources) and sides[1] (targets), that are still to be joined. */
struct join_item {
    size_t begin[2], end[2];
};

/* What one call works on. */
struct join {
    struct joiner *memory;
    int rank;
    const struct join_box *sides[2];
    join_emit emit;
    void *context;
};

static bool join_try(struct join *join, uint32_t source, uint32_t target)
{
    const struct join_box *s = &join->sides[0][source], *t = &join->sides[1][target];
    int64_t start[RANK_MAX], extent[RANK_MAX];
    if (!box_intersect(join->rank, s->start, s->extent, t->start, t->extent, start, extent))
        return ++join->memory->misses <= join->memory->misses_max;
    return join->emit(join->context, s->chunk, t->chunk, start, extent);
}

static bool join_all_pairs(struct join *join, const struct join_item *item)
{
    const struct sort_entry *stack = join->memory->stack;
    for (size_t t = item->begin[1]; t < item->end[1]; t++)
        for (size_t s = item->begin[0]; s < item->end[0]; s++)
            if (!join_try(join, stack[s].value, stack[t].value))
                return false;
    return true;
}

/* Spare entries and active numbers for lists of at most count. */
static bool lists_reserve(struct joiner *memory, size_t count)
{
    if (count > memory->spare_capacity) {
        free(memory->spare);
        memory->spare = reallocarray(NULL, count, sizeof(*memory->spare));
        memory->spare_capacity = memory->spare ? count : 0;
    }
    if (count > memory->active_capacity) {
        free(memory->active);
        memory->active = reallocarray(NULL, count, sizeof(*memory->active));
        memory->active_capacity = memory->active ? count : 0;
    }
    return count <= memory->spare_capacity && count <= memory->active_capacity;
}

static bool item_push(struct joiner *memory, const struct join_item *item)
{
    if (!ARRAY_ROOM(memory->items, memory->item_count, memory->item_capacity))
        return false;
    memory->items[memory->item_count++] = *item;
    return true;
}

/* Axes by how many layers of mean thickness fit into the list's span, most first; axes that all boxes span are left out. */
static int axes_by_separation(const struct join *join, int side, size_t begin, size_t end, int axes[RANK_MAX])
{
    double layers[RANK_MAX];
    int count = 0;
    for (int axis = 0; axis < join->rank; axis++) {
        int64_t low = INT64_MAX, high = 0, thinnest = INT64_MAX;
        double sum = 0;
        for (size_t i = begin; i < end; i++) {
            const struct join_box *box = &join->sides[side][join->memory->stack[i].value];
            int64_t start = box->start[axis], extent = box->extent[axis];
            low = start < low ? start : low;
            high = start + extent > high ? start + extent : high;
            thinnest = extent < thinnest ? extent : thinnest;
            sum += (double)extent;
        }
        if (thinnest == high - low)
            continue;
        double found = (double)(high - low) * (double)(end - begin) / sum;
        int at = count++;
        for (; at > 0 && layers[at - 1] < found; at--) {
            layers[at] = layers[at - 1];
            axes[at] = axes[at - 1];
        }
        layers[at] = found;
        axes[at] = axis;
    }
    return count;
}

static void list_sort(struct join *join, int side, size_t begin, size_t end, int axis)
{
    struct sort_entry *stack = join->memory->stack;
    for (size_t i = begin; i < end; i++)
        stack[i].key = join->sides[side][stack[i].value].start[axis];
    entries_sort(stack + begin, join->memory->spare, end - begin);
}

static int64_t entry_end(const struct join *join, int side, const struct sort_entry *entry, int axis)
{
    return entry->key + join->sides[side][entry->value].extent[axis];
}

/* Whether the sorted list has a place that none of its boxes crosses. */
static bool list_has_cut(const struct join *join, int side, size_t begin, size_t end, int axis)
{
    const struct sort_entry *stack = join->memory->stack;
    int64_t reach = entry_end(join, side, &stack[begin], axis);
    for (size_t i = begin + 1; i < end; i++) {
        if (stack[i].key >= reach)
            return true;
        int64_t box_end = entry_end(join, side, &stack[i], axis);
        reach = box_end > reach ? box_end : reach;
    }
    return false;
}

/* Joins slab [begin, end) of side `cut` with the active boxes of the other side: at once if that is little, else later. */
static bool slab_join(struct join *join, int cut, size_t begin, size_t end, uint32_t active_count)
{
    struct joiner *memory = join->memory;
    const uint32_t *active = memory->active;
    if (active_count == 0)
        return true;
    if (end - begin <= FEW || active_count <= FEW || (end - begin) * active_count <= ALL_PAIRS_MAX) {
        for (size_t i = begin; i < end; i++) {
            for (uint32_t j = 0; j < active_count; j++) {
                uint32_t mine = memory->stack[i].value;
                if (!join_try(join, cut == 0 ? mine : active[j], cut == 0 ? active[j] : mine))
                    return false;
            }
        }
        return true;
    }
    struct join_item item;
    if (!ARRAY_RESERVE(memory->stack, memory->stack_count + active_count, memory->stack_capacity))
        return false;
    item.begin[cut] = begin;
    item.end[cut] = end;
    item.begin[!cut] = memory->stack_count;
    for (uint32_t j = 0; j < active_count; j++)
        memory->stack[memory->stack_count++].value = active[j];
    item.end[!cut] = memory->stack_count;
    return item_push(memory, &item);
}

/* Walks the slabs of side `cut`, both lists sorted on the axis, keeping the boxes of the other side that reach into the slab. */
static bool slabs_join(struct join *join, const struct join_item *item, int cut, int axis)
{
    struct joiner *memory = join->memory;
    size_t next = item->begin[!cut], begin = item->begin[cut];
    uint32_t active_count = 0;
    while (begin < item->end[cut]) {
        int64_t low = memory->stack[begin].key, reach = entry_end(join, cut, &memory->stack[begin], axis);
        size_t end = begin + 1;
        for (; end < item->end[cut] && memory->stack[end].key < reach; end++) {
            int64_t box_end = entry_end(join, cut, &memory->stack[end], axis);
            reach = box_end > reach ? box_end : reach;
        }
        uint32_t kept = 0;
        for (uint32_t j = 0; j < active_count; j++) {
            const struct join_box *box = &join->sides[!cut][memory->active[j]];
            if (box->start[axis] + box->extent[axis] > low)
                memory->active[kept++] = memory->active[j];
        }
        active_count = kept;
        for (; next < item->end[!cut] && memory->stack[next].key < reach; next++)
            if (entry_end(join, !cut, &memory->stack[next], axis) > low)
                memory->active[active_count++] = memory->stack[next].value;
        if (!slab_join(join, cut, begin, end, active_count))
            return false;
        begin = end;
    }
    return true;
}

/* No clean cut anywhere: compares each target with the sources that reach it on the axis. */
static bool lists_sweep(struct join *join, const struct join_item *item, int axis)
{
    struct joiner *memory = join->memory;
    size_t next = item->begin[0];
    uint32_t active_count = 0;
    list_sort(join, 0, item->begin[0], item->end[0], axis);
    list_sort(join, 1, item->begin[1], item->end[1], axis);
    for (size_t t = item->begin[1]; t < item->end[1]; t++) {
        const struct sort_entry target = memory->stack[t];
        int64_t end = entry_end(join, 1, &target, axis);
        for (; next < item->end[0] && memory->stack[next].key < end; next++)
            memory->active[active_count++] = memory->stack[next].value;
        uint32_t kept = 0;
        for (uint32_t j = 0; j < active_count; j++) {
            const struct join_box *box = &join->sides[0][memory->active[j]];
            if (box->start[axis] + box->extent[axis] <= target.key)
                continue; /* it ends before this target, and so before all later ones */
            if (!join_try(join, memory->active[j], target.value))
                return false;
            memory->active[kept++] = memory->active[j];
        }
        active_count = kept;
    }
    return true;
}

static bool item_join(struct join *join, const struct join_item *item)
{
    size_t counts[2] = { item->end[0] - item->begin[0], item->end[1] - item->begin[1] };
    int axes[RANK_MAX], sweep_axis = -1;
    if (counts[0] <= FEW || counts[1] <= FEW || counts[0] * counts[1] <= ALL_PAIRS_MAX)
        return join_all_pairs(join, item);
    if (!lists_reserve(join->memory, counts[0] > counts[1] ? counts[0] : counts[1]))
        return false;
    for (int side = 1; side >= 0; side--) {
        int axis_count = axes_by_separation(join, side, item->begin[side], item->end[side], axes);
        if (axis_count > 0 && sweep_axis < 0)
            sweep_axis = axes[0];
        for (int i = 0; i < axis_count; i++) {
            list_sort(join, side, item->begin[side], item->end[side], axes[i]);
            join->memory->misses += counts[side];
            if (!list_has_cut(join, side, item->begin[side], item->end[side], axes[i]))
                continue;
            list_sort(join, !side, item->begin[!side], item->end[!side], axes[i]);
            return slabs_join(join, item, side, axes[i]);
        }
    }
    /* Without an axis on which any two differ, all overlap or none does. */
    return sweep_axis < 0 ? join_all_pairs(join, item) : lists_sweep(join, item, sweep_axis);
}

reshard_status join_boxes(struct joiner *joiner, int rank, const struct join_box *sources, uint32_t source_count,
                          const struct join_box *targets, uint32_t target_count, join_emit emit, void *context, reshard_error *err)
{
    struct join join = { .memory = joiner, .rank = rank, .sides = { sources, targets }, .emit = emit, .context = context };
    joiner->stack_count = 0;
    joiner->item_count = 0;
    joiner->misses = 0;
    if (!ARRAY_RESERVE(joiner->stack, joiner->stack_count + source_count + target_count, joiner->stack_capacity))
        return error_set_memory(err);
    for (uint32_t i = 0; i < source_count; i++)
        joiner->stack[joiner->stack_count++].value = i;
    for (uint32_t i = 0; i < target_count; i++)
        joiner->stack[joiner->stack_count++].value = i;
    struct join_item all = { .begin = { 0, source_count }, .end = { source_count, joiner->stack_count } };
    if (!item_push(joiner, &all))
        return error_set_memory(err);
    while (joiner->item_count > 0) {
        struct join_item item = joiner->items[--joiner->item_count];
        /* The lists of the items still waiting lie below this one's. */
        joiner->stack_count = item.end[0] > item.end[1] ? item.end[0] : item.end[1];
        bool is_done = item_join(&join, &item);
        if (joiner->misses > joiner->misses_max)
            return error_set_limit(err, "box_checks", joiner->misses, joiner->misses_max);
        if (!is_done)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

void joiner_release(struct joiner *joiner)
{
    free(joiner->stack);
    free(joiner->spare);
    free(joiner->active);
    free(joiner->items);
    *joiner = (struct joiner){ .misses_max = joiner->misses_max };
}
