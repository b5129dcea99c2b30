/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of objects that were read a little at a time: metadata of a file lies together, and each request takes as long as a megabyte. */
#ifndef REMOTE_BLOCK_CACHE_H
#define REMOTE_BLOCK_CACHE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK_BYTES ((size_t)256 << 10)
#define BLOCK_COUNT 64

struct block {
    uint64_t object, number, used; /* object 0: it is free */
    uint8_t *bytes;                /* BLOCK_BYTES, of which size count */
    size_t size;
};

struct block_cache {
    pthread_mutex_t lock;
    struct block blocks[BLOCK_COUNT];
    uint64_t clock;
};

bool block_cache_init(struct block_cache *cache);
void block_cache_release(struct block_cache *cache);

/* Copies bytes from an offset in the block, if it is there and has them. */
bool block_cache_get(struct block_cache *cache, uint64_t object, uint64_t number, size_t offset, void *out, size_t size);

/* Keeps a copy in place of what was used longest ago. Without memory nothing is kept. */
void block_cache_put(struct block_cache *cache, uint64_t object, uint64_t number, const void *bytes, size_t size);

#endif
