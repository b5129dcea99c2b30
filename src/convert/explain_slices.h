/* SPDX-License-Identifier: Apache-2.0 */
/* Slices along an axis of two tensors, each known by its hash: what the search for another order works on. */
#ifndef CONVERT_EXPLAIN_SLICES_H
#define CONVERT_EXPLAIN_SLICES_H

#include "convert/explain.h"

struct slice_order {
    int64_t count;
    uint64_t *a, *b;     /* hashes of slices */
    int64_t *from;       /* b's slice i is a's slice from[i] */
    const unsigned char *cuts;
    const char *noun;    /* what slices are called */
};

/* One for each index of the axis. */
void slices_hash(const struct held_tensor *tensor, int axis, uint64_t *hashes);

/* explain_fused.c: whether parts of a fused weight lie as one number of tensor-parallel ranks has them on one side, as another on the
 * other; which is put into words. */
bool slices_fused_pair(const struct slice_order *order, struct buffer *out);
bool slices_fused_qkv(const struct slice_order *order, struct buffer *out);

#endif
