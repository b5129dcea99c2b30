/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and places of keys. */
#include "parallel/partition_rules.h"

#include <inttypes.h>
#include <stdio.h>

bool partition_renumber(struct buffer *out, struct str name, const struct partition_key *key, size_t begin, size_t end, int64_t layer,
                        int64_t expert)
{
    size_t at = begin;
    bool has_layer = key->stack && key->layer_at >= begin && key->layer_at < end;
    bool has_expert = key->expert_size > 0 && key->expert_at >= begin && key->expert_at < end;
    if (has_layer) {
        buffer_append(out, name.data + at, key->layer_at - at);
        buffer_printf(out, "%" PRId64, layer);
        at = key->layer_at + key->layer_size;
    }
    if (has_expert) {
        buffer_append(out, name.data + at, key->expert_at - at);
        buffer_printf(out, "%" PRId64, expert);
        at = key->expert_at + key->expert_size;
    }
    buffer_append(out, name.data + at, end - at);
    return !out->failed;
}

static size_t part_size(const struct path_part *part)
{
    char digits[32];
    return part->kind == PATH_KEY ? part->key.size : (size_t)snprintf(digits, sizeof(digits), "%" PRId64, part->index);
}

reshard_status partition_renumber_parts(struct arena *arena, struct str name, const struct partition_key *key, struct path_part *parts,
                                        size_t count, int64_t layer, int64_t expert, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    size_t begin = 0;
    for (size_t i = 0; !status && i < count; i++) {
        size_t end = begin + part_size(&parts[i]);
        buffer_clear(&text);
        if (parts[i].kind == PATH_KEY &&
            (!partition_renumber(&text, name, key, begin, end, layer, expert) || !arena_str(arena, buffer_str(&text), &parts[i].key)))
            status = error_set_memory(err);
        begin = end + 1;
    }
    buffer_release(&text);
    return status;
}

enum partition_place partition_key_place(const struct partition_rules *rules, struct str key)
{
    for (size_t at = 0; at < key.size; at++) {
        if (at > 0 && key.data[at - 1] != '.')
            continue;
        for (uint32_t i = 0; i < rules->stage_count; i++) {
            struct str prefix = rules->stages[i].prefix;
            if (key.size - at >= prefix.size && memcmp(key.data + at, prefix.data, prefix.size) == 0)
                return rules->stages[i].place;
        }
    }
    return PLACE_UNKNOWN;
}

const struct partition_grouping *partition_grouping_of(const struct partition_rules *rules, struct str name,
                                                       const struct partition_key *key, size_t *prefix)
{
    for (uint32_t i = 0; key->expert_size > 0 && i < rules->grouping_count; i++) {
        struct str member = rules->groupings[i].member;
        size_t at, end = key->expert_at + key->expert_size;
        if (!str_find_char(member, '#', &at) || at > key->expert_at || name.size - end != member.size - at - 1 ||
            memcmp(name.data + key->expert_at - at, member.data, at) != 0 ||
            memcmp(name.data + end, member.data + at + 1, name.size - end) != 0)
            continue;
        *prefix = key->expert_at - at;
        return &rules->groupings[i];
    }
    return NULL;
}
