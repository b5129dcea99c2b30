/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded state dicts as bytes: magic u32, then counts of tensors, objects and values u32 each, u8 whether there are values to compare,
 * then these. A tensor is its shard (shard_pack.h), and what a state dict says beyond it; a value its key, its JSON or file, and flags.
 */
#include "parallel/sharded_dict.h"

#include "base/array.h"
#include "parallel/shard_pack.h"

#include <stdlib.h>

#define SHARDED_MAGIC UINT32_C(0x32534453)

enum packed_flags { PACKED_GRID = 1, PACKED_MISMATCH = 2, PACKED_KNOWN = 3 };
enum packed_value { PACKED_COMPARED = 1, PACKED_VALUE_FILE = 2, PACKED_ANY_RANK = 4, PACKED_VALUE_KNOWN = 7 };

/* What the second text of an object is. */
enum packed_content { PACKED_NOTHING, PACKED_BYTES, PACKED_FILE, PACKED_CONTENTS };

/* ---- packing ---- */

static void pack_tensor(const struct sharded_tensor *tensor, struct buffer *out)
{
    shard_pack(&tensor->shard, false, out);
    buffer_append_byte(out, (uint8_t)((tensor->fragments ? PACKED_GRID : 0) | (tensor->allows_mismatch ? PACKED_MISMATCH : 0)));
    buffer_append_byte(out, (uint8_t)tensor->prepended);
    if (tensor->fragments)
        pack_numbers(out, (size_t)tensor->shard.rank, tensor->fragments);
    buffer_append_u32le(out, (uint32_t)tensor->replica.count);
    pack_numbers(out, tensor->replica.count, tensor->replica.ids);
}

static void pack_object(const struct sharded_object *object, bool with_values, struct buffer *out)
{
    pack_text(out, object->key);
    buffer_append_byte(out, (uint8_t)object->rank);
    pack_numbers(out, (size_t)object->rank, object->shape);
    pack_numbers(out, (size_t)object->rank, object->offset);
    buffer_append_u32le(out, (uint32_t)object->replica.count);
    pack_numbers(out, object->replica.count, object->replica.ids);
    struct str content = object->file.data ? object->file : object->bytes;
    enum packed_content kind = object->file.data ? PACKED_FILE : object->bytes.data ? PACKED_BYTES : PACKED_NOTHING;
    buffer_append_byte(out, with_values ? (uint8_t)kind : PACKED_NOTHING);
    pack_text(out, with_values ? object->json : (struct str){ 0 });
    pack_text(out, with_values && kind ? content : (struct str){ 0 });
}

static bool is_sent(const struct sharded_value *value)
{
    return value->kind == SHARDED_COMMON || value->kind == SHARDED_COMPARED || value->kind == SHARDED_ANY_RANK;
}

static void pack_value(const struct sharded_value *value, struct buffer *out)
{
    pack_text(out, value->key);
    pack_text(out, value->file.data ? value->file : value->json);
    unsigned flags = value->kind == SHARDED_COMPARED ? PACKED_COMPARED : value->kind == SHARDED_ANY_RANK ? PACKED_ANY_RANK : 0;
    buffer_append_byte(out, (uint8_t)(flags | (value->file.data ? PACKED_VALUE_FILE : 0)));
}

bool sharded_pack(const struct sharded_dict *dict, bool with_values, struct buffer *out)
{
    uint32_t sent = 0;
    for (size_t i = 0; i < dict->value_count; i++)
        sent += with_values && is_sent(&dict->values[i]);
    buffer_append_u32le(out, SHARDED_MAGIC);
    buffer_append_u32le(out, (uint32_t)dict->tensor_count);
    buffer_append_u32le(out, (uint32_t)dict->object_count);
    buffer_append_u32le(out, sent);
    buffer_append_byte(out, with_values && dict->has_compared);
    for (size_t i = 0; i < dict->tensor_count; i++)
        pack_tensor(&dict->tensors[i], out);
    for (size_t i = 0; i < dict->object_count; i++)
        pack_object(&dict->objects[i], with_values, out);
    for (size_t i = 0; i < dict->value_count && sent; i++) {
        if (is_sent(&dict->values[i]))
            pack_value(&dict->values[i], out);
    }
    return !out->failed;
}

/* ---- unpacking ---- */

/* Vectors of what is being read; all of it is copied when it is added. */
struct unpacked {
    struct shard_room shard;
    int64_t fragments[RANK_MAX + 1];
    int64_t *replica;
    bool is_short; /* of memory */
};

static bool take_replica(struct cursor *c, struct unpacked *room, struct replica *out)
{
    uint32_t count;
    if (!cursor_u32le(c, &count) || count > cursor_left(c) / 8)
        return false;
    free(room->replica);
    room->replica = array_new(count + (size_t)1, sizeof(*room->replica));
    *out = (struct replica){ room->replica, count };
    room->is_short = !room->replica;
    return room->replica && unpack_numbers(c, count, room->replica);
}

static bool unpack_tensor(struct cursor *c, struct unpacked *room, struct sharded_tensor *out)
{
    uint8_t flags, prepended;
    *out = (struct sharded_tensor){ .prepended = 0 };
    if (!shard_unpack(c, &room->shard, &out->shard) || !cursor_u8(c, &flags) || flags & ~(unsigned)PACKED_KNOWN ||
        !cursor_u8(c, &prepended))
        return false;
    out->prepended = prepended;
    out->allows_mismatch = flags & PACKED_MISMATCH;
    out->fragments = flags & PACKED_GRID ? room->fragments : NULL;
    out->shard.data = NULL; /* another rank's */
    return (!out->fragments || unpack_numbers(c, (size_t)out->shard.rank, room->fragments)) && take_replica(c, room, &out->replica);
}

static bool unpack_object(struct cursor *c, struct unpacked *room, struct sharded_object *out)
{
    struct str content;
    uint8_t rank, kind;
    *out = (struct sharded_object){ .shape = room->shard.shape, .offset = room->shard.start };
    if (!unpack_text(c, &out->key) || !cursor_u8(c, &rank) || rank > RANK_MAX || !unpack_numbers(c, rank, room->shard.shape) ||
        !unpack_numbers(c, rank, room->shard.start) || !take_replica(c, room, &out->replica) || !cursor_u8(c, &kind) ||
        kind >= PACKED_CONTENTS || !unpack_text(c, &out->json) || !unpack_text(c, &content))
        return false;
    if (kind)
        *(kind == PACKED_FILE ? &out->file : &out->bytes) = content;
    out->rank = rank;
    return true;
}

static bool unpack_value(struct cursor *c, struct sharded_value *out)
{
    struct str content;
    uint8_t flags;
    *out = (struct sharded_value){ .kind = SHARDED_COMMON };
    if (!unpack_text(c, &out->key) || !unpack_text(c, &content) || !cursor_u8(c, &flags) || flags & ~(unsigned)PACKED_VALUE_KNOWN)
        return false;
    if (flags & PACKED_COMPARED && flags & PACKED_ANY_RANK)
        return false;
    *(flags & PACKED_VALUE_FILE ? &out->file : &out->json) = content;
    if (flags & PACKED_COMPARED)
        out->kind = SHARDED_COMPARED;
    else if (flags & PACKED_ANY_RANK)
        out->kind = SHARDED_ANY_RANK;
    return true;
}

static reshard_status unpack_all(struct cursor *c, struct unpacked *room, struct sharded_dict *out, reshard_error *err)
{
    uint8_t has_compared = 0;
    uint32_t magic, counts[3] = { 0 };
    struct sharded_tensor tensor;
    struct sharded_object object;
    struct sharded_value value;
    bool is_good = cursor_u32le(c, &magic) && magic == SHARDED_MAGIC && cursor_u32le(c, &counts[0]) && cursor_u32le(c, &counts[1]) &&
                   cursor_u32le(c, &counts[2]) && cursor_u8(c, &has_compared) && has_compared <= 1;
    reshard_status status = RESHARD_OK;
    out->has_compared = has_compared;
    for (uint32_t i = 0; is_good && !status && i < counts[0]; i++) {
        is_good = unpack_tensor(c, room, &tensor);
        status = is_good ? sharded_add(out, &tensor, err) : RESHARD_OK;
    }
    for (uint32_t i = 0; is_good && !status && i < counts[1]; i++) {
        is_good = unpack_object(c, room, &object);
        status = is_good ? sharded_add_object(out, &object, err) : RESHARD_OK;
    }
    for (uint32_t i = 0; is_good && !status && i < counts[2]; i++) {
        is_good = unpack_value(c, &value);
        status = is_good ? sharded_add_value(out, &value, err) : RESHARD_OK;
    }
    if (status || (is_good && !cursor_left(c)))
        return status;
    if (room->is_short)
        return error_set_memory(err);
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
