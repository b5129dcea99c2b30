/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Range and moments of blocks of doubles, which all types are read as that have no faster way: as wide as the machine can. Sums run in as
 * many lanes, in the same order, on every machine, so that no digit depends on what it can do.
 */
#ifndef KERNELS_DOUBLE_BLOCK_H
#define KERNELS_DOUBLE_BLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define DOUBLE_BLOCK 1024

struct double_moments {
    double sum, square; /* of the distances from the shift; square is no finite number where a value is none */
    double low, high;
    uint64_t zeros, tiny; /* tiny: below smallest_normal, zeros among them */
};

/* Of DOUBLE_BLOCK doubles at any address. */
typedef void (*double_moments_function)(const void *values, double shift, double smallest_normal, struct double_moments *out);

/* is_wide: the best that this machine can do; else what every one can. Results are the same. */
double_moments_function double_moments_find(bool is_wide);

#define DOUBLE_EXPONENTS 4096    /* by sign and exponent */
#define DOUBLE_TABLES 4          /* the same exponent often comes twice in a row: so the counts are apart, */
#define DOUBLE_TABLE_STRIDE 4176 /* and no whole pages, which CPUs take for the same place until they know better */

/* Adds how often each sign and exponent comes among DOUBLE_BLOCK doubles at any address; the tables follow each other. */
void double_exponents_count(uint32_t *tables, const void *values);

#endif
