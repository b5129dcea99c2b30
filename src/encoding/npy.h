/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy header, versions 1 to 3: reading (for extents) and writing (for `cat --as npy`). */
#ifndef ENCODING_NPY_H
#define ENCODING_NPY_H

#include "base/buffer.h"
#include "base/error.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

struct npy_header {
    enum dtype dtype;
    bool is_big_endian, is_fortran;
    int rank;
    int64_t shape[RANK_MAX];
    uint64_t data_offset;
};

/* The type of a kind and size, as in "f4" and "<f4": b i u f c V. */
bool npy_dtype(char kind, uint64_t bytes, enum dtype *out);

reshard_status npy_parse(const void *bytes, size_t size, struct npy_header *out, reshard_error *err);

/* Appends a version 1.0 header (2.0 if it is long), padded to 64 bytes. Types that NumPy lacks (BF16, F8 …) are written as the
 * unsigned integer of the same size; *is_substitute says so. */
reshard_status npy_write_header(enum dtype dtype, int rank, const int64_t *shape, bool *is_substitute, struct buffer *out,
                                reshard_error *err);

#endif
