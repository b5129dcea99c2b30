/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool of index vectors. A slot is two words: index + 1 in the pool (0 is free), and a tag that holds the vector's length and
 * hash bits, so that two vectors are one exactly if length and numbers agree. The slots are dropped when the catalog is sealed; vectors
 * added later start a new table, which only costs the sharing with old ones.
 */
#include "catalog/catalog.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"

#define COUNT_BITS 7
#define COUNT_MASK ((UINT32_C(1) << COUNT_BITS) - 1)

_Static_assert(RANK_MAX <= COUNT_MASK, "the tag must hold every length");

static uint64_t catalog_vector_hash(const struct catalog *catalog, const int64_t *values, int count)
{
    return hash64(values, (size_t)count * sizeof(*values), catalog->vector_seed + (uint64_t)count);
}

static uint32_t vector_tag(uint64_t hash, int count)
{
    return ((uint32_t)(hash >> 32) & ~COUNT_MASK) | (uint32_t)count;
}

/* Doubles the table at three quarters. The hash is made anew from the numbers: the tag keeps too little of it. */
static bool slots_reserve(struct catalog *catalog, uint32_t used)
{
    uint64_t old_capacity = catalog->vector_slots_capacity;
    if (((uint64_t)used + 1) * 4 <= old_capacity * 3)
        return true;
    uint64_t capacity = old_capacity ? old_capacity * 2 : 64;
    if (capacity > UINT32_C(1) << 31)
        return false;
    uint32_t *slots = array_zeroed(capacity, 2 * sizeof(*slots));
    if (!slots)
        return false;
    for (uint64_t i = 0; i < old_capacity; i++) {
        const uint32_t *old = catalog->vector_slots + 2 * i;
        if (!old[0])
            continue;
        uint64_t at = catalog_vector_hash(catalog, catalog->vectors + old[0] - 1, (int)(old[1] & COUNT_MASK)) & (capacity - 1);
        while (slots[2 * at])
            at = (at + 1) & (capacity - 1);
        slots[2 * at] = old[0];
        slots[2 * at + 1] = old[1];
    }
    free(catalog->vector_slots);
    catalog->vector_slots = slots;
    catalog->vector_slots_capacity = (uint32_t)capacity;
    return true;
}

/* Numbers of a sealed catalog may be pointed to from outside: they stay where they are, and the pool goes on elsewhere. */
static bool vectors_reserve(struct catalog *catalog, uint64_t needed)
{
    if (!catalog->is_sealed || needed <= catalog->vector_capacity)
        return ARRAY_RESERVE(catalog->vectors, needed, catalog->vector_capacity);
    int64_t *moved = NULL;
    uint32_t capacity = 0;
    if (!ARRAY_ROOM(catalog->old_vectors, catalog->old_vector_count, catalog->old_vector_capacity) ||
        !ARRAY_RESERVE(moved, needed + needed / 2 < UINT32_MAX ? needed + needed / 2 : needed, capacity))
        return false;
    if (catalog->vector_count)
        memcpy(moved, catalog->vectors, (size_t)catalog->vector_count * sizeof(*moved));
    catalog->old_vectors[catalog->old_vector_count++] = catalog->vectors;
    catalog->vectors = moved;
    catalog->vector_capacity = capacity;
    return true;
}

uint32_t catalog_vector(struct catalog *catalog, const int64_t *values, int count)
{
    int64_t copy[RANK_MAX];
    if (count < 0 || count > RANK_MAX)
        return CATALOG_NONE;
    if (count > 0)
        memcpy(copy, values, (size_t)count * sizeof(*copy)); /* values may lie in the pool, which may move */
    if (!slots_reserve(catalog, catalog->vector_slots_used) ||
        !vectors_reserve(catalog, (uint64_t)catalog->vector_count + (uint64_t)count + 1))
        return CATALOG_NONE;

    uint64_t hash = catalog_vector_hash(catalog, copy, count);
    uint32_t tag = vector_tag(hash, count);
    uint64_t mask = catalog->vector_slots_capacity - 1, at = hash & mask;
    for (; catalog->vector_slots[2 * at]; at = (at + 1) & mask) {
        uint32_t index = catalog->vector_slots[2 * at] - 1;
        if (catalog->vector_slots[2 * at + 1] == tag && memcmp(catalog->vectors + index, copy, (size_t)count * sizeof(*copy)) == 0)
            return index;
    }
    uint32_t index = catalog->vector_count;
    if (count > 0)
        memcpy(catalog->vectors + index, copy, (size_t)count * sizeof(*copy));
    catalog->vector_count += (uint32_t)count;
    catalog->vector_slots[2 * at] = index + 1;
    catalog->vector_slots[2 * at + 1] = tag;
    catalog->vector_slots_used++;
    return index;
}
