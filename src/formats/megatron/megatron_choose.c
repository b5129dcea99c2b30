/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a target: what was asked for, what the reference has, what the model allows. */
#include "formats/megatron/megatron.h"
#include "formats/megatron/megatron_target.h"

#include "base/model_data.h"
#include "formats/shared/parallel_words.h"

#include <inttypes.h>

const struct megatron_source *megatron_folder_state(const struct source *source)
{
    if (!source || source->driver != &format_megatron)
        return NULL;
    const struct megatron_source *state = source->driver_state;
    return state->is_rank_file ? NULL : state;
}

static int64_t first_said(int64_t a, int64_t b)
{
    return a > 0 ? a : b;
}

/* Whether the experts of a rank are one matrix: as in the reference, else as the arguments say. */
static bool is_grouped(const struct megatron_source *like, const struct training_args *args)
{
    for (uint32_t i = 0; like && i < like->parameter_count; i++) {
        if (like->parameters[i].cut.is_grouped)
            return true;
        if (like->parameters[i].rule->is_expert)
            return false;
    }
    return experts_are_matrices(args);
}

static void choose_sizes(const struct layout_request *request, const struct megatron_source *like, struct megatron_target *state)
{
    const struct parallel_sizes words = parallel_sizes_of(request);
    struct parallel_layout *layout = &state->layout;
    const struct parallel_layout none = { 1, 1, 1, 1, 0 }, *reference = like ? &like->layout : &none;
    layout->tp = first_said(words.tp, reference->tp);
    layout->pp = first_said(words.pp, reference->pp);
    layout->vp = first_said(words.vp, words.pp ? 1 : reference->vp);
    layout->ep = first_said(words.ep, reference->ep);
    layout->etp = first_said(words.etp, words.tp || reference->etp == 0 ? layout->tp : reference->etp);
    if (state->experts == 0)
        layout->etp = layout->tp;
    state->is_like_layout = like && !words.tp && !words.pp && !words.vp && !words.ep && !words.etp;
}

/* ---- what the model has ---- */

struct counting {
    const struct megatron_target *state;
    int64_t layers, experts;
    struct str stack;           /* of the layers that count, "" before the first one */
    bool has_second, is_known, has_output;
    struct str strange;         /* a key that is no model's */
};

static void count_key(const struct megatron_target *state, struct str key, struct counting *counting)
{
    struct partition_key found;
    if (!partition_key_read(&state->rules, key, &found))
        return;
    if (found.expert >= counting->experts)
        counting->experts = found.expert + 1;
    if (str_ends_with(key, "output_layer.weight"))
        counting->has_output = true;
    if (!found.stack) {
        bool is_placed = partition_key_place(&state->rules, key) != PLACE_UNKNOWN;
        counting->is_known = counting->is_known || is_placed;
        if (!is_placed && counting->strange.size == 0)
            counting->strange = key;
        return;
    }
    counting->is_known = true;
    if (found.stack->is_own)
        return;
    struct str prefix = { key.data, found.layer_at };
    if (counting->stack.size == 0)
        counting->stack = prefix;
    counting->has_second = counting->has_second || !str_equal(counting->stack, prefix);
    if (found.layer >= counting->layers)
        counting->layers = found.layer + 1;
}

static reshard_status count_parameter(const struct target_parameter *parameter, void *context, reshard_error *err)
{
    struct counting *counting = context;
    (void)err;
    count_key(counting->state, parameter->name, counting);
    return RESHARD_OK;
}

/* The value of a wanted item, NULL if there is none. */
static reshard_status wanted_value(const struct layout_request *request, uint32_t item, const struct value **out, reshard_error *err)
{
    *out = NULL;
    if (item == CATALOG_NONE)
        return RESHARD_OK;
    const struct catalog_item *loaded;
    reshard_status status = layout_item(request, item, &loaded, err);
    *out = status ? NULL : loaded->value;
    return status;
}

static reshard_status find_args(const struct layout_request *request, struct megatron_target *state, reshard_error *err)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct value *args, *iteration;
    state->args_item = catalog_find_item(request->wanted, STR("args"));
    state->iteration = -1;
    reshard_status status = wanted_value(request, state->args_item, &args, err);
    if (!status)
        status = wanted_value(request, catalog_find_item(request->wanted, STR("iteration")), &iteration, err);
    if (status)
        return status;
    if (iteration && !value_as_int(iteration, &state->iteration))
        state->iteration = -1;
    training_args_read(args, &state->args);
    if (!state->args.members && like)
        state->args = like->args;
    return RESHARD_OK;
}

/* Whether activations are gated: as the arguments say; without, as the shapes tell. */
static reshard_status choose_gates(const struct layout_request *request, struct megatron_target *state, reshard_error *err)
{
    const struct catalog *wanted = request->wanted;
    reshard_status status = RESHARD_OK;
    state->gates.rules = &state->rules;
    for (uint32_t i = 0; i < wanted->tensor_count && !status; i++) {
        const struct catalog_tensor *tensor = &wanted->tensors[i];
        status = partition_gates_note(&state->gates, tensor->key, tensor->rank, catalog_vector_at(wanted, tensor->shape), err);
    }
    state->context.is_gated = training_args_are_gated(&state->args);
    return status || training_args_say_gates(&state->args) ? status : partition_gates_ask_any(&state->gates, &state->context.is_gated, err);
}

static reshard_status check_model(const struct layout_request *request, const struct megatron_target *state,
                                  const struct counting *counting, reshard_error *err)
{
    const uint32_t etp = layout_number(request, "etp");
    if (!counting->is_known && request->wanted->tensor_count > 0) {
        error_set(err, RESHARD_ERR_UNSUPPORTED,
                  "no key is one of a Megatron model, such as 'decoder.layers.0.self_attention.linear_qkv.weight'; found '%.*s'",
                  STR_ARG(counting->strange));
        error_hint(err, "reshard_map_options.rules NAME or reshard_map_options.texts FILE relates other names to Megatron's");
        return RESHARD_ERR_UNSUPPORTED;
    }
    if (counting->has_second && state->layout.pp * state->layout.vp > 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "two stacks of layers share a pipeline in a way that is not known: pp=1 and vp=1 work");
    if (state->layout.ep > 1 && counting->experts == 0 && state->experts == 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "ep=%" PRId64 ", but the model has no experts: ep=1 works", state->layout.ep);
    if (etp > 0 && state->experts == 0 && etp != state->layout.tp)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "etp=%u, but the model has no experts: leave etp out", (unsigned)etp);
    if (state->experts % state->layout.ep) {
        char divisors[DIVISORS_TEXT_MAX];
        error_set(err, RESHARD_ERR_UNSUPPORTED, "ep=%" PRId64 " does not divide %" PRId64 " experts", state->layout.ep, state->experts);
        error_hint(err, "ep may be %s", divisors_text(state->experts, divisors));
        return RESHARD_ERR_UNSUPPORTED;
    }
    return RESHARD_OK;
}

/* ---- the pipeline ---- */

static reshard_status choose_pipeline(const struct layout_request *request, const struct megatron_source *like,
                                      struct megatron_target *state, reshard_error *err)
{
    const struct megatron_source *source = megatron_folder_state(request->source), *model = NULL;
    if (like && !layout_number(request, "pp") && !layout_number(request, "vp"))
        model = like;
    else if (source && source->layout.pp == state->layout.pp && source->layout.vp == state->layout.vp)
        model = source;
    /* A source of another format has no ranks, but its arguments say how it was split. */
    struct training_args args = state->args;
    int64_t source_vp = args.vp == TRAINING_ARG_UNKNOWN ? 1 : args.vp;
    state->is_split_kept = !model && args.members && args.pp == state->layout.pp && source_vp == state->layout.vp;
    const struct training_args *split = model ? &model->args : state->is_split_kept ? &state->args : NULL;
    args.num_layers = state->layers;
    args.pp = state->layout.pp;
    args.vp = state->layout.vp;
    args.first_layers = split ? split->first_layers : TRAINING_ARG_UNKNOWN;
    args.last_layers = split ? split->last_layers : TRAINING_ARG_UNKNOWN;
    args.with_embedding = split ? split->with_embedding : TRAINING_ARG_UNKNOWN;
    args.with_loss = split ? split->with_loss : TRAINING_ARG_UNKNOWN;
    args.layout = split ? split->layout : (struct str){ 0 };
    int64_t total = 0;
    for (int64_t i = 0; model && i < model->layout.pp * model->layout.vp; i++)
        total += model->pipeline.counts[i];
    if (model && total == state->layers) {
        state->pipeline = model->pipeline;
        return RESHARD_OK;
    }
    return pipeline_split_make(&args, &state->arena, &state->pipeline, err);
}

reshard_status megatron_choose_layout(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    const struct megatron_source *like = megatron_folder_state(request->like);
    const struct model_data *rules = model_data_find(STR("megatron.rules"));
    const struct model_data *names = model_data_find(STR("megatron.names"));
    struct counting counting = { .state = state };
    const struct training_args *modules =
        like && like->args.members ? &like->args : &state->args; /* of the run that is to load the files */
    if (!rules || !names)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "the library was built without models/megatron.rules or models/megatron.names");
    reshard_status status = partition_rules_parse(rules->text, &state->arena, &state->rules, err);
    if (!status)
        status = parameter_names_parse(names->text, &state->arena, &state->names, err);
    if (!status)
        status = find_args(request, state, err);
    if (!status) {
        /* Names are those of single experts; the matrix is made of them in the end. */
        state->is_grouped = is_grouped(like, modules);
        state->conditions = name_conditions_of(modules) & ~(state->is_grouped ? (unsigned)NAME_GROUPED : 0);
        status = megatron_find_names(request, state, err);
    }
    if (!status)
        status = megatron_each_parameter(request, state, count_parameter, &counting, err);
    if (status)
        return status;
    state->layers = counting.layers;
    state->experts = state->args.experts > 0 ? state->args.experts : counting.experts;
    state->args.experts = state->experts > 0 ? state->experts : TRAINING_ARG_UNKNOWN;
    state->is_tied =
        state->args.members && state->args.is_untied != TRAINING_ARG_UNKNOWN ? state->args.is_untied == 0 : !counting.has_output;
    choose_sizes(request, like, state);
    status = check_model(request, state, &counting, err);
    if (!status)
        status = choose_pipeline(request, like, state, err);
    if (!status)
        status = megatron_choose_vocabulary(request, target, err);
    if (status)
        return status;
    state->context = (struct cut_context){ .rules = &state->rules, .args = &state->args, .layout = state->layout, .version_order = 2 };
    state->context.is_split_down = modules->is_local_spec;
    if (like && like->args.members) /* as the arguments say that are written */
        state->args.parts_by_etp = like->args.parts_by_etp || (!state->is_like_layout && state->args.parts_by_etp);
    state->experts_are_apart = experts_are_apart(state->args.parts_by_etp, state->layout.tp, state->layout.ep, state->layout.etp);
    return choose_gates(request, state, err);
}
