/* SPDX-License-Identifier: Apache-2.0 */
/* Words of --layout for formats whose checkpoints are laid out by model-parallel ranks: how many there are of each kind. */
#ifndef FORMATS_SHARED_PARALLEL_WORDS_H
#define FORMATS_SHARED_PARALLEL_WORDS_H

#include "formats/driver.h"

extern const struct layout_word parallel_words[];

/* Of formats that spread tensors over ranks without more ado. */
extern const struct layout_word rank_words[];

/* 0: not said. */
struct parallel_sizes {
    uint32_t tp, pp, vp, ep, etp, dp;
};
struct parallel_sizes parallel_sizes_of(const struct layout_request *request);

#endif
