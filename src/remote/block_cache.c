/* SPDX-License-Identifier: Apache-2.0 */
#include "remote/block_cache.h"

#include <stdlib.h>
#include <string.h>

bool block_cache_init(struct block_cache *cache)
{
    *cache = (struct block_cache){ .clock = 0 };
    return pthread_mutex_init(&cache->lock, NULL) == 0;
}

void block_cache_release(struct block_cache *cache)
{
    for (size_t i = 0; i < BLOCK_COUNT; i++)
        free(cache->blocks[i].bytes);
    pthread_mutex_destroy(&cache->lock);
}

static struct block *block_find(struct block_cache *cache, uint64_t object, uint64_t number)
{
    for (size_t i = 0; i < BLOCK_COUNT; i++)
        if (cache->blocks[i].object == object && cache->blocks[i].number == number)
            return &cache->blocks[i];
    return NULL;
}

bool block_cache_get(struct block_cache *cache, uint64_t object, uint64_t number, size_t offset, void *out, size_t size)
{
    pthread_mutex_lock(&cache->lock);
    struct block *block = block_find(cache, object, number);
    const bool is_there = block && offset <= block->size && size <= block->size - offset;
    if (is_there) {
        memcpy(out, block->bytes + offset, size);
        block->used = ++cache->clock;
    }
    pthread_mutex_unlock(&cache->lock);
    return is_there;
}

/* Free ones were never used. */
static struct block *block_oldest(struct block_cache *cache)
{
    struct block *oldest = &cache->blocks[0];
    for (size_t i = 1; i < BLOCK_COUNT; i++)
        if (cache->blocks[i].used < oldest->used)
            oldest = &cache->blocks[i];
    return oldest;
}

void block_cache_put(struct block_cache *cache, uint64_t object, uint64_t number, const void *bytes, size_t size)
{
    pthread_mutex_lock(&cache->lock);
    struct block *block = block_find(cache, object, number);
    if (!block)
        block = block_oldest(cache);
    if (!block->bytes)
        block->bytes = malloc(BLOCK_BYTES);
    if (block->bytes) {
        memcpy(block->bytes, bytes, size);
        block->object = object;
        block->number = number;
        block->size = size;
        block->used = ++cache->clock;
    }
    pthread_mutex_unlock(&cache->lock);
}
