/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include "command_words.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WARNINGS_SHOWN 10

/* Length of the valid UTF-8 sequence at data, 0 if it is none. Lone surrogates (WTF-8) count as invalid here. */
static size_t utf8_length(const unsigned char *data, size_t left)
{
    unsigned char first = data[0];
    size_t length = first < 0x80                    ? 1
                    : first >= 0xC2 && first < 0xE0 ? 2
                    : first >= 0xE0 && first < 0xF0 ? 3
                    : first >= 0xF0 && first < 0xF5 ? 4
                                                    : 0;
    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++) {
        if ((data[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((first == 0xE0 && data[1] < 0xA0) || (first == 0xED && data[1] >= 0xA0) || (first == 0xF0 && data[1] < 0x90) ||
        (first == 0xF4 && data[1] >= 0x90))
        return 0;
    return length;
}

/* A character as one or two units of UTF-16. */
static void json_escape(FILE *out, const unsigned char *bytes, size_t length)
{
    unsigned code = length == 1 ? bytes[0] : bytes[0] & 0x7Fu >> length;
    for (size_t i = 1; i < length; i++)
        code = code << 6 | (bytes[i] & 0x3Fu);
    if (code >= 0x10000)
        fprintf(out, "\\u%04x\\u%04x", 0xD7C0 + (code >> 10), 0xDC00 | (code & 0x3FF));
    else
        fprintf(out, "\\u%04x", code);
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
        else if (length && reshard_visible_char(data + i, size - i))
            fwrite(bytes + i, 1, length, out);
        else if (length)
            json_escape(out, bytes + i, length);
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

void json_path(const reshard_checkpoint *checkpoint, size_t tensor)
{
    reshard_path_part part = RESHARD_PATH_PART_INIT;
    fputs(",\"path\":[", stdout);
    for (size_t i = 0; reshard_tensor_path_at(checkpoint, tensor, i, &part) == RESHARD_OK; i++) {
        if (i)
            putchar(',');
        if (part.kind == RESHARD_PATH_KEY)
            json_string(stdout, part.key.data, part.key.size);
        else
            printf("%lld", (long long)part.index);
    }
    putchar(']');
}

static void json_lost(const reshard_checkpoint *checkpoint)
{
    reshard_warning warning = RESHARD_WARNING_INIT;
    size_t count = 0;
    for (size_t i = 0; reshard_warning_at(checkpoint, i, &warning) == RESHARD_OK; i++) {
        if (!warning.lost.size)
            continue;
        fputs(count++ ? "," : ",\"lost\":[", stdout);
        json_string(stdout, warning.lost.data, warning.lost.size);
    }
    fputs(count ? "]" : "", stdout);
}

void json_warnings(const reshard_checkpoint *checkpoint)
{
    reshard_warning warning = RESHARD_WARNING_INIT;
    fputs("\"warnings\":[", stdout);
    for (size_t i = 0; reshard_warning_at(checkpoint, i, &warning) == RESHARD_OK; i++) {
        if (i)
            putchar(',');
        json_text(stdout, command_words(warning.text));
    }
    putchar(']');
    json_lost(checkpoint);
}

void tell_warnings(const struct options *options, const reshard_checkpoint *checkpoint)
{
    const size_t most = options->verbose ? SIZE_MAX : WARNINGS_SHOWN;
    reshard_warning warning = RESHARD_WARNING_INIT;
    size_t count = 0;
    for (size_t i = 0; !options->quiet && reshard_warning_at(checkpoint, i, &warning) == RESHARD_OK; i++) {
        if (count++ >= most)
            continue;
        fputs(warning.is_damage ? "reshard: damage: " : "reshard: warning: ", stderr);
        print_text(stderr, command_words(warning.text), strlen(command_words(warning.text)));
        putc('\n', stderr);
    }
    if (count > most)
        fprintf(stderr, "reshard: warning: %zu more; --verbose shows all\n", count - most);
}

void print_shape(FILE *out, const int64_t *shape, int rank)
{
    json_ints(out, shape, rank);
}

/* Bytes of the character there, if a terminal may see it. Most are of ASCII. */
static size_t visible_length(const unsigned char *at, size_t size)
{
    return at[0] >= 0x20 && at[0] < 0x7f ? 1 : reshard_visible_char((const char *)at, size);
}

/* Prints what a terminal may see; the rest, and on demand the backslash, as escapes. */
static void print_safe(FILE *out, const char *data, size_t size, bool double_backslash)
{
    const unsigned char *bytes = (const unsigned char *)data;
    for (size_t i = 0, plain = 0; i <= size; i++) {
        size_t length = i < size && (bytes[i] != '\\' || !double_backslash) ? visible_length(bytes + i, size - i) : 0;
        if (length) {
            i += length - 1;
            continue;
        }
        fwrite(bytes + plain, 1, i - plain, out);
        plain = i + 1;
        if (i < size && bytes[i] == '\\' && double_backslash)
            fputs("\\\\", out);
        else if (i < size)
            fprintf(out, "\\x%02x", bytes[i]);
    }
}

void print_escaped(FILE *out, const char *data, size_t size)
{
    print_safe(out, data, size, true);
}

void print_text(FILE *out, const char *data, size_t size)
{
    print_safe(out, data, size, false);
}

void print_path(FILE *out, const char *path)
{
    const char *shown = shown_path(path);
    print_text(out, shown, strlen(shown));
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

void output_begin(void)
{
    static char line[BUFSIZ]; /* not malloc's: what tells of a lack of memory needs it */
    setvbuf(stderr, line, _IOLBF, sizeof(line));
}

static FILE *document_out; /* standard output while a document is made */
static char *document;
static size_t document_size;

void document_begin(void)
{
    FILE *memory = document_out ? NULL : open_memstream(&document, &document_size);
    if (!memory)
        return; /* without memory it comes as it is made */
    document_out = stdout;
    stdout = memory;
}

void document_end(bool is_whole)
{
    if (!document_out)
        return;
    is_whole = is_whole && !ferror(stdout);
    is_whole &= fclose(stdout) == 0;
    stdout = document_out;
    document_out = NULL;
    if (is_whole)
        fwrite(document, 1, document_size, stdout);
    free(document);
    document = NULL;
}

static bool is_relayed;

void output_is_relayed(void)
{
    is_relayed = true;
}

bool is_terminal(void)
{
    static int answer = -1; /* it is asked for each line */
    if (answer < 0)
        answer = isatty(STDOUT_FILENO);
    return !is_relayed && answer;
}

const char *colour(const struct options *options, const char *code)
{
    const char *choice = options->color ? options->color : "auto";
    const char *no_color = getenv("NO_COLOR");
    bool on = strcmp(choice, "always") == 0 || (strcmp(choice, "auto") == 0 && is_terminal() && !(no_color && *no_color));
    return on ? code : "";
}

static int noted_failure;

void output_note_failure(int number)
{
    noted_failure = number;
}

int output_failure(void)
{
    return noted_failure;
}

bool output_is_gone(void)
{
    struct pollfd end = { .fd = STDOUT_FILENO };
    return ferror(stdout) && poll(&end, 1, 0) == 1 && (end.revents & (POLLERR | POLLHUP));
}
