/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flattened state of experts in one matrix: Megatron Core up to 0.15 stores the weights of every expert transposed, as modules have them,
 * and their state as the matrix has it, because it was flattened before.
 */
#ifndef FORMATS_MCORE_MCORE_TRANSPOSE_H
#define FORMATS_MCORE_MCORE_TRANSPOSE_H

#include "catalog/catalog.h"

/*
 * Replaces such state, in a catalog that is not sealed, by tensors of the weights' shape. namespace: the item `args`, which says whether
 * experts were matrices; NULL: nothing is done. State has the names of fully_reshardable.
 */
reshard_status mcore_transpose_states(struct catalog *catalog, const struct value *namespace, reshard_error *err);

#endif
