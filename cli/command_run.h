/* SPDX-License-Identifier: Apache-2.0 */
/* Running a verb whose options are read. */
#ifndef CLI_COMMAND_RUN_H
#define CLI_COMMAND_RUN_H

#include "options.h"

/* Runs the verb, and writes out what is buffered: the exit status. */
int command_run(struct options *options);

/* The same for output of which there was no command. */
int finish_output(const struct options *options, int status);

#endif
