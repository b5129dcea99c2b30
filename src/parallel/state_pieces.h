/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reading the optimizer state of one rank's file gives: which elements of which tensor of the archive are which parameter's state.
 * Where those lie in the file is the archive's business, and which box of the logical tensor a local parameter is, the caller's.
 */
#ifndef PARALLEL_STATE_PIECES_H
#define PARALLEL_STATE_PIECES_H

#include "base/error.h"
#include "base/str.h"

/* The elements of archive->tensors[tensor] from offset on, row-major and contiguous, are the parameter's. */
struct state_piece {
    uint32_t parameter;
    uint32_t tensor;
    int64_t offset;
    struct str state; /* "param", "fp32_param", "exp_avg", "exp_avg_sq", or another name of the optimizer's own; in the archive's memory */
};

struct state_pieces {
    struct state_piece *pieces;
    uint32_t count, capacity;
    uint32_t bucket_count;     /* most buckets that a buffer has, 0: not distributed */
    bool is_guessed;           /* the sizes do not follow from the arguments, but from other rules that fit: worth a warning */
};

reshard_status state_pieces_add(struct state_pieces *pieces, const struct state_piece *piece, reshard_error *err);
void state_pieces_release(struct state_pieces *pieces);

#endif
