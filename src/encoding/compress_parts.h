/* SPDX-License-Identifier: Apache-2.0 */
/* What compress.c and the files of the single libraries share. Nobody else includes this. */
#ifndef ENCODING_COMPRESS_PARTS_H
#define ENCODING_COMPRESS_PARTS_H

#include "encoding/compress.h"

/* One call's worth of input and output; a codec moves both on. */
struct codec_span {
    const uint8_t *in;
    size_t in_size;
    uint8_t *out;
    size_t out_size;
};

enum codec_result {
    CODEC_MORE,    /* wants input or room */
    CODEC_FINISHED, /* the stream is complete; what is left of the input is not part of it */
    CODEC_DAMAGED,
    CODEC_NO_MEMORY
};

/* A library behind the decoder. decode keeps no pointer into the span. */
struct codec_library {
    const char *name;
    bool is_repeatable; /* streams may follow one another */
    void *(*open)(void);
    void (*close)(void *state);
    bool (*restart)(void *state); /* before a further stream */
    bool (*may_end)(const void *state); /* whether the stream ends where its bytes do; NULL: the stream itself says where it ends */
    enum codec_result (*decode)(void *state, struct codec_span *span);
    /* Why decode said CODEC_DAMAGED. */
    const char *(*complaint)(const void *state);
    reshard_status (*encode)(int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err);
};

extern const struct codec_library codec_zlib, codec_zstd, codec_latin1;

#endif
