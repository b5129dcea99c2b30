/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element casts with torch's rounding: to nearest even among floats, NaN stays NaN, overflow gives infinity or, where the
 * type has none, torch's saturation or NaN; floats to integers truncate toward zero; to bool: != 0. As in torch, values pass through
 * float32 on their way to a float type that is not float64. Floats that no target integer can hold give what x86 makes of them.
 *
 * A cast is two steps with a register-sized type between them (float32, float64 or int64): 18 + 18 loops instead of 324.
 */
#ifndef KERNELS_CAST_H
#define KERNELS_CAST_H

#include "tensor/dtype.h"

#include <stddef.h>

typedef void (*cast_function)(const void *source, void *target, size_t count);

struct cast {
    cast_function load, store; /* to and from the type between; NULL if that side is of this type already */
    unsigned source_bytes, target_bytes, between_bytes;
    unsigned parts; /* 2 for complex: every element is cast as so many */
};

/* Fills *out; false if there is no such cast: OPAQUE to anything, complex to or from what is not. Equal types have one. */
bool cast_find(enum dtype source, enum dtype target, struct cast *out);

/* Casts count contiguous elements in native byte order; source and target may not overlap and need no alignment. */
void cast_run(const struct cast *cast, const void *source, void *target, size_t count);

/* One element as a double, for statistics and tolerance; integers beyond 2^53 lose digits. */
typedef void (*to_double_function)(const void *source, double *target, size_t count);
to_double_function cast_to_double_find(enum dtype source); /* complex gives 2 doubles an element; NULL for OPAQUE */

#endif
