/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index and slice arithmetic of sharded tensors, and lists of shards: what programs need that cut, describe and put together the pieces of
 * tensors themselves. No checkpoint is involved.
 *
 * Units. All numbers are elements, never bytes. Shapes, indices, starts and extents are vectors of `rank` numbers, axis 0 first; a rank is
 * at most RESHARD_RANK_MAX, and the vectors of rank 0 may be NULL: such a tensor has one element. Order is row-major. Ranges are half-open.
 *
 * Memory. Functions of numbers write to vectors of the caller's and keep nothing. Lists copy keys and vectors; values of shards stay the
 * caller's and are only touched by reshard_assign_slice.
 *
 * Errors. What does not fit, such as an index outside of its shape, is RESHARD_ERR_USAGE, and the message says what; results are zeroed,
 * and lists are as they were before.
 *
 * Threads. Functions that take no list, or const ones, may run at once in any number of threads. What adds to a list needs it for itself.
 */
#ifndef RESHARD_GEOMETRY_H
#define RESHARD_GEOMETRY_H

#include "reshard/reshard.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RESHARD_RANK_MAX 64

/* ------------------------------------------------------------------------------------------------ indices and boxes */

/* The row-major number of an index in a shape: (1, 2, 3) in (2, 3, 4) is 23. */
reshard_status reshard_ravel(size_t rank, const int64_t *shape, const int64_t *index, int64_t *flat, reshard_error *err);

/* The index with a row-major number: 11 in (3, 1, 4) is (2, 0, 3). */
reshard_status reshard_unravel(size_t rank, const int64_t *shape, int64_t flat, int64_t *index, reshard_error *err);

/*
 * The smallest box that holds elements [begin, end) of the row-major order of a shape, begin < end. In the order of that box they are
 * consecutive too: [5, 8) of (4, 3) lies in [1:3, 0:3]. That holds for every rank; Paddle's minimal_nd_slice leaves elements out from
 * rank 3 on.
 */
reshard_status reshard_minimal_box(size_t rank, const int64_t *shape, int64_t begin, int64_t end, int64_t *start, int64_t *extent,
                                   reshard_error *err);

/* The same range in the order of a box of the shape that holds it, and whose elements are consecutive in the shape, as those of a minimal
 * box are: [5, 8) of (4, 3) is [2, 5) of [1:3, 0:3]. */
reshard_status reshard_range_in_box(size_t rank, const int64_t *shape, const int64_t *start, const int64_t *extent, int64_t begin,
                                    int64_t end, int64_t *box_begin, int64_t *box_end, reshard_error *err);

/*
 * What two boxes have in common: start and extent, and where that begins in a and in b. *overlaps is 0 if they only touch, or one is
 * empty; the vectors, which may be NULL, are zeroed then.
 */
reshard_status reshard_overlap(size_t rank, const int64_t *a_start, const int64_t *a_extent, const int64_t *b_start,
                               const int64_t *b_extent, int *overlaps, int64_t *start, int64_t *extent, int64_t *in_a, int64_t *in_b,
                               reshard_error *err);

/* ------------------------------------------------------------------------------------------------ shards */

/*
 * The box of a whole tensor that one rank holds; or, if it is flattened, elements [flat_begin, flat_end) of the row-major order of that
 * box. start + extent is within global_shape on every axis, and a flat range is not empty and within the box.
 *
 * Values that this process cannot reach, such as those in a GPU's memory, have functions in place of data and strides. Both get bytes
 * [offset, offset + size) of what data would be, and return 0, or anything else if they failed: then the call that wanted it ends with
 * RESHARD_ERR_CANCELLED.
 *   read   gives values, where they are saved, read or compared: reshard_open_shards. Several threads may ask at once, for some bytes more
 *          than once, as long as what was opened of them is open
 *   write  takes values, where they are loaded: reshard_load_shards. Each byte comes once, in order, to the thread that loads
 */
typedef struct reshard_shard {
    size_t struct_size;
    reshard_str key;
    const char *dtype;                      /* "BF16", "bfloat16", "paddle.bfloat16" */
    size_t rank;
    const int64_t *global_shape;            /* of the whole tensor */
    const int64_t *start, *extent;          /* the box: global offset and local shape */
    int64_t is_flattened, flat_begin, flat_end;
    void *data;                             /* little-endian: values of the box, or of the range alone, row-major; NULL: none */
    const int64_t *strides;                 /* of a box's values in memory, in elements, not negative, each with a place of its own; NULL:
                                               row-major. reshard_assign_slice takes none */
    int (*read)(void *out, uint64_t offset, size_t size, void *context);
    int (*write)(const void *bytes, uint64_t offset, size_t size, void *context);
    void *context;                          /* of both */
} reshard_shard;
#define RESHARD_SHARD_INIT { sizeof(reshard_shard), { NULL, 0 }, NULL, 0, NULL, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, NULL }

/* What identifies a shard's box: key, dtype by its name here, and the box, without flat range and values. Points to what shard points
 * to. */
reshard_status reshard_shard_describe(const reshard_shard *shard, reshard_shard *out, reshard_error *err);

/* A step between source and target: a cast, or a permutation. An array's member. */
typedef struct reshard_slice_operation {
    const char *dtype;   /* cast to it */
    const int64_t *axes; /* if dtype is NULL: axis i of the result is axis axes[i] */
} reshard_slice_operation;

typedef struct reshard_slice_copy {
    size_t struct_size;
    const reshard_shard *source_region, *source; /* a region is a shard without values: its box counts */
    const reshard_shard *target_region, *target;
    const reshard_slice_operation *operations;   /* in this order; without any, types are equal */
    size_t operation_stride, operation_count;
} reshard_slice_copy;
#define RESHARD_SLICE_COPY_INIT { sizeof(reshard_slice_copy), NULL, NULL, NULL, NULL, NULL, sizeof(reshard_slice_operation), 0 }

/*
 * Copies what source_region and source have in common to where target_region and target have something in common; both must, and the
 * shapes of the two slices must be equal behind all permutations. Memory of target is written, and must not overlap the source's.
 * *elements, which may be NULL: how many were written; of flattened shards, those that their ranges hold. RESHARD_ERR_UNSUPPORTED without
 * such a cast. Any number of threads may write different memory at once; of a call that fails nothing is written.
 */
reshard_status reshard_assign_slice(const reshard_slice_copy *copy, uint64_t *elements, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ lists of shards */

/* A sharded state dict, or several put together: shards in order. */
typedef struct reshard_shards reshard_shards;

reshard_status reshard_shards_new(reshard_shards **out, reshard_error *err);
void reshard_shards_free(reshard_shards *shards);
reshard_status reshard_shards_add(reshard_shards *shards, const reshard_shard *shard, reshard_error *err);

/* What reshard_shards_at gives lives as long as the list. */
size_t reshard_shards_count(const reshard_shards *shards);
reshard_status reshard_shards_at(const reshard_shards *shards, size_t index, reshard_shard *out);

/* The shards of all lists, those of rank 0 first: keys in the order in which they appear first, and the shards of a key in the order of the
 * lists. Free *out with reshard_shards_free. */
reshard_status reshard_shards_merge(const reshard_shards *const *lists, size_t count, reshard_shards **out, reshard_error *err);

/*
 * Whether source, the shards of all ranks, can be resharded to target (NULL: to anything). Each key has one type and one global shape; the
 * shards of the source cover it, whatever their tiling, and may overlap; each key of the target is in the source with the same global
 * shape. The message names the key, the hints of a gap the region.
 */
reshard_status reshard_shards_check(const reshard_shards *source, const reshard_shards *target, reshard_error *err);

/* A tensor as one rank holds it. An array's member. */
typedef struct reshard_local_tensor {
    reshard_str name;
    const char *dtype;
    size_t rank;
    const int64_t *shape;
    void *data;                     /* may be NULL */
    const reshard_shard *shard;     /* for reshard_state_kind: it is a shard already; else NULL */
} reshard_local_tensor;

/* The tensor of this name is one of equal parts along an axis. An array's member. */
typedef struct reshard_split_rule {
    reshard_str name;               /* without the prefix */
    int64_t axis;
} reshard_split_rule;

typedef struct reshard_split_input {
    size_t struct_size;
    const reshard_local_tensor *tensors;
    size_t tensor_stride, tensor_count;
    const reshard_split_rule *rules;
    size_t rule_stride, rule_count;
    reshard_str prefix;             /* keys are prefix and name */
    int64_t part, parts;            /* which of the group's equal parts this rank holds; parts 0: 1 */
} reshard_split_input;
#define RESHARD_SPLIT_INPUT_INIT                                                                                                           \
    {                                                                                                                                      \
        sizeof(reshard_split_input), NULL, sizeof(reshard_local_tensor), 0, NULL, sizeof(reshard_split_rule), 0, { NULL, 0 }, 0, 0         \
    }

/* The shards of a rank's tensors: those with a rule are its part of a whole that is `parts` times as long on the rule's axis, the others
 * are whole. Free *out with reshard_shards_free. A rule with an axis that its tensor does not have is RESHARD_ERR_USAGE. */
reshard_status reshard_shards_split(const reshard_split_input *input, reshard_shards **out, reshard_error *err);

enum { RESHARD_STATE_PLAIN = -1, RESHARD_STATE_EMPTY = 0, RESHARD_STATE_SHARDED = 1 };

/* Whether a rank's state dict holds shards or plain tensors. Some of both is RESHARD_ERR_USAGE, where Paddle raises TypeError: the message
 * names one of each. */
reshard_status reshard_state_kind(const reshard_local_tensor *tensors, size_t stride, size_t count, int64_t *kind, reshard_error *err);

/* The same of the kinds of all ranks: empty ones go with both, else RESHARD_ERR_USAGE names two ranks. */
reshard_status reshard_state_kinds_join(const int64_t *kinds, size_t count, int64_t *kind, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
