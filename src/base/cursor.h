/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cursor: the only thing that moves through bytes from outside. A read that would pass the end returns false and moves
 * nothing. Integers are read byte by byte in the byte order that the name says.
 */
#ifndef BASE_CURSOR_H
#define BASE_CURSOR_H

#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct cursor {
    const uint8_t *data;
    size_t size, pos;
};

static inline struct cursor cursor_over(const void *data, size_t size)
{
    return (struct cursor){ (const uint8_t *)data, size, 0 };
}

static inline size_t cursor_left(const struct cursor *c)
{
    return c->size - c->pos;
}

static inline bool cursor_skip(struct cursor *c, uint64_t count)
{
    if (count > cursor_left(c))
        return false;
    c->pos += (size_t)count;
    return true;
}

static inline bool cursor_bytes(struct cursor *c, uint64_t count, struct str *out)
{
    if (count > cursor_left(c))
        return false;
    *out = (struct str){ (const char *)c->data + c->pos, (size_t)count };
    c->pos += (size_t)count;
    return true;
}

static inline bool cursor_u8(struct cursor *c, uint8_t *out)
{
    if (c->pos >= c->size)
        return false;
    *out = c->data[c->pos++];
    return true;
}

static inline uint64_t load_le(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | p[i];
    return value;
}

static inline bool cursor_u16le(struct cursor *c, uint16_t *out)
{
    if (cursor_left(c) < 2)
        return false;
    *out = (uint16_t)load_le(c->data + c->pos, 2);
    c->pos += 2;
    return true;
}

static inline bool cursor_u32le(struct cursor *c, uint32_t *out)
{
    if (cursor_left(c) < 4)
        return false;
    *out = (uint32_t)load_le(c->data + c->pos, 4);
    c->pos += 4;
    return true;
}

static inline bool cursor_u64le(struct cursor *c, uint64_t *out)
{
    if (cursor_left(c) < 8)
        return false;
    *out = load_le(c->data + c->pos, 8);
    c->pos += 8;
    return true;
}

/* Bytes up to '\n', which is consumed and not part of *out; false if no '\n' within size_max bytes. */
static inline bool cursor_line(struct cursor *c, size_t size_max, struct str *out)
{
    size_t left = cursor_left(c), search = left < size_max ? left : size_max;
    const uint8_t *start = c->data + c->pos;
    const uint8_t *end = search ? memchr(start, '\n', search) : NULL;
    if (!end)
        return false;
    *out = (struct str){ (const char *)start, (size_t)(end - start) };
    c->pos += out->size + 1;
    return true;
}

#endif
