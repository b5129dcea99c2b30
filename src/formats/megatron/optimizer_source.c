/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/megatron/optimizer_source.h"

#include "base/array.h"
#include "formats/megatron/numbered_state.h"
#include "parallel/flat_state.h"
#include "parallel/state_keys.h"

#include "base/model_data.h"

#include <inttypes.h>
#include <stdlib.h>

static const struct value *optimizer_member(const struct megatron_rank *rank)
{
    return value_dict_get(rank->root, "optimizer");
}

bool megatron_rank_has_optimizer(const struct megatron_rank *rank)
{
    const struct value *member = optimizer_member(rank);
    return rank->optimizer_file != TORCH_NONE || (member && numbered_state_exists(member));
}

/* ---- the item ---- */

static bool holds_tensors(const struct value *key)
{
    static const char *const names[] = { "state", "fp32_from_fp16_params", "fp32_from_fp16" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (key->kind == VALUE_STR && str_is(key->text, names[i]))
            return true;
    }
    return false;
}

/* {"common_step": step}, which stays of the state of parameters; NULL without memory. */
static struct value *state_with_step(struct value_graph *graph, struct value *step)
{
    struct value *state = value_new_list(graph, VALUE_DICT, NULL, 0);
    return state && value_dict_set(graph, state, "common_step", step, true) ? state : NULL;
}

struct pruning {
    struct source *source;
    const struct megatron_rank *rank;
    struct value_graph *graph;
};

/* What is left of a member that holds tensors of parameters: NULL, or the step. */
static reshard_status prune_member(const struct pruning *pruning, const struct value *key, const struct value *value, struct value **out,
                                   reshard_error *err)
{
    struct value *step = NULL;
    *out = NULL;
    reshard_status status =
        str_is(key->text, "state") ? megatron_common_step(pruning->source, pruning->rank, value, &step, err) : RESHARD_OK;
    if (!status && step && !(*out = state_with_step(pruning->graph, step)))
        status = error_set_memory(err);
    return status;
}

/* The dict without the members that hold tensors of parameters, and the optimizer inside it likewise. */
static reshard_status prune_dict(const struct pruning *pruning, const struct value *dict, bool is_inner, struct value **out,
                                 reshard_error *err)
{
    struct value **items = arena_array(&pruning->graph->arena, dict->list.count, sizeof(struct value *));
    size_t count = 0;
    reshard_status status = items ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < dict->list.count && !status; i += 2) {
        struct value *key = dict->list.items[i], *value = dict->list.items[i + 1];
        bool is_optimizer = !is_inner && key->kind == VALUE_STR && value->kind == VALUE_DICT &&
                            (str_is(key->text, "optimizer") || str_is(key->text, "optimizer_state_dict"));
        if (holds_tensors(key))
            status = prune_member(pruning, key, value, &value, err);
        else if (is_optimizer)
            status = prune_dict(pruning, value, true, &value, err);
        if (status || !value)
            continue;
        items[count++] = key;
        items[count++] = value;
    }
    *out = status ? NULL : value_new_list(pruning->graph, VALUE_DICT, items, count);
    return status || *out ? status : error_set_memory(err);
}

reshard_status megatron_optimizer_item(struct source *source, const struct megatron_rank *rank, struct value *optimizer,
                                       struct value **out, reshard_error *err)
{
    const struct pruning pruning = { source, rank, megatron_source_of(source)->torch.files[rank->file].graph };
    *out = optimizer;
    if (!numbered_state_exists(optimizer))
        return RESHARD_OK;
    if (optimizer->kind == VALUE_DICT)
        return prune_dict(&pruning, optimizer, false, out, err);
    struct value **items = arena_array(&pruning.graph->arena, optimizer->list.count, sizeof(struct value *));
    reshard_status status = items ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < optimizer->list.count && !status; i++) {
        items[i] = optimizer->list.items[i];
        if (items[i]->kind == VALUE_DICT)
            status = prune_dict(&pruning, items[i], false, &items[i], err);
    }
    *out = status ? NULL : value_new_list(pruning.graph, VALUE_LIST, items, optimizer->list.count);
    return status || *out ? status : error_set_memory(err);
}

/* ---- keys ---- */

/* Parameters that share a key, while their tensors are made. */
struct stacked {
    struct str key;
    uint32_t first, count;       /* number of the first in the list, and how many */
    int64_t extent[NAME_NUMBERS_MAX];
    uint32_t tensor;
};

struct stacking {
    struct source *source;
    struct megatron_source *state;
    struct parameter_names names;
    int kept;                    /* numbers that stay in keys: 1 where layers differ */
    struct megatron_parameter **list; /* those that get tensors: no copies, and instead of matrices of experts each expert's */
    uint32_t count;
    struct name_map keys;
    struct stacked *stacks;
    uint32_t *stack_of;          /* by number in the list */
};

/* The key of a parameter, and its places along the axes in front. Names that are not known stay as they are. */
static bool distributed_key(struct stacking *stacking, struct megatron_parameter *parameter, struct buffer *out)
{
    struct parameter_name name;
    buffer_clear(out);
    parameter->lead_count = 0;
    if (!parameter_name_read(&stacking->names, megatron_source_conditions(stacking->state), parameter->key, &name))
        return buffer_append_str(out, parameter->key);
    int kept = parameter_key_kept(&stacking->names, &name, stacking->kept);
    parameter_key_write(&stacking->names, &name, kept, out);
    for (int i = kept; i < name.number_count && i < kept + 2; i++)
        parameter->lead[parameter->lead_count++] = name.numbers[i];
    return !out->failed;
}

static reshard_status stack_parameter(struct stacking *stacking, uint32_t index, struct buffer *text, reshard_error *err)
{
    struct megatron_parameter *parameter = stacking->list[index];
    bool is_new;
    if (!distributed_key(stacking, parameter, text))
        return error_set_memory(err);
    uint32_t number = name_map_intern(&stacking->keys, buffer_str(text), &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    struct stacked *stack = &stacking->stacks[number];
    if (is_new)
        *stack = (struct stacked){ .key = name_map_at(&stacking->keys, number), .first = index };
    stack->count++;
    stacking->stack_of[index] = number;
    for (uint32_t i = 0; i < parameter->lead_count; i++) {
        if (parameter->lead[i] >= stack->extent[i])
            stack->extent[i] = parameter->lead[i] + 1;
    }
    return RESHARD_OK;
}

static bool is_like(const struct megatron_parameter *a, const struct megatron_parameter *b)
{
    return a->dtype == b->dtype && a->lead_count == b->lead_count && a->cut.rank == b->cut.rank &&
           memcmp(a->cut.shape, b->cut.shape, (size_t)a->cut.rank * sizeof(*a->cut.shape)) == 0;
}

/* Whether what shares a key fills its axes and is alike. Parameters are distinct, so counting suffices. */
static bool all_fill(const struct stacking *stacking)
{
    for (uint32_t i = 0; i < stacking->count; i++) {
        if (!is_like(stacking->list[i], stacking->list[stacking->stacks[stacking->stack_of[i]].first]))
            return false;
    }
    for (uint32_t i = 0; i < stacking->keys.count; i++) {
        const struct stacked *stack = &stacking->stacks[i];
        int64_t volume = 1;
        for (uint32_t k = 0; k < stacking->list[stack->first]->lead_count; k++) {
            if (__builtin_mul_overflow(volume, stack->extent[k], &volume))
                return false;
        }
        if (volume != stack->count)
            return false;
    }
    return true;
}

static reshard_status stack_all(struct stacking *stacking, int kept, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    name_map_release(&stacking->keys);
    stacking->keys = (struct name_map){ 0 };
    stacking->kept = kept;
    for (uint32_t i = 0; i < stacking->count && !status; i++)
        status = stack_parameter(stacking, i, &text, err);
    buffer_release(&text);
    return status;
}

static reshard_status add_stack(struct stacking *stacking, struct stacked *stack, reshard_error *err)
{
    struct megatron_source *state = stacking->state;
    const struct megatron_parameter *first = stacking->list[stack->first];
    const struct megatron_leaf *leaf = &state->leaves[first->first_leaf];
    uint32_t file = state->ranks[leaf->rank].file;
    int64_t shape[RANK_MAX];
    int rank = (int)first->lead_count + first->cut.rank;
    if (rank > RANK_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "more than %d axes", RANK_MAX);
    memcpy(shape, stack->extent, first->lead_count * sizeof(*shape));
    memcpy(shape + first->lead_count, first->cut.shape, (size_t)first->cut.rank * sizeof(*shape));
    reshard_status status = catalog_add_tensor(stacking->source->catalog, stack->key, first->dtype, rank, shape, &stack->tensor, err);
    if (status)
        return status;
    const struct torch_origin origin = { file, leaf->tensor, state->torch.files[file].archive.tensors[leaf->tensor].storage };
    return torch_source_note_origin(&state->torch, stack->tensor, origin, err);
}

static reshard_status read_names(struct stacking *stacking, reshard_error *err)
{
    const struct model_data *data = model_data_find(STR("megatron.names"));
    if (!data)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/megatron.names");
    return parameter_names_parse(data->text, &stacking->state->arena, &stacking->names, err);
}

/* Those that get tensors: no copies, and instead of a matrix of experts each expert's. */
static uint32_t stackable_count(const struct megatron_parameter *parameter)
{
    return parameter->is_copy ? 0 : parameter->member_count > 0 ? parameter->member_count : 1;
}

static struct megatron_parameter *stackable_at(struct megatron_parameter *parameter, uint32_t index)
{
    return parameter->member_count > 0 ? &parameter->members[index] : parameter;
}

/* The list, and room for what is told of its parameters. */
static reshard_status list_stackable(struct stacking *stacking, reshard_error *err)
{
    struct megatron_source *state = stacking->state;
    uint64_t count = 0;
    for (uint32_t i = 0; i < state->parameter_count; i++)
        count += stackable_count(&state->parameters[i]);
    if (count > stacking->source->limits.tensors)
        return error_set(err, RESHARD_ERR_LIMIT, "%" PRIu64 " parameters, more than the limit tensors=%" PRIu64, count,
                         stacking->source->limits.tensors);
    stacking->list = array_zeroed(count, sizeof(*stacking->list));
    stacking->stacks = array_zeroed(count, sizeof(*stacking->stacks));
    stacking->stack_of = array_zeroed(count, sizeof(*stacking->stack_of));
    if (!stacking->list || !stacking->stacks || !stacking->stack_of)
        return error_set_memory(err);
    for (uint32_t i = 0; i < state->parameter_count; i++)
        for (uint32_t k = 0; k < stackable_count(&state->parameters[i]); k++)
            stacking->list[stacking->count++] = stackable_at(&state->parameters[i], k);
    return RESHARD_OK;
}

reshard_status megatron_add_distributed_tensors(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    struct stacking stacking = { .source = source, .state = state };
    reshard_status status = list_stackable(&stacking, err);
    if (!status)
        status = read_names(&stacking, err);
    if (!status)
        status = stack_all(&stacking, state->args.has_mixed_layers ? 1 : 0, err);
    /* Layers that differ keep their numbers, whatever the arguments say. */
    if (!status && !stacking.kept && !all_fill(&stacking))
        status = stack_all(&stacking, 1, err);
    if (!status && !all_fill(&stacking) && !megatron_may_lack(source))
        status =
            error_set(err, RESHARD_ERR_FORMAT, "layers or experts of the model are missing or not alike, so that they have no common key");
    for (uint32_t i = 0; i < stacking.keys.count && !status; i++)
        status = add_stack(&stacking, &stacking.stacks[i], err);
    for (uint32_t i = 0; i < stacking.count && !status; i++)
        stacking.list[i]->tensor = stacking.stacks[stacking.stack_of[i]].tensor;
    name_map_release(&stacking.keys);
    free(stacking.list);
    free(stacking.stacks);
    free(stacking.stack_of);
    return status;
}

static reshard_status give_stored_name(const struct megatron_parameter *parameter, stored_name_sink sink, void *context, reshard_error *err)
{
    const struct stored_name name = { .name = parameter->key,
                                      .tensor = parameter->tensor,
                                      .lead = { parameter->lead[0], parameter->lead[1] },
                                      .lead_count = (int)parameter->lead_count };
    return sink(&name, context, err);
}

reshard_status megatron_each_stored_name(const struct source *source, stored_name_sink sink, void *context, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; state->has_optimizer && i < state->parameter_count; i++)
        for (uint32_t k = 0; k < stackable_count(&state->parameters[i]) && !status; k++)
            status = give_stored_name(stackable_at(&state->parameters[i], k), sink, context, err);
    return status;
}

/* ---- state ---- */

/* What one rank has of the optimizer. */
struct rank_state {
    struct source *source;
    struct megatron_source *state;
    const struct parameter_names *names;
    const struct megatron_rank *rank;
    struct rank_parameter *parameters;
    uint32_t *leaves;            /* by parameter */
    uint32_t count;
    bool is_trial;               /* whether it can be related is asked, and nothing is added */
    struct name_map *tensors;    /* keys of state -> tensor, in the order of addition */
    uint32_t *tensor_of, tensor_capacity;
    struct buffer text;
};

/* The other end of a tie: the embedding that has a copy on another stage, or the copy. Where further tokens are predicted, their stage
 * shares the embedding itself. */
static bool optimizer_source_is_tied(const struct megatron_source *state, uint32_t parameter)
{
    bool predicts = state->args.mtp_layers > 0;
    if (!(state->is_tied || predicts) || state->layout.pp == 1)
        return false;
    if (state->parameters[parameter].is_copy)
        return pipeline_shares_output(&state->pipeline, &state->args);
    for (uint32_t i = 0; i < state->rules.copy_count; i++) {
        if (str_equal(state->rules.copies[i].original, state->parameters[parameter].key))
            return true;
    }
    return false;
}

static bool optimizer_source_is_parameter(const struct rank_state *all, const struct megatron_leaf *leaf)
{
    struct parameter_name name;
    return !parameter_name_read(all->names, megatron_source_conditions(all->state), leaf->name, &name) ||
           !all->names->lines[name.line].is_buffer;
}

static void list_parameters(struct rank_state *all)
{
    struct megatron_source *state = all->state;
    const struct torch_archive *archive = &state->torch.files[all->rank->file].archive;
    const bool are_apart = experts_are_apart(state->args.parts_by_etp, state->layout.tp, state->layout.ep, state->layout.etp);
    for (uint32_t i = 0; i < all->rank->leaf_count; i++) {
        const struct megatron_leaf *leaf = &state->leaves[all->rank->first_leaf + i];
        const struct torch_tensor *tensor = &archive->tensors[leaf->tensor];
        const struct partition_rule *rule = leaf->key.rule;
        if (!optimizer_source_is_parameter(all, leaf))
            continue;
        all->leaves[all->count] = all->rank->first_leaf + i;
        all->parameters[all->count++] = (struct rank_parameter){
            .name = leaf->name,
            .param_dtype = tensor->dtype,
            .grad_dtype = DTYPE_F32,
            .rank = tensor->rank,
            .shape = tensor->shape,
            .chunk = (uint32_t)(leaf->stage / state->layout.pp),
            .is_expert = are_apart && partition_rule_has_experts(rule),
            .is_embedding = rule->is_vocabulary && tensor->rank == 2,
            .is_shared_embedding = optimizer_source_is_tied(state, leaf->parameter),
        };
    }
}

/* The tensor of a parameter's state. */
static reshard_status optimizer_source_state_tensor(struct rank_state *all, const struct megatron_parameter *parameter,
                                                    const struct state_piece *piece, uint32_t file, uint32_t *out, reshard_error *err)
{
    struct catalog *catalog = all->source->catalog;
    const struct torch_tensor *stored = &all->state->torch.files[file].archive.tensors[piece->tensor];
    const struct catalog_tensor *weight = &catalog->tensors[parameter->tensor];
    bool is_new;
    int64_t shape[RANK_MAX];
    buffer_clear(&all->text);
    buffer_append_text(&all->text, STATE_KEY_PREFIX);
    buffer_append_str(&all->text, piece->state);
    buffer_append_byte(&all->text, '.');
    if (!buffer_append_str(&all->text, weight->key))
        return error_set_memory(err);
    uint32_t number = name_map_intern(all->tensors, buffer_str(&all->text), &is_new);
    if (number == NAME_NONE)
        return error_set_memory(err);
    if (!is_new) {
        *out = all->tensor_of[number];
        return catalog->tensors[*out].dtype == stored->dtype
                   ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_FORMAT, "it is of another dtype than in other files");
    }
    if (!ARRAY_ROOM(all->tensor_of, number, all->tensor_capacity))
        return error_set_memory(err);
    memcpy(shape, catalog_vector_at(catalog, weight->shape), (size_t)weight->rank * sizeof(*shape));
    reshard_status status = catalog_add_tensor(catalog, name_map_at(all->tensors, number), stored->dtype, weight->rank, shape, out, err);
    if (status)
        return status;
    all->tensor_of[number] = *out;
    const struct torch_origin origin = { file, piece->tensor, stored->storage };
    return torch_source_note_origin(&all->state->torch, *out, origin, err);
}

/* A piece of a rank's state, and where it lies. */
struct adding_piece {
    struct rank_state *all;
    const struct state_piece *piece;
    uint32_t file;
};

/* Adds what a parameter has of the piece: from element `offset` of it on. strides: NULL if it is row-major. */
static reshard_status add_piece_of(const struct megatron_parameter *parameter, int64_t offset, const int64_t *strides, void *context,
                                   reshard_error *err)
{
    const struct adding_piece *adding = context;
    struct rank_state *all = adding->all;
    uint32_t tensor;
    reshard_status status = optimizer_source_state_tensor(all, parameter, adding->piece, adding->file, &tensor, err);
    if (status)
        return status;
    const struct megatron_part part = { .parameter = parameter, .place = &all->rank->place, .catalog_tensor = tensor, .file = adding->file,
                                        .tensor = adding->piece->tensor, .offset = adding->piece->offset + offset, .strides = strides };
    all->state->torch.files[adding->file].listed[adding->piece->tensor] = tensor + 1;
    return megatron_add_part(all->source, &part, err);
}

static reshard_status optimizer_source_add_pieces(struct rank_state *all, const struct state_pieces *pieces, uint32_t file,
                                                  reshard_error *err)
{
    struct megatron_source *state = all->state;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < pieces->count && !status; i++) {
        const struct state_piece *piece = &pieces->pieces[i];
        const struct megatron_leaf *leaf = &state->leaves[all->leaves[piece->parameter]];
        const struct megatron_parameter *parameter = &state->parameters[leaf->parameter];
        struct adding_piece adding = { all, piece, file };
        if (parameter->is_copy)
            parameter = &state->parameters[parameter->original];
        status = parameter->member_count > 0 ? megatron_each_member(parameter, &all->rank->place, add_piece_of, &adding, err)
                                             : add_piece_of(parameter, 0, NULL, &adding, err);
        if (status)
            error_prefix(err, "state '%.*s' of '%.*s'", STR_ARG(piece->state), STR_ARG(leaf->name));
    }
    return status;
}

static void warn_guess(struct rank_state *all, const struct state_pieces *pieces)
{
    if (pieces->is_guessed)
        catalog_warn(all->source->catalog, false,
                     "'%.*s/%s': the sizes do not follow from the arguments of the run; they are those of an optimizer without "
                     "buckets or without alignment, which is taken to have written them",
                     STR_ARG(all->rank->folder), MEGATRON_OPTIMIZER_FILE);
}

static reshard_status optimizer_source_read_state(struct rank_state *all, reshard_error *err)
{
    const struct megatron_rank *rank = all->rank;
    struct megatron_source *state = all->state;
    struct state_pieces pieces = { 0 };
    const struct value *member = optimizer_member(rank);
    const struct training_run run = { .args = rank->args.members, .stage = rank->place.pp };
    uint32_t file = rank->file;
    reshard_status status = RESHARD_OK;
    if (rank->optimizer_file != TORCH_NONE) {
        file = rank->optimizer_file;
        const struct torch_file *opened = &state->torch.files[file];
        status = flat_state_read(&opened->archive, opened->graph->root, &run, all->parameters, all->count, &pieces, err);
        if (!all->is_trial)
            warn_guess(all, &pieces);
    } else if (member && numbered_state_exists(member)) {
        status = numbered_state_read(&state->torch.files[file].archive, member, all->parameters, all->count, &pieces, err);
    }
    if (!status && !all->is_trial)
        status = optimizer_source_add_pieces(all, &pieces, file, err);
    state_pieces_release(&pieces);
    return status;
}

static reshard_status optimizer_source_add_rank(struct rank_state *all, reshard_error *err)
{
    all->count = 0;
    all->parameters = array_zeroed(all->rank->leaf_count, sizeof(*all->parameters));
    all->leaves = array_zeroed(all->rank->leaf_count, sizeof(*all->leaves));
    reshard_status status = all->parameters && all->leaves ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        list_parameters(all);
        status = optimizer_source_read_state(all, err);
    }
    if (status) {
        const char *file = all->rank->optimizer_file != TORCH_NONE ? MEGATRON_OPTIMIZER_FILE : MEGATRON_MODEL_FILE;
        error_prefix(err, "'%.*s/%s'", STR_ARG(all->rank->folder), file);
        error_object(err, "%.*s/%s", STR_ARG(all->rank->folder), file);
    }
    free(all->parameters);
    free(all->leaves);
    return status;
}

static reshard_status each_rank_state(struct source *source, bool is_trial, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    struct stacking names = { .state = state };
    struct name_map tensors = { 0 };
    struct rank_state all = { .source = source, .state = state, .names = &names.names, .is_trial = is_trial, .tensors = &tensors };
    reshard_status status = read_names(&names, err);
    for (uint32_t i = 0; i < state->rank_count && !status; i++) {
        all.rank = &state->ranks[i];
        status = optimizer_source_add_rank(&all, err);
    }
    buffer_release(&all.text);
    free(all.tensor_of);
    name_map_release(&tensors);
    return status;
}

reshard_status megatron_add_optimizer(struct source *source, reshard_error *err)
{
    return each_rank_state(source, false, err);
}

reshard_status megatron_find_unrelated(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    reshard_error reason = { 0 };
    reshard_status status = each_rank_state(source, true, &reason);
    if (status != RESHARD_ERR_UNSUPPORTED && (status || !state->no_common_step)) {
        if (status && err)
            *err = reason;
        return status;
    }
    state->unrelated = status ? arena_printf(&state->arena, "%s", reason.message) : state->no_common_step;
    if (!state->unrelated)
        return error_set_memory(err);
    state->has_optimizer = false;
    source->has_other_view = true;
    catalog_warn(source->catalog, false, "optimizer state cannot be related to parameters, and is listed as it is stored: %s",
                 state->unrelated);
    return RESHARD_OK;
}
