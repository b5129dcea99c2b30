/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Member `optimizer` of a legacy file. The source's groups come as legacy files have them (a dict, or a list of one for each optimizer), as
 * a common state has them (a dict by number for several), as objects of data-parallel groups, or parameter by parameter.
 */
#include "parallel/group_meta.h"
#include "parallel/parameter_groups.h"
#include "formats/megatron/optimizer_target.h"
#include "formats/shared/step_number.h"
#include "parallel/state_keys.h"

#include <inttypes.h>
#include <stdlib.h>

#define OPTIMIZERS_MAX 2      /* dense, experts */
#define ORDERED_GROUPS_MAX 64 /* Megatron makes eight at most */

/* What the source says about one optimizer. */
struct group_source {
    struct value *groups, *scaler; /* a list; a dict or NULL */
    struct value *step;            /* of all its parameters, where they count it: INT or FLOAT; NULL */
};

struct value_writer {
    const struct layout_request *request;
    struct megatron_target *state;
    struct target_rank *rank;
    struct value_graph *graph;
    struct group_source sources[OPTIMIZERS_MAX];
    struct rank_parameter *parameters;
    uint32_t *indices, count;
    struct like_settings settings;
    struct value *step; /* that entries by number get, or NULL */
};

/* ---- reading what the source says ---- */

/* "[chained_<k>.]optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1", or grad_scaler: the first group's stands for all. */
static bool optimizer_value_read_object_key(struct str key, uint32_t *optimizer, bool *is_scaler)
{
    struct state_key read;
    bool is_one = state_key_read(key, &read) && read.group == 0 && read.chain < OPTIMIZERS_MAX &&
                  (state_key_is(key, STATE_KEY_GROUPS) || state_key_is(key, STATE_KEY_SCALER));
    *optimizer = read.chain == 1;
    *is_scaler = read.kind == STATE_KEY_SCALER;
    return is_one;
}

bool optimizer_item_is_known(struct str key)
{
    uint32_t optimizer;
    bool is_scaler;
    return str_is(key, "optimizer") || optimizer_value_read_object_key(key, &optimizer, &is_scaler) ||
           state_key_is(key, STATE_KEY_GROUP_META);
}

static reshard_status take_source(struct value_writer *writer, uint32_t number, struct value *optimizer, uint32_t wanted,
                                  reshard_error *err)
{
    struct group_source *source = &writer->sources[number];
    struct value *inner = (struct value *)value_dict_get(optimizer, "optimizer"),
                 *scaler = (struct value *)value_dict_get(optimizer, "grad_scaler");
    struct value *groups = (struct value *)value_dict_get(inner && inner->kind == VALUE_DICT ? inner : optimizer, "param_groups");
    if (groups && groups->kind == VALUE_LIST && !source->groups)
        source->groups = groups;
    if (scaler && !source->scaler)
        source->scaler = scaler;
    const struct value *step = source->step ? NULL : step_find_common(optimizer);
    return step ? step_of_item(writer->request, wanted, step, writer->graph, &source->step, err) : RESHARD_OK;
}

static reshard_status optimizer_value_take_item(struct value_writer *writer, const struct optimizer_item *item, reshard_error *err)
{
    struct value *value = item->value;
    uint32_t number;
    bool is_scaler;
    reshard_status status = RESHARD_OK;
    if (optimizer_value_read_object_key(item->key, &number, &is_scaler)) {
        bool is_one = value->kind == VALUE_LIST && value->list.count == 1 && value->list.items[0]->kind == VALUE_DICT;
        if (is_one && is_scaler)
            writer->sources[number].scaler = value->list.items[0];
        else if (is_one)
            status = take_source(writer, number, value->list.items[0], item->wanted, err);
    } else if (value->kind == VALUE_LIST) {
        for (uint32_t i = 0; i < value->list.count && i < OPTIMIZERS_MAX && !status; i++) {
            if (value->list.items[i]->kind == VALUE_DICT)
                status = take_source(writer, i, value->list.items[i], item->wanted, err);
        }
    } else if (value->kind == VALUE_DICT) {
        status = take_source(writer, 0, value, item->wanted, err);
        for (size_t i = 0; i + 1 < value->list.count && !status; i += 2) {
            int64_t index;
            if (value_as_int(value->list.items[i], &index) && index >= 0 && index < OPTIMIZERS_MAX &&
                value->list.items[i + 1]->kind == VALUE_DICT)
                status = take_source(writer, (uint32_t)index, value->list.items[i + 1], item->wanted, err);
        }
    }
    return status;
}

/* Takes the items of whatever form; those that lie parameter by parameter become the groups of one optimizer. */
static reshard_status take_items(struct value_writer *writer, const struct optimizer_item *items, uint32_t count, reshard_error *err)
{
    struct group_meta meta = { .graph = writer->graph };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        if (state_key_is(items[i].key, STATE_KEY_GROUP_META))
            status = group_meta_add(&meta, items[i].key, items[i].value, err);
        else
            status = optimizer_value_take_item(writer, &items[i], err);
    }
    if (!status && meta.parameters.count && !writer->sources[0].groups)
        status = group_meta_list(&meta, false, &writer->sources[0].groups, err);
    group_meta_release(&meta);
    return status;
}

/* ---- groups ---- */

/* A copy of the group without its list of parameters. */
static struct value *optimizer_value_copy_group(struct value_graph *graph, const struct value *group)
{
    struct value **items = arena_array(&graph->arena, group->list.count, sizeof(struct value *));
    size_t count = 0;
    for (size_t i = 0; items && i + 1 < group->list.count; i += 2) {
        const struct value *key = group->list.items[i];
        if (key->kind == VALUE_STR && str_is(key->text, "params"))
            continue;
        items[count++] = group->list.items[i];
        items[count++] = group->list.items[i + 1];
    }
    return items ? value_new_list(graph, VALUE_DICT, items, count) : NULL;
}

/* Whether a parameter of the optimizer in hand, on whatever rank, would be in such a group. */
static bool has_use(const struct value_writer *writer, bool of_experts, const struct value *group)
{
    const struct value *decay = parameter_group_decay(group);
    const struct megatron_target *state = writer->state;
    for (uint32_t i = 0; decay && i < state->parameter_count; i++) {
        struct rank_parameter parameter;
        bool is_one = megatron_optimizer_parameter(writer->request, state, i, &parameter) && parameter.is_expert == of_experts;
        if (is_one && parameter_has_decay(&parameter) != weight_decay_is_zero(decay) &&
            (!parameter_group_is_of_embeddings(group, state->args.members) || parameter.is_embedding))
            return true;
    }
    return !decay;
}

/*
 * Groups of the optimizer in hand. Where the source had one optimizer for everything, the experts' has copies of those that it needs; where
 * it had two and the target has one, the dense ones serve.
 */
static struct value *optimizer_value_copy_groups(struct value_writer *writer, bool of_experts)
{
    struct value_graph *graph = writer->graph;
    struct value *source = writer->sources[of_experts].groups ? writer->sources[of_experts].groups : writer->sources[0].groups;
    struct value **groups = arena_array(&graph->arena, source->list.count, sizeof(struct value *));
    bool is_borrowed = source != writer->sources[of_experts].groups;
    size_t count = 0;
    for (size_t i = 0; groups && i < source->list.count; i++) {
        if (source->list.items[i]->kind != VALUE_DICT || (is_borrowed && !has_use(writer, of_experts, source->list.items[i])))
            continue;
        struct value *group = optimizer_value_copy_group(graph, source->list.items[i]);
        if (!group)
            return NULL;
        for (size_t k = 0; k + 1 < group->list.count; k += 2) {
            const struct value *key = group->list.items[k];
            if (key->kind != VALUE_STR || !str_is(key->text, "is_expert_parallel"))
                continue;
            struct value *flag = value_new(graph, VALUE_BOOL);
            if (!flag)
                return NULL;
            flag->boolean = of_experts;
            group->list.items[k + 1] = flag;
        }
        groups[count++] = group;
    }
    return groups ? value_new_list(graph, VALUE_LIST, groups, count) : NULL;
}

/* ---- the order of groups ---- */

static bool some_decoupled(const struct value *groups)
{
    for (size_t i = 0; i < groups->list.count; i++) {
        if (parameter_group_is_decoupled(groups->list.items[i]))
            return true;
    }
    return false;
}

static bool is_member(const struct rank_parameter *parameter, bool of_experts, const struct value *group, const struct value *decay,
                      bool has_decoupled)
{
    return parameter->is_expert == of_experts && parameter_has_decay(parameter) != weight_decay_is_zero(decay) &&
           parameter_group_is_decoupled(group) == (has_decoupled && parameter->is_embedding);
}

/* Position of the group's first parameter on this rank; their number if it has none. */
static uint32_t first_of(const struct value_writer *writer, bool of_experts, const struct value *group, bool has_decoupled)
{
    const struct value *decay = parameter_group_decay(group);
    uint32_t first = 0;
    while (decay && first < writer->count && !is_member(&writer->parameters[first], of_experts, group, decay, has_decoupled))
        first++;
    return decay ? first : writer->count;
}

/*
 * Releases up to 0.15 make a group when they come to its first parameter, and match the groups of a file by position. Later ones, whose
 * groups have the member default_config, sort them, and the source's order is theirs.
 */
static void optimizer_value_order_groups(const struct value_writer *writer, bool of_experts, struct value *groups)
{
    bool has_decoupled = some_decoupled(groups), is_sorted = groups->list.count > ORDERED_GROUPS_MAX;
    for (size_t i = 0; i < groups->list.count && !is_sorted; i++)
        is_sorted = value_dict_get(groups->list.items[i], "default_config") != NULL;
    if (is_sorted)
        return;
    for (size_t i = 1; i < groups->list.count; i++) {
        struct value *group = groups->list.items[i];
        uint32_t first = first_of(writer, of_experts, group, has_decoupled);
        size_t at = i;
        for (; at > 0 && first_of(writer, of_experts, groups->list.items[at - 1], has_decoupled) > first; at--)
            groups->list.items[at] = groups->list.items[at - 1];
        groups->list.items[at] = group;
    }
}

/* ---- state by number ---- */

static bool optimizer_value_set_member(struct value_graph *graph, struct value *dict, struct value *key, struct value *value)
{
    (void)graph;
    if (!dict || !key || !value)
        return false;
    dict->list.items[dict->list.count++] = key;
    dict->list.items[dict->list.count++] = value;
    return true;
}

static struct value *optimizer_value_new_dict(struct value_graph *graph, size_t pairs)
{
    struct value **items = arena_array(&graph->arena, 2 * pairs, sizeof(struct value *));
    return items ? value_new_list(graph, VALUE_DICT, items, 0) : NULL;
}

static reshard_status optimizer_value_add_tensor(struct value_writer *writer, uint32_t parameter, const struct wanted_state *kind,
                                                 struct value **out, reshard_error *err)
{
    struct megatron_target *state = writer->state;
    const struct target_parameter *info = &state->parameters[writer->indices[parameter]];
    uint32_t tensor = kind->tensors[info->wanted] - 1, record;
    uint64_t bytes = 0;
    if (!info->matrix &&
        !dtype_bytes(writer->request->wanted->tensors[tensor].dtype, (uint64_t)box_volume(info->cut.rank, info->cut.local), &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "state of '%.*s' is too large", STR_ARG(info->name));
    reshard_status status = info->matrix
                                ? megatron_matrix_record(writer->request, state, writer->indices[parameter], kind->tensors, &record, err)
                                : megatron_record_add(state, tensor, bytes, &record, err);
    if (status)
        return status;
    if (!info->matrix)
        state->records[record].parameter = writer->indices[parameter] + 1;
    *out = value_new(writer->graph, VALUE_NONE);
    if (!*out)
        return error_set_memory(err);
    (*out)->tensor = record - writer->rank->first_record + 1;
    (*out)->storage = writer->indices[parameter];
    return RESHARD_OK;
}

/* {STATE: tensor} of one parameter; masters lie apart. */
static reshard_status optimizer_value_add_entry(struct value_writer *writer, uint32_t parameter, struct value **out, reshard_error *err)
{
    const struct target_optimizer *optimizer = writer->state->optimizer;
    reshard_status status = RESHARD_OK;
    *out = optimizer_value_new_dict(writer->graph, optimizer->state_count + 1);
    if (*out && writer->step && !optimizer_value_set_member(writer->graph, *out, value_new_str(writer->graph, STR("step")), writer->step))
        return error_set_memory(err);
    for (uint32_t s = 0; s < optimizer->state_count && *out && !status; s++) {
        struct value *tensor;
        if (optimizer->states[s].is_master)
            continue;
        status = optimizer_value_add_tensor(writer, parameter, &optimizer->states[s], &tensor, err);
        if (!status && !optimizer_value_set_member(writer->graph, *out, value_new_str(writer->graph, optimizer->states[s].name), tensor))
            status = error_set_memory(err);
    }
    return *out ? status : error_set_memory(err);
}

static const struct wanted_state *master_of(const struct target_optimizer *optimizer)
{
    for (uint32_t i = 0; i < optimizer->state_count; i++) {
        if (optimizer->states[i].is_master)
            return &optimizer->states[i];
    }
    return NULL;
}

/* One optimizer's dicts while parameters are dealt out to its groups. */
struct dealing {
    struct value *state, *masters; /* DICT by number; LIST of a list for each group */
    int64_t number;
};

/* A group's parameters get numbers, entries and masters. */
static reshard_status deal_group(struct value_writer *writer, bool of_experts, bool has_decoupled, struct value *group,
                                 struct dealing *dealing, reshard_error *err)
{
    struct value_graph *graph = writer->graph;
    const struct wanted_state *master = master_of(writer->state->optimizer);
    struct value **numbers = arena_array(&graph->arena, writer->count, sizeof(struct value *));
    struct value **masters = arena_array(&graph->arena, writer->count, sizeof(struct value *));
    size_t number_count = 0, master_count = 0;
    const struct value *decay = parameter_group_decay(group);
    reshard_status status = numbers && masters ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < writer->count && !status; i++) {
        const struct rank_parameter *parameter = &writer->parameters[i];
        struct value *entry;
        if (!is_member(parameter, of_experts, group, decay, has_decoupled))
            continue;
        numbers[number_count] = value_new_int(graph, dealing->number);
        if (!numbers[number_count++])
            return error_set_memory(err);
        status = optimizer_value_add_entry(writer, i, &entry, err);
        if (!status && !optimizer_value_set_member(graph, dealing->state, value_new_int(graph, dealing->number++), entry))
            status = error_set_memory(err);
        if (!status && master && dtype_info(parameter->param_dtype)->bits == 16)
            status = optimizer_value_add_tensor(writer, i, master, &masters[master_count++], err);
    }
    if (status)
        return status;
    struct value *list = value_new_list(graph, VALUE_LIST, masters, master_count),
                 *params = value_new_list(graph, VALUE_LIST, numbers, number_count);
    if (!list || !params || !value_dict_set(graph, group, "params", params, true))
        return error_set_memory(err);
    dealing->masters->list.items[dealing->masters->list.count++] = list;
    return RESHARD_OK;
}

static uint32_t count_kind(const struct value_writer *writer, bool of_experts)
{
    uint32_t members = 0;
    for (uint32_t i = 0; i < writer->count; i++)
        members += writer->parameters[i].is_expert == of_experts;
    return members;
}

static reshard_status optimizer_value_deal(struct value_writer *writer, bool of_experts, struct value *groups, struct dealing *out,
                                           reshard_error *err)
{
    struct value_graph *graph = writer->graph;
    struct value **lists = arena_array(&graph->arena, groups->list.count, sizeof(struct value *));
    *out = (struct dealing){ .state = optimizer_value_new_dict(graph, writer->count),
                             .masters = lists ? value_new_list(graph, VALUE_LIST, lists, 0) : NULL };
    if (!out->state || !out->masters)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    bool has_decoupled = some_decoupled(groups);
    unsigned seen = 0;
    for (uint32_t i = 0; i < groups->list.count && !status; i++) {
        struct value *group = groups->list.items[i];
        if (!parameter_group_decay(group))
            return error_set(err, RESHARD_ERR_UNSUPPORTED,
                             "parameter group %" PRIu32 " has no 'wd_mult': which parameters it holds cannot be told", i);
        status = parameter_group_take_kind(&seen, i, parameter_group_has_decay(group), parameter_group_is_decoupled(group), err);
        if (!status)
            status = deal_group(writer, of_experts, has_decoupled, group, out, err);
    }
    if (!status && out->number != count_kind(writer, of_experts))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "the source's parameter groups take %" PRId64 " of %" PRIu32 " parameters",
                           out->number, count_kind(writer, of_experts));
    return status;
}

/* ---- one optimizer ---- */

/* As groups: where the source had one optimizer for everything, its scaler is the experts' too. */
static struct value *scaler_of(const struct value_writer *writer, bool of_experts)
{
    return writer->sources[of_experts].scaler ? writer->sources[of_experts].scaler : writer->sources[0].scaler;
}

static reshard_status make_plain(struct value_writer *writer, bool of_experts, struct value *groups, struct value **out, reshard_error *err)
{
    struct value_graph *graph = writer->graph;
    struct value *scaler = scaler_of(writer, of_experts), *inner = optimizer_value_new_dict(graph, 2);
    bool has_master = master_of(writer->state->optimizer) != NULL;
    struct dealing dealing;
    reshard_status status = optimizer_value_deal(writer, of_experts, groups, &dealing, err);
    if (status)
        return status;
    bool is_good = optimizer_value_set_member(graph, inner, value_new_str(graph, STR("state")), dealing.state) &&
                   optimizer_value_set_member(graph, inner, value_new_str(graph, STR("param_groups")), groups);
    *out = inner;
    if (is_good && has_master) {
        *out = optimizer_value_new_dict(graph, 3);
        is_good = optimizer_value_set_member(graph, *out, value_new_str(graph, STR("optimizer")), inner) &&
                  (!scaler || optimizer_value_set_member(graph, *out, value_new_str(graph, STR("grad_scaler")), scaler)) &&
                  optimizer_value_set_member(graph, *out, value_new_str(graph, STR("fp32_from_fp16_params")), dealing.masters);
    }
    return is_good ? RESHARD_OK : error_set_memory(err);
}

static reshard_status make_distributed(struct value_writer *writer, bool of_experts, struct value *groups, struct value **out,
                                       reshard_error *err)
{
    struct value_graph *graph = writer->graph;
    struct value *scaler = scaler_of(writer, of_experts), *inner = optimizer_value_new_dict(graph, 1);
    *out = optimizer_value_new_dict(graph, 2);
    bool is_good = *out && optimizer_value_set_member(graph, inner, value_new_str(graph, STR("param_groups")), groups) &&
                   optimizer_value_set_member(graph, *out, value_new_str(graph, STR("optimizer")), inner) &&
                   (!scaler || optimizer_value_set_member(graph, *out, value_new_str(graph, STR("grad_scaler")), scaler));
    return is_good ? RESHARD_OK : error_set_memory(err);
}

static reshard_status make_one(struct value_writer *writer, bool of_experts, struct value **out, reshard_error *err)
{
    struct value *groups = optimizer_value_copy_groups(writer, of_experts);
    if (!groups)
        return error_set_memory(err);
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < groups->list.count && !status; i++)
        status = optimizer_like_settings(writer->request, of_experts, groups->list.items[i], writer->graph, &writer->settings, err);
    if (status)
        return status;
    optimizer_value_order_groups(writer, of_experts, groups);
    bool is_distributed = writer->state->optimizer->is_distributed;
    struct value *step = writer->sources[of_experts].step ? writer->sources[of_experts].step : writer->sources[0].step;
    writer->step = is_distributed ? NULL : step;
    if (is_distributed && step)
        status = step_to_groups(writer->graph, groups, step, err);
    if (status)
        return status;
    return is_distributed ? make_distributed(writer, of_experts, groups, out, err) : make_plain(writer, of_experts, groups, out, err);
}

static reshard_status make_all(struct value_writer *writer, struct value **out, reshard_error *err)
{
    if (!megatron_has_two_optimizers(writer->request, writer->state, writer->rank))
        return make_one(writer, false, out, err);
    struct value **both = arena_array(&writer->graph->arena, 2, sizeof(struct value *));
    reshard_status status = both ? make_one(writer, false, &both[0], err) : error_set_memory(err);
    if (!status)
        status = make_one(writer, true, &both[1], err);
    if (status)
        return status;
    *out = value_new_list(writer->graph, VALUE_LIST, both, 2);
    return *out ? RESHARD_OK : error_set_memory(err);
}

reshard_status megatron_optimizer_value(const struct layout_request *request, struct target *target, uint32_t rank,
                                        const struct optimizer_item *items, uint32_t item_count, struct value_graph *graph,
                                        struct value **out, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct value_writer writer = { .request = request, .state = state, .rank = &state->ranks[rank], .graph = graph };
    *out = NULL;
    reshard_status status = take_items(&writer, items, item_count, err);
    if (status)
        return status;
    if (!writer.sources[0].groups && !state->optimizer->is_distributed)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "the source says nothing about parameter groups, by which the state would be numbered");
    if (!writer.sources[0].groups)
        return RESHARD_OK;
    status = megatron_rank_parameters(request, state, writer.rank, &writer.parameters, &writer.indices, &writer.count, err);
    if (!status)
        status = make_all(&writer, out, err);
    if (!status && writer.settings.are_removed && rank == 0)
        status = target_note_dropped(target, NOTE_GROUPS, STR("optimizer"), err, "settings of parameter groups that the reference has not");
    if (!status && writer.settings.are_added && rank == 0)
        status = target_note_changed(target, NOTE_GROUPS, STR("optimizer"), err,
                                     "settings of parameter groups that the source has not are the reference's");
    free(writer.parameters);
    free(writer.indices);
    return status;
}
