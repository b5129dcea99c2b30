/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of tensors as people type them, 0:2,...,-1 or ::8, and the elements that they take. */
#ifndef CLI_TENSOR_SLICE_H
#define CLI_TENSOR_SLICE_H

#include "reshard/reshard.h"

#include <stdbool.h>

#define SLICE_AXES_MAX 64

struct tensor_slice {
    int rank;
    int64_t start[SLICE_AXES_MAX], extent[SLICE_AXES_MAX]; /* the box that it lies in, without what would follow its last elements */
    int64_t step[SLICE_AXES_MAX], count[SLICE_AXES_MAX];   /* of that, every step-th element of the axis: so many */
    bool is_stepped;
    /* of tensor_slice_pick */
    int (*sink)(const void *bytes, size_t size, void *context);
    void *context;
    size_t element_bytes, used; /* of the element at hand */
    int64_t at[SLICE_AXES_MAX];
};

/* Reads begin:end:step per axis; what is left out is from the beginning, to the end, 1. False: it does not fit the tensor, or takes
 * steps in elements that are no whole bytes. */
bool tensor_slice_parse(const char *text, const reshard_tensor *tensor, struct tensor_slice *out);

/* Gets the bytes of the box, row-major, and hands those of the elements that are taken on to the slice's sink. */
int tensor_slice_pick(const void *bytes, size_t size, void *slice);

#endif
