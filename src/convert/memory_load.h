/* SPDX-License-Identifier: Apache-2.0 */
/* Memory filled from a checkpoint whose tensors have other names, shapes and types there. */
#ifndef CONVERT_MEMORY_LOAD_H
#define CONVERT_MEMORY_LOAD_H

#include "convert/checkpoint.h"
#include "convert/memory_names.h"

/* Fills the shards, whose keys and global shapes names has: those of the checkpoint. What a mapping keeps is left as it is. */
reshard_status memory_load(struct checkpoint *checkpoint, struct memory_names *names, const struct shard_list *shards,
                           const struct engine_options *options, reshard_error *err);

#endif
