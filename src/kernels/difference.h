/* SPDX-License-Identifier: Apache-2.0 */
/* How two runs of elements of one type differ. Bits first: numbers are made only of blocks in which some differ. */
#ifndef KERNELS_DIFFERENCE_H
#define KERNELS_DIFFERENCE_H

#include "tensor/dtype.h"

#include <stddef.h>

struct difference {
    uint64_t count;         /* elements that differ by more than the tolerance */
    uint64_t changed;       /* elements whose bits differ */
    int64_t first_index;    /* of those counted; -1 if there are none */
    double max_absolute;    /* NaN: no number, on one side at least */
    double max_relative;    /* |x - y| against |y|; infinite where y is zero, or one of them is no number */
};

struct tolerance {
    double absolute, relative; /* 0, 0: bit equality (NaN equals itself, 0 and -0 differ) */
};

/* Adds count whole elements, at any address, the first of which has this index. Types without whole bytes count bytes. */
void difference_add(struct difference *difference, enum dtype dtype, const struct tolerance *tolerance, const void *a, const void *b,
                    size_t count, int64_t first_index);

#endif
