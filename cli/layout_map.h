/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout map: where the tensors of a checkpoint lie. Rows are tensors, those of layers folded that are stored alike; columns are the
 * ranks that wrote them, or files; a cell says which part of the row's tensors the column holds. Made of metadata alone.
 */
#ifndef CLI_LAYOUT_MAP_H
#define CLI_LAYOUT_MAP_H

#include "key_numbers.h"

#include <stdbool.h>

#define MAP_COLUMNS_MAX 48 /* more ranks or files share columns */
#define MAP_ROWS_MAX 600   /* above, layers are folded however they are stored */

struct map_column {
    char *label;  /* "3", "0–15", "00001-of-00003" */
    char *title;  /* "rank 3", the name of a file */
    uint64_t bytes;
};

/* What a column holds of the tensors of a row. */
struct map_cell {
    uint32_t column;
    uint64_t pieces, copies, bytes; /* of the row's first tensor; copies are replicas */
    double top, bottom, left, right; /* the part of the picture's two axes that they span, 0 to 1 */
};

enum { MAP_CUT_FLAT = 63 }; /* bit of map_row.cuts: row-major runs, not boxes */

struct map_row {
    size_t *tensors;        /* in order */
    size_t tensor_count, chunk_count, replica_count; /* chunks of one tensor */
    uint64_t bytes;         /* of all tensors */
    uint64_t cuts;          /* bit i: axis i, at most 62, is cut */
    int vertical, horizontal; /* axes that are drawn; -1: none */
    uint64_t missing;       /* elements of the first tensor that no chunk holds */
    uint64_t doubled;       /* elements more than it has that its chunks hold: some overlap */
    struct map_cell *cells; /* by column */
    size_t cell_count;
};

/* A file by the address of its name, and where it is drawn. */
struct map_file {
    const char *name;
    uint32_t number, column;
};

struct layout_map {
    const reshard_checkpoint *checkpoint;
    bool is_by_rank;
    struct map_column *columns;
    size_t column_count, units, units_per_column; /* units: ranks or files */
    struct map_file *files; /* sorted by address of their names */
    size_t file_count;
    struct map_row *rows;
    size_t row_count, rows_left_out;
    size_t *row_tensors;     /* of all rows */
    size_t *order;           /* tensors, as people sort them */
    uint64_t bytes, chunk_count, replica_count, gap_count, overlap_count; /* tensors with gaps, and with overlaps */
    bool is_damaged;         /* its warnings tell of gaps or overlaps */
    bool is_folded_anyhow;   /* rows hold tensors that are stored in different ways: the cells are those of the first */
};

/* wants_files: columns are files even where ranks are known. False: no memory. Release it in either case. */
bool layout_map_make(const reshard_checkpoint *checkpoint, bool wants_files, struct layout_map *out);
void layout_map_release(struct layout_map *map);

/* map_columns.c: the columns. False: no memory. */
bool map_columns_make(struct layout_map *map, bool wants_files);

/* The column of a chunk, and the number of its file. */
uint32_t layout_map_column(const struct layout_map *map, const reshard_chunk *chunk);
uint32_t layout_map_file(const struct layout_map *map, const reshard_chunk *chunk);

/* Sets the part of the picture that a piece of a row's first tensor spans: top, bottom, left, right. */
void map_piece_span(const struct layout_map *map, const struct map_row *row, const reshard_chunk *chunk, struct map_cell *out);

/* "axis 0 in 8", "whole", "runs in 4": how a row's tensors are cut. Returns out. */
const char *map_row_cut(const struct map_row *row, char out[64]);

/* The number of a colour: 0 whole, 1 to 3 axes 0 to 2, 4 a later axis, 5 several axes, 6 runs. */
int map_row_colour(const struct map_row *row);
extern const char *const map_colour_names[7];

/* The row's keys as a pattern, "model.layers.{0..31}.weight"; malloc'd, *size bytes; NULL: no memory. */
char *map_row_pattern(const struct layout_map *map, const struct map_row *row, size_t *size);

#endif
