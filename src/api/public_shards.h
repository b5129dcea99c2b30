/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of shards that callers hand in. */
#ifndef API_PUBLIC_SHARDS_H
#define API_PUBLIC_SHARDS_H

#include "api/versioned.h"
#include "base/str.h"
#include "tensor/shard.h"

/* The element type of a name; "paddle.bfloat16" and "torch.bfloat16" are bfloat16. USAGE names the key. */
reshard_status dtype_take(const char *name, struct str key, enum dtype *out, reshard_error *err);

/* Whether there are not too many axes, and all `count` vectors of them are there. */
reshard_status vectors_check(size_t rank, const int64_t *const *vectors, size_t count, struct str key, reshard_error *err);

/* A caller's functions for a shard's values, and whether they are in place of data and strides. */
void shard_functions_take(shard_read *read, shard_write *write, void *context, struct shard *out);
reshard_status shard_functions_check(const struct shard *shard, reshard_error *err);

#endif
