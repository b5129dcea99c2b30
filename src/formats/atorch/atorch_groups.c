/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optim_meta and ckpt_meta of a target. The groups' options are the source's; which parameters are in a group is said by names, which may
 * be others in the target: renamed, left out, or those of units where FSDP has no original parameters.
 */
#include "formats/atorch/atorch_target.h"

#include "base/array.h"
#include "encoding/pickle_graph.h"
#include "encoding/pickle_write.h"
#include "parallel/state_keys.h"

#include <stdlib.h>

/* The names of one group, in its order. */
struct group_names {
    struct str *items;
    uint32_t count, capacity;
};

struct group_writing {
    const struct layout_request *request;
    const struct atorch_plan *plan;
    struct arena arena;
    uint32_t *wanted_of;        /* by source tensor: 1 + wanted tensor */
    struct group_names *groups; /* that are to be written */
    size_t group_count;
    struct str before;          /* what stands before param_groups in the source's keys, if they are torch's */
    bool is_changed;
    reshard_error *err;
};

/* ---- pickles ---- */

static reshard_status groups_pickle(const struct layout_request *request, const struct value *value, uint32_t graph_count,
                                    struct buffer *out, reshard_error *err)
{
    size_t before = out->size;
    reshard_status status = pickle_graph_write(value, graph_count, request->limits.budget, out, err);
    if (status != RESHARD_ERR_UNSUPPORTED)
        return status;
    out->size = before; /* what Python's own pickler writes in another way, protocol 2 can say too */
    return pickle_write(value, graph_count, request->limits.budget, NULL, NULL, out, err);
}

/* ---- names ---- */

static bool groups_add_name(struct group_names *group, struct str name)
{
    if (!ARRAY_ROOM(group->items, group->count, group->capacity))
        return false;
    group->items[group->count++] = name;
    return true;
}

/* The source's parameter under its name in the target; false if it is not wanted. */
static bool groups_rename(const struct group_writing *writing, struct str *name)
{
    const struct catalog *source = writing->request->source_catalog, *wanted = writing->request->wanted;
    const struct atorch_source *own = atorch_known(writing->request->source);
    const struct atorch_parameter *parameter = own ? atorch_parameter_find(&own->model, *name) : NULL;
    uint32_t tensor = parameter ? parameter->tensor : state_owners_weight(&writing->plan->owners, writing->before, *name);
    if (tensor == CATALOG_NONE)
        return true;
    if (!writing->wanted_of[tensor])
        return false;
    if (!parameter || !str_equal(source->tensors[tensor].key, wanted->tensors[writing->wanted_of[tensor] - 1].key))
        *name = wanted->tensors[writing->wanted_of[tensor] - 1].key;
    return true;
}

/* UNIT._flat_param as the names of the unit's parameters. */
static bool groups_expand(const struct group_writing *writing, struct str name, struct group_names *out)
{
    const struct atorch_source *own = atorch_known(writing->request->source);
    uint32_t unit = NAME_NONE;
    if (own && str_is(name, ATORCH_FLAT_NAME)) {
        unit = name_map_find(&own->model.unit_names, STR(""));
    } else if (own && str_ends_with(name, "." ATORCH_FLAT_NAME)) {
        struct str module = { name.data, name.size - strlen("." ATORCH_FLAT_NAME) };
        unit = name_map_find(&own->model.unit_names, module);
    }
    if (unit == NAME_NONE)
        return !groups_rename(writing, &name) || groups_add_name(out, name);
    for (uint32_t i = 0; i < own->model.units[unit].count; i++) {
        struct str inner = own->model.parameters[own->model.units[unit].first + i].name;
        if (inner.size && groups_rename(writing, &inner) && !groups_add_name(out, inner))
            return false;
    }
    return true;
}

/* Of a unit's parameter; .data is NULL without memory. */
static struct str groups_flat_name(struct group_writing *writing, const struct atorch_unit *unit)
{
    return ARENA_JOIN(&writing->arena, unit->name, unit->name.size ? STR("." ATORCH_FLAT_NAME) : STR(ATORCH_FLAT_NAME));
}

/* For each unit the group that most of its elements are in. */
static reshard_status groups_collapse(struct group_writing *writing)
{
    const struct atorch_model *model = &writing->plan->model;
    size_t cells = (size_t)model->unit_count * writing->group_count;
    int64_t *elements = arena_zalloc(&writing->arena, (cells + 1) * sizeof(*elements));
    if (!elements)
        return error_set_memory(writing->err);
    for (size_t g = 0; g < writing->group_count; g++) {
        struct group_names *group = &writing->groups[g];
        for (uint32_t i = 0; i < group->count; i++) {
            uint32_t name = name_map_find(&writing->plan->names, group->items[i]);
            for (uint32_t p = 0; name != NAME_NONE && p < model->parameter_count; p++) {
                const struct atorch_parameter *parameter = &model->parameters[p];
                if (parameter->tensor == name)
                    elements[parameter->unit * writing->group_count + g] += parameter->numel + 1;
            }
        }
        group->count = 0;
    }
    for (uint32_t u = 0; u < model->unit_count; u++) {
        size_t best = 0;
        for (size_t g = 1; g < writing->group_count; g++)
            if (elements[u * writing->group_count + g] > elements[u * writing->group_count + best])
                best = g;
        const struct str name = groups_flat_name(writing, &model->units[u]);
        if (!name.data || (writing->group_count && !groups_add_name(&writing->groups[best], name)))
            return error_set_memory(writing->err);
    }
    return RESHARD_OK;
}

static bool groups_are_equal(const struct group_names *group, const struct value *params)
{
    if (params->list.count != group->count)
        return false;
    for (uint32_t i = 0; i < group->count; i++) {
        struct str name;
        if (!value_as_str(params->list.items[i], &name) || !str_equal(name, group->items[i]))
            return false;
    }
    return true;
}

static reshard_status groups_find_names(struct group_writing *writing, const struct value *value)
{
    const struct catalog *wanted = writing->request->wanted;
    writing->group_count = value->list.count;
    writing->groups = array_zeroed(writing->group_count, sizeof(*writing->groups));
    writing->wanted_of = arena_zalloc(&writing->arena, ((size_t)writing->request->source_catalog->tensor_count + 1) * sizeof(uint32_t));
    if (!writing->groups || !writing->wanted_of)
        return error_set_memory(writing->err);
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        if (writing->request->wanted_source[i] != CATALOG_NONE)
            writing->wanted_of[writing->request->wanted_source[i]] = i + 1;
    }
    for (size_t g = 0; g < writing->group_count; g++) {
        const struct value *params = value_dict_get(value->list.items[g], "params");
        for (size_t i = 0; params && params->kind == VALUE_LIST && i < params->list.count; i++) {
            struct str name;
            if (value_as_str(params->list.items[i], &name) && !groups_expand(writing, name, &writing->groups[g]))
                return error_set_memory(writing->err);
        }
    }
    reshard_status status = writing->plan->model.is_original ? RESHARD_OK : groups_collapse(writing);
    for (size_t g = 0; g < writing->group_count && !status; g++) {
        const struct value *params = value_dict_get(value->list.items[g], "params");
        writing->is_changed |= params && params->kind == VALUE_LIST && !groups_are_equal(&writing->groups[g], params);
    }
    return status;
}

/* ---- the changed value ---- */

/* params, and params_names counted through all groups; both have the same texts. */
static bool groups_set_names(struct value_graph *graph, struct value *group, const struct group_names *names, int64_t *number)
{
    struct value **params = arena_array(&graph->arena, names->count, sizeof(*params));
    struct value **pairs = arena_array(&graph->arena, (size_t)names->count * 2, sizeof(*pairs));
    for (uint32_t i = 0; params && pairs && i < names->count; i++) {
        params[i] = pairs[2 * i + 1] = value_new_str(graph, names->items[i]);
        pairs[2 * i] = value_new_int(graph, (*number)++);
        if (!params[i] || !pairs[2 * i])
            return false;
    }
    struct value *list = params && pairs ? value_new_list(graph, VALUE_LIST, params, names->count) : NULL;
    struct value *dict = list ? value_new_list(graph, VALUE_DICT, pairs, (size_t)names->count * 2) : NULL;
    return dict && value_dict_set(graph, group, "params", list, true) && value_dict_set(graph, group, "params_names", dict, true);
}

static reshard_status groups_rewrite(struct group_writing *writing, const struct value *value, uint32_t graph_count, struct buffer *out)
{
    struct value_graph graph = { 0 };
    int64_t number = 0;
    reshard_status status = RESHARD_OK;
    struct value *copy = value_copy(&graph, value, graph_count);
    if (!copy)
        status = error_set_memory(writing->err);
    size_t kept = 0;
    for (size_t g = 0; g < writing->group_count && !status; g++) {
        struct value *group = copy->list.items[g];
        const struct value *params = value_dict_get(group, "params");
        bool has_names = params && params->kind == VALUE_LIST && params->list.count;
        if (has_names && !writing->groups[g].count) /* nothing of the group is written */
            continue;
        copy->list.items[kept] = group;
        if (has_names && !groups_set_names(&graph, group, &writing->groups[g], &number))
            status = error_set_memory(writing->err);
        kept++;
    }
    if (!status) {
        copy->list.count = kept;
        status = groups_pickle(writing->request, copy, graph.count, out, writing->err);
    }
    value_graph_release(&graph);
    return status;
}

/* Whether there is an item of an optimizer, which has groups in a way that only other formats know. */
static bool has_other_groups(const struct catalog *wanted)
{
    bool found = false;
    for (uint32_t i = 0; i < wanted->item_count && !found; i++)
        found = str_is(wanted->items[i].key, "optimizer") || state_key_is_any(wanted->items[i].key);
    return found;
}

/* One group of all parameters that have state, without options. */
static reshard_status groups_invent(struct group_writing *writing, struct target *target, struct buffer *out)
{
    const struct atorch_plan *plan = writing->plan;
    struct value_graph graph = { 0 };
    struct group_names names = { 0 };
    struct value *group = value_new(&graph, VALUE_DICT), *list = NULL, **items = arena_array(&graph.arena, 1, sizeof(*items));
    int64_t number = 0;
    bool good = group && items;
    for (uint32_t i = 0; i < plan->model.parameter_count && good && plan->model.is_original; i++)
        if (plan->first_state[i + 1] > plan->first_state[i])
            good = groups_add_name(&names, plan->model.parameters[i].name);
    for (uint32_t i = 0; i < plan->model.unit_count && good && !plan->model.is_original; i++) {
        const struct str name = groups_flat_name(writing, &plan->model.units[i]);
        good = name.data && groups_add_name(&names, name);
    }
    if (good && groups_set_names(&graph, group, &names, &number)) {
        items[0] = group;
        list = value_new_list(&graph, VALUE_LIST, items, 1);
    }
    reshard_status status = list ? groups_pickle(writing->request, list, graph.count, out, writing->err) : error_set_memory(writing->err);
    if (!status)
        status = target_note_changed(target, NOTE_GROUPS, STR("optim_meta"), writing->err,
                                     "the source has %s: one of all, without options, is written",
                                     has_other_groups(writing->request->wanted) ? "groups of parameters in no form that is read here"
                                                                                : "no groups of parameters");
    free(names.items);
    value_graph_release(&graph);
    return status;
}

/* The item's value, loaded; NULL: it is not wanted. */
static reshard_status groups_item(const struct layout_request *request, const char *key, const struct catalog_item **out,
                                  reshard_error *err)
{
    uint32_t item = catalog_find_item(request->wanted, str_of(key));
    *out = NULL;
    return item == CATALOG_NONE ? RESHARD_OK : layout_item(request, item, out, err);
}

static bool groups_are_a_list(const struct value *value)
{
    bool good = value && value->kind == VALUE_LIST;
    for (size_t i = 0; good && i < value->list.count; i++)
        good = value->list.items[i]->kind == VALUE_DICT;
    return good;
}

/* The groups that the source has: atorch's own, else torch's, which are put together in graph. *count: of the graph's nodes. */
static reshard_status groups_find(struct group_writing *writing, struct target *target, struct value_graph *graph,
                                  const struct value **out, uint32_t *count)
{
    struct atorch_target *state = target->driver_state;
    const struct catalog_item *item;
    struct value *made = NULL;
    reshard_status status = groups_item(writing->request, atorch_file_stem(ATORCH_OPTIM_META), &item, writing->err);
    *out = item ? item->value : NULL;
    *count = *out ? item->graph->count : 0;
    if (status || groups_are_a_list(*out) || !writing->plan->state_count)
        return status;
    status = atorch_torch_groups(writing->request, writing->plan, graph, &made, &writing->before, writing->err);
    if (status || !made)
        return status;
    state->has_torch_groups = writing->is_changed = true;
    state->groups_before = writing->before;
    *out = made;
    *count = graph->count;
    return RESHARD_OK;
}

reshard_status atorch_groups_write(const struct layout_request *request, struct target *target, const struct atorch_plan *plan,
                                   struct buffer *out, reshard_error *err)
{
    struct group_writing writing = { .request = request, .plan = plan, .err = err };
    struct value_graph graph = { 0 };
    const struct value *value;
    uint32_t count;
    reshard_status status = groups_find(&writing, target, &graph, &value, &count);
    if (!status && !groups_are_a_list(value)) {
        if (plan->state_count)
            status = groups_invent(&writing, target, out);
    } else if (!status) {
        status = groups_find_names(&writing, value);
        if (!status && writing.is_changed)
            status = groups_rewrite(&writing, value, count, out);
        else if (!status)
            status = groups_pickle(request, value, count, out, err);
    }
    for (size_t i = 0; writing.groups && i < writing.group_count; i++)
        free(writing.groups[i].items);
    free(writing.groups);
    arena_release(&writing.arena);
    value_graph_release(&graph);
    return status;
}

/* ---- ckpt_meta ---- */

/* The classes of wrapped modules, of whom the units are: the reference or the source. */
static const struct value *checkpoint_classes(const struct layout_request *request, uint32_t *graph_count, reshard_error *err,
                                              reshard_status *status)
{
    struct source *shown = atorch_known(request->like) ? (struct source *)request->like : request->source;
    if (request->wrap || !atorch_known(shown))
        return NULL;
    uint32_t item = catalog_find_item(shown->catalog, str_of(atorch_file_stem(ATORCH_CKPT_META)));
    if (item == CATALOG_NONE || (*status = source_load_item(shown, item, err)))
        return NULL;
    *graph_count = shown->catalog->items[item].graph->count;
    return value_dict_get(shown->catalog->items[item].value, "wrap_class");
}

static struct value *checkpoint_value(struct value_graph *graph, const struct value *classes, uint32_t graph_count, int64_t ranks)
{
    struct value **pairs = arena_array(&graph->arena, 6, sizeof(*pairs));
    if (!pairs)
        return NULL;
    pairs[0] = value_new_str(graph, STR("version"));
    pairs[1] = value_new_int(graph, 1);
    pairs[2] = value_new_str(graph, STR("world_size"));
    pairs[3] = value_new_int(graph, ranks);
    pairs[4] = value_new_str(graph, STR("wrap_class"));
    pairs[5] = classes ? value_copy(graph, classes, graph_count) : value_new(graph, VALUE_SET);
    for (int i = 0; i < 6; i++)
        if (!pairs[i])
            return NULL;
    return value_new_list(graph, VALUE_DICT, pairs, 6);
}

reshard_status atorch_checkpoint_write(const struct layout_request *request, const struct atorch_plan *plan, struct buffer *out,
                                       reshard_error *err)
{
    const struct atorch_source *like = atorch_known(request->like), *own = atorch_known(request->source), *shown = like ? like : own;
    bool is_same = shown && shown->is_global_known && shown->model.ranks == plan->model.ranks;
    struct value_graph graph = { 0 };
    uint32_t graph_count = 0;
    reshard_status status = RESHARD_OK;
    if (plan->model.version == 0)
        return RESHARD_OK;
    const struct value *classes = checkpoint_classes(request, &graph_count, err, &status);
    struct value *root =
        status ? NULL : checkpoint_value(&graph, classes, graph_count, is_same ? shown->global_ranks : (int64_t)plan->model.ranks);
    if (!status)
        status = root ? groups_pickle(request, root, graph.count, out, err) : error_set_memory(err);
    value_graph_release(&graph);
    return status;
}
