/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of parameters as state dicts of torch's optimizers have them: an item optim.param_groups, or one of each option,
 * optim.param_groups.0.lr. They become optim_meta, where the source has none.
 */
#include "formats/atorch/atorch_target.h"

#define GROUPS_WORD "param_groups"

/* What an item's key says. */
struct group_key {
    struct str before;      /* "optim." */
    struct str member;      /* of the group; empty: the item is the list of all groups */
    uint64_t number;
};

static bool group_key_read(struct str key, struct group_key *out)
{
    const size_t size = strlen(GROUPS_WORD);
    const char *found = memmem(key.data, key.size, GROUPS_WORD, size);
    size_t dot;
    if (!found || (found > key.data && found[-1] != '.'))
        return false;
    *out = (struct group_key){ .before = { key.data, (size_t)(found - key.data) } };
    struct str rest = { found + size, key.size - out->before.size - size };
    if (!rest.size)
        return true;
    struct str behind = { rest.data + 1, rest.size - 1 };
    if (rest.data[0] != '.' || !str_find_char(behind, '.', &dot) || !str_to_u64((struct str){ behind.data, dot }, &out->number))
        return false;
    out->member = (struct str){ behind.data + dot + 1, behind.size - dot - 1 };
    return out->member.size && !str_find_char(out->member, '.', &dot);
}

bool atorch_is_torch_group(struct str key, const struct str *before)
{
    struct group_key read;
    return group_key_read(key, &read) && (!before || str_equal(read.before, *before));
}

/* The groups being put together. */
struct torch_groups {
    const struct layout_request *request;
    struct value_graph *graph;
    struct value **groups;  /* by number */
    uint64_t count;
    struct str before;
    bool is_found, is_other; /* is_other: they are of two optimizers, or no list of dicts with names */
};

/* How many groups there are, and whose. */
static void torch_groups_count(struct torch_groups *reading)
{
    uint32_t item_count = reading->request->wanted->item_count;
    for (uint32_t i = 0; i < item_count; i++) {
        struct group_key key;
        if (!group_key_read(layout_item_stored(reading->request, i)->key, &key))
            continue;
        reading->is_other |= (reading->is_found && !str_equal(key.before, reading->before)) || key.number >= item_count;
        reading->before = key.before;
        reading->is_found = true;
        if (key.number >= reading->count && key.member.size)
            reading->count = key.number + 1;
    }
}

/* The copy of an item's value. */
static reshard_status torch_groups_load(struct torch_groups *reading, uint32_t wanted, struct value **out, reshard_error *err)
{
    const struct catalog_item *item;
    reshard_status status = layout_item(reading->request, wanted, &item, err);
    *out = NULL;
    if (status || !item->value)
        return status;
    *out = value_copy(reading->graph, item->value, item->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status torch_groups_take(struct torch_groups *reading, const struct group_key *key, struct value *value, reshard_error *err)
{
    char *name = arena_printf(&reading->graph->arena, "%.*s", STR_ARG(key->member));
    struct value **group = &reading->groups[key->number];
    if (!*group)
        *group = value_new(reading->graph, VALUE_DICT);
    return name && *group && value_dict_set(reading->graph, *group, name, value, true) ? RESHARD_OK : error_set_memory(err);
}

/* Names, not numbers, say which parameters are in a group. */
static bool torch_group_is_named(const struct value *group)
{
    const struct value *params = group && group->kind == VALUE_DICT ? value_dict_get(group, "params") : NULL;
    bool good = params && params->kind == VALUE_LIST;
    for (size_t i = 0; good && i < params->list.count; i++) {
        struct str name;
        good = value_as_str(params->list.items[i], &name);
    }
    return good;
}

static reshard_status torch_groups_collect(struct torch_groups *reading, struct value **out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    struct value *list = NULL;
    reading->groups = arena_zalloc(&reading->graph->arena, (size_t)(reading->count + 1) * sizeof(*reading->groups));
    if (!reading->groups)
        return error_set_memory(err);
    for (uint32_t i = 0; i < reading->request->wanted->item_count && !status; i++) {
        struct group_key key;
        struct value *value;
        if (!group_key_read(layout_item_stored(reading->request, i)->key, &key))
            continue;
        status = torch_groups_load(reading, i, &value, err);
        if (!status && value && key.member.size)
            status = torch_groups_take(reading, &key, value, err);
        else if (!status)
            list = value;
    }
    if (!status && !list)
        list = value_new_list(reading->graph, VALUE_LIST, reading->groups, (size_t)reading->count);
    if (!status && !list)
        return error_set_memory(err);
    *out = list;
    return status;
}

reshard_status atorch_torch_groups(const struct layout_request *request, struct value_graph *graph, struct value **out, struct str *before,
                                   reshard_error *err)
{
    struct torch_groups reading = { .request = request, .graph = graph };
    *out = NULL;
    torch_groups_count(&reading);
    if (!reading.is_found || reading.is_other)
        return RESHARD_OK;
    struct value *list;
    reshard_status status = torch_groups_collect(&reading, &list, err);
    bool good = !status && list->kind == VALUE_LIST && list->list.count;
    for (size_t i = 0; good && i < list->list.count; i++)
        good = torch_group_is_named(list->list.items[i]);
    if (good) {
        *out = list;
        *before = reading.before;
    }
    return status;
}
