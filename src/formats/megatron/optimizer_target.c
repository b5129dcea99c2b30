/* SPDX-License-Identifier: Apache-2.0 */
/* Which state is to be written, and distrib_optim.pt. */
#include "formats/megatron/optimizer_target.h"

#include "base/array.h"
#include "parallel/rank_parameters.h"
#include "formats/megatron/optimizer_source.h"

#include "base/checked.h"
#include "encoding/pickle_write.h"
#include "parallel/flat_buffer_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- which state there is ---- */

static bool optimizer_target_is_parameter(const struct megatron_target *state, const struct target_parameter *parameter)
{
    return !state->has_order || !state->names.lines[parameter->registered.line].is_buffer;
}

static bool is_expert(const struct megatron_target *state, const struct target_parameter *parameter)
{
    return state->experts_are_apart && partition_rule_has_experts(parameter->key.rule);
}

/* The reference's kind of optimizer, else what the source's masters are called. */
static bool choose_distributed(const struct layout_request *request, struct target_optimizer *optimizer)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    for (uint32_t i = 0; like && like->has_optimizer && i < like->rank_count; i++) {
        if (like->ranks[i].optimizer_file != TORCH_NONE)
            return true;
    }
    if (like && like->has_optimizer)
        return false;
    for (uint32_t i = 0; i < optimizer->state_count; i++) {
        if (str_is(optimizer->states[i].name, STATE_MASTER))
            return true;
    }
    return false;
}

static reshard_status optimizer_target_check_states(const struct megatron_target *state, const struct catalog *wanted, reshard_error *err)
{
    const struct target_optimizer *optimizer = state->optimizer;
    bool has_master = false;
    for (uint32_t s = 0; s < optimizer->state_count; s++)
        has_master |= optimizer->states[s].is_master;
    if (!state->has_order)
        return error_set(
            err, RESHARD_ERR_UNSUPPORTED,
            "'%.*s': when ranks register this parameter is not known, and legacy optimizer state follows the order of registration",
            STR_ARG(state->unordered));
    if (optimizer->is_distributed && !has_master)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "the distributed optimizer has fp32 masters of the parameters, and the source has none");
    for (uint32_t i = 0; i < state->parameter_count; i++) {
        const struct target_parameter *parameter = &state->parameters[i];
        for (uint32_t s = 0; s < optimizer->state_count && optimizer_target_is_parameter(state, parameter); s++) {
            bool is_needed = optimizer->is_distributed || !optimizer->states[s].is_master ||
                             dtype_info(wanted->tensors[parameter->wanted].dtype)->bits == 16;
            if (is_needed && !optimizer->states[s].tensors[parameter->wanted])
                return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%.*s' has no state '%.*s', which other parameters have",
                                 STR_ARG(parameter->name), STR_ARG(optimizer->states[s].name));
        }
    }
    return RESHARD_OK;
}

/* Masters are read again under the name that belongs to the kind of optimizer. */
static reshard_status read_masters_as(const struct catalog *wanted, struct target *target, bool is_distributed, reshard_error *err)
{
    struct buffer other = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        struct state_key key;
        bool is_one = state_key_read(wanted->tensors[i].key, &key) && key.is_master;
        if (is_one && str_is(key.state, STATE_MASTER) != is_distributed && state_key_other_master(wanted->tensors[i].key, &other))
            status = target_read_as(target, i, buffer_str(&other), err);
        else if (other.failed)
            status = error_set_memory(err);
    }
    buffer_release(&other);
    return status;
}

reshard_status megatron_find_states(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct target_optimizer *optimizer = arena_zalloc(&state->arena, sizeof(*optimizer));
    reshard_status status = optimizer
                                ? wanted_states_find(request->wanted, &state->arena, optimizer->states, &optimizer->state_count, err)
                                : error_set_memory(err);
    if (status || optimizer->state_count == 0)
        return status;
    state->optimizer = optimizer;
    optimizer->is_distributed = choose_distributed(request, optimizer);
    for (uint32_t i = 0; i < state->parameter_count; i++)
        optimizer->has_experts |= is_expert(state, &state->parameters[i]);
    for (uint32_t i = 0; i < request->wanted->tensor_count && !status; i++) {
        struct state_key key;
        const struct catalog_tensor *tensor = &request->wanted->tensors[i];
        uint32_t from = request->wanted_source[i];
        bool is_short = tensor->dtype == DTYPE_I16 ||
                        (from != CATALOG_NONE && request->source_catalog->tensors[from].dtype == DTYPE_I16);
        if (is_short && state_key_read(tensor->key, &key) && key.is_master)
            status = state_refuse_remainders(tensor->key, err);
    }
    if (!status)
        status = read_masters_as(request->wanted, target, optimizer->is_distributed, err);
    return status ? status : optimizer_target_check_states(state, request->wanted, err);
}

/* ---- the parameters of a rank ---- */

/* Where further tokens are predicted, their stage shares the embedding itself. */
static bool optimizer_target_is_tied(const struct megatron_target *state, const struct target_parameter *parameter)
{
    bool predicts = state->args.mtp_layers > 0, output = state->is_tied && pipeline_shares_output(&state->pipeline, &state->args);
    if (!(state->is_tied || predicts) || state->layout.pp == 1)
        return false;
    for (uint32_t i = 0; i < state->rules.copy_count; i++) {
        if (str_equal(state->rules.copies[i].original, parameter->name) ||
            (output && str_equal(state->rules.copies[i].copy, parameter->name)))
            return true;
    }
    return false;
}

/* Gradients are reduced in fp32 unless the arguments say otherwise. */
static enum dtype gradient_dtype(const struct megatron_target *state, enum dtype parameter)
{
    return training_args_int(&state->args, "accumulate_allreduce_grads_in_fp32") == 0 ? parameter : DTYPE_F32;
}

bool megatron_optimizer_parameter(const struct layout_request *request, const struct megatron_target *state, uint32_t index,
                                  struct rank_parameter *out)
{
    const struct target_parameter *parameter = &state->parameters[index];
    const struct target_matrix *matrix = parameter->matrix ? &state->matrices[parameter->matrix - 1] : NULL;
    enum dtype dtype = request->wanted->tensors[parameter->wanted].dtype;
    *out = (struct rank_parameter){
        .name = matrix ? matrix->name : parameter->name,
        .param_dtype = dtype,
        .grad_dtype = gradient_dtype(state, dtype),
        .rank = parameter->cut.rank,
        .shape = matrix ? matrix->shape : parameter->cut.local,
        .chunk = (uint32_t)(parameter->stage / state->layout.pp),
        .is_expert = is_expert(state, parameter),
        .is_embedding = parameter->key.rule->is_vocabulary && parameter->cut.rank == 2,
        .is_shared_embedding = optimizer_target_is_tied(state, parameter),
    };
    return optimizer_target_is_parameter(state, parameter) && megatron_stands_for_matrix(state, parameter);
}

reshard_status megatron_rank_parameters(const struct layout_request *request, const struct megatron_target *state,
                                        const struct target_rank *rank, struct rank_parameter **out, uint32_t **indices, uint32_t *count,
                                        reshard_error *err)
{
    *out = array_zeroed(state->parameter_count, sizeof(**out));
    *indices = array_zeroed(state->parameter_count, sizeof(**indices));
    *count = 0;
    if (!*out || !*indices)
        return error_set_memory(err);
    uint32_t all = megatron_list_parameters(state, rank, *indices);
    for (uint32_t i = 0; i < all; i++) {
        (*indices)[*count] = (*indices)[i];
        *count += megatron_optimizer_parameter(request, state, (*indices)[i], &(*out)[*count]);
    }
    return RESHARD_OK;
}

/* ---- distrib_optim.pt ---- */

/* The first rank of those that share parameters of the kind writes their state. */
static bool writes_state(const struct megatron_target *state, const struct target_rank *rank, bool of_experts)
{
    const struct parallel_layout *layout = &state->layout;
    int64_t in_stage = rank->global_rank % (least_world(layout) / layout->pp);
    return in_stage < (of_experts ? layout->etp * layout->ep : layout->tp);
}

reshard_status megatron_add_optimizer_files(struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    uint32_t count = state->rank_count;
    if (!state->optimizer || !state->optimizer->is_distributed)
        return RESHARD_OK;
    struct target_rank *grown = reallocarray(state->ranks, (size_t)count + 1, 2 * sizeof(*grown));
    if (!grown)
        return error_set_memory(err);
    state->ranks = grown;
    state->rank_capacity = 2 * (count + 1);
    for (uint32_t i = 0; i < count; i++) {
        bool has_state = writes_state(state, &grown[i], false) || (state->optimizer->has_experts && writes_state(state, &grown[i], true));
        if (!has_state)
            continue;
        grown[state->rank_count] = grown[i];
        grown[state->rank_count++].is_optimizer = true;
    }
    return RESHARD_OK;
}

/* One distrib_optim.pt being made. */
struct emitting_file {
    const struct layout_request *request;
    struct megatron_target *state;
    struct target_rank *rank;
    struct value_graph graph;
    struct rank_parameter *parameters;
    uint32_t *indices, count;
};

/* The places of the parameters of a buffer, and how many. */
static struct record_place *list_places(struct emitting_file *file, const struct flat_buffers *made, const struct flat_buffer *buffer,
                                        const struct wanted_state *kind, uint32_t *count)
{
    struct megatron_target *state = file->state;
    uint64_t total = 0;
    for (uint32_t i = 0; i < buffer->place_count; i++)
        total += megatron_place_count(state, file->indices[made->places[buffer->first_place + i].parameter]);
    struct record_place *places = total <= UINT32_MAX ? arena_array(&state->arena, (size_t)total, sizeof(*places)) : NULL;
    *count = 0;
    for (uint32_t i = 0; places && i < buffer->place_count; i++) {
        const struct flat_place *place = &made->places[buffer->first_place + i];
        uint32_t parameter = file->indices[place->parameter];
        megatron_put_places(state, parameter, kind->tensors, flat_packed_start(made, place), places + *count);
        *count += megatron_place_count(state, parameter);
    }
    return places;
}

/* The vector of one state of a buffer: a record whose places are the parameters'. */
static reshard_status optimizer_target_add_vector(struct emitting_file *file, const struct flat_buffers *made,
                                                  const struct flat_buffer *buffer, const struct wanted_state *kind, struct value **out,
                                                  reshard_error *err)
{
    struct megatron_target *state = file->state;
    const struct catalog *wanted = file->request->wanted;
    uint32_t record, count;
    uint64_t bytes;
    struct record_place *places = list_places(file, made, buffer, kind, &count);
    if (!places)
        return error_set_memory(err);
    enum dtype dtype = wanted->tensors[places[0].tensor].dtype;
    for (uint32_t i = 1; i < count; i++) {
        if (wanted->tensors[places[i].tensor].dtype != dtype)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "state '%.*s' has several dtypes, and would lie in one vector",
                             STR_ARG(kind->name));
    }
    if (!dtype_bytes(dtype, (uint64_t)buffer->unpadded, &bytes))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a buffer of optimizer state is too large");
    reshard_status status = megatron_record_add(state, places[0].tensor, bytes, &record, err);
    if (status)
        return status;
    state->records[record].places = places;
    state->records[record].place_count = count;
    state->records[record].count = buffer->unpadded;
    *out = value_new(&file->graph, VALUE_NONE);
    if (!*out)
        return error_set_memory(err);
    (*out)->tensor = record - file->rank->first_record + 1;
    return RESHARD_OK;
}

static struct value *optimizer_target_new_dict(struct value_graph *graph, size_t pairs)
{
    struct value **items = arena_array(&graph->arena, 2 * pairs, sizeof(struct value *));
    struct value *dict = items ? value_new_list(graph, VALUE_DICT, items, 0) : NULL;
    return dict;
}

/* The dict has room; false without memory. */
static bool optimizer_target_set_member(struct value *dict, struct value *key, struct value *value)
{
    if (!dict || !key || !value)
        return false;
    dict->list.items[dict->list.count++] = key;
    dict->list.items[dict->list.count++] = value;
    return true;
}

static struct value *dtype_pair(struct value_graph *graph, enum dtype param, enum dtype grad)
{
    struct value **items = arena_array(&graph->arena, 2, sizeof(struct value *));
    if (!items)
        return NULL;
    items[0] = value_new_global(graph, "torch", dtype_info(param)->torch_name);
    items[1] = value_new_global(graph, "torch", dtype_info(grad)->torch_name);
    return items[0] && items[1] ? value_new_list(graph, VALUE_TUPLE, items, 2) : NULL;
}

static reshard_status add_buffer(struct emitting_file *file, const struct flat_buffers *made, uint32_t index, struct value *root,
                                 reshard_error *err)
{
    const struct target_optimizer *optimizer = file->state->optimizer;
    const struct flat_buffer *buffer = &made->buffers[index];
    struct value *states = optimizer_target_new_dict(&file->graph, optimizer->state_count + 1),
                 *by_dtype = optimizer_target_new_dict(&file->graph, 1);
    bool is_good = states && by_dtype;
    for (uint32_t i = 0; i < optimizer->state_count && is_good; i++) {
        struct value *vector;
        const struct wanted_state *kind = &optimizer->states[i];
        reshard_status status = optimizer_target_add_vector(file, made, buffer, kind, &vector, err);
        if (status)
            return status;
        is_good =
            optimizer_target_set_member(states, value_new_str(&file->graph, kind->is_master ? STR(STATE_MASTER) : kind->name), vector);
    }
    is_good = is_good &&
              optimizer_target_set_member(states, value_new_str(&file->graph, STR("numel_unpadded")),
                                          value_new_int(&file->graph, buffer->unpadded)) &&
              optimizer_target_set_member(by_dtype, dtype_pair(&file->graph, buffer->param_dtype, buffer->grad_dtype), states) &&
              optimizer_target_set_member(root, value_new_int(&file->graph, index), by_dtype);
    return is_good ? RESHARD_OK : error_set_memory(err);
}

/* The dict of one optimizer; None where another rank writes its state. */
static reshard_status add_optimizer(struct emitting_file *file, bool of_experts, struct value **out, reshard_error *err)
{
    struct flat_buffers made = { 0 };
    struct flat_buffer_rules rules;
    const struct training_run run = { .args = file->state->args.members, .stage = file->rank->place.pp };
    if (!writes_state(file->state, file->rank, of_experts)) {
        *out = value_new(&file->graph, VALUE_NONE);
        return *out ? RESHARD_OK : error_set_memory(err);
    }
    reshard_status status = flat_buffer_rules_of(&run, file->parameters, file->count, of_experts, &rules, err);
    if (!status)
        status = flat_buffers_make(file->parameters, file->count, of_experts, &rules, &made, err);
    if (!status) {
        struct value *coalesced = value_new(&file->graph, VALUE_BOOL);
        *out = optimizer_target_new_dict(&file->graph, (size_t)made.buffer_count + 1);
        if (coalesced)
            coalesced->boolean = true;
        status = optimizer_target_set_member(*out, value_new_str(&file->graph, STR("buckets_coalesced")), coalesced)
                     ? RESHARD_OK
                     : error_set_memory(err);
    }
    for (uint32_t i = 0; i < made.buffer_count && !status; i++)
        status = add_buffer(file, &made, i, *out, err);
    flat_buffers_release(&made);
    return status;
}

static bool holds_experts(const struct megatron_target *state, const struct target_rank *rank)
{
    for (int64_t chunk = 0; chunk < state->layout.vp; chunk++) {
        int64_t stage = chunk * state->layout.pp + rank->place.pp;
        for (uint32_t i = state->stage_first[stage]; i < state->stage_first[stage + 1]; i++) {
            if (is_expert(state, &state->parameters[i]))
                return true;
        }
    }
    return false;
}

bool megatron_has_two_optimizers(const struct layout_request *request, const struct megatron_target *state, const struct target_rank *rank)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct value *member = like && rank->like != TORCH_NONE ? value_dict_get(like->ranks[rank->like].root, "optimizer") : NULL;
    if (!state->optimizer->has_experts || holds_experts(state, rank))
        return state->optimizer->has_experts;
    /* Up to Megatron Core 0.13 a stage without experts has one. */
    return !member || !experts_are_apart(like->args.parts_by_etp, like->layout.tp, like->layout.ep, like->layout.etp) ||
           (member->kind == VALUE_LIST && member->list.count == 2);
}

static bool spell_vector(const struct value *value, struct buffer *out, void *context)
{
    const struct emitting_file *file = context;
    if (value->kind != VALUE_NONE || value->tensor == 0)
        return false;
    const struct target_record *record = &file->state->records[file->rank->first_record + value->tensor - 1];
    char key[16];
    snprintf(key, sizeof(key), "%" PRIu32, value->tensor - 1);
    torch_save_put_tensor(out, file->request->wanted->tensors[record->wanted].dtype, 1, &record->count, NULL, 0, key, record->bytes, false);
    return true;
}

static reshard_status make_root(struct emitting_file *file, reshard_error *err)
{
    if (!megatron_has_two_optimizers(file->request, file->state, file->rank))
        return add_optimizer(file, false, &file->graph.root, err);
    struct value **both = arena_array(&file->graph.arena, 2, sizeof(struct value *));
    if (!both)
        return error_set_memory(err);
    reshard_status status = add_optimizer(file, false, &both[0], err);
    if (!status)
        status = add_optimizer(file, true, &both[1], err);
    if (status)
        return status;
    file->graph.root = value_new_list(&file->graph, VALUE_LIST, both, 2);
    return file->graph.root ? RESHARD_OK : error_set_memory(err);
}

reshard_status megatron_emit_optimizer(const struct layout_request *request, struct target *target, uint32_t rank, struct buffer *out,
                                       reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct emitting_file file = { .request = request, .state = state, .rank = &state->ranks[rank] };
    file.rank->first_record = state->record_count;
    reshard_status status = megatron_rank_parameters(request, state, file.rank, &file.parameters, &file.indices, &file.count, err);
    if (!status)
        status = make_root(&file, err);
    if (!status)
        status = pickle_write(file.graph.root, file.graph.count, NULL, spell_vector, &file, out, err);
    file.rank->record_count = state->record_count - file.rank->first_record;
    value_graph_release(&file.graph);
    free(file.parameters);
    free(file.indices);
    return status;
}
