/* SPDX-License-Identifier: Apache-2.0 */
/*
 * integrity.json: {"algorithm": "sha256", "files": {NAME: hex, …}} of the regular files in a checkpoint's directory. Megatron Core writes
 * it on request; whoever reads the folder checks it, because a damaged metadata.json may hide whose checkpoint it is.
 */
#ifndef FORMATS_SHARED_INTEGRITY_FILE_H
#define FORMATS_SHARED_INTEGRITY_FILE_H

#include "base/digest.h"
#include "formats/driver.h"

#define INTEGRITY_FILE "integrity.json"

/* Compares what the directory's integrity.json says about files, if there is one; differences are damage warnings. directory: "" or ends
 * with '/'. */
reshard_status integrity_verify(struct source *source, const char *directory, reshard_error *err);

/* That file's text as it is to be when what is removed is gone; nothing if there is no such file. */
reshard_status integrity_without(struct store *store, const struct removal *removal, struct buffer *out, reshard_error *err);

/* Digests of objects as that file has them. */
struct integrity_hasher;
struct integrity_hasher *integrity_hasher_new(void);
void integrity_hasher_free(struct integrity_hasher *hasher);
reshard_status integrity_hash(struct integrity_hasher *hasher, const struct store_object *object, char hex[DIGEST_HEX_MAX],
                              reshard_error *err);

#endif
