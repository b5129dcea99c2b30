/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests beside a checkpoint: reshard.json in a directory, NAME.reshard.json beside a file. Written by convert --checksum, checked by
 * verify. {"schema": "reshard-sidecar/1", "digest": "sha256", "tensors": {"KEY": "hex", …}}; ambiguous keys are left out.
 */
#ifndef API_SIDECAR_H
#define API_SIDECAR_H

#include "api/conversion.h"

#define SIDECAR_NAME "reshard.json"

/* The sidecar's text for what was written. */
reshard_status sidecar_make(reshard_checkpoint *written, const char *digest, const struct engine_options *options, struct buffer *json, reshard_error *err);

/* Adds it to a directory's transaction, or puts it beside the file at target_path. */
reshard_status sidecar_add(struct store_txn *txn, const struct buffer *json, reshard_error *err);
reshard_status sidecar_put_beside(const char *target_path, const struct buffer *json, bool no_sync, reshard_error *err);

/* Compares a checkpoint with its sidecar, if there is one: a failure finding per tensor that differs. */
reshard_status sidecar_verify(reshard_checkpoint *checkpoint, const reshard_run_options *run, struct finding_sink *findings, reshard_error *err);

/* Compares the written target with the conversion's source, casts applied. RESHARD_DIFFERS with the first tensor that is wrong. */
reshard_status sidecar_compare_conversion(const struct conversion *conversion, reshard_checkpoint *written, reshard_error *err);

#endif
