/* SPDX-License-Identifier: Apache-2.0 */
/* What the values of many tensors are like, in one pass over the source, in the order in which they are stored. */
#ifndef CONVERT_TENSOR_STATS_H
#define CONVERT_TENSOR_STATS_H

#include "convert/checkpoint.h"
#include "kernels/value_tally.h"

/* Is told each tensor (a catalog index) when its last byte was seen, one at a time, in no order. Opaque types have a tally of nothing. */
typedef reshard_status (*tensor_stats_sink)(void *context, uint32_t tensor, const struct value_tally *tally, reshard_error *err);

/* Of the given tensors (catalog indices). Resolves chunks. */
reshard_status tensor_stats(struct checkpoint *checkpoint, const uint32_t *tensors, uint32_t count, const struct engine_options *options,
                            tensor_stats_sink sink, void *context, reshard_error *err);

#endif
