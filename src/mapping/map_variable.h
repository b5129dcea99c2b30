/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Variables: what a name stands for while statements are executed. A variable is a shape tiled by pieces; a piece is a box of one source
 * weight, with its axes permuted and perhaps cast. Operations make new variables; nothing is changed in place, so pieces are shared.
 *
 * Stacking gives a tensor one axis more than its source has, unstacking one less. A piece says so in `axes`: an axis of the variable that
 * is none of the source's is MAP_AXIS_NEW, and the piece has extent 1 on it; an axis of the source that is named by no axis of the variable
 * is dropped, and the piece reads one position of it, source_start. Where a piece would have both, they are taken for one and the same axis
 * (of extent 1), so it has new axes or dropped ones, never both: the tensor whose rank is lower is a box of the other, less unit axes.
 */
#ifndef MAPPING_MAP_VARIABLE_H
#define MAPPING_MAP_VARIABLE_H

#include "mapping/map_space.h"
#include "mapping/map_syntax.h"

#define MAP_DTYPE_NONE DTYPE_COUNT /* of a weight that exists only by its states */

/* Casts in the order in which they are applied: last one first in the list. Every step rounds, so none can be left out. */
struct map_cast {
    const struct map_cast *before;
    enum dtype dtype;
};

#define MAP_AXIS_NEW UINT8_MAX

struct map_piece {
    uint32_t weight;                 /* of the source space */
    int source_rank;                 /* of the weight */
    const int64_t *source_start;     /* [source_rank] in the weight's axes */
    const int64_t *start, *extent;   /* [rank] in the variable's axes; never empty */
    const uint8_t *axes;             /* [rank] axis i of the variable is axis axes[i] of the weight, or MAP_AXIS_NEW; NULL: the same axes */
    const struct map_cast *casts;    /* NULL: none */
    enum dtype dtype;                /* of the weight's elements, before the casts */
};

struct map_variable {
    int rank;
    const int64_t *shape;
    const struct map_piece *pieces;
    uint32_t piece_count;
    enum dtype dtype;                       /* of the source, of the first part where parts differ; casts do not count */
    const struct map_statement *statement;  /* that made it; NULL: a weight of the source itself */
};

/* Where variables are made. */
struct map_workshop {
    struct arena *arena;
    uint64_t pieces_made, pieces_max;
};

/* All functions return RESHARD_ERR_MEMORY or RESHARD_ERR_LIMIT if they fail; what does not fit is for the caller to check before. */

/* The whole of a weight. */
reshard_status map_variable_input(struct map_workshop *workshop, const struct map_space *source, uint32_t weight, struct map_variable *out,
                                  reshard_error *err);

/* count parts along axis; part i is [ends[i - 1], ends[i]), the first begins at 0, the last ends where the variable does. */
reshard_status map_variable_split(struct map_workshop *workshop, const struct map_variable *in, int axis, const int64_t *ends,
                                  uint32_t count, struct map_variable *out, reshard_error *err);

/* Parts one behind the other along axis; ranks and other extents agree. */
reshard_status map_variable_concat(struct map_workshop *workshop, const struct map_variable *const *parts, uint32_t count, int axis,
                                   struct map_variable *out, reshard_error *err);

/* Axis i of the result is axis axes[i] of `in`. */
reshard_status map_variable_permute(struct map_workshop *workshop, const struct map_variable *in, const uint8_t *axes,
                                    struct map_variable *out, reshard_error *err);

/* count parts along axis, each of extent 1 there, and without it. */
reshard_status map_variable_unstack(struct map_workshop *workshop, const struct map_variable *in, int axis, uint32_t count,
                                    struct map_variable *out, reshard_error *err);

/* Parts of one shape one behind the other along a new axis. */
reshard_status map_variable_stack(struct map_workshop *workshop, const struct map_variable *const *parts, uint32_t count, int axis,
                                  struct map_variable *out, reshard_error *err);

reshard_status map_variable_cast(struct map_workshop *workshop, const struct map_variable *in, enum dtype dtype, struct map_variable *out,
                                 reshard_error *err);

/* The extents of the box that a piece reads, in the weight's axes. */
void map_piece_source_extent(const struct map_piece *piece, int rank, int64_t *extent);

/* The type of a piece's elements behind its casts. */
static inline enum dtype map_piece_dtype(const struct map_piece *piece)
{
    return piece->casts ? piece->casts->dtype : piece->dtype;
}

#endif
