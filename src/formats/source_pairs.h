/* SPDX-License-Identifier: Apache-2.0 */
/* F4 as torch has it: float4_e2m1fn_x2, whose elements are bytes of two, so that the last dimension is half as long. Bytes stay. */
#ifndef FORMATS_SOURCE_PAIRS_H
#define FORMATS_SOURCE_PAIRS_H

#include "formats/driver.h"

/* Whether a tensor is F4 whose last dimension, and that of each of its chunks, is made of pairs. */
bool tensor_is_in_pairs(const struct catalog *catalog, const struct catalog_tensor *tensor);

/* Whether there is such a tensor. */
bool source_has_pairs(const struct source *source);

/* The view of an opened source in which these tensors are float4_e2m1fn_x2; else as source_by_parameter. */
reshard_status source_in_pairs(struct source *stored, struct source **out, reshard_error *err);

#endif
