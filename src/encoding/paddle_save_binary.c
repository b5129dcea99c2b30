/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What paddle.save(tensor, path, use_binary_format=True) writes:
 *
 *   u32 version 0, u64 LoD levels 0, u32 version 0, i32 size, TensorDesc of that size, elements
 *   TensorDesc: a protobuf message; field 1 is the type's number, field 2 (repeated) the shape
 */
#include "base/cursor.h"
#include "encoding/paddle_save_parts.h"
#include "tensor/box.h"

#include <inttypes.h>

#define HEADER_BYTES 20
#define DESC_BYTES_MAX 1024 /* type and RANK_MAX axes of at most 11 bytes each, with room */
#define TAG_TYPE 0x08
#define TAG_DIM 0x10
#define TAG_PACKED_DIMS 0x12

/* VarType.Type of framework.proto. */
static const struct {
    uint8_t number;
    enum dtype dtype;
} desc_types[] = {
    { 0, DTYPE_BOOL },  { 1, DTYPE_I16 },    { 2, DTYPE_I32 },  { 3, DTYPE_I64 },   { 4, DTYPE_F16 },      { 5, DTYPE_F32 },
    { 6, DTYPE_F64 },   { 20, DTYPE_U8 },    { 21, DTYPE_I8 },  { 22, DTYPE_BF16 }, { 23, DTYPE_C64 },     { 24, DTYPE_C128 },
    { 32, DTYPE_F8_E4M3 }, { 33, DTYPE_F8_E5M2 },
};

bool paddle_binary_probe(const uint8_t *head, size_t size)
{
    if (size <= HEADER_BYTES || load_le(head, 4) != 0 || load_le(head + 4, 8) != 0 || load_le(head + 12, 4) != 0)
        return false;
    uint64_t desc = load_le(head + 16, 4);
    return desc >= 2 && desc <= DESC_BYTES_MAX && head[HEADER_BYTES] == TAG_TYPE;
}

static bool take_varint(struct cursor *c, uint64_t *out)
{
    uint8_t byte = 0x80;
    *out = 0;
    for (unsigned shift = 0; byte & 0x80; shift += 7) {
        if (shift > 63 || !cursor_u8(c, &byte))
            return false;
        *out |= (uint64_t)(byte & 0x7F) << shift;
    }
    return true;
}

struct desc {
    uint64_t type;
    bool has_type;
    int rank;
    int64_t shape[RANK_MAX];
};

static bool take_dim(struct cursor *c, struct desc *out)
{
    uint64_t extent;
    if (out->rank == RANK_MAX || !take_varint(c, &extent) || extent > INT64_MAX)
        return false;
    out->shape[out->rank++] = (int64_t)extent;
    return true;
}

static bool take_desc_field(struct cursor *c, struct desc *out)
{
    uint8_t tag;
    struct str packed;
    uint64_t size;
    if (!cursor_u8(c, &tag))
        return false;
    switch (tag) {
    case TAG_TYPE:
        out->has_type = true;
        return take_varint(c, &out->type);
    case TAG_DIM:
        return take_dim(c, out);
    case TAG_PACKED_DIMS:
        if (!take_varint(c, &size) || !cursor_bytes(c, size, &packed))
            return false;
        for (struct cursor inner = cursor_over(packed.data, packed.size); cursor_left(&inner);)
            if (!take_dim(&inner, out))
                return false;
        return true;
    default:
        return false;
    }
}

static reshard_status read_desc(const struct paddle_reading *reading, uint64_t *data, struct desc *out, reshard_error *err)
{
    uint8_t bytes[HEADER_BYTES + DESC_BYTES_MAX];
    const struct reader *reader = reading->reader;
    reshard_status status = reader_read(reader, 0, bytes, HEADER_BYTES, err);
    if (status)
        return status;
    size_t size = (size_t)load_le(bytes + 16, 4);
    work_add_input(reading->limits->budget, HEADER_BYTES + size);
    status = reader_read(reader, HEADER_BYTES, bytes + HEADER_BYTES, size, err);
    struct cursor c = cursor_over(bytes + HEADER_BYTES, size);
    while (!status && cursor_left(&c)) {
        size_t at = c.pos;
        if (!take_desc_field(&c, out))
            status = error_set_at(err, RESHARD_ERR_FORMAT, HEADER_BYTES + at, "TensorDesc: byte %zu is neither its type nor an axis", at);
    }
    if (!status && !out->has_type)
        status = error_set_at(err, RESHARD_ERR_FORMAT, HEADER_BYTES, "TensorDesc: it names no type");
    *data = HEADER_BYTES + size;
    return status;
}

static bool desc_dtype(uint64_t type, enum dtype *out)
{
    for (size_t i = 0; i < sizeof(desc_types) / sizeof(*desc_types); i++) {
        if (desc_types[i].number != type)
            continue;
        *out = desc_types[i].dtype;
        return true;
    }
    return false;
}

reshard_status paddle_read_binary(struct paddle_reading *reading, reshard_error *err)
{
    struct desc desc = { 0 };
    struct paddle_tensor tensor = { 0 };
    struct paddle_part part = { 0 };
    int64_t elements;
    uint32_t index;
    reshard_status status = read_desc(reading, &part.offset, &desc, err);
    if (status)
        return status;
    if (!desc_dtype(desc.type, &tensor.dtype))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, HEADER_BYTES, "TensorDesc: type %" PRIu64 " is not known", desc.type);
    if (!shape_volume(desc.rank, desc.shape, &elements) || !dtype_bytes(tensor.dtype, (uint64_t)elements, &part.bytes))
        return error_set_at(err, RESHARD_ERR_FORMAT, HEADER_BYTES, "TensorDesc: the size of its shape overflows");
    uint64_t left = reading->reader->size - part.offset;
    if (part.bytes > left)
        return error_set_at(err, RESHARD_ERR_FORMAT, part.offset, "%" PRIu64 " bytes of elements, but only %" PRIu64 " follow",
                            part.bytes, left);
    part.stored_bytes = part.bytes;
    tensor.rank = desc.rank;
    tensor.shape = desc.shape;
    tensor.parts = &part;
    tensor.part_count = 1;
    reading->archive->container = PADDLE_BINARY;
    reading->archive->end = part.offset + part.bytes;
    status = paddle_add_tensor(reading, &tensor, &index, err);
    return status ? status : paddle_add_entry(reading, &(struct paddle_entry){ .tensor = index + 1 }, err);
}
