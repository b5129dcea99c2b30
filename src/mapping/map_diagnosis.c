/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_diagnosis.h"

#include "base/array.h"
#include "mapping/map_config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define MESSAGE_BYTES_MAX 600
#define LINE_BYTES_MAX 160 /* of a source line that is shown; longer ones are cut around the caret */

static const char *escaped(struct arena *arena, const char *text)
{
    struct buffer buffer = { .limit = 4 * MESSAGE_BYTES_MAX };
    const char *copy = NULL;
    if (buffer_append_escaped(&buffer, str_of(text)))
        copy = arena_copy(arena, buffer.data, buffer.size);
    buffer_release(&buffer);
    return copy;
}

bool map_diagnose(struct map_diagnoses *diagnoses, enum map_severity severity, struct map_span span, const char *hint, const char *format,
                  ...)
{
    char message[MESSAGE_BYTES_MAX];
    va_list args;
    if (severity == MAP_UNPORTABLE && diagnoses->is_ours)
        return false;
    if (severity == MAP_ERROR)
        diagnoses->error_count++;
    else if (severity == MAP_WARNING)
        diagnoses->warning_count++;
    else if (severity == MAP_UNPORTABLE)
        diagnoses->unportable_count++;
    if (diagnoses->count >= MAP_DIAGNOSES_MAX) {
        diagnoses->dropped++;
        return false;
    }
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    struct map_diagnosis row = { severity, diagnoses->text ? map_text_locate(diagnoses->text, span) : span,
                                 escaped(&diagnoses->arena, message), hint ? escaped(&diagnoses->arena, hint) : NULL };
    if (!row.message || (hint && !row.hint) || !ARRAY_ROOM(diagnoses->rows, diagnoses->count, diagnoses->capacity)) {
        diagnoses->no_memory = true;
        return false;
    }
    diagnoses->rows[diagnoses->count++] = row;
    return false;
}

static bool map_diagnosis_is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

static size_t character_size(struct str text, size_t at)
{
    size_t size = str_utf8_char(text, at, true);
    return size ? size : 1;
}

void map_position(struct str text, uint32_t offset, int *line, int *column)
{
    size_t start = 0;
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < offset && i < text.size; i++) {
        bool is_pair = text.data[i] == '\r' && i + 1 < text.size && text.data[i + 1] == '\n';
        if (!map_diagnosis_is_line_end(text.data[i]) || is_pair)
            continue;
        (*line)++;
        start = i + 1;
    }
    for (size_t i = start; i < offset && i < text.size; i += character_size(text, i))
        (*column)++;
}

/* The line that holds the offset, without its end; cut to a window around the offset if it is long. */
static struct str shown_line(struct str text, uint32_t offset, uint32_t *start)
{
    size_t begin = offset < text.size ? offset : text.size, end = begin;
    while (begin > 0 && !map_diagnosis_is_line_end(text.data[begin - 1]) && offset - begin < LINE_BYTES_MAX / 2)
        begin--;
    while (begin < offset && begin > 0 && (text.data[begin] & 0xC0) == 0x80)
        begin++;
    while (end < text.size && !map_diagnosis_is_line_end(text.data[end]) && end - begin < LINE_BYTES_MAX)
        end++;
    *start = (uint32_t)begin;
    return (struct str){ text.data + begin, end - begin };
}

/* Tabs become single spaces and what does not print '?', so that the caret stands below its character. */
static void append_line(struct buffer *out, struct str line)
{
    for (size_t i = 0; i < line.size;) {
        size_t size = str_printable_char(line, i);
        if (size)
            buffer_append(out, line.data + i, size);
        else
            buffer_append_byte(out, line.data[i] == '\t' ? ' ' : '?');
        i += size ? size : character_size(line, i);
    }
}

static void append_caret(struct buffer *out, struct str line, uint32_t before, uint32_t size)
{
    uint32_t marks = 0;
    for (size_t i = 0; i < before && i < line.size; i += character_size(line, i))
        buffer_append_byte(out, ' ');
    for (size_t i = before; i < (size_t)before + size && i < line.size; i += character_size(line, i), marks++)
        buffer_append_byte(out, '^');
    if (!marks)
        buffer_append_byte(out, '^');
}

static const char *severity_name(enum map_severity severity, bool strict)
{
    if (severity == MAP_ERROR || (severity == MAP_UNPORTABLE && strict))
        return "error";
    return severity == MAP_NOTE ? "note" : "warning";
}

static void render_row(const struct map_diagnosis *row, struct str name, struct str text, bool strict, struct buffer *out)
{
    int line, column;
    uint32_t start;
    map_position(text, row->span.offset, &line, &column);
    buffer_append_escaped(out, name);
    buffer_printf(out, ":%d:%d: %s: %s\n", line, column, severity_name(row->severity, strict), row->message);
    struct str source = shown_line(text, row->span.offset, &start);
    if (source.size) {
        buffer_printf(out, "%5d | ", line);
        append_line(out, source);
        buffer_append_text(out, "\n      | ");
        append_caret(out, source, row->span.offset - start, row->span.size);
        buffer_append_text(out, "\n");
    }
    if (row->hint)
        buffer_printf(out, "hint: %s\n", row->hint);
}

static int map_diagnosis_compare_places(const void *a, const void *b)
{
    const struct map_diagnosis *x = *(const struct map_diagnosis *const *)a, *y = *(const struct map_diagnosis *const *)b;
    if (x->span.offset != y->span.offset)
        return x->span.offset < y->span.offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

bool map_diagnoses_render(const struct map_diagnoses *diagnoses, struct str name, struct str text, bool strict, struct buffer *out)
{
    const struct map_diagnosis *order[MAP_DIAGNOSES_MAX];
    for (uint32_t i = 0; i < diagnoses->count; i++)
        order[i] = &diagnoses->rows[i];
    qsort(order, diagnoses->count, sizeof(order[0]), map_diagnosis_compare_places);
    for (uint32_t i = 0; i < diagnoses->count; i++)
        render_row(order[i], name, text, strict, out);
    if (diagnoses->dropped)
        buffer_printf(out, "… and %u more\n", diagnoses->dropped);
    return !out->failed;
}

reshard_status map_diagnoses_status(const struct map_diagnoses *diagnoses, struct str name, struct str text, bool strict,
                                    reshard_error *err)
{
    const struct map_diagnosis *first = NULL;
    int line, column;
    if (diagnoses->no_memory)
        return error_set_memory(err);
    for (uint32_t i = 0; i < diagnoses->count && !first; i++) {
        if (diagnoses->rows[i].severity == MAP_ERROR || (strict && diagnoses->rows[i].severity == MAP_UNPORTABLE))
            first = &diagnoses->rows[i];
    }
    if (!first)
        return RESHARD_OK;
    map_position(text, first->span.offset, &line, &column);
    error_set(err, RESHARD_ERR_USAGE, "%.*s:%d:%d: %s", STR_ARG(name), line, column, first->message);
    if (err) {
        err->line = line;
        err->column = column;
    }
    if (first->hint)
        error_hint(err, "%s", first->hint);
    return RESHARD_ERR_USAGE;
}

void map_diagnoses_release(struct map_diagnoses *diagnoses)
{
    arena_release(&diagnoses->arena);
    free(diagnoses->rows);
    *diagnoses = (struct map_diagnoses){ 0 };
}
