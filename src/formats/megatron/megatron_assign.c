/* SPDX-License-Identifier: Apache-2.0 */
/* Which stage holds which parameter, and which parts of it each rank's file. */
#include "formats/megatron/megatron_target.h"
#include "formats/shared/torch_spell.h"

#include "base/array.h"
#include "base/checked.h"
#include "parallel/pipeline.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- parameters ---- */

static reshard_status assign_add_parameter(struct megatron_target *state, const struct target_parameter *parameter, reshard_error *err)
{
    if (!ARRAY_ROOM(state->parameters, state->parameter_count, state->parameter_capacity))
        return error_set_memory(err);
    state->parameters[state->parameter_count++] = *parameter;
    return RESHARD_OK;
}

static int64_t stage_count(const struct megatron_target *state)
{
    return state->layout.pp * state->layout.vp;
}

/* Layers stand where the pipeline has them, the rest where the rules say; what nobody knows stands first. */
static reshard_status find_stage(const struct megatron_target *state, struct str name, const struct partition_key *key, int64_t *out,
                                 reshard_error *err)
{
    *out = 0;
    if (stage_count(state) == 1)
        return RESHARD_OK;
    *out = pipeline_stage_of_key(&state->pipeline, &state->rules, name, key);
    if (*out == stage_count(state))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': layer %" PRId64 " is beyond the pipeline's last", STR_ARG(name),
                         key->layer);
    return RESHARD_OK;
}

int64_t megatron_first_layer(const struct megatron_target *state, const struct target_parameter *parameter)
{
    if (!parameter->key.stack || parameter->key.stack->is_own || stage_count(state) == 1)
        return 0;
    return pipeline_first_layer(&state->pipeline, parameter->stage);
}

static reshard_status cut_parameter(const struct layout_request *request, struct target *target, struct target_parameter *parameter,
                                    reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    const struct catalog_tensor *tensor = &request->wanted->tensors[parameter->wanted];
    int64_t shape[RANK_MAX];
    int rank = tensor->rank - parameter->lead_count;
    memcpy(shape, catalog_vector_at(request->wanted, tensor->shape) + parameter->lead_count, (size_t)rank * sizeof(*shape));
    parameter->rows = rank > 0 ? shape[0] : 1;
    if (torch_check_type(tensor, err))
        return RESHARD_ERR_UNSUPPORTED;
    /* The arguments of a distributed checkpoint say what a run of its TP has; the stored rows may be another run's. */
    int64_t old = megatron_folder_state(request->source) ? state->args.padded_vocabulary : 0;
    if (parameter->key.rule->is_vocabulary && rank > 0 && state->padded_vocabulary > 0 && state->padded_vocabulary != shape[0] &&
        (old <= 0 || shape[0] == old || shape[0] == state->args.vocabulary)) {
        reshard_status status = target_note_changed(
            target, NOTE_ROWS, tensor->key, err, "has %" PRId64 " rows, padded for tp=%" PRId64 "; it had %" PRId64 "%s",
            state->padded_vocabulary, state->layout.tp, shape[0], state->padded_vocabulary > shape[0] ? "; the new rows are zero" : "");
        if (status)
            return status;
        shape[0] = state->padded_vocabulary;
        parameter->rows = shape[0] < parameter->rows ? shape[0] : parameter->rows;
    }
    struct cut_context context = state->context;
    bool is_told;
    reshard_status status = partition_gates_ask(&state->gates, tensor->key, &context.is_gated, &is_told, err);
    if (!status)
        status = cut_from_whole(&context, parameter->key.rule, rank, shape, &parameter->cut, err);
    if (status) {
        error_prefix(err, "tensor '%.*s'", STR_ARG(tensor->key));
        error_object(err, "%.*s", STR_ARG(tensor->key));
    }
    return status;
}

struct assigning {
    const struct layout_request *request;
    struct target *target;
    int64_t tp_common, etp_common; /* what TP and ETP may divide */
};

/* With one rank everything divides; the blocks say what more ranks may be. */
static reshard_status note_divisors(const struct target_parameter *found, void *context, reshard_error *err)
{
    struct assigning *assigning = context;
    const struct megatron_target *state = assigning->target->driver_state;
    const struct catalog_tensor *tensor = &assigning->request->wanted->tensors[found->wanted];
    struct cut_context alone = state->context;
    struct partition_key key;
    struct cut cut;
    reshard_error ignored;
    (void)err;
    alone.layout = (struct parallel_layout){ 1, 1, 1, 1, 1 };
    if (!partition_key_read(&state->rules, found->name, &key) || key.rule->is_vocabulary || found->lead_count > tensor->rank ||
        cut_from_whole(&alone, key.rule, tensor->rank - found->lead_count,
                       catalog_vector_at(assigning->request->wanted, tensor->shape) + found->lead_count, &cut, &ignored))
        return RESHARD_OK;
    int64_t *common = cut.group == PARTITION_ETP ? &assigning->etp_common : &assigning->tp_common;
    if (cut.axis >= 0)
        *common = cut_common_divisor(&cut, *common);
    return RESHARD_OK;
}

static void hint_divisors(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct assigning assigning = { request, target, 0, 0 };
    char tp[DIVISORS_TEXT_MAX], etp[DIVISORS_TEXT_MAX];
    if (megatron_each_parameter(request, state, note_divisors, &assigning, NULL))
        return;
    if (assigning.tp_common > 0)
        error_hint(err, "tp may be %s for this model", divisors_text(assigning.tp_common, tp));
    if (assigning.etp_common > 0)
        error_hint(err, "etp may be %s", divisors_text(assigning.etp_common, etp));
}

static reshard_status take_parameter(const struct target_parameter *found, void *context, reshard_error *err)
{
    struct assigning *assigning = context;
    struct megatron_target *state = assigning->target->driver_state;
    struct target_parameter parameter = *found;
    if (!partition_key_read(&state->rules, parameter.name, &parameter.key))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "no partition rule is for '%.*s'", STR_ARG(parameter.name));
    if (parameter.key.expert >= state->experts && parameter.key.expert_size > 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': the arguments of the run say %" PRId64 " experts",
                         STR_ARG(parameter.name), state->experts);
    reshard_status status = find_stage(state, parameter.name, &parameter.key, &parameter.stage, err);
    if (!status)
        status = cut_parameter(assigning->request, assigning->target, &parameter, err);
    if (!status && parameter.lead_count)
        status = target_read_in_parts(assigning->target, parameter.wanted, parameter.name, err);
    else if (!status && !str_equal(parameter.name, target_read_key(assigning->target, parameter.wanted)))
        status = target_read_as(assigning->target, parameter.wanted, parameter.name, err);
    return status ? status : assign_add_parameter(state, &parameter, err);
}

/* ---- copies on the last stage ---- */

static uint32_t assign_find_parameter(const struct megatron_target *state, struct str name, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (str_equal(state->parameters[i].name, name))
            return i;
    return TORCH_NONE;
}

/* "word_embeddings_for_head.weight" is a dict in the nested files of old models, one key in the flat ones. */
static reshard_status name_copy(struct megatron_target *state, struct str name, struct target_parameter *copy, reshard_error *err)
{
    size_t dot = name.size;
    while (dot > 0 && name.data[dot - 1] != '.')
        dot--;
    bool is_nested = copy->part_count > 1 && dot > 0;
    struct path_part *parts = arena_array(&state->arena, 2, sizeof(*parts));
    if (!parts)
        return error_set_memory(err);
    parts[0] = (struct path_part){ .kind = PATH_KEY, .key = { name.data, is_nested ? dot - 1 : name.size } };
    parts[1] = (struct path_part){ .kind = PATH_KEY, .key = { name.data + dot, name.size - dot } };
    copy->name = name;
    copy->parts = parts;
    copy->part_count = is_nested ? 2 : 1;
    return RESHARD_OK;
}

static reshard_status add_tied_copies(struct megatron_target *state, uint32_t count, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && state->is_tied && i < state->rules.copy_count; i++) {
        const struct partition_copy *rule = &state->rules.copies[i];
        uint32_t original = assign_find_parameter(state, rule->original, count);
        if (original == TORCH_NONE || assign_find_parameter(state, rule->copy, count) != TORCH_NONE)
            continue;
        struct target_parameter copy = state->parameters[original];
        copy.stage = stage_count(state) - 1;
        status = name_copy(state, rule->copy, &copy, err);
        if (!status)
            status = assign_add_parameter(state, &copy, err);
    }
    return status;
}

/* Layers of a stack of its own (multi-token prediction) read the embedding: their stage has a copy under the same name. */
static reshard_status add_embedding_copies(struct megatron_target *state, uint32_t count, reshard_error *err)
{
    bool has_own = false;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count; i++)
        has_own = has_own || (state->parameters[i].key.stack && state->parameters[i].key.stack->is_own);
    for (uint32_t i = 0; !status && has_own && i < count; i++) {
        struct target_parameter copy = state->parameters[i];
        if (copy.key.stack || partition_key_place(&state->rules, copy.name) != PLACE_FIRST || copy.stage == state->pipeline.mtp_stage)
            continue;
        copy.stage = state->pipeline.mtp_stage;
        status = assign_add_parameter(state, &copy, err);
    }
    return status;
}

/* ---- order ---- */

static int stage_order(const void *a, const void *b, void *context)
{
    const struct target_parameter *x = a, *y = b;
    const struct megatron_target *state = context;
    int order = 0;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (state->has_order)
        order = parameter_name_compare(&state->names, &x->registered, &y->registered);
    if (order)
        return order;
    if (x->wanted != y->wanted)
        return x->wanted < y->wanted ? -1 : 1;
    for (int i = 0; i < x->lead_count; i++)
        if (x->lead[i] != y->lead[i])
            return x->lead[i] < y->lead[i] ? -1 : 1;
    return 0;
}

/* Files list parameters as ranks register them: state of optimizers follows that order. A source's own order serves where it is not known.
 */
static void find_order(struct megatron_target *state)
{
    state->has_order = true;
    for (uint32_t i = 0; state->has_order && i < state->parameter_count; i++) {
        struct target_parameter *parameter = &state->parameters[i];
        state->has_order = parameter_name_read(&state->names, state->conditions, parameter->name, &parameter->registered) &&
                           !state->names.lines[parameter->registered.line].has_rest;
        state->unordered = parameter->name;
    }
}

/* Parameters that no rule knows, where ranks might want parts of them. */
static reshard_status note_assumed(struct target *target, reshard_error *err)
{
    const struct megatron_target *state = target->driver_state;
    const struct target_parameter *first = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; state->layout.tp > 1 && i < state->parameter_count; i++) {
        if (!state->parameters[i].key.rule->is_assumed)
            continue;
        first = first ? first : &state->parameters[i];
        count++;
    }
    if (!first)
        return RESHARD_OK;
    return target_note_changed(target, NOTE_PARTITION, (struct str){ 0 }, err,
                               "no partition rule names %" PRIu32 " parameters, '%.*s' first: every tensor-parallel rank gets them whole",
                               count, STR_ARG(first->name));
}

reshard_status megatron_assign(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct assigning assigning = { request, target, 0, 0 };
    reshard_status status = megatron_each_parameter(request, state, take_parameter, &assigning, err);
    if (status == RESHARD_ERR_UNSUPPORTED && err && !err->hint[0])
        hint_divisors(request, target, err);
    uint32_t count = state->parameter_count;
    if (!status)
        status = note_assumed(target, err);
    if (!status && state->layout.pp > 1)
        status = add_tied_copies(state, count, err);
    if (!status && state->layout.pp > 1)
        status = add_embedding_copies(state, count, err);
    if (status)
        return status;
    find_order(state);
    if (state->parameter_count > 0)
        qsort_r(state->parameters, state->parameter_count, sizeof(*state->parameters), stage_order, state);
    status = megatron_find_matrices(request, state, err);
    if (status)
        return status;
    state->stage_first = arena_zalloc(&state->arena, ((size_t)stage_count(state) + 1) * sizeof(*state->stage_first));
    if (!state->stage_first)
        return error_set_memory(err);
    for (int64_t stage = 0, at = 0; stage <= stage_count(state); stage++) {
        while (at < state->parameter_count && state->parameters[at].stage < stage)
            at++;
        state->stage_first[stage] = (uint32_t)at;
    }
    return RESHARD_OK;
}

/* ---- ranks ---- */

static uint32_t rank_at(const struct megatron_source *source, const struct rank_place *place)
{
    for (uint32_t i = 0; source && i < source->rank_count; i++) {
        const struct rank_place *found = &source->ranks[i].place;
        if (found->tp == place->tp && found->pp == place->pp && found->ep == place->ep)
            return i;
    }
    return TORCH_NONE;
}

struct ranking {
    const struct layout_request *request;
    struct megatron_target *state;
};

static reshard_status assign_add_rank(const struct rank_place *place, int64_t global_rank, void *context, reshard_error *err)
{
    struct ranking *ranking = context;
    struct megatron_target *state = ranking->state;
    if (!ARRAY_ROOM(state->ranks, state->rank_count, state->rank_capacity))
        return error_set_memory(err);
    struct target_rank *rank = &state->ranks[state->rank_count++];
    *rank = (struct target_rank){ .place = *place, .global_rank = global_rank };
    rank->like = rank_at(megatron_folder_state(ranking->request->like), place);
    rank->source = rank_at(megatron_folder_state(ranking->request->source), place);
    rank->folder = rank_folder_name(&state->arena, &state->layout, place);
    return rank->folder ? RESHARD_OK : error_set_memory(err);
}

reshard_status megatron_add_ranks(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct ranking ranking = { request, state };
    if (state->layout.tp > INT32_MAX || state->layout.etp * state->layout.ep > INT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "the layout has too many ranks");
    return rank_places(&state->layout, true, assign_add_rank, &ranking, err);
}
