/* SPDX-License-Identifier: Apache-2.0 */
/* How an item names a tensor of the catalog, such as one that pieces from several files make up: as torch.save would have written it. */
#ifndef FORMATS_SHARED_TORCH_WHOLE_H
#define FORMATS_SHARED_TORCH_WHOLE_H

#include "catalog/catalog.h"

/*
 * The call torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), or v3 with the type, of a row-major tensor.
 * storage: what the item's storages are counted by, from 0. NULL without memory.
 */
struct value *torch_tensor_value(struct value_graph *graph, enum dtype dtype, int rank, const int64_t *shape, uint32_t storage);

/* A node of an item, and the catalog's tensor that it is to name. */
struct torch_whole {
    struct value *node;
    uint32_t tensor;
};

/*
 * Makes each node, of the graph, such a call, whose storage is the catalog's tensor. Not before torch_source_hide_storages, which counts
 * storages anew. Fails without memory alone.
 */
reshard_status torch_wholes_name(struct value_graph *graph, const struct catalog *catalog, const struct torch_whole *wholes, size_t count,
                                 reshard_error *err);

#endif
