/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables on standard output: aligned columns on a terminal, tab-separated lines otherwise.
 *
 * A terminal gets its rows a block at a time, so that a long table starts at once; columns only grow wider. Everybody else gets each
 * cell as it is written. A table starts as { .columns = n }.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include <stddef.h>
#include <stdio.h>

#define TABLE_COLUMNS_MAX 16
#define TABLE_BLOCK_CELLS 1024

struct table {
    size_t columns, count; /* cells begun */
    FILE *text;            /* of a block; NULL where cells go straight out */
    char *block;
    size_t block_size, ends[TABLE_BLOCK_CELLS], widths[TABLE_COLUMNS_MAX];
};

/* Begins the next cell: what is written to the stream until the next call is its text. */
FILE *table_cell(struct table *table);

/* Ends the table. */
void table_end(struct table *table);

#endif
