/* SPDX-License-Identifier: Apache-2.0 */
/* Copying what a region of one tensor and a shard in memory have in common into what a region of another and its shard have. */
#ifndef KERNELS_SHARD_SLICE_H
#define KERNELS_SHARD_SLICE_H

#include "kernels/copy.h"
#include "tensor/shard.h"

struct shard_slice {
    const struct shard *source_region, *source, *target_region, *target; /* checked; shards have values */
    int axes[RANK_MAX];           /* axis i of the target is axis axes[i] of the source */
    enum dtype via[COPY_VIA_MAX]; /* types between that of the source and that of the target */
    unsigned via_count;
};

/* Sets *elements to how many were written: fewer than the region where a flattened shard has only a part of it. USAGE if a region and its
 * shard do not meet, or the two slices have different shapes; UNSUPPORTED without such a cast. */
reshard_status shard_slice_copy(const struct shard_slice *slice, uint64_t *elements, reshard_error *err);

#endif
