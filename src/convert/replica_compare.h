/* SPDX-License-Identifier: Apache-2.0 */
/* How two stored copies of the same elements differ: how many do, where the first one is, by how much at most. */
#ifndef CONVERT_REPLICA_COMPARE_H
#define CONVERT_REPLICA_COMPARE_H

#include "engine/engine.h"

struct replica_difference {
    uint64_t count;
    uint64_t first;          /* index in the chunk */
    double max_difference;   /* NAN where the type has no numbers, or a NaN is involved */
};

/* Reads both chunks window by window, with the same memory whatever their size; meant for copies whose digests differ. */
reshard_status replica_compare(const struct engine_source *source, uint32_t a, uint32_t b, const struct engine_options *options,
                               struct replica_difference *out, reshard_error *err);

#endif
