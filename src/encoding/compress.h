/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streaming decompression of one compressed range of an object, in one place per library. A decoder yields decoded bytes
 * front to back; going back means starting again.
 */
#ifndef ENCODING_COMPRESS_H
#define ENCODING_COMPRESS_H

#include "base/limits.h"
#include "base/reader.h"

/* CODEC_LATIN1: bytes as the code points U+0000 to U+00FF of UTF-8 text, the way pickles of protocol 2 hold them. */
enum codec { CODEC_NONE, CODEC_DEFLATE, CODEC_ZSTD, CODEC_LATIN1, CODEC_COUNT };

struct decoder;

/* Decodes [offset, offset + length) of reader, which must outlive the decoder. */
reshard_status decoder_new(enum codec codec, const struct reader *reader, uint64_t offset, uint64_t length,
                           const struct limits *limits, struct decoder **out, reshard_error *err);
void decoder_free(struct decoder *decoder);

/* Fills out as far as decoded data goes; *got < size only at the end of the stream. */
reshard_status decoder_read(struct decoder *decoder, void *out, size_t size, size_t *got, reshard_error *err);

/* Decoded bytes delivered so far. */
uint64_t decoder_position(const struct decoder *decoder);

/* Whole stream, appended to out. */
reshard_status decode_all(enum codec codec, const struct reader *reader, uint64_t offset, uint64_t length,
                          const struct limits *limits, struct buffer *out, reshard_error *err);

/* One frame at the given level, appended to out (CODEC_ZSTD: without content size, as DCP's extension writes). */
reshard_status encode_all(enum codec codec, int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err);

#endif
