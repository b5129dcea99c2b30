/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded state dicts: lists of shards, those of one rank or of many. They are made by adding, by splitting the tensors of a rank after
 * rules, or by putting the lists of all ranks together; and checked before something is resharded.
 */
#ifndef PARALLEL_SHARD_LIST_H
#define PARALLEL_SHARD_LIST_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/cursor.h"
#include "tensor/shard.h"

/* { 0 } is valid and empty. Keys and vectors lie in the arena, values where they were. */
struct shard_list {
    struct arena arena;
    struct shard *shards;
    size_t count, capacity;
};

/* Checks the shard and appends a copy. */
reshard_status shard_list_add(struct shard_list *list, const struct shard *shard, reshard_error *err);
void shard_list_release(struct shard_list *list);

/* All shards of the lists: keys in the order in which they appear first, the shards of a key in the order of the lists. */
reshard_status shard_list_merge(const struct shard_list *const *lists, size_t count, struct shard_list *out, reshard_error *err);

/* A rank's tensor that is its part of `parts` equal ones along an axis (-1: it is whole, every rank has it). */
struct shard_split {
    int64_t axis, part, parts;
};

/* The shard that is the tensor of shape `extent`. USAGE names the axis that the tensor does not have. */
reshard_status shard_list_add_split(struct shard_list *list, const struct shard *local, const struct shard_split *split,
                                    reshard_error *err);

/* Whether what the target wants can be made of the source: each key has one type and one global shape, the source's shards cover it, and
 * the target asks for nothing else. The source's shards may overlap. target may be NULL. USAGE names the key, and the region missing. */
reshard_status shard_list_check(const struct shard_list *source, const struct shard_list *target, reshard_error *err);

/* Descriptions as bytes, says_where: with the addresses of values; and back, added to a list as shards of rank `writer` that are elsewhere.
 * What comes in is checked: FORMAT for bytes that are no list, USAGE for shards that cannot be. False: no memory. */
bool shard_list_pack(const struct shard_list *list, bool says_where, struct buffer *out);
reshard_status shard_list_unpack(struct cursor *cursor, uint32_t writer, struct shard_list *out, reshard_error *err);

#endif
