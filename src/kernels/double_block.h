/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Range, moments and exponents of blocks of doubles, which all types are read as that have no faster way: as wide as the machine can. Sums
 * run in as many lanes, in the same order, on every machine, so that no digit depends on what it can do.
 */
#ifndef KERNELS_DOUBLE_BLOCK_H
#define KERNELS_DOUBLE_BLOCK_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define DOUBLE_BLOCK 1024

struct double_moments {
    double sum, square;   /* of the distances from the shift; square is no finite number where a value is none */
    double low, high;
    uint64_t zeros, tiny; /* tiny: below smallest_normal, zeros among them; of F64 alone */
};

/* The exponent that a number has as float32, 0 or 255 where it is beyond those. */
static inline int double_exponent(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const int exponent = (int)(bits >> 52 & 0x7ff) - (1023 - 127);
    return exponent < 0 ? 0 : exponent > 255 ? 255 : exponent;
}

/* Of DOUBLE_BLOCK elements at any address. codes: the exponent of each, less 256 for those that are negative. */
typedef void (*double_moments_function)(const void *elements, double shift, double smallest_normal, struct double_moments *out,
                                        int16_t *codes);

struct double_block_kernels {
    enum dtype reads; /* F64, too, where there are none for the type: they are for what it was cast to */
    double_moments_function moments;
};

/* For F64, or integers of 32 or 64 bits; any other is cast. width: no more than that of vector_width.h; results are the same. */
const struct double_block_kernels *double_block_kernels_find(enum dtype dtype, int width);

#endif
