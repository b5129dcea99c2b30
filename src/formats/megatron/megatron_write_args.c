/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments in a written file: the source's, with the sizes of the target; or those of a reference whose layout is taken. */
#include "formats/megatron/megatron_target.h"

struct editing {
    struct value_graph *graph;
    struct value *members; /* DICT */
    bool failed;
};

static struct value *none(struct value_graph *graph)
{
    return value_new(graph, VALUE_NONE);
}

/* Sets a member; one that is not there is added if must_be. */
static void set_value(struct editing *editing, const char *name, struct value *value, bool must_be)
{
    editing->failed = editing->failed || !value || !value_dict_set(editing->graph, editing->members, name, value, must_be);
}

static void write_args_set_number(struct editing *editing, const char *name, int64_t number, bool must_be)
{
    set_value(editing, name, value_new_int(editing->graph, number), must_be);
}

/* A number that is None where it is not in use. */
static void set_optional(struct editing *editing, const char *name, int64_t number, bool is_used)
{
    set_value(editing, name, is_used ? value_new_int(editing->graph, number) : none(editing->graph), false);
}

static void set_bool(struct editing *editing, const char *name, bool boolean, bool must_be)
{
    struct value *value = value_new(editing->graph, VALUE_BOOL);
    if (value)
        value->boolean = boolean;
    set_value(editing, name, value, must_be);
}

static void write_args_set_sizes(struct editing *editing, const struct megatron_target *state, uint32_t rank)
{
    const struct parallel_layout *layout = &state->layout;
    int64_t world = least_world(layout);
    write_args_set_number(editing, "tensor_model_parallel_size", layout->tp, true);
    write_args_set_number(editing, "model_parallel_size", layout->tp, false);
    write_args_set_number(editing, "pipeline_model_parallel_size", layout->pp, true);
    write_args_set_number(editing, "transformer_pipeline_model_parallel_size", layout->pp, false);
    set_value(editing, "virtual_pipeline_model_parallel_size",
              layout->vp > 1 ? value_new_int(editing->graph, layout->vp) : none(editing->graph), true);
    set_optional(editing, "num_virtual_stages_per_pipeline_rank", layout->vp, layout->vp > 1);
    set_optional(editing, "num_layers_per_virtual_pipeline_stage", 0, false);
    write_args_set_number(editing, "expert_model_parallel_size", layout->ep, true);
    write_args_set_number(editing, "expert_tensor_parallel_size", layout->etp, layout->etp != layout->tp);
    write_args_set_number(editing, "world_size", world, true);
    write_args_set_number(editing, "data_parallel_size", world / (layout->tp * layout->pp), true);
    write_args_set_number(editing, "inprocess_active_world_size", world, false);
    write_args_set_number(editing, "rank", state->ranks[rank].global_rank, false);
    write_args_set_number(editing, "local_rank", state->ranks[rank].global_rank, false);
    if (state->padded_vocabulary > 0)
        write_args_set_number(editing, "padded_vocab_size", state->padded_vocabulary, true);
    set_value(editing, "ckpt_format", value_new_str(editing->graph, STR("torch")), false);
    set_bool(editing, "use_dist_ckpt", false, false);
}

/* An even pipeline, unless the split of the source or the reference was kept. */
static void set_pipeline(struct editing *editing, const struct megatron_source *model)
{
    static const char *const names[] = { "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers",
                                         "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
                                         "pipeline_model_parallel_layout" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct value *value = model && model->args.members ? value_dict_get(model->args.members, names[i]) : NULL;
        if (value)
            set_value(editing, names[i], value_copy(editing->graph, value, model->torch.files[model->ranks[0].file].graph->count), true);
        else if (i == 2 || i == 3)
            set_bool(editing, names[i], false, false);
        else
            set_value(editing, names[i], none(editing->graph), false);
    }
}

/* What says of which modules the model is made, and what optimizers it has: names of parameters follow, and are the reference's. */
static void take_modules(struct editing *editing, const struct megatron_source *like)
{
    static const char *const names[] = { "transformer_impl", "moe_grouped_gemm", "moe_use_legacy_grouped_gemm", PARTS_EXPERTS_BY_ETP };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct value *value = like->args.members ? value_dict_get(like->args.members, names[i]) : NULL;
        if (value)
            set_value(editing, names[i], value_copy(editing->graph, value, like->torch.files[like->ranks[0].file].graph->count), true);
    }
}

/* The arguments of the reference's run, which is to load the files, with how far the source's run had come. */
static void take_run(struct editing *editing, const struct megatron_source *like, uint32_t like_rank)
{
    static const char *const progress[] = { "iteration", "consumed_train_samples", "consumed_valid_samples", "skipped_train_samples" };
    struct value *reached[sizeof(progress) / sizeof(progress[0])];
    const struct megatron_rank *rank = &like->ranks[like_rank];
    if (!rank->args.members)
        return;
    struct value *taken = value_copy(editing->graph, rank->args.members, like->torch.files[rank->file].graph->count);
    editing->failed = editing->failed || !taken;
    if (editing->failed)
        return;
    for (size_t i = 0; i < sizeof(progress) / sizeof(progress[0]); i++)
        reached[i] = value_dict_get(editing->members, progress[i]);
    editing->members->list.items = taken->list.items;
    editing->members->list.count = taken->list.count;
    for (size_t i = 0; i < sizeof(progress) / sizeof(progress[0]); i++) {
        if (reached[i])
            set_value(editing, progress[i], reached[i], false);
    }
}

/* What tensors alone tell, for a source without arguments. */
static void set_model(struct editing *editing, const struct megatron_target *state)
{
    if (state->layers > 0)
        write_args_set_number(editing, "num_layers", state->layers, true);
    if (state->experts > 0)
        write_args_set_number(editing, "num_experts", state->experts, true);
    for (uint32_t i = 0; i < state->parameter_count; i++) {
        const struct target_parameter *parameter = &state->parameters[i];
        if (!parameter->key.rule->is_vocabulary || parameter->cut.rank != 2)
            continue;
        write_args_set_number(editing, "hidden_size", parameter->cut.shape[1], true);
        write_args_set_number(editing, "padded_vocab_size", parameter->cut.shape[0], true);
        break;
    }
    set_bool(editing, "untie_embeddings_and_output_weights", !state->is_tied, true);
    set_bool(editing, "swiglu", state->context.is_gated, true);
}

/* The layout that the target's pipeline split was taken from. */
static const struct megatron_source *pipeline_model(const struct layout_request *request, const struct megatron_target *state)
{
    const struct megatron_source *like = megatron_folder_state(request->like), *source = megatron_folder_state(request->source);
    if (like && !layout_number(request, "pp") && !layout_number(request, "vp"))
        return like;
    return source && source->layout.pp == state->layout.pp && source->layout.vp == state->layout.vp ? source : NULL;
}

struct value *megatron_write_args(const struct layout_request *request, const struct megatron_target *state, uint32_t rank,
                                  struct value *copied, struct value_graph *graph)
{
    struct value *namespace =
        copied && namespace_members(copied) ? copied : namespace_new(graph, value_new_list(graph, VALUE_DICT, NULL, 0));
    const struct megatron_source *like = megatron_folder_state(request->like);
    if (!namespace)
        return NULL;
    struct editing editing = { graph, (struct value *)namespace_members(namespace), false };
    write_args_set_sizes(&editing, state, rank);
    if (!state->is_split_kept || namespace != copied)
        set_pipeline(&editing, pipeline_model(request, state));
    if (namespace != copied)
        set_model(&editing, state);
    if (state->is_like_layout && state->ranks[rank].like != TORCH_NONE)
        take_run(&editing, like, state->ranks[rank].like);
    else if (like)
        take_modules(&editing, like);
    return editing.failed ? NULL : namespace;
}
