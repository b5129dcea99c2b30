/* SPDX-License-Identifier: Apache-2.0 */
/* For finding the chunks of a tensor that hold the same elements in the same order. */
#ifndef PLAN_PLAN_REPLICA_H
#define PLAN_PLAN_REPLICA_H

#include "catalog/catalog.h"

/* A number that is equal for chunks that are copies (catalog_chunks_are_copies), and mostly another for others. */
int64_t replica_key(const struct catalog *catalog, int rank, const struct catalog_chunk *chunk);

#endif
