/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's sharded state dict, as Megatron Core's dist_checkpointing has it: local tensors and what they are of a whole, objects that are
 * a cell of a grid, and plain values. A sharded tensor is a shard (tensor/shard.h) that knows more: how many of its axes are indexes that
 * the local tensor does not have, in how many equal pieces the whole is cut, and which copy it is.
 */
#ifndef PARALLEL_SHARDED_DICT_H
#define PARALLEL_SHARDED_DICT_H

#include "base/arena.h"
#include "base/buffer.h"
#include "tensor/shard.h"

#include <stddef.h>

/* Which copy of its piece something is: numbers all of which are 0 for the main one, which is saved. */
struct replica {
    const int64_t *ids;
    size_t count;
};

struct sharded_tensor {
    struct shard shard;       /* its box has extent 1 on prepended axes */
    int prepended;            /* leading axes that are indexes */
    const int64_t *fragments; /* pieces by axis; NULL: the grid is irregular */
    struct replica replica;
    bool allows_mismatch;     /* the checkpoint's tensor may have other extents */
};

struct sharded_object {
    struct str key;
    int rank;
    const int64_t *shape, *offset;
    struct replica replica;
    struct str json, bytes, file; /* its value: one of them, or none. file: of torch.save */
};

enum sharded_value_kind {
    SHARDED_COMMON, SHARDED_LOCAL, SHARDED_MISSING, SHARDED_UNEXPECTED, SHARDED_WARNING, SHARDED_ANY_RANK, SHARDED_VALUE_KINDS,
    SHARDED_COMPARED = SHARDED_VALUE_KINDS /* what a caller compares in place of its common values: ours alone */
};

struct sharded_value {
    enum sharded_value_kind kind;
    struct str key, json, file; /* file: of torch.save, in place of json */
};

/* { 0 } is valid and empty. All but values of tensors lies in the arena. */
struct sharded_dict {
    struct arena arena;
    struct sharded_tensor *tensors;
    struct sharded_object *objects;
    struct sharded_value *values;
    size_t tensor_count, tensor_capacity, object_count, object_capacity, value_count, value_capacity;
    bool has_compared; /* COMPARED values, be there none, stand for the common ones where those of ranks are compared */
};

void sharded_dict_release(struct sharded_dict *dict);

bool replica_is_main(const struct replica *replica);

/* Whether its number is left to sharded_number_copies: the only one is REPLICA_ANY. */
#define REPLICA_ANY (-1)
bool replica_is_unnumbered(const struct replica *replica);

/* Checks what Megatron's constructor checks, and appends a copy. USAGE names the rule that does not hold. */
reshard_status sharded_add(struct sharded_dict *dict, const struct sharded_tensor *tensor, reshard_error *err);
reshard_status sharded_add_object(struct sharded_dict *dict, const struct sharded_object *object, reshard_error *err);
reshard_status sharded_add_value(struct sharded_dict *dict, const struct sharded_value *value, reshard_error *err);

/* The value of a kind and key, the first of them; NULL: there is none. */
struct sharded_value *sharded_find_value(const struct sharded_dict *dict, enum sharded_value_kind kind, struct str key);

/* On an axis of the whole, this is piece `offset` of `fragments`. */
struct rank_offset {
    int64_t axis, offset, fragments;
};

/* Adds a tensor whose shard.extent is its local shape (rank - prepended numbers); shape, start and fragments follow from the offsets. */
reshard_status sharded_add_offsets(struct sharded_dict *dict, const struct sharded_tensor *local, const struct rank_offset *offsets,
                                   size_t count, reshard_error *err);

/* Adds what [start, start + length) of every shard's axis (counted behind the prepended ones) is, as a tensor of its own; of a flat range
 * what meets it, which may be nothing. */
reshard_status sharded_add_narrow(struct sharded_dict *dict, const struct sharded_tensor *tensor, int64_t axis, int64_t start,
                                  int64_t length, reshard_error *err);

/* Which piece of the grid it is, by axis; only of a regular one. */
reshard_status sharded_cell(const struct sharded_tensor *tensor, int64_t *index, reshard_error *err);

/* The largest chunk that no piece of the grid is cut by. */
reshard_status sharded_largest_chunk(const struct sharded_tensor *tensor, int64_t *chunk, reshard_error *err);

/* KEY/shard_OFFSET_SHAPE, and back: the vectors lie in the arena. */
bool sharded_object_key(const struct sharded_object *object, struct buffer *out);
bool sharded_key_is_object(struct str text, struct str *key); /* *key: that of the object */
reshard_status sharded_object_of_key(struct str text, struct arena *arena, struct sharded_object *out, reshard_error *err);

/* Puts the prefix before each key of a tensor or object; takes `old`, with which each must begin, for another. */
reshard_status sharded_add_prefix(struct sharded_dict *dict, struct str prefix, reshard_error *err);
reshard_status sharded_replace_prefix(struct sharded_dict *dict, struct str old, struct str prefix, reshard_error *err);

/* Of each key the first prefix of the list that it begins with becomes the one beside it. */
struct prefix_pair {
    struct str old, prefix;
};
reshard_status sharded_map_prefixes(struct sharded_dict *dict, const struct prefix_pair *pairs, size_t count, reshard_error *err);

/* ---- sharded_check.c ---- */

/*
 * Whether the state dicts of all ranks are one whole: of each tensor every element is in exactly one main copy, of each object every cell.
 * USAGE with Megatron's words for what is not.
 */
reshard_status sharded_check(const struct sharded_dict *const *ranks, size_t count, reshard_error *err);

/* ---- sharded_spread.c ---- */

/*
 * Spreads what several ranks hold copies of, byte by byte, as Megatron's fully parallel save and load do. A copy is the same piece of the
 * same tensor. owners[rank] has as many entries as the rank has tensors: who is to save or read the piece, and which of its tensors that
 * is. For saving, pieces without a main copy are nobody's: SPREAD_NONE.
 */
#define SPREAD_NONE UINT32_MAX
struct spread_owner {
    uint32_t rank, index;
};
enum spread_purpose { SPREAD_TO_SAVE, SPREAD_TO_LOAD };
reshard_status sharded_owners_new(const struct sharded_dict *const *ranks, size_t count, struct spread_owner ***out, reshard_error *err);
void sharded_owners_free(struct spread_owner **owners, size_t count);
reshard_status sharded_spread(const struct sharded_dict *const *ranks, size_t count, enum spread_purpose purpose,
                              struct spread_owner **owners, reshard_error *err);

/* Makes the copies of a rank that it owns main ones, and its other copies of what has an owner others. */
void sharded_take_owners(struct sharded_dict *dict, uint32_t rank, const struct spread_owner *owners);

/*
 * Numbers the copies that have no number: where no other copy of the piece is the main one, the first of them is. dicts and ranks are the
 * same ones.
 */
reshard_status sharded_number_copies(struct sharded_dict *dicts, const struct sharded_dict *const *ranks, size_t count, reshard_error *err);

/* ---- sharded_pack.c ---- */

/* The descriptions as bytes, for other ranks, and back; values of tensors stay behind, those of objects, common and compared ones
 * (with_values) go along. Numbers are little-endian. FORMAT for what no rank of this library sends. */
bool sharded_pack(const struct sharded_dict *dict, bool with_values, struct buffer *out);
reshard_status sharded_unpack(const void *bytes, size_t size, struct sharded_dict *out, reshard_error *err);

#endif
