/* SPDX-License-Identifier: Apache-2.0 */
/* How long the opcodes of pickles are: for who looks for a pickle's end, or for parts of it, without running it. */
#ifndef ENCODING_PICKLE_FORMS_H
#define ENCODING_PICKLE_FORMS_H

#include <stdbool.h>
#include <stdint.h>

/* What follows an opcode's byte. */
enum pickle_argument {
    PICKLE_ARG_UNKNOWN, /* it is no opcode */
    PICKLE_ARG_NONE,
    PICKLE_ARG_FIXED,   /* `size` bytes */
    PICKLE_ARG_STRING,  /* a length of `size` bytes, then so many bytes */
    PICKLE_ARG_INTEGER, /* the same, of a number */
    PICKLE_ARG_LINES,   /* `size` lines of text */
    PICKLE_ARG_FRAME    /* `size` bytes, which say how far the frame reaches */
};

struct pickle_form {
    uint8_t argument, size;
    bool is_text; /* PICKLE_ARG_STRING: of UTF-8 */
};

extern const struct pickle_form pickle_forms[256];

#endif
