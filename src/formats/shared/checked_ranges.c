/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/checked_ranges.h"

#include "base/array.h"

#include <stdlib.h>

bool checked_ranges_add(struct checked_ranges *ranges, uint32_t object, uint64_t offset, uint64_t bytes)
{
    if (!ARRAY_ROOM(ranges->items, ranges->count, ranges->capacity))
        return false;
    ranges->items[ranges->count++] = (struct checked_range){ offset, bytes, object };
    return true;
}

static int checked_ranges_by_place(const void *a, const void *b)
{
    const struct checked_range *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool is_checked(const struct checked_ranges *ranges, uint32_t object, uint64_t offset)
{
    size_t low = 0, high = ranges->count; /* the last range that begins at offset or before */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct checked_range *range = &ranges->items[middle];
        if (range->object < object || (range->object == object && range->offset <= offset))
            low = middle + 1;
        else
            high = middle;
    }
    const struct checked_range *found = low ? &ranges->items[low - 1] : NULL;
    return found && found->object == object && offset - found->offset < found->bytes;
}

/* Where the chunk's stored bytes begin. */
static uint64_t stored_offset(const struct catalog *catalog, const struct catalog_chunk *chunk)
{
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    if (layout && layout->outer_codec != CODEC_NONE)
        return layout->outer_offset;
    return catalog_chunk_span(catalog, chunk).offset;
}

void checked_ranges_mark(struct checked_ranges *ranges, struct catalog *catalog)
{
    if (!ranges->count)
        return;
    qsort(ranges->items, ranges->count, sizeof(*ranges->items), checked_ranges_by_place);
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        struct catalog_chunk *chunk = &catalog->chunks[i];
        if (is_checked(ranges, chunk->object, stored_offset(catalog, chunk)))
            chunk->flags |= CHUNK_CHECKED;
    }
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        struct catalog_item *item = &catalog->items[i];
        if (item->kind != ITEM_VALUE && is_checked(ranges, item->object, item->offset))
            item->is_checked = true;
    }
}

void checked_ranges_release(struct checked_ranges *ranges)
{
    free(ranges->items);
    *ranges = (struct checked_ranges){ 0 };
}
