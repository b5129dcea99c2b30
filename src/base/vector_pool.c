/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vector_pool.h"

#include "base/array.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_SLOTS 1024

reshard_status vector_pool_init(struct vector_pool *pool, reshard_error *err)
{
    *pool = (struct vector_pool){ .slot_count = FIRST_SLOTS, .seed = hash_table_seed() };
    memset(pool->last, 0xFF, sizeof(pool->last));
    pool->slots = array_zeroed(pool->slot_count, sizeof(*pool->slots));
    return pool->slots ? RESHARD_OK : error_set_memory(err);
}

static uint32_t pool_hash(const struct vector_pool *pool, const int64_t *values, size_t rank)
{
    return (uint32_t)hash64(values, rank * sizeof(*values), pool->seed + rank);
}

static bool pool_vector_is(const struct vector_pool *pool, uint32_t vector, const int64_t *values, size_t rank)
{
    const int64_t *stored = pool->numbers + vector;
    if ((size_t)stored[0] != rank)
        return false;
    for (size_t i = 0; i < rank; i++)
        if (stored[i + 1] != values[i])
            return false;
    return true;
}

static reshard_status pool_grow_slots(struct vector_pool *pool, reshard_error *err)
{
    uint32_t count = pool->slot_count * 2;
    uint32_t *slots = count ? array_zeroed(count, sizeof(*slots)) : NULL;
    if (!slots)
        return error_set_memory(err);
    for (uint64_t v = 0; v < pool->count; v += 1 + (uint64_t)pool->numbers[v]) {
        uint32_t slot = pool_hash(pool, pool->numbers + v + 1, (size_t)pool->numbers[v]) & (count - 1);
        while (slots[slot])
            slot = (slot + 1) & (count - 1);
        slots[slot] = (uint32_t)v + 1;
    }
    free(pool->slots);
    pool->slots = slots;
    pool->slot_count = count;
    return RESHARD_OK;
}

static reshard_status pool_append(struct vector_pool *pool, const int64_t *values, size_t rank, uint32_t *out, reshard_error *err)
{
    uint64_t needed = pool->count + 1 + rank;
    if (needed > UINT32_MAX - 1)
        return error_set(err, RESHARD_ERR_LIMIT, "index vectors of more than %" PRIu32 " numbers", UINT32_MAX - 1);
    if (needed > pool->capacity) {
        uint64_t capacity = pool->capacity + pool->capacity / 2 + 256;
        if (capacity < needed)
            capacity = needed;
        int64_t *grown = reallocarray(pool->numbers, capacity, sizeof(*grown));
        if (!grown)
            return error_set_memory(err);
        pool->numbers = grown;
        pool->capacity = capacity;
    }
    *out = (uint32_t)pool->count;
    pool->numbers[pool->count] = (int64_t)rank;
    if (rank)
        memcpy(pool->numbers + pool->count + 1, values, rank * sizeof(*values));
    pool->count = needed;
    return RESHARD_OK;
}

reshard_status vector_pool_keep(struct vector_pool *pool, const int64_t *values, size_t rank, uint32_t *out, reshard_error *err)
{
    uint32_t hash = pool_hash(pool, values, rank);
    uint32_t *last = &pool->last[hash % (sizeof(pool->last) / sizeof(pool->last[0]))];
    if (*last != VECTOR_POOL_NONE && pool_vector_is(pool, *last, values, rank)) {
        *out = *last;
        return RESHARD_OK;
    }
    if (pool->slots_used >= pool->slot_count / 2) {
        reshard_status status = pool_grow_slots(pool, err);
        if (status)
            return status;
    }
    uint32_t mask = pool->slot_count - 1, slot = hash & mask;
    while (pool->slots[slot] && !pool_vector_is(pool, pool->slots[slot] - 1, values, rank))
        slot = (slot + 1) & mask;
    if (!pool->slots[slot]) {
        uint32_t made = 0;
        reshard_status status = pool_append(pool, values, rank, &made, err);
        if (status)
            return status;
        pool->slots[slot] = made + 1;
        pool->slots_used++;
    }
    *out = *last = pool->slots[slot] - 1;
    return RESHARD_OK;
}

/* That giving memory back fails does no harm. */
void vector_pool_finish(struct vector_pool *pool)
{
    free(pool->slots);
    pool->slots = NULL;
    pool->slot_count = 0;
    int64_t *smaller = pool->count ? realloc(pool->numbers, (size_t)pool->count * sizeof(*smaller)) : NULL;
    if (smaller) {
        pool->numbers = smaller;
        pool->capacity = pool->count;
    }
}

void vector_pool_release(struct vector_pool *pool)
{
    free(pool->numbers);
    free(pool->slots);
    *pool = (struct vector_pool){ 0 };
}
