/* SPDX-License-Identifier: Apache-2.0 */
#include "command_words.h"

#include "reshard/reshard.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* No word begins with another one that stands below it. */
static const struct {
    const char *library, *command;
} words[] = {
    { "reshard_open_options.format", "--format" },
    { "reshard_open_options.iteration", "--iteration" },
    { "reshard_open_options.limits", "--limit" },
    { "reshard_open_options.follow_links", "--follow-links" },
    { "reshard_open_options.lenient", "--lenient" },
    { "reshard_run_options.memory_bytes", "--memory" },
    { "reshard_run_options.threads", "--threads" },
    { "reshard_run_options.io", "--io" },
    { "reshard_map_options.texts", "--map" },
    { "reshard_map_options.rules", "--rules" },
    { "reshard_map_options.strict", "--strict-aoa" },
    { "reshard_map_options.config", "--config" },
    { "reshard_map_options.constants", "--set" },
    { "reshard_convert_options.to", "--to" },
    { "reshard_convert_options.like", "--like" },
    { "reshard_convert_options.layout", "--layout" },
    { "reshard_convert_options.include", "--include" },
    { "reshard_convert_options.exclude", "--exclude" },
    { "reshard_convert_options.dtypes", "--dtype" },
    { "reshard_convert_options.strip_prefix", "--strip-prefix" },
    { "reshard_convert_options.renames", "--rename" },
    { "reshard_convert_options.format_options", "-o" },
    { "reshard_convert_options.max_shard_bytes", "--max-shard-size" },
    { "reshard_convert_options.wrap", "--wrap" },
    { "reshard_convert_options.drop_items", "--items drop" },
    { "reshard_convert_options.verify", "--verify" },
    { "reshard_convert_options.missing", "--missing" },
    { "reshard_convert_options.overwrite", "--overwrite" },
    { "reshard_convert_options.part", "--part" },
    { "reshard_convert_options.no_space_check", "--no-space-check" },
    { "reshard_convert_options.checksum", "--checksum" },
    { "reshard_salvage_options.like", "--like" },
    { "reshard_salvage_options.to", "--to" },
    { "reshard_open() of ", "reshard inspect " },
    { "reshard_format_at()", "'reshard formats'" },
    { "reshard_limit_at()", "'reshard formats --limits'" },
    { "reshard_commit()", "'reshard commit'" },
    { "reshard_convert()", "reshard convert" },
    { "reshard_salvage()", "'reshard salvage'" },
    { "reshard_verify()", "reshard verify" },
};

#define WORDS (sizeof(words) / sizeof(words[0]))
#define SHOWN_MAX 65536
#define OPTIONS_OF_FORMAT "reshard_format_option_at("

#define STREAMS 2
#define STREAM_MAX 4096
static char streams[STREAMS][STREAM_MAX];

void call_stream(const char *path)
{
    memmove(streams + 1, streams, (STREAMS - 1) * sizeof(*streams));
    snprintf(streams[0], STREAM_MAX, "%s", path);
}

/* Bytes of the path of a stream that the text begins with, and that does not go on there; or 0. */
static size_t stream_size(const char *text)
{
    for (size_t i = 0; i < STREAMS; i++) {
        const size_t size = strlen(streams[i]);
        if (size && strncmp(text, streams[i], size) == 0 && !(text[size] >= '0' && text[size] <= '9'))
            return size;
    }
    return 0;
}

static bool has_words(const char *text)
{
    bool has = strstr(text, "reshard_") != NULL;
    for (size_t i = 0; i < STREAMS && !has; i++)
        has = streams[i][0] && strstr(text, streams[i]);
    return has;
}

/* Writes what the text begins with in the command's words; the bytes of it, or 0 if that is no word of the library. */
static size_t write_word(FILE *out, const char *text)
{
    const char *name = text + strlen(OPTIONS_OF_FORMAT), *end;
    const size_t stream = stream_size(text);
    if (stream) {
        putc('-', out);
        return stream;
    }
    if (strncmp(text, OPTIONS_OF_FORMAT, strlen(OPTIONS_OF_FORMAT)) == 0 && (end = strchr(name, ')')) != NULL) {
        fprintf(out, "'reshard formats %.*s'", (int)(end - name), name);
        return (size_t)(end + 1 - text);
    }
    for (size_t i = 0; i < WORDS; i++) {
        size_t size = strlen(words[i].library);
        if (strncmp(text, words[i].library, size) == 0) {
            fputs(words[i].command, out);
            return size;
        }
    }
    return 0;
}

const char *command_words(const char *text)
{
    static char *last;
    size_t size;
    if (!has_words(text))
        return text;
    free(last);
    last = NULL;
    FILE *out = open_memstream(&last, &size);
    for (const char *at = text; out && *at;) {
        size_t taken = write_word(out, at);
        if (!taken)
            putc(*at++, out);
        at += taken;
    }
    if (out)
        fclose(out);
    return last ? last : text;
}

const char *shown_path(const char *path)
{
    static char last[SHOWN_MAX]; /* nobody would give a block back when the command ends */
    if (!strstr(path, "://"))
        return command_words(path);
    char *shown = reshard_path_shown(path);
    if (!shown)
        return "(no memory for its name)";
    snprintf(last, sizeof(last), "%s", shown);
    reshard_free(shown);
    return command_words(last);
}
