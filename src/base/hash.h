/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 behind one file: one-shot with a seed for hash tables, streaming for digests. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *bytes, size_t size, uint64_t seed);

/* A random number. */
uint64_t hash_random_seed(void);

/* A secret seed for the hash of a table, against crafted collisions: the same for all tables of a program, another when it is started
 * again. No call of the system: a checkpoint of many blobs makes very many tables. */
uint64_t hash_table_seed(void);

/* Streaming; hash64_stream_digest of the same bytes equals hash64 with seed 0. */
struct hash64_stream;
struct hash64_stream *hash64_stream_new(void); /* NULL: no memory */
void hash64_stream_reset(struct hash64_stream *stream);
void hash64_stream_update(struct hash64_stream *stream, const void *bytes, size_t size);
uint64_t hash64_stream_digest(const struct hash64_stream *stream);
void hash64_stream_free(struct hash64_stream *stream);

#endif
