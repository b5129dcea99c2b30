/* SPDX-License-Identifier: Apache-2.0 */
/* Items that are containers of torch.save: what is inside of their values beside numbers and texts. */
#ifndef FORMATS_SHARED_TORCH_ITEM_H
#define FORMATS_SHARED_TORCH_ITEM_H

#include "encoding/torch_save.h"

/*
 * Numbers of tensors in the graph are the archive's; to everybody else they would mean tensors of the catalog. Takes them out; what stays
 * are the storage numbers of persistent ids, which torch_item_storage understands. False: the work is spent, or there is no memory.
 */
bool torch_item_forget_tensors(const struct value_graph *graph, struct work *work);

/* Appends the bytes of a storage of the archive, which fills reader. As read_item_storage of a driver. */
reshard_status torch_item_storage(const struct torch_archive *archive, const struct reader *reader, const struct limits *limits,
                                  uint32_t storage, struct buffer *out, reshard_error *err);

#endif
