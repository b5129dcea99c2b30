/* SPDX-License-Identifier: Apache-2.0 */
/* mcore_data, an attribute that Megatron Core 0.8 to 0.15 adds to .metadata: the real shapes of tensors that it flattened. */
#ifndef FORMATS_MCORE_MCORE_DATA_H
#define FORMATS_MCORE_MCORE_DATA_H

#include "formats/dcp/dcp_source.h"

struct mcore_data {
    struct name_map names;
    struct dcp_reshape *shapes; /* by names */
    uint32_t capacity;
};

/* Leaves out empty if .metadata has no such attribute. */
reshard_status mcore_data_read(struct source *source, struct mcore_data *out, reshard_error *err);

/* False if the tensor was not flattened. */
bool mcore_data_find(const struct mcore_data *data, struct str name, struct dcp_reshape *out);
void mcore_data_release(struct mcore_data *data);

#endif
