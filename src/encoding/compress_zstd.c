/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/compress_parts.h"
#include "encoding/chain_parts.h"

#include <stdlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define WINDOW_LOG_MAX 27 /* a frame may ask for 128 MiB of history at most */

struct zstd_state {
    ZSTD_DCtx *context;
    const char *complaint;
};

static void zstd_close(void *opaque)
{
    struct zstd_state *state = opaque;
    if (!state)
        return;
    ZSTD_freeDCtx(state->context);
    free(state);
}

static void *zstd_open(void)
{
    struct zstd_state *state = calloc(1, sizeof(*state));
    if (!state)
        return NULL;
    state->context = ZSTD_createDCtx();
    if (!state->context || ZSTD_isError(ZSTD_DCtx_setParameter(state->context, ZSTD_d_windowLogMax, WINDOW_LOG_MAX))) {
        zstd_close(state);
        return NULL;
    }
    return state;
}

static bool zstd_restart(void *opaque)
{
    struct zstd_state *state = opaque;
    return !ZSTD_isError(ZSTD_DCtx_reset(state->context, ZSTD_reset_session_only));
}

static enum codec_result zstd_decode(void *opaque, struct codec_span *span)
{
    struct zstd_state *state = opaque;
    ZSTD_inBuffer in = { span->in, span->in_size, 0 };
    ZSTD_outBuffer out = { span->out, span->out_size, 0 };
    size_t result = ZSTD_decompressStream(state->context, &out, &in);
    if (span->in)
        span->in += in.pos;
    if (span->out)
        span->out += out.pos;
    span->in_size -= in.pos;
    span->out_size -= out.pos;
    if (!ZSTD_isError(result))
        return result == 0 ? CODEC_FINISHED : CODEC_MORE;
    if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation)
        return CODEC_NO_MEMORY;
    state->complaint = ZSTD_getErrorName(result);
    return CODEC_DAMAGED;
}

static const char *zstd_complaint(const void *opaque)
{
    const struct zstd_state *state = opaque;
    return state->complaint ? state->complaint : "the stream makes no sense";
}

static reshard_status zstd_encode(int level, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    size_t bound = ZSTD_compressBound(size), before = out->size;
    if (ZSTD_isError(bound))
        return error_set(err, RESHARD_ERR_LIMIT, "%zu bytes are too many for one zstd frame", size);
    uint8_t *room = buffer_extend(out, bound);
    ZSTD_CCtx *context = room ? ZSTD_createCCtx() : NULL;
    reshard_status status = RESHARD_OK;
    if (!context) {
        status = error_set_memory(err);
        goto out;
    }
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t made = ZSTD_compress2(context, room, bound, bytes, size);
    if (ZSTD_isError(made))
        status = ZSTD_getErrorCode(made) == ZSTD_error_memory_allocation
                     ? error_set_memory(err)
                     : error_set(err, RESHARD_ERR_UNSUPPORTED, "zstd cannot compress %zu bytes: %s", size, ZSTD_getErrorName(made));
    else
        out->size = before + made;

out:
    if (status)
        out->size = before;
    ZSTD_freeCCtx(context);
    return status;
}

const struct codec_library codec_zstd = {
    .name = "zstd",
    .is_repeatable = true,
    .open = zstd_open,
    .close = zstd_close,
    .restart = zstd_restart,
    .decode = zstd_decode,
    .complaint = zstd_complaint,
    .encode = zstd_encode,
};

/* ---- whole chunks, see chain.h ---- */

void chain_unzstd_free(void *state)
{
    ZSTD_freeDCtx(state);
}

reshard_status chain_unzstd(struct chain_call *call, reshard_error *err)
{
    uint8_t nowhere;
    if (!call->scratch->zstd)
        call->scratch->zstd = ZSTD_createDCtx();
    if (!call->scratch->zstd)
        return error_set_memory(err);
    size_t made = ZSTD_decompressDCtx(call->scratch->zstd, call->room ? call->out : &nowhere, call->room, call->in, call->in_size);
    if (!ZSTD_isError(made)) {
        call->made = made;
        return RESHARD_OK;
    }
    switch (ZSTD_getErrorCode(made)) {
    case ZSTD_error_memory_allocation:
        return error_set_memory(err);
    case ZSTD_error_dstSize_tooSmall:
        return chain_too_long(call, err);
    default:
        return error_set(err, RESHARD_ERR_FORMAT, "invalid zstd data: %s", ZSTD_getErrorName(made));
    }
}

reshard_status chain_zstd_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    size_t bound = ZSTD_compressBound(size), before = out->size;
    if (ZSTD_isError(bound))
        return error_set(err, RESHARD_ERR_LIMIT, "%zu bytes are too many for one zstd frame", size);
    uint8_t *room = buffer_extend(out, bound);
    if (!room)
        return error_set_memory(err);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    out->size = before;
    if (!context)
        return error_set_memory(err);
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, packing->level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t made = ZSTD_compress2(context, room, bound, bytes, size);
    ZSTD_freeCCtx(context);
    if (ZSTD_isError(made))
        return ZSTD_getErrorCode(made) == ZSTD_error_memory_allocation
                   ? error_set_memory(err)
                   : error_set(err, RESHARD_ERR_UNSUPPORTED, "zstd cannot compress %zu bytes: %s", size, ZSTD_getErrorName(made));
    out->size += made;
    return RESHARD_OK;
}
