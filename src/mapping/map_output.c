/* SPDX-License-Identifier: Apache-2.0 */
/* What the statements made, compared with what the target wants: every tensor of it becomes a list of copies, or a diagnosis. */
#include "mapping/map_engine_parts.h"

#include <stdio.h>

#include "base/array.h"

/* Where a diagnosis about a target weight points: at the statement that made it, or at the end of the text. */
static struct map_span span_of(const struct map_machine *machine, const struct map_variable *variable)
{
    uint32_t end = machine->input->text_size;
    return variable && variable->statement ? variable->statement->span : (struct map_span){ end, 0 };
}

static reshard_status map_output_append_copy(struct map_result *result, struct map_copy copy, reshard_error *err)
{
    if (!ARRAY_ROOM(result->copies, result->copy_count, result->copy_capacity))
        return error_set_memory(err);
    result->copies[result->copy_count++] = copy;
    return RESHARD_OK;
}

/* ---- outputs, where no target is given ---- */

/* The type behind all casts, on which the pieces must agree; MAP_DTYPE_NONE: there is no weight, or it was diagnosed. */
static enum dtype output_dtype(struct map_machine *machine, struct str name, const struct map_variable *variable)
{
    enum dtype dtype = variable->piece_count ? map_piece_dtype(&variable->pieces[0]) : variable->dtype;
    for (uint32_t i = 0; i < variable->piece_count; i++) {
        const struct map_piece *piece = &variable->pieces[i];
        if (piece->dtype == MAP_DTYPE_NONE)
            return MAP_DTYPE_NONE;
        if (map_piece_dtype(piece) != dtype) {
            map_machine_fail(machine, span_of(machine, variable), "cast all parts to one type", "a part of '%.*s' is %s, another %s",
                             STR_ARG(name), dtype_info(dtype)->name, dtype_info(map_piece_dtype(piece))->name);
            return MAP_DTYPE_NONE;
        }
    }
    return dtype;
}

/* The tensor that an output's state takes its type (and a beta power its shape) from: NULL if a contributing weight lacks the state. */
static const struct map_tensor *map_output_state_tensor(const struct map_machine *machine, const struct map_variable *variable,
                                                        enum map_state state)
{
    const struct map_space *source = machine->input->source;
    const struct map_tensor *found = NULL;
    for (uint32_t i = 0; i < variable->piece_count; i++) {
        uint32_t tensor = source->weights[variable->pieces[i].weight].tensors[state];
        if (tensor == MAP_NONE && map_state_is_shaped[state])
            return NULL;
        if (!found && tensor != MAP_NONE)
            found = &source->tensors[tensor];
    }
    return found;
}

/* A state of an output, spelled as the source spells it. */
static reshard_status add_output_state(struct map_machine *machine, struct str name, const struct map_tensor *tensor, int rank,
                                       const int64_t *shape, reshard_error *err)
{
    buffer_clear(&machine->text);
    if (!map_space_state_key(machine->input->source, tensor, name, &machine->text))
        return error_set_memory(err);
    return map_space_add(&machine->result->made, buffer_str(&machine->text), tensor->dtype, rank, shape, NULL, 0, err);
}

static reshard_status add_output(struct map_machine *machine, struct str name, const struct map_variable *variable, reshard_error *err)
{
    enum dtype dtype = output_dtype(machine, name, variable);
    reshard_status status = RESHARD_OK;
    if (dtype != MAP_DTYPE_NONE)
        status = map_space_add(&machine->result->made, name, dtype, variable->rank, variable->shape, NULL, 0, err);
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT && !status; state++) {
        const struct map_tensor *tensor = map_output_state_tensor(machine, variable, state);
        if (tensor && map_state_is_shaped[state])
            status = add_output_state(machine, name, tensor, variable->rank, variable->shape, err);
        else if (tensor)
            status = add_output_state(machine, name, tensor, tensor->rank, tensor->shape, err);
    }
    return status;
}

/* What is assigned and not used, and the weights of the source that nothing used or removed. */
static reshard_status make_target(struct map_machine *machine, reshard_error *err)
{
    const struct map_space *source = machine->input->source;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < source->sorted_count && !status; i++) {
        uint32_t weight = source->sorted[i];
        const struct map_symbol *symbol = map_machine_symbol(machine, source->weights[weight].name);
        const struct map_variable *variable;
        if (machine->result->used[weight] || machine->result->removed[weight] || (symbol && symbol->variable) ||
            !map_space_shaped(source, weight))
            continue;
        status = map_machine_input(machine, weight, &variable, err);
        if (!status)
            status = add_output(machine, source->weights[weight].name, variable, err);
    }
    for (uint32_t i = 0; i < machine->names.count && !status; i++) {
        const struct map_symbol *symbol = &machine->symbols[i];
        struct str name = name_map_at(&machine->names, i);
        if (symbol->variable && !symbol->is_consumed && !symbol->is_removed && name.data[0] != MAP_MADE_MARK)
            status = add_output(machine, name, symbol->variable, err);
    }
    return status ? status : map_space_seal(&machine->result->made, err);
}

/* ---- what each weight of the target is made of ---- */

static void fail_missing(struct map_machine *machine, struct str name)
{
    struct str near = map_machine_nearest(machine, name);
    char hint[500];
    snprintf(hint, sizeof(hint),
             "write `_ -> %.*s` if it is to keep its initial value (in a file, what reshard_convert_options.missing says)%s%.*s%s",
             STR_ARG(name), near.size ? "; the source has '" : "", STR_ARG(near), near.size ? "'" : "");
    map_machine_fail(machine, span_of(machine, NULL), hint,
                     "the target's '%.*s' has no source: no statement assigns it, and the source has no such weight", STR_ARG(name));
}

static reshard_status find_outcome(struct map_machine *machine, uint32_t weight, bool *is_good, reshard_error *err)
{
    struct map_result *result = machine->result;
    struct str name = result->target->weights[weight].name;
    const struct map_symbol *symbol = map_machine_symbol(machine, name);
    struct map_outcome *outcome = &result->outcomes[weight];
    *is_good = true;
    if (symbol && symbol->variable && !symbol->is_removed) {
        *outcome = (struct map_outcome){ symbol->variable, MAP_ORIGIN_ASSIGNED };
        return RESHARD_OK;
    }
    /* Without a target there is nothing that it could have beforehand. */
    if (symbol && (symbol->is_removed || (symbol->is_kept && machine->input->target))) {
        *outcome = (struct map_outcome){ NULL, MAP_ORIGIN_KEPT };
        return RESHARD_OK;
    }
    uint32_t source = map_space_find(machine->input->source, name);
    *outcome = (struct map_outcome){ NULL, MAP_ORIGIN_IDENTITY };
    if (source == MAP_NONE) {
        fail_missing(machine, name);
        *is_good = false;
        return RESHARD_OK;
    }
    result->used[source] = true;
    return map_space_shaped(machine->input->source, source) ? map_machine_input(machine, source, &outcome->variable, err) : RESHARD_OK;
}

/* ---- copies ---- */

/* The tensor of a state that a piece is read from; NULL if it was diagnosed. */
static const struct map_tensor *piece_tensor(struct map_machine *machine, const struct map_tensor *target,
                                             const struct map_variable *variable, uint32_t weight)
{
    const struct map_space *source = machine->input->source;
    const struct map_tensor *shaped = map_space_shaped(source, weight);
    uint32_t index = source->weights[weight].tensors[target->state];
    struct str name = source->weights[weight].name;
    char a[SHAPE_TEXT_MAX], b[SHAPE_TEXT_MAX];
    if (index == MAP_NONE) {
        map_machine_fail(machine, span_of(machine, variable), NULL, "'%.*s' needs %s of '%.*s', which the source does not have",
                         STR_ARG(target->key), map_state_name[target->state], STR_ARG(name));
        return NULL;
    }
    const struct map_tensor *tensor = &source->tensors[index];
    if (!shape_equal(tensor->rank, tensor->shape, shaped->rank, shaped->shape)) {
        map_machine_fail(machine, span_of(machine, variable), NULL, "'%.*s' has shape %s, '%.*s' %s: a state has the shape of its weight",
                         STR_ARG(tensor->key), shape_text(tensor->rank, tensor->shape, ",", a), STR_ARG(shaped->key),
                         shape_text(shaped->rank, shaped->shape, ",", b));
        return NULL;
    }
    return tensor;
}

/* A weight must arrive with the target's type. A state is cast only where its type differs and the casts of its weight make it right. */
static bool find_casts(struct map_machine *machine, const struct map_tensor *target, const struct map_tensor *source,
                       const struct map_variable *variable, const struct map_piece *piece, const struct map_cast **out)
{
    enum dtype arriving = piece->casts ? piece->casts->dtype : source->dtype;
    *out = piece->casts;
    if (target->state != MAP_STATE_WEIGHT && source->dtype == target->dtype) {
        *out = NULL;
        return true;
    }
    if (arriving == target->dtype)
        return true;
    if (piece->casts)
        return map_machine_fail(machine, span_of(machine, variable), NULL, "the last cast makes a part of '%.*s' %s, the target is %s",
                                STR_ARG(target->key), dtype_info(arriving)->name, dtype_info(target->dtype)->name);
    char hint[64];
    snprintf(hint, sizeof(hint), "cast it in a statement: dtype=\"%s\"", dtype_info(target->dtype)->torch_name);
    return map_machine_fail(machine, span_of(machine, variable), hint, "'%.*s' is %s, the target's '%.*s' is %s, and no statement casts it",
                            STR_ARG(source->key), dtype_info(source->dtype)->name, STR_ARG(target->key), dtype_info(target->dtype)->name);
}

static reshard_status copy_pieces(struct map_machine *machine, uint32_t target_index, const struct map_tensor *target,
                                  const struct map_variable *variable, reshard_error *err)
{
    char a[SHAPE_TEXT_MAX], b[SHAPE_TEXT_MAX];
    if (!variable) {
        map_machine_fail(machine, span_of(machine, NULL), NULL, "the target's '%.*s' has no source: the source has only beta powers of it",
                         STR_ARG(target->key));
        return RESHARD_OK;
    }
    if (!shape_equal(variable->rank, variable->shape, target->rank, target->shape)) {
        map_machine_fail(machine, span_of(machine, variable), NULL, "'%.*s' comes out with shape %s, the target has %s",
                         STR_ARG(target->key), shape_text(variable->rank, variable->shape, ",", a),
                         shape_text(target->rank, target->shape, ",", b));
        return RESHARD_OK;
    }
    for (uint32_t i = 0; i < variable->piece_count; i++) {
        const struct map_piece *piece = &variable->pieces[i];
        struct map_copy copy = { .target_tensor = target_index, .piece = piece };
        if (machine->result->removed[piece->weight])
            continue;
        const struct map_tensor *source = piece_tensor(machine, target, variable, piece->weight);
        if (!source || !find_casts(machine, target, source, variable, piece, &copy.casts))
            return RESHARD_OK;
        copy.source_tensor = (uint32_t)(source - machine->input->source->tensors);
        reshard_status status = map_output_append_copy(machine->result, copy, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

/* A beta power is copied from the first contributing weight that has one; they should all be equal. */
static reshard_status copy_beta(struct map_machine *machine, uint32_t target_index, const struct map_tensor *target,
                                const struct map_outcome *outcome, reshard_error *err)
{
    const struct map_space *space = machine->input->source;
    const struct map_variable *variable = outcome->variable;
    uint32_t own = variable ? MAP_NONE : map_space_find(space, machine->result->target->weights[target->weight].name);
    bool any = own != MAP_NONE;
    const struct map_tensor *source = own == MAP_NONE || space->weights[own].tensors[target->state] == MAP_NONE
                                          ? NULL
                                          : &space->tensors[space->weights[own].tensors[target->state]];
    for (uint32_t i = 0; variable && i < variable->piece_count && !source; i++) {
        uint32_t weight = variable->pieces[i].weight, tensor = space->weights[weight].tensors[target->state];
        if (machine->result->removed[weight])
            continue;
        any = true;
        source = tensor == MAP_NONE ? NULL : &space->tensors[tensor];
    }
    if (!source) {
        if (any)
            map_machine_fail(machine, span_of(machine, variable), NULL, "'%.*s' has no source: no weight that it is made of has this state",
                             STR_ARG(target->key));
        return RESHARD_OK;
    }
    if (!shape_equal(source->rank, source->shape, target->rank, target->shape) || source->dtype != target->dtype) {
        map_machine_fail(machine, span_of(machine, variable), NULL, "'%.*s' and '%.*s' differ in shape or type", STR_ARG(source->key),
                         STR_ARG(target->key));
        return RESHARD_OK;
    }
    return map_output_append_copy(machine->result,
                       (struct map_copy){ .source_tensor = (uint32_t)(source - space->tensors), .target_tensor = target_index }, err);
}

static reshard_status copy_tensor(struct map_machine *machine, uint32_t index, reshard_error *err)
{
    const struct map_tensor *tensor = &machine->result->target->tensors[index];
    const struct map_outcome *outcome = &machine->result->outcomes[tensor->weight];
    if (outcome->origin == MAP_ORIGIN_KEPT) {
        const struct map_symbol *symbol = map_machine_symbol(machine, machine->result->target->weights[tensor->weight].name);
        if (!map_state_is_shaped[tensor->state])
            map_diagnose(machine->input->diagnoses, MAP_UNPORTABLE, symbol->span, NULL,
                         "Paddle's engine crashes on '%.*s', a beta power of an added weight", STR_ARG(tensor->key));
        return RESHARD_OK;
    }
    if (!map_state_is_shaped[tensor->state])
        return copy_beta(machine, index, tensor, outcome, err);
    return copy_pieces(machine, index, tensor, outcome->variable, err);
}

reshard_status map_machine_output(struct map_machine *machine, reshard_error *err)
{
    struct map_result *result = machine->result;
    reshard_status status = RESHARD_OK;
    if (!machine->input->target)
        status = make_target(machine, err);
    if (status)
        return status;
    result->target = machine->input->target ? machine->input->target : &result->made;
    uint32_t weights = map_space_weight_count(result->target);
    result->outcomes = arena_zalloc(&result->arena, ((size_t)weights + 1) * sizeof(*result->outcomes));
    bool *is_good = arena_zalloc(&result->arena, (size_t)weights + 1);
    if (!result->outcomes || !is_good)
        return error_set_memory(err);
    for (uint32_t i = 0; i < weights && !status; i++)
        status = result->target->weights[i].is_state ? RESHARD_OK : find_outcome(machine, i, &is_good[i], err);
    for (uint32_t i = 0; i < map_space_tensor_count(result->target) && !status; i++) {
        if (is_good[result->target->tensors[i].weight])
            status = copy_tensor(machine, i, err);
    }
    return status;
}
