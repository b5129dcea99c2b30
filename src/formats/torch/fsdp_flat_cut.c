/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/fsdp_flat_cut.h"

#include "base/array.h"
#include "formats/torch/torch.h"
#include "parallel/flat_unit.h"
#include "parallel/wrap_rule.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- the plan ---- */

struct flat_planning {
    const struct layout_request *request;
    const struct fsdp_spread *spread;
    struct fsdp_flat_plan *plan;
    reshard_error *err;
    uint32_t *wanted_of; /* by source tensor: 1 + wanted tensor */
};

static const struct fsdp_flat *flat_of(const struct source *source)
{
    return source && source->driver == &format_fsdp_ranks ? torch_source_of(source)->ranks->flat : NULL;
}

/* What a parameter of the source is called in the target. */
static struct str wanted_name(const struct flat_planning *planning, uint32_t parameter)
{
    const struct fsdp_flat *source = planning->plan->source;
    uint32_t wanted = planning->wanted_of[source->tensors[parameter]];
    return wanted ? planning->request->wanted->tensors[wanted - 1].key : source->parameters[parameter].name;
}

/* How the target cuts the parameters that have state: all alike. */
static bool find_shards(const struct flat_planning *planning)
{
    struct fsdp_flat_plan *plan = planning->plan;
    const struct fsdp_spread *spread = planning->spread;
    bool is_first = true;
    for (uint32_t i = 0; i < plan->source->number_count; i++) {
        uint32_t wanted = planning->wanted_of[plan->source->tensors[plan->source->parameter_of[i]]];
        struct fsdp_shards shards;
        if (!wanted)
            continue;
        if (!spread->layout_of[wanted - 1] || !fsdp_shards_of(&spread->layouts[spread->layout_of[wanted - 1] - 1], spread->world, &shards))
            return false;
        if (!is_first && (shards.count != plan->shards.count || shards.stride != plan->shards.stride))
            return false;
        plan->shards = shards;
        is_first = false;
    }
    if (is_first)
        plan->shards = (struct fsdp_shards){ spread->world, 1 };
    return true;
}

static reshard_status begin_numbers(struct flat_planning *planning)
{
    struct fsdp_flat_plan *plan = planning->plan;
    plan->number_count = plan->source->number_count;
    plan->number_of = arena_array(&plan->arena, plan->parameter_count, sizeof(*plan->number_of));
    plan->target_number = arena_array(&plan->arena, plan->number_count, sizeof(*plan->target_number));
    plan->parameter_of = arena_array(&plan->arena, plan->number_count, sizeof(*plan->parameter_of));
    if (!plan->number_of || !plan->target_number || !plan->parameter_of)
        return error_set_memory(planning->err);
    for (uint32_t i = 0; i < plan->parameter_count; i++)
        plan->number_of[i] = CATALOG_NONE;
    for (uint32_t i = 0; i < plan->number_count; i++)
        plan->target_number[i] = plan->parameter_of[i] = CATALOG_NONE;
    return RESHARD_OK;
}

/* Another wrapping keeps the alignment. */
static reshard_status wrap_anew(struct flat_planning *planning, const char *rule)
{
    struct fsdp_flat_plan *plan = planning->plan;
    const struct wrap_units *units = &plan->source->units;
    struct wrap_units other = { 0 };
    reshard_status status =
        wrap_units_of_rule(plan->parameters, plan->parameter_count, rule, units->alignment, &plan->units, planning->err);
    if (status || !units->other_alignment)
        return status;
    status = wrap_units_of_rule(plan->parameters, plan->parameter_count, rule, units->other_alignment, &other, planning->err);
    if (!status && !wrap_units_equal(&plan->units, &other, plan->parameter_count))
        status =
            error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
                      "wrap '%s': whether parameters are aligned to %" PRId64 " or %" PRId64 " elements cannot be told from the source; a "
                      "reference shows it",
                      rule, units->alignment, units->other_alignment);
    wrap_units_release(&other);
    return status;
}

/* The rule must name modules of the model: of its parameters, and of what they are tied to. */
static reshard_status check_rule(const struct flat_planning *planning, const char *text)
{
    const struct catalog *wanted = planning->request->wanted;
    struct wrap_rule *rule = NULL;
    struct str module;
    reshard_status status = wrap_rule_parse(text, &rule, planning->err);
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++)
        if (!fsdp_is_state(wanted->tensors[i].key))
            status = wrap_rule_module(rule, wanted->tensors[i].key, &module, planning->err);
    if (!status)
        status = wrap_rule_check(rule, planning->err);
    wrap_rule_free(rule);
    return status;
}

/* Where it is open how the source's modules were wrapped, the rule must be how. */
static reshard_status plan_rule(struct flat_planning *planning, const char *rule)
{
    struct fsdp_flat_plan *plan = planning->plan;
    const struct fsdp_flat *source = plan->source;
    enum wrap_fit found;
    reshard_status status = check_rule(planning, rule);
    if (status)
        return status;
    plan->owns_units = true;
    if (source->units.count)
        return wrap_anew(planning, rule);
    status = fsdp_flat_fit(planning->request->source_catalog, source, plan->parameters, rule, &found, &plan->units, planning->err);
    if (status || found == WRAP_FITS)
        return status;
    return error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
                     "wrap '%s' %s the pieces of the source's optimizer, of which it is open how modules were "
                     "wrapped",
                     rule, found == WRAP_FITS_TWICE ? "leaves the alignment open of" : "does not give");
}

/* As the source has its units, or as the rule says. */
static reshard_status plan_own(struct flat_planning *planning)
{
    struct fsdp_flat_plan *plan = planning->plan;
    const struct fsdp_flat *source = plan->source;
    const char *rule = planning->request->wrap;
    struct wrap_parameter *named = arena_array(&plan->arena, source->parameter_count, sizeof(*named));
    plan->is_original = source->is_original;
    plan->parameters = named;
    plan->parameter_count = source->parameter_count;
    reshard_status status = named ? begin_numbers(planning) : error_set_memory(planning->err);
    if (status)
        return status;
    for (uint32_t i = 0; i < source->parameter_count; i++)
        named[i] = (struct wrap_parameter){ wanted_name(planning, i), source->parameters[i].elements };
    for (uint32_t i = 0; i < source->number_count; i++) {
        plan->number_of[source->parameter_of[i]] = i;
        plan->parameter_of[i] = source->parameter_of[i];
        plan->target_number[i] = i;
    }
    plan->units = source->units;
    return rule ? plan_rule(planning, rule) : RESHARD_OK;
}

/* As the reference has its units: parameters are found by their names. */
static reshard_status plan_like(struct flat_planning *planning, const struct fsdp_flat *like)
{
    struct fsdp_flat_plan *plan = planning->plan;
    const struct fsdp_flat *source = plan->source;
    struct name_map names = { 0 };
    plan->is_original = like->is_original;
    plan->parameters = like->parameters;
    plan->parameter_count = like->parameter_count;
    plan->units = like->units;
    reshard_status status = begin_numbers(planning);
    uint32_t *like_number = status ? NULL : arena_array(&plan->arena, like->parameter_count, sizeof(*like_number));
    if (!status && !like_number)
        status = error_set_memory(planning->err);
    for (uint32_t i = 0; !status && i < like->parameter_count; i++) {
        like_number[i] = CATALOG_NONE;
        if (name_map_intern(&names, like->parameters[i].name, NULL) != i)
            status = error_set_memory(planning->err);
    }
    for (uint32_t i = 0; !status && i < like->number_count; i++)
        like_number[like->parameter_of[i]] = i;
    for (uint32_t i = 0; !status && i < source->number_count; i++) {
        struct str name = wanted_name(planning, source->parameter_of[i]);
        uint32_t found = name_map_find(&names, name);
        if (found == NAME_NONE || like->parameters[found].elements != source->parameters[source->parameter_of[i]].elements) {
            status = error_set(planning->err, RESHARD_ERR_UNSUPPORTED,
                               "the reference has no parameter '%.*s' of that size to put its state where", STR_ARG(name));
            break;
        }
        plan->number_of[found] = i;
        plan->parameter_of[i] = found;
        plan->target_number[i] = like_number[found];
    }
    name_map_release(&names);
    return status;
}

/* The parameters of each unit, in their order. */
static reshard_status order_members(struct flat_planning *planning)
{
    struct fsdp_flat_plan *plan = planning->plan;
    plan->members = arena_array(&plan->arena, plan->parameter_count, sizeof(*plan->members));
    plan->first_member = arena_zalloc(&plan->arena, ((size_t)plan->units.count + 2) * sizeof(*plan->first_member));
    if (!plan->members || !plan->first_member)
        return error_set_memory(planning->err);
    for (uint32_t i = 0; i < plan->parameter_count; i++)
        plan->first_member[plan->units.places[i].unit + 2]++;
    for (uint32_t i = 2; i < plan->units.count + 2; i++)
        plan->first_member[i] += plan->first_member[i - 1];
    for (uint32_t i = 0; i < plan->parameter_count; i++)
        plan->members[plan->first_member[plan->units.places[i].unit + 1]++] = i;
    return RESHARD_OK;
}

static reshard_status plan_units(struct flat_planning *planning)
{
    const struct layout_request *request = planning->request;
    const struct fsdp_flat *like = flat_of(request->like);
    struct fsdp_flat_plan *plan = planning->plan;
    if (!find_shards(planning)) {
        plan->dropped = "the target does not cut all parameters once, as FSDP1 does with their state";
        return RESHARD_OK;
    }
    const struct fsdp_flat *shown = like && !request->wrap ? like : plan->source;
    reshard_status status = shown == like ? plan_like(planning, like) : plan_own(planning);
    bool is_as_shown = !request->wrap && shown->is_original && shown->shards.count == plan->shards.count;
    plan->stored = is_as_shown ? shown : NULL;
    if (!status && !plan->stored && !plan->units.count)
        plan->dropped = "several ways to wrap the model's modules go with its flat pieces: reshard_convert_options.wrap says which it was";
    return status || !plan->units.count ? status : order_members(planning);
}

/* Wholes of a source of flat pieces that become DTensors lie as their parameters do. */
static void follow_parameters(const struct flat_planning *planning, const struct fsdp_flat *source, struct fsdp_spread *spread)
{
    const struct layout_request *request = planning->request;
    for (uint32_t i = 0; i < source->state_count; i++) {
        uint32_t wanted = planning->wanted_of[source->states[i]], number = source->number_of_state[i];
        uint32_t parameter = planning->wanted_of[source->tensors[source->parameter_of[number]]];
        if (wanted && parameter &&
            catalog_same_shape(request->wanted, &request->wanted->tensors[wanted - 1], request->wanted,
                               &request->wanted->tensors[parameter - 1]))
            spread->layout_of[wanted - 1] = spread->layout_of[parameter - 1];
    }
}

/* The reference has flat pieces, the source something else. */
static reshard_status plan_wholes(struct flat_planning *planning)
{
    const struct layout_request *request = planning->request;
    struct fsdp_flat_plan *plan = planning->plan;
    const struct catalog_item *item = NULL;
    reshard_status status = RESHARD_OK;
    plan->dropped = "the reference keeps it as flat pieces of FSDP1, and which parameter each state is of cannot be told";
    if (request->source && request->source->driver == &format_fsdp_ranks)
        status = layout_item_named(request, FSDP_OPTIMIZER_KEY, &item, planning->err);
    if (!status && item && item->value)
        status = fsdp_flat_of_wholes(request->source, item->value, &plan->arena, &plan->made, planning->err);
    plan->source = plan->made;
    if (plan->made)
        plan->dropped = NULL;
    return status;
}

static bool is_one_of_fsdp1(const struct source *source)
{
    const struct torch_ranks *ranks = source && source->driver == &format_fsdp_ranks ? torch_source_of(source)->ranks : NULL;
    return ranks && ranks->is_one_file && ranks->fsdp_version == 1;
}

reshard_status fsdp_flat_plan_make(const struct layout_request *request, struct fsdp_spread *spread, struct fsdp_flat_plan *out,
                                   reshard_error *err)
{
    struct flat_planning planning = { .request = request, .spread = spread, .plan = out, .err = err };
    bool is_like_other = request->like && request->like->driver == &format_fsdp_ranks && !flat_of(request->like) &&
                         torch_source_of(request->like)->ranks->names[FSDP_OPTIMIZER].name.data;
    const struct fsdp_flat *source = is_like_other ? NULL : flat_of(request->source);
    *out = (struct fsdp_flat_plan){ .source = source };
    if (!source && request->wrap)
        return error_set(err, RESHARD_ERR_USAGE,
                         "reshard_convert_options.wrap: the source has no flat pieces of an optimizer to be wrapped anew");
    planning.wanted_of = array_zeroed(request->source_catalog->tensor_count, sizeof(*planning.wanted_of));
    reshard_status status = planning.wanted_of ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < request->wanted->tensor_count; i++)
        if (request->wanted_source[i] != CATALOG_NONE)
            planning.wanted_of[request->wanted_source[i]] = i + 1;
    if (status)
        return status;
    if (is_like_other && flat_of(request->source))
        follow_parameters(&planning, flat_of(request->source), spread);
    if (!source && flat_of(request->like))
        status = plan_wholes(&planning);
    else if (!source && is_one_of_fsdp1(request->source) && spread->world > 1 && !is_like_other)
        out->dropped = "one rank of FSDP1 does not tell how its modules were wrapped: a reference shows it";
    if (!status && out->source)
        status = plan_units(&planning);
    free(planning.wanted_of);
    return status;
}

void fsdp_flat_plan_release(struct fsdp_flat_plan *plan)
{
    fsdp_flat_release(plan->made);
    if (plan->owns_units)
        wrap_units_release(&plan->units);
    arena_release(&plan->arena);
    *plan = (struct fsdp_flat_plan){ 0 };
}

/* ---- pieces ---- */

/* The wanted tensor of a state that is cut with its parameter; TORCH_NONE: the node is none. */
static uint32_t flat_state(const struct fsdp_cutting *cutting, const struct value *node)
{
    const struct fsdp_flat *source = cutting->plan->source;
    uint32_t tensor = fsdp_whole_of(node), low = 0, high = source->state_count;
    if (tensor == TORCH_NONE || tensor >= cutting->request->source_catalog->tensor_count || !cutting->wanted_of[tensor])
        return TORCH_NONE;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (source->states[middle] < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low < source->state_count && source->states[low] == tensor ? cutting->wanted_of[tensor] - 1 : TORCH_NONE;
}

static uint32_t target_shard(const struct fsdp_cutting *cutting)
{
    return cutting->file->rank / cutting->plan->shards.stride % cutting->plan->shards.count;
}

static bool part_of(const struct fsdp_cutting *cutting, uint32_t parameter, struct flat_unit_part *out)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    if (plan->stored)
        return fsdp_flat_part(plan->stored, plan->target_number[plan->number_of[parameter]], target_shard(cutting), out);
    const struct wrap_place *place = &plan->units.places[parameter];
    return flat_unit_part_of(flat_unit_piece(plan->units.ends[place->unit], plan->shards.count), plan->shards.count, target_shard(cutting),
                             place->start, plan->parameters[parameter].elements, out);
}

/* The node of a tensor of one dimension that is a new record; NULL: *status. Takes over the runs. */
static struct value *put_piece(const struct fsdp_cutting *cutting, enum dtype dtype, int64_t length, struct fsdp_run *runs, uint32_t count,
                               reshard_status *status, reshard_error *err)
{
    struct fsdp_record record = {
        .tensor = count ? runs[0].tensor : TORCH_NONE, .dtype = dtype, .rank = 1, .extent = { length }, .runs = runs, .run_count = count
    };
    uint32_t number;
    struct value *node = value_new(cutting->graph, VALUE_NONE);
    record.bytes = (uint64_t)length * dtype_element_bytes(dtype);
    if (!count && record.bytes && buffer_extend(&record.memory, record.bytes))
        memset(record.memory.data, 0, record.bytes);
    *status = node && !record.memory.failed ? fsdp_record_add(cutting->file, &record, &number, err) : error_set_memory(err);
    if (*status) {
        buffer_release(&record.memory);
        free(runs);
        return NULL;
    }
    node->tensor = number + 1;
    node->reserved = FSDP_NODE_IS_DONE;
    return node;
}

/* ---- state by parameter ---- */

/* *is_left: the rank has nothing of the parameter. */
static reshard_status cut_states(const struct fsdp_cutting *cutting, uint32_t parameter, struct value *states, bool *is_left,
                                 reshard_error *err)
{
    struct flat_unit_part part;
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    *is_left = false;
    if (cutting->plan->shards.count == 1 || !value_as_mapping(states, &pairs, &count)) /* not cut at all: as the parameter is shaped */
        return RESHARD_OK;
    *is_left = !part_of(cutting, parameter, &part);
    for (size_t i = 0; !status && !*is_left && i + 1 < count; i += 2) {
        uint32_t wanted = flat_state(cutting, pairs[i + 1]);
        if (wanted == TORCH_NONE)
            continue;
        struct fsdp_run *run = calloc(1, sizeof(*run));
        if (!run)
            return error_set_memory(err);
        *run = (struct fsdp_run){ .tensor = wanted, .begin = part.begin, .count = part.count };
        struct value *piece = put_piece(cutting, cutting->request->wanted->tensors[wanted].dtype, part.count, run, 1, &status, err);
        if (piece)
            pairs[i + 1] = piece;
    }
    return status;
}

/* The number of a state's key as the source has it; CATALOG_NONE: it is none. */
static uint32_t source_number(const struct fsdp_flat_plan *plan, const struct value *key)
{
    int64_t number;
    return value_as_int(key, &number) && number >= 0 && number < plan->number_count ? (uint32_t)number : CATALOG_NONE;
}

static reshard_status cut_by_parameter(const struct fsdp_cutting *cutting, struct value **pairs, size_t count, struct value **out,
                                       reshard_error *err)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    struct value **kept = arena_array(&cutting->graph->arena, count, sizeof(*kept));
    size_t used = 0;
    reshard_status status = kept ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        uint32_t number = source_number(plan, pairs[i]), parameter = number == CATALOG_NONE ? CATALOG_NONE : plan->parameter_of[number];
        bool is_left;
        if (parameter == CATALOG_NONE || plan->target_number[number] == CATALOG_NONE)
            continue;
        status = cut_states(cutting, parameter, pairs[i + 1], &is_left, err);
        if (status || is_left)
            continue;
        kept[used] = value_new_int(cutting->graph, plan->target_number[number]);
        kept[used + 1] = pairs[i + 1];
        status = kept[used] ? RESHARD_OK : error_set_memory(err);
        used += 2;
    }
    *out = status ? NULL : value_new_list(cutting->graph, VALUE_DICT, kept, used);
    return status || *out ? status : error_set_memory(err);
}

/* ---- state by unit ---- */

/* The rank's piece of a state of all parameters of a unit. */
static reshard_status join_unit(const struct fsdp_cutting *cutting, uint32_t unit, struct value *const *states, struct str name,
                                struct value **out, reshard_error *err)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    const struct catalog *wanted = cutting->request->wanted;
    uint32_t first = plan->first_member[unit], last = plan->first_member[unit + 1], count = 0;
    struct fsdp_run *runs = array_zeroed((size_t)(last - first), sizeof(*runs));
    enum dtype dtype = DTYPE_U8;
    bool is_first = true;
    reshard_status status = runs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t at = first; !status && at < last; at++) {
        struct flat_unit_part part;
        uint32_t i = plan->members[at];
        const struct value *node = states[i] ? value_dict_find(states[i], name) : NULL;
        uint32_t tensor = node ? flat_state(cutting, node) : TORCH_NONE;
        if (tensor != TORCH_NONE && is_first)
            dtype = wanted->tensors[tensor].dtype;
        is_first = false;
        if (tensor == TORCH_NONE || wanted->tensors[tensor].dtype != dtype)
            status = error_set(err, RESHARD_ERR_UNSUPPORTED,
                               "a unit of FSDP1 keeps one state '%.*s' for all of its parameters, but that of '%.*s' %s", STR_ARG(name),
                               STR_ARG(plan->parameters[i].name), tensor == TORCH_NONE ? "is not there" : "has another type");
        else if (part_of(cutting, i, &part) && part.count)
            runs[count++] = (struct fsdp_run){ .tensor = tensor, .begin = part.begin, .count = part.count, .place = part.place };
    }
    if (status) {
        free(runs);
        return status;
    }
    *out = put_piece(cutting, dtype, flat_unit_piece(plan->units.ends[unit], plan->shards.count), runs, count, &status, err);
    return status;
}

/* The states of a unit: those of its first parameter, of which the pieces are joined with the others'. *out NULL: there are none. */
static reshard_status cut_unit(const struct fsdp_cutting *cutting, uint32_t unit, struct value *const *states, struct value **out,
                               reshard_error *err)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    *out = states[plan->members[plan->first_member[unit]]];
    if (!*out || !value_as_mapping(*out, &pairs, &count))
        return RESHARD_OK;
    struct value **joined = arena_array(&cutting->graph->arena, count, sizeof(*joined));
    if (!joined)
        return error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        joined[i] = pairs[i];
        joined[i + 1] = pairs[i + 1];
        if (flat_state(cutting, pairs[i + 1]) == TORCH_NONE || pairs[i]->kind != VALUE_STR)
            continue;
        status = join_unit(cutting, unit, states, pairs[i]->text, &joined[i + 1], err);
    }
    *out = status ? NULL : value_new_list(cutting->graph, VALUE_DICT, joined, count);
    return status || *out ? status : error_set_memory(err);
}

static reshard_status cut_by_unit(const struct fsdp_cutting *cutting, struct value **pairs, size_t count, struct value **out,
                                  reshard_error *err)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    struct value **kept = arena_array(&cutting->graph->arena, 2 * (size_t)plan->units.count, sizeof(*kept));
    struct value **states = arena_array(&cutting->graph->arena, plan->parameter_count, sizeof(*states));
    size_t used = 0;
    reshard_status status = kept && states ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < plan->parameter_count; i++)
        states[i] = NULL;
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        uint32_t number = source_number(plan, pairs[i]);
        if (number != CATALOG_NONE && plan->parameter_of[number] != CATALOG_NONE)
            states[plan->parameter_of[number]] = pairs[i + 1];
    }
    for (uint32_t i = 0; !status && i < plan->units.count; i++) {
        status = cut_unit(cutting, i, states, &kept[used + 1], err);
        if (status || !kept[used + 1])
            continue;
        kept[used] = value_new_int(cutting->graph, i);
        status = kept[used] ? RESHARD_OK : error_set_memory(err);
        used += 2;
    }
    *out = status ? NULL : value_new_list(cutting->graph, VALUE_DICT, kept, used);
    return status || *out ? status : error_set_memory(err);
}

/* ---- groups ---- */

static int number_order(const void *a, const void *b)
{
    const struct value *const *x = a, *const *y = b;
    return ((*x)->integer > (*y)->integer) - ((*x)->integer < (*y)->integer);
}

/* A group's list of numbers as the target counts. */
static reshard_status cut_group(const struct fsdp_cutting *cutting, struct value *group, reshard_error *err)
{
    const struct fsdp_flat_plan *plan = cutting->plan;
    struct value *members = value_dict_get(group, "params"), **items;
    size_t count = plan->is_original ? (members && members->kind == VALUE_LIST ? members->list.count : 0) : plan->units.count, used = 0;
    items = arena_array(&cutting->graph->arena, count, sizeof(*items));
    bool good = items != NULL;
    for (size_t i = 0; good && i < count; i++) {
        uint32_t number = (uint32_t)i;
        if (plan->is_original) {
            number = source_number(plan, members->list.items[i]);
            number = number == CATALOG_NONE ? CATALOG_NONE : plan->target_number[number];
        }
        if (number != CATALOG_NONE)
            good = (items[used++] = value_new_int(cutting->graph, number)) != NULL;
    }
    if (good)
        qsort(items, used, sizeof(*items), number_order);
    struct value *list = good ? value_new_list(cutting->graph, VALUE_LIST, items, used) : NULL;
    return list && value_dict_set(cutting->graph, group, "params", list, true) ? RESHARD_OK : error_set_memory(err);
}

reshard_status fsdp_flat_cut(const struct fsdp_cutting *cutting, struct value *optimizer, reshard_error *err)
{
    struct value *states = value_dict_get(optimizer, "state"), *groups = value_dict_get(optimizer, "param_groups"), *cut = NULL, **pairs;
    size_t count;
    if (optimizer->kind != VALUE_DICT || !states || !value_as_mapping(states, &pairs, &count) || !groups || groups->kind != VALUE_LIST)
        return RESHARD_OK;
    if (!cutting->plan->is_original && groups->list.count != 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the optimizer has %zu groups of parameters: those of a unit of FSDP1 are in one",
                         groups->list.count);
    reshard_status status =
        cutting->plan->is_original ? cut_by_parameter(cutting, pairs, count, &cut, err) : cut_by_unit(cutting, pairs, count, &cut, err);
    for (size_t i = 0; !status && i < groups->list.count; i++)
        status = cut_group(cutting, groups->list.items[i], err);
    if (!status && !value_dict_set(cutting->graph, optimizer, "state", cut, true))
        status = error_set_memory(err);
    return status;
}
