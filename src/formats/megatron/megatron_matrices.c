/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices of experts in a target: where the run that will load the files has one matrix for all experts of a rank, the parameters of
 * single experts become runs of it, one after another, each with its axes exchanged.
 */
#include "formats/megatron/megatron_target.h"

#include <inttypes.h>
#include <stdlib.h>

static int64_t matrices_local_experts(const struct megatron_target *state)
{
    return state->experts / state->layout.ep;
}

/* ---- finding them ---- */

static reshard_status matrices_note_member(struct megatron_target *state, uint32_t index, struct name_map *names, struct buffer *text,
                                           reshard_error *err)
{
    struct target_parameter *parameter = &state->parameters[index];
    size_t prefix;
    bool is_new;
    const struct partition_grouping *grouping = partition_grouping_of(&state->rules, parameter->name, &parameter->key, &prefix);
    if (!grouping)
        return RESHARD_OK;
    buffer_clear(text);
    buffer_append_str(text, (struct str){ parameter->name.data, prefix });
    buffer_append_str(text, grouping->matrix);
    uint32_t number = text->failed ? NAME_NONE : name_map_intern(names, buffer_str(text), &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    struct target_matrix *matrix = &state->matrices[number];
    if (is_new) {
        *matrix = (struct target_matrix){ 0 };
        if (!arena_str(&state->arena, buffer_str(text), &matrix->name))
            return error_set_memory(err);
        state->matrix_count++;
    }
    parameter->matrix = number + 1;
    matrix->count++;
    return RESHARD_OK;
}

static bool are_alike(const struct catalog *wanted, const struct target_parameter *a, const struct target_parameter *b)
{
    return wanted->tensors[a->wanted].dtype == wanted->tensors[b->wanted].dtype && a->cut.rank == 2 && b->cut.rank == 2 &&
           a->stage == b->stage && a->cut.local[0] == b->cut.local[0] && a->cut.local[1] == b->cut.local[1];
}

/* All experts of the model are in it, and alike; sets its shape. */
static reshard_status finish_matrix(const struct catalog *wanted, const struct megatron_target *state, struct target_matrix *matrix,
                                    reshard_error *err)
{
    const uint32_t *members = &state->matrix_members[matrix->first];
    const struct target_parameter *first = &state->parameters[members[0]];
    struct partition_key key;
    int64_t volume, total;
    if (matrix->count != state->experts)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is to hold %" PRId64 " experts, found %" PRIu32, STR_ARG(matrix->name),
                         state->experts, matrix->count);
    for (uint32_t i = 0; i < matrix->count; i++) {
        const struct target_parameter *member = &state->parameters[members[i]];
        if (!are_alike(wanted, first, member))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': experts of one matrix must be alike", STR_ARG(member->name));
    }
    if (!partition_key_read(&state->rules, matrix->name, &key) || !key.rule->is_grouped ||
        __builtin_mul_overflow(first->cut.local[0], first->cut.local[1], &volume) ||
        __builtin_mul_overflow(volume, matrices_local_experts(state), &total))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': experts that do not make a matrix", STR_ARG(first->name));
    bool is_wide = key.rule->axis == 1;
    matrix->shape[0] = first->cut.local[1] * (is_wide ? 1 : matrices_local_experts(state));
    matrix->shape[1] = first->cut.local[0] * (is_wide ? matrices_local_experts(state) : 1);
    return RESHARD_OK;
}

/* Puts the members of all matrices in a row, by number of the expert. */
static reshard_status matrices_list_members(struct megatron_target *state, reshard_error *err)
{
    uint32_t total = 0;
    for (uint32_t i = 0; i < state->matrix_count; i++) {
        state->matrices[i].first = total;
        total += state->matrices[i].count;
    }
    state->matrix_members = arena_array(&state->arena, total, sizeof(*state->matrix_members));
    if (!state->matrix_members)
        return error_set_memory(err);
    for (uint32_t i = 0; i < total; i++)
        state->matrix_members[i] = TORCH_NONE;
    for (uint32_t i = 0; i < state->parameter_count; i++) {
        const struct target_parameter *parameter = &state->parameters[i];
        if (parameter->matrix == 0)
            continue;
        const struct target_matrix *matrix = &state->matrices[parameter->matrix - 1];
        if (parameter->key.expert >= matrix->count || state->matrix_members[matrix->first + parameter->key.expert] != TORCH_NONE)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': '%.*s' is to hold %" PRId64 " experts, found %" PRIu32,
                             STR_ARG(parameter->name), STR_ARG(matrix->name), state->experts, matrix->count);
        state->matrix_members[matrix->first + parameter->key.expert] = i;
    }
    return RESHARD_OK;
}

reshard_status megatron_find_matrices(const struct layout_request *request, struct megatron_target *state, reshard_error *err)
{
    struct name_map names = { 0 };
    struct buffer text = { 0 };
    if (!state->is_grouped || state->experts <= 0)
        return RESHARD_OK;
    state->matrices = arena_array(&state->arena, state->parameter_count, sizeof(*state->matrices));
    reshard_status status = state->matrices ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < state->parameter_count; i++)
        status = matrices_note_member(state, i, &names, &text, err);
    name_map_release(&names);
    buffer_release(&text);
    if (!status)
        status = matrices_list_members(state, err);
    for (uint32_t i = 0; !status && i < state->matrix_count; i++)
        status = finish_matrix(request->wanted, state, &state->matrices[i], err);
    return status;
}

/* ---- using them ---- */

bool megatron_stands_for_matrix(const struct megatron_target *state, const struct target_parameter *parameter)
{
    return parameter->matrix == 0 || parameter->key.expert % matrices_local_experts(state) == 0;
}

uint32_t megatron_place_count(const struct megatron_target *state, uint32_t parameter)
{
    return state->parameters[parameter].matrix ? (uint32_t)matrices_local_experts(state) : 1;
}

void megatron_put_places(const struct megatron_target *state, uint32_t parameter, const uint32_t *tensors, int64_t offset,
                         struct record_place *out)
{
    const struct target_parameter *first = &state->parameters[parameter];
    const struct target_matrix *matrix = first->matrix ? &state->matrices[first->matrix - 1] : NULL;
    uint32_t count = megatron_place_count(state, parameter);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t member = matrix ? state->matrix_members[matrix->first + (uint32_t)first->key.expert + i] : parameter;
        uint32_t wanted = state->parameters[member].wanted;
        int64_t volume = box_volume(first->cut.rank, first->cut.local);
        out[i] = (struct record_place){ .parameter = member,
                                        .tensor = tensors ? tensors[wanted] - 1 : wanted,
                                        .offset = offset + (int64_t)i * volume };
    }
}

reshard_status megatron_matrix_record(const struct layout_request *request, struct megatron_target *state, uint32_t parameter,
                                      const uint32_t *tensors, uint32_t *record, reshard_error *err)
{
    const struct target_matrix *matrix = &state->matrices[state->parameters[parameter].matrix - 1];
    uint32_t count = megatron_place_count(state, parameter);
    struct record_place *places = arena_array(&state->arena, count, sizeof(*places));
    uint64_t bytes;
    if (!places)
        return error_set_memory(err);
    megatron_put_places(state, parameter, tensors, 0, places);
    enum dtype dtype = request->wanted->tensors[places[0].tensor].dtype;
    for (uint32_t i = 1; i < count; i++) {
        if (request->wanted->tensors[places[i].tensor].dtype != dtype)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': experts of one matrix must be alike",
                             STR_ARG(state->parameters[places[i].parameter].name));
    }
    if (!dtype_bytes(dtype, (uint64_t)(matrix->shape[0] * matrix->shape[1]), &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' is too large", STR_ARG(matrix->name));
    reshard_status status = megatron_record_add(state, places[0].tensor, bytes, record, err);
    if (status)
        return status;
    struct target_record *made = &state->records[*record];
    made->places = places;
    made->place_count = count;
    made->count = matrix->shape[0] * matrix->shape[1];
    memcpy(made->matrix, matrix->shape, sizeof(made->matrix));
    return RESHARD_OK;
}
