/* SPDX-License-Identifier: Apache-2.0 */
/* State of a zarr target between lay_out and publish: its documents, and what Megatron has beside them. */
#ifndef FORMATS_ZARR_ZARR_TARGET_H
#define FORMATS_ZARR_ZARR_TARGET_H

#include "formats/mcore/mcore_target.h"

struct zarr_text {
    struct buffer bytes;
    uint32_t object;
};

struct zarr_target {
    struct mcore_target dist; /* first: the functions of Megatron's checkpoints find their own state here. Its style is NULL for plain ones */
    struct zarr_text *texts;
    uint32_t text_count, text_capacity;
};

reshard_status zarr_target_new(const struct layout_request *request, struct target *target, bool is_megatron, reshard_error *err);

/* Adds a file that is nothing but this text, which is taken over in any case. */
reshard_status zarr_target_add_text(struct target *target, struct str name, struct buffer *text, reshard_error *err);

reshard_status zarr_publish(const struct publish_job *job, reshard_error *err);
void zarr_close_target(struct target *target);

#endif
