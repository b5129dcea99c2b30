/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/chain_parts.h"

#if RESHARD_WITH_LZMA
#include <lzma.h>

#define MEMORY_MAX ((uint64_t)256 << 20) /* the strongest preset decodes with 65 MiB */

reshard_status chain_unlzma(struct chain_call *call, reshard_error *err)
{
    lzma_stream stream = LZMA_STREAM_INIT;
    uint8_t nowhere;
    lzma_ret result = lzma_auto_decoder(&stream, MEMORY_MAX, LZMA_CONCATENATED);
    if (result != LZMA_OK)
        return error_set_memory(err);
    stream.next_in = call->in;
    stream.avail_in = call->in_size;
    stream.next_out = call->room ? call->out : &nowhere;
    stream.avail_out = call->room;
    result = lzma_code(&stream, LZMA_FINISH);
    call->made = (size_t)stream.total_out;
    if (result == LZMA_OK || result == LZMA_BUF_ERROR) {
        /* Either the input or the room is at its end: one byte more tells. */
        stream.next_out = &nowhere;
        stream.avail_out = 1;
        lzma_ret again = lzma_code(&stream, LZMA_FINISH);
        if (stream.avail_out == 0) {
            lzma_end(&stream);
            return chain_too_long(call, err);
        }
        result = again;
    }
    lzma_end(&stream);
    switch (result) {
    case LZMA_STREAM_END:
        return RESHARD_OK;
    case LZMA_MEM_ERROR:
        return error_set_memory(err);
    case LZMA_MEMLIMIT_ERROR:
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "lzma data that takes more than 256 MiB of memory for decoding");
    case LZMA_OK:
    case LZMA_BUF_ERROR:
        return error_set(err, RESHARD_ERR_FORMAT, "the lzma data ends in the middle, after %zu decoded bytes", call->made);
    default:
        return error_set(err, RESHARD_ERR_FORMAT, "invalid lzma data");
    }
}

#else

reshard_status chain_unlzma(struct chain_call *call, reshard_error *err)
{
    (void)call;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without liblzma");
}

#endif
