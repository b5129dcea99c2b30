/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of parameters as state dicts of torch's optimizers have them: an item optim.param_groups, one of each option,
 * optim.param_groups.0.lr, or one of each option of each parameter, optim.param_groups.layers.0.weight.lr (flatten_optimizer_state_dict).
 * They become optim_meta, where the source has none; parameters of the same options are a group then. Options may be tensors of one number,
 * as learning rates are for compiled and captured steps: they become numbers.
 */
#include "formats/atorch/atorch_target.h"

#include "base/array.h"
#include "formats/shared/step_number.h"

#include <stdlib.h>

#define GROUPS_WORD "param_groups"

/* What an item's key says. */
struct group_key {
    struct str before;    /* "optim." */
    struct str member;    /* of the group; empty: the item is the list of all groups */
    struct str parameter; /* the one that the member is of; empty: the group of that number is */
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
    const char *last = memrchr(rest.data, '.', rest.size);
    if (rest.data[0] != '.' || !str_find_char(behind, '.', &dot) || last + 1 == rest.data + rest.size)
        return false;
    struct str owner = { behind.data, (size_t)(last - behind.data) };
    out->member = (struct str){ last + 1, (size_t)(rest.data + rest.size - last) - 1 };
    if (!str_to_u64(owner, &out->number))
        out->parameter = owner;
    return owner.size > 0;
}

bool atorch_is_torch_group(struct str key, const struct str *before)
{
    struct group_key read;
    return group_key_read(key, &read) && (!before || str_equal(read.before, *before));
}

/* The groups being put together. */
struct torch_groups {
    const struct layout_request *request;
    const struct atorch_plan *plan;
    struct value_graph *graph;
    struct value **groups; /* by number */
    uint64_t count;
    struct str before;
    bool is_by_parameter;
    bool is_found, is_other; /* is_other: they are of two optimizers, or no list of dicts with names */
    struct name_map names;   /* of parameters that have options of their own: number -> members */
    struct own_options {
        struct value *members; /* DICT */
        uint32_t tensor;       /* the parameter in the source, or CATALOG_NONE */
        struct str name;
    } * own;
    uint32_t own_capacity;
};

/* Wanted items come first, then the plan's options that are tensors. */
static uint32_t torch_groups_entries(const struct torch_groups *reading)
{
    return reading->request->wanted->item_count + reading->plan->option_count;
}

static uint32_t torch_groups_tensor(const struct torch_groups *reading, uint32_t entry)
{
    return reading->request->wanted_source[reading->plan->options[entry - reading->request->wanted->item_count]];
}

/* What the entry is of the groups; false: nothing. */
static bool torch_groups_entry_key(const struct torch_groups *reading, uint32_t entry, struct group_key *out)
{
    const struct layout_request *request = reading->request;
    bool is_item = entry < request->wanted->item_count;
    return group_key_read(is_item ? layout_item_stored(request, entry)->key
                                  : request->source_catalog->tensors[torch_groups_tensor(reading, entry)].key,
                          out);
}

/* How many groups there are, and whose. */
static void torch_groups_count(struct torch_groups *reading)
{
    uint32_t entries = torch_groups_entries(reading);
    for (uint32_t i = 0; i < entries; i++) {
        struct group_key key;
        if (!torch_groups_entry_key(reading, i, &key))
            continue;
        reading->is_other |= (reading->is_found && !str_equal(key.before, reading->before)) || key.number >= entries;
        reading->is_other |= reading->is_found && reading->is_by_parameter != (key.parameter.size > 0);
        reading->before = key.before;
        reading->is_found = true;
        reading->is_by_parameter = key.parameter.size > 0;
        if (key.number >= reading->count && key.member.size && !key.parameter.size)
            reading->count = key.number + 1;
    }
}

/* The number that a tensor of the source is. */
static reshard_status read_group_number(const struct torch_groups *reading, uint32_t index, struct value **out, reshard_error *err)
{
    struct source *source = reading->request->source;
    uint8_t element[16];
    struct store_object *object = NULL;
    reshard_status status = source_resolve(source, &index, 1, err);
    const struct catalog_tensor *tensor = &source->catalog->tensors[index];
    const struct catalog_chunk *chunk = &source->catalog->chunks[tensor->first_chunk];
    unsigned size = dtype_element_bytes(tensor->dtype);
    if (status)
        return status;
    if (!tensor->chunk_count || !size || size > sizeof(element) || catalog_chunk_is_coded(source->catalog, chunk))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is a number of a group of parameters, and is stored compressed",
                         STR_ARG(tensor->key));
    const struct str name = source->catalog->objects[chunk->object].name;
    const char *copy = arena_copy(&reading->graph->arena, name.data, name.size);
    status = copy ? store_open_object(source->store, copy, &object, err) : error_set_memory(err);
    if (!status)
        status = store_read_at(object, chunk->offset, element, size, err);
    if (!status)
        status = step_of_element(reading->graph, tensor->dtype, element, chunk->flags & CHUNK_SWAP, out, err);
    store_object_close(object);
    return status;
}

/* The copy of an item's value, or the number of a tensor. */
static reshard_status torch_groups_load(struct torch_groups *reading, uint32_t entry, struct value **out, reshard_error *err)
{
    const struct catalog_item *item;
    *out = NULL;
    if (entry >= reading->request->wanted->item_count)
        return read_group_number(reading, torch_groups_tensor(reading, entry), out, err);
    reshard_status status = layout_item(reading->request, entry, &item, err);
    if (status || !item->value)
        return status;
    *out = value_copy(reading->graph, item->value, item->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status torch_groups_take(struct torch_groups *reading, const struct group_key *key, struct value *value, reshard_error *err)
{
    const char *name = arena_copy(&reading->graph->arena, key->member.data, key->member.size);
    struct value **group = &reading->groups[key->number];
    if (!*group)
        *group = value_new(reading->graph, VALUE_DICT);
    return name && *group && value_dict_set(reading->graph, *group, name, value, true) ? RESHARD_OK : error_set_memory(err);
}

/* ---- options of each parameter ---- */

static reshard_status take_own_option(struct torch_groups *reading, const struct state_owners *owners, const struct group_key *key,
                                      struct value *value, reshard_error *err)
{
    bool was_new;
    const char *name = arena_copy(&reading->graph->arena, key->member.data, key->member.size);
    uint32_t number = name_map_intern(&reading->names, key->parameter, &was_new);
    if (!name || number == NAME_NONE || !ARRAY_ROOM(reading->own, number, reading->own_capacity))
        return error_set_memory(err);
    if (was_new)
        reading->own[number] = (struct own_options){ .members = value_new(reading->graph, VALUE_DICT),
                                                     .tensor = state_owners_weight(owners, key->before, key->parameter),
                                                     .name = name_map_at(&reading->names, number) };
    struct value *members = reading->own[number].members;
    return members && value_dict_set(reading->graph, members, name, value, true) ? RESHARD_OK : error_set_memory(err);
}

/* In the order of the model; what it does not have comes last. */
static int own_order(const void *a, const void *b)
{
    const struct own_options *x = a, *y = b;
    return x->tensor != y->tensor ? (x->tensor > y->tensor) - (x->tensor < y->tensor) : str_compare(x->name, y->name);
}

/* Whether a group, which has its parameters beside, has these options. */
static reshard_status has_options(const struct torch_groups *reading, const struct value *group, const struct value *members, bool *out,
                                  reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    *out = group->list.count == members->list.count + 2;
    for (size_t i = 0; !status && *out && i + 1 < members->list.count; i += 2) {
        const struct value *other = value_dict_find(group, members->list.items[i]->text);
        *out = other != NULL;
        if (other)
            status = value_compare(other, members->list.items[i + 1], NULL, reading->request->limits.budget, out, err);
    }
    return status;
}

/* Puts the parameter into the group that has its options, or into a new one. */
static reshard_status join_own(struct torch_groups *reading, const struct own_options *own, uint32_t room, reshard_error *err)
{
    bool is_same = false;
    uint64_t at = 0;
    for (; at < reading->count; at++) {
        reshard_status status = has_options(reading, reading->groups[at], own->members, &is_same, err);
        if (status)
            return status;
        if (is_same)
            break;
    }
    struct value *name = value_new_str(reading->graph, own->name), *params;
    if (!is_same) {
        struct value **items = arena_array(&reading->graph->arena, room, sizeof(*items));
        params = items ? value_new_list(reading->graph, VALUE_LIST, items, 0) : NULL;
        reading->groups[at] = own->members;
        reading->count++;
        if (!params || !value_dict_set(reading->graph, own->members, "params", params, true))
            return error_set_memory(err);
    }
    params = value_dict_get(reading->groups[at], "params");
    if (!name)
        return error_set_memory(err);
    params->list.items[params->list.count++] = name;
    return RESHARD_OK;
}

static reshard_status torch_groups_of_parameters(struct torch_groups *reading, struct value **out, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < torch_groups_entries(reading) && !status; i++) {
        struct group_key key;
        struct value *value = NULL;
        if (!torch_groups_entry_key(reading, i, &key))
            continue;
        status = torch_groups_load(reading, i, &value, err);
        if (!status && value)
            status = take_own_option(reading, &reading->plan->owners, &key, value, err);
    }
    uint32_t count = reading->names.count;
    reading->groups = arena_zalloc(&reading->graph->arena, ((size_t)count + 1) * sizeof(*reading->groups));
    if (!status && !reading->groups)
        status = error_set_memory(err);
    if (!status && count)
        qsort(reading->own, count, sizeof(*reading->own), own_order);
    for (uint32_t i = 0; i < count && !status; i++)
        status = join_own(reading, &reading->own[i], count, err);
    if (!status && !(*out = value_new_list(reading->graph, VALUE_LIST, reading->groups, (size_t)reading->count)))
        status = error_set_memory(err);
    return status;
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
    for (uint32_t i = 0; i < torch_groups_entries(reading) && !status; i++) {
        struct group_key key;
        struct value *value;
        if (!torch_groups_entry_key(reading, i, &key))
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

reshard_status atorch_torch_groups(const struct layout_request *request, const struct atorch_plan *plan, struct value_graph *graph,
                                   struct value **out, struct str *before, reshard_error *err)
{
    struct torch_groups reading = { .request = request, .plan = plan, .graph = graph };
    *out = NULL;
    torch_groups_count(&reading);
    if (!reading.is_found || reading.is_other)
        return RESHARD_OK;
    struct value *list = NULL;
    reshard_status status =
        reading.is_by_parameter ? torch_groups_of_parameters(&reading, &list, err) : torch_groups_collect(&reading, &list, err);
    name_map_release(&reading.names);
    free(reading.own);
    bool good = !status && list->kind == VALUE_LIST && list->list.count;
    for (size_t i = 0; good && i < list->list.count; i++)
        good = torch_group_is_named(list->list.items[i]);
    if (good) {
        *out = list;
        *before = reading.before;
    }
    return status;
}

reshard_status atorch_torch_groups_note(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct atorch_target *state = target->driver_state;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < state->plan.option_count && !status; i++) {
        uint32_t tensor = state->plan.options[i];
        struct str key = request->wanted->tensors[tensor].key;
        target->catalog->tensors[tensor].flags |= TENSOR_HIDDEN; /* it is read as a part of an item */
        status = state->has_torch_groups
                     ? target_note_changed(target, NOTE_OPTIMIZER, key, err, "becomes a number in the groups of parameters (optim_meta)")
                     : target_note_dropped(target, NOTE_OPTIMIZER, key, err, "a number of groups of parameters that are not written");
    }
    return status;
}
