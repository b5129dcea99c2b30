/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blosc 1 buffers. The header is looked at before the library sees it: the library takes sizes from the header alone, and prints when
 * it lacks a codec.
 *
 *   u8 version, u8 version of the codec's format, u8 flags, u8 item size, u32 bytes, u32 block size, u32 stored bytes, data
 */
#include "encoding/chain_parts.h"

#include <inttypes.h>

#include "base/cursor.h"
#include "base/library.h"

#if RESHARD_WITH_BLOSC
#include <blosc.h>
#include <pthread.h>

#define CODEC_SHIFT 5
#define CODEC_SNAPPY 2
#define CODEC_LAST 4
#define FLAG_STORED 2
#define VERSION_MAX 2
#define BLOCK_BYTES_MAX ((uint32_t)64 << 20) /* the library decodes with up to three of them; writers choose 4 MiB at most */

/* The library brings the runtime of C++ with it, which would take a third of the start of every program: it is loaded when an array asks
 * for it, and stays. */
static struct blosc_functions {
    __typeof__(&blosc_cbuffer_validate) validate;
    __typeof__(&blosc_decompress_ctx) decompress;
    __typeof__(&blosc_compress_ctx) compress;
} blosc;
static const struct library_symbol blosc_symbols[] = { { "blosc_cbuffer_validate", &blosc.validate },
                                                       { "blosc_decompress_ctx", &blosc.decompress },
                                                       { "blosc_compress_ctx", &blosc.compress } };
static pthread_mutex_t blosc_lock = PTHREAD_MUTEX_INITIALIZER;
static bool blosc_is_loaded;

static reshard_status blosc_need(reshard_error *err)
{
    static const struct library library = { "libblosc.so.1", "blosc needs", "install libblosc 1.x (Debian: libblosc1)", blosc_symbols,
                                            sizeof(blosc_symbols) / sizeof(*blosc_symbols) };
    pthread_mutex_lock(&blosc_lock);
    reshard_status status = blosc_is_loaded ? RESHARD_OK : library_load(&library, err);
    blosc_is_loaded = !status;
    pthread_mutex_unlock(&blosc_lock);
    return status;
}

struct blosc_header {
    uint8_t version, codec_version, flags, item_bytes;
    uint32_t bytes, block_bytes, stored_bytes;
};

static reshard_status header_check(const struct blosc_header *header, const struct chain_call *call, reshard_error *err)
{
    unsigned codec = header->flags >> CODEC_SHIFT;
    if (header->version == 0 || header->version > VERSION_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "blosc version %u, supported are 1 and 2 (Blosc 1.x; a Blosc2 frame is another format)", header->version);
    if (codec > CODEC_LAST)
        return error_set(err, RESHARD_ERR_FORMAT, "blosc codec number %u is unknown", codec);
    if (codec == CODEC_SNAPPY && !(header->flags & FLAG_STORED))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "blosc with snappy; blosclz, lz4, lz4hc, zlib and zstd are supported");
    if (header->stored_bytes != call->in_size)
        return error_set(err, RESHARD_ERR_FORMAT, "blosc header says %" PRIu32 " stored bytes, there are %zu", header->stored_bytes,
                         call->in_size);
    if (header->bytes > call->room)
        return error_set(err, RESHARD_ERR_FORMAT, "blosc header says %" PRIu32 " decoded bytes, at most %zu expected", header->bytes,
                         call->room);
    if (header->item_bytes == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "blosc item size 0");
    if (header->bytes > 0 && header->block_bytes == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "blosc block size 0");
    if (header->block_bytes > BLOCK_BYTES_MAX && header->bytes > BLOCK_BYTES_MAX && !(header->flags & FLAG_STORED))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "blosc blocks of %" PRIu32 " bytes, at most %" PRIu32 " are supported",
                         header->block_bytes, BLOCK_BYTES_MAX);
    return RESHARD_OK;
}

reshard_status chain_unblosc(struct chain_call *call, reshard_error *err)
{
    struct blosc_header header;
    struct cursor cursor = cursor_over(call->in, call->in_size);
    size_t bytes;
    if (!cursor_u8(&cursor, &header.version) || !cursor_u8(&cursor, &header.codec_version) || !cursor_u8(&cursor, &header.flags) ||
        !cursor_u8(&cursor, &header.item_bytes) || !cursor_u32le(&cursor, &header.bytes) || !cursor_u32le(&cursor, &header.block_bytes) ||
        !cursor_u32le(&cursor, &header.stored_bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "blosc data of %zu bytes, shorter than its header", call->in_size);
    reshard_status status = header_check(&header, call, err);
    if (!status)
        status = blosc_need(err);
    if (status)
        return status;
    if (blosc.validate(call->in, call->in_size, &bytes) < 0)
        return error_set(err, RESHARD_ERR_FORMAT, "invalid blosc header");
    if (bytes == 0)
        return RESHARD_OK;
    int made = blosc.decompress(call->in, call->out, call->room, 1);
    if ((size_t)made != bytes)
        return error_set(err, RESHARD_ERR_FORMAT, "invalid blosc data, %zu decoded bytes expected", bytes);
    call->made = bytes;
    return RESHARD_OK;
}

reshard_status chain_blosc_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    if (size > BLOSC_MAX_BUFFERSIZE)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu bytes are too many for one blosc buffer", size);
    reshard_status status = blosc_need(err);
    if (status)
        return status;
    size_t before = out->size, bound = size + BLOSC_MAX_OVERHEAD;
    uint8_t *room = buffer_extend(out, bound);
    if (!room)
        return error_set_memory(err);
    size_t item_bytes = packing->element_bytes ? packing->element_bytes : 1;
    int made = blosc.compress(packing->level, packing->shuffle, item_bytes, size, bytes, room, bound, packing->inner, 0, 1);
    out->size = before;
    if (made <= 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "blosc cannot compress %zu bytes with '%s' (result %d)", size, packing->inner, made);
    out->size += (size_t)made;
    return RESHARD_OK;
}

#else

reshard_status chain_unblosc(struct chain_call *call, reshard_error *err)
{
    (void)call;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without libblosc");
}

reshard_status chain_blosc_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    (void)packing, (void)bytes, (void)size, (void)out;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without libblosc");
}

#endif
