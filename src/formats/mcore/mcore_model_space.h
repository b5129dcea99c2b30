/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's layout fully_sharded_model_space (Megatron Core 0.8 to 0.14): optimizer state of parameters, flattened. A tensor is a grid of
 * cells, one for each layer, expert, tensor-parallel rank and gated half, and its last axis runs through a cell in row-major order; the
 * real shape is in Metadata.mcore_data. A chunk is a whole cell, whose bytes are those of the box that it is: only names and shapes in
 * .metadata and in blobs differ.
 */
#ifndef FORMATS_MCORE_MCORE_MODEL_SPACE_H
#define FORMATS_MCORE_MCORE_MODEL_SPACE_H

#include "formats/mcore/mcore_target.h"

/* Whether the target's tensor is flattened. */
bool mcore_is_flattened(const struct mcore_target *state, const struct catalog *catalog, uint32_t tensor);

/* The hooks of a DCP flavour: the key under which a tensor is stored, where a cell is stored, and mcore_data, the real shapes of tensors.
 */
struct str mcore_stored_key(const struct dcp_target *state, struct arena *arena, struct str key);
bool mcore_stored_form(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                       const int64_t *extent, struct dcp_form *out);
const char *mcore_shapes_attribute(const struct dcp_target *state);
void mcore_put_shape(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, struct buffer *out);

/* Says under which names masters are read again, where the reference gives them others than the source. */
reshard_status mcore_masters_read_as(struct target *target, reshard_error *err);

/* Adds the pieces of a flattened tensor. */
reshard_status mcore_place_flattened(struct dcp_placing *placing, uint32_t tensor, reshard_error *err);

#endif
