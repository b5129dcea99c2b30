/* SPDX-License-Identifier: Apache-2.0 */
#include "failure.h"

#include "command_words.h"
#include "output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define HINTS_MAX 3
#define LINE_MAX_BYTES 2048

/* Whether the message already says "byte N" or "offset N". */
static bool names_offset(const char *message, int64_t offset)
{
    static const char *const words[] = { "byte ", "offset " };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (const char *at = message; (at = strstr(at, words[i])) != NULL; at++) {
            char *end;
            if (strtoll(at + strlen(words[i]), &end, 10) == offset && end != at + strlen(words[i]))
                return true;
        }
    }
    return false;
}

/* The error in one line: what the message leaves out of object and offset stands behind it. */
static void compose(reshard_status status, const reshard_error *err, char line[LINE_MAX_BYTES])
{
    const char *message = err->message[0] ? err->message : reshard_status_name(status);
    bool object = err->object[0] && !strstr(message, err->object);
    bool offset = err->code && err->offset >= 0 && !names_offset(message, err->offset);
    int used = snprintf(line, LINE_MAX_BYTES, "reshard: %s", command_words(message));
    if (object || offset)
        used += snprintf(line + used, (size_t)(LINE_MAX_BYTES - used), " (%s%s", object ? err->object : "", object && offset ? ", " : "");
    if (offset)
        used += snprintf(line + used, (size_t)(LINE_MAX_BYTES - used), "byte %lld", (long long)err->offset);
    if (object || offset)
        snprintf(line + used, (size_t)(LINE_MAX_BYTES - used), ")");
}

/* diagnoses: NULL, or the text that goes with them. */
static void print_json(reshard_status status, const reshard_error *err, const char *line, const char *diagnoses)
{
    fprintf(stderr, "{\"schema\":\"reshard-error/1\",\"status\":%d,\"error\":", reshard_status_exit(status));
    json_text(stderr, reshard_status_name(status));
    fputs(",\"message\":", stderr);
    json_text(stderr, err->message[0] ? command_words(err->message) : reshard_status_name(status));
    fputs(",\"line\":", stderr);
    json_text(stderr, line);
    if (err->object[0]) {
        fputs(",\"object\":", stderr);
        json_text(stderr, err->object);
    }
    if (err->code && err->offset >= 0)
        fprintf(stderr, ",\"offset\":%lld", (long long)err->offset);
    if (err->hint[0]) {
        fputs(",\"hint\":", stderr);
        json_text(stderr, command_words(err->hint));
    }
    if (diagnoses) {
        fputs(",\"diagnoses\":", stderr);
        json_text(stderr, diagnoses);
    }
    fputs("}\n", stderr);
}

int print_error(const struct options *options, reshard_status status, const reshard_error *err)
{
    char line[LINE_MAX_BYTES];
    bool had_failed = ferror(stdout) != 0;
    fflush(stdout);
    /* What stopped for want of an output says so once, at the end. */
    if (had_failed && (status == RESHARD_ERR_IO || status == RESHARD_ERR_CANCELLED))
        return reshard_status_exit(RESHARD_ERR_IO);
    compose(status, err, line);
    if (options->json) {
        print_json(status, err, line, NULL);
        return reshard_status_exit(status);
    }
    print_text(stderr, line, strlen(line));
    putc('\n', stderr);
    const char *hint = command_words(err->hint);
    for (int i = 0; i < HINTS_MAX && *hint; i++) {
        size_t size = strcspn(hint, "\n");
        fputs("hint: ", stderr);
        print_text(stderr, hint, size);
        putc('\n', stderr);
        hint += size + (hint[size] == '\n');
    }
    return reshard_status_exit(status);
}

int print_diagnosed_error(const struct options *options, reshard_status status, const reshard_error *err, const char *diagnoses)
{
    char line[LINE_MAX_BYTES];
    compose(status, err, line);
    if (options->json)
        print_json(status, err, line, diagnoses);
    return reshard_status_exit(status);
}

int print_failure(const struct options *options, reshard_status status, const char *hint, const char *format, ...)
{
    reshard_error err = { .code = status, .offset = -1 };
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, sizeof(err.message), format, args);
    va_end(args);
    snprintf(err.hint, sizeof(err.hint), "%s", hint ? hint : "");
    return print_error(options, status, &err);
}

int print_interrupted(const struct options *options, const char *hint)
{
    return print_failure(options, RESHARD_ERR_CANCELLED, hint, "interrupted: '%s' is not written", shown_path(options->paths[1]));
}
