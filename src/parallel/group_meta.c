/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/group_meta.h"

#include <stdlib.h>

#include "base/array.h"
#include "parallel/state_keys.h"

#define EXPERTS ".experts."
#define EXPERT_FLAG "is_expert_parallel"

reshard_status group_meta_add(struct group_meta *meta, struct str key, struct value *value, reshard_error *err)
{
    struct state_key read;
    bool was_new;
    if (!value || !state_key_read(key, &read) || read.kind != STATE_KEY_GROUP_META)
        return error_set_memory(err);
    uint32_t index = name_map_intern(&meta->parameters, read.parameter, &was_new);
    reshard_status status = index == NAME_NONE || !ARRAY_ROOM(meta->dicts, index, meta->capacity) ? error_set_memory(err) : RESHARD_OK;
    if (status)
        return status;
    if (was_new && !(meta->dicts[index] = value_new_list(meta->graph, VALUE_DICT, NULL, 0)))
        return error_set_memory(err);
    char *name = arena_copy(&meta->graph->arena, read.state.data, read.state.size);
    return name && value_dict_set(meta->graph, meta->dicts[index], name, value, true) ? RESHARD_OK : error_set_memory(err);
}

/* The group of experts: a copy that says so. */
static struct value *meta_mark(struct value_graph *graph, const struct value *group)
{
    struct value *copy = value_copy(graph, group, graph->count), *flag = value_new(graph, VALUE_BOOL);
    if (!copy || !flag)
        return NULL;
    flag->boolean = true;
    return value_dict_set(graph, copy, EXPERT_FLAG, flag, false) ? copy : NULL;
}

/* Whether the parameter's group is not in the list yet. */
static reshard_status is_new_group(struct name_map *known, const struct value *group, bool *out, reshard_error *err)
{
    struct buffer text = { 0 };
    bool done = value_to_repr(group, &text, NULL) && name_map_intern(known, buffer_str(&text), out) != NAME_NONE;
    buffer_release(&text);
    return done ? RESHARD_OK : error_set_memory(err);
}

reshard_status group_meta_list(const struct group_meta *meta, bool of_experts, struct value **out, reshard_error *err)
{
    struct name_map known = { 0 };
    struct value **items = arena_array(&meta->graph->arena, meta->parameters.count, sizeof(struct value *));
    reshard_status status = items ? RESHARD_OK : error_set_memory(err);
    size_t count = 0;
    for (uint32_t i = 0; i < meta->parameters.count && !status; i++) {
        struct str name = name_map_at(&meta->parameters, i);
        bool is_new = false;
        if (of_experts && !memmem(name.data, name.size, EXPERTS, sizeof(EXPERTS) - 1))
            continue;
        status = is_new_group(&known, meta->dicts[i], &is_new, err);
        if (status || !is_new)
            continue;
        items[count] = of_experts ? meta_mark(meta->graph, meta->dicts[i]) : meta->dicts[i];
        if (!items[count++])
            status = error_set_memory(err);
    }
    *out = status ? NULL : value_new_list(meta->graph, VALUE_LIST, items, count);
    name_map_release(&known);
    return status || *out ? status : error_set_memory(err);
}

void group_meta_release(struct group_meta *meta)
{
    name_map_release(&meta->parameters);
    free(meta->dicts);
    *meta = (struct group_meta){ 0 };
}
