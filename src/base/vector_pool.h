/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index vectors (shapes, offsets, ranges) of metadata with millions of them: equal ones are one. A vector v is numbers[v] numbers from
 * numbers[v + 1] on. Unlike the catalog's pool, it knows how long each is.
 */
#ifndef BASE_VECTOR_POOL_H
#define BASE_VECTOR_POOL_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define VECTOR_POOL_NONE UINT32_MAX

struct vector_pool {
    int64_t *numbers;
    uint64_t count, capacity; /* numbers */
    uint32_t *slots;          /* hash table: vector + 1 */
    uint32_t slot_count, slots_used;
    uint32_t last[4]; /* a direct-mapped cache in front of it */
    uint64_t seed;    /* of the table's hash, against numbers chosen to collide */
};

reshard_status vector_pool_init(struct vector_pool *pool, reshard_error *err);
reshard_status vector_pool_keep(struct vector_pool *pool, const int64_t *values, size_t rank, uint32_t *out, reshard_error *err);

/* Nothing more is kept: gives back what only keeping needs. */
void vector_pool_finish(struct vector_pool *pool);
void vector_pool_release(struct vector_pool *pool);

static inline int vector_pool_rank(const struct vector_pool *pool, uint32_t vector)
{
    return (int)pool->numbers[vector];
}

static inline const int64_t *vector_pool_at(const struct vector_pool *pool, uint32_t vector)
{
    return pool->numbers + vector + 1;
}

#endif
