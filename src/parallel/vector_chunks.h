/* SPDX-License-Identifier: Apache-2.0 */
/* From "these elements of a stored vector are this parameter's state" to chunks of the logical tensor. */
#ifndef PARALLEL_VECTOR_CHUNKS_H
#define PARALLEL_VECTOR_CHUNKS_H

#include "parallel/rank_parameters.h"

/* Elements [start, start + count) of a vector, in one place. */
struct vector_part {
    int64_t start, count;
    uint32_t object;
    uint64_t offset, bytes;    /* of the elements; of the blob if it is unresolved */
    uint16_t flags, writer;    /* of the chunks */
    uint32_t driver_data;      /* of the chunks, unless they are unresolved */
};

/* A stored vector: parts in ascending order, which together hold it. */
struct stored_vector {
    enum dtype dtype;
    int64_t count;
    const struct vector_part *parts;
    uint32_t part_count;
};

/* Adds the chunks of one rank's parameter, whose elements begin at element `start` of the vector, to the catalog's tensor. */
reshard_status vector_chunks_add(struct catalog *catalog, uint32_t tensor, const struct model_parameter *parameter,
                                 const struct rank_place *place, const struct stored_vector *vector, int64_t start, reshard_error *err);

#endif
