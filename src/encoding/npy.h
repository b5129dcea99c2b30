/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy header, versions 1 to 3: reading (for extents) and writing. */
#ifndef ENCODING_NPY_H
#define ENCODING_NPY_H

#include "base/buffer.h"
#include "base/error.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

/* What an array's elements are. */
enum npy_content {
    NPY_NUMBERS, /* numbers and truth values: what a tensor can hold */
    NPY_TIMES,   /* datetime64 and timedelta64: counts of a unit, I64 */
    NPY_TEXTS,   /* U: code points of 32 bits, zeros at the end are no part of a text */
    NPY_STRINGS, /* S: bytes, the same */
    NPY_OBJECTS  /* O: one pickle lies behind the header */
};

struct npy_header {
    enum npy_content content;
    enum dtype dtype; /* of NPY_NUMBERS and NPY_TIMES */
    bool is_big_endian, is_fortran;
    int rank;
    int64_t shape[RANK_MAX];
    uint64_t element_bytes; /* 0 of NPY_OBJECTS */
    uint64_t data_offset;
    struct str descr; /* "<f4": as it is written, in the bytes that were parsed */
};

/* The type of a kind and size, as in "f4" and "<f4": b i u f c V. */
bool npy_dtype(char kind, uint64_t bytes, enum dtype *out);

/* Where the data begins, by the first NPY_FIRST_BYTES of a file, or all of a shorter one. It may lie behind the end. */
#define NPY_FIRST_BYTES 12
reshard_status npy_data_offset(const void *bytes, size_t size, uint64_t *out, reshard_error *err);

/* A header whose content may be any. The dict is read, never evaluated. */
reshard_status npy_parse_any(const void *bytes, size_t size, struct npy_header *out, reshard_error *err);

/* The same of NPY_NUMBERS alone. */
reshard_status npy_parse(const void *bytes, size_t size, struct npy_header *out, reshard_error *err);

/* Whether NumPy has the type. */
bool npy_can_hold(enum dtype dtype);

/* Appends a version 1.0 header (2.0 if it is long), padded to 64 bytes. Types that NumPy lacks (BF16, F8 …) are written as the
 * unsigned integer of the same size; *is_substitute says so. */
reshard_status npy_write_header(enum dtype dtype, int rank, const int64_t *shape, bool *is_substitute, struct buffer *out,
                                reshard_error *err);

#endif
