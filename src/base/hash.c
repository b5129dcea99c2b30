/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#include <xxhash.h>

#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define RANDOM_BYTES 16 /* behind AT_RANDOM */

uint64_t hash64(const void *bytes, size_t size, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, size, seed);
}

/* Before the kernel has entropy, or where the call is refused, time, process and the stack's random address must do. */
uint64_t hash_random_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == (ssize_t)sizeof(seed))
        return seed;
    struct timespec now = { 0 };
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t sources[] = { (uint64_t)now.tv_sec, (uint64_t)now.tv_nsec, (uint64_t)getpid(), (uint64_t)(uintptr_t)&seed };
    return hash64(sources, sizeof(sources), 0);
}

/* The kernel gives each program random bytes as it starts. They are hashed: the C library makes its own secrets of them as they are. */
uint64_t hash_table_seed(void)
{
    const void *random = (const void *)(uintptr_t)getauxval(AT_RANDOM);
    return random ? hash64(random, RANDOM_BYTES, 0) : hash_random_seed();
}

struct hash64_stream {
    XXH3_state_t *state;
};

struct hash64_stream *hash64_stream_new(void)
{
    struct hash64_stream *stream = malloc(sizeof(*stream));
    if (!stream)
        return NULL;
    stream->state = XXH3_createState();
    if (!stream->state) {
        free(stream);
        return NULL;
    }
    hash64_stream_reset(stream);
    return stream;
}

void hash64_stream_reset(struct hash64_stream *stream)
{
    XXH3_64bits_reset(stream->state);
}

void hash64_stream_update(struct hash64_stream *stream, const void *bytes, size_t size)
{
    if (size)
        XXH3_64bits_update(stream->state, bytes, size);
}

uint64_t hash64_stream_digest(const struct hash64_stream *stream)
{
    return XXH3_64bits_digest(stream->state);
}

void hash64_stream_free(struct hash64_stream *stream)
{
    if (!stream)
        return;
    XXH3_freeState(stream->state);
    free(stream);
}
