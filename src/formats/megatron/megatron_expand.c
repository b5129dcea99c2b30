/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a distributed checkpoint taken apart: where layers and experts lie along axes, each is a parameter of its own, under the
 * name that a rank registers it by.
 */
#include "formats/megatron/megatron_target.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"

#include <inttypes.h>

static bool is_weight(const struct layout_request *request, uint32_t index)
{
    const struct catalog_tensor *tensor = &request->wanted->tensors[index];
    return !(tensor->flags & TENSOR_HIDDEN) && !state_key_is_any(tensor->key);
}

static bool drops_numbers(const struct parameter_name *name)
{
    for (int i = 0; i < name->number_count; i++)
        if (name->numbers[i] < 0)
            return true;
    return false;
}

reshard_status megatron_find_names(const struct layout_request *request, struct megatron_target *state, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && !state->is_distributed && i < request->wanted->tensor_count; i++) {
        struct parameter_name name;
        struct str key = request->wanted->tensors[i].key;
        if (!is_weight(request, i) || !parameter_key_read(&state->names, state->conditions, key, &name))
            continue;
        state->is_distributed = drops_numbers(&name);
        buffer_clear(&text);
        if (!state->is_distributed)
            parameter_name_write(&state->names, &name, &text);
        if (text.failed)
            status = error_set_memory(err);
        else if (!state->is_distributed)
            state->is_distributed = !str_equal(buffer_str(&text), key);
    }
    buffer_release(&text);
    return status;
}

static reshard_status fail_name(struct str key, reshard_error *err)
{
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': how a rank registers it is not known", STR_ARG(key));
    error_object(err, "%.*s", STR_ARG(key));
    error_hint(err, "reshard_map_options.rules NAME or reshard_map_options.texts FILE relates it to a name of a rank's parameters");
    return RESHARD_ERR_UNSUPPORTED;
}

struct expanding {
    const struct layout_request *request;
    struct megatron_target *state;
    struct target_parameter parameter;
    struct parameter_name name;
    int dropped[NAME_NUMBERS_MAX]; /* numbers that axes stand for */
    struct buffer text;
};

/* The parameter at one place of the axes in front. */
static reshard_status emit_slice(struct expanding *expanding, megatron_parameter_sink emit, void *context, reshard_error *err)
{
    struct megatron_target *state = expanding->state;
    struct target_parameter *parameter = &expanding->parameter;
    struct path_part *part = arena_alloc(&state->arena, sizeof(*part));
    for (int i = 0; i < parameter->lead_count; i++)
        expanding->name.numbers[expanding->dropped[i]] = parameter->lead[i];
    buffer_clear(&expanding->text);
    parameter_name_write(&state->names, &expanding->name, &expanding->text);
    if (!part || expanding->text.failed || !arena_str(&state->arena, buffer_str(&expanding->text), &parameter->name))
        return error_set_memory(err);
    *part = (struct path_part){ .kind = PATH_KEY, .key = parameter->name };
    parameter->parts = part;
    parameter->part_count = 1;
    return emit(parameter, context, err);
}

static reshard_status expand_tensor(struct expanding *expanding, uint32_t index, megatron_parameter_sink emit, void *context,
                                    reshard_error *err)
{
    struct megatron_target *state = expanding->state;
    const struct catalog *wanted = expanding->request->wanted;
    const struct catalog_tensor *tensor = &wanted->tensors[index];
    const int64_t *shape = catalog_vector_at(wanted, tensor->shape);
    expanding->parameter = (struct target_parameter){ .wanted = index };
    if (!parameter_key_read(&state->names, state->conditions, tensor->key, &expanding->name))
        return fail_name(tensor->key, err);
    for (int i = 0; i < expanding->name.number_count; i++) {
        if (expanding->name.numbers[i] >= 0)
            continue;
        if (expanding->parameter.lead_count == TARGET_LEAD_MAX || expanding->parameter.lead_count >= tensor->rank)
            return fail_name(tensor->key, err);
        expanding->dropped[expanding->parameter.lead_count++] = i;
    }
    /* What only the rest of a name is known of may have any form: experts of one matrix are not what an axis of experts is. */
    struct partition_key key;
    bool has_experts = partition_key_read(&state->rules, tensor->key, &key) && partition_rule_has_experts(key.rule);
    if (state->names.lines[expanding->name.line].has_rest && has_experts)
        return fail_name(tensor->key, err);
    int64_t *lead = expanding->parameter.lead;
    int count = expanding->parameter.lead_count;
    for (int i = 0; i < count; i++)
        if (shape[i] == 0)
            return RESHARD_OK;
    for (;;) {
        reshard_status status = emit_slice(expanding, emit, context, err);
        if (status)
            return status;
        int axis = count - 1;
        while (axis >= 0 && ++lead[axis] == shape[axis])
            lead[axis--] = 0;
        if (axis < 0)
            return RESHARD_OK;
    }
}

reshard_status megatron_each_parameter(const struct layout_request *request, struct megatron_target *state, megatron_parameter_sink emit,
                                       void *context, reshard_error *err)
{
    struct expanding expanding = { .request = request, .state = state };
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < wanted->tensor_count; i++) {
        if (!is_weight(request, i))
            continue;
        if (state->is_distributed) {
            status = expand_tensor(&expanding, i, emit, context, err);
            continue;
        }
        struct path_part *single = arena_alloc(&state->arena, sizeof(*single));
        if (!single)
            return error_set_memory(err);
        struct target_parameter parameter = { .wanted = i, .name = wanted->tensors[i].key };
        parameter.part_count = catalog_tensor_path(wanted, &wanted->tensors[i], single, &parameter.parts);
        status = emit(&parameter, context, err);
    }
    buffer_release(&expanding.text);
    return status;
}
