/* SPDX-License-Identifier: Apache-2.0 */
/* What inspect says about a run. */
#include "formats/megatron/megatron_source.h"

#include <inttypes.h>
#include <stdio.h>

static reshard_status add_layout(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    const struct parallel_layout *layout = &state->layout;
    struct buffer text = { 0 };
    buffer_printf(&text, "tp=%" PRId64 ", pp=%" PRId64, layout->tp, layout->pp);
    if (layout->vp > 1)
        buffer_printf(&text, ", vp=%" PRId64, layout->vp);
    buffer_printf(&text, ", ep=%" PRId64, layout->ep);
    if (layout->etp != layout->tp)
        buffer_printf(&text, ", etp=%" PRId64, layout->etp);
    if (state->args.dp > 0)
        buffer_printf(&text, ", dp=%" PRId64, state->args.dp);
    buffer_printf(&text, "; %" PRIu32 " rank files", state->rank_count);
    reshard_status status = text.failed ? error_set_memory(err)
                                        : catalog_add_fact(source->catalog, "layout", err, "%.*s", STR_ARG(buffer_str(&text)));
    buffer_release(&text);
    return status;
}

static reshard_status add_pipeline(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    int64_t stages = state->layout.pp * state->layout.vp, total = 0;
    struct buffer text = { .limit = 400 };
    for (int64_t i = 0; i < stages; i++) {
        total += state->pipeline.counts[i];
        buffer_printf(&text, "%s%" PRId64, i ? " " : "", state->pipeline.counts[i]);
    }
    struct str counts = buffer_str(&text);
    reshard_status status = stages == 1 ? catalog_add_fact(source->catalog, "layers", err, "%" PRId64, total)
                                        : catalog_add_fact(source->catalog, "layers", err, "%" PRId64 ", by stage: %.*s%s", total,
                                                           STR_ARG(counts), text.failed ? " …" : "");
    buffer_release(&text);
    return status;
}

/* The members of args that say what model it is. */
static reshard_status add_args(struct source *source, reshard_error *err)
{
    static const char *const names[] = {
        "hidden_size", "ffn_hidden_size",   "num_attention_heads",          "num_query_groups",        "kv_channels", "num_experts",
        "vocab_size",  "padded_vocab_size", "make_vocab_size_divisible_by", "max_position_embeddings", "seed"
    };
    const struct megatron_source *state = megatron_source_of(source);
    struct buffer text = { 0 };
    if (!state->args.members)
        return catalog_add_fact(source->catalog, "args", err, "none: the layout is what the folders' names say");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        int64_t number = training_args_int(&state->args, names[i]);
        if (number != TRAINING_ARG_UNKNOWN)
            buffer_printf(&text, "%s%s=%" PRId64, text.size ? ", " : "", names[i], number);
    }
    buffer_printf(&text, "%s%s embeddings", text.size ? ", " : "", state->is_tied ? "tied" : "untied");
    reshard_status status =
        text.failed ? error_set_memory(err) : catalog_add_fact(source->catalog, "args", err, "%.*s", STR_ARG(buffer_str(&text)));
    buffer_release(&text);
    return status;
}

static reshard_status facts_add_version(struct source *source, reshard_error *err)
{
    const struct megatron_source *state = megatron_source_of(source);
    const struct value *iteration = value_dict_get(state->ranks[0].root, "iteration");
    int64_t number;
    reshard_status status = state->version > 0
        ? catalog_add_fact(source->catalog, "checkpoint version", err, "%d.%d", (int)state->version, (int)(state->version * 10) % 10)
        : catalog_add_fact(source->catalog, "checkpoint version", err, "0 (not said)");
    if (!status && iteration && value_as_int(iteration, &number))
        status = catalog_add_fact(source->catalog, "iteration", err, "%" PRId64, number);
    if (!status && state->context.version_order < 2)
        status = catalog_add_fact(source->catalog, "row order", err, "fused heads of query_key_value are put in the order of version 2");
    return status;
}

/* The command that makes it loadable there: what changes is TP, the rest stays. */
static reshard_status add_command(struct source *source, int64_t tp, reshard_error *err)
{
    const struct parallel_layout *layout = &megatron_source_of(source)->layout;
    const char *path = store_path(source->store);
    char words[128];
    int size = snprintf(words, sizeof(words), "tp=%" PRId64 ",pp=%" PRId64, tp, layout->pp);
    if (layout->vp > 1)
        size += snprintf(words + size, sizeof(words) - (size_t)size, ",vp=%" PRId64, layout->vp);
    if (layout->ep > 1)
        snprintf(words + size, sizeof(words) - (size_t)size, ",ep=%" PRId64, layout->ep);
    path = path[0] ? path : "SOURCE";
    reshard_status status =
        catalog_add_fact(source->catalog, "to load it there", err,
                         "reshard_convert() %s TARGET reshard_convert_options.to megatron reshard_convert_options.layout %s", path, words);
    return status ? status
                  : catalog_add_fact(source->catalog, "under any layout", err,
                                     "reshard_convert() %s TARGET reshard_convert_options.to torch_dist", path);
}

/* What Megatron would say, and what to do about it. */
static reshard_status add_loading(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    const struct parallel_layout *layout = &state->layout;
    struct parallel_layout other = *layout;
    other.tp = layout->tp > 1 ? layout->tp / 2 : 2;
    other.etp = other.tp;
    struct rank_place last = { other.tp - 1, 0, 0, 0 };
    char *folder = rank_folder_name(&state->arena, &other, &last);
    if (!folder)
        return error_set_memory(err);
    reshard_status status = catalog_add_fact(source->catalog, "loads with", err,
                                             "tp=%" PRId64 ", pp=%" PRId64 ", vp=%" PRId64 ", ep=%" PRId64
                                             " and nothing else: each rank opens the folder of its own name",
                                             layout->tp, layout->pp, layout->vp, layout->ep);
    char missing[128] = "";
    if (other.tp > layout->tp)
        snprintf(missing, sizeof(missing), ", or FileNotFoundError for %.60s/" MEGATRON_MODEL_FILE, folder);
    if (!status && state->args.members)
        status = catalog_add_fact(source->catalog, "under another layout", err,
                                  "a run with tp=%" PRId64 " stops: \"tensor_model_parallel_size value from checkpoint (%" PRId64
                                  ") is not equal to the input argument value (%" PRId64 ")\"%s",
                                  other.tp, layout->tp, other.tp, missing);
    else if (!status)
        status = catalog_add_fact(source->catalog, "under another layout", err,
                                  "a run with tp=%" PRId64 " stops: its parameters have other shapes than those in %s/" MEGATRON_MODEL_FILE,
                                  other.tp, folder);
    return status ? status : add_command(source, other.tp, err);
}

reshard_status megatron_add_facts(struct source *source, reshard_error *err)
{
    struct megatron_source *state = megatron_source_of(source);
    reshard_status status = facts_add_version(source, err);
    source->catalog->ranks = state->rank_count;
    if (!status)
        status = add_layout(source, err);
    if (!status)
        status = add_pipeline(source, err);
    if (!status)
        status = add_args(source, err);
    if (!status)
        status = add_loading(source, err);
    return status;
}
