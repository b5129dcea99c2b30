/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of optimizer state from the shards of the parameters: the same boxes, under other keys. */
#ifndef PARALLEL_OPTIMIZER_SHARDS_H
#define PARALLEL_OPTIMIZER_SHARDS_H

#include "parallel/shard_list.h"

struct optimizer_tensor {
    int64_t id; /* of the parameter; -1: `parameter` is its key */
    struct str parameter;
    struct str state;
    enum dtype dtype;
    int rank;
    const int64_t *shape;
    uint8_t *data;
    bool is_flattened; /* elements [flat_begin, flat_end) of the parameter as the rank holds it */
    int64_t flat_begin, flat_end;
};

struct optimizer_model {
    const struct shard_list *model;
    const void *const *parameters; /* by id: where values begin */
    size_t parameter_count;
    struct str keys; /* "optimizer.state.{state}.{parameter}" */
};

/* Appends the shards of all tensors. USAGE names the tensor. */
reshard_status optimizer_shards_add(const struct optimizer_model *model, const struct optimizer_tensor *tensors, size_t count,
                                    struct shard_list *list, reshard_error *err);

#endif
