/* SPDX-License-Identifier: Apache-2.0 */
/* mcore_data, an attribute that Megatron Core 0.8 to 0.15 adds to .metadata: the real shapes of tensors that it flattened. */
#ifndef FORMATS_MCORE_MCORE_DATA_H
#define FORMATS_MCORE_MCORE_DATA_H

#include "formats/mcore/mcore_source.h"

/* The real shape of a tensor that was flattened. */
struct mcore_reshape {
    int rank;
    int64_t shape[RANK_MAX];
    bool is_flat;            /* it is listed as one flat vector in the order of that shape */
};

struct mcore_data {
    struct name_map names;
    struct mcore_reshape *shapes; /* by names */
    uint32_t capacity;
};

/* From the pickle of .metadata. Leaves out empty if that has no such attribute. */
reshard_status mcore_data_read(const struct buffer *pickle, const struct limits *limits, struct mcore_data *out, reshard_error *err);

/* False if the tensor was not flattened. */
bool mcore_data_find(const struct mcore_data *data, struct str name, struct mcore_reshape *out);
void mcore_data_release(struct mcore_data *data);

/* ---- mcore_cells.c ---- */

/* Adds the chunks of one stored piece of a flattened tensor, whose last axis runs through the cell. Errors name it. */
reshard_status mcore_add_flattened(struct catalog *catalog, uint32_t tensor, const struct mcore_reshape *reshape,
                                   const struct dcp_form *stored, const struct catalog_chunk *like, reshard_error *err);

#endif
