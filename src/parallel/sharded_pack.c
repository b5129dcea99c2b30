/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded state dicts as bytes: magic u32, then counts of tensors, objects and values u32 each, then these. Texts are a size u32 and bytes,
 * vectors are numbers i64 whose count the reader knows.
 */
#include "parallel/sharded_dict.h"

#include "base/cursor.h"

#include <stdlib.h>

#define SHARDED_MAGIC UINT32_C(0x31534453)

enum packed_flags { PACKED_FLAT = 1, PACKED_GRID = 2, PACKED_MISMATCH = 4, PACKED_STRIDES = 8, PACKED_HAS_DATA = 16 };

/* ---- packing ---- */

static void put_text(struct buffer *out, struct str text)
{
    buffer_append_u32le(out, (uint32_t)text.size);
    buffer_append_str(out, text);
}

static void pack_vector(struct buffer *out, size_t count, const int64_t *numbers)
{
    for (size_t i = 0; i < count; i++)
        buffer_append_u64le(out, (uint64_t)numbers[i]);
}

static void pack_tensor(const struct sharded_tensor *tensor, struct buffer *out)
{
    const struct shard *shard = &tensor->shard;
    size_t rank = (size_t)shard->rank;
    unsigned flags = (shard->is_flattened ? PACKED_FLAT : 0) | (tensor->fragments ? PACKED_GRID : 0) |
                     (tensor->allows_mismatch ? PACKED_MISMATCH : 0) | (shard->strides ? PACKED_STRIDES : 0) |
                     (shard->data || shard->is_elsewhere ? PACKED_HAS_DATA : 0);
    put_text(out, shard->key);
    put_text(out, str_of(dtype_info(shard->dtype)->name));
    buffer_append_byte(out, (uint8_t)flags);
    buffer_append_byte(out, (uint8_t)shard->rank);
    buffer_append_byte(out, (uint8_t)tensor->prepended);
    pack_vector(out, rank, shard->shape);
    pack_vector(out, rank, shard->start);
    pack_vector(out, rank, shard->extent);
    if (tensor->fragments)
        pack_vector(out, rank, tensor->fragments);
    if (shard->strides)
        pack_vector(out, rank, shard->strides);
    if (shard->is_flattened)
        pack_vector(out, 2, (const int64_t[]){ shard->flat_begin, shard->flat_end });
    buffer_append_u32le(out, (uint32_t)tensor->replica.count);
    pack_vector(out, tensor->replica.count, tensor->replica.ids);
}

static void pack_object(const struct sharded_object *object, bool with_values, struct buffer *out)
{
    put_text(out, object->key);
    buffer_append_byte(out, (uint8_t)object->rank);
    pack_vector(out, (size_t)object->rank, object->shape);
    pack_vector(out, (size_t)object->rank, object->offset);
    buffer_append_u32le(out, (uint32_t)object->replica.count);
    pack_vector(out, object->replica.count, object->replica.ids);
    buffer_append_byte(out, with_values && object->bytes.data);
    put_text(out, with_values ? object->json : (struct str){ 0 });
    put_text(out, with_values && object->bytes.data ? object->bytes : (struct str){ 0 });
}

bool sharded_pack(const struct sharded_dict *dict, bool with_values, struct buffer *out)
{
    uint32_t common = 0;
    for (size_t i = 0; i < dict->value_count; i++)
        common += with_values && dict->values[i].kind == SHARDED_COMMON;
    buffer_append_u32le(out, SHARDED_MAGIC);
    buffer_append_u32le(out, (uint32_t)dict->tensor_count);
    buffer_append_u32le(out, (uint32_t)dict->object_count);
    buffer_append_u32le(out, common);
    for (size_t i = 0; i < dict->tensor_count; i++)
        pack_tensor(&dict->tensors[i], out);
    for (size_t i = 0; i < dict->object_count; i++)
        pack_object(&dict->objects[i], with_values, out);
    for (size_t i = 0; i < dict->value_count && common; i++) {
        if (dict->values[i].kind != SHARDED_COMMON)
            continue;
        put_text(out, dict->values[i].key);
        put_text(out, dict->values[i].json);
    }
    return !out->failed;
}

/* ---- unpacking ---- */

/* Vectors of what is being read; all of it is copied when it is added. */
struct unpacked {
    int64_t shape[RANK_MAX + 1], start[RANK_MAX + 1], extent[RANK_MAX + 1], fragments[RANK_MAX + 1], strides[RANK_MAX + 1], range[2];
    int64_t *replica;
};

static bool take_text(struct cursor *c, struct str *out)
{
    uint32_t size;
    return cursor_u32le(c, &size) && cursor_bytes(c, size, out);
}

static bool take_vector(struct cursor *c, size_t count, int64_t *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t number;
        if (!cursor_u64le(c, &number))
            return false;
        out[i] = (int64_t)number;
    }
    return true;
}

static bool take_replica(struct cursor *c, struct unpacked *room, struct replica *out)
{
    uint32_t count;
    if (!cursor_u32le(c, &count) || count > cursor_left(c) / 8)
        return false;
    free(room->replica);
    room->replica = malloc((count + (size_t)1) * sizeof(*room->replica));
    *out = (struct replica){ room->replica, count };
    return room->replica && take_vector(c, count, room->replica);
}

static bool unpack_tensor(struct cursor *c, struct unpacked *room, struct sharded_tensor *out)
{
    struct str dtype;
    struct shard *shard = &out->shard;
    uint8_t flags, rank, prepended;
    *out = (struct sharded_tensor){ .shard = { .shape = room->shape, .start = room->start, .extent = room->extent } };
    if (!take_text(c, &shard->key) || !take_text(c, &dtype) || !dtype_from_name(dtype, &shard->dtype) || !cursor_u8(c, &flags) ||
        !cursor_u8(c, &rank) || !cursor_u8(c, &prepended) || rank > RANK_MAX || !take_vector(c, rank, room->shape) ||
        !take_vector(c, rank, room->start) || !take_vector(c, rank, room->extent))
        return false;
    shard->rank = rank;
    out->prepended = prepended;
    out->allows_mismatch = flags & PACKED_MISMATCH;
    shard->is_elsewhere = flags & PACKED_HAS_DATA;
    shard->is_flattened = flags & PACKED_FLAT;
    out->fragments = flags & PACKED_GRID ? room->fragments : NULL;
    shard->strides = flags & PACKED_STRIDES ? room->strides : NULL;
    if ((out->fragments && !take_vector(c, rank, room->fragments)) || (shard->strides && !take_vector(c, rank, room->strides)) ||
        (shard->is_flattened && !take_vector(c, 2, room->range)) || !take_replica(c, room, &out->replica))
        return false;
    shard->flat_begin = shard->is_flattened ? room->range[0] : 0;
    shard->flat_end = shard->is_flattened ? room->range[1] : 0;
    return true;
}

static bool unpack_object(struct cursor *c, struct unpacked *room, struct sharded_object *out)
{
    uint8_t rank, has_bytes;
    *out = (struct sharded_object){ .shape = room->shape, .offset = room->start };
    if (!take_text(c, &out->key) || !cursor_u8(c, &rank) || rank > RANK_MAX || !take_vector(c, rank, room->shape) ||
        !take_vector(c, rank, room->start) || !take_replica(c, room, &out->replica) || !cursor_u8(c, &has_bytes) ||
        !take_text(c, &out->json) || !take_text(c, &out->bytes))
        return false;
    if (!has_bytes)
        out->bytes = (struct str){ 0 };
    out->rank = rank;
    return true;
}

static reshard_status unpack_all(struct cursor *c, struct unpacked *room, struct sharded_dict *out, reshard_error *err)
{
    uint32_t magic, counts[3] = { 0 };
    struct sharded_tensor tensor;
    struct sharded_object object;
    struct sharded_value value = { .kind = SHARDED_COMMON };
    bool is_good = cursor_u32le(c, &magic) && magic == SHARDED_MAGIC && cursor_u32le(c, &counts[0]) && cursor_u32le(c, &counts[1]) &&
                   cursor_u32le(c, &counts[2]);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; is_good && !status && i < counts[0]; i++) {
        is_good = unpack_tensor(c, room, &tensor);
        status = is_good ? sharded_add(out, &tensor, err) : RESHARD_OK;
    }
    for (uint32_t i = 0; is_good && !status && i < counts[1]; i++) {
        is_good = unpack_object(c, room, &object);
        status = is_good ? sharded_add_object(out, &object, err) : RESHARD_OK;
    }
    for (uint32_t i = 0; is_good && !status && i < counts[2]; i++) {
        is_good = take_text(c, &value.key) && take_text(c, &value.json);
        status = is_good ? sharded_add_value(out, &value, err) : RESHARD_OK;
    }
    if (status || (is_good && !cursor_left(c)))
        return status;
    return error_set(err, RESHARD_ERR_FORMAT, "the description of a rank's shards is damaged at byte %zu", c->pos);
}

reshard_status sharded_unpack(const void *bytes, size_t size, struct sharded_dict *out, reshard_error *err)
{
    struct cursor cursor = cursor_over(bytes, size);
    struct unpacked room = { .replica = NULL };
    *out = (struct sharded_dict){ 0 };
    reshard_status status = unpack_all(&cursor, &room, out, err);
    free(room.replica);
    if (status)
        sharded_dict_release(out);
    return status;
}
