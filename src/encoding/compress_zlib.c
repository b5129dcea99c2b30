/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/compress_parts.h"
#include "encoding/chain_parts.h"

#include <stdlib.h>
#include <zlib.h>

#define RAW_DEFLATE (-MAX_WBITS) /* zip members have neither zlib's nor gzip's frame */
#define STEP_MAX ((size_t)1 << 30) /* zlib counts in unsigned int */

static void *zlib_open(void)
{
    z_stream *stream = calloc(1, sizeof(*stream));
    if (stream && inflateInit2(stream, RAW_DEFLATE) != Z_OK) {
        free(stream);
        stream = NULL;
    }
    return stream;
}

static void zlib_close(void *state)
{
    if (state)
        inflateEnd(state);
    free(state);
}

static bool zlib_restart(void *state)
{
    return inflateReset(state) == Z_OK;
}

static enum codec_result zlib_decode(void *state, struct codec_span *span)
{
    z_stream *stream = state;
    uInt in_size = (uInt)(span->in_size < STEP_MAX ? span->in_size : STEP_MAX);
    uInt out_size = (uInt)(span->out_size < STEP_MAX ? span->out_size : STEP_MAX);
    stream->next_in = (Bytef *)(uintptr_t)span->in;
    stream->avail_in = in_size;
    stream->next_out = span->out;
    stream->avail_out = out_size;
    int result = inflate(stream, Z_NO_FLUSH);
    if (span->in)
        span->in += in_size - stream->avail_in;
    if (span->out)
        span->out += out_size - stream->avail_out;
    span->in_size -= in_size - stream->avail_in;
    span->out_size -= out_size - stream->avail_out;
    stream->next_in = NULL;
    stream->next_out = NULL;
    switch (result) {
    case Z_OK:
    case Z_BUF_ERROR:
        return CODEC_MORE;
    case Z_STREAM_END:
        return CODEC_FINISHED;
    case Z_MEM_ERROR:
        return CODEC_NO_MEMORY;
    default:
        return CODEC_DAMAGED;
    }
}

static const char *zlib_complaint(const void *state)
{
    const z_stream *stream = state;
    return stream->msg ? stream->msg : "the stream makes no sense";
}

/* Hands the input over and takes the output, in steps that zlib can count. */
static int deflate_step(z_stream *stream, const uint8_t **next, size_t *left, struct buffer *out)
{
    size_t in_size = *left < STEP_MAX ? *left : STEP_MAX, room = (size_t)64 << 10, start = out->size;
    uint8_t *target = buffer_extend(out, room);
    if (!target)
        return Z_MEM_ERROR;
    stream->next_in = (Bytef *)(uintptr_t)*next;
    stream->avail_in = (uInt)in_size;
    stream->next_out = target;
    stream->avail_out = (uInt)room;
    int result = deflate(stream, in_size == *left ? Z_FINISH : Z_NO_FLUSH);
    *next += in_size - stream->avail_in;
    *left -= in_size - stream->avail_in;
    out->size = start + room - stream->avail_out;
    return result;
}

#define MEMORY_LEVEL 8

static reshard_status deflate_whole(int level, int window, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    z_stream stream = { 0 };
    if (deflateInit2(&stream, level, Z_DEFLATED, window, MEMORY_LEVEL, Z_DEFAULT_STRATEGY) != Z_OK)
        return error_set_memory(err);
    size_t before = out->size, left = size;
    const uint8_t *next = bytes;
    int result;
    do {
        result = deflate_step(&stream, &next, &left, out);
    } while (result == Z_OK || result == Z_BUF_ERROR);
    deflateEnd(&stream);
    if (result == Z_STREAM_END)
        return RESHARD_OK;
    out->size = before;
    return error_set_memory(err);
}

static reshard_status zlib_encode(int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    return deflate_whole(level, RAW_DEFLATE, bytes, size, out, err);
}

const struct codec_library codec_zlib = {
    .name = "deflate",
    .open = zlib_open,
    .close = zlib_close,
    .restart = zlib_restart,
    .decode = zlib_decode,
    .complaint = zlib_complaint,
    .encode = zlib_encode,
};

/* ---- whole chunks, see chain.h ---- */

#define GZIP_WINDOW (MAX_WBITS + 16)

reshard_status chain_zlib_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    return deflate_whole(packing->level, packing->kind == CHAIN_GZIP ? GZIP_WINDOW : MAX_WBITS, bytes, size, out, err);
}
