/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices that hold all experts of a rank (the grouped kernels of Megatron Core up to 0.16), taken apart: each expert's part is a
 * parameter as the modules with one expert each have it. In memory an expert's part is transposed, one after another, whatever the matrix'
 * shape says.
 */
#include "formats/megatron/megatron_source.h"
#include "base/array.h"
#include "base/value_parts.h"
#include "parallel/parameter_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What a key that ends in a matrix of experts groups, NULL if it is none; *prefix: bytes before the matrix' own name. */
static const struct partition_grouping *grouping_of(const struct partition_rules *rules, struct str key, size_t *prefix)
{
    for (uint32_t i = 0; i < rules->grouping_count; i++) {
        struct str matrix = rules->groupings[i].matrix;
        if (key.size <= matrix.size || memcmp(key.data + key.size - matrix.size, matrix.data, matrix.size) != 0 ||
            key.data[key.size - matrix.size - 1] != '.')
            continue;
        *prefix = key.size - matrix.size;
        return &rules->groupings[i];
    }
    return NULL;
}

/* The member's key: its pattern with the expert's number for '#'. */
static struct str member_key(struct arena *arena, struct str key, size_t prefix, struct str member, int64_t expert)
{
    size_t at;
    char number[24];
    if (!str_find_char(member, '#', &at))
        return (struct str){ 0 };
    snprintf(number, sizeof(number), "%" PRId64, expert);
    return ARENA_JOIN(arena, { key.data, prefix }, { member.data, at }, str_of(number), { member.data + at + 1, member.size - at - 1 });
}

/* Rows and columns of an expert's part on one rank, as its own parameter has them. */
static void member_shape(const struct cut *matrix, int64_t shape[2])
{
    shape[0] = matrix->local[1];
    shape[1] = matrix->local[0];
    shape[matrix->axis == 1 ? 0 : 1] /= matrix->repeats;
}

static reshard_status split_parameter(struct megatron_source *state, struct megatron_parameter *parameter,
                                      const struct partition_grouping *grouping, size_t prefix, reshard_error *err)
{
    int64_t experts = parameter->cut.repeats * parameter->cut.expert_parts, local[2];
    struct megatron_parameter *members = arena_array(&state->arena, (size_t)experts, sizeof(*members));
    if (!members)
        return error_set_memory(err);
    member_shape(&parameter->cut, local);
    for (int64_t i = 0; i < experts; i++) {
        struct partition_key key;
        const struct str text = member_key(&state->arena, parameter->key, prefix, grouping->member, i);
        if (!text.data)
            return error_set_memory(err);
        members[i] = *parameter;
        members[i].key = text;
        members[i].expert = i;
        if (!partition_key_read(&state->rules, members[i].key, &key))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "no partition rule is for '%.*s'", STR_ARG(text));
        members[i].rule = key.rule;
        reshard_status status = cut_from_local(&state->context, key.rule, 2, local, &members[i].cut, err);
        if (status)
            return status;
    }
    parameter->members = members;
    parameter->member_count = (uint32_t)experts;
    state->has_members = true;
    return RESHARD_OK;
}

reshard_status megatron_split_grouped(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < state->parameter_count; i++) {
        struct megatron_parameter *parameter = &state->parameters[i];
        size_t prefix;
        const struct partition_grouping *grouping = parameter->cut.is_grouped ? grouping_of(&state->rules, parameter->key, &prefix) : NULL;
        if (!grouping)
            continue;
        /* Optimizer state has the names of distributed checkpoints, which know experts, not matrices. Unrelated state leaves no view. */
        if (source->stored || state->has_optimizer || state->unrelated)
            status = split_parameter(state, parameter, grouping, prefix, err);
        else
            source->has_other_view = true;
        if (status)
            error_prefix(err, "tensor '%.*s'", STR_ARG(parameter->key));
    }
    return status;
}

unsigned megatron_source_conditions(const struct megatron_source *state)
{
    return name_conditions_of(&state->args) & ~(state->has_members ? (unsigned)NAME_GROUPED : 0);
}

reshard_status megatron_each_member(const struct megatron_parameter *matrix, const struct rank_place *place, megatron_member_sink emit,
                                    void *context, reshard_error *err)
{
    int64_t local[2];
    member_shape(&matrix->cut, local);
    const int64_t strides[2] = { 1, local[0] };
    reshard_status status = RESHARD_OK;
    for (int64_t i = 0; !status && i < matrix->cut.repeats; i++)
        status = emit(&matrix->members[place->ep * matrix->cut.repeats + i], i * local[0] * local[1], strides, context, err);
    return status;
}

/* A matrix whose members' chunks are added. */
struct adding_matrix {
    struct source *source;
    const struct megatron_leaf *leaf;
};

static reshard_status grouped_add_member(const struct megatron_parameter *member, int64_t offset, const int64_t *strides, void *context,
                                         reshard_error *err)
{
    const struct adding_matrix *adding = context;
    const struct megatron_rank *rank = &megatron_source_of(adding->source)->ranks[adding->leaf->rank];
    const struct megatron_part part = { .parameter = member, .place = &rank->place, .catalog_tensor = member->tensor, .file = rank->file,
                                        .tensor = adding->leaf->tensor, .offset = offset, .strides = strides };
    return megatron_add_part(adding->source, &part, err);
}

reshard_status megatron_add_members(struct source *source, const struct megatron_leaf *leaf, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    const struct megatron_rank *rank = &state->ranks[leaf->rank];
    const struct torch_tensor *tensor = &state->torch.files[rank->file].archive.tensors[leaf->tensor];
    struct adding_matrix adding = { source, leaf };
    if (!strides_are_row_major(tensor->rank, tensor->shape, tensor->strides))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a matrix of experts that is no contiguous run of memory",
                         STR_ARG(leaf->name));
    return megatron_each_member(&state->parameters[leaf->parameter], &rank->place, grouped_add_member, &adding, err);
}

/* ---- the view by parameter ---- */

struct viewing {
    struct source *view;
    const struct catalog *from;
    uint32_t *parameter_of;    /* by tensor of from: 1 + the matrix that it is */
    struct catalog_copying copying;
    uint32_t tensor_count;     /* of from */
};

static reshard_status view_replace_tensor(void *context, uint32_t tensor, bool *is_replaced, reshard_error *err)
{
    const struct viewing *viewing = context;
    struct megatron_source *state = megatron_source_of(viewing->view);
    *is_replaced = viewing->parameter_of[tensor] > 0;
    struct megatron_parameter *matrix = *is_replaced ? &state->parameters[viewing->parameter_of[tensor] - 1] : NULL;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < (matrix ? matrix->member_count : 0); i++)
        status = megatron_add_tensor(viewing->view, &matrix->members[i], err);
    return status;
}

/* Items count tensors: those of the view have other numbers. */
static bool view_renumber(const struct value *value, void *context)
{
    const struct viewing *viewing = context;
    struct value *node = (struct value *)value;
    if (node->tensor > 0 && node->tensor <= viewing->tensor_count)
        node->tensor = viewing->copying.tensors[node->tensor - 1] + 1;
    if (node->kind == VALUE_PERSID && node->storage > 0 && node->storage <= viewing->tensor_count)
        node->storage = viewing->copying.tensors[node->storage - 1] + 1;
    return true;
}

static reshard_status view_copy_items(struct viewing *viewing, reshard_error *err)
{
    struct catalog *catalog = viewing->view->catalog;
    struct work *work = viewing->view->limits.budget;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        struct catalog_item *item = &catalog->items[i];
        struct value_graph graph = { .arena.work = work };
        if (!item->value || value_is_leaf(item->value))
            continue;
        graph.root = value_copy(&graph, item->value, item->graph->count);
        if (!graph.root || !value_walk(graph.root, graph.count, work, view_renumber, viewing, NULL)) {
            value_graph_release(&graph);
            return work_error(work, err);
        }
        struct value_graph *kept = catalog_adopt_graph(catalog, graph);
        if (!kept)
            return error_set_memory(err);
        item->value = kept->root;
        item->graph = kept;
    }
    return RESHARD_OK;
}

/* The state of a view is a copy of the source's, whose files it shares, with matrices taken apart. */
static reshard_status view_new_state(struct source *view, reshard_error *err)
{
    const struct megatron_source *stored = megatron_source_of(view->stored);
    struct megatron_source *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    view->driver_state = state;
    *state = *stored;
    state->arena = (struct arena){ 0 };
    state->torch.origins = NULL;
    state->torch.origin_count = state->torch.origin_capacity = 0;
    state->context.rules = &state->rules;
    state->context.args = &state->args;
    state->parameters = array_zeroed(stored->parameter_count, sizeof(*state->parameters));
    if (!state->parameters)
        return error_set_memory(err);
    memcpy(state->parameters, stored->parameters, stored->parameter_count * sizeof(*state->parameters));
    return megatron_split_grouped(view, err);
}

void megatron_close_view(struct source *view)
{
    struct megatron_source *state = megatron_source_of(view);
    if (!state)
        return;
    arena_release(&state->arena);
    free(state->parameters);
    free(state->torch.origins);
    free(state);
}

static reshard_status view_fill(struct viewing *viewing, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(viewing->view);
    for (uint32_t i = 0; i < state->parameter_count; i++)
        if (state->parameters[i].member_count > 0)
            viewing->parameter_of[state->parameters[i].tensor] = i + 1;
    reshard_status status = catalog_copy(viewing->view->catalog, &viewing->copying, err);
    viewing->view->stored_items = viewing->copying.items;
    for (uint32_t i = 0; !status && i < state->leaf_count; i++)
        if (state->parameters[state->leaves[i].parameter].member_count > 0)
            status = megatron_add_members(viewing->view, &state->leaves[i], err);
    return status ? status : view_copy_items(viewing, err);
}

reshard_status megatron_view_by_parameter(struct source *view, reshard_error *err)
{
    const struct catalog *from = view->stored->catalog;
    const char *unrelated = megatron_source_of(view->stored)->unrelated;
    if (unrelated)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "%s", unrelated);
    struct viewing viewing = { .view = view, .from = from, .tensor_count = from->tensor_count };
    viewing.copying = (struct catalog_copying){ .from = from,
                                                .warning_count = view->stored->read_warnings,
                                                .context = &viewing,
                                                .replace_tensor = view_replace_tensor };
    viewing.parameter_of = array_zeroed(from->tensor_count, sizeof(*viewing.parameter_of));
    reshard_status status = viewing.parameter_of ? view_new_state(view, err) : error_set_memory(err);
    if (!status)
        status = view_fill(&viewing, err);
    free(viewing.parameter_of);
    free(viewing.copying.tensors);
    return status;
}
