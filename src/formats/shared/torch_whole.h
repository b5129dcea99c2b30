/* SPDX-License-Identifier: Apache-2.0 */
/* How an item names a tensor of the catalog, such as one that pieces from several files make up: as torch.save would have written it. */
#ifndef FORMATS_SHARED_TORCH_WHOLE_H
#define FORMATS_SHARED_TORCH_WHOLE_H

#include "catalog/catalog.h"

/*
 * Makes the node, of the graph, the call torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), or v3 with the
 * type, whose storage is the catalog's tensor `whole`. Not before torch_source_hide_storages, which counts storages anew. false without
 * memory.
 */
bool torch_whole_name(struct value_graph *graph, const struct catalog *catalog, uint32_t whole, struct value *node);

#endif
