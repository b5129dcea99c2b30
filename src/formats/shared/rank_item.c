/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/rank_item.h"

#include <inttypes.h>

#define WORD "rank_"

reshard_status rank_item_name(struct arena *arena, uint32_t rank, struct str key, const struct path_part *parts, size_t part_count,
                              struct rank_item *out, reshard_error *err)
{
    struct path_part *own = arena_array(arena, part_count + 1, sizeof(*own));
    char *word = arena_printf(arena, WORD "%" PRIu32, rank);
    const struct str text = ARENA_JOIN(arena, str_of(word ? word : ""), STR("."), key);
    if (!own || !word || !text.data)
        return error_set_memory(err);
    own[0] = (struct path_part){ .kind = PATH_KEY, .key = str_of(word) };
    for (size_t i = 0; i < part_count; i++)
        own[1 + i] = parts[i];
    *out = (struct rank_item){ .key = text, .parts = own, .part_count = part_count ? part_count + 1 : 0 };
    return RESHARD_OK;
}

static bool note_storage(const struct value *value, void *context)
{
    bool *found = context;
    *found = *found || value->kind == VALUE_PERSID;
    return !*found;
}

bool rank_item_has_storage(const struct value *value, size_t nodes, struct work *work, bool *out)
{
    *out = false;
    return value_walk(value, nodes, work, note_storage, out, NULL) || *out;
}

bool rank_item_read(struct str key, uint32_t *rank, struct str *base)
{
    size_t dot;
    uint64_t number;
    const size_t size = sizeof(WORD) - 1;
    if (!str_starts_with(key, WORD) || !str_find_char(key, '.', &dot) ||
        !str_to_u64((struct str){ key.data + size, dot - size }, &number) || number > UINT16_MAX)
        return false;
    *rank = (uint32_t)number;
    *base = (struct str){ key.data + dot + 1, key.size - dot - 1 };
    return base->size > 0;
}
