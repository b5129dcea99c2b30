/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs print: JSON, names from checkpoints made safe for terminals, sizes, colours. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "failure.h"
#include "options.h"

/* JSON pieces. Lone surrogates are \udXXX; bytes that are no UTF-8 are \ufffd each. */
void json_string(FILE *out, const char *data, size_t size);
void json_text(FILE *out, const char *text);
void json_ints(FILE *out, const int64_t *values, int count);

/* A document that is printed whole or not at all: in between standard output is memory. */
void document_begin(void);
void document_end(bool is_whole);

/* ,"path":["a",0,"b"] of a tensor whose key is ambiguous. */
void json_path(const reshard_checkpoint *checkpoint, size_t tensor);

/* A name from a checkpoint, so that it can be read back: control characters and invalid UTF-8 as \xNN, a backslash as two. */
void print_escaped(FILE *out, const char *data, size_t size);

/* Text in which names are escaped already, or that is for people only: as above, but a backslash stays one. */
void print_text(FILE *out, const char *data, size_t size);

/* A path, as shown_path has it. */
void print_path(FILE *out, const char *path);

/* "[7,5]" */
void print_shape(FILE *out, const int64_t *shape, int rank);

/* "1.5 GB" into out. */
const char *human_bytes(uint64_t bytes, char out[32]);

/* Members of an object: "warnings", the texts of a checkpoint's; and "lost", keys of tensors of which only the name is left, if there are
 * any. */
void json_warnings(const reshard_checkpoint *checkpoint);

/* What is odd about a checkpoint, damaged or left out, on standard error: ten lines, or all with --verbose, none with --quiet. */
void tell_warnings(const struct options *options, const reshard_checkpoint *checkpoint);

/* Before anything is written: each line on standard error is one call to the system, so that those of several processes do not mix. */
void output_begin(void);

/* Whether standard output is a terminal that people look at, and whether to colour it. Not where it is relayed: some mpirun give a rank a
 * terminal whatever their own output is. */
bool is_terminal(void);
void output_is_relayed(void);
const char *colour(const struct options *options, const char *code); /* "" unless coloured */

/*
 * Whether nobody reads standard output any more: writing failed because the pipe's other end is closed. Other failures are reported when
 * the command ends. A failure that leaves nothing to flush must be noted, with the errno that it had.
 */
bool output_is_gone(void);
void output_note_failure(int number);
int output_failure(void);

#endif
