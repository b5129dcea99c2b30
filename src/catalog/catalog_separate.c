/* SPDX-License-Identifier: Apache-2.0 */
#include "catalog/catalog_separate.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define ALL_PAIRS_MAX 8
#define INSERTION_MAX 24

struct separate_entry {
    int64_t key;
    uint32_t piece;
};

struct separate_range {
    uint32_t begin, end;
};

/* What one call works on. */
struct separation {
    struct separator *memory;
    const struct piece *pieces;
    int rank;
    bool overlaps;
    uint32_t pair[2];
};

static void sort_insertion(struct separate_entry *entries, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct separate_entry entry = entries[i];
        size_t j = i;
        for (; j > 0 && entries[j - 1].key > entry.key; j--)
            entries[j] = entries[j - 1];
        entries[j] = entry;
    }
}

/* Radix sort by the bytes in which keys differ; grids have few distinct starts, so two or three passes. Stable. */
static void sort_entries(struct separate_entry *entries, struct separate_entry *spare, size_t count)
{
    int64_t low = entries[0].key, high = entries[0].key;
    bool is_sorted = true;
    for (size_t i = 1; i < count; i++) {
        is_sorted &= entries[i - 1].key <= entries[i].key;
        low = entries[i].key < low ? entries[i].key : low;
        high = entries[i].key > high ? entries[i].key : high;
    }
    if (is_sorted)
        return;
    if (count <= INSERTION_MAX) {
        sort_insertion(entries, count);
        return;
    }
    struct separate_entry *from = entries, *to = spare;
    uint64_t range = (uint64_t)high - (uint64_t)low;
    for (unsigned shift = 0; shift < 64 && range >> shift; shift += 8) {
        size_t positions[256] = { 0 }, sum = 0;
        for (size_t i = 0; i < count; i++)
            positions[((uint64_t)from[i].key - (uint64_t)low) >> shift & 0xff]++;
        for (size_t digit = 0; digit < 256; digit++) {
            size_t of_digit = positions[digit];
            positions[digit] = sum;
            sum += of_digit;
        }
        for (size_t i = 0; i < count; i++)
            to[positions[((uint64_t)from[i].key - (uint64_t)low) >> shift & 0xff]++] = from[i];
        struct separate_entry *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != entries)
        memcpy(entries, from, count * sizeof(*entries));
}

static bool pieces_overlap(const struct separation *s, uint32_t a, uint32_t b)
{
    const struct piece *pa = &s->pieces[a], *pb = &s->pieces[b];
    for (int axis = 0; axis < s->rank; axis++)
        if (pa->start[axis] >= pb->start[axis] + pb->extent[axis] || pb->start[axis] >= pa->start[axis] + pa->extent[axis])
            return false;
    return true;
}

static void pair_found(struct separation *s, uint32_t a, uint32_t b)
{
    s->overlaps = true;
    s->pair[0] = a < b ? a : b;
    s->pair[1] = a < b ? b : a;
}

static void range_all_pairs(struct separation *s, struct separate_range range)
{
    const struct separate_entry *order = s->memory->order;
    for (uint32_t i = range.begin; i < range.end; i++)
        for (uint32_t j = range.begin; j < i; j++)
            if (pieces_overlap(s, order[i].piece, order[j].piece)) {
                pair_found(s, order[i].piece, order[j].piece);
                return;
            }
    s->memory->checks += range.end - range.begin;
}

/* Axes by how many layers of mean thickness fit into the range's span, most first; axes that all pieces span are left out. */
static int axes_by_separation(const struct separation *s, struct separate_range range, int axes[RANK_MAX])
{
    double layers[RANK_MAX];
    int count = 0;
    for (int axis = 0; axis < s->rank; axis++) {
        int64_t low = INT64_MAX, high = 0, thinnest = INT64_MAX;
        double sum = 0;
        for (uint32_t i = range.begin; i < range.end; i++) {
            const struct piece *piece = &s->pieces[s->memory->order[i].piece];
            int64_t start = piece->start[axis], extent = piece->extent[axis];
            low = start < low ? start : low;
            high = start + extent > high ? start + extent : high;
            thinnest = extent < thinnest ? extent : thinnest;
            sum += (double)extent;
        }
        if (thinnest == high - low)
            continue;
        double found = (double)(high - low) * (double)(range.end - range.begin) / sum;
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

static bool range_push(struct separator *memory, uint32_t begin, uint32_t end)
{
    if (!ARRAY_ROOM(memory->ranges, memory->range_count, memory->range_capacity))
        return false;
    memory->ranges[memory->range_count++] = (struct separate_range){ begin, end };
    return true;
}

/* Sorts the range on the axis. */
static void range_sort(struct separation *s, struct separate_range range, int axis)
{
    struct separate_entry *order = s->memory->order;
    for (uint32_t i = range.begin; i < range.end; i++)
        order[i].key = s->pieces[order[i].piece].start[axis];
    sort_entries(order + range.begin, s->memory->spare + range.begin, range.end - range.begin);
}

/* Pushes the parts of the sorted range between which the axis has a clean cut. *was_cut: there was at least one cut. */
static bool range_cut(struct separation *s, struct separate_range range, int axis, bool *was_cut)
{
    const struct separate_entry *order = s->memory->order;
    uint32_t begin = range.begin;
    int64_t end = order[begin].key;
    *was_cut = false;
    for (uint32_t i = range.begin; i <= range.end; i++) {
        if (i == range.end ? *was_cut : order[i].key >= end) {
            if (i - begin > 1 && !range_push(s->memory, begin, i))
                return false;
            *was_cut |= i > begin;
            begin = i;
        }
        if (i < range.end) {
            int64_t piece_end = order[i].key + s->pieces[order[i].piece].extent[axis];
            end = piece_end > end ? piece_end : end;
        }
    }
    return true;
}

/* Compares each piece of the sorted range with those before it that still reach it on the axis. The spare array lists these. */
static reshard_status range_sweep(struct separation *s, struct separate_range range, int axis, reshard_error *err)
{
    const struct separate_entry *order = s->memory->order;
    struct separate_entry *active = s->memory->spare;
    uint32_t active_count = 0;
    for (uint32_t i = range.begin; i < range.end; i++) {
        for (uint32_t j = 0; j < active_count;) {
            if (active[j].key <= order[i].key) {
                active[j] = active[--active_count];
                continue;
            }
            if (pieces_overlap(s, active[j].piece, order[i].piece)) {
                pair_found(s, active[j].piece, order[i].piece);
                return RESHARD_OK;
            }
            j++;
        }
        s->memory->checks += active_count;
        if (s->memory->checks > s->memory->checks_max)
            return error_set_limit(err, "box_checks", s->memory->checks, s->memory->checks_max);
        int64_t end = order[i].key + s->pieces[order[i].piece].extent[axis];
        active[active_count++] = (struct separate_entry){ end, order[i].piece };
    }
    return RESHARD_OK;
}

static reshard_status range_separate(struct separation *s, struct separate_range range, reshard_error *err)
{
    int axes[RANK_MAX];
    if (range.end - range.begin <= ALL_PAIRS_MAX) {
        range_all_pairs(s, range);
        return RESHARD_OK;
    }
    int axis_count = axes_by_separation(s, range, axes);
    if (axis_count == 0) {
        pair_found(s, s->memory->order[range.begin].piece, s->memory->order[range.begin + 1].piece);
        return RESHARD_OK;
    }
    for (int i = 0; i < axis_count; i++) {
        bool was_cut;
        s->memory->checks += range.end - range.begin;
        if (s->memory->checks > s->memory->checks_max)
            return error_set_limit(err, "box_checks", s->memory->checks, s->memory->checks_max);
        range_sort(s, range, axes[i]);
        if (!range_cut(s, range, axes[i], &was_cut))
            return error_set_memory(err);
        if (was_cut)
            return RESHARD_OK;
    }
    range_sort(s, range, axes[0]);
    return range_sweep(s, range, axes[0], err);
}

static bool order_reserve(struct separator *memory, uint32_t count)
{
    if (count <= memory->order_capacity)
        return true;
    size_t wanted = (size_t)count + count / 2;
    if (wanted > UINT32_MAX)
        wanted = UINT32_MAX;
    separator_release(memory);
    memory->order = malloc(wanted * sizeof(*memory->order));
    memory->spare = malloc(wanted * sizeof(*memory->spare));
    if (!memory->order || !memory->spare) {
        separator_release(memory);
        return false;
    }
    memory->order_capacity = (uint32_t)wanted;
    return true;
}

reshard_status pieces_separate(struct separator *separator, const struct piece *pieces, uint32_t count, int rank, bool *overlaps,
                               uint32_t pair[2], reshard_error *err)
{
    struct separation s = { .memory = separator, .pieces = pieces, .rank = rank };
    *overlaps = false;
    if (count < 2)
        return RESHARD_OK;
    if (!order_reserve(separator, count))
        return error_set_memory(err);

    for (uint32_t i = 0; i < count; i++)
        separator->order[i] = (struct separate_entry){ 0, i };
    separator->checks = 0;
    separator->range_count = 0;
    if (!range_push(separator, 0, count))
        return error_set_memory(err);
    while (separator->range_count > 0 && !s.overlaps) {
        reshard_status status = range_separate(&s, separator->ranges[--separator->range_count], err);
        if (status)
            return status;
    }
    *overlaps = s.overlaps;
    pair[0] = s.pair[0];
    pair[1] = s.pair[1];
    return RESHARD_OK;
}

void separator_release(struct separator *separator)
{
    free(separator->order);
    free(separator->spare);
    free(separator->ranges);
    uint64_t checks_max = separator->checks_max;
    *separator = (struct separator){ .checks_max = checks_max };
}
