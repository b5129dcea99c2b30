/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a partition rule to boxes: which parts of a whole tensor one rank holds, and where in its own tensor they lie. The same boxes serve
 * merging and laying out; an order of blocks is several boxes.
 */
#ifndef PARALLEL_PARTITION_CUT_H
#define PARALLEL_PARTITION_CUT_H

#include "parallel/partition_rules.h"
#include "tensor/box.h"

/* Sizes of the parallel dimensions, and what the arguments say about blocks. */
struct parallel_layout {
    int64_t tp, pp, vp, ep, etp; /* each 1 or more */
};

struct cut_context {
    const struct partition_rules *rules;
    const struct training_args *args;
    struct parallel_layout layout;
    bool is_gated;
    bool is_split_down;      /* parameters with "unless" are cut, where their shape does not tell */
    int version_order;       /* of fused heads: 0, 1, or 2 for today's */
};

/* One rank's place. */
struct rank_place {
    int64_t tp, pp, ep, etp;
};

/* How one tensor is cut. */
struct cut {
    int rank;
    int64_t shape[RANK_MAX];       /* of the whole */
    int64_t local[RANK_MAX];       /* of every rank's tensor */
    int axis;                      /* -1: not cut */
    int64_t parts;
    enum partition_group group;
    int64_t blocks[RULE_BLOCKS_MAX]; /* sizes in the whole of the blocks of the axis, one after another; repeated `repeats` times */
    int block_count;
    int64_t repeats;               /* experts of grouped tensors: those of one rank */
    int expert_axis;               /* -1: none; grouped tensors: the axis of the cut */
    int64_t expert_parts;
    bool is_grouped;
    int versions;                  /* parts of a head, 0: in order */
    int version_order;
    int64_t head_size;
};

/* Reading: the cut whose ranks hold tensors of the local shape. FORMAT if the rule does not fit the shape. */
reshard_status cut_from_local(const struct cut_context *context, const struct partition_rule *rule, int rank, const int64_t *local,
                              struct cut *out, reshard_error *err);

/* Writing: the cut of a whole tensor. UNSUPPORTED if it does not divide: names the axis. */
reshard_status cut_from_whole(const struct cut_context *context, const struct partition_rule *rule, int rank, const int64_t *shape,
                              struct cut *out, reshard_error *err);

/* Greatest number that divides `common` (0: any) and all blocks of the cut axis. */
int64_t cut_common_divisor(const struct cut *cut, int64_t common);

/* A box of the whole, and where in the rank's tensor its elements lie: at local_start + step * index on each axis. */
struct cut_piece {
    int64_t start[RANK_MAX], extent[RANK_MAX];
    int64_t local_start[RANK_MAX], step[RANK_MAX];
};

/* Calls emit for the pieces of one rank, until one fails. */
typedef reshard_status (*cut_sink)(const struct cut_piece *piece, void *context, reshard_error *err);
reshard_status cut_pieces(const struct cut *cut, const struct rank_place *place, cut_sink emit, void *context, reshard_error *err);

#endif
