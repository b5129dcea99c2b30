/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reading half shares: Megatron Core's checkpoints in the containers of DCP and zarr.
 *
 *   metadata.json    {"sharded_backend": "torch_dist", …}, written last
 *   common.pt        what is not sharded; since 0.19 a blob named common_state/shard_0_1
 *   integrity.json   sha256 of the files, on request
 */
#ifndef FORMATS_MCORE_MCORE_SOURCE_H
#define FORMATS_MCORE_MCORE_SOURCE_H

#include "formats/dcp/dcp_source.h"

#define MCORE_CONFIG_FILE "metadata.json"
#define MCORE_COMMON_FILE "common.pt"
#define MCORE_TRACKER "latest_checkpointed_iteration.txt"

/* Names of the files that these formats have beside their container's, then NULL. */
extern const char *const mcore_own_files[];

/* ---- mcore_config.c ---- */

/* What metadata.json says. */
enum mcore_backend { MCORE_ABSENT, MCORE_UNREADABLE, MCORE_TORCH_DIST, MCORE_FSDP_DTENSOR, MCORE_ZARR, MCORE_OTHER };
struct mcore_config {
    enum mcore_backend backend;
    char name[64];   /* of the backend */
    int64_t version; /* of the backend */
};

/* Reads directory's metadata.json. What is wrong with it goes to err only if the status is an error. */
reshard_status mcore_config_read(struct store *store, const char *directory, struct mcore_config *out, reshard_error *err);

/* Whether the directory is called as Megatron calls the sub-directory of an iteration or a release. */
bool mcore_is_iteration(const struct store *store, const char *name);

/* ---- mcore_probe.c ---- */

int mcore_probe_torch_dist(struct store *store, const char *name, reshard_error *err);
int mcore_probe_torch_dcp(struct store *store, const char *name, reshard_error *err);
int mcore_probe_fsdp_dtensor(struct store *store, const char *name, reshard_error *err);

/* ---- mcore_read.c ---- */

reshard_status mcore_read_torch_dist(struct source *source, reshard_error *err);

/* torch_dcp and fsdp_dtensor. */
reshard_status mcore_read_plain(struct source *source, reshard_error *err);

/* Adds the members of the checkpoint's common.pt as items, if it has that file. */
reshard_status mcore_common_file_read(struct source *source, bool *has_file, reshard_error *err);

/* The layout under which it was saved, as its own arguments say, as a fact. */
reshard_status mcore_note_parallel_sizes(struct source *source, reshard_error *err);

/* ---- mcore_verify.c ---- */

/* As for plain DCP, and whether every cell of every ShardedObject is there. */
reshard_status mcore_verify_torch_dist(struct source *source, bool deep, reshard_error *err);

#endif
