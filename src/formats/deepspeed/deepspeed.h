/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's checkpoints (docs/formats/deepspeed.md), read: those of engine.save_checkpoint, where D counts the ranks that share the
 * optimizer's state, MM those of a model that is tensor-parallel,
 *
 *   latest                                              the folder of the latest
 *   mp_rank_MM_model_states.pt                          ZeRO 0 to 2: the model, counters, scheduler, the user's own state
 *   zero_pp_rank_D_mp_rank_MM_model_states.pt           ZeRO 3: the same without the parameters, and pieces of frozen ones
 *   [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt    ZeRO 1 to 3: the rank's part of fp32 masters and of the optimizer's state
 *
 * and universal ones, which ds_to_universal.py makes of them:
 *
 *   latest_universal                                    the folder of the latest
 *   zero/NAME/STATE.pt                                  a state of a parameter, whole; fp32: the master
 *   zero/optimizer_state.pt                             what the optimizer has besides
 *   *_model_states.pt                                   the model files, as they were
 *
 * Parameters that are trained are the fp32 masters, as zero_to_fp32.py gives them; all else of the model is as it is stored. The optimizer
 * is one item, "optimizer", its state by the parameters' names.
 */
#ifndef FORMATS_DEEPSPEED_H
#define FORMATS_DEEPSPEED_H

#include "formats/driver.h"

extern const struct format_driver format_deepspeed; /* "deepspeed" */
extern const struct format_driver format_ucp;       /* "ucp" */

#endif
