/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_lists.h"

#include <stdlib.h>

#include "base/array.h"

/* One part, spelled so that no two different paths are spelled alike. */
static void spell(struct buffer *key, const struct path_part *part)
{
    buffer_append_byte(key, (uint8_t)part->kind);
    buffer_append_u64le(key, part->kind == PATH_KEY ? part->key.size : (uint64_t)part->index);
    if (part->kind == PATH_KEY)
        buffer_append_str(key, part->key);
}

static struct dcp_list *list_of(struct dcp_lists *lists)
{
    bool was_new;
    uint32_t index = name_map_intern(&lists->lists, buffer_str(&lists->key), &was_new);
    if (index == NAME_NONE)
        return NULL;
    if (!ARRAY_ROOM(lists->found, index, lists->capacity))
        return NULL;
    if (was_new)
        lists->found[index] = (struct dcp_list){ .last = -1 };
    return &lists->found[index];
}

/* The root is a dict whatever it was. */
static bool is_position(const struct path_part *parts, size_t index)
{
    return index > 0 && parts[index].kind == PATH_INDEX;
}

/* Whether a dict is on the path behind the position. */
static bool has_key_behind(const struct path_part *parts, size_t index, size_t count)
{
    for (size_t i = index + 1; i < count; i++) {
        if (parts[i].kind != PATH_INDEX)
            return true;
    }
    return false;
}

reshard_status dcp_lists_add(struct dcp_lists *lists, const struct path_part *parts, size_t count, bool is_tensor, reshard_error *err)
{
    buffer_clear(&lists->key);
    for (size_t i = 0; i < count; i++) {
        bool was_new = false;
        struct dcp_list *list = is_position(parts, i) ? list_of(lists) : NULL;
        if (is_position(parts, i) && !list)
            return error_set_memory(err);
        spell(&lists->key, &parts[i]);
        if (!list)
            continue;
        if (lists->key.failed || name_map_intern(&lists->positions, buffer_str(&lists->key), &was_new) == NAME_NONE)
            return error_set_memory(err);
        list->count += was_new;
        list->is_open |= is_tensor || has_key_behind(parts, i, count);
        if (parts[i].index > list->last)
            list->last = parts[i].index;
    }
    return lists->key.failed ? error_set_memory(err) : RESHARD_OK;
}

bool dcp_lists_are_flat(struct dcp_lists *lists, const struct path_part *parts, size_t count)
{
    buffer_clear(&lists->key);
    for (size_t i = 0; i < count; i++) {
        if (is_position(parts, i)) {
            uint32_t index = name_map_find(&lists->lists, buffer_str(&lists->key));
            if (index != NAME_NONE && (dcp_list_has_hole(&lists->found[index]) || !lists->found[index].is_open))
                return true;
        }
        spell(&lists->key, &parts[i]);
    }
    return false;
}

void dcp_lists_release(struct dcp_lists *lists)
{
    name_map_release(&lists->lists);
    name_map_release(&lists->positions);
    free(lists->found);
    buffer_release(&lists->key);
    *lists = (struct dcp_lists){ 0 };
}
