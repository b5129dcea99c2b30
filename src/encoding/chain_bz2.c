/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/chain_parts.h"

#if RESHARD_WITH_BZ2
#include <bzlib.h>

/* One stream; *used are the bytes of the input that it took. */
static reshard_status stream_decode(struct chain_call *call, const uint8_t *in, size_t size, size_t *used, reshard_error *err)
{
    bz_stream stream = { 0 };
    char nowhere;
    if (BZ2_bzDecompressInit(&stream, 0, 0) != BZ_OK)
        return error_set_memory(err);
    bool is_full = call->made == call->room;
    stream.next_in = (char *)(uintptr_t)in;
    stream.avail_in = (unsigned)size;
    stream.next_out = is_full ? &nowhere : (char *)call->out + call->made;
    stream.avail_out = is_full ? 1 : (unsigned)(call->room - call->made);
    unsigned room = stream.avail_out;
    int result = BZ2_bzDecompress(&stream);
    size_t made = room - stream.avail_out;
    *used = size - stream.avail_in;
    reshard_status status = RESHARD_OK;
    if (result == BZ_OK && stream.avail_out == 0) {
        /* The end of the stream may be all that is left. */
        char more;
        stream.next_out = &more;
        stream.avail_out = 1;
        result = BZ2_bzDecompress(&stream);
        *used = size - stream.avail_in;
        if (stream.avail_out == 0)
            status = chain_too_long(call, err);
    }
    if (!status && is_full && made)
        status = chain_too_long(call, err);
    else if (!status && result == BZ_MEM_ERROR)
        status = error_set_memory(err);
    else if (!status && result != BZ_STREAM_END)
        status = error_set(err, RESHARD_ERR_FORMAT, "invalid bz2 data: %s", result == BZ_OK ? "it ends in the middle" : "damaged");
    BZ2_bzDecompressEnd(&stream);
    if (!status && !is_full)
        call->made += made;
    return status;
}

reshard_status chain_unbz2(struct chain_call *call, reshard_error *err)
{
    if (call->in_size > UINT32_MAX || call->room > UINT32_MAX)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "bz2 data of %zu bytes for %zu: at most 2^32 - 1 are supported", call->in_size,
                         call->room);
    size_t at = 0, used;
    do {
        reshard_status status = stream_decode(call, call->in + at, call->in_size - at, &used, err);
        if (status)
            return status;
        at += used;
    } while (at < call->in_size);
    return RESHARD_OK;
}

#else

reshard_status chain_unbz2(struct chain_call *call, reshard_error *err)
{
    (void)call;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without libbz2");
}

#endif
