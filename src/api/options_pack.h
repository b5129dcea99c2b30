/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What says how a checkpoint is written, as bytes: for another process, which writes or commits it. Texts end with a zero byte, so that
 * they are used where they lie; paths are absolute, because the other process may have another working directory.
 */
#ifndef API_OPTIONS_PACK_H
#define API_OPTIONS_PACK_H

#include "reshard/reshard.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/cursor.h"

/* The name of a member that cannot go along (functions, and what they would be asked for); NULL: there is none. */
const char *options_pack_excluded(const reshard_convert_options *options);

/* All but resume and what says which part it is. Memory that fails is the buffer's to tell. */
reshard_status options_pack(const reshard_convert_options *options, struct buffer *out, reshard_error *err);

/* *out has been initialised. Lists lie in the arena, texts where they were read. FORMAT: they are no options. */
reshard_status options_unpack(struct cursor *cursor, struct arena *arena, reshard_convert_options *out, reshard_error *err);

void packed_put_bytes(struct buffer *out, const char *data, size_t size);
void packed_put_block(struct buffer *out, const void *bytes, size_t size); /* of any size, and nothing behind it */
void packed_put_text(struct buffer *out, const char *text); /* may be NULL */
reshard_status packed_put_path(struct buffer *out, const char *path, reshard_error *err); /* may be NULL */

bool packed_take_bytes(struct cursor *cursor, struct str *out);
bool packed_take_block(struct cursor *cursor, struct str *out);
bool packed_take_text(struct cursor *cursor, const char **out); /* NULL as it was put; false for one with a zero byte inside, too */

#endif
