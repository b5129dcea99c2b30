/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NAMES_MAPPING_WORDS_H
#define NAMES_MAPPING_WORDS_H

#include "names/mapping_stage.h"

/* Puts a stage behind *stage in which optimizer.state.exp_avg.NAME, as Megatron spells the state of a weight that is there, is called
 * optimizer.state.NAME.exp_avg, as torch does. On failure *stage stays as it was. */
reshard_status mapping_torch_words(struct mapping_stage **stage, reshard_error *err);

#endif
