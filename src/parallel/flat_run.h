/* SPDX-License-Identifier: Apache-2.0 */
/* A run of a flattened parameter that lies in one place, as chunks of the parameter's tensor: how FSDP1 cuts, in whatever order. */
#ifndef PARALLEL_FLAT_RUN_H
#define PARALLEL_FLAT_RUN_H

#include "catalog/catalog.h"

struct flat_run {
    int64_t begin, count;   /* elements of the flattened tensor */
    const int64_t *strides; /* in whose order it is flattened, without gaps; NULL: row-major */
    uint32_t object;
    uint64_t offset;        /* of the run's first element */
    uint16_t writer;
};

/* The run lies in the tensor. A row-major one is one chunk, another at most 2 * rank - 1. */
reshard_status flat_run_add(struct catalog *catalog, uint32_t tensor, const struct flat_run *run, reshard_error *err);

#endif
