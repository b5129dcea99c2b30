/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other about shards, as bytes: numbers are little-endian, texts a size u32 and bytes, vectors numbers i64 whose count
 * the reader knows. Who reads trusts nothing: false is what is malformed or cut off.
 */
#ifndef PARALLEL_SHARD_PACK_H
#define PARALLEL_SHARD_PACK_H

#include "base/buffer.h"
#include "base/cursor.h"
#include "tensor/box.h"
#include "tensor/shard.h"

void pack_text(struct buffer *out, struct str text);
void pack_numbers(struct buffer *out, size_t count, const int64_t *numbers);
bool unpack_text(struct cursor *cursor, struct str *out);
bool unpack_numbers(struct cursor *cursor, size_t count, int64_t *out);

/* Vectors of the shard that was read last; who adds it to a list has copies. */
struct shard_room {
    int64_t shape[RANK_MAX + 1], start[RANK_MAX + 1], extent[RANK_MAX + 1], strides[RANK_MAX + 1];
};

/* says_where: also where the values lie, for ranks that share memory. */
void shard_pack(const struct shard *shard, bool says_where, struct buffer *out);

/* is_elsewhere tells whether the shard had values; data where they are, if that was said. */
bool shard_unpack(struct cursor *cursor, struct shard_room *room, struct shard *out);

#endif
