/* SPDX-License-Identifier: Apache-2.0 */
/*
 * atorch's checkpoints of FSDP flat parameters. R counts the W ranks that share the parameters, both in five digits or more:
 *
 *   flat_param.R-W    safetensors: for each wrapped module (unit) the rank's piece of its flat parameter; the root unit's name is empty
 *   flat_meta.R-W     pickle: where in that piece which parameter lies, and the runs of parameters and padding of the whole (version 1)
 *   buffers           safetensors: all buffers
 *   ckpt_meta         pickle: version, number of all ranks, classes of the wrapped modules; version 0 has none
 *   optim_param.R-W   safetensors: PARAMETER-STATE, the rank's piece of it; without original parameters UNIT._flat_param-STATE
 *   optim_meta        pickle: the groups of parameters with their options
 *   lora_weight, lora_optim and whatever lies beside: carried as files
 *
 * Keys are the parameters' and buffers' names; optimizer state is PARAMETER-STATE in the parameter's shape. Where ranks hold experts of
 * their own under one name, these are ckpt_meta.expert_E.NAME.
 */
#ifndef FORMATS_ATORCH_H
#define FORMATS_ATORCH_H

#include "formats/driver.h"

extern const struct format_driver format_atorch; /* "atorch" */

#endif
