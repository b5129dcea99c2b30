/* SPDX-License-Identifier: Apache-2.0 */
/*
 * torch.save files: one file, or several that make one checkpoint.
 *
 *   file.pt    zip: NAME/data.pkl, NAME/byteorder, NAME/data/0 … (one record a storage), NAME/version
 *              legacy stream: pickles of magic, version, machine, object, keys; then size and bytes of each storage
 *              tar: members sys_info, storages, tensors, pickle
 *
 * The pickle holds a nested object: dicts, lists and tuples are opened where they hold a tensor, and their keys joined with dots; what
 * holds none is one item, and so is every object of a class, whatever hangs inside it. Nothing in the pickle is ever called.
 *
 * Storages that only items refer to are hidden tensors, so that their bytes travel: value.storage of a PERSID node in an item is
 * 1 + the index of that tensor. Key of a hidden tensor: NUL "storage:" and the storage's key.
 *
 * fsdp-ranks: a directory of such files, one a rank, whose DTensors or ShardedTensors are the pieces of whole tensors; the file
 * names hold "rank_N" (model_world_size_4_rank_0.pt, ckpt_rank_0.pt). Spec: docs/formats/torch.md.
 *
 * torch_checkpointing: the same with files ITEM_N.pt for each of several items, beside metadata.pkl.
 */
#ifndef FORMATS_TORCH_TORCH_H
#define FORMATS_TORCH_TORCH_H

#include "formats/driver.h"

extern const struct format_driver format_torch;      /* "torch" */
extern const struct format_driver format_fsdp_ranks; /* "fsdp-ranks" */
extern const struct format_driver format_torch_checkpointing; /* "torch_checkpointing" */

#endif
