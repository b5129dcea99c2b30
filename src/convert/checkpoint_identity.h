/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether processes that have opened checkpoints have opened the same one, whatever path leads to it on their machines: its description,
 * and samples of its bytes, since a later checkpoint of the same training is described as the earlier one. Two that differ in few values
 * only may be taken for the same.
 */
#ifndef CONVERT_CHECKPOINT_IDENTITY_H
#define CONVERT_CHECKPOINT_IDENTITY_H

#include "convert/checkpoint.h"

#define IDENTITY_SAMPLES 4 /* each is a read, which a server answers */

struct checkpoint_identity {
    uint64_t described; /* format, keys, types, shapes, and which bytes are which part of them */
    uint64_t values[IDENTITY_SAMPLES], items[IDENTITY_SAMPLES]; /* 0: not sampled */
};

/* Of a checkpoint that was just opened: where payload lies may be known more exactly later. */
void checkpoint_identify(const struct checkpoint *checkpoint, struct checkpoint_identity *out);

bool checkpoint_is_same(const struct checkpoint_identity *a, const struct checkpoint_identity *b);

#endif
