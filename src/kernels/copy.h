/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided copy in memory: the one inner loop of every conversion. Moves an N-D block of elements between two layouts,
 * swapping bytes, resolving lazy conjugation and negation, and casting on the way.
 *
 * Offsets and strides are in bytes and may be 0 (expanded views) on the source side; the target must not overlap itself
 * or the source. Axes are merged and ordered inside, so callers pass them as they come.
 *
 * F4 and F6 have no stride in bytes: who moves them cuts where bytes end and describes the block as U8.
 */
#ifndef KERNELS_COPY_H
#define KERNELS_COPY_H

#include "tensor/box.h"
#include "tensor/dtype.h"

#define COPY_VIA_MAX 16

enum copy_flags {
    COPY_SWAP_SOURCE = 1, /* source elements are in the other byte order */
    COPY_CONJUGATE = 2,   /* complex: negate the imaginary part */
    COPY_NEGATE = 4,      /* negate */
    COPY_PLAIN_NAN = 8,   /* BF16: every NaN becomes 0xffff */
    COPY_STREAM = 16      /* the target is large, and not read before other work: plain copies write it past the caches */
};

struct copy_spec {
    int rank;
    int64_t extent[RANK_MAX];        /* elements; all > 0 */
    int64_t source_stride[RANK_MAX]; /* bytes */
    int64_t target_stride[RANK_MAX]; /* bytes */
    enum dtype source_dtype, target_dtype;
    unsigned flags;
    unsigned via_count;
    const enum dtype *via; /* types that elements pass through on the way, in order: every cast rounds */
};

/* Whether a cast between the two exists (equal types always; OPAQUE only to itself; complex only among complex). */
bool copy_can_cast(enum dtype source, enum dtype target);

/* Drops axes of extent 1, orders the others by falling target stride and merges those that are contiguous on both sides. Keeps the
 * meaning. */
void copy_simplify(struct copy_spec *spec);

/* True if, simplified, both sides are one run of equal bytes: the block is a plain range copy of *bytes bytes. */
bool copy_is_plain_run(const struct copy_spec *spec, uint64_t *bytes);

/* Runs it. source and target point at element (0, …, 0) and need no alignment. */
void copy_run(const struct copy_spec *spec, const void *source, void *target);

#endif
