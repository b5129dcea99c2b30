/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffer: bytes that grow up to a limit. { 0 } is a valid empty buffer without limit. A failed append (no memory, or
 * over limit) returns false, keeps the contents and sets `failed`; so do all later ones until buffer_clear, so that a run of appends needs
 * one check at its end, of the last or of `failed`.
 */
#ifndef BASE_BUFFER_H
#define BASE_BUFFER_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    uint8_t *data;
    size_t size, capacity;
    size_t limit;           /* 0: none */
    const char *limit_name; /* of limits.h, for errors; or NULL */
    bool failed;
    bool over_limit; /* the failure was the limit's, not memory's */
};

bool buffer_reserve(struct buffer *buffer, size_t additional);
bool buffer_append(struct buffer *buffer, const void *bytes, size_t size);
bool buffer_append_str(struct buffer *buffer, struct str s);
bool buffer_append_text(struct buffer *buffer, const char *text);
bool buffer_append_byte(struct buffer *buffer, uint8_t byte);
bool buffer_append_fill(struct buffer *buffer, uint8_t byte, size_t count);
bool buffer_printf(struct buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool buffer_append_u16le(struct buffer *buffer, uint16_t value);
bool buffer_append_u32le(struct buffer *buffer, uint32_t value);
bool buffer_append_u64le(struct buffer *buffer, uint64_t value);

/* A JSON string with quotes. Escapes as serde_json and the safetensors library do: \" \\ \b \f \n \r \t \u00xx, everything
 * else raw; a lone surrogate (WTF-8) becomes \udxxx. */
bool buffer_append_json_string(struct buffer *buffer, struct str s);

/* The same in ASCII alone, as Python's json.dumps writes it: other characters are \uxxxx, beyond 16 bits as two of them. false too for what
 * is no Unicode text. */
bool buffer_append_json_ascii(struct buffer *buffer, struct str s);

/* The same for text that people look at: what a terminal would obey, or nobody would see (str_printable_char), is \uxxxx as well. The value
 * is the same. */
bool buffer_append_json_visible(struct buffer *buffer, struct str s);

/* The text for a terminal or a tab-separated line: control characters and invalid UTF-8 as \xNN, tab \t, newline \n, \ as \\. */
bool buffer_append_escaped(struct buffer *buffer, struct str s);

/* Makes size bytes of room and returns it as part of the contents, uninitialised; NULL on failure. */
uint8_t *buffer_extend(struct buffer *buffer, size_t size);

/* The error of a failed append. */
reshard_status buffer_error(const struct buffer *buffer, reshard_error *err);

void buffer_clear(struct buffer *buffer);   /* keeps the memory */
void buffer_release(struct buffer *buffer);
static inline struct str buffer_str(const struct buffer *buffer)
{
    return (struct str){ (const char *)buffer->data, buffer->size };
}

#endif
