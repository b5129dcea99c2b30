/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor of two checkpoints as tiles: of each, which share of its elements differs. */
#ifndef CLI_DIFF_TILES_H
#define CLI_DIFF_TILES_H

#include "reshard/reshard.h"

#include <stdbool.h>
#include <stdio.h>

#define TILES_MAX 32 /* on an axis */

struct diff_tiles {
    size_t rows, columns;
    double share[TILES_MAX * TILES_MAX]; /* of the elements looked at that differ */
    double largest;                      /* relative difference: |a - b| / max(|a|, |b|) */
    bool has_nan;                        /* not a number on one side only */
};

/* Reads both, a bounded number of rows at a time; of very long tiles the first rows. False: they cannot be compared so. */
bool diff_tiles_make(const reshard_checkpoint *a, size_t tensor_a, const reshard_checkpoint *b, size_t tensor_b,
                     const reshard_run_options *run, struct diff_tiles *out);

/* ,"grid":…,"tiles":…,"seamsA":…,"seamsB":… */
void diff_tiles_json(FILE *out, const struct diff_tiles *tiles, const reshard_checkpoint *a, size_t tensor_a, const reshard_checkpoint *b,
                     size_t tensor_b);

#endif
