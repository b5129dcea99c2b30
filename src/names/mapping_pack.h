/* SPDX-License-Identifier: Apache-2.0 */
/* Mappings as bytes: for plans that are kept, and to tell whether all ranks have the same one. */
#ifndef NAMES_MAPPING_PACK_H
#define NAMES_MAPPING_PACK_H

#include "base/buffer.h"
#include "base/cursor.h"
#include "names/mapping_stage.h"

/* Appends the options; their callback is not among them. Equal options are equal bytes. False: no memory. */
bool mapping_pack(const struct mapping_options *options, struct buffer *out);

/* The options that the bytes are, which lie in arena. FORMAT for what is malformed. */
reshard_status mapping_unpack(struct str bytes, struct arena *arena, struct mapping_options *out, reshard_error *err);

#endif
