/* SPDX-License-Identifier: Apache-2.0 */
/* The low level of the pickle writer: one construct a function. */
#include "encoding/pickle_write.h"

void pickle_put_begin(struct buffer *out)
{
    buffer_append(out, "\x80\x02", 2);
}

void pickle_put_end(struct buffer *out)
{
    buffer_append_byte(out, '.');
}

void pickle_put_opcode(struct buffer *out, uint8_t opcode)
{
    buffer_append_byte(out, opcode);
}

void pickle_put_none(struct buffer *out)
{
    buffer_append_byte(out, 'N');
}

void pickle_put_bool(struct buffer *out, bool value)
{
    buffer_append_byte(out, value ? 0x88 : 0x89);
}

void pickle_put_int(struct buffer *out, int64_t value)
{
    uint8_t bytes[10];
    size_t size;
    if (value >= 0 && value <= 0xFF) {
        bytes[0] = 'K';
        size = 1;
    } else if (value >= 0 && value <= 0xFFFF) {
        bytes[0] = 'M';
        size = 2;
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        bytes[0] = 'J';
        size = 4;
    } else {
        bytes[0] = 0x8A;
        for (size = 5; size < 8 && value >> (8 * size - 1) != 0 && value >> (8 * size - 1) != -1; size++)
            ;
        bytes[1] = (uint8_t)size;
    }
    size_t start = bytes[0] == 0x8A ? 2 : 1;
    for (size_t i = 0; i < size; i++)
        bytes[start + i] = (uint8_t)((uint64_t)value >> (8 * i));
    buffer_append(out, bytes, start + size);
}

void pickle_put_float(struct buffer *out, double value)
{
    uint64_t bits;
    uint8_t bytes[9] = { 'G' };
    memcpy(&bits, &value, sizeof(bits));
    for (int i = 0; i < 8; i++)
        bytes[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
    buffer_append(out, bytes, sizeof(bytes));
}

void pickle_put_str(struct buffer *out, struct str text)
{
    if (text.size <= UINT32_MAX) {
        buffer_append_byte(out, 'X');
        buffer_append_u32le(out, (uint32_t)text.size);
    } else {
        buffer_append_byte(out, 0x8D);
        buffer_append_u64le(out, text.size);
    }
    buffer_append_str(out, text);
}

void pickle_put_global(struct buffer *out, const char *module, const char *name)
{
    buffer_append_byte(out, 'c');
    buffer_append_text(out, module);
    buffer_append_byte(out, '\n');
    buffer_append_text(out, name);
    buffer_append_byte(out, '\n');
}

void pickle_put_int_tuple(struct buffer *out, const int64_t *values, size_t count)
{
    static const uint8_t small[] = { PICKLE_EMPTY_TUPLE, PICKLE_TUPLE1, PICKLE_TUPLE2, PICKLE_TUPLE3 };
    if (count > 3)
        pickle_put_opcode(out, PICKLE_MARK);
    for (size_t i = 0; i < count; i++)
        pickle_put_int(out, values[i]);
    pickle_put_opcode(out, count > 3 ? PICKLE_TUPLE : small[count]);
}
