/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/torch_groups.h"

#include "base/array.h"
#include "formats/shared/value_edit.h"
#include "parallel/parameter_groups.h"

#include <stdlib.h>

#define GROUPS_WORD "param_groups"
#define DECAY "weight_decay"
#define PLAIN_DEPTH 8 /* of lists in an option */
#define ROOM_FIRST 32 /* names and values of options */

/* ---- keys ---- */

/* What an item's key says of groups. */
struct groups_key {
    struct str before;    /* "optim." */
    struct str member;    /* an option; empty: the item is the list of all groups */
    struct str parameter; /* the one that the option is of; empty: it is the group's of that number */
    uint64_t number;
};

static bool groups_key_read(struct str key, struct groups_key *out)
{
    const size_t size = strlen(GROUPS_WORD);
    const char *found = memmem(key.data, key.size, GROUPS_WORD, size);
    *out = (struct groups_key){ 0 };
    if (str_is(key, ATORCH_GROUPS))
        return true;
    if (!found || (found > key.data && found[-1] != '.'))
        return false;
    out->before = (struct str){ key.data, (size_t)(found - key.data) };
    struct str rest = { found + size, key.size - out->before.size - size };
    if (!rest.size)
        return true;
    const char *last = memrchr(rest.data, '.', rest.size), *end = rest.data + rest.size;
    if (rest.data[0] != '.' || last == rest.data || last + 1 == end)
        return false;
    const struct str owner = { rest.data + 1, (size_t)(last - rest.data) - 1 };
    out->member = (struct str){ last + 1, (size_t)(end - last) - 1 };
    if (!str_to_u64(owner, &out->number))
        out->parameter = owner;
    return owner.size > 0;
}

/* An element of an option that is a list with a tensor in it, param_groups.0.betas.1, and which option that is. */
static bool is_element_key(const struct groups_key *key, struct str *option)
{
    uint64_t index;
    if (!key->parameter.size || !str_to_u64(key->member, &index))
        return false;
    const char *dot = memrchr(key->parameter.data, '.', key->parameter.size), *end = key->parameter.data + key->parameter.size;
    *option = dot ? (struct str){ dot + 1, (size_t)(end - dot) - 1 } : key->parameter;
    return true;
}

/* ---- values ---- */

static bool is_plain_down_to(const struct value *value, int depth)
{
    bool is_list = value->kind == VALUE_LIST || value->kind == VALUE_TUPLE;
    if (value->tensor || depth == PLAIN_DEPTH)
        return false;
    for (size_t i = 0; is_list && i < value->list.count; i++) {
        if (!is_plain_down_to(value->list.items[i], depth + 1))
            return false;
    }
    return is_list || value->kind == VALUE_INT || value->kind == VALUE_FLOAT || value->kind == VALUE_BOOL || value->kind == VALUE_NONE ||
           value->kind == VALUE_STR;
}

bool torch_option_is_plain(const struct value *value)
{
    return is_plain_down_to(value, 0);
}

static struct torch_group *group_at(struct torch_groups *groups, uint64_t number, uint64_t limit)
{
    if (number >= limit)
        return NULL;
    while (groups->count <= number) {
        if (!ARRAY_ROOM(groups->groups, groups->count, groups->capacity))
            return NULL;
        groups->groups[groups->count++] = (struct torch_group){ 0 };
    }
    struct torch_group *group = &groups->groups[number];
    if (!group->members)
        group->members = value_new_list(groups->graph, VALUE_DICT, NULL, 0);
    return group->members ? group : NULL;
}

/* Options may be many: they have room ahead, which value_dict_set does not keep. */
static bool add_torch_option(struct value_graph *graph, struct torch_group *group, struct str member, struct value *value)
{
    struct value *members = group->members, *name = value_new_str(graph, member);
    size_t count = members->list.count;
    if (count + 2 > group->room) {
        size_t room = group->room ? 2 * (size_t)group->room : ROOM_FIRST;
        struct value **items = room <= UINT32_MAX ? arena_array(&graph->arena, room, sizeof(struct value *)) : NULL;
        if (!items)
            return false;
        if (count)
            memcpy(items, members->list.items, count * sizeof(struct value *));
        members->list.items = items;
        group->room = (uint32_t)room;
    }
    if (!name || !value)
        return false;
    members->list.items[count] = name;
    members->list.items[count + 1] = value;
    members->list.count = count + 2;
    return true;
}

/* Groups of two optimizers are not those of one, though both may have a first one. */
static void note_optimizer(struct torch_groups *groups, struct str before)
{
    groups->are_of_several |= groups->is_found && !str_equal(groups->before, before);
    groups->before = before;
    groups->is_found = true;
}

static bool leave_out_option(struct torch_groups *groups, struct str option)
{
    return name_map_intern(&groups->left_out, option, NULL) != NAME_NONE;
}

static void note_parameter(const struct state_owners *owners, struct str before, struct str name, struct torch_group *group)
{
    uint32_t weight = state_owners_weight(owners, before, name);
    if (weight == CATALOG_NONE)
        return;
    bool decays = parameter_decays(name, owners->catalog->tensors[weight].rank);
    group->has_vectors |= !decays;
    group->has_matrices |= decays;
}

/* An option, or the list of the parameters. graph_count: of the value's own graph. */
static bool torch_take_member(struct torch_groups *groups, const struct state_owners *owners, struct str before, struct torch_group *group,
                              struct str member, const struct value *value, uint32_t graph_count)
{
    bool is_list = value->kind == VALUE_LIST || value->kind == VALUE_TUPLE;
    if (str_is(member, "params")) {
        for (size_t i = 0; is_list && i < value->list.count; i++) {
            struct str name;
            if (value_as_str(value->list.items[i], &name))
                note_parameter(owners, before, name, group);
        }
        return true;
    }
    if (str_is(member, "params_names") || str_is(member, "param_names"))
        return true;
    if (!torch_option_is_plain(value))
        return leave_out_option(groups, member);
    return add_torch_option(groups->graph, group, member, value_copy(groups->graph, value, graph_count));
}

static bool torch_take_list(struct torch_groups *groups, const struct state_owners *owners, struct str before,
                            const struct catalog_item *item)
{
    const struct value *list = item->value;
    bool good = true;
    for (size_t g = 0; list->kind == VALUE_LIST && g < list->list.count && good; g++) {
        const struct value *from = list->list.items[g];
        struct torch_group *group = group_at(groups, g, list->list.count);
        good = group != NULL;
        for (size_t i = 0; good && from->kind == VALUE_DICT && i + 1 < from->list.count; i += 2) {
            struct str member;
            if (value_as_str(from->list.items[i], &member))
                good = torch_take_member(groups, owners, before, group, member, from->list.items[i + 1], item->graph->count);
        }
    }
    return good;
}

/* An option that has a key of its own. */
static reshard_status torch_take_option(struct torch_groups *groups, const struct state_owners *owners, const struct groups_key *key,
                                        const struct value *value, uint32_t graph_count, reshard_error *err)
{
    const uint64_t limit = (uint64_t)owners->catalog->item_count + owners->catalog->tensor_count;
    struct str option;
    if (is_element_key(key, &option))
        return leave_out_option(groups, option) ? RESHARD_OK : error_set_memory(err);
    uint64_t number = key->number;
    if (key->parameter.size)
        number = name_map_intern(&groups->parameters, key->parameter, NULL);
    if (number >= limit)
        return key->parameter.size ? error_set_memory(err) : RESHARD_OK;
    struct torch_group *group = group_at(groups, number, limit);
    if (!group)
        return error_set_memory(err);
    if (key->parameter.size)
        note_parameter(owners, key->before, key->parameter, group);
    return torch_take_member(groups, owners, key->before, group, key->member, value, graph_count) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status torch_take_item(struct torch_groups *groups, const struct state_owners *owners, struct source *source, uint32_t index,
                                      const struct groups_key *key, reshard_error *err)
{
    reshard_status status = source_load_item(source, index, err);
    const struct catalog_item *item = &source->catalog->items[index];
    if (status || !item->value || !item->graph)
        return status;
    if (!key->member.size)
        return torch_take_list(groups, owners, key->before, item) ? RESHARD_OK : error_set_memory(err);
    return torch_take_option(groups, owners, key, item->value, item->graph->count, err);
}

/* ---- groups ---- */

/* Takes out those that nothing is said of; equal ones of parameters are one. */
static reshard_status torch_groups_join(struct torch_groups *groups, reshard_error *err)
{
    struct name_map known = { 0 };
    struct buffer text = { 0 };
    uint32_t kept = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < groups->count && !status; i++) {
        const struct torch_group *group = &groups->groups[i];
        bool is_new = true;
        uint32_t number = kept;
        if (!group->members || !group->members->list.count)
            continue;
        buffer_clear(&text);
        if (groups->parameters.count && value_to_repr(group->members, &text, NULL))
            number = name_map_intern(&known, buffer_str(&text), &is_new);
        if (text.failed || number == NAME_NONE)
            status = error_set_memory(err);
        else if (is_new)
            groups->groups[kept++] = *group;
        if (status || is_new)
            continue;
        groups->groups[number].has_matrices |= group->has_matrices;
        groups->groups[number].has_vectors |= group->has_vectors;
    }
    groups->count = kept;
    buffer_release(&text);
    name_map_release(&known);
    return status;
}

bool torch_groups_key(struct str key, struct str *before)
{
    struct groups_key read;
    bool is_one = groups_key_read(key, &read);
    if (before)
        *before = read.before;
    return is_one;
}

reshard_status torch_groups_read(struct source *source, const struct state_owners *owners, struct torch_groups *out, reshard_error *err)
{
    uint32_t count = source->catalog->item_count;
    reshard_status status = RESHARD_OK;
    out->is_taken = array_zeroed(count, 1);
    if (!out->is_taken)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        const struct str text = source->catalog->items[i].key;
        struct groups_key key;
        struct owned_state state; /* of a module that is called param_groups */
        if (source->catalog->items[i].kind == ITEM_FILE || !groups_key_read(text, &key) || state_owners_read(owners, text, &state))
            continue;
        if (out->without && name_map_find(out->without, key.before) != NAME_NONE)
            continue;
        out->is_taken[i] = true;
        note_optimizer(out, key.before);
        status = torch_take_item(out, owners, source, i, &key, err);
    }
    return status ? status : torch_groups_join(out, err);
}

reshard_status torch_groups_take_number(struct torch_groups *groups, const struct state_owners *owners, struct str key,
                                        const struct value *number, reshard_error *err)
{
    struct groups_key read;
    if (!groups_key_read(key, &read) || !read.member.size)
        return RESHARD_OK;
    note_optimizer(groups, read.before);
    if (number)
        return torch_take_option(groups, owners, &read, number, groups->graph->count, err);
    struct str option;
    if (!is_element_key(&read, &option))
        option = read.member;
    return leave_out_option(groups, option) ? RESHARD_OK : error_set_memory(err);
}

void torch_groups_release(struct torch_groups *groups)
{
    name_map_release(&groups->parameters);
    name_map_release(&groups->left_out);
    free(groups->groups);
    free(groups->is_taken);
    *groups = (struct torch_groups){ 0 };
}

/* ---- Megatron's ---- */

static struct value *number_new(struct value_graph *graph, double number)
{
    struct value *value = value_new(graph, VALUE_FLOAT);
    if (value)
        value->real = number;
    return value;
}

/* The options as a group of Megatron's has them, by which its optimizers find the group again. */
static struct value *megatron_group(struct value_graph *graph, const struct value *members, bool has_decay)
{
    struct value *copy = value_copy(graph, members, graph->count);
    struct value_edit editing = { .graph = graph, .members = copy };
    if (!copy)
        return NULL;
    if (!has_decay)
        value_edit_set(&editing, DECAY, number_new(graph, 0.0), true);
    value_edit_set(&editing, "wd_mult", number_new(graph, has_decay ? 1.0 : 0.0), true);
    value_edit_set(&editing, "lr_mult", number_new(graph, 1.0), true);
    value_edit_bool(&editing, "is_expert_parallel", false);
    value_edit_bool(&editing, "is_decoupled_lr", false);
    if (value_dict_get(members, "betas"))
        value_edit_bool(&editing, "bias_correction", true); /* torch's Adam has no other way */
    return editing.failed ? NULL : copy;
}

static bool torch_group_decays(const struct torch_group *group)
{
    const struct value *decay = value_dict_get(group->members, DECAY);
    int64_t whole;
    return decay && !(decay->kind == VALUE_FLOAT ? decay->real == 0.0 : value_as_int(decay, &whole) && whole == 0);
}

reshard_status torch_groups_to_megatron(struct torch_groups *groups, struct value **out, bool *is_cut, reshard_error *err)
{
    const struct torch_group *first = groups->groups, *matrices = first, *vectors = first;
    *out = NULL;
    *is_cut = groups->count == 1 && first->has_matrices && first->has_vectors;
    if (groups->count == 2) {
        matrices = &first[first[0].has_matrices ? 0 : 1];
        vectors = &first[first[0].has_matrices ? 1 : 0];
    }
    bool is_said = groups->count == 1 || (groups->count == 2 && !matrices->has_vectors && vectors->has_vectors && !vectors->has_matrices &&
                                          !torch_group_decays(vectors));
    if (!is_said || groups->are_of_several)
        return RESHARD_OK;
    struct value **items = arena_array(&groups->graph->arena, 2, sizeof(*items));
    size_t count = 0;
    if (!items)
        return error_set_memory(err);
    if (matrices->has_matrices)
        items[count++] = megatron_group(groups->graph, matrices->members, true);
    if (vectors->has_vectors)
        items[count++] = megatron_group(groups->graph, vectors->members, false);
    for (size_t i = 0; i < count; i++) {
        if (!items[i])
            return error_set_memory(err);
    }
    *is_cut = *is_cut && torch_group_decays(first);
    *out = count ? value_new_list(groups->graph, VALUE_LIST, items, count) : NULL;
    return !count || *out ? RESHARD_OK : error_set_memory(err);
}
