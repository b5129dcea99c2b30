/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flat parameter of a unit of FSDP: parameters one after another, each at a multiple of an alignment, cut into pieces of equal size,
 * one a rank, of which the last are padded.
 */
#ifndef PARALLEL_FLAT_UNIT_H
#define PARALLEL_FLAT_UNIT_H

#include <stdbool.h>
#include <stdint.h>

/* Where the parameter behind `end` begins. end + alignment is no overflow. */
static inline int64_t flat_unit_next(int64_t end, int64_t alignment)
{
    return (end + alignment - 1) / alignment * alignment;
}

/* Elements of each piece of a flat parameter that ends at `end`. end + pieces is no overflow. */
static inline int64_t flat_unit_piece(int64_t end, int64_t pieces)
{
    return (end + pieces - 1) / pieces;
}

/* The part of a parameter that lies in a piece: elements [begin, begin + count) of the parameter, at `place` of the piece. */
struct flat_unit_part {
    int64_t begin, count, place;
};

/* Of a parameter at [start, start + elements), in piece `number` of `pieces` of size `piece`. False if nothing of it lies there. One
 * without elements lies in one piece. */
bool flat_unit_part_of(int64_t piece, int64_t pieces, int64_t number, int64_t start, int64_t elements, struct flat_unit_part *out);

#endif
