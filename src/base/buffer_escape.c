/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of a buffer that are not copied as they are: JSON strings, and names for a terminal. */
#include "base/buffer.h"

static const char hex_digits[] = "0123456789abcdef";

/* The letter after the backslash for characters that JSON abbreviates, else 0. */
static char json_short_escape(uint8_t c)
{
    switch (c) {
    case '"':
    case '\\':
        return (char)c;
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

static bool append_json_control(struct buffer *buffer, uint8_t c)
{
    char letter = json_short_escape(c);
    if (letter)
        return buffer_append(buffer, (char[]){ '\\', letter }, 2);
    return buffer_append(buffer, (char[]){ '\\', 'u', '0', '0', hex_digits[c >> 4], hex_digits[c & 15] }, 6);
}

static bool is_surrogate(struct str s, size_t at)
{
    return s.size - at >= 3 && (uint8_t)s.data[at] == 0xED && (uint8_t)s.data[at + 1] >= 0xA0 && (uint8_t)s.data[at + 1] <= 0xBF &&
           ((uint8_t)s.data[at + 2] & 0xC0) == 0x80;
}

static bool append_json_surrogate(struct buffer *buffer, struct str s, size_t at)
{
    unsigned second = (uint8_t)s.data[at + 1] & 0x3F, third = (uint8_t)s.data[at + 2] & 0x3F;
    unsigned unit = 0xD000 | second << 6 | third;
    char text[6] = { '\\', 'u', 'd', hex_digits[unit >> 8 & 15], hex_digits[unit >> 4 & 15], hex_digits[unit & 15] };
    return buffer_append(buffer, text, sizeof(text));
}

static bool append_json_unit(struct buffer *buffer, uint32_t unit)
{
    char text[6] = {
        '\\', 'u', hex_digits[unit >> 12 & 15], hex_digits[unit >> 8 & 15], hex_digits[unit >> 4 & 15], hex_digits[unit & 15]
    };
    return buffer_append(buffer, text, sizeof(text));
}

static bool append_json_code_point(struct buffer *buffer, uint32_t code)
{
    if (code < 0x10000)
        return append_json_unit(buffer, code);
    return append_json_unit(buffer, 0xD7C0 + (code >> 10)) && append_json_unit(buffer, 0xDC00 | (code & 0x3FF));
}

bool buffer_append_json_ascii(struct buffer *buffer, struct str s)
{
    bool ok = buffer_append_byte(buffer, '"');
    for (size_t i = 0; ok && i < s.size;) {
        uint8_t c = (uint8_t)s.data[i];
        size_t size = c < 0x80 ? 1 : str_utf8_char(s, i, true);
        if (!size)
            return false;
        if (c >= 0x80)
            ok = append_json_code_point(buffer, str_code_point(s, i, size));
        else
            ok = c < 0x20 || json_short_escape(c) ? append_json_control(buffer, c) : buffer_append_byte(buffer, c);
        i += size;
    }
    return ok && buffer_append_byte(buffer, '"');
}

/* Size of the character at s.data[at] if nobody would see it, else 0. It has more than one byte, or is DEL. */
static size_t unseen_char(struct str s, size_t at)
{
    size_t size = str_utf8_char(s, at, false);
    return size && !str_printable_char(s, at) ? size : 0;
}

static bool append_json(struct buffer *buffer, struct str s, bool hides_nothing)
{
    bool ok = buffer_append_byte(buffer, '"');
    size_t plain = 0;
    for (size_t i = 0; ok && i < s.size; i++) {
        uint8_t c = (uint8_t)s.data[i];
        bool surrogate = c == 0xED && is_surrogate(s, i);
        size_t unseen = hides_nothing && c >= 0x7F && !surrogate ? unseen_char(s, i) : 0;
        if (c >= 0x20 && c != '"' && c != '\\' && !surrogate && !unseen)
            continue;
        ok = buffer_append(buffer, s.data + plain, i - plain);
        if (unseen)
            ok = ok && append_json_code_point(buffer, str_code_point(s, i, unseen));
        else
            ok = ok && (surrogate ? append_json_surrogate(buffer, s, i) : append_json_control(buffer, c));
        i += surrogate ? 2 : unseen ? unseen - 1 : 0;
        plain = i + 1;
    }
    ok = ok && (plain >= s.size || buffer_append(buffer, s.data + plain, s.size - plain));
    return ok && buffer_append_byte(buffer, '"');
}

bool buffer_append_json_string(struct buffer *buffer, struct str s)
{
    return append_json(buffer, s, false);
}

bool buffer_append_json_visible(struct buffer *buffer, struct str s)
{
    return append_json(buffer, s, true);
}

static bool append_escaped_byte(struct buffer *buffer, uint8_t c)
{
    char letter = c == '\t' ? 't' : c == '\n' ? 'n' : c == '\\' ? '\\' : 0;
    if (letter)
        return buffer_append(buffer, (char[]){ '\\', letter }, 2);
    return buffer_append(buffer, (char[]){ '\\', 'x', hex_digits[c >> 4], hex_digits[c & 15] }, 4);
}

bool buffer_append_escaped(struct buffer *buffer, struct str s)
{
    bool ok = true;
    for (size_t i = 0; ok && i < s.size;) {
        size_t size = s.data[i] == '\\' ? 0 : str_printable_char(s, i);
        ok = size ? buffer_append(buffer, s.data + i, size) : append_escaped_byte(buffer, (uint8_t)s.data[i]);
        i += size ? size : 1;
    }
    return ok;
}
