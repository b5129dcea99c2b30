/* SPDX-License-Identifier: Apache-2.0 */
/* In-place changes of contiguous elements: byte swap, and the lazy negation and conjugation that torch stores as flags. */
#ifndef KERNELS_ELEMENT_OPS_H
#define KERNELS_ELEMENT_OPS_H

#include "tensor/dtype.h"

#include <stddef.h>

/* Reverses each group of word_bytes bytes: 2, 4 or 8; 1 changes nothing. */
void bytes_swap(void *elements, size_t word_bytes, size_t word_count);

/* Whether negation or conjugation changes elements of this type at all. */
bool dtype_has_negation(enum dtype dtype);
bool dtype_has_conjugation(enum dtype dtype);

/* Negates (all components) and conjugates (the imaginary one) count elements. Floats have their sign bit flipped, NaN too;
 * integers wrap. */
void elements_negate(enum dtype dtype, bool negate, bool conjugate, void *elements, size_t count);

/* Makes every NaN among bfloat16 elements 0xffff, which is the NaN that torch converts any float32 NaN to. */
void bf16_plain_nan(void *elements, size_t count);

#endif
