/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard: the box of a whole tensor that one rank holds, or a flat run of that box (sharded optimizers cut tensors so). Its values, if it
 * has any, lie row-major in memory, or with strides: those of the box, or those of the run alone.
 */
#ifndef TENSOR_SHARD_H
#define TENSOR_SHARD_H

#include "base/error.h"
#include "base/str.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

typedef int shard_read(void *out, uint64_t offset, size_t size, void *context);
typedef int shard_write(const void *bytes, uint64_t offset, size_t size, void *context);

struct shard {
    struct str key;
    enum dtype dtype;
    int rank;
    const int64_t *shape;         /* of the whole */
    const int64_t *start, *extent; /* its box */
    bool is_flattened;
    int64_t flat_begin, flat_end; /* of the row-major order of the box */
    uint8_t *data;                /* may be NULL */
    const int64_t *strides;       /* of the values in memory, in elements, not negative; NULL: row-major. Not of a flat run */
    uint32_t writer;              /* the rank whose it is, where the shards of several are in one list */
    bool is_elsewhere;            /* its values are in another process: described, and never read here */
    bool is_written;              /* a function takes its values: write, here or elsewhere */
    /* Where there is no data, functions of the caller's that give the values, row-major, and take them; what is not 0 has failed. */
    shard_read *read;
    shard_write *write;
    void *context;
};

/* Whether this process has its values. */
static inline bool shard_has_values(const struct shard *shard)
{
    return shard->data || shard->read;
}

/* Whether somebody takes its values. */
static inline bool shard_takes_values(const struct shard *shard)
{
    return shard->data || shard->is_written || shard->is_elsewhere;
}

/* Proves what all functions on shards rely on: the box lies in the whole, the run in the box, and volumes fit. USAGE names the axis. */
reshard_status shard_check(const struct shard *shard, reshard_error *err);

/* Bytes of its values; false if they are no whole number. */
bool shard_bytes(const struct shard *shard, uint64_t *out);

/* Bytes from its first value in memory to the end of the last; false if they are no whole number. */
bool shard_span(const struct shard *shard, uint64_t *out);

/* The boxes, in indices of the whole, that together are the shard: its box, or those of its run. Stops when emit returns false. */
typedef bool (*shard_box_emit)(const int64_t *start, const int64_t *extent, void *context);
bool shard_boxes(const struct shard *shard, shard_box_emit emit, void *context);

#endif
