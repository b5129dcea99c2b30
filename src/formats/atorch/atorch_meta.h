/* SPDX-License-Identifier: Apache-2.0 */
/* flat_meta.R-W: a pickle of nothing but dicts, numbers, texts and torch.Size, read without running it. */
#ifndef FORMATS_ATORCH_META_H
#define FORMATS_ATORCH_META_H

#include "base/arena.h"
#include "base/error.h"
#include "base/limits.h"
#include "tensor/box.h"

struct atorch_numbers {
    const int64_t *items;
    size_t count;
};

/* Where ranks of an expert unit stand: file R holds the piece `fsdp_rank` of expert `rank`. */
struct atorch_expert_place {
    struct atorch_numbers ranks, fsdp_ranks; /* as the file lists them */
    int64_t rank, fsdp_rank;
};

/* A unit, as flat_param_meta of version 1 tells of it. */
struct atorch_meta_unit {
    struct str name;
    struct atorch_numbers numels, runs; /* of the parameters; with the padding between and behind them */
    const bool *is_padding;             /* by run */
    int64_t shard;                      /* flat_numel: elements of this rank's piece */
    bool has_experts;
    struct atorch_expert_place place;
};

/* A parameter of which this rank has elements. */
struct atorch_meta_entry {
    struct str name, inner, unit; /* inner: inside the unit */
    int rank;
    const int64_t *shape, *strides; /* strides NULL: not said */
    int64_t numel, begin, end;      /* of the whole; places in the rank's piece */
    int64_t pad, data_rank;
    int64_t shard;                  /* version 0: flat_numel; else -1 */
};

struct atorch_meta {
    int version; /* 0 or 1 */
    struct atorch_meta_unit *units;
    struct atorch_meta_entry *entries;
    uint32_t unit_count, entry_count;
};

/*
 * Checks what one file alone can show: types, signs, that a shape has the number of elements that is said, and a place that many at
 * most. What it makes lies in arena.
 */
reshard_status atorch_meta_read(struct str bytes, const struct limits *limits, struct arena *arena, struct atorch_meta *out,
                                reshard_error *err);

#endif
