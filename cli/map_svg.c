/* SPDX-License-Identifier: Apache-2.0 */
/* Layout maps as a picture without scripts. */
#include "page.h"

#include "output.h"

#include <stdlib.h>
#include <string.h>

#define ROW_HEIGHT 22
#define HEAD_HEIGHT 96 /* of a map: its name, what it is, and the labels of columns */
#define LEFT 16
#define PIECES_MAX 512   /* of a row, drawn each */
#define LETTER 7.3     /* width of a monospaced letter */

struct svg_size {
    double cell, grid; /* width of a column; where the columns begin */
    double width, height;
};

static const char svg_style[] =
    "svg{color-scheme:light dark;font:12px system-ui,'DejaVu Sans',sans-serif}.g{fill:#fbfbfa}.h{font-size:16px;font-weight:600}"
    ".m{font-family:ui-monospace,'DejaVu Sans Mono',monospace}text{fill:#1c1d1f}.s{fill:#55595f}.f{fill:none;stroke:#d6d8dc}"
    ".k0{fill:#8b929c}.k1{fill:#0072b2}.k2{fill:#d98a00}.k3{fill:#009e73}.k4{fill:#b3558c}.k5{fill:#3f9bd8}.k6{fill:#7d5a2b}"
    ".l{fill:#fde3e1;stroke:#c62828}.o{fill:none;stroke:#c62828;stroke-width:2}"
    ".b{fill:#c62828}.c{fill:url(#copies)}#copies path{stroke:#fbfbfa}"
    "@media(prefers-color-scheme:dark){.g{fill:#16181b}text{fill:#e9eaec}.s{fill:#adb3bb}.f{stroke:#3a3f46}"
    ".k0{fill:#868d97}.k1{fill:#4ba3dc}.k2{fill:#f0ad3d}.k3{fill:#35c79b}.k4{fill:#dc8fbb}.k5{fill:#8ccbf5}.k6{fill:#c49a62}"
    ".l{fill:#4a2422;stroke:#ff7b72}.o{stroke:#ff7b72}.b{fill:#ff7b72}#copies path{stroke:#16181b}}";

static void svg_text(FILE *out, double x, double y, const char *class, const char *text, size_t size)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    xml_text(out, text, size);
    fputs("</text>", out);
}

static void svg_rect(FILE *out, double x, double y, double width, double height, const char *class)
{
    fprintf(out, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>", x, y, width, height, class);
}

/* A box of fractions of a column's cell. */
static void svg_part(FILE *out, const struct svg_size *size, uint32_t column, const struct map_cell *part, double y, const char *class)
{
    double x = size->grid + column * size->cell + 1, w = size->cell - 3, h = ROW_HEIGHT - 5;
    double wide = (part->right - part->left) * w, tall = (part->bottom - part->top) * h;
    svg_rect(out, x + part->left * w, y + part->top * h, wide < 2 ? 2 : wide, tall < 2 ? 2 : tall, class);
}

/* Each piece, or, of very many, what a column's pieces span. */
static void svg_pieces(FILE *out, const struct layout_map *map, const struct map_row *row, const struct svg_size *size, double y)
{
    static const char *const classes[7] = { "k0", "k1", "k2", "k3", "k4", "k5", "k6" };
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    struct map_cell part;
    bool is_single = row->chunk_count <= PIECES_MAX;
    for (size_t i = 0; i < (is_single ? row->chunk_count : row->cell_count); i++) {
        uint32_t column = is_single ? 0 : row->cells[i].column;
        part = row->cells[is_single ? 0 : i];
        if (is_single) {
            reshard_chunk_at(map->checkpoint, row->tensors[0], i, &chunk);
            column = layout_map_column(map, &chunk);
            map_piece_span(map, row, &chunk, &part);
        }
        svg_part(out, size, column, &part, y, classes[map_row_colour(row)]);
        if (is_single ? chunk.is_replica : part.copies > 0)
            svg_part(out, size, column, &part, y, "c");
    }
}

static void svg_frames(FILE *out, const struct map_row *row, const struct svg_size *size, double y, const char *class)
{
    for (size_t i = 0; i < row->cell_count; i++)
        svg_rect(out, size->grid + row->cells[i].column * size->cell + 1, y, size->cell - 3, ROW_HEIGHT - 5, class);
}

static void svg_row_words(FILE *out, const struct map_row *row, const reshard_tensor *tensor, double x, double y)
{
    char cut[64], bytes[32], *line = NULL;
    size_t size = 0;
    FILE *text = open_memstream(&line, &size);
    if (!text)
        return;
    fprintf(text, "%s ", tensor->dtype);
    print_shape(text, tensor->shape, tensor->rank);
    if (row->tensor_count > 1)
        fprintf(text, " ×%zu", row->tensor_count);
    fprintf(text, ", %s, %s%s", human_bytes(row->bytes, bytes), map_row_cut(row, cut),
            row->missing ? ", gap" : row->doubled ? ", overlap" : "");
    fclose(text);
    svg_text(out, x, y, row->missing || row->doubled ? "b" : "s", line, size);
    free(line);
}

static void svg_row(FILE *out, const struct layout_map *map, const struct map_row *row, const struct svg_size *size, double y)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    size_t pattern_size = 0;
    char *pattern = map_row_pattern(map, row, &pattern_size);
    reshard_tensor_at(map->checkpoint, row->tensors[0], &tensor);
    svg_text(out, LEFT, y + 13, "m", pattern ? pattern : tensor.key.data, pattern ? pattern_size : tensor.key.size);
    free(pattern);
    if (row->missing)
        svg_frames(out, row, size, y, "l");
    svg_pieces(out, map, row, size, y);
    svg_frames(out, row, size, y, row->doubled ? "o" : "f");
    svg_row_words(out, row, &tensor, size->grid + (double)map->column_count * size->cell + 10, y + 13);
}

static void svg_columns(FILE *out, const struct layout_map *map, const struct svg_size *size, double y)
{
    for (size_t i = 0; i < map->column_count; i++) {
        const char *label = map->columns[i].label;
        size_t length = strlen(label), shown = length > 10 ? 10 : length;
        bool is_turned = (double)length * 6.6 > size->cell - 2;
        double x = size->grid + ((double)i + 0.5) * size->cell;
        while (shown < length && shown && ((unsigned char)label[length - shown] & 0xC0) == 0x80)
            shown--;
        fprintf(out, is_turned ? "<text class=\"s\" transform=\"translate(%.1f %.1f) rotate(-50)\"><title>"
                               : "<text class=\"s\" text-anchor=\"middle\" transform=\"translate(%.1f %.1f)\"><title>",
                x, y);
        xml_text(out, map->columns[i].title, strlen(map->columns[i].title));
        fputs("</title>", out);
        xml_text(out, label + length - shown, shown);
        fputs("</text>", out);
    }
}

static void svg_map(FILE *out, const struct layout_map *map, const char *name, const struct svg_size *size, double y)
{
    char *line = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&line, &length);
    svg_text(out, LEFT, y + 20, "h", name, strlen(name));
    if (text) {
        map_summary(text, map);
        fclose(text);
        svg_text(out, LEFT, y + 40, "s", line, length);
    }
    free(line);
    svg_columns(out, map, size, y + HEAD_HEIGHT - 6);
    for (size_t i = 0; i < map->row_count; i++)
        svg_row(out, map, &map->rows[i], size, y + HEAD_HEIGHT + (double)i * ROW_HEIGHT);
}

/* Which colours and marks stand for what, of those that occur. */
static void svg_legend(FILE *out, const struct layout_map *const *maps, size_t count, double y)
{
    static const char *const classes[9] = { "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k0", "l" };
    bool seen[9] = { false };
    double x = LEFT;
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < maps[i]->row_count; j++)
            seen[map_row_colour(&maps[i]->rows[j])] = true;
        seen[7] |= maps[i]->replica_count != 0;
        seen[8] |= maps[i]->gap_count != 0;
    }
    for (int i = 0; i < 9; i++) {
        const char *word = i < 7 ? map_colour_names[i] : i == 7 ? "copy (replica)" : "nothing holds it";
        if (!seen[i])
            continue;
        svg_rect(out, x, y, 24, 14, classes[i]);
        if (i == 7)
            svg_rect(out, x, y, 24, 14, "c");
        svg_text(out, x + 30, y + 11.5, "s", word, strlen(word));
        x += 54 + 6.6 * (double)strlen(word);
    }
}

static void svg_measure(const struct layout_map *map, struct svg_size *size)
{
    double longest = 0, cell = 700.0 / (double)(map->column_count ? map->column_count : 1);
    for (size_t i = 0; i < map->row_count; i++) {
        size_t length = 0;
        free(map_row_pattern(map, &map->rows[i], &length));
        longest = (double)length > longest ? (double)length : longest;
    }
    size->cell = cell > 40 ? 40 : cell < 14 ? 14 : cell;
    size->grid = LEFT + longest * LETTER + 14;
    double width = size->grid + (double)map->column_count * size->cell + 380;
    size->width = width > size->width ? width : size->width;
}

void maps_svg(FILE *out, const char *title, const struct layout_map *const *maps, const char *const *names, size_t count)
{
    struct svg_size size = { .height = 70 }, one;
    double y = 70;
    for (size_t i = 0; i < count; i++) {
        svg_measure(maps[i], &size);
        size.height += HEAD_HEIGHT + 24 + (double)maps[i]->row_count * ROW_HEIGHT;
    }
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" role=\"img\"><title>",
            size.width, size.height, size.width, size.height);
    xml_text(out, title, strlen(title));
    fprintf(out, "</title><style>%s</style><defs><pattern id=\"copies\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
                 "patternTransform=\"rotate(45)\"><path d=\"M0 0v5\" stroke-width=\"4\"/></pattern></defs>",
            svg_style);
    svg_rect(out, 0, 0, size.width, size.height, "g");
    svg_text(out, LEFT, 28, "h", title, strlen(title));
    svg_legend(out, maps, count, 44);
    for (size_t i = 0; i < count; i++) {
        one = (struct svg_size){ 0 };
        svg_measure(maps[i], &one);
        svg_map(out, maps[i], names[i], &one, y);
        y += HEAD_HEIGHT + 24 + (double)maps[i]->row_count * ROW_HEIGHT;
    }
    fputs("</svg>\n", out);
}
