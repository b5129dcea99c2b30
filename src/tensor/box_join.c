/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/box_join.h"

#include <stdlib.h>

#include "base/array.h"

#define FEW 4 /* with so few boxes on one side, comparing all is linear in the other */
#define ALL_PAIRS_MAX 256

/* Two lists in the stack, of sides[0] (sources) and sides[1] (targets), that are still to be joined. Of one set with itself: one list, in
 * both places. */
struct join_item {
    size_t begin[2], end[2];
};

/* What one call works on. */
struct join {
    struct box_joiner *memory;
    int rank;
    const struct join_box *sides[2];
    box_join_emit emit; /* NULL: one set with itself, of which a pair is looked for */
    void *context;
    uint32_t pair[2];
    bool has_pair;
};

static bool join_is_within(const struct join *join)
{
    return !join->emit;
}

/* Compares two boxes; false ends the join. */
static bool join_try(struct join *join, uint32_t source, uint32_t target)
{
    const struct join_box *s = &join->sides[0][source], *t = &join->sides[1][target];
    int64_t start[RANK_MAX], extent[RANK_MAX];
    if (!box_intersect(join->rank, s->start, s->extent, t->start, t->extent, start, extent))
        return ++join->memory->misses <= join->memory->misses_max;
    if (!join_is_within(join))
        return join->emit(join->context, s->owner, t->owner, start, extent);
    join->has_pair = true;
    join->pair[0] = source < target ? source : target;
    join->pair[1] = source < target ? target : source;
    return false;
}

static bool join_all_pairs(struct join *join, const struct join_item *item)
{
    const struct sort_entry *stack = join->memory->stack;
    for (size_t t = item->begin[1]; t < item->end[1]; t++) {
        size_t end = join_is_within(join) ? t : item->end[0];
        for (size_t s = item->begin[0]; s < end; s++)
            if (!join_try(join, stack[s].value, stack[t].value))
                return false;
    }
    return true;
}

/* Spare entries and active numbers for lists of at most count. */
static bool lists_reserve(struct box_joiner *memory, size_t count)
{
    if (count > memory->spare_capacity) {
        free(memory->spare);
        memory->spare = array_new(count, sizeof(*memory->spare));
        memory->spare_capacity = memory->spare ? count : 0;
    }
    if (count > memory->active_capacity) {
        free(memory->active);
        memory->active = array_new(count, sizeof(*memory->active));
        memory->active_capacity = memory->active ? count : 0;
    }
    return count <= memory->spare_capacity && count <= memory->active_capacity;
}

static bool item_push(struct box_joiner *memory, const struct join_item *item)
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

/* Joins slab [begin, end) of side `cut` with the active boxes of the other side: at once if that is little, else later. */
static bool slab_join(struct join *join, int cut, size_t begin, size_t end, uint32_t active_count)
{
    struct box_joiner *memory = join->memory;
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

/* The end of the slab of a sorted list that starts at begin: up to the next place that no box crosses. *reach is that place. */
static size_t slab_end(const struct join *join, int side, size_t begin, size_t end, int axis, int64_t *reach)
{
    const struct sort_entry *stack = join->memory->stack;
    size_t at = begin + 1;
    *reach = entry_end(join, side, &stack[begin], axis);
    for (; at < end && stack[at].key < *reach; at++) {
        int64_t box_end = entry_end(join, side, &stack[at], axis);
        *reach = box_end > *reach ? box_end : *reach;
    }
    return at;
}

/* Leaves the slabs of a sorted list, each with itself, for later; at once what is little. */
static bool slabs_within(struct join *join, const struct join_item *item, int axis)
{
    int64_t reach;
    for (size_t begin = item->begin[0], end; begin < item->end[0]; begin = end) {
        end = slab_end(join, 0, begin, item->end[0], axis, &reach);
        struct join_item slab = { .begin = { begin, begin }, .end = { end, end } };
        if (end - begin > 1 && !(end - begin <= FEW ? join_all_pairs(join, &slab) : item_push(join->memory, &slab)))
            return false;
    }
    return true;
}

/* Walks the slabs of side `cut`, both lists sorted on the axis, keeping the boxes of the other side that reach into the slab. */
static bool slabs_join(struct join *join, const struct join_item *item, int cut, int axis)
{
    struct box_joiner *memory = join->memory;
    size_t next = item->begin[!cut], begin = item->begin[cut];
    uint32_t active_count = 0;
    while (begin < item->end[cut]) {
        int64_t low = memory->stack[begin].key, reach;
        size_t end = slab_end(join, cut, begin, item->end[cut], axis, &reach);
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

/* No clean cut anywhere: compares each target with the sources that reach it on the axis; within one set, with the boxes before it. */
static bool lists_sweep(struct join *join, const struct join_item *item, int axis)
{
    struct box_joiner *memory = join->memory;
    size_t next = item->begin[0];
    uint32_t active_count = 0;
    for (int side = join_is_within(join); side < 2; side++)
        list_sort(join, side, item->begin[side], item->end[side], axis);
    for (size_t t = item->begin[1]; t < item->end[1]; t++) {
        const struct sort_entry target = memory->stack[t];
        int64_t end = entry_end(join, 1, &target, axis);
        for (; join_is_within(join) ? next < t : next < item->end[0] && memory->stack[next].key < end; next++)
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

/* Cuts the lists on the axis between slabs of the given side; *was_cut is whether there is more than one. */
static bool lists_cut(struct join *join, const struct join_item *item, int side, int axis, bool *was_cut)
{
    int64_t reach;
    list_sort(join, side, item->begin[side], item->end[side], axis);
    join->memory->misses += item->end[side] - item->begin[side];
    *was_cut = slab_end(join, side, item->begin[side], item->end[side], axis, &reach) < item->end[side];
    if (!*was_cut)
        return true;
    if (join_is_within(join))
        return slabs_within(join, item, axis);
    list_sort(join, !side, item->begin[!side], item->end[!side], axis);
    return slabs_join(join, item, side, axis);
}

static bool item_join(struct join *join, const struct join_item *item)
{
    size_t counts[2] = { item->end[0] - item->begin[0], item->end[1] - item->begin[1] };
    int axes[RANK_MAX], sweep_axis = -1;
    if (counts[0] <= FEW || counts[1] <= FEW || counts[0] * counts[1] <= ALL_PAIRS_MAX)
        return join_all_pairs(join, item);
    if (!lists_reserve(join->memory, counts[0] > counts[1] ? counts[0] : counts[1]))
        return false;
    for (int side = 1; side >= join_is_within(join); side--) {
        int axis_count = axes_by_separation(join, side, item->begin[side], item->end[side], axes);
        if (axis_count > 0 && sweep_axis < 0)
            sweep_axis = axes[0];
        for (int i = 0; i < axis_count; i++) {
            bool was_cut;
            if (!lists_cut(join, item, side, axes[i], &was_cut))
                return false;
            if (was_cut)
                return true;
        }
    }
    /* Without an axis on which any two differ, all overlap or none does. */
    return sweep_axis < 0 ? join_all_pairs(join, item) : lists_sweep(join, item, sweep_axis);
}

static bool numbers_push(struct box_joiner *joiner, uint32_t count)
{
    if (!ARRAY_RESERVE(joiner->stack, joiner->stack_count + count, joiner->stack_capacity))
        return false;
    for (uint32_t i = 0; i < count; i++)
        joiner->stack[joiner->stack_count++].value = i;
    return true;
}

/* Joins the lists of `all`, and all that they are cut into. */
static reshard_status join_run(struct join *join, const struct join_item *all, reshard_error *err)
{
    struct box_joiner *joiner = join->memory;
    if (!item_push(joiner, all))
        return error_set_memory(err);
    while (joiner->item_count > 0 && !join->has_pair) {
        struct join_item item = joiner->items[--joiner->item_count];
        /* The lists of the items still waiting lie below this one's. */
        joiner->stack_count = item.end[0] > item.end[1] ? item.end[0] : item.end[1];
        bool is_done = item_join(join, &item);
        if (joiner->misses > joiner->misses_max)
            return error_set_limit(err, "box_checks", joiner->misses, joiner->misses_max);
        if (!is_done && !join->has_pair)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

static void joiner_clear(struct box_joiner *joiner)
{
    joiner->stack_count = 0;
    joiner->item_count = 0;
    joiner->misses = 0;
}

reshard_status box_join(struct box_joiner *joiner, int rank, const struct join_box *sources, uint32_t source_count,
                        const struct join_box *targets, uint32_t target_count, box_join_emit emit, void *context, reshard_error *err)
{
    struct join join = { .memory = joiner, .rank = rank, .sides = { sources, targets }, .emit = emit, .context = context };
    joiner_clear(joiner);
    if (!numbers_push(joiner, source_count) || !numbers_push(joiner, target_count))
        return error_set_memory(err);
    struct join_item all = { .begin = { 0, source_count }, .end = { source_count, joiner->stack_count } };
    return join_run(&join, &all, err);
}

reshard_status boxes_overlap(struct box_joiner *joiner, int rank, const struct join_box *boxes, uint32_t count, bool *overlaps,
                             uint32_t pair[2], reshard_error *err)
{
    struct join join = { .memory = joiner, .rank = rank, .sides = { boxes, boxes } };
    *overlaps = false;
    if (count < 2)
        return RESHARD_OK;
    joiner_clear(joiner);
    if (!numbers_push(joiner, count))
        return error_set_memory(err);
    struct join_item all = { .end = { count, count } };
    reshard_status status = join_run(&join, &all, err);
    *overlaps = join.has_pair;
    pair[0] = join.pair[0];
    pair[1] = join.pair[1];
    return status;
}

void box_joiner_release(struct box_joiner *joiner)
{
    free(joiner->stack);
    free(joiner->spare);
    free(joiner->active);
    free(joiner->items);
    *joiner = (struct box_joiner){ .misses_max = joiner->misses_max };
}
