/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state in the files of one legacy rank, related to its parameters: model_optim_rng.pt's member `optimizer` (FP32Optimizer,
 * Float16OptimizerWithFloat16Params) and distrib_optim.pt (DistributedOptimizer). The object param_state of the torch_dist layout
 * dp_zero_gather_scatter has the structure of one optimizer of the latter.
 *
 * The result says which elements of which tensor of the archive are which parameter's state; where those lie in the file is the archive's
 * business, and which box of the logical tensor a local parameter is, the caller's.
 */
#ifndef PARALLEL_STATE_BY_NUMBER_H
#define PARALLEL_STATE_BY_NUMBER_H

#include "encoding/torch_save.h"
#include "parallel/flat_buffers.h"

/* The elements of archive->tensors[tensor] from offset on, row-major and contiguous, are the parameter's. */
struct state_piece {
    uint32_t parameter;
    uint32_t tensor;
    int64_t offset;
    struct str state; /* "param", "fp32_param", "exp_avg", "exp_avg_sq", or another name of the optimizer's own; in the archive's memory */
};

struct state_pieces {
    struct state_piece *pieces;
    uint32_t count, capacity;
    uint32_t bucket_count;     /* most buckets that a buffer has, 0: not distributed */
    bool is_guessed;           /* the sizes do not follow from the arguments, but from other rules that fit: worth a warning */
};

/* How a rank was run: the attributes of its args (a DICT, or NULL: not known) and its pipeline rank. */
struct training_run {
    const struct value *args;
    int64_t stage;
};
reshard_status flat_buffer_rules_of(const struct training_run *run, const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                    struct flat_buffer_rules *out, reshard_error *err);

/* Whether `optimizer` of model_optim_rng.pt holds state itself, not only groups. */
bool numbered_state_exists(const struct value *optimizer);

/* The state in member `optimizer` of model_optim_rng.pt. Parameters of all chunks, in order. */
reshard_status numbered_state_read(const struct torch_archive *archive, const struct value *optimizer,
                                   const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err);

/* The state in distrib_optim.pt, whose root is `state`. */
reshard_status flat_state_read(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                               const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err);

/* As that, for the one optimizer of the parameters with is_expert as given. */
reshard_status flat_state_read_one(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                                   const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct state_pieces *out,
                                   reshard_error *err);
void state_pieces_release(struct state_pieces *pieces);

#endif
