/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's layout fully_sharded_model_space (Megatron Core 0.8 to 0.14): optimizer state of parameters, flattened. A tensor is a grid of
 * cells, one for each layer, expert, tensor-parallel rank and gated half, and its last axis runs through a cell in row-major order; the
 * real shape is in Metadata.mcore_data. A chunk is a whole cell, whose bytes are those of the box that it is: only names and shapes in
 * .metadata and in blobs differ.
 */
#ifndef FORMATS_MCORE_MCORE_MODEL_SPACE_H
#define FORMATS_MCORE_MCORE_MODEL_SPACE_H

#include "formats/dcp/dcp_target.h"

/* Whether the target's tensor is flattened. */
bool mcore_is_flattened(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor);

/* The key under which a flattened tensor is stored; in arena, "" without memory. */
struct str mcore_flattened_key(const struct dcp_target *state, struct arena *arena, struct str key);

/* The stored size of a tensor whose cells have the given extents; rank + 1 numbers. */
void mcore_flattened_size(const struct catalog *catalog, uint32_t tensor, const int64_t *cell, int64_t *size);

/* Where a cell is stored; rank + 1 numbers each. */
void mcore_flattened_box(const struct catalog *catalog, uint32_t tensor, const int64_t *start, const int64_t *extent, int64_t *stored_start,
                        int64_t *stored_extent);

/* Adds the pieces of a flattened tensor. */
reshard_status mcore_place_flattened(struct dcp_placing *placing, uint32_t tensor, reshard_error *err);

#endif
