/* SPDX-License-Identifier: Apache-2.0 */
/* Layout maps for terminals: a line a row, a column's cell is a letter or a block. */
#include "page.h"

#include "output.h"

#include <stdlib.h>
#include <string.h>

static const char *const paints[7] = { "\x1b[90m", "\x1b[34m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[36m", "\x1b[31m" };
static const char *const blocks[7] = { "█", "▀", "▌", "▖", "▗", "▘", "▬" };

void map_summary(FILE *out, const struct layout_map *map)
{
    char size[32];
    size_t tensors = reshard_tensor_count(map->checkpoint);
    fprintf(out, "%s · %zu tensor%s, %s · %llu piece%s", reshard_checkpoint_format(map->checkpoint), tensors, tensors == 1 ? "" : "s",
            human_bytes(map->bytes, size), (unsigned long long)map->chunk_count, map->chunk_count == 1 ? "" : "s");
    if (map->replica_count)
        fprintf(out, ", %llu of them copies", (unsigned long long)map->replica_count);
    fprintf(out, " on %zu %s%s", map->units, map->is_by_rank ? "rank" : "file", map->units == 1 ? "" : "s");
    if (map->gap_count)
        fprintf(out, " · %llu not complete", (unsigned long long)map->gap_count);
    if (map->overlap_count)
        fprintf(out, " · %llu with pieces that overlap", (unsigned long long)map->overlap_count);
}

/* Letters, as terminals count them. */
static size_t text_width(const char *text)
{
    size_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

typedef void (*row_print)(FILE *out, const struct layout_map *map, const struct map_row *row);

/* What print writes, as a text; malloc'd, NULL without memory. */
static char *printed(const struct layout_map *map, const struct map_row *row, row_print print)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    print(out, map, row);
    return fclose(out) ? NULL : text;
}

static void row_pattern_print(FILE *out, const struct layout_map *map, const struct map_row *row)
{
    size_t size = 0;
    char *pattern = map_row_pattern(map, row, &size);
    print_escaped(out, pattern ? pattern : "", size);
    free(pattern);
}

static void row_kind_print(FILE *out, const struct layout_map *map, const struct map_row *row)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_tensor_at(map->checkpoint, row->tensors[0], &tensor);
    fprintf(out, "%s ", tensor.dtype);
    print_shape(out, tensor.shape, tensor.rank);
    if (row->tensor_count > 1)
        fprintf(out, " ×%zu", row->tensor_count);
}

static void row_rest_print(FILE *out, const struct layout_map *map, const struct map_row *row)
{
    char cut[64], size[32];
    (void)map;
    fprintf(out, "%9s  %s", human_bytes(row->bytes, size), map_row_cut(row, cut));
    if (row->replica_count)
        fprintf(out, ", %zu cop%s", row->replica_count, row->replica_count == 1 ? "y" : "ies");
    if (row->missing)
        fprintf(out, ", gap: %llu elements missing", (unsigned long long)row->missing);
    if (row->doubled)
        fprintf(out, ", overlap: %llu elements held twice", (unsigned long long)row->doubled);
}

static void row_text(FILE *out, const struct layout_map *map, const struct map_row *row, const size_t widths[2], bool is_coloured)
{
    size_t at = 0;
    int colour = map_row_colour(row);
    char *texts[3] = { printed(map, row, row_pattern_print), printed(map, row, row_kind_print), printed(map, row, row_rest_print) };
    putc(' ', out);
    fputs(is_coloured ? row->missing || row->doubled ? "\x1b[31m" : paints[colour] : "", out);
    for (uint32_t i = 0; i < map->column_count; i++) {
        const struct map_cell *cell = at < row->cell_count && row->cells[at].column == i ? &row->cells[at++] : NULL;
        fputs(!cell ? "·" : cell->pieces ? blocks[colour] : "▒", out);
    }
    fputs(is_coloured ? "\x1b[0m" : "", out);
    for (int i = 0; i < 3; i++) {
        size_t width = texts[i] ? text_width(texts[i]) : 0;
        fprintf(out, "  %s%*s", texts[i] ? texts[i] : "", i < 2 && width < widths[i] ? (int)(widths[i] - width) : 0, "");
        free(texts[i]);
    }
    putc('\n', out);
}

/* How wide keys and kinds are, but for very long ones. */
static void rows_measure(const struct layout_map *map, size_t widths[2])
{
    widths[0] = widths[1] = 0;
    for (size_t i = 0; i < map->row_count; i++) {
        char *texts[2] = { printed(map, &map->rows[i], row_pattern_print), printed(map, &map->rows[i], row_kind_print) };
        for (int j = 0; j < 2; j++) {
            size_t width = texts[j] ? text_width(texts[j]) : 0;
            widths[j] = width > widths[j] && width <= 72 ? width : widths[j];
            free(texts[j]);
        }
    }
}

/* Which marks stand for what, of those that occur. */
static void legend_text(FILE *out, const struct layout_map *map, bool is_coloured)
{
    bool seen[7] = { false }, has_copies = false;
    for (size_t i = 0; i < map->row_count; i++) {
        seen[map_row_colour(&map->rows[i])] = true;
        for (size_t j = 0; j < map->rows[i].cell_count; j++)
            has_copies |= map->rows[i].cells[j].pieces == 0;
    }
    putc(' ', out);
    for (int i = 0; i < 7; i++) {
        if (seen[i])
            fprintf(out, "%s%s%s %s   ", is_coloured ? paints[i] : "", blocks[i], is_coloured && *paints[i] ? "\x1b[0m" : "",
                    map_colour_names[i]);
    }
    fprintf(out, "%s· not here\n", has_copies ? "▒ copies only   " : "");
}

void map_text(FILE *out, const struct layout_map *map, bool is_coloured)
{
    map_summary(out, map);
    fprintf(out, "\n a column is %s%s", map->is_by_rank ? "a rank" : "a file", map->units_per_column > 1 ? " or several" : "");
    if (map->column_count) {
        fputs(": ", out);
        print_escaped(out, map->columns[0].title, strlen(map->columns[0].title));
    }
    if (map->column_count > 1) {
        fputs(" … ", out);
        print_escaped(out, map->columns[map->column_count - 1].title, strlen(map->columns[map->column_count - 1].title));
    }
    putc('\n', out);
    size_t widths[2];
    rows_measure(map, widths);
    legend_text(out, map, is_coloured);
    for (size_t i = 0; i < map->row_count; i++)
        row_text(out, map, &map->rows[i], widths, is_coloured);
    if (map->rows_left_out)
        fprintf(out, " %zu further rows; --include draws a part\n", map->rows_left_out);
}
