/* SPDX-License-Identifier: Apache-2.0 */
/* What the files behind sidecar.h share. Nobody else includes this. */
#ifndef CONVERT_SIDECAR_PARTS_H
#define CONVERT_SIDECAR_PARTS_H

#include "convert/sidecar.h"
#include "base/digest.h"
#include "base/name_map.h"

#define SIDECAR_SCHEMA "reshard-sidecar/2"
#define SIDECAR_SCHEMA_OLD "reshard-sidecar/1" /* digests of tensors alone */
#define SIDECAR_SCHEMA_STEM "\"reshard-sidecar/"

/* Name of the sidecar in the checkpoint's store. malloc'd; NULL without memory. */
char *sidecar_name(const struct source *source);

/*
 * Names of tensors, or of items, as a sidecar has them: the key; where another has the same key, the path as a JSON array. Number i of the
 * map is the name of indices[i], a catalog index. Hidden tensors have none.
 */
struct sidecar_names {
    struct name_map map;
    uint32_t *indices;
};
reshard_status sidecar_names_of_tensors(const struct checkpoint *checkpoint, struct sidecar_names *out, reshard_error *err);
reshard_status sidecar_names_of_items(const struct checkpoint *checkpoint, struct sidecar_names *out, reshard_error *err);
void sidecar_names_release(struct sidecar_names *names);

/* Appends "F32 [2,3]". */
void sidecar_put_type(const struct catalog *catalog, uint32_t tensor, struct buffer *out);

/* Digests items one after the other; the file of the last one stays open. */
struct item_digests {
    const struct source *source;
    struct digest *digest;
    struct store_object *file;
    uint32_t object;
    uint8_t *window;
};
reshard_status item_digests_begin(const struct source *source, enum digest_kind kind, struct item_digests *out, reshard_error *err);
void item_digests_end(struct item_digests *digests);

#define ITEM_DIGEST_MAX (DIGEST_HEX_MAX + 8)

/* "bytes:HEX" of an item that is stored apart, as it is stored; "value:HEX" of one that is a part of something else. */
reshard_status item_digest(struct item_digests *digests, uint32_t item, char out[ITEM_DIGEST_MAX], reshard_error *err);

#endif
