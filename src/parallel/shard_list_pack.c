/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptions of shards as bytes, for other ranks: magic u32, count u32, then each shard. Texts are a size u32 and bytes, vectors are
 * numbers i64, as many as the rank says.
 */
#include "parallel/shard_list.h"

#include <inttypes.h>

#include "base/buffer.h"
#include "base/cursor.h"

#define SHARDS_MAGIC UINT32_C(0x31534852)

enum packed_shard { PACKED_SHARD_FLAT = 1, PACKED_SHARD_STRIDED = 2, PACKED_SHARD_KNOWN = 3 };

static void shard_put_vector(struct buffer *out, int rank, const int64_t *numbers)
{
    for (int i = 0; i < rank; i++)
        buffer_append_u64le(out, (uint64_t)numbers[i]);
}

static void shard_pack(const struct shard *shard, struct buffer *out)
{
    struct str dtype = str_of(dtype_info(shard->dtype)->name);
    buffer_append_u32le(out, (uint32_t)shard->key.size);
    buffer_append_str(out, shard->key);
    buffer_append_byte(out, (uint8_t)dtype.size);
    buffer_append_str(out, dtype);
    buffer_append_byte(out, (uint8_t)((shard->is_flattened ? PACKED_SHARD_FLAT : 0) | (shard->strides ? PACKED_SHARD_STRIDED : 0)));
    buffer_append_byte(out, (uint8_t)shard->rank);
    shard_put_vector(out, shard->rank, shard->shape);
    shard_put_vector(out, shard->rank, shard->start);
    shard_put_vector(out, shard->rank, shard->extent);
    if (shard->is_flattened)
        shard_put_vector(out, 2, (const int64_t[]){ shard->flat_begin, shard->flat_end });
    if (shard->strides)
        shard_put_vector(out, shard->rank, shard->strides);
    buffer_append_u64le(out, (uint64_t)(uintptr_t)shard->data);
}

bool shard_list_pack(const struct shard_list *list, struct buffer *out)
{
    buffer_append_u32le(out, SHARDS_MAGIC);
    buffer_append_u32le(out, (uint32_t)list->count);
    for (size_t i = 0; i < list->count; i++)
        shard_pack(&list->shards[i], out);
    return !out->failed;
}

/* Vectors of the shard at hand; adding it copies them. */
struct shard_room {
    int64_t shape[RANK_MAX + 1], start[RANK_MAX + 1], extent[RANK_MAX + 1], strides[RANK_MAX + 1], range[2];
};

static bool shard_take_vector(struct cursor *cursor, int rank, int64_t *out)
{
    for (int i = 0; i < rank; i++) {
        uint64_t number;
        if (!cursor_u64le(cursor, &number))
            return false;
        out[i] = (int64_t)number;
    }
    return true;
}

static bool shard_unpack(struct cursor *cursor, struct shard_room *room, struct shard *out)
{
    uint32_t key_size;
    uint8_t dtype_size, flags, rank;
    uint64_t address;
    struct str dtype;
    *out = (struct shard){ .shape = room->shape, .start = room->start, .extent = room->extent, .is_elsewhere = true };
    if (!cursor_u32le(cursor, &key_size) || !cursor_bytes(cursor, key_size, &out->key) || !cursor_u8(cursor, &dtype_size) ||
        !cursor_bytes(cursor, dtype_size, &dtype) || !dtype_from_name(dtype, &out->dtype) || !cursor_u8(cursor, &flags) ||
        !cursor_u8(cursor, &rank) || rank > RANK_MAX || flags & ~(unsigned)PACKED_SHARD_KNOWN)
        return false;
    out->rank = rank;
    out->is_flattened = flags & PACKED_SHARD_FLAT;
    out->strides = flags & PACKED_SHARD_STRIDED ? room->strides : NULL;
    if (!shard_take_vector(cursor, rank, room->shape) || !shard_take_vector(cursor, rank, room->start) ||
        !shard_take_vector(cursor, rank, room->extent) || (out->is_flattened && !shard_take_vector(cursor, 2, room->range)) ||
        (out->strides && !shard_take_vector(cursor, rank, room->strides)) || !cursor_u64le(cursor, &address))
        return false;
    out->flat_begin = out->is_flattened ? room->range[0] : 0;
    out->flat_end = out->is_flattened ? room->range[1] : 0;
    out->data = (uint8_t *)(uintptr_t)address;
    return true;
}

reshard_status shard_list_unpack(struct cursor *cursor, uint32_t writer, struct shard_list *out, reshard_error *err)
{
    uint32_t magic, count;
    struct shard_room room;
    if (!cursor_u32le(cursor, &magic) || magic != SHARDS_MAGIC || !cursor_u32le(cursor, &count))
        return error_set_at(err, RESHARD_ERR_FORMAT, cursor->pos, "no list of shards");
    for (uint32_t i = 0; i < count; i++) {
        struct shard shard;
        size_t at = cursor->pos;
        if (!shard_unpack(cursor, &room, &shard))
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "shard %" PRIu32 " of %" PRIu32 " is malformed or cut off", i, count);
        shard.writer = writer;
        reshard_status status = shard_list_add(out, &shard, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}
