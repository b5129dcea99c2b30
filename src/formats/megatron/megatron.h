/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Legacy Megatron-LM checkpoints: a torch.save file for every model-parallel rank.
 *
 *   latest_checkpointed_iteration.txt                  "10" or "release"
 *   iter_0000010/mp_rank_TT[_PPP][_EEE]/               TT: TP rank; PPP: PP rank if PP > 1; EEE: EP rank if EP > 1
 *     model_optim_rng.pt    dict: args, checkpoint_version, iteration, model (or model0, model1, … of a virtual pipeline), optimizer,
 *                           opt_param_scheduler, rng_state, …
 *     distrib_optim.pt      state of the distributed optimizer
 *
 * The files hold no global shapes: partition rules (models/megatron.rules) say how the ranks' tensors make whole ones. Keys are those below
 * `model` of a file with TP = PP = 1: layer and expert numbers count in the whole model. With optimizer state they are those of
 * a distributed checkpoint instead, where the layers lie along an axis, because only there optimizer state has names:
 * optimizer.state.STATE.KEY.
 *
 * One rank's file opened by itself shows its own tensors. Spec: docs/formats/megatron.md.
 */
#ifndef FORMATS_MEGATRON_MEGATRON_H
#define FORMATS_MEGATRON_MEGATRON_H

#include "formats/driver.h"

extern const struct format_driver format_megatron; /* "megatron" */

#endif
