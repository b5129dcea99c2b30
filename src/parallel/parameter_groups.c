/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/parameter_groups.h"

#include "base/array.h"

#include <inttypes.h>
#include <stdlib.h>

bool parameter_decays(struct str name, int rank)
{
    return rank != 1 && !str_ends_with(name, ".bias");
}

bool parameter_has_decay(const struct rank_parameter *parameter)
{
    return parameter_decays(parameter->name, parameter->rank);
}

struct value *parameter_group_list(const struct value *optimizer)
{
    const struct value *inner = optimizer->kind == VALUE_DICT ? value_dict_get(optimizer, "optimizer") : NULL;
    const struct value *dict = inner && inner->kind == VALUE_DICT ? inner : optimizer;
    struct value *groups = dict->kind == VALUE_DICT ? (struct value *)value_dict_get(dict, "param_groups") : NULL;
    return groups && groups->kind == VALUE_LIST ? groups : NULL;
}

const struct value *parameter_group_decay(const struct value *group)
{
    const struct value *decay = value_dict_get(group, "wd_mult");
    return decay ? decay : value_dict_get(group, "pre_wd_mult");
}

bool weight_decay_is_zero(const struct value *decay)
{
    int64_t number;
    return decay->kind == VALUE_FLOAT ? decay->real == 0.0 : value_as_int(decay, &number) && number == 0;
}

bool parameter_group_has_decay(const struct value *group)
{
    const struct value *decay = parameter_group_decay(group);
    return decay && !weight_decay_is_zero(decay);
}

bool parameter_group_is_decoupled(const struct value *group)
{
    const struct value *is_default = value_dict_get(group, "default_config");
    return value_dict_is_true(group, "is_decoupled_lr") || (is_default && is_default->kind == VALUE_BOOL && !is_default->boolean);
}

bool parameter_group_is_of_embeddings(const struct value *group, const struct value *arguments)
{
    const struct value *rate = arguments ? value_dict_get(arguments, "decoupled_lr") : NULL;
    return value_dict_is_true(group, "is_decoupled_lr") || (parameter_group_is_decoupled(group) && rate && rate->kind != VALUE_NONE);
}

static bool has_decoupled(const struct parameter_group *groups, uint32_t group_count)
{
    for (uint32_t i = 0; i < group_count; i++) {
        if (groups[i].is_decoupled)
            return true;
    }
    return false;
}

/* Members of a group, in order, into *next. */
static uint32_t groups_deal(const struct rank_parameter *parameters, uint32_t count, bool is_expert, const struct parameter_group *group,
                            bool some_decoupled, uint32_t *next, uint32_t room)
{
    uint32_t members = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct rank_parameter *parameter = &parameters[i];
        bool is_decoupled = some_decoupled && parameter->is_embedding;
        if (parameter->is_expert != is_expert || parameter_has_decay(parameter) != group->has_decay || is_decoupled != group->is_decoupled)
            continue;
        if (members < room)
            next[members] = i;
        members++;
    }
    return members;
}

static uint32_t count_members(const struct rank_parameter *parameters, uint32_t count, bool is_expert)
{
    uint32_t members = 0;
    for (uint32_t i = 0; i < count; i++)
        members += parameters[i].is_expert == is_expert;
    return members;
}

reshard_status parameter_group_take_kind(unsigned *seen, uint32_t number, bool has_decay, bool is_decoupled, reshard_error *err)
{
    unsigned kind = 1U << ((has_decay ? 1 : 0) + (is_decoupled ? 2 : 0));
    if (*seen & kind)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "parameter group %" PRIu32 ": a second group %s weight decay%s: what tells them apart is not in the file", number,
                         has_decay ? "with" : "without", is_decoupled ? " and with its own learning rate" : "");
    *seen |= kind;
    return RESHARD_OK;
}

static reshard_status check_kinds(const struct parameter_group *groups, uint32_t group_count, bool is_expert, reshard_error *err)
{
    unsigned seen = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < group_count && !status; i++) {
        if (groups[i].is_expert != is_expert)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "parameter group %" PRIu32 " is %s in an optimizer of %s", i,
                             groups[i].is_expert ? "of experts" : "not of experts", is_expert ? "experts" : "other parameters");
        status = parameter_group_take_kind(&seen, i, groups[i].has_decay, groups[i].is_decoupled, err);
    }
    return status;
}

reshard_status parameter_groups_relate(const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                       const struct parameter_group *groups, uint32_t group_count, uint32_t **parameter_of,
                                       reshard_error *err)
{
    *parameter_of = NULL;
    reshard_status status = check_kinds(groups, group_count, is_expert, err);
    if (status)
        return status;
    bool some_decoupled = has_decoupled(groups, group_count);
    uint32_t total = count_members(parameters, count, is_expert), done = 0;
    uint32_t *made = array_zeroed(total, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    for (uint32_t i = 0; i < group_count && !status; i++) {
        uint32_t members = groups_deal(parameters, count, is_expert, &groups[i], some_decoupled, made + done, total - done);
        if (members != groups[i].count)
            status = error_set(err, RESHARD_ERR_UNSUPPORTED,
                               "parameter group %" PRIu32 " (%s weight decay) has %" PRIu32 " parameters, by name and shape %" PRIu32
                               " of the model belong to it",
                               i, groups[i].has_decay ? "with" : "without", groups[i].count, members);
        done += members;
    }
    if (!status && done != total)
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "the optimizer's groups hold %" PRIu32 " parameters, the model has %" PRIu32, done,
                           total);
    if (status)
        free(made);
    else
        *parameter_of = made;
    return status;
}
