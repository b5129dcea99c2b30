/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text, the same in every locale. */
#ifndef BASE_DECIMAL_TEXT_H
#define BASE_DECIMAL_TEXT_H

#include "base/buffer.h"

/* The shortest decimal that reads back as the same double, as Python writes it: 0.1, 1e-08, 65536.0, -0.0, nan, inf, -inf. */
bool buffer_append_double(struct buffer *buffer, double value);

/* As %lld prints it, in a tenth of the time: where millions of them are written. */
bool buffer_append_integer(struct buffer *buffer, int64_t value);

/* As buffer_append_double, but whole numbers without ".0": how Python writes the parts of a complex number. */
bool buffer_append_double_bare(struct buffer *buffer, double value);

/* A number of at most some digits for messages, as %g prints it. */
#define DECIMAL_SHORT_BYTES 32
const char *decimal_short(double value, char out[DECIMAL_SHORT_BYTES]);

/* As strtod. false without memory. */
bool decimal_parse(const char *text, double *out);

/* Decimal digits of an integer in two's complement, little-endian; no bytes are 0. Quadratic in the size. */
bool buffer_append_bigint(struct buffer *buffer, struct str bytes);

#endif
