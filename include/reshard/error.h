/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: a status code, and an optional record owned by the caller that says what happened where.
 *
 * Every function that can fail returns a reshard_status; where it takes a reshard_error pointer last, that may be NULL. The record is
 * written only on failure. There is no global state, and the library never prints and never aborts. Messages and hints name functions of
 * the library and members of its structs ("reshard_open_options.lenient"), never options of the command.
 *
 * Threads. Calls that run at once have records of their own. A record is good until the next call that is handed it.
 */
#ifndef RESHARD_ERROR_H
#define RESHARD_ERROR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values double as exit statuses of the command, see reshard_status_exit(). */
typedef enum reshard_status {
    RESHARD_OK = 0,
    RESHARD_DIFFERS = 1,         /* a comparison or a check gave a negative answer */
    RESHARD_ERR_USAGE = 2,       /* the caller's arguments are wrong */
    RESHARD_ERR_IO = 3,          /* the operating system refused; see sys_errno */
    RESHARD_ERR_FORMAT = 4,      /* input is malformed, corrupt or hostile */
    RESHARD_ERR_UNSUPPORTED = 5, /* valid, but not supported; the message or hint says what would work */
    RESHARD_ERR_LIMIT = 6,       /* a limit was reached; the hint says which and how to raise it */
    RESHARD_ERR_MEMORY = 7,      /* an allocation failed */
    RESHARD_ERR_CANCELLED = 8    /* the caller's callback asked to stop */
} reshard_status;

/* A record begins as RESHARD_ERROR_INIT or zeroed. */
typedef struct reshard_error {
    size_t struct_size;   /* sizeof(reshard_error); 0: that of version 0.2 */
    int64_t offset;       /* byte offset in object, or -1 */
    reshard_status code;
    int sys_errno;        /* errno of the failing call, or 0 */
    int line, column;     /* 1-based position in a text, or 0 */
    char object[512];     /* file or tensor concerned, or "" */
    char message[1024];   /* one line: where it was, then found and expected; UTF-8, control characters escaped */
    char hint[1024];      /* what to do about it, or ""; lines separated by '\n' */
} reshard_error;
#define RESHARD_ERROR_INIT { sizeof(reshard_error), -1, RESHARD_OK, 0, 0, 0, "", "", "" }

/* Exit status of the command for a status: 0-6 as they are, 3 for memory, 130 for cancelled. */
int reshard_status_exit(reshard_status status);

/* Name of a status, for example "malformed input". Static storage. */
const char *reshard_status_name(reshard_status status);

#ifdef __cplusplus
}
#endif

#endif
