/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arguments that a run was started with: the argparse.Namespace `args` of its files. What decides how the model is spread is read
 * into numbers; the rest stays where it is.
 */
#ifndef PARALLEL_TRAINING_ARGS_H
#define PARALLEL_TRAINING_ARGS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"

#define TRAINING_ARG_UNKNOWN INT64_MIN /* not among the arguments, or None */

/* Field, name in the Namespace, older name or "". Booleans are 0 and 1. */
#define TRAINING_ARGS(X)                                                                                                                   \
    X(tp, "tensor_model_parallel_size", "model_parallel_size")                                                                             \
    X(pp, "pipeline_model_parallel_size", "")                                                                                              \
    X(vp, "virtual_pipeline_model_parallel_size", "")                                                                                      \
    X(ep, "expert_model_parallel_size", "")                                                                                                \
    X(etp, "expert_tensor_parallel_size", "")                                                                                              \
    X(dp, "data_parallel_size", "")                                                                                                        \
    X(world_size, "world_size", "")                                                                                                        \
    X(num_layers, "num_layers", "")                                                                                                        \
    X(first_layers, "decoder_first_pipeline_num_layers", "")                                                                               \
    X(last_layers, "decoder_last_pipeline_num_layers", "")                                                                                 \
    X(with_embedding, "account_for_embedding_in_pipeline_split", "")                                                                       \
    X(with_loss, "account_for_loss_in_pipeline_split", "")                                                                                 \
    X(hidden_size, "hidden_size", "")                                                                                                      \
    X(heads, "num_attention_heads", "")                                                                                                    \
    X(query_groups, "num_query_groups", "")                                                                                                \
    X(is_grouped_query, "group_query_attention", "")                                                                                       \
    X(head_size, "kv_channels", "")                                                                                                        \
    X(is_swiglu, "swiglu", "gated_linear_unit")                                                                                            \
    X(is_geglu, "geglu", "quick_geglu")                                                                                                    \
    X(vocabulary, "vocab_size", "")                                                                                                        \
    X(padded_vocabulary, "padded_vocab_size", "")                                                                                          \
    X(vocabulary_unit, "make_vocab_size_divisible_by", "")                                                                                 \
    X(is_untied, "untie_embeddings_and_output_weights", "")                                                                                \
    X(experts, "num_experts", "")                                                                                                          \
    X(iteration, "iteration", "")                                                                                                          \
    X(mtp_layers, "mtp_num_layers", "")                                                                                                    \
    X(is_distributed_optimizer, "use_distributed_optimizer", "")

struct training_args {
    const struct value *members; /* DICT of the Namespace; NULL if there are no args */
#define X(field, name, alias) int64_t field;
    TRAINING_ARGS(X)
#undef X
    struct str layout;           /* pipeline_model_parallel_layout; "" if there is none */
    bool is_local_spec;          /* transformer_impl is "local" */
    bool has_mixed_layers;       /* layers are not all alike: keys of distributed checkpoints carry the layer's number */
};

/* namespace may be NULL or of any kind: then nothing is known. The strings belong to the value. */
void training_args_read(const struct value *namespace, struct training_args *out);

/* An integer or boolean member, or TRAINING_ARG_UNKNOWN. */
int64_t training_args_int(const struct training_args *args, const char *name);

/* The rows that a run with another TP pads the vocabulary to: at least and at most so many. False if it cannot be told, or the source is
 * not padded so. */
bool padded_vocabulary_rows(const struct training_args *args, int64_t tp, int64_t *least, int64_t *most);

/* The members of a Namespace as a DICT, or NULL. */
const struct value *namespace_members(const struct value *namespace);

/* ---- pipeline placement ---- */

/*
 * Where the layers are: stage (chunk c of rank s) number c * pp + s holds counts[number] layers; the stages follow each other in the order
 * of their numbers.
 */
struct pipeline_split {
    int64_t pp, vp;
    int64_t *counts; /* [pp * vp] */
};

#define PIPELINE_STAGES_MAX 65536

/*
 * How the arguments (with their pp and vp set) place num_layers layers. Fails with UNSUPPORTED, saying what divides and what would work, if
 * they cannot be placed so; FORMAT for a layout text that makes no sense.
 */
reshard_status pipeline_split_make(const struct training_args *args, struct arena *arena, struct pipeline_split *out, reshard_error *err);

/* First layer of a stage. */
int64_t pipeline_first_layer(const struct pipeline_split *pipeline, int64_t stage);

/* The stage that holds a layer; pp * vp if none does. */
int64_t pipeline_stage_of(const struct pipeline_split *pipeline, int64_t layer);

/* "1, 2, 4": the divisors of a number, as many as fit. Returns out. */
#define DIVISORS_TEXT_MAX 96
const char *divisors_text(int64_t number, char out[DIVISORS_TEXT_MAX]);

/* Whether the arguments say that the experts of a rank are one matrix, not modules: the grouped kernels of Megatron Core up to 0.16. */
bool experts_are_matrices(const struct training_args *args);

#endif
