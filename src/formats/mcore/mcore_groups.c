/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron-FSDP keeps what torch has in param_groups once more for each parameter, by name: optimizer.param_to_group_meta.PARAMETER.MEMBER.
 * Other checkpoints do not say which parameter is in which group, but Megatron makes the groups by two rules: biases and vectors have no
 * weight decay, and experts are apart. The names are the model's own: what is stored as two halves (NAME_w, NAME_v) is one parameter.
 */
#include "formats/mcore/mcore_items.h"

#include "formats/mcore/mcore_target.h"
#include "formats/shared/megatron_keys.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"

#define META_PREFIX "module.module.module."
#define STATE_PREFIX STATE_KEY_PREFIX META_PREFIX
#define GATE_END "_w"
#define VALUE_END "_v"
#define GROUPS_MAX 64

struct group {
    struct value **members; /* key, value, … */
    size_t count;
    bool is_expert, has_no_decay;
};

struct groups {
    struct group groups[GROUPS_MAX];
    size_t count;
    bool has_expert;             /* one of them is of experts */
    struct name_map with_state;  /* names of the tensors that have optimizer state */
    struct name_map halves;      /* keys that end like a half */
    uint32_t item, graph_count;
};

static void mcore_groups_add_group(struct groups *groups, const struct value *value)
{
    struct value **members;
    size_t count;
    if (groups->count == GROUPS_MAX || !value_as_mapping(value, &members, &count))
        return;
    const struct value *decay = parameter_group_decay(value);
    groups->groups[groups->count++] =
        (struct group){ members, count, value_dict_is_true(value, "is_expert_parallel"), decay && weight_decay_is_zero(decay) };
    groups->has_expert = groups->has_expert || groups->groups[groups->count - 1].is_expert;
}

/* The groups of one optimizer: {optimizer: {param_groups}}, or {param_groups}. */
static void add_groups_of(struct groups *groups, const struct value *optimizer)
{
    const struct value *list = parameter_group_list(optimizer);
    for (size_t i = 0; list && i < list->list.count; i++)
        mcore_groups_add_group(groups, list->list.items[i]);
}

/* One optimizer, or several in a list or in a dict by number. */
static reshard_status read_groups(const struct layout_request *request, struct groups *groups, reshard_error *err)
{
    for (uint32_t i = 0; i < request->wanted->item_count; i++) {
        const struct catalog_item *wanted = &request->wanted->items[i];
        const struct catalog_item *item;
        if (!str_is(wanted->key, "optimizer") || wanted->kind == ITEM_FILE)
            continue;
        reshard_status status = layout_item(request, i, &item, err);
        const struct value *value = item->value;
        if (status || !value || !item->graph)
            return status;
        groups->item = i;
        groups->graph_count = item->graph->count;
        bool is_list = value->kind == VALUE_LIST,
             is_numbered = value->kind == VALUE_DICT && value->list.count > 0 && value->list.items[0]->kind == VALUE_INT;
        if (!is_list && !is_numbered)
            add_groups_of(groups, value);
        for (size_t at = is_numbered; (is_list || is_numbered) && at < value->list.count; at += 1 + is_numbered)
            add_groups_of(groups, value->list.items[at]);
        return RESHARD_OK;
    }
    return RESHARD_OK;
}

/* Notes which tensors have optimizer state, and which may be halves. */
static reshard_status note_names(const struct catalog *wanted, struct groups *groups, reshard_error *err)
{
    size_t prefix = sizeof(STATE_PREFIX) - 1;
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct str key = wanted->tensors[i].key;
        bool may_be_half = str_ends_with(key, GATE_END) || str_ends_with(key, VALUE_END);
        if (may_be_half && name_map_intern(&groups->halves, key, NULL) == NAME_NONE)
            return error_set_memory(err);
        if (!str_starts_with(key, STATE_PREFIX))
            continue;
        struct str name = { key.data + prefix, key.size - prefix };
        while (name.size && name.data[name.size - 1] != '.')
            name.size--;
        if (name.size > 1 && name_map_intern(&groups->with_state, (struct str){ name.data, name.size - 1 }, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* Whether a tensor is a parameter: buffers have no optimizer state. */
static bool is_parameter(const struct groups *groups, const struct catalog_tensor *tensor)
{
    size_t prefix = sizeof(MEGATRON_FSDP_MODEL) - 1;
    if (tensor->flags & TENSOR_HIDDEN || !str_starts_with(tensor->key, MEGATRON_FSDP_MODEL))
        return false;
    struct str name = { tensor->key.data + prefix, tensor->key.size - prefix };
    return !groups->with_state.count || name_map_find(&groups->with_state, name) != NAME_NONE;
}

/* The parameter's name: the key below the prefix, without the ending of a half. is_counted: the other half stands for it. */
static reshard_status parameter_name(const struct groups *groups, const struct catalog_tensor *tensor, struct str *out, bool *is_counted,
                                     reshard_error *err)
{
    struct str key = tensor->key, name = { key.data + sizeof(MEGATRON_FSDP_MODEL) - 1, key.size - (sizeof(MEGATRON_FSDP_MODEL) - 1) };
    bool is_gate = str_ends_with(key, GATE_END), is_value = str_ends_with(key, VALUE_END);
    uint32_t other;
    *is_counted = false;
    *out = name;
    if (!is_gate && !is_value)
        return RESHARD_OK;
    const struct str parts[] = { { key.data, key.size - strlen(GATE_END) }, str_of(is_gate ? VALUE_END : GATE_END) };
    reshard_status status = name_map_find_joined(&groups->halves, parts, 2, &other, err);
    *is_counted = is_value && other != NAME_NONE;
    out->size -= other != NAME_NONE ? strlen(GATE_END) : 0;
    return status;
}

/* The only group that fits the parameter; NULL if none or several do. */
static const struct group *find_group(const struct groups *groups, struct str name, const struct catalog_tensor *tensor)
{
    /* Experts that all ranks have are in one group with everything else. */
    bool is_expert = groups->has_expert && memmem(tensor->key.data, tensor->key.size, ".mlp.experts.", 13) != NULL;
    bool has_no_decay = tensor->rank == 1 || str_ends_with(name, ".bias");
    const struct group *found = NULL;
    if (groups->count == 1)
        return &groups->groups[0];
    for (size_t i = 0; i < groups->count; i++) {
        const struct group *group = &groups->groups[i];
        if (group->is_expert != is_expert || group->has_no_decay != has_no_decay)
            continue;
        if (found)
            return NULL;
        found = group;
    }
    return found;
}

static reshard_status add_member(struct target *target, const struct groups *groups, struct str parameter, const struct value *key,
                                 const struct value *value, reshard_error *err)
{
    struct arena *arena = &target->catalog->arena;
    struct str name;
    if (!value_as_str(key, &name) || str_is(name, "params"))
        return RESHARD_OK;
    struct path_part *parts = arena_array(arena, 4, sizeof(*parts));
    const struct str text = ARENA_JOIN(arena, STR(STATE_KEY_META), parameter, STR("."), name);
    if (!parts || !text.data)
        return error_set_memory(err);
    parts[0] = (struct path_part){ .kind = PATH_KEY, .key = STR("optimizer") };
    parts[1] = (struct path_part){ .kind = PATH_KEY, .key = STR("param_to_group_meta") };
    parts[2] = (struct path_part){ .kind = PATH_KEY, .key = parameter };
    parts[3] = (struct path_part){ .kind = PATH_KEY, .key = name };
    struct dcp_stored stored = { .key = text, .parts = parts, .part_count = 4, .wanted = groups->item, .node = CATALOG_NONE,
                                 .value = value, .graph_count = groups->graph_count };
    return dcp_stored_add(&mcore_target_state(target)->dcp, &stored, err);
}

static reshard_status add_parameter(struct target *target, const struct groups *groups, const struct group *group, struct str name,
                                    reshard_error *err)
{
    const struct str text = ARENA_JOIN(&target->catalog->arena, STR(META_PREFIX), name);
    reshard_status status = text.data ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < group->count && !status; i += 2)
        status = add_member(target, groups, text, group->members[i], group->members[i + 1], err);
    return status;
}

reshard_status mcore_group_meta_add(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct groups groups = { 0 };
    uint32_t unknown = 0;
    reshard_status status = read_groups(request, &groups, err);
    if (!status && groups.count)
        status = note_names(request->wanted, &groups, err);
    for (uint32_t i = 0; i < request->wanted->tensor_count && !status && groups.count; i++) {
        const struct catalog_tensor *tensor = &request->wanted->tensors[i];
        bool is_counted;
        if (!is_parameter(&groups, tensor))
            continue;
        struct str name;
        status = parameter_name(&groups, tensor, &name, &is_counted, err);
        const struct group *group = status || is_counted ? NULL : find_group(&groups, name, tensor);
        if (status || is_counted)
            continue;
        if (group)
            status = add_parameter(target, &groups, group, name, err);
        else
            unknown++;
    }
    name_map_release(&groups.with_state);
    name_map_release(&groups.halves);
    if (!status && unknown)
        status = target_note_dropped(target, NOTE_GROUPS, (struct str){ 0 }, err,
                                     "optimizer.param_to_group_meta of %u parameters: not exactly one param_group fits them", unknown);
    return status;
}
