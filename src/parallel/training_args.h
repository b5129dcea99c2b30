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

/* No argument tells the release. This one came with the rule that experts_are_apart knows, and is there whatever it is set to; the others
 * came with 0.16 and 0.17. */
#define PARTS_EXPERTS_BY_ETP "expert_tensor_parallel_num_weight_shards"
#define SINCE_0_16 "moe_latent_size"
#define SINCE_0_17 "mtp_use_repeated_layer"

struct training_args {
    const struct value *members; /* DICT of the Namespace; NULL if there are no args */
#define X(field, name, alias) int64_t field;
    TRAINING_ARGS(X)
#undef X
    struct str layout;           /* pipeline_model_parallel_layout; "" if there is none */
    bool is_local_spec;          /* transformer_impl is "local" */
    bool has_mixed_layers;       /* keys of distributed checkpoints carry the layer's number, or are made of such keys: layers are not all
                                    alike, or matrices of theirs are taken apart */
    bool parts_by_etp;           /* of Megatron Core from 0.19 on: see experts_are_apart */
    bool is_hybrid;              /* layers of several kinds in a stack of their own, with state-space layers among them */
    bool is_since_0_17;          /* of Megatron Core from 0.17 on, as far as the arguments tell */
    bool norm_follows_layers;    /* of Megatron Core from 0.16 on: with multi-token prediction the norm is on the last layer's stage */
    bool spreads_rng;            /* of Megatron Core 0.16: with expert parallelism each data-parallel rank's RNG state is stored */
};

/* namespace may be NULL or of any kind: then nothing is known. The strings belong to the value. */
void training_args_read(const struct value *namespace, struct training_args *out);

/* An integer or boolean member, or TRAINING_ARG_UNKNOWN. */
int64_t training_args_int(const struct training_args *args, const char *name);

/* argparse.Namespace with these attributes, as it is pickled: its members are set on a new object. NULL without memory, or members. */
struct value *namespace_new(struct value_graph *graph, struct value *members);

/* The members of a Namespace as a DICT, or NULL. */
const struct value *namespace_members(const struct value *namespace);

/* Whether the arguments say that activations are gated, and whether they say anything of it. */
bool training_args_are_gated(const struct training_args *args);
bool training_args_say_gates(const struct training_args *args);

/* Whether experts have parameter groups, gradient buffers and an optimizer of their own. With expert parallelism they have; since Megatron
 * Core 0.19 (use_expert_pgs of its layers) also where they are cut for another number of tensor-parallel ranks than the rest. */
bool experts_are_apart(bool parts_by_etp, int64_t tp, int64_t ep, int64_t etp);

/* Whether the arguments say that the experts of a rank are one matrix, not modules: the grouped kernels of Megatron Core up to 0.16. */
bool experts_are_matrices(const struct training_args *args);

#endif
