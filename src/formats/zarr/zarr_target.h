/* SPDX-License-Identifier: Apache-2.0 */
/* The documents of a zarr target between laying out and publishing. The driver's state has one; all zero is empty. */
#ifndef FORMATS_ZARR_ZARR_TARGET_H
#define FORMATS_ZARR_ZARR_TARGET_H

#include "formats/zarr/zarr_write.h"

struct zarr_text {
    struct buffer bytes;
    uint32_t object;
};

struct zarr_target {
    struct zarr_text *texts;
    uint32_t text_count, text_capacity;
};

/* Lays the arrays out, and the groups and attributes around them. The target has its tensors already. */
reshard_status zarr_lay_out(const struct layout_request *request, struct target *target, const struct zarr_style *style,
                            struct zarr_target *state, reshard_error *err);

/* Adds a file that is nothing but this text, which is taken over in any case. */
reshard_status zarr_target_add_text(struct zarr_target *state, struct target *target, struct str name, struct buffer *text,
                                    reshard_error *err);

/* Writes the documents. Objects of arrays need nothing beside their payload. */
reshard_status zarr_commit(const struct publish_job *job, const struct zarr_target *state, reshard_error *err);
void zarr_target_release(struct zarr_target *state);

#endif
