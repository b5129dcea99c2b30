/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Digests beside a checkpoint: reshard.json in its folder (of the iteration, where a root holds several), NAME.reshard.json beside a file.
 * Written by convert --checksum, checked by verify. docs/sidecar.md says what is in it.
 */
#ifndef CONVERT_SIDECAR_H
#define CONVERT_SIDECAR_H

#include "convert/conversion.h"
#include "convert/finding.h"
#include "convert/team.h"

/* RESHARD_ERR_USAGE: sidecars have no such digest. */
reshard_status sidecar_digest_check(const char *name, reshard_error *err);

/* The sidecar's text for what was written, and its name in the store of what was written (malloc'd). */
reshard_status sidecar_make(struct checkpoint *written, const char *digest, const struct engine_options *options, struct buffer *json,
                            char **name, reshard_error *err);

/* Adds it to a directory's transaction under that name. */
reshard_status sidecar_add(struct store_txn *txn, const char *name, const struct buffer *json, reshard_error *err);

/*
 * The same for what lies beside the target. It must be a sidecar, because then it is about the old target: it is replaced, or removed if
 * json is empty; without overwrite none may be there. Check before anything is written; a directory has no use for a sidecar beside it, but
 * it takes an old one away.
 */
reshard_status sidecar_check_beside(const char *target_path, bool is_directory, bool overwrite, reshard_error *err);
reshard_status sidecar_renew_beside(const char *target_path, bool is_directory, const struct buffer *json, bool no_sync,
                                    reshard_error *err);

/* Whether there is one that sidecar_verify would look at. */
bool sidecar_is_there(const struct source *source);

/* What a sidecar says about each tensor and item that it covers, by catalog index. */
struct sidecar_cover {
    bool *tensors, *items; /* NULL: there is no sidecar */
};
void sidecar_cover_release(struct sidecar_cover *cover);

/* Compares a checkpoint with its sidecar, if there is one: a failure finding for each tensor and item that differs, is missing or is not
 * listed. is_gone: by catalog tensor, not 0 where there are no bytes to read, which the caller tells of; NULL: nowhere but in
 * torn tensors, and what is damaged. */
reshard_status sidecar_verify(struct checkpoint *checkpoint, const uint8_t *is_gone, struct team *team,
                              const struct engine_options *options, struct finding_sink *findings, struct sidecar_cover *cover,
                              reshard_error *err);

#endif
