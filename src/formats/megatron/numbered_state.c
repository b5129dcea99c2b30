/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/megatron/numbered_state.h"

#include "base/array.h"
#include "base/checked.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"

#include <inttypes.h>
#include <stdlib.h>

#define STEP_STATE "step" /* a number, not shaped as the parameter: what all have in common is kept (optimizer_step.c) */

/* One optimizer being read. */
struct state_reading {
    const struct torch_archive *archive;
    const struct rank_parameter *parameters;
    uint32_t count;
    bool is_expert;
    struct parameter_group *groups;
    uint32_t group_count;
    uint32_t *parameter_of;   /* by position through the groups */
    struct state_pieces *out;
};

/* ---- the parts of an optimizer's dict ---- */

static const struct value *numbered_first_member(const struct value *dict, const char *name, const char *old_name)
{
    const struct value *found = value_dict_get(dict, name);
    return found || !old_name ? found : value_dict_get(dict, old_name);
}

/* The dict with `state` and `param_groups`: the optimizer itself in fp32, a member of it in mixed precision. */
static const struct value *inner_of(const struct value *optimizer)
{
    const struct value *inner = numbered_first_member(optimizer, "optimizer", "optimizer_state_dict");
    return inner ? inner : optimizer;
}

static bool holds_state(const struct value *optimizer)
{
    const struct value *inner = inner_of(optimizer), *state = value_dict_get(inner, "state");
    const struct value *masters = numbered_first_member(optimizer, "fp32_from_fp16_params", "fp32_from_fp16");
    return (state && state->kind == VALUE_DICT && state->list.count) || (masters && masters->kind == VALUE_LIST && masters->list.count);
}

bool numbered_state_exists(const struct value *optimizer)
{
    if (optimizer->kind != VALUE_LIST)
        return holds_state(optimizer);
    for (size_t i = 0; i < optimizer->list.count; i++) {
        if (holds_state(optimizer->list.items[i]))
            return true;
    }
    return false;
}

static reshard_status take_group(const struct value *value, struct parameter_group *out, reshard_error *err)
{
    const struct value *params = value_dict_get(value, "params"), *decay = parameter_group_decay(value);
    if (!params || params->kind != VALUE_LIST || params->list.count > UINT32_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "a parameter group without a list 'params'");
    if (!decay) /* before multipliers, groups had the value itself */
        decay = value_dict_get(value, "weight_decay");
    if (!decay)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "a parameter group without 'wd_mult' and 'weight_decay': which parameters it holds cannot be told");
    *out = (struct parameter_group){ .has_decay = !weight_decay_is_zero(decay),
                                     .is_expert = value_dict_is_true(value, "is_expert_parallel"),
                                     .is_decoupled = parameter_group_is_decoupled(value),
                                     .count = (uint32_t)params->list.count };
    return RESHARD_OK;
}

/* A run without weight decay, of before multipliers: the first of its two groups is the one that would have it. */
static void decide_without_decay(const struct value *groups, struct state_reading *reading)
{
    if (reading->group_count != 2 || reading->groups[0].has_decay || reading->groups[1].has_decay)
        return;
    if (!parameter_group_decay(groups->list.items[0]))
        reading->groups[0].has_decay = true;
}

static reshard_status take_groups(struct state_reading *reading, const struct value *inner, reshard_error *err)
{
    const struct value *groups = value_dict_get(inner, "param_groups");
    if (!groups || groups->kind != VALUE_LIST)
        return error_set(err, RESHARD_ERR_FORMAT, "the optimizer has no list 'param_groups'");
    reading->groups = array_zeroed(groups->list.count, sizeof(*reading->groups));
    if (!reading->groups)
        return error_set_memory(err);
    for (size_t i = 0; i < groups->list.count; i++) {
        reshard_status status = take_group(groups->list.items[i], &reading->groups[i], err);
        if (status)
            return status;
        reading->group_count++;
    }
    decide_without_decay(groups, reading);
    return parameter_groups_relate(reading->parameters, reading->count, reading->is_expert, reading->groups, reading->group_count,
                                   &reading->parameter_of, err);
}

/* ---- pieces ---- */

static reshard_status numbered_add_tensor(struct state_reading *reading, uint32_t parameter, struct str state, const struct value *value,
                                          reshard_error *err)
{
    const struct rank_parameter *info = &reading->parameters[parameter];
    if (!value->tensor || value->tensor > reading->archive->tensor_count) {
        if (str_is(state, STEP_STATE))
            return RESHARD_OK;
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s': state '%.*s' is %s, expected a tensor", STR_ARG(info->name), STR_ARG(state),
                         value_kind_name(value));
    }
    const struct torch_tensor *tensor = &reading->archive->tensors[value->tensor - 1];
    if (tensor->rank == 0 && str_is(state, STEP_STATE))
        return RESHARD_OK;
    bool same =
        tensor->rank == info->rank && (info->rank == 0 || !memcmp(tensor->shape, info->shape, (size_t)info->rank * sizeof(*info->shape)));
    if (!same || !strides_are_row_major(tensor->rank, tensor->shape, tensor->strides))
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "'%.*s': state '%.*s' is of another shape than the parameter: the order of parameters is not the expected one",
                         STR_ARG(info->name), STR_ARG(state));
    struct state_piece piece = { .parameter = parameter, .tensor = value->tensor - 1, .state = state };
    return state_pieces_add(reading->out, &piece, err);
}

static reshard_status add_states(struct state_reading *reading, const struct value *inner, reshard_error *err)
{
    const struct value *state = value_dict_get(inner, "state");
    uint64_t total = 0;
    for (uint32_t i = 0; i < reading->group_count; i++)
        total += reading->groups[i].count;
    if (!state || state->kind != VALUE_DICT)
        return error_set(err, RESHARD_ERR_FORMAT, "the optimizer has no dict 'state'");
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < state->list.count && !status; i += 2) {
        const struct value *entry = state->list.items[i + 1];
        int64_t number;
        if (!value_as_int(state->list.items[i], &number) || number < 0 || (uint64_t)number >= total)
            return error_set(err, RESHARD_ERR_FORMAT, "a key of the optimizer's 'state' is no number of one of its %" PRIu64 " parameters",
                             total);
        if (entry->kind != VALUE_DICT)
            return error_set(err, RESHARD_ERR_FORMAT, "state %" PRId64 " is %s, expected a dict", number, value_kind_name(entry));
        for (size_t k = 0; k + 1 < entry->list.count && !status; k += 2) {
            struct str name;
            if (!value_as_str(entry->list.items[k], &name))
                return error_set(err, RESHARD_ERR_FORMAT, "state %" PRId64 " has a key that is no string", number);
            status = numbered_add_tensor(reading, reading->parameter_of[number], name, entry->list.items[k + 1], err);
        }
    }
    return status;
}

/* Masters exist for the parameters of 16 bits only; a group's list skips the others. */
static reshard_status add_masters_of(struct state_reading *reading, uint32_t group, uint32_t first, const struct value *list,
                                     reshard_error *err)
{
    size_t used = 0;
    reshard_status status = RESHARD_OK;
    if (list->kind != VALUE_LIST)
        return error_set(err, RESHARD_ERR_FORMAT, "master parameters of group %" PRIu32 " are %s, expected a list", group,
                         value_kind_name(list));
    for (uint32_t i = 0; i < reading->groups[group].count && !status; i++) {
        uint32_t parameter = reading->parameter_of[first + i];
        if (dtype_info(reading->parameters[parameter].param_dtype)->bits != 16)
            continue;
        if (used == list->list.count)
            return error_set(err, RESHARD_ERR_FORMAT, "group %" PRIu32 " has %zu master parameters, fewer than its parameters of 16 bits",
                             group, used);
        status = numbered_add_tensor(reading, parameter, STR(STATE_PLAIN_MASTER), list->list.items[used++], err);
    }
    if (!status && used != list->list.count)
        status = error_set(err, RESHARD_ERR_FORMAT, "group %" PRIu32 " has %zu master parameters and %zu parameters of 16 bits", group,
                           list->list.count, used);
    return status;
}

static reshard_status add_masters(struct state_reading *reading, const struct value *optimizer, reshard_error *err)
{
    const struct value *masters = numbered_first_member(optimizer, "fp32_from_fp16_params", "fp32_from_fp16");
    uint32_t first = 0;
    if (!masters)
        return RESHARD_OK;
    if (masters->kind != VALUE_LIST || masters->list.count != reading->group_count)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "the master parameters are not in as many lists as there are parameter groups (%" PRIu32 ")",
                         reading->group_count);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < reading->group_count && !status; i++) {
        status = add_masters_of(reading, i, first, masters->list.items[i], err);
        first += reading->groups[i].count;
    }
    return status;
}

static reshard_status read_one(struct state_reading *reading, const struct value *optimizer, reshard_error *err)
{
    const struct value *inner = inner_of(optimizer);
    reshard_status status = take_groups(reading, inner, err);
    if (!status)
        status = add_states(reading, inner, err);
    if (!status)
        status = add_masters(reading, optimizer, err);
    free(reading->groups);
    free(reading->parameter_of);
    return status;
}

/* Whether no group of the optimizer holds a parameter. */
static bool numbered_is_empty(const struct value *optimizer)
{
    const struct value *groups = value_dict_get(inner_of(optimizer), "param_groups"), *state = value_dict_get(inner_of(optimizer), "state");
    for (size_t i = 0; groups && groups->kind == VALUE_LIST && i < groups->list.count; i++) {
        const struct value *params = value_dict_get(groups->list.items[i], "params");
        if (!params || params->kind != VALUE_LIST || params->list.count > 0)
            return false;
    }
    return !state || (state->kind == VALUE_DICT && state->list.count == 0);
}

reshard_status numbered_state_read(const struct torch_archive *archive, const struct value *optimizer,
                                   const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err)
{
    struct value *alone[1] = { (struct value *)optimizer };
    bool is_list = optimizer->kind == VALUE_LIST;
    struct value **optimizers = is_list ? optimizer->list.items : alone;
    size_t optimizer_count = is_list ? optimizer->list.count : 1;
    bool has_dense = false, has_experts = false;
    for (uint32_t i = 0; i < count; i++) {
        has_dense |= !parameters[i].is_expert;
        has_experts |= parameters[i].is_expert;
    }
    /* A run with experts has two optimizers on every rank; that of experts is empty on stages that have none. */
    bool has_empty = optimizer_count == 2 && !(has_dense && has_experts) && numbered_is_empty(optimizers[has_dense]);
    if (!has_empty && optimizer_count != (size_t)has_dense + (size_t)has_experts)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the file holds %zu optimizers, the parameters belong to %d", optimizer_count,
                         has_dense + has_experts);
    for (size_t i = 0; i < optimizer_count; i++) {
        struct state_reading reading = {
            .archive = archive, .parameters = parameters, .count = count, .is_expert = !has_dense || i > 0, .out = out
        };
        if (has_empty && i == has_dense)
            continue;
        reshard_status status = read_one(&reading, optimizers[i], err);
        if (status) {
            if (is_list)
                error_prefix(err, "optimizer %zu", i);
            return status;
        }
    }
    return RESHARD_OK;
}
