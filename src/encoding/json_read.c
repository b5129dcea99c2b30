/* SPDX-License-Identifier: Apache-2.0 */
#include "encoding/json.h"

#include "base/buffer.h"

#include <inttypes.h>
#include <stdlib.h>

/* What may come next. */
enum json_state {
    EXPECT_VALUE,
    EXPECT_VALUE_OR_END, /* behind '[' */
    EXPECT_KEY_OR_END,   /* behind '{' */
    EXPECT_COMMA_OR_END, /* behind a value in a container */
    EXPECT_NOTHING       /* behind the top value */
};

struct json_parser {
    const uint8_t *bytes;
    size_t size, pos, event_pos;
    uint64_t base_offset, depth_max;
    enum json_state state;
    bool takes_non_finite;
    struct buffer open; /* '{' or '[' of each open container */
    struct buffer text; /* of a string with escapes */
};

struct json_parser *json_new(const void *bytes, size_t size, uint64_t base_offset, const struct limits *limits)
{
    struct json_parser *parser = calloc(1, sizeof(*parser));
    if (!parser)
        return NULL;
    parser->bytes = bytes;
    parser->size = size;
    parser->base_offset = base_offset;
    parser->depth_max = limits->json_depth;
    return parser;
}

void json_free(struct json_parser *parser)
{
    if (!parser)
        return;
    buffer_release(&parser->open);
    buffer_release(&parser->text);
    free(parser);
}

void json_take_non_finite(struct json_parser *parser)
{
    parser->takes_non_finite = true;
}

uint64_t json_offset(const struct json_parser *parser)
{
    return parser->base_offset + parser->event_pos;
}

/* ---- errors ---- */

static reshard_status json_read_fail_at(const struct json_parser *parser, size_t pos, const char *complaint, reshard_error *err)
{
    return error_set_at(err, RESHARD_ERR_FORMAT, parser->base_offset + pos, "JSON: %s", complaint);
}

/* "expected X, found what stands at pos". */
static reshard_status unexpected(const struct json_parser *parser, const char *expected, reshard_error *err)
{
    size_t pos = parser->pos;
    uint64_t offset = parser->base_offset + pos;
    if (pos >= parser->size)
        return error_set_at(err, RESHARD_ERR_FORMAT, offset, "JSON: expected %s, found the end", expected);
    uint8_t c = parser->bytes[pos];
    if (parser->size - pos >= 3 && memcmp(parser->bytes + pos, "\xEF\xBB\xBF", 3) == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, offset, "JSON: expected %s, found a byte order mark", expected);
    if (c > 0x20 && c < 0x7F)
        return error_set_at(err, RESHARD_ERR_FORMAT, offset, "JSON: expected %s, found '%c'", expected, c);
    return error_set_at(err, RESHARD_ERR_FORMAT, offset, "JSON: expected %s, found byte 0x%02x", expected, c);
}

/* ---- scalars ---- */

static bool json_read_is_digit(const struct json_parser *parser, size_t pos)
{
    return pos < parser->size && parser->bytes[pos] >= '0' && parser->bytes[pos] <= '9';
}

static size_t json_read_skip_digits(const struct json_parser *parser, size_t pos)
{
    while (json_read_is_digit(parser, pos))
        pos++;
    return pos;
}

static reshard_status read_number(struct json_parser *parser, struct str *text, reshard_error *err)
{
    const uint8_t *bytes = parser->bytes;
    size_t pos = parser->pos + (bytes[parser->pos] == '-');
    if (!json_read_is_digit(parser, pos))
        return json_read_fail_at(parser, pos, "a number lacks its digits", err);
    if (bytes[pos] == '0' && json_read_is_digit(parser, pos + 1))
        return json_read_fail_at(parser, pos, "a number starts with 0", err);
    pos = json_read_skip_digits(parser, pos);
    if (pos < parser->size && bytes[pos] == '.') {
        if (!json_read_is_digit(parser, pos + 1))
            return json_read_fail_at(parser, pos, "a number lacks digits behind its point", err);
        pos = json_read_skip_digits(parser, pos + 1);
    }
    if (pos < parser->size && (bytes[pos] == 'e' || bytes[pos] == 'E')) {
        size_t digits = pos + 1;
        if (digits < parser->size && (bytes[digits] == '+' || bytes[digits] == '-'))
            digits++;
        if (!json_read_is_digit(parser, digits))
            return json_read_fail_at(parser, pos, "a number lacks the digits of its exponent", err);
        pos = json_read_skip_digits(parser, digits);
    }
    *text = (struct str){ (const char *)bytes + parser->pos, pos - parser->pos };
    parser->pos = pos;
    return RESHARD_OK;
}

/* Bytes of a string that stand for themselves and are ASCII, eight at a time while they last. */
static size_t skip_plain(const struct json_parser *parser, size_t pos)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
    const uint8_t *bytes = parser->bytes;
    while (parser->size - pos >= 8) {
        uint64_t word;
        memcpy(&word, bytes + pos, 8);
        uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
        uint64_t special = ((word - ones * 0x20) & ~word) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | word;
        if (special & highs)
            break;
        pos += 8;
    }
    while (pos < parser->size && bytes[pos] >= 0x20 && bytes[pos] < 0x80 && bytes[pos] != '"' && bytes[pos] != '\\')
        pos++;
    return pos;
}

static void append_utf8(struct buffer *out, uint32_t code)
{
    uint8_t bytes[4];
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = size; i-- > 1; code >>= 6)
        bytes[i] = (uint8_t)(0x80 | (code & 0x3F));
    bytes[0] = (uint8_t)(lead[size] | code);
    buffer_append(out, bytes, size);
}

/* \uXXXX, or two of them that make one character; pos is behind the 'u'. */
static reshard_status read_unicode_escape(struct json_parser *parser, size_t *pos, reshard_error *err)
{
    const struct str text = { (const char *)parser->bytes, parser->size };
    uint64_t code, low;
    size_t start = *pos - 2;
    if (!str_hex_at(text, *pos, 4, &code))
        return json_read_fail_at(parser, start, "\\u is not followed by four hexadecimal digits", err);
    *pos += 4;
    if (code >= 0xD800 && code <= 0xDFFF) {
        bool is_pair = code <= 0xDBFF && parser->size - *pos >= 6 && memcmp(parser->bytes + *pos, "\\u", 2) == 0 &&
                       str_hex_at(text, *pos + 2, 4, &low) && low >= 0xDC00 && low <= 0xDFFF;
        if (!is_pair)
            return json_read_fail_at(parser, start, "a lone surrogate is escaped: it is no character", err);
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        *pos += 6;
    }
    append_utf8(&parser->text, (uint32_t)code);
    return RESHARD_OK;
}

static reshard_status json_read_escape(struct json_parser *parser, size_t *pos, reshard_error *err)
{
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    size_t start = *pos;
    uint8_t c = start + 1 < parser->size ? parser->bytes[start + 1] : 0;
    *pos = start + 2;
    if (c == 'u')
        return read_unicode_escape(parser, pos, err);
    const char *found = c ? strchr(names, c) : NULL;
    if (!found)
        return json_read_fail_at(parser, start, "unknown escape in a string", err);
    buffer_append_byte(&parser->text, (uint8_t)meanings[found - names]);
    return RESHARD_OK;
}

/* The characters from start on up to the first quote or backslash; *pos is where that stands. */
static reshard_status scan_characters(const struct json_parser *parser, size_t *pos, reshard_error *err)
{
    struct str all = { (const char *)parser->bytes, parser->size };
    for (;;) {
        *pos = skip_plain(parser, *pos);
        if (*pos >= parser->size)
            return json_read_fail_at(parser, parser->size, "a string is not closed", err);
        uint8_t c = parser->bytes[*pos];
        if (c == '"' || c == '\\')
            return RESHARD_OK;
        if (c < 0x20)
            return json_read_fail_at(parser, *pos, "raw control character in a string", err);
        size_t size = str_utf8_char(all, *pos, false);
        if (!size)
            return json_read_fail_at(parser, *pos, "invalid UTF-8 in a string", err);
        *pos += size;
    }
}

static reshard_status json_read_string(struct json_parser *parser, struct str *text, reshard_error *err)
{
    size_t start = parser->pos + 1, pos = start;
    reshard_status status = scan_characters(parser, &pos, err);
    if (status)
        return status;
    if (parser->bytes[pos] == '"') {
        *text = (struct str){ (const char *)parser->bytes + start, pos - start };
        parser->pos = pos + 1;
        return RESHARD_OK;
    }
    buffer_clear(&parser->text);
    for (;;) {
        buffer_append(&parser->text, parser->bytes + start, pos - start);
        if (parser->bytes[pos] == '"')
            break;
        status = json_read_escape(parser, &pos, err);
        start = pos;
        if (!status)
            status = scan_characters(parser, &pos, err);
        if (status)
            return status;
    }
    if (parser->text.failed)
        return error_set_memory(err);
    *text = buffer_str(&parser->text);
    parser->pos = pos + 1;
    return RESHARD_OK;
}

static reshard_status json_read_word(struct json_parser *parser, const char *word, reshard_error *err)
{
    size_t size = strlen(word);
    if (parser->size - parser->pos < size || memcmp(parser->bytes + parser->pos, word, size) != 0)
        return unexpected(parser, "a value", err);
    parser->pos += size;
    return RESHARD_OK;
}

/* A number that only Python's JSON has; false if none stands here. */
static bool read_non_finite(struct json_parser *parser, struct str *text)
{
    static const char *const words[] = { "NaN", "Infinity", "-Infinity" };
    const struct str rest = { (const char *)parser->bytes + parser->pos, parser->size - parser->pos };
    for (size_t i = 0; parser->takes_non_finite && i < sizeof(words) / sizeof(words[0]); i++)
        if (str_starts_with(rest, words[i])) {
            *text = str_of(words[i]);
            parser->pos += text->size;
            return true;
        }
    return false;
}

/* ---- structure ---- */

static void json_read_skip_space(struct json_parser *parser)
{
    while (parser->pos < parser->size) {
        uint8_t c = parser->bytes[parser->pos];
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r')
            return;
        parser->pos++;
    }
}

static int next_byte(const struct json_parser *parser)
{
    return parser->pos < parser->size ? parser->bytes[parser->pos] : -1;
}

static reshard_status json_read_open_container(struct json_parser *parser, uint8_t bracket, enum json_event *event, reshard_error *err)
{
    if (parser->open.size >= parser->depth_max) {
        error_set_limit(err, "json_depth", parser->open.size + 1, parser->depth_max);
        if (err)
            err->offset = (int64_t)json_offset(parser);
        return RESHARD_ERR_LIMIT;
    }
    if (!buffer_append_byte(&parser->open, bracket))
        return error_set_memory(err);
    parser->pos++;
    parser->state = bracket == '{' ? EXPECT_KEY_OR_END : EXPECT_VALUE_OR_END;
    *event = bracket == '{' ? JSON_OBJECT_BEGIN : JSON_ARRAY_BEGIN;
    return RESHARD_OK;
}

static void value_is_done(struct json_parser *parser)
{
    parser->state = parser->open.size ? EXPECT_COMMA_OR_END : EXPECT_NOTHING;
}

static void close_container(struct json_parser *parser, enum json_event *event)
{
    *event = parser->open.data[--parser->open.size] == '{' ? JSON_OBJECT_END : JSON_ARRAY_END;
    parser->pos++;
    value_is_done(parser);
}

static reshard_status json_read_value(struct json_parser *parser, enum json_event *event, struct str *text, reshard_error *err)
{
    reshard_status status;
    int c = next_byte(parser);
    switch (c) {
    case '{':
    case '[':
        return json_read_open_container(parser, (uint8_t)c, event, err);
    case '"':
        *event = JSON_STRING;
        status = json_read_string(parser, text, err);
        break;
    case 't':
        *event = JSON_TRUE;
        status = json_read_word(parser, "true", err);
        break;
    case 'f':
        *event = JSON_FALSE;
        status = json_read_word(parser, "false", err);
        break;
    case 'n':
        *event = JSON_NULL;
        status = json_read_word(parser, "null", err);
        break;
    default:
        *event = JSON_NUMBER;
        if (read_non_finite(parser, text))
            status = RESHARD_OK;
        else if (c != '-' && !(c >= '0' && c <= '9'))
            return unexpected(parser, "a value", err);
        else
            status = read_number(parser, text, err);
        break;
    }
    if (!status)
        value_is_done(parser);
    return status;
}

/* A key and its colon. */
static reshard_status json_read_key(struct json_parser *parser, enum json_event *event, struct str *text, reshard_error *err)
{
    if (next_byte(parser) != '"')
        return unexpected(parser, parser->state == EXPECT_KEY_OR_END ? "a key or '}'" : "a key", err);
    reshard_status status = json_read_string(parser, text, err);
    if (status)
        return status;
    json_read_skip_space(parser);
    if (next_byte(parser) != ':')
        return unexpected(parser, "':' behind a key", err);
    parser->pos++;
    parser->state = EXPECT_VALUE;
    *event = JSON_KEY;
    return RESHARD_OK;
}

/* Behind a value inside a container. */
static reshard_status read_separator(struct json_parser *parser, enum json_event *event, struct str *text, reshard_error *err)
{
    bool is_object = parser->open.data[parser->open.size - 1] == '{';
    int c = next_byte(parser);
    if (c == (is_object ? '}' : ']')) {
        close_container(parser, event);
        return RESHARD_OK;
    }
    if (c != ',')
        return unexpected(parser, is_object ? "',' or '}'" : "',' or ']'", err);
    parser->pos++;
    json_read_skip_space(parser);
    parser->event_pos = parser->pos;
    return is_object ? json_read_key(parser, event, text, err) : json_read_value(parser, event, text, err);
}

reshard_status json_next(struct json_parser *parser, enum json_event *event, struct str *text, reshard_error *err)
{
    json_read_skip_space(parser);
    parser->event_pos = parser->pos;
    *text = (struct str){ "", 0 };
    switch (parser->state) {
    case EXPECT_VALUE_OR_END:
        if (next_byte(parser) == ']') {
            close_container(parser, event);
            return RESHARD_OK;
        }
        return json_read_value(parser, event, text, err);
    case EXPECT_KEY_OR_END:
        if (next_byte(parser) == '}') {
            close_container(parser, event);
            return RESHARD_OK;
        }
        return json_read_key(parser, event, text, err);
    case EXPECT_COMMA_OR_END:
        return read_separator(parser, event, text, err);
    case EXPECT_NOTHING:
        if (parser->pos < parser->size)
            return unexpected(parser, "nothing behind the value", err);
        *event = JSON_END;
        return RESHARD_OK;
    case EXPECT_VALUE:
        break;
    }
    return json_read_value(parser, event, text, err);
}

reshard_status json_skip(struct json_parser *parser, enum json_event first, reshard_error *err)
{
    if (first != JSON_OBJECT_BEGIN && first != JSON_ARRAY_BEGIN)
        return RESHARD_OK;
    size_t wanted = parser->open.size - 1;
    enum json_event event;
    struct str text;
    reshard_status status = RESHARD_OK;
    while (!status && parser->open.size > wanted)
        status = json_next(parser, &event, &text, err);
    return status;
}

bool json_number_is_u64(struct str text, uint64_t *out)
{
    return str_to_u64(text, out);
}
