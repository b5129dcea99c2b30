/* SPDX-License-Identifier: Apache-2.0 */
/* How the tensors of a checkpoint are cut, whatever its format says about it: along which axes, into how many parts. */
#ifndef CLI_CUTS_H
#define CLI_CUTS_H

#include "reshard/reshard.h"

#define CUT_KINDS_MAX 24
#define CUT_AXES_MAX 8

/* A grid of parts; no axes: whole, in one piece. Runs: pieces of flattened tensors, or boxes that are no grid. */
struct cut {
    int axes[CUT_AXES_MAX], axis_count;
    size_t parts[CUT_AXES_MAX];
    int is_runs;
    uint64_t tensors;
};

/* The commonest first; what is behind the last that there is room for counts as runs. */
struct cuts {
    struct cut kinds[CUT_KINDS_MAX];
    size_t count;
    uint64_t writers; /* ranks that wrote something; 0: not known */
};

void cuts_find(const reshard_checkpoint *checkpoint, struct cuts *out);

/* "axes 0 and 1 in 2x4", "axis 0 in 8", "whole", "in runs" */
const char *cut_text(const struct cut *cut, char out[160]);

/* What mesh of ranks cuts tensors so: "FSDP 2 x TP 4", "TP 4", "FSDP 8"; NULL: none that is plain. */
const char *cuts_mesh(const struct cuts *cuts, char out[64]);

#endif
