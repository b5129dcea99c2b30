/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State of optimizers that are not distributed: tensors shaped as the parameters, by number, in member `optimizer` of model_optim_rng.pt
 * (FP32Optimizer, Float16OptimizerWithFloat16Params).
 */
#ifndef FORMATS_MEGATRON_NUMBERED_STATE_H
#define FORMATS_MEGATRON_NUMBERED_STATE_H

#include "encoding/torch_save.h"
#include "parallel/flat_buffers.h"
#include "parallel/state_pieces.h"

/* Whether `optimizer` of model_optim_rng.pt holds state itself, not only groups. */
bool numbered_state_exists(const struct value *optimizer);

/* The state in member `optimizer` of model_optim_rng.pt. Parameters of all chunks, in order. */
reshard_status numbered_state_read(const struct torch_archive *archive, const struct value *optimizer,
                                   const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err);

#endif
