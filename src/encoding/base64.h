/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as text (RFC 4648, section 4). */
#ifndef ENCODING_BASE64_H
#define ENCODING_BASE64_H

#include "base/buffer.h"

/* Appends the bytes of a text without blanks and line ends; false: it is no base64, or out->failed. */
bool base64_decode(struct str text, struct buffer *out);

/* Appends the text of bytes; false without memory. */
bool base64_encode(struct str bytes, struct buffer *out);

#endif
