/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as the contract has them: one line and hints, or an object with --json, on standard error. */
#ifndef CLI_FAILURE_H
#define CLI_FAILURE_H

#include "options.h"

/* Prints an error of the library and returns the exit status. */
int print_error(const struct options *options, reshard_status status, const reshard_error *err);

/* The same for an error of a mapping text of which all diagnoses are already printed, or, with --json, become a member of the object. */
int print_diagnosed_error(const struct options *options, reshard_status status, const reshard_error *err, const char *diagnoses);

/* The same for an error that the command itself found. The hint may be NULL. */
__attribute__((format(printf, 4, 5))) int print_failure(const struct options *options, reshard_status status, const char *hint,
                                                        const char *format, ...);

/* The same for a run that a signal has ended before its target was there. */
int print_interrupted(const struct options *options, const char *hint);

#endif
