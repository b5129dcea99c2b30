/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where experts are apart (training_args.h) Megatron has two optimizers, the second one for them, else one for everything. A run asks for
 * the parameter groups of the optimizers that it has, so their number follows the target's layout. Groups hold the same settings in both:
 * two optimizers become one by leaving out the experts' groups, and one becomes two by copying the groups that experts need. Which
 * parameters are in a group is not stored.
 */
#include "formats/mcore/mcore_items.h"

#include "formats/mcore/mcore_target.h"
#include "formats/shared/value_edit.h"
#include "parallel/parameter_groups.h"
#include "parallel/state_keys.h"
#include "parallel/training_args.h"

bool mcore_experts_are_apart(const struct mcore_sizes *sizes)
{
    return experts_are_apart(sizes->parts_by_etp, sizes->tp, sizes->ep, sizes->etp);
}

bool mcore_optimizers_change(const struct target *target)
{
    const struct mcore_target *state = mcore_target_state(target);
    const struct mcore_sizes *from = &state->source_sizes;
    return from->is_known && mcore_experts_are_apart(from) != mcore_experts_are_apart(&state->sizes);
}

/* What experts of the wanted model have. */
struct expert_kinds {
    bool has_matrices, has_biases;
};

static struct expert_kinds find_experts(const struct catalog *wanted)
{
    struct expert_kinds found = { 0 };
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        if (tensor->flags & TENSOR_HIDDEN || !memmem(tensor->key.data, tensor->key.size, ".mlp.experts.", 13))
            continue;
        bool is_bias = str_ends_with(tensor->key, ".bias");
        found.has_biases = found.has_biases || is_bias;
        found.has_matrices = found.has_matrices || !is_bias;
    }
    return found;
}

/* Releases up to 0.13 put chained_<k>. before the names of state, k being the optimizer. */
static struct str find_numbered_state(const struct catalog *wanted)
{
    for (uint32_t i = 0; i < wanted->tensor_count; i++) {
        struct state_key key;
        if (!(wanted->tensors[i].flags & TENSOR_HIDDEN) && state_key_read(wanted->tensors[i].key, &key) && key.chain >= 0)
            return wanted->tensors[i].key;
    }
    return (struct str){ NULL, 0 };
}

/* Of a copy of all groups, those that experts need, as the experts' own. */
static bool keep_groups_of_experts(struct value_graph *graph, struct value *groups, struct expert_kinds kinds,
                                   const struct value *arguments)
{
    size_t kept = 0;
    for (size_t i = 0; i < groups->list.count; i++) {
        struct value *group = groups->list.items[i];
        if (group->kind != VALUE_DICT || !(parameter_group_has_decay(group) ? kinds.has_matrices : kinds.has_biases) ||
            parameter_group_is_of_embeddings(group, arguments))
            continue;
        struct value_edit editing = { .graph = graph, .members = group };
        value_edit_bool(&editing, "is_expert_parallel", true);
        if (editing.failed)
            return false;
        groups->list.items[kept++] = group;
    }
    groups->list.count = kept;
    return true;
}

static reshard_status split(const struct layout_request *request, struct mcore_target *state, struct expert_kinds kinds,
                            struct value **optimizer, reshard_error *err)
{
    const struct catalog_item *args;
    reshard_status status = layout_item_named(request, "args", &args, err);
    if (status)
        return status;
    struct value_graph *graph = &state->dcp.extra;
    struct value *experts = value_copy(graph, *optimizer, graph->count), *groups = experts ? parameter_group_list(experts) : NULL;
    if (experts && !groups)
        return RESHARD_OK;
    struct value **items = arena_array(&graph->arena, 4, sizeof(*items));
    if (!items || !experts || !keep_groups_of_experts(graph, groups, kinds, args && args->value ? namespace_members(args->value) : NULL))
        return error_set_memory(err);
    items[0] = value_new_int(graph, 0);
    items[1] = *optimizer;
    items[2] = value_new_int(graph, 1);
    items[3] = experts;
    *optimizer = items[0] && items[2] ? value_new_list(graph, VALUE_DICT, items, 4) : NULL;
    return *optimizer ? RESHARD_OK : error_set_memory(err);
}

/* ---- several optimizers ---- */

static bool has_groups_only(const struct value *optimizer, bool of_experts)
{
    const struct value *groups = parameter_group_list(optimizer);
    for (size_t i = 0; groups && i < groups->list.count; i++) {
        if (value_dict_is_true(groups->list.items[i], "is_expert_parallel") != of_experts)
            return false;
    }
    return true;
}

/* Whether those by number are two: one without experts, and one for them. Others are an optimizer's parts, such as Muon and Adam. */
static bool are_known(const struct value *numbered)
{
    return numbered->list.count == 4 && has_groups_only(numbered->list.items[1], false) && has_groups_only(numbered->list.items[3], true);
}

static reshard_status refuse_several(const struct value *numbered, bool are_apart, reshard_error *err)
{
    struct buffer text = { 0 };
    for (size_t i = 0; i + 1 < numbered->list.count; i += 2) {
        const struct value *groups = parameter_group_list(numbered->list.items[i + 1]);
        const struct value *first = groups && groups->list.count ? groups->list.items[0] : NULL,
                           *kind = first && first->kind == VALUE_DICT ? value_dict_get(first, "optimizer") : NULL;
        struct str name = STR("of no known kind");
        if (kind)
            value_as_str(kind, &name);
        buffer_printf(&text, "%s%zu %.*s%s", i ? ", " : "", i / 2, STR_ARG(name),
                      first && value_dict_is_true(first, "is_expert_parallel") ? " for experts" : "");
    }
    error_set(err, RESHARD_ERR_UNSUPPORTED,
              "the source has %zu optimizers (%.*s), the target's run %s: known is how one of experts and one of the rest follow it",
              numbered->list.count / 2, STR_ARG(buffer_str(&text)), are_apart ? "has experts apart" : "has none for experts");
    buffer_release(&text);
    error_object(err, "optimizer");
    error_hint(err, "reshard_convert_options.exclude 'optimizer*' leaves them and their state out");
    return RESHARD_ERR_UNSUPPORTED;
}

static void drop_numbers_of(const struct value *optimizer)
{
    const struct value *groups = parameter_group_list(optimizer);
    for (size_t i = 0; groups && i < groups->list.count; i++) {
        if (groups->list.items[i]->kind == VALUE_DICT)
            value_edit_remove(groups->list.items[i], "params");
    }
}

void mcore_groups_drop_numbers(const struct value *optimizer)
{
    drop_numbers_of(optimizer);
    bool is_numbered = optimizer->kind == VALUE_DICT && optimizer->list.count >= 2 && optimizer->list.items[0]->kind == VALUE_INT;
    for (size_t i = 1; is_numbered && i < optimizer->list.count; i += 2)
        drop_numbers_of(optimizer->list.items[i]);
}

reshard_status mcore_optimizers_regroup(const struct layout_request *request, struct target *target, struct value **optimizer,
                                       reshard_error *err)
{
    struct mcore_target *state = mcore_target_state(target);
    struct expert_kinds kinds = find_experts(request->wanted);
    const struct value *value = *optimizer;
    if (!mcore_optimizers_change(target) || value->kind != VALUE_DICT || !(kinds.has_matrices || kinds.has_biases))
        return RESHARD_OK;
    const bool are_apart = mcore_experts_are_apart(&state->sizes);
    bool is_numbered = value->list.count >= 2 && value->list.items[0]->kind == VALUE_INT;
    struct str numbered = find_numbered_state(request->wanted);
    if (numbered.size && !are_apart) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is named after one of several optimizers, and the target's run has one",
                  STR_ARG(numbered));
        error_hint(err, "reshard_convert_options.to megatron writes such state under any layout; reshard_convert_options.exclude "
                        "'chained_*' leaves it out");
        return RESHARD_ERR_UNSUPPORTED;
    }
    if (is_numbered && !are_known(value))
        return refuse_several(value, are_apart, err);
    if (is_numbered && !are_apart) {
        *optimizer = value->list.items[1];
        return target_note_changed(target, NOTE_OPTIMIZER, STR("optimizer"), err,
                                   "one for all parameters, with the settings of the first of %zu: experts have none of their own there",
                                   value->list.count / 2);
    }
    if (is_numbered || !are_apart)
        return RESHARD_OK;
    reshard_status status = split(request, state, kinds, optimizer, err);
    return status ? status
                  : target_note_changed(target, NOTE_OPTIMIZER, STR("optimizer"), err,
                                        "a second one for experts, with the same settings: they have one of their own there");
}
