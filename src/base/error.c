/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include "base/str.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC int reshard_status_exit(reshard_status status)
{
    switch (status) {
    case RESHARD_ERR_MEMORY:
        return 3;
    case RESHARD_ERR_CANCELLED:
        return 130;
    default:
        return (int)status;
    }
}

PUBLIC const char *reshard_status_name(reshard_status status)
{
    switch (status) {
    case RESHARD_OK:
        return "done";
    case RESHARD_DIFFERS:
        return "differs";
    case RESHARD_ERR_USAGE:
        return "wrong usage";
    case RESHARD_ERR_IO:
        return "input/output error";
    case RESHARD_ERR_FORMAT:
        return "malformed input";
    case RESHARD_ERR_UNSUPPORTED:
        return "not supported";
    case RESHARD_ERR_LIMIT:
        return "limit reached";
    case RESHARD_ERR_MEMORY:
        return "out of memory";
    case RESHARD_ERR_CANCELLED:
        return "cancelled";
    }
    return "unknown status";
}

/* Writes as many whole characters of s as fit, and a NUL; returns the number of bytes before it. room is at least 1. */
static size_t put_escaped(char *out, size_t room, struct str s)
{
    static const char hex[] = "0123456789abcdef";
    size_t used = 0;
    for (size_t i = 0; i < s.size;) {
        size_t size = str_printable_char(s, i);
        uint8_t c = (uint8_t)s.data[i];
        char escape[4] = { '\\', 'x', hex[c >> 4], hex[c & 15] };
        size_t wanted = size ? size : sizeof(escape);
        if (wanted >= room - used)
            break;
        memcpy(out + used, size ? s.data + i : escape, wanted);
        used += wanted;
        i += size ? size : 1;
    }
    out[used] = '\0';
    return used;
}

/* The formatted text escaped into out. What vsnprintf cuts in the middle of a character is left away. */
PRINTF_LIKE(3, 0) static size_t put_format(char *out, size_t room, const char *format, va_list args)
{
    char text[2048];
    int wanted = vsnprintf(text, sizeof(text), format, args);
    if (wanted < 0) {
        out[0] = '\0';
        return 0;
    }
    struct str s = { text, (size_t)wanted };
    if (s.size >= sizeof(text)) {
        s.size = sizeof(text) - 1;
        size_t last = s.size;
        while (last > s.size - 4 && ((uint8_t)text[last - 1] & 0xC0) == 0x80)
            last--;
        if ((uint8_t)text[last - 1] >= 0xC0 && !str_utf8_char(s, last - 1, false))
            s.size = last - 1;
    }
    return put_escaped(out, room, s);
}

static void record_start(reshard_error *err, reshard_status code)
{
    err->code = code;
    err->sys_errno = 0;
    err->offset = -1;
    err->line = 0;
    err->column = 0;
    err->object[0] = '\0';
    err->message[0] = '\0';
    err->hint[0] = '\0';
}

reshard_status error_set(reshard_error *err, reshard_status code, const char *format, ...)
{
    if (!err)
        return code;
    record_start(err, code);
    va_list args;
    va_start(args, format);
    put_format(err->message, sizeof(err->message), format, args);
    va_end(args);
    return code;
}

reshard_status error_set_at(reshard_error *err, reshard_status code, uint64_t offset, const char *format, ...)
{
    if (!err)
        return code;
    record_start(err, code);
    err->offset = offset > INT64_MAX ? -1 : (int64_t)offset;
    va_list args;
    va_start(args, format);
    put_format(err->message, sizeof(err->message), format, args);
    va_end(args);
    return code;
}

reshard_status error_set_errno(reshard_error *err, const char *format, ...)
{
    int number = errno;
    if (!err)
        return RESHARD_ERR_IO;
    record_start(err, RESHARD_ERR_IO);
    err->sys_errno = number;
    va_list args;
    va_start(args, format);
    size_t used = put_format(err->message, sizeof(err->message), format, args);
    va_end(args);
    char small[128];
    const char *text = strerror_r(number, small, sizeof(small));
    snprintf(err->message + used, sizeof(err->message) - used, ": %s", text);
    return RESHARD_ERR_IO;
}

reshard_status error_set_memory(reshard_error *err)
{
    return error_set(err, RESHARD_ERR_MEMORY, "out of memory");
}

reshard_status error_set_limit(reshard_error *err, const char *limit_name, uint64_t found, uint64_t limit)
{
    error_set(err, RESHARD_ERR_LIMIT, "%s: found %" PRIu64 ", the limit is %" PRIu64, limit_name, found, limit);
    error_hint(err, "raise it with reshard_open_options.limits %s=%" PRIu64, limit_name, found);
    return RESHARD_ERR_LIMIT;
}

/* Drops a character from the end of text that the last cut left incomplete. */
static void trim_cut_character(char *text)
{
    size_t size = strlen(text), last = size;
    while (last && size - last < 3 && ((uint8_t)text[last - 1] & 0xC0) == 0x80)
        last--;
    if (last && (uint8_t)text[last - 1] >= 0xC0 && !str_utf8_char((struct str){ text, size }, last - 1, false))
        text[last - 1] = '\0';
}

void error_prefix(reshard_error *err, const char *format, ...)
{
    if (!err)
        return;
    char joined[sizeof(err->message)];
    va_list args;
    va_start(args, format);
    size_t used = put_format(joined, sizeof(joined), format, args);
    va_end(args);
    snprintf(joined + used, sizeof(joined) - used, ": %s", err->message);
    trim_cut_character(joined);
    memcpy(err->message, joined, sizeof(joined));
}

void error_object(reshard_error *err, const char *format, ...)
{
    if (!err || err->object[0])
        return;
    va_list args;
    va_start(args, format);
    put_format(err->object, sizeof(err->object), format, args);
    va_end(args);
}

void error_hint(reshard_error *err, const char *format, ...)
{
    if (!err)
        return;
    size_t used = strnlen(err->hint, sizeof(err->hint) - 1);
    if (used && used + 2 < sizeof(err->hint))
        err->hint[used++] = '\n';
    va_list args;
    va_start(args, format);
    put_format(err->hint + used, sizeof(err->hint) - used, format, args);
    va_end(args);
}

void error_shift(reshard_error *err, uint64_t delta)
{
    int64_t shifted;
    if (err && err->offset >= 0 && !__builtin_add_overflow(err->offset, delta, &shifted))
        err->offset = shifted;
}
