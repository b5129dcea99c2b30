/* SPDX-License-Identifier: Apache-2.0 */
#include "base/name_map.h"

#include "base/array.h"
#include "base/buffer.h"
#include "base/hash.h"

#include <stdlib.h>

/*
 * Slots hold only indices: 10^7 names of 60 bytes take 610 MB of text, 160 to 240 MB of str and 128 MB of slots. The load
 * is at most 3/4 before the table doubles, up to the largest power of two that 32 bits hold.
 *
 * A look-up is bound by cache misses: without the tag every foreign name on the way would cost two, for its str and its text;
 * and the table grows without touching a name.
 */
#define SLOTS_MIN 64
#define NAMES_MIN 32
#define SLOTS_MAX (UINT32_C(1) << 31)
#define NAMES_MAX (SLOTS_MAX - 1)

static uint32_t slots_wanted(uint32_t capacity)
{
    if (!capacity)
        return SLOTS_MIN;
    return capacity < SLOTS_MAX ? capacity * 2 : 0;
}

/* The slot of name, or the free slot where it belongs. */
static uint32_t slot_search(const struct name_map *map, struct str name, uint32_t tag)
{
    uint32_t mask = map->slots_capacity - 1;
    uint32_t slot = tag & mask;
    while (map->slots[slot].number && (map->slots[slot].tag != tag || !str_equal(map->names[map->slots[slot].number - 1], name)))
        slot = (slot + 1) & mask;
    return slot;
}

static uint32_t tag_of(const struct name_map *map, struct str name)
{
    return (uint32_t)hash64(name.data, name.size, map->seed);
}

static bool slots_grow(struct name_map *map)
{
    uint32_t capacity = slots_wanted(map->slots_capacity);
    struct name_slot *slots = capacity ? array_zeroed(capacity, sizeof(*slots)) : NULL;
    if (!slots)
        return false;
    if (!map->slots)
        map->seed = hash_table_seed();
    for (uint32_t i = 0; i < map->slots_capacity; i++) {
        if (!map->slots[i].number)
            continue;
        uint32_t slot = map->slots[i].tag & (capacity - 1);
        while (slots[slot].number)
            slot = (slot + 1) & (capacity - 1);
        slots[slot] = map->slots[i];
    }
    free(map->slots);
    map->slots = slots;
    map->slots_capacity = capacity;
    return true;
}

static bool names_grow(struct name_map *map)
{
    uint64_t capacity = map->names_capacity ? (uint64_t)map->names_capacity * 3 / 2 : NAMES_MIN;
    if (capacity > NAMES_MAX)
        capacity = NAMES_MAX;
    struct str *names = reallocarray(map->names, (size_t)capacity, sizeof(*names));
    if (!names)
        return false;
    map->names = names;
    map->names_capacity = (uint32_t)capacity;
    return true;
}

/* At the largest size the table fills up further, but one slot always stays free to end a search. */
static bool has_room(const struct name_map *map)
{
    uint32_t spare = map->slots_capacity == SLOTS_MAX ? 1 : map->slots_capacity / 4;
    return map->count < map->slots_capacity - spare;
}

uint32_t name_map_intern(struct name_map *map, struct str name, bool *was_new)
{
    if (!has_room(map) && !slots_grow(map))
        return NAME_NONE;
    uint32_t tag = tag_of(map, name), slot = slot_search(map, name, tag);
    if (was_new)
        *was_new = map->slots[slot].number == 0;
    if (map->slots[slot].number)
        return map->slots[slot].number - 1;
    if (map->count >= NAMES_MAX || (map->count == map->names_capacity && !names_grow(map)))
        return NAME_NONE;
    if (!arena_str(&map->arena, name, &map->names[map->count]))
        return NAME_NONE;
    map->slots[slot] = (struct name_slot){ .number = ++map->count, .tag = tag };
    return map->count - 1;
}

uint32_t name_map_find(const struct name_map *map, struct str name)
{
    if (!map->count)
        return NAME_NONE;
    uint32_t number = map->slots[slot_search(map, name, tag_of(map, name))].number;
    return number ? number - 1 : NAME_NONE;
}

reshard_status name_map_find_joined(const struct name_map *map, const struct str *parts, size_t count, uint32_t *out, reshard_error *err)
{
    struct buffer name = { 0 };
    for (size_t i = 0; i < count; i++)
        buffer_append_str(&name, parts[i]);
    const bool is_made = !name.failed;
    *out = is_made ? name_map_find(map, buffer_str(&name)) : NAME_NONE;
    buffer_release(&name);
    return is_made ? RESHARD_OK : error_set_memory(err);
}

void name_map_release(struct name_map *map)
{
    arena_release(&map->arena);
    free(map->names);
    free(map->slots);
    *map = (struct name_map){ .arena = map->arena };
}
