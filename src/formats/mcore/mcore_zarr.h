/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver "zarr": plain zarr as formats/zarr has it, and the checkpoints that Megatron Core wrote with zarr arrays up to version 0.15:
 *
 *   metadata.json common.pt KEY/.zarray KEY/0.0 KEY/shard_0_1.pt     arrays, objects and what is common
 */
#ifndef FORMATS_MCORE_MCORE_ZARR_H
#define FORMATS_MCORE_MCORE_ZARR_H

#include "formats/mcore/mcore_target.h"

/* ---- mcore_zarr_read.c ---- */

int mcore_zarr_probe(struct store *store, const char *name, reshard_error *err);
reshard_status mcore_zarr_read(struct source *source, reshard_error *err);
reshard_status mcore_zarr_verify(struct source *source, bool deep, reshard_error *err);

/* Whether a source of the driver was Megatron's. */
bool mcore_zarr_is_megatron(const struct source *source);

/* ---- mcore_zarr_target.c ---- */

extern const struct format_option mcore_zarr_options[];

/* The names of Megatron Core where the target is one of its checkpoints; NULL: any. */
const char *mcore_zarr_target_names(const struct layout_request *request);
reshard_status mcore_zarr_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status mcore_zarr_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status mcore_zarr_commit(const struct publish_job *job, reshard_error *err);
void mcore_zarr_close_target(struct target *target);

#endif
