/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the values of a tensor are like: range, moments, what is special among them, and how many lie between which powers of two. One pass,
 * in any pieces; tallies of parts are joined.
 *
 * Types of 8 bits and integers of 16 are counted by code, so that what is said of them is exact. Others are summed around a value of their
 * own, a block at a time: a mean far from zero costs no digits of the deviation; moments of floats of 32 and 16 bits are good to some seven
 * digits. Counts, bins, the least and the largest are exact for every type.
 * Blocks are counted from the tensor's first element on, so that nothing depends on the pieces in which it comes, nor on the machine.
 */
#ifndef KERNELS_VALUE_TALLY_H
#define KERNELS_VALUE_TALLY_H

#include "kernels/byte_block.h"
#include "kernels/double_block.h"
#include "kernels/float_block.h"
#include "tensor/dtype.h"

#include <stddef.h>

#define TALLY_BINS 256
#define TALLY_BLOCK_BYTES (2 * FLOAT_BLOCK * sizeof(double))

struct value_tally {
    uint64_t count; /* numbers: a complex element is two */
    uint64_t nan_count, inf_count, zero_count;
    uint64_t subnormal_count;   /* of the element's own type */
    double min, max;            /* of the finite ones; min > max if there are none */
    double mean, square_sum;    /* of the finite ones; the sum of the squared distances from the mean */
    /* Finite numbers but zeros, by sign (0: negative): bin b holds the magnitudes from 2^(b - 127) on below the double of that; the first
     * holds all that is smaller too, the last all that is larger. */
    uint64_t bins[2][TALLY_BINS];
};

void value_tally_start(struct value_tally *tally);

/* Not NaN, not infinite. */
static inline uint64_t value_tally_finite(const struct value_tally *tally)
{
    return tally->count - tally->nan_count - tally->inf_count;
}

__extension__ typedef unsigned __int128 wide_sum;

/* Adds up the values of one tensor. Starts zeroed; may be started again, and keeps its memory for that. */
struct value_counter {
    struct value_tally tally;
    enum dtype dtype, number; /* number: float32 or float16, of which a complex element is two; else the dtype */
    bool is_by_code, is_paired;
    uint64_t coded;  /* numbers counted since the codes were last added to the tally: with none of them, there is nothing to add */
    uint32_t *codes; /* how often each occurs: of 16 bits, or two of 8 that follow each other, then those of 8 that were counted alone */
    byte_moments_function byte_moments; /* of 8-bit types that have it; else NULL */
    struct byte_tables byte_tables;
    int64_t whole_sum; /* of the finite ones of 8-bit types that are summed as whole numbers */
    wide_sum whole_square;
    struct exponent_counter exponents; /* of what is not counted by code */
    struct float_block_kernels kernels;
    const struct double_block_kernels *doubles; /* of types that are summed as doubles; else NULL */
    size_t waiting; /* bytes of a block that is not whole yet */
    uint8_t block[TALLY_BLOCK_BYTES];
};

/* Whether there is a number in such an element: not in opaque ones. */
bool value_counter_knows(enum dtype dtype);

/* elements: how many will come. false: out of memory. */
bool value_counter_start(struct value_counter *counter, enum dtype dtype, uint64_t elements);

/* count whole elements in native byte order, at any address. */
void value_counter_add(struct value_counter *counter, const void *elements, size_t count);

/* Completes counter->tally. */
void value_counter_end(struct value_counter *counter);
void value_counter_release(struct value_counter *counter);

#endif
