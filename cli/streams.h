/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "-" in the place of a checkpoint: standard input or output. Checkpoints are not read from front to end, and not written so either, thus
 * what comes through a pipe lies in a file without a name meanwhile, where TMPDIR says (/tmp), and takes at most nine tenths of what is
 * free there; a file that standard input leads to is read where it is.
 */
#ifndef CLI_STREAMS_H
#define CLI_STREAMS_H

#include "options.h"

#define STREAM_PATH_MAX 64

/* The path to open for what standard input holds, valid as long as the process. False: said why not. */
bool stream_input(const struct options *options, char path[STREAM_PATH_MAX], int *exit_status);

/* A new folder with room for one name behind it, malloc'd with "/checkpoint" at the end. NULL: said why not. */
char *stream_output_begin(const struct options *options, int *exit_status);

/* Writes the file to standard output if exit_status is 0; takes file, folder and path away. Returns the exit status. */
int stream_output_end(const struct options *options, char *path, int exit_status);

#endif
