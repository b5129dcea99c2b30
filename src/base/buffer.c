/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include "base/limits.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define CAPACITY_MIN 64

bool buffer_reserve(struct buffer *buffer, size_t additional)
{
    if (buffer->failed) /* contents with a gap are worse than none */
        return false;
    size_t ceiling = buffer->limit && buffer->limit < buffer->capacity ? buffer->limit : buffer->capacity;
    if (buffer->size <= ceiling && additional <= ceiling - buffer->size)
        return true;
    size_t needed;
    if (__builtin_add_overflow(buffer->size, additional, &needed) || (buffer->limit && needed > buffer->limit)) {
        buffer->failed = true;
        buffer->over_limit = buffer->limit != 0;
        return false;
    }
    size_t capacity = buffer->capacity + buffer->capacity / 2;
    if (capacity < CAPACITY_MIN)
        capacity = CAPACITY_MIN;
    if (buffer->limit && capacity > buffer->limit)
        capacity = buffer->limit;
    if (capacity < needed)
        capacity = needed;
    uint8_t *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

uint8_t *buffer_extend(struct buffer *buffer, size_t size)
{
    /* An empty extension of an empty buffer must still give a pointer. */
    if (!buffer_reserve(buffer, size || buffer->data ? size : 1))
        return NULL;
    uint8_t *room = buffer->data + buffer->size;
    buffer->size += size;
    return room;
}

bool buffer_append(struct buffer *buffer, const void *bytes, size_t size)
{
    if (size == 0)
        return !buffer->failed;
    if (!buffer_reserve(buffer, size))
        return false;
    memcpy(buffer->data + buffer->size, bytes, size);
    buffer->size += size;
    return true;
}

bool buffer_append_str(struct buffer *buffer, struct str s)
{
    return buffer_append(buffer, s.data, s.size);
}

bool buffer_append_text(struct buffer *buffer, const char *text)
{
    return buffer_append(buffer, text, strlen(text));
}

bool buffer_append_byte(struct buffer *buffer, uint8_t byte)
{
    return buffer_append(buffer, &byte, 1);
}

bool buffer_append_fill(struct buffer *buffer, uint8_t byte, size_t count)
{
    if (count == 0)
        return !buffer->failed;
    if (!buffer_reserve(buffer, count))
        return false;
    memset(buffer->data + buffer->size, byte, count);
    buffer->size += count;
    return true;
}

/* Texts are nearly always short, so the first try goes to the stack; only a long one is measured first. */
bool buffer_printf(struct buffer *buffer, const char *format, ...)
{
    char small[256];
    va_list args;
    va_start(args, format);
    int size = vsnprintf(small, sizeof(small), format, args);
    va_end(args);
    if (size < 0) {
        buffer->failed = true;
        return false;
    }
    if ((size_t)size < sizeof(small))
        return buffer_append(buffer, small, (size_t)size);

    char *text = malloc((size_t)size + 1);
    if (!text) {
        buffer->failed = true;
        return false;
    }
    va_start(args, format);
    vsnprintf(text, (size_t)size + 1, format, args);
    va_end(args);
    bool done = buffer_append(buffer, text, (size_t)size);
    free(text);
    return done;
}

static bool append_le(struct buffer *buffer, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return buffer_append(buffer, bytes, size);
}

bool buffer_append_u16le(struct buffer *buffer, uint16_t value)
{
    return append_le(buffer, value, 2);
}

bool buffer_append_u32le(struct buffer *buffer, uint32_t value)
{
    return append_le(buffer, value, 4);
}

bool buffer_append_u64le(struct buffer *buffer, uint64_t value)
{
    return append_le(buffer, value, 8);
}

void buffer_clear(struct buffer *buffer)
{
    buffer->size = 0;
    buffer->failed = false;
    buffer->over_limit = false;
}

void buffer_release(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){ .limit = buffer->limit, .limit_name = buffer->limit_name };
}

reshard_status buffer_error(const struct buffer *buffer, reshard_error *err)
{
    if (!buffer->over_limit)
        return error_set_memory(err);
    return limit_error_bytes(err, (struct named_limit){ buffer->limit_name, buffer->limit, NULL }, "content", 0);
}
