/* SPDX-License-Identifier: Apache-2.0 */
/* A file of torch.save that is opened without those of other ranks: which of its DTensors and ShardedTensors are all of a tensor. */
#ifndef FORMATS_TORCH_TORCH_ALONE_H
#define FORMATS_TORCH_TORCH_ALONE_H

#include "formats/shared/torch_source.h"

/* As torch_source_open_file. Whatever holds all of its tensor (one rank's mesh, replicas) stands for it in the graph, before
 * torch_source_add_file looks for tensors. */
reshard_status torch_open_alone(struct source *source, const char *name, uint32_t *file, reshard_error *err);

/* Warns of items that are one rank's pieces. */
void torch_warn_of_pieces(struct source *source);

#endif
