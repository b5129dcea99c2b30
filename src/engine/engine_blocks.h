/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks: how a strided source is best read. Axes whose gaps are small or well filled are read over, as one block; the others are
 * walked, one read a block.
 */
#ifndef ENGINE_ENGINE_BLOCKS_H
#define ENGINE_ENGINE_BLOCKS_H

#include "kernels/copy.h"

#define GAP_ALWAYS 4096  /* reading so much more costs less than another call */
#define GAP_MAX 65536    /* never read over more */
#define GAP_FILL_LOOSE 8 /* up to GAP_MAX if one byte in so many is wanted: others may want the rest */
#define GAP_FILL_TIGHT 2 /* the same where nobody does */

struct blocks {
    uint64_t block_bytes, block_count;
    int outer_rank;
    int outer_axis[RANK_MAX]; /* axes of the spec that are walked, slowest first */
};

/* Whether elements pass unchanged. */
bool spec_is_identity(const struct copy_spec *spec);

/* Source bytes from the first element to the end of the last. */
uint64_t spec_source_bytes(const struct copy_spec *spec);
uint64_t spec_target_bytes(const struct copy_spec *spec);

/* The size of the runs that are contiguous on both sides of a simplified spec, and their number; false if elements change on the way, or
 * the same run would be read twice. */
bool spec_runs(const struct copy_spec *simple, uint64_t *run_bytes, uint64_t *run_count);

/* fill_min: gaps above GAP_ALWAYS are read over if at least one byte in so many is wanted. */
void blocks_of(const struct copy_spec *simple, unsigned fill_min, struct blocks *out);

/* Source offset of block number index from the first element. */
uint64_t block_offset(const struct copy_spec *simple, const struct blocks *blocks, uint64_t index);

/* Makes the spec's source the packed blocks. */
void blocks_pack(struct copy_spec *simple, const struct blocks *blocks);

#endif
