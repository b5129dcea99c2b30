/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in the files of one legacy rank, related to its parameters: model_optim_rng.pt's member `optimizer` (FP32Optimizer,
 * Float16Optimizer) and distrib_optim.pt. The same structure is the object param_state of the torch_dist layout dp_zero_gather_scatter.
 *
 * The result says which elements of which tensor of the archive are which parameter's state; where those lie in the file is the archive's
 * business, and which box of the logical tensor a local parameter is, the caller's.
 */
#ifndef FORMATS_MEGATRON_OPTIMIZER_LEGACY_H
#define FORMATS_MEGATRON_OPTIMIZER_LEGACY_H

#include "encoding/torch_save.h"
#include "formats/megatron/optimizer_buffers.h"

/* elements [offset, offset + numel of the parameter) of archive->tensors[tensor], row-major, are the parameter's. */
struct optimizer_piece {
    uint32_t parameter;
    uint32_t tensor;
    int64_t offset;
    struct str state;          /* "param", "fp32_param", "exp_avg", "exp_avg_sq", or another name of the optimizer's own; in the archive's memory */
};

struct optimizer_pieces {
    struct optimizer_piece *pieces;
    uint32_t count, capacity;
    uint32_t bucket_count;     /* most buckets that a buffer has */
    bool is_guessed;           /* the sizes do not follow from the arguments but from other rules that fit: worth a warning */
};

/* The rules that a rank was run with, from the members of its args (NULL: none). stage: its pipeline rank. */
struct optimizer_run {
    const struct value *args;  /* the attributes of the Namespace: a DICT */
    int64_t stage;
};
void optimizer_rules_of(const struct optimizer_run *run, bool is_expert, struct optimizer_rules *out);

/* Whether `optimizer` of model_optim_rng.pt holds state itself. */
bool optimizer_legacy_has_state(const struct value *optimizer);

/* The state in member `optimizer` of model_optim_rng.pt. Parameters of all chunks, in order. */
reshard_status optimizer_legacy_read(const struct torch_archive *archive, const struct value *optimizer, const struct optimizer_parameter *parameters,
                                     uint32_t count, struct optimizer_pieces *out, reshard_error *err);

/* The state in distrib_optim.pt, whose root is `state`. */
reshard_status optimizer_distributed_read(const struct torch_archive *archive, const struct value *state, const struct optimizer_run *run,
                                          const struct optimizer_parameter *parameters, uint32_t count, struct optimizer_pieces *out,
                                          reshard_error *err);
void optimizer_pieces_release(struct optimizer_pieces *pieces);

#endif
