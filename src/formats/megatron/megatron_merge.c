/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks' parameters become tensors of the whole model: each is the chunks that its partition rule gives. */
#include "formats/megatron/megatron_source.h"
#include "base/array.h"
#include "formats/megatron/optimizer_source.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- chunks ---- */

struct adding {
    struct source *source;
    const struct megatron_part *part;
};

static reshard_status merge_add_piece(const struct cut_piece *piece, void *context, reshard_error *err)
{
    struct adding *adding = context;
    const struct megatron_part *part = adding->part;
    const struct cut *cut = &part->parameter->cut;
    int64_t start[RANK_MAX], extent[RANK_MAX], strides[RANK_MAX], local_strides[RANK_MAX];
    int lead = (int)part->parameter->lead_count, rank = lead + cut->rank;
    if (rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d axes", RANK_MAX);
    if (part->strides)
        memcpy(local_strides, part->strides, (size_t)cut->rank * sizeof(*strides));
    else
        strides_row_major(cut->rank, cut->local, local_strides);
    int64_t offset = part->offset;
    for (int i = 0; i < lead; i++) {
        start[i] = part->parameter->lead[i];
        extent[i] = 1;
        strides[i] = 1;
    }
    for (int i = 0; i < cut->rank; i++) {
        start[lead + i] = piece->start[i];
        extent[lead + i] = piece->extent[i];
        strides[lead + i] = local_strides[i] * piece->step[i];
        offset += piece->local_start[i] * local_strides[i];
    }
    struct torch_box box = { part->catalog_tensor, part->file, part->tensor, rank, start, extent, strides, offset };
    return torch_source_add_box(adding->source, &box, err);
}

reshard_status megatron_add_part(struct source *source, const struct megatron_part *part, reshard_error *err)
{
    struct adding adding = { source, part };
    return cut_pieces(&part->parameter->cut, part->place, merge_add_piece, &adding, err);
}

static const struct torch_tensor *leaf_tensor(const struct megatron_source *state, const struct megatron_leaf *leaf)
{
    return &state->torch.files[state->ranks[leaf->rank].file].archive.tensors[leaf->tensor];
}

static reshard_status merge_add_leaf(struct source *source, const struct megatron_leaf *leaf, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    const struct megatron_parameter *parameter = &state->parameters[leaf->parameter];
    const struct megatron_rank *rank = &state->ranks[leaf->rank];
    const struct torch_tensor *tensor = leaf_tensor(state, leaf);
    if (parameter->member_count > 0) {
        state->torch.files[rank->file].listed[leaf->tensor] = parameter->members[0].tensor + 1;
        return megatron_add_members(source, leaf, err);
    }
    if (parameter->is_copy)
        parameter = &state->parameters[parameter->original];
    struct megatron_part part = { parameter, &rank->place, parameter->tensor, rank->file, leaf->tensor, 0, tensor->strides };
    struct torch_file *file = &state->torch.files[rank->file];
    if (file->listed[leaf->tensor] == UINT32_MAX)
        file->listed[leaf->tensor] = parameter->tensor + 1;
    return megatron_add_part(source, &part, err);
}

/* ---- parameters ---- */

static reshard_status fail_tensor(const struct megatron_source *state, const struct megatron_leaf *leaf, reshard_status status,
                                  reshard_error *err)
{
    error_prefix(err, "tensor '%.*s' in '%.*s'", STR_ARG(leaf->name), STR_ARG(state->ranks[leaf->rank].folder));
    error_object(err, "%.*s/%s", STR_ARG(state->ranks[leaf->rank].folder), MEGATRON_MODEL_FILE);
    return status;
}

static reshard_status fail_shapes(const struct megatron_source *state, const struct megatron_leaf *leaf, const struct megatron_leaf *first,
                                  reshard_error *err)
{
    const struct torch_tensor *a = leaf_tensor(state, first), *b = leaf_tensor(state, leaf);
    char one[SHAPE_TEXT_MAX], other[SHAPE_TEXT_MAX];
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' is %s%s in '%.*s' and %s%s in '%.*s'", STR_ARG(leaf->name),
              dtype_info(a->dtype)->name, shape_text(a->rank, a->shape, ",", one), STR_ARG(state->ranks[first->rank].folder),
              dtype_info(b->dtype)->name, shape_text(b->rank, b->shape, ",", other), STR_ARG(state->ranks[leaf->rank].folder));
    error_object(err, "%.*s/%s", STR_ARG(state->ranks[leaf->rank].folder), MEGATRON_MODEL_FILE);
    return RESHARD_ERR_FORMAT;
}

static reshard_status check_same_shape(const struct megatron_source *state, const struct megatron_leaf *leaf,
                                       const struct megatron_leaf *first, reshard_error *err)
{
    const struct torch_tensor *a = leaf_tensor(state, first), *b = leaf_tensor(state, leaf);
    bool is_same = a->dtype == b->dtype && a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(*a->shape)) == 0;
    return is_same ? RESHARD_OK : fail_shapes(state, leaf, first, err);
}

/* Order of a file of one rank: by stage, then as registered, the experts of a layer one after another. */
static int leaf_order(const void *a, const void *b)
{
    const struct megatron_leaf *x = *(const struct megatron_leaf *const *)a, *y = *(const struct megatron_leaf *const *)b;
    if (x->stage != y->stage)
        return x->stage < y->stage ? -1 : 1;
    if (x->anchor != y->anchor)
        return x->anchor < y->anchor ? -1 : 1;
    if (x->key.expert != y->key.expert)
        return x->key.expert < y->key.expert ? -1 : 1;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static reshard_status new_parameter(struct megatron_source *state, struct partition_gates *gates, struct megatron_leaf *leaf,
                                    reshard_error *err)
{
    struct cut_context context = state->context;
    bool is_told;
    const struct torch_tensor *tensor = leaf_tensor(state, leaf);
    struct megatron_parameter *parameter = &state->parameters[state->parameter_count];
    *parameter = (struct megatron_parameter){ .key = leaf->name,
                                              .parts = leaf->parts,
                                              .part_count = leaf->part_count,
                                              .layer = leaf->key.layer,
                                              .expert = leaf->key.expert,
                                              .dtype = tensor->dtype,
                                              .rule = leaf->key.rule,
                                              .first_leaf = (uint32_t)(leaf - state->leaves) };
    reshard_status status = partition_gates_ask(gates, leaf->name, &context.is_gated, &is_told, err);
    if (!status)
        status = cut_from_local(&context, leaf->key.rule, tensor->rank, tensor->shape, &parameter->cut, err);
    if (status)
        return fail_tensor(state, leaf, status, err);
    leaf->parameter = state->parameter_count++;
    return RESHARD_OK;
}

static reshard_status find_parameters(struct megatron_source *state, struct partition_gates *gates, reshard_error *err)
{
    const struct megatron_leaf **order = array_new(state->leaf_count, sizeof(*order));
    struct name_map names = { 0 };
    state->parameters = array_zeroed(state->leaf_count, sizeof(*state->parameters));
    reshard_status status = order && state->parameters ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < state->leaf_count; i++)
        order[i] = &state->leaves[i];
    if (!status && state->leaf_count > 0)
        qsort(order, state->leaf_count, sizeof(*order), leaf_order);
    for (uint32_t i = 0; !status && i < state->leaf_count; i++) {
        struct megatron_leaf *leaf = (struct megatron_leaf *)order[i];
        bool was_new;
        uint32_t number = name_map_intern(&names, leaf->name, &was_new);
        if (number == NAME_NONE)
            status = error_set_memory(err);
        else if (was_new)
            status = new_parameter(state, gates, leaf, err);
        else
            status = check_same_shape(state, leaf, &state->leaves[state->parameters[number].first_leaf], err);
        leaf->parameter = number;
    }
    name_map_release(&names);
    free(order);
    return status;
}

/* ---- gated activations ---- */

static reshard_status note_gates(const struct megatron_source *state, struct partition_gates *gates, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    gates->rules = &state->rules;
    for (uint32_t i = 0; i < state->leaf_count && !status; i++) {
        const struct torch_tensor *tensor = leaf_tensor(state, &state->leaves[i]);
        status = partition_gates_note(gates, state->leaves[i].name, tensor->rank, tensor->shape, err);
    }
    return status;
}

/* Where the arguments do not say whether the activation is gated, the shapes do. */
static reshard_status find_gate(struct megatron_source *state, struct partition_gates *gates, reshard_error *err)
{
    return training_args_say_gates(&state->args) ? RESHARD_OK : partition_gates_ask_any(gates, &state->context.is_gated, err);
}

/* ---- tied copies ---- */

static struct megatron_parameter *merge_find_parameter(struct megatron_source *state, struct str key)
{
    for (uint32_t i = 0; i < state->parameter_count; i++)
        if (str_equal(state->parameters[i].key, key))
            return &state->parameters[i];
    return NULL;
}

/* Where weights are tied and the pipeline has stages, the last one holds a copy: it is a replica of the original. */
static reshard_status find_copies(struct megatron_source *state, reshard_error *err)
{
    for (uint32_t i = 0; state->is_tied && state->layout.pp > 1 && i < state->rules.copy_count; i++) {
        struct megatron_parameter *copy = merge_find_parameter(state, state->rules.copies[i].copy);
        struct megatron_parameter *original = merge_find_parameter(state, state->rules.copies[i].original);
        if (!copy || !original)
            continue;
        reshard_status status = check_same_shape(state, &state->leaves[copy->first_leaf], &state->leaves[original->first_leaf], err);
        if (status)
            return status;
        copy->is_copy = true;
        copy->original = (uint32_t)(original - state->parameters);
    }
    return RESHARD_OK;
}

/* ---- the catalog ---- */

reshard_status megatron_add_tensor(struct source *source, struct megatron_parameter *parameter, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    const struct megatron_leaf *leaf = &state->leaves[parameter->first_leaf];
    struct torch_origin origin = { state->ranks[leaf->rank].file, leaf->tensor, leaf_tensor(state, leaf)->storage };
    reshard_status status = catalog_add_tensor(source->catalog, parameter->key, parameter->dtype, parameter->cut.rank, parameter->cut.shape,
                                               &parameter->tensor, err);
    if (!status && parameter->part_count > 0)
        status = catalog_set_tensor_path(source->catalog, parameter->tensor, parameter->parts, parameter->part_count, err);
    if (!status)
        status = torch_source_note_origin(&state->torch, parameter->tensor, origin, err);
    return status;
}

/* A parameter's tensor, or those of what it is taken apart into. */
static reshard_status add_tensors(struct source *source, struct megatron_parameter *parameter, reshard_error *err)
{
    reshard_status status = parameter->member_count > 0 ? RESHARD_OK : megatron_add_tensor(source, parameter, err);
    for (uint32_t i = 0; !status && i < parameter->member_count; i++)
        status = megatron_add_tensor(source, &parameter->members[i], err);
    return status;
}

static reshard_status check_vocabulary(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    int64_t padded = state->args.padded_vocabulary;
    (void)err;
    for (uint32_t i = 0; padded > 0 && i < state->parameter_count; i++) {
        const struct megatron_parameter *parameter = &state->parameters[i];
        if (parameter->rule->is_vocabulary && parameter->cut.shape[0] != padded)
            catalog_warn(source->catalog, true,
                         "tensor '%.*s' has %" PRId64 " rows, the arguments of the run say padded_vocab_size %" PRId64,
                         STR_ARG(parameter->key), parameter->cut.shape[0], padded);
    }
    return RESHARD_OK;
}

/* Parameters that no rule knows, where ranks could hold parts of them. */
static void warn_assumed(struct source *source)
{
    const struct megatron_source *state = megatron_source_of(source);
    const struct megatron_parameter *first = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; state->layout.tp > 1 && i < state->parameter_count; i++) {
        if (!state->parameters[i].rule->is_assumed)
            continue;
        first = first ? first : &state->parameters[i];
        count++;
    }
    if (first)
        catalog_warn(source->catalog, false,
                     "no partition rule names %" PRIu32 " parameters, '%.*s' first: they are taken as the same on all %" PRId64
                     " tensor-parallel ranks; "
                     "reshard_verify() compares the ranks' copies, and a rank's file opened by itself shows its own part",
                     count, STR_ARG(first->key), state->layout.tp);
}

/* How many experts have one of the parameters that experts have: "decoder.layers.3.mlp.experts.local_experts.#.linear_fc1.weight". */
struct expert_count {
    int64_t found;
    uint32_t parameter; /* the first one */
};

static reshard_status compare_experts(const struct megatron_source *state, const struct name_map *names, const struct expert_count *counts,
                                      reshard_error *err)
{
    for (uint32_t i = 0; i < names->count; i++) {
        const struct megatron_parameter *parameter = &state->parameters[counts[i].parameter];
        if (counts[i].found == state->args.experts)
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "layer %" PRId64 " has %" PRId64 " experts, the arguments of the run say %" PRId64,
                  parameter->layer, counts[i].found, state->args.experts);
        error_object(err, "%.*s", STR_ARG(parameter->key));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

/* The parameter's name without the number of the expert, in text. */
static bool append_family(const struct megatron_source *state, const struct megatron_parameter *parameter, struct buffer *text)
{
    struct partition_key key;
    buffer_clear(text);
    if (!partition_key_read(&state->rules, parameter->key, &key) || key.expert_size == 0)
        return false;
    size_t end = key.expert_at + key.expert_size;
    buffer_append(text, parameter->key.data, key.expert_at);
    buffer_append_text(text, "#");
    buffer_append(text, parameter->key.data + end, parameter->key.size - end);
    return true;
}

/* Experts come as parameters of their own, or as an axis. Every expert must be there. */
static reshard_status merge_check_experts(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    if (state->args.experts <= 0 || megatron_may_lack(source))
        return RESHARD_OK;
    struct name_map names = { 0 };
    struct buffer text = { 0 };
    struct expert_count *counts = array_zeroed(state->parameter_count, sizeof(*counts));
    reshard_status status = counts ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < state->parameter_count; i++) {
        bool is_new;
        if (state->parameters[i].expert < 0 || !append_family(state, &state->parameters[i], &text))
            continue;
        uint32_t family = text.failed ? NAME_NONE : name_map_intern(&names, buffer_str(&text), &is_new);
        if (family == NAME_NONE)
            status = error_set_memory(err);
        else if (is_new)
            counts[family] = (struct expert_count){ 1, i };
        else
            counts[family].found++;
    }
    if (!status)
        status = compare_experts(state, &names, counts, err);
    name_map_release(&names);
    buffer_release(&text);
    free(counts);
    return status;
}

reshard_status megatron_merge(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    struct partition_gates gates = { 0 };
    reshard_status status = note_gates(state, &gates, err);
    if (!status)
        status = find_gate(state, &gates, err);
    if (!status)
        status = find_parameters(state, &gates, err);
    partition_gates_release(&gates);
    if (!status)
        status = find_copies(state, err);
    if (!status)
        status = check_vocabulary(source, err);
    if (!status)
        warn_assumed(source);
    if (!status)
        status = merge_check_experts(source, err);
    if (!status && state->has_optimizer)
        status = megatron_find_unrelated(source, err);
    if (!status)
        status = megatron_split_grouped(source, err);
    if (!status && state->has_optimizer)
        status = megatron_add_distributed_tensors(source, err);
    for (uint32_t i = 0; !status && !state->has_optimizer && i < state->parameter_count; i++)
        if (!state->parameters[i].is_copy)
            status = add_tensors(source, &state->parameters[i], err);
    for (uint32_t i = 0; !status && i < state->leaf_count; i++)
        status = merge_add_leaf(source, &state->leaves[i], err);
    if (!status && state->has_optimizer)
        status = megatron_add_optimizer(source, err);
    if (!status && state->unrelated)
        status = megatron_add_stored_state(source, err);
    return status;
}
