/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums, range and exponents of 8-bit numbers, counted in whole numbers and thus exactly: 64 at a time, where the machine can look up as
 * many bytes at once. Other machines have to count codes.
 */
#ifndef KERNELS_BYTE_BLOCK_H
#define KERNELS_BYTE_BLOCK_H

#include "tensor/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define BYTE_BLOCK 2048
#define BYTE_PLACES 24

struct byte_moments {
    uint64_t places[2][BYTE_PLACES]; /* how many numbers have the bits of which each is the uppermost; 0: of both signs, 1: positive ones */
    int64_t sum;
    uint64_t square;
    uint8_t high, low; /* codes of the largest and the least */
    bool has_range;    /* else these are not known: something is NaN, or all have one sign */
};

/* What codes without sign mean, to be looked up: bit by bit their place, and the number in digits of six bits. */
struct byte_tables {
    uint8_t places[3][128], digits[3][128];
};

/* For BOOL, I8, U8, and F8_E4M3, whose numbers are counted in units of the smallest; its NaN are in no sum, but have a place. */
#define F8_E4M3_UNIT 0x1p-9f
#define BYTE_PLACE_NAN 18
void byte_tables_make(struct byte_tables *tables, enum dtype dtype);

/* Of so many blocks, no more than BYTE_BLOCKS_MAX, at any address. */
#define BYTE_BLOCKS_MAX 4096 /* of which 64 bits hold the sum of squares */
typedef void (*byte_moments_function)(const struct byte_tables *tables, const uint8_t *bytes, uint64_t blocks, struct byte_moments *out);

/* NULL: there is none for the type, or for this machine. */
byte_moments_function byte_moments_find(enum dtype dtype);

#endif
