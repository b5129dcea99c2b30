/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Length of the valid UTF-8 sequence at data, 0 if it is none. Lone surrogates (WTF-8) count as invalid here. */
static size_t utf8_length(const unsigned char *data, size_t left)
{
    unsigned char first = data[0];
    size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((data[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((first == 0xE0 && data[1] < 0xA0) || (first == 0xED && data[1] >= 0xA0) || (first == 0xF0 && data[1] < 0x90) || (first == 0xF4 && data[1] >= 0x90))
        return 0;
    return length;
}

void json_string(FILE *out, const char *data, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)data;
    putc('"', out);
    for (size_t i = 0; i < size;) {
        size_t length = utf8_length(bytes + i, size - i);
        unsigned char c = bytes[i];
        if (length == 1 && (c == '"' || c == '\\'))
            fprintf(out, "\\%c", c);
        else if (length == 1 && c < 0x20)
            fprintf(out, "\\u%04x", c);
        else if (length)
            fwrite(bytes + i, 1, length, out);
        else if (size - i >= 3 && c == 0xED && bytes[i + 1] >= 0xA0 && (bytes[i + 1] & 0xC0) == 0x80 && (bytes[i + 2] & 0xC0) == 0x80)
            fprintf(out, "\\ud%03x", ((bytes[i + 1] & 0x3Fu) << 6 | (bytes[i + 2] & 0x3Fu)) & 0xFFF);
        else
            fputs("\\ufffd", out);
        i += length ? length : c == 0xED && size - i >= 3 && bytes[i + 1] >= 0xA0 ? 3 : 1;
    }
    putc('"', out);
}

void json_text(FILE *out, const char *text)
{
    json_string(out, text, strlen(text));
}

void json_ints(FILE *out, const int64_t *values, int count)
{
    putc('[', out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%lld", i ? "," : "", (long long)values[i]);
    putc(']', out);
}

void print_shape(FILE *out, const int64_t *shape, int rank)
{
    json_ints(out, shape, rank);
}

void print_escaped(FILE *out, const char *data, size_t size)
{
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0; i < size;) {
        size_t length = utf8_length(bytes + i, size - i);
        /* C1 control characters are two bytes: C2 80 to C2 9F. */
        bool control = bytes[i] < 0x20 || bytes[i] == 0x7F || (length == 2 && bytes[i] == 0xC2 && bytes[i + 1] < 0xA0);
        if (length && !control && bytes[i] != '\\') {
            fwrite(bytes + i, 1, length, out);
            i += length;
        } else if (bytes[i] == '\\') {
            fputs("\\\\", out);
            i++;
        } else {
            fprintf(out, "\\x%02x", bytes[i++]);
        }
    }
}

const char *human_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1000 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return out;
}

bool is_terminal(void)
{
    return isatty(STDOUT_FILENO);
}

const char *colour(const struct options *options, const char *code)
{
    const char *choice = options->color ? options->color : "auto";
    const char *no_color = getenv("NO_COLOR");
    bool on = strcmp(choice, "always") == 0 || (strcmp(choice, "auto") == 0 && is_terminal() && !(no_color && *no_color));
    return on ? code : "";
}

int print_error(const struct options *options, reshard_status status, const reshard_error *err)
{
    int exit_status = reshard_status_exit(status);
    fflush(stdout);
    if (options->json) {
        fputs("{\"schema\":\"reshard-error/1\",\"status\":", stderr);
        fprintf(stderr, "%d,\"error\":", exit_status);
        json_text(stderr, reshard_status_name(status));
        fputs(",\"message\":", stderr);
        json_text(stderr, err->message);
        fputs(",\"line\":", stderr);
        char line[1100];
        snprintf(line, sizeof(line), "reshard: %s", err->message);
        json_text(stderr, line);
        if (err->object[0]) {
            fputs(",\"object\":", stderr);
            json_text(stderr, err->object);
        }
        if (err->offset >= 0)
            fprintf(stderr, ",\"offset\":%lld", (long long)err->offset);
        if (err->hint[0]) {
            fputs(",\"hint\":", stderr);
            json_text(stderr, err->hint);
        }
        fputs("}\n", stderr);
        return exit_status;
    }
    fprintf(stderr, "reshard: %s\n", err->message);
    for (const char *line = err->hint; *line;) {
        size_t size = strcspn(line, "\n");
        fprintf(stderr, "hint: %.*s\n", (int)size, line);
        line += size + (line[size] == '\n');
    }
    return exit_status;
}

/* ---- tables ---- */

static void table_take(struct table *table, char *cell)
{
    if (cell && table->count == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 64;
        char **grown = realloc(table->cells, capacity * sizeof(*grown));
        if (grown) {
            table->cells = grown;
            table->capacity = capacity;
        }
    }
    if (!cell || table->count == table->capacity) {
        free(cell);
        table->failed = true;
        return;
    }
    table->cells[table->count++] = cell;
}

void table_add(struct table *table, const char *format, ...)
{
    char *cell = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&cell, format, args) < 0)
        cell = NULL;
    va_end(args);
    table_take(table, cell);
}

void table_add_escaped(struct table *table, const char *data, size_t size)
{
    char *cell = NULL;
    size_t length;
    FILE *out = open_memstream(&cell, &length);
    if (out) {
        print_escaped(out, data, size);
        fclose(out);
    }
    table_take(table, cell);
}

/* Display width: code points; good enough for names. */
static size_t text_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

void table_flush(struct table *table, FILE *out)
{
    size_t columns = table->columns ? table->columns : 1;
    size_t *widths = calloc(columns, sizeof(*widths));
    bool aligned = is_terminal() && widths;
    for (size_t i = 0; aligned && i < table->count; i++) {
        size_t width = text_width(table->cells[i]);
        if (width > widths[i % columns])
            widths[i % columns] = width;
    }
    for (size_t i = 0; i < table->count; i++) {
        bool last = i % columns == columns - 1;
        fputs(table->cells[i], out);
        if (last)
            putc('\n', out);
        else if (aligned)
            fprintf(out, "%*s", (int)(widths[i % columns] - text_width(table->cells[i]) + 2), "");
        else
            putc('\t', out);
        free(table->cells[i]);
    }
    free(widths);
    free(table->cells);
    *table = (struct table){ .columns = table->columns };
}
