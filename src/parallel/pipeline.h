/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers a stage of the pipeline holds. */
#ifndef PARALLEL_PIPELINE_H
#define PARALLEL_PIPELINE_H

#include "parallel/partition_rules.h"
#include "parallel/training_args.h"

/*
 * Where the layers are: stage (chunk c of rank s) number c * pp + s holds counts[number] layers; the stages follow each other in the order
 * of their numbers.
 */
struct pipeline_split {
    int64_t pp, vp;
    int64_t *counts; /* [pp * vp] */
    int64_t norm_stage; /* of the norm behind the layers: the last one, or the last layer's (training_args.norm_follows_layers) */
    int64_t mtp_stage;  /* of multi-token prediction: where a layout text has it, else the last one */
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

/* The stage that holds what has this name, of which key was read: its layer's, else where the rules have it, else the first. pp * vp if its
 * layer is beyond the last. */
int64_t pipeline_stage_of_key(const struct pipeline_split *pipeline, const struct partition_rules *rules, struct str name,
                              const struct partition_key *key);

/* Whether the last stage of tied embeddings shares its output layer with the first. One with multi-token prediction shares the embedding
 * that this reads instead. */
static inline bool pipeline_shares_output(const struct pipeline_split *pipeline, const struct training_args *args)
{
    return args->mtp_layers <= 0 || pipeline->mtp_stage != pipeline->pp * pipeline->vp - 1;
}

/* "1, 2, 4": the divisors of a number, as many as fit. Returns out. */
#define DIVISORS_TEXT_MAX 96
const char *divisors_text(int64_t number, char out[DIVISORS_TEXT_MAX]);

#endif
