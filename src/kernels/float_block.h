/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Range, moments and exponents of blocks of float32, or of 16-bit floats that are read as such: the loops that statistics spend their time
 * in, as wide as the machine can. Sums run in as many lanes, in the same order, on every machine, so that no digit depends on what it can
 * do.
 */
#ifndef KERNELS_FLOAT_BLOCK_H
#define KERNELS_FLOAT_BLOCK_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define FLOAT_BLOCK 1024    /* elements; stays in the first-level cache between the loops over it */
#define EXPONENT_TABLES 4   /* the same exponent often comes twice in a row: so the counts are apart */
#define EXPONENT_WINDOW 16  /* exponents that are counted side by side */
#define EXPONENT_LANE_BYTES 32
#define EXPONENT_DIGITS 8

struct float_moments {
    double sum, square; /* of the distances from the shift */
    float low, high;    /* square is NaN or infinite if anything is not finite, and these may be anything then */
};

/* Of FLOAT_BLOCK elements at any address, finite ones. Summed as floats, in short sums; the sums of the sums are doubles. codes: the
 * exponent of each as float32, less 256 for those that are negative, in any order. */
typedef void (*float_moments_function)(const void *elements, float shift, struct float_moments *out, int16_t *codes);

/* How often each sign and exponent comes. Starts zeroed. */
struct exponent_counter {
    uint32_t tables[EXPONENT_TABLES][512]; /* by the lower nine bits of codes: of what is not pending */
    /* Pending: numbers with exponents from top down, those of one sign or both; bit b of a byte is exponent top - b, or top - 8 - b. */
    uint8_t digits[4][EXPONENT_DIGITS][EXPONENT_LANE_BYTES];      /* by stream: sums of bits, binary digit by digit */
    uint8_t carried[4][EXPONENT_DIGITS - 5][EXPONENT_LANE_BYTES]; /* to digit 5 by an odd number of blocks, to digit 6 by one of twos, … */
    uint64_t many[4][8];   /* beyond all digits */
    uint32_t blocks;       /* pending */
    int top;               /* 0: nothing is pending */
    uint32_t plain_blocks; /* still to be counted slowly */
    bool has_moved;
};

/* Counts FLOAT_BLOCK codes, the largest of which has exponent top. */
typedef void (*exponents_function)(struct exponent_counter *counter, const int16_t *codes, int top);

struct float_block_kernels {
    float_moments_function moments; /* of F32, BF16, F16; NULL for others: see double_block.h */
    exponents_function exponents;
};

/* width: no more than that of vector_width.h; results are the same. */
struct float_block_kernels float_block_kernels_find(enum dtype dtype, int width);

/* Counts any number of float32, slowly. */
void exponents_count(struct exponent_counter *counter, const void *elements, uint64_t count);

/* What is pending comes into the tables. */
void exponents_settle(struct exponent_counter *counter);

#endif
