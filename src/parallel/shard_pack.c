/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/shard_pack.h"

enum packed_shard {
    PACKED_SHARD_FLAT = 1,
    PACKED_SHARD_STRIDED = 2,
    PACKED_SHARD_HAS_VALUES = 4,
    PACKED_SHARD_WRITTEN = 8,
    PACKED_SHARD_KNOWN = 15
};

void pack_text(struct buffer *out, struct str text)
{
    out->failed |= text.size > UINT32_MAX;
    buffer_append_u32le(out, (uint32_t)text.size);
    buffer_append_str(out, text);
}

void pack_numbers(struct buffer *out, size_t count, const int64_t *numbers)
{
    for (size_t i = 0; i < count; i++)
        buffer_append_u64le(out, (uint64_t)numbers[i]);
}

bool unpack_text(struct cursor *cursor, struct str *out)
{
    uint32_t size;
    return cursor_u32le(cursor, &size) && cursor_bytes(cursor, size, out);
}

bool unpack_numbers(struct cursor *cursor, size_t count, int64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t number;
        if (!cursor_u64le(cursor, &number))
            return false;
        out[i] = (int64_t)number;
    }
    return true;
}

void shard_pack(const struct shard *shard, bool says_where, struct buffer *out)
{
    const size_t rank = (size_t)shard->rank;
    const bool has_values = shard_has_values(shard) || shard->is_elsewhere;
    pack_text(out, shard->key);
    pack_text(out, str_of(dtype_info(shard->dtype)->name));
    buffer_append_byte(out, (uint8_t)((shard->is_flattened ? PACKED_SHARD_FLAT : 0) | (shard->strides ? PACKED_SHARD_STRIDED : 0) |
                                      (has_values ? PACKED_SHARD_HAS_VALUES : 0) | (shard->is_written ? PACKED_SHARD_WRITTEN : 0)));
    buffer_append_byte(out, (uint8_t)rank);
    pack_numbers(out, rank, shard->shape);
    pack_numbers(out, rank, shard->start);
    pack_numbers(out, rank, shard->extent);
    if (shard->is_flattened)
        pack_numbers(out, 2, (const int64_t[]){ shard->flat_begin, shard->flat_end });
    if (shard->strides)
        pack_numbers(out, rank, shard->strides);
    buffer_append_u64le(out, says_where ? (uint64_t)(uintptr_t)shard->data : 0);
}

bool shard_unpack(struct cursor *cursor, struct shard_room *room, struct shard *out)
{
    struct str dtype;
    uint8_t flags, rank;
    int64_t range[2] = { 0 };
    uint64_t address;
    *out = (struct shard){ .shape = room->shape, .start = room->start, .extent = room->extent };
    if (!unpack_text(cursor, &out->key) || !unpack_text(cursor, &dtype) || !dtype_from_name(dtype, &out->dtype) ||
        !cursor_u8(cursor, &flags) || !cursor_u8(cursor, &rank) || rank > RANK_MAX || flags & ~(unsigned)PACKED_SHARD_KNOWN)
        return false;
    out->rank = rank;
    out->is_flattened = flags & PACKED_SHARD_FLAT;
    out->strides = flags & PACKED_SHARD_STRIDED ? room->strides : NULL;
    out->is_elsewhere = flags & PACKED_SHARD_HAS_VALUES;
    out->is_written = flags & PACKED_SHARD_WRITTEN;
    if (!unpack_numbers(cursor, rank, room->shape) || !unpack_numbers(cursor, rank, room->start) ||
        !unpack_numbers(cursor, rank, room->extent) || (out->is_flattened && !unpack_numbers(cursor, 2, range)) ||
        (out->strides && !unpack_numbers(cursor, rank, room->strides)) || !cursor_u64le(cursor, &address))
        return false;
    out->flat_begin = range[0];
    out->flat_end = range[1];
    out->data = (uint8_t *)(uintptr_t)address;
    return true;
}
