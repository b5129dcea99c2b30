/* SPDX-License-Identifier: Apache-2.0 */
/* The reading functions of the four drivers, for their tables. */
#ifndef FORMATS_DCP_DCP_READ_H
#define FORMATS_DCP_DCP_READ_H

#include "formats/dcp/dcp_source.h"

/* Finds the checkpoint's directory and makes the state. */
reshard_status dcp_read_open(struct source *source, reshard_error *err);

int dcp_probe(struct store *store, const char *name, reshard_error *err);
int dcp_megatron_probe(struct store *store, const char *name, reshard_error *err);
int fsdp_dtensor_probe(struct store *store, const char *name, reshard_error *err);
int torch_dist_probe(struct store *store, const char *name, reshard_error *err);

reshard_status dcp_read_catalog(struct source *source, reshard_error *err);
reshard_status dcp_megatron_read_catalog(struct source *source, reshard_error *err);
reshard_status torch_dist_read_catalog(struct source *source, reshard_error *err);

/* Adds the sha256 sums of integrity.json, where there is one, to what dcp_verify checks. */
reshard_status torch_dist_verify(struct source *source, bool deep, reshard_error *err);

/* Adds the members of the checkpoint's common.pt as items, if it has that file. */
reshard_status dcp_common_file_read(struct source *source, bool *has_file, reshard_error *err);

/* The layout under which it was saved, as its own arguments say, as a fact. */
reshard_status dcp_note_parallel_sizes(struct source *source, reshard_error *err);

#endif
