/* SPDX-License-Identifier: Apache-2.0 */
/* numcodecs' lz4: the decoded size as u32, then one LZ4 block. */
#include "encoding/chain_parts.h"

#include <inttypes.h>

#include "base/cursor.h"

#if RESHARD_WITH_LZ4
#include <lz4.h>

#define SIZE_BYTES 4

reshard_status chain_unlz4(struct chain_call *call, reshard_error *err)
{
    struct cursor cursor = cursor_over(call->in, call->in_size);
    uint32_t size;
    uint8_t nowhere;
    if (!cursor_u32le(&cursor, &size))
        return error_set(err, RESHARD_ERR_FORMAT, "lz4 data of %zu bytes has no size in front", call->in_size);
    if (size > call->room)
        return error_set(err, RESHARD_ERR_FORMAT, "lz4 data says it decodes to %" PRIu32 " bytes, at most %zu expected", size, call->room);
    if (cursor_left(&cursor) > LZ4_MAX_INPUT_SIZE || size > LZ4_MAX_INPUT_SIZE)
        return error_set(err, RESHARD_ERR_FORMAT, "lz4 data of %zu bytes is more than LZ4 allows", call->in_size);
    if (size == 0 && cursor_left(&cursor) == 0)
        return RESHARD_OK;
    int made = LZ4_decompress_safe((const char *)call->in + SIZE_BYTES, size ? (char *)call->out : (char *)&nowhere,
                                   (int)cursor_left(&cursor), (int)size);
    if (made < 0 || (uint32_t)made != size)
        return error_set(err, RESHARD_ERR_FORMAT, "invalid lz4 data, %" PRIu32 " decoded bytes expected", size);
    call->made = size;
    return RESHARD_OK;
}

reshard_status chain_lz4_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    if (size > LZ4_MAX_INPUT_SIZE)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu bytes are too many for one lz4 block", size);
    size_t before = out->size, bound = (size_t)LZ4_compressBound((int)size);
    buffer_append_u32le(out, (uint32_t)size);
    uint8_t *room = buffer_extend(out, bound);
    int made = room ? LZ4_compress_fast(bytes, (char *)room, (int)size, (int)bound, packing->level > 0 ? packing->level : 1) : 0;
    if (made <= 0) {
        out->size = before;
        return error_set_memory(err);
    }
    out->size = before + SIZE_BYTES + (size_t)made;
    return RESHARD_OK;
}

#else

reshard_status chain_unlz4(struct chain_call *call, reshard_error *err)
{
    (void)call;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without liblz4");
}

reshard_status chain_lz4_pack(const struct chain_packing *packing, const void *bytes, size_t size, struct buffer *out, reshard_error *err)
{
    (void)packing, (void)bytes, (void)size, (void)out;
    return error_set(err, RESHARD_ERR_UNSUPPORTED, "built without liblz4");
}

#endif
