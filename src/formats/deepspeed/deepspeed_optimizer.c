/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The item "optimizer": rank 0's optimizer_state_dict, in which what is cut among ranks has become `state`, a dict of each parameter's by
 * its name, whose tensors are hidden ones of the catalog, and `param_groups` list names. What describes how it was cut, and no more, is
 * left out.
 */
#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

#define OPTIMIZER_KEY "optimizer"
#define HIDDEN_PREFIX STR("\0" OPTIMIZER_KEY ":state.") /* the NUL keeps it apart from every key that a path can give */

static const char *const about_cutting[] = {
    "base_optimizer_state", "single_partition_of_fp32_groups", "fp32_flat_groups",     "optimizer_state_dict",
    "group_paddings",       "param_alignment_paddings",        "param_slice_mappings", "partition_count",
    "param_groups",
};

reshard_status deepspeed_add_whole(struct deepspeed_making *making, const struct deepspeed_parameter *parameter, struct str state,
                                   enum dtype dtype, int rank, const int64_t *shape, uint32_t *tensor, struct value **out,
                                   reshard_error *err)
{
    struct catalog *catalog = making->reading->source->catalog;
    struct buffer *key = &making->reading->key;
    buffer_clear(key);
    *out = value_new(making->graph, VALUE_NONE);
    if (!*out || !ARRAY_ROOM(making->wholes, making->whole_count, making->whole_capacity) || !buffer_append_str(key, HIDDEN_PREFIX) ||
        !buffer_append_str(key, parameter->name) || !buffer_append_byte(key, '.') || !buffer_append_str(key, state))
        return error_set_memory(err);
    reshard_status status = catalog_add_tensor(catalog, buffer_str(key), dtype, rank, shape, tensor, err);
    if (status)
        return status;
    catalog->tensors[*tensor].flags |= TENSOR_HIDDEN;
    making->wholes[making->whole_count++] = (struct torch_whole){ *out, *tensor };
    return RESHARD_OK;
}

static reshard_status optimizer_make_states(struct deepspeed_making *making, struct value **out, reshard_error *err)
{
    const struct deepspeed_reading *reading = making->reading;
    struct value **pairs = arena_array(&making->graph->arena, (size_t)reading->parameter_count * 2, sizeof(*pairs));
    reshard_status status = pairs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < reading->parameter_count; i++) {
        pairs[2 * i] = value_new_str(making->graph, reading->parameters[i].name);
        status = pairs[2 * i] ? reading->origin->make_state(making, &reading->parameters[i], &pairs[2 * i + 1], err)
                              : error_set_memory(err);
    }
    if (!status && !(*out = value_new_list(making->graph, VALUE_DICT, pairs, (size_t)reading->parameter_count * 2)))
        status = error_set_memory(err);
    return status;
}

/* The group that a number names, if none has named it before; NULL: none. */
static const struct deepspeed_group *optimizer_new_group(const struct deepspeed_reading *reading, const struct value *number,
                                                         bool *is_listed)
{
    int64_t group;
    if (!value_as_int(number, &group) || group < 0 || group >= reading->group_count || is_listed[group])
        return NULL;
    is_listed[group] = true;
    return &reading->groups[group];
}

/* The names of the parameters of the groups whose numbers a param_group lists, each group once; NULL without memory. */
static struct value *optimizer_group_names(struct deepspeed_making *making, struct value *const *numbers, size_t count, bool *is_listed)
{
    const struct deepspeed_reading *reading = making->reading;
    struct value **names = NULL;
    size_t used = 0, capacity = 0;
    bool good = true;
    for (size_t i = 0; good && i < count; i++) {
        const struct deepspeed_group *group = optimizer_new_group(reading, numbers[i], is_listed);
        for (uint32_t j = 0; group && good && j < group->count; j++)
            good = ARRAY_ROOM(names, used, capacity) &&
                   (names[used++] = value_new_str(making->graph, reading->parameters[group->first + j].name)) != NULL;
    }
    struct value **kept = good ? arena_array(&making->graph->arena, used, sizeof(*kept)) : NULL;
    if (kept && used)
        memcpy(kept, names, used * sizeof(*kept));
    free(names);
    return kept ? value_new_list(making->graph, VALUE_LIST, kept, used) : NULL;
}

/* A param_group lists names. What is shared among many is looked at as often as they are many, and spends work. */
static reshard_status optimizer_name_group(struct deepspeed_making *making, struct value *group, bool *is_listed, reshard_error *err)
{
    struct work *work = making->reading->source->limits.budget;
    struct value **numbers;
    size_t count;
    if (group->kind != VALUE_DICT)
        return RESHARD_OK;
    reshard_status status = work_spend_steps(work, group->list.count, err);
    const struct value *params = status ? NULL : value_dict_get(group, "params");
    if (status || !params || !value_as_sequence(params, &numbers, &count))
        return status;
    status = work_spend_steps(work, count, err);
    struct value *names = status ? NULL : optimizer_group_names(making, numbers, count, is_listed);
    if (!status && (!names || !value_dict_set(making->graph, group, "params", names, false)))
        status = error_set_memory(err);
    return status;
}

/* param_groups of names. */
static reshard_status optimizer_name_groups(struct deepspeed_making *making, reshard_error *err)
{
    struct value **items;
    size_t count;
    if (!making->groups || !value_as_sequence(making->groups, &items, &count))
        return RESHARD_OK;
    bool *is_listed = array_zeroed(making->reading->group_count, sizeof(*is_listed));
    reshard_status status = is_listed ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i < count; i++)
        status = optimizer_name_group(making, items[i], is_listed, err);
    free(is_listed);
    return status;
}

struct value *deepspeed_plain(struct value *value)
{
    bool is_object = value->kind == VALUE_NEW || value->kind == VALUE_CALL;
    const struct value_object *object = is_object ? value->object : NULL;
    if (!object || !object->callable || object->callable->kind != VALUE_GLOBAL ||
        !str_starts_with(object->callable->global.module, "deepspeed."))
        return value;
    if (object->state_count == 1 && object->states[0] && object->states[0]->kind == VALUE_DICT)
        return object->states[0];
    bool is_enum = !object->state_count && object->args && object->args->kind == VALUE_TUPLE && object->args->list.count == 1;
    return is_enum && object->args->list.items[0] ? object->args->list.items[0] : value;
}

static bool is_about_cutting(const struct value *key)
{
    struct str name;
    for (size_t i = 0; i < sizeof(about_cutting) / sizeof(about_cutting[0]); i++)
        if (value_as_str(key, &name) && str_is(name, about_cutting[i]))
            return true;
    return false;
}

static reshard_status optimizer_make_item(struct deepspeed_making *making, struct value **out, reshard_error *err)
{
    struct value **pairs = NULL, *states = NULL, *groups = making->groups;
    size_t count = 0, used = 0;
    if (!making->object || !value_as_mapping(making->object, &pairs, &count))
        count = 0;
    struct value **made = arena_array(&making->graph->arena, count + 4, sizeof(*made));
    reshard_status status = made ? optimizer_make_states(making, &states, err) : error_set_memory(err);
    if (!status)
        status = optimizer_name_groups(making, err);
    if (status)
        return status;
    made[used++] = value_new_str(making->graph, STR("state"));
    made[used++] = states;
    if (groups) {
        made[used++] = value_new_str(making->graph, STR("param_groups"));
        made[used++] = groups;
    }
    for (size_t i = 0; i + 1 < count; i += 2) {
        if (is_about_cutting(pairs[i]))
            continue;
        made[used++] = pairs[i];
        made[used++] = deepspeed_plain(pairs[i + 1]);
    }
    bool good = made[0] && (!groups || made[2]);
    *out = good ? value_new_list(making->graph, VALUE_DICT, made, used) : NULL;
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status optimizer_add_item(struct deepspeed_making *making, reshard_error *err)
{
    struct source *source = making->reading->source;
    struct catalog_item item = { .key = STR(OPTIMIZER_KEY), .kind = ITEM_VALUE, .graph = making->graph };
    struct value *value = NULL;
    uint32_t file = making->file, storages = file == TORCH_NONE ? 0 : torch_source_of(source)->files[file].archive.storage_count;
    bool *wanted = array_zeroed(storages, sizeof(*wanted));
    reshard_status status = wanted ? optimizer_make_item(making, &value, err) : error_set_memory(err);
    item.value = value;
    if (!status)
        status = catalog_add_item(source->catalog, &item, NULL, 0, NULL, err);
    if (!status && file != TORCH_NONE)
        status = torch_source_hide_storages(source, file, &value, 1, wanted, err);
    if (!status)
        status = torch_wholes_name(making->graph, source->catalog, making->wholes, making->whole_count, err);
    free(wanted);
    return status;
}

const struct value *deepspeed_common(const struct deepspeed_reading *reading)
{
    if (!reading->universal)
        return reading->optimizers ? reading->optimizers[0] : NULL;
    uint32_t file = deepspeed_universal_optimizer(reading->universal);
    return file == TORCH_NONE ? NULL : deepspeed_root(reading, file);
}

/* Where the item's members are: in rank 0's file of the optimizer, or in that of a universal checkpoint; without one there are the states
 * alone, in a graph of their own. */
static reshard_status optimizer_find(struct deepspeed_making *making, reshard_error *err)
{
    const struct deepspeed_reading *reading = making->reading;
    making->object = deepspeed_common(reading);
    making->file = reading->universal ? deepspeed_universal_optimizer(reading->universal) : reading->optimizer_files[0];
    const struct value *base = reading->universal ? making->object : deepspeed_base_state(reading, 0);
    making->groups = base ? value_dict_get(base, "param_groups") : NULL; /* elastic_checkpoint has none */
    making->graph = making->file != TORCH_NONE
                        ? torch_source_of(reading->source)->files[making->file].graph
                        : catalog_adopt_graph(reading->source->catalog,
                                              (struct value_graph){ .arena.work = reading->source->limits.budget });
    return making->graph ? RESHARD_OK : error_set_memory(err);
}

reshard_status deepspeed_add_optimizer(struct deepspeed_reading *reading, reshard_error *err)
{
    struct deepspeed_making making = { .reading = reading, .buffers = array_new(reading->ranks, sizeof(*making.buffers)) };
    reshard_status status = making.buffers ? optimizer_find(&making, err) : error_set_memory(err);
    if (!status)
        status = optimizer_add_item(&making, err);
    free(making.buffers);
    free(making.wholes);
    return status;
}
