/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How Paddle's sharding optimizers share out the state of the parameters of one group of ranks. Pure arithmetic over the parameters in the
 * order in which the optimizer has them; ranks and positions count within the group.
 *
 *   stage 1, V1   each parameter is one rank's: the largest first, each to the rank that has fewest elements so far
 *   stage 2       the same without sorting
 *   stage 1, V2   parameters of one type lie one after another in buffers, each padded to (256 bytes x ranks); every rank owns an equal
 *                 part of each buffer, and of a parameter the elements in it
 *   stage 3       every parameter of more elements than a segment (2^20) is cut into equal parts, the end of it padded to 256
 *                 bytes; smaller ones are whole on every rank
 */
#ifndef PARALLEL_STATE_SHARDING_H
#define PARALLEL_STATE_SHARDING_H

#include "base/error.h"
#include "tensor/dtype.h"

struct sharded_parameter {
    int64_t elements;
    enum dtype dtype;   /* of the parameter, not of its state */
    int64_t start;      /* out: in its buffer, elements */
    int64_t padded;     /* out: elements that it takes there */
    int64_t part;       /* out: elements of the buffer that each rank owns; 0: the parameter is whole on the rank `owner` */
    uint32_t owner;     /* out: SHARDING_ALL: on every rank */
};

#define SHARDING_ALL UINT32_MAX
#define SHARDING_BUFFER_BYTES (INT64_C(256) << 20) /* V2 begins another buffer behind the parameter that fills this */
#define SHARDING_SEGMENT (INT64_C(1) << 20) /* stage 3 leaves parameters of up to so many elements whole, where nothing else is said */

enum sharding_stage { SHARDING_NONE, SHARDING_1_V1, SHARDING_1_V2, SHARDING_2, SHARDING_3 };

/* Fills in what is out. ranks is 1 or more; segment: elements, of stage 3. MEMORY or LIMIT. */
reshard_status sharding_assign(enum sharding_stage stage, uint32_t ranks, int64_t segment, struct sharded_parameter *parameters,
                               uint32_t count, reshard_error *err);

/* The elements of the parameter whose state the rank has: [*begin, *end), which may be empty. */
void sharding_range(const struct sharded_parameter *parameter, uint32_t rank, int64_t *begin, int64_t *end);

#endif
