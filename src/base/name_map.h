/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Name map: interns byte strings and numbers them 0, 1, 2, … in order of first insertion. Made for 10^7 names: names lie
 * in one arena, the table holds 32-bit indices, each beside half of its name's seeded hash, and is probed linearly.
 */
#ifndef BASE_NAME_MAP_H
#define BASE_NAME_MAP_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define NAME_NONE UINT32_MAX

struct name_map {
    struct arena arena;
    struct str *names; /* names[index] */
    struct name_slot { uint32_t number, tag; } *slots; /* index + 1, 0 is free; low half of the name's hash */
    uint32_t count, names_capacity, slots_capacity;
    uint64_t seed;
};

/* Index of name, adding it if new (*was_new, may be NULL, says so). NAME_NONE: no memory, or 2^31 - 1 names. */
uint32_t name_map_intern(struct name_map *map, struct str name, bool *was_new);

/* Index of name, or NAME_NONE. */
uint32_t name_map_find(const struct name_map *map, struct str name);

/* Of the name that the parts make, one behind the other. Fails without memory alone: then *out is NAME_NONE too. */
reshard_status name_map_find_joined(const struct name_map *map, const struct str *parts, size_t count, uint32_t *out, reshard_error *err);

static inline struct str name_map_at(const struct name_map *map, uint32_t index)
{
    return map->names[index];
}

void name_map_release(struct name_map *map);

#endif
