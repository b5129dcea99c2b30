/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NAMES_MAPPING_WORDS_H
#define NAMES_MAPPING_WORDS_H

#include "names/mapping_stage.h"

/* Puts a stage behind *stage in which optimizer.state.exp_avg.NAME, as Megatron spells the state of a weight that is there, is called
 * optimizer.state.NAME.exp_avg, as torch does: without the prefix, which weights have where a state dict has them beside an optimizer.
 * Where there is no such state *stage stays as it was, and on failure. */
reshard_status mapping_torch_words(struct mapping_stage **stage, struct str prefix, reshard_error *err);

#endif
