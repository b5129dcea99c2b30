/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Filling in error records. The lowest layer sets the error; each layer above prefixes where it was.
 *
 * All functions return the code they set, so that a failure reads `return error_set(err, ...)`. err may be NULL: then
 * only the code is returned. Messages longer than the record are cut. Control characters and invalid UTF-8 in the
 * formatted text are escaped (\xNN), because names from files end up in terminals.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include "reshard/error.h"

#include <stdarg.h>
#include <stddef.h>

#define PRINTF_LIKE(format_index, args_index) __attribute__((format(printf, format_index, args_index)))

reshard_status error_set(reshard_error *err, reshard_status code, const char *format, ...) PRINTF_LIKE(3, 4);

/* As error_set, with the byte offset in the object that is being read. */
reshard_status error_set_at(reshard_error *err, reshard_status code, uint64_t offset, const char *format, ...) PRINTF_LIKE(4, 5);

/* RESHARD_ERR_IO with errno's value and text appended ("...: No such file or directory"). Reads errno on entry. */
reshard_status error_set_errno(reshard_error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* RESHARD_ERR_MEMORY. */
reshard_status error_set_memory(reshard_error *err);

/* RESHARD_ERR_LIMIT for the named limit (base/limits.h), with the hint how to raise it. */
reshard_status error_set_limit(reshard_error *err, const char *limit_name, uint64_t found, uint64_t limit);

/* Puts "text: " before the message. The first object named (error_object) stays. */
void error_prefix(reshard_error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* Names the file or tensor concerned, unless one is named already. */
void error_object(reshard_error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* Adds a line of advice. */
void error_hint(reshard_error *err, const char *format, ...) PRINTF_LIKE(2, 3);

/* Adds delta to the offset, if there is one: the message came from a part that starts there. */
void error_shift(reshard_error *err, uint64_t delta);

#endif
