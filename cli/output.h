/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs print: errors, JSON, tables for people, lines for scripts, and progress. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include "options.h"

/* Prints an error as the contract says and returns the exit status. */
int print_error(const struct options *options, reshard_status status, const reshard_error *err);

/* JSON pieces on standard output. */
void json_string(FILE *out, const char *data, size_t size);
void json_text(FILE *out, const char *text);
void json_ints(FILE *out, const int64_t *values, int count);

/* Bytes from a checkpoint for a terminal or a line: control characters and invalid UTF-8 as \xNN. */
void print_escaped(FILE *out, const char *data, size_t size);

/* "[7,5]" */
void print_shape(FILE *out, const int64_t *shape, int rank);

/* "1.5 GB" into out. */
const char *human_bytes(uint64_t bytes, char out[32]);

/* Whether standard output is a terminal that people look at, and whether to colour it. */
bool is_terminal(void);
const char *colour(const struct options *options, const char *code); /* "" unless coloured */

/* Aligned columns on a terminal, tab-separated otherwise. Cells are copied; flush prints them. */
struct table {
    char **cells;
    size_t count, capacity, columns;
    bool failed;
};
void table_add(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_add_escaped(struct table *table, const char *data, size_t size);
void table_flush(struct table *table, FILE *out);

/* Options of a run with a progress display on standard error; interrupted runs are cancelled. */
struct progress {
    const struct options *options;
    const char *what;
    double started, shown;
    bool drawn;
};
reshard_run_options progress_start(struct progress *progress, const struct options *options, const char *what);
void progress_end(struct progress *progress);

/* Set by SIGINT and SIGTERM. */
bool was_interrupted(void);
void install_signals(void);

#endif
