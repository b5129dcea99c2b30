/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_config.h"

#include "base/array.h"
#include "mapping/map_config_parts.h"
#include "mapping/map_lex.h"

#include <stdlib.h>

/* ---- the text that is made ---- */

static void map_config_add_segment(struct map_text *out, size_t origin)
{
    uint32_t offset = (uint32_t)out->made.size;
    if (out->count) {
        const struct map_segment *last = &out->segments[out->count - 1];
        if (last->origin + (offset - last->offset) == origin)
            return;
    }
    if (!ARRAY_ROOM(out->segments, out->count, out->capacity)) {
        out->no_memory = true;
        return;
    }
    out->segments[out->count++] = (struct map_segment){ offset, (uint32_t)origin };
}

void config_emit(struct config_reader *reader, size_t from, size_t size)
{
    if (!size)
        return;
    map_config_add_segment(reader->out, from);
    buffer_append(&reader->out->made, reader->file.data + from, size);
}

void config_emit_byte(struct config_reader *reader, char byte, size_t origin)
{
    map_config_add_segment(reader->out, origin);
    buffer_append_byte(&reader->out->made, (uint8_t)byte);
}

void config_emit_end(struct config_reader *reader)
{
    config_emit_byte(reader, '\n', reader->at);
}

bool config_fail(struct config_reader *reader, size_t at, const char *hint, const char *message)
{
    size_t size = at < reader->file.size ? 1 : 0;
    return map_diagnose(reader->diagnoses, MAP_ERROR, (struct map_span){ (uint32_t)at, (uint32_t)size }, hint, "%s", message);
}

static bool config_same_object(struct config_reader *reader, size_t at)
{
    if (!reader->has_statements || !reader->has_reverse || reader->statements_in == reader->reverse_in)
        return true;
    return config_fail(reader, at, "write both into one object", "aoa_config_reverse and aoa_statements are of two objects");
}

bool config_found_statements(struct config_reader *reader, size_t at, size_t object)
{
    if (reader->has_statements)
        return config_fail(reader, at, "one mapping is read: give the object that is meant alone", "a second aoa_statements");
    reader->has_statements = true;
    reader->statements_in = object;
    return config_same_object(reader, at);
}

bool config_found_reverse(struct config_reader *reader, size_t at, size_t object, bool is_reverse)
{
    if (reader->has_reverse)
        return config_fail(reader, at, "one mapping is read: give the object that is meant alone", "a second aoa_config_reverse");
    reader->has_reverse = true;
    reader->reverse_in = object;
    reader->out->is_reverse = is_reverse;
    return config_same_object(reader, at);
}

int config_truth(struct str word)
{
    static const char *const words[] = { "false", "False", "no", "off", "0", "true", "True", "yes", "on", "1" };
    for (int i = 0; i < 10; i++) {
        if (str_is(word, words[i]))
            return i >= 5;
    }
    return -1;
}

/* ---- strings ---- */

/* Value of hexadecimal digits at an offset, 8 at most; -1 if there are fewer. */
static int64_t hex_value(struct str file, size_t at, size_t count)
{
    uint64_t value;
    return str_hex_at(file, at, count, &value) ? (int64_t)value : -1;
}

static void emit_code_point(struct config_reader *reader, uint32_t point, size_t origin)
{
    if (point < 0x80) {
        config_emit_byte(reader, (char)point, origin);
    } else if (point < 0x800) {
        config_emit_byte(reader, (char)(0xC0 | point >> 6), origin);
        config_emit_byte(reader, (char)(0x80 | (point & 0x3F)), origin);
    } else if (point < 0x10000) {
        config_emit_byte(reader, (char)(0xE0 | point >> 12), origin);
        config_emit_byte(reader, (char)(0x80 | (point >> 6 & 0x3F)), origin);
        config_emit_byte(reader, (char)(0x80 | (point & 0x3F)), origin);
    } else {
        config_emit_byte(reader, (char)(0xF0 | point >> 18), origin);
        config_emit_byte(reader, (char)(0x80 | (point >> 12 & 0x3F)), origin);
        config_emit_byte(reader, (char)(0x80 | (point >> 6 & 0x3F)), origin);
        config_emit_byte(reader, (char)(0x80 | (point & 0x3F)), origin);
    }
}

/* \uXXXX, \UXXXXXXXX or \xXX; two \u may be one character. */
static bool emit_unicode(struct config_reader *reader, int digits, bool emits)
{
    size_t start = reader->at;
    int64_t point = hex_value(reader->file, start + 2, (size_t)digits);
    reader->at += 2 + (size_t)digits;
    if (point >= 0xD800 && point < 0xDC00 && hex_value(reader->file, reader->at + 2, 4) >= 0xDC00 &&
        reader->file.data[reader->at] == '\\') {
        int64_t low = hex_value(reader->file, reader->at + 2, 4);
        point = low < 0xE000 ? 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00) : -1;
        reader->at += 6;
    }
    if (point < 0 || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
        return config_fail(reader, start, NULL, "the escape is no character");
    if (emits)
        emit_code_point(reader, (uint32_t)point, start);
    return true;
}

/* A backslash and what follows. What is no escape stands for itself, as in Python; the language then complains about the backslash. */
static bool map_config_read_escape(struct config_reader *reader, bool emits)
{
    static const char letters[] = "nrt\"'\\/", values[] = "\n\r\t\"'\\/";
    struct str file = reader->file;
    size_t size = reader->at + 1 < file.size ? 2 : 1; /* a backslash may end the file */
    char letter = size == 2 ? file.data[reader->at + 1] : '\0';
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (letter == 'u' || letter == 'U' || letter == 'x')
        return emit_unicode(reader, letter == 'u' ? 4 : letter == 'U' ? 8 : 2, emits);
    if (found && emits)
        config_emit_byte(reader, values[found - letters], reader->at);
    else if (!found && letter != '\n' && emits)
        config_emit(reader, reader->at, size);
    reader->at += size;
    return true;
}

bool config_string(struct config_reader *reader, bool is_yaml, bool emits, struct str *value)
{
    struct str file = reader->file;
    size_t start = reader->at;
    char quote = file.data[start];
    size_t marks = !is_yaml && start + 2 < file.size && file.data[start + 1] == quote && file.data[start + 2] == quote ? 3 : 1;
    reader->at += marks;
    while (reader->at < file.size) {
        char c = file.data[reader->at];
        bool is_double = reader->at + 1 < file.size && file.data[reader->at + 1] == quote;
        if (c == quote && marks == 1 && is_yaml && quote == '\'' && is_double) {
            if (emits)
                config_emit_byte(reader, '\'', reader->at);
            reader->at += 2;
        } else if (c == quote && (marks == 1 || (is_double && reader->at + 2 < file.size && file.data[reader->at + 2] == quote))) {
            *value = (struct str){ file.data + start + marks, reader->at - start - marks };
            reader->at += marks;
            return true;
        } else if (c == '\\' && !(is_yaml && quote == '\'')) {
            if (!map_config_read_escape(reader, emits))
                return false;
        } else if ((c == '\n' || c == '\r') && marks == 1 && !is_yaml) {
            break;
        } else {
            if (emits)
                config_emit(reader, reader->at, 1);
            reader->at++;
        }
    }
    return config_fail(reader, start, NULL, "the string is not closed");
}

/* ---- what a file is ---- */

static bool map_config_is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static size_t map_config_skip_blank(struct str file, size_t at)
{
    while (at < file.size && (file.data[at] == ' ' || file.data[at] == '\t'))
        at++;
    return at;
}

static size_t map_config_next_line(struct str file, size_t at)
{
    const char *end = at < file.size ? memchr(file.data + at, '\n', file.size - at) : NULL;
    return end ? (size_t)(end - file.data) + 1 : file.size;
}

/* The first character of the file that is neither blank nor in a comment. */
static size_t first_character(struct str file)
{
    for (size_t at = 0; at < file.size;) {
        size_t start = at;
        while (start < file.size &&
               (file.data[start] == ' ' || file.data[start] == '\t' || file.data[start] == '\r' || file.data[start] == '\n'))
            start++;
        if (start >= file.size || file.data[start] != '#')
            return start;
        at = map_config_next_line(file, start);
    }
    return file.size;
}

enum file_kind { FILE_PLAIN, FILE_LITERAL, FILE_ASSIGNMENT, FILE_YAML };

static enum file_kind map_config_kind_of(struct str file, size_t *at)
{
    *at = first_character(file);
    if (*at == file.size)
        return FILE_PLAIN;
    char c = file.data[*at], next = *at + 1 < file.size ? file.data[*at + 1] : '\n';
    if (c == '{' || c == '[')
        return FILE_LITERAL;
    if (c == '-' && (next == '-' || next == ' ' || next == '\n'))
        return FILE_YAML;
    size_t end = *at;
    while (end < file.size && map_config_is_name_char(file.data[end]))
        end++;
    size_t mark = map_config_skip_blank(file, end);
    if (end == *at || mark == file.size)
        return FILE_PLAIN;
    if (file.data[mark] == ':')
        return FILE_YAML;
    size_t value = map_config_skip_blank(file, mark + 1);
    if (file.data[mark] == '=' && value < file.size && memchr("[{(", file.data[value], 3)) {
        *at = value;
        return FILE_ASSIGNMENT;
    }
    return FILE_PLAIN;
}

static bool map_config_read_config(struct config_reader *reader, enum file_kind kind)
{
    if (kind == FILE_YAML)
        return config_yaml(reader);
    return config_literal(reader, reader->file.data[reader->at] != '{', 0) && config_literal_end(reader);
}

reshard_status map_text_read(struct str file, const struct limits *limits, struct map_text *out, struct map_diagnoses *diagnoses,
                             reshard_error *err)
{
    uint64_t bytes_max = limits->map_text_bytes < UINT32_MAX / 2 ? limits->map_text_bytes : UINT32_MAX / 2;
    *out = (struct map_text){ .file = file, .text = file };
    if (file.size > bytes_max)
        return error_set_limit(err, "map_text_bytes", file.size, bytes_max);
    struct config_reader reader = { .file = file, .out = out, .diagnoses = diagnoses };
    enum file_kind kind = map_config_kind_of(file, &reader.at);
    if (kind == FILE_PLAIN)
        return RESHARD_OK;
    out->is_config = true;
    if (map_config_read_config(&reader, kind) && !reader.has_statements)
        config_fail(&reader, 0, "expected an object with aoa_statements, or a list of statements",
                    "no statements are found in this configuration object");
    if (out->no_memory || out->made.failed || diagnoses->no_memory)
        return error_set_memory(err);
    out->text = buffer_str(&out->made);
    diagnoses->text = out;
    return RESHARD_OK;
}

static uint32_t origin_of(const struct map_text *text, uint32_t offset)
{
    uint32_t low = 0, high = text->count;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (text->segments[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    return text->count ? text->segments[low].origin + (offset - text->segments[low].offset) : 0;
}

struct map_span map_text_locate(const struct map_text *text, struct map_span span)
{
    uint32_t start = origin_of(text, span.offset), end = span.size ? origin_of(text, span.offset + span.size - 1) + 1 : start;
    return (struct map_span){ start, end > start ? end - start : 0 };
}

void map_text_release(struct map_text *text)
{
    buffer_release(&text->made);
    free(text->segments);
    *text = (struct map_text){ 0 };
}
