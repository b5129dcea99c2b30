/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element casts with torch's rounding: to nearest even among floats, NaN stays NaN, overflow gives infinity or, where the
 * type has none, torch's saturation or NaN; floats to integers truncate toward zero; to bool: != 0.
 */
#ifndef KERNELS_CAST_H
#define KERNELS_CAST_H

#include "tensor/dtype.h"

#include <stddef.h>

/* Casts count contiguous elements in native byte order; source and target may not overlap. NULL if there is no such cast. */
typedef void (*cast_function)(const void *source, void *target, size_t count);
cast_function cast_find(enum dtype source, enum dtype target);

/* One element as a double (real part of complex), for statistics and tolerance; integers beyond 2^53 lose digits. */
typedef void (*to_double_function)(const void *source, double *target, size_t count);
to_double_function cast_to_double_find(enum dtype source); /* complex gives 2 doubles an element; NULL for OPAQUE */

#endif
