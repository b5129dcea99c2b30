/* SPDX-License-Identifier: Apache-2.0 */
/* Layout maps as the data of a page. A page has a budget: of 10^6 pieces it holds a fair share of each row, so that it stays small. */
#include "page.h"

#include "output.h"

#include <stdlib.h>
#include <string.h>

#define DETAIL_PIECES 14000   /* pieces with their places */
#define DETAIL_TENSORS 20000  /* names of tensors */

static uint64_t map_json_minimum(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How many pieces of each tensor may be told so that the first tensors of all rows fit in half of the budget. */
static uint64_t fair_share(const struct layout_map *map)
{
    uint64_t share = DETAIL_PIECES, sum;
    do {
        sum = 0;
        for (size_t i = 0; i < map->row_count; i++)
            sum += map_json_minimum(map->rows[i].chunk_count, share);
        share = sum > DETAIL_PIECES / 2 ? share * 3 / 4 : share;
    } while (sum > DETAIL_PIECES / 2 && share > 1);
    return share;
}

/* What the pages of a map have used of their budget, and which files they name. */
struct detail {
    const struct layout_map *map;
    uint64_t share, pieces, tensors;
    uint32_t *file_numbers; /* by file: its number in the page + 1 */
    uint32_t *files, file_count;
};

static uint32_t detail_file(struct detail *detail, uint32_t file)
{
    if (file >= detail->map->file_count)
        return 0;
    if (!detail->file_numbers[file]) {
        detail->files[detail->file_count++] = file;
        detail->file_numbers[file] = detail->file_count;
    }
    return detail->file_numbers[file] - 1;
}

static void piece_numbers(FILE *out, const int64_t *numbers, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(out, ",%lld", (long long)numbers[i]);
}

static void piece_json(FILE *out, struct detail *detail, size_t tensor, size_t index, int rank)
{
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_chunk_at(detail->map->checkpoint, tensor, index, &chunk);
    fprintf(out, "%s[%u,%lld,%llu,%llu,%d", index ? "," : "", detail_file(detail, layout_map_file(detail->map, &chunk)),
            (long long)chunk.writer, (unsigned long long)chunk.offset, (unsigned long long)chunk.bytes,
            (chunk.is_replica != 0) | (chunk.is_resolved ? 0 : 2));
    piece_numbers(out, chunk.start, rank);
    piece_numbers(out, chunk.extent, rank);
    if (chunk.flat_count >= 0)
        fprintf(out, ",%lld,%lld", (long long)chunk.flat_begin, (long long)chunk.flat_count);
    fprintf(out, ",%u]", layout_map_column(detail->map, &chunk));
}

/* The pieces of the row's tensors: of the first as many as its share, of the others while the budget lasts. */
static void row_pieces_json(FILE *out, struct detail *detail, const struct map_row *row, size_t tensors, int rank)
{
    for (size_t i = 0; i < tensors; i++) {
        uint64_t count = map_json_minimum(row->chunk_count, detail->share);
        fputs(i ? "," : "", out);
        if (i && detail->pieces + count > DETAIL_PIECES) {
            fputs("null", out);
            continue;
        }
        detail->pieces += count;
        putc('[', out);
        for (size_t j = 0; j < count; j++)
            piece_json(out, detail, row->tensors[i], j, rank);
        putc(']', out);
    }
}

/* The key between its numbers, and the numbers of each tensor. */
static void row_keys_json(FILE *out, const struct layout_map *map, const struct map_row *row, size_t tensors)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    struct key_numbers numbers;
    size_t from = 0;
    reshard_tensor_at(map->checkpoint, row->tensors[0], &tensor);
    key_numbers_find(tensor.key, &numbers);
    fputs("\"p\":[", out);
    for (size_t i = 0; i <= numbers.count; i++) {
        size_t end = i < numbers.count ? numbers.begin[i] : tensor.key.size;
        fputs(i ? "," : "", out);
        json_string(out, tensor.key.data + from, end - from);
        from = i < numbers.count ? numbers.end[i] : end;
    }
    fputs("],\"t\":[", out);
    for (size_t i = 0; i < tensors; i++) {
        reshard_tensor_at(map->checkpoint, row->tensors[i], &tensor);
        key_numbers_find(tensor.key, &numbers);
        fputs(i ? ",[" : "[", out);
        for (size_t j = 0; j < numbers.count; j++)
            fprintf(out, "%s%lld", j ? "," : "", (long long)numbers.value[j]);
        putc(']', out);
    }
    putc(']', out);
}

static void row_cells_json(FILE *out, const struct map_row *row)
{
    fputs(",\"c\":[", out);
    for (size_t i = 0; i < row->cell_count; i++) {
        const struct map_cell *cell = &row->cells[i];
        fprintf(out, "%s[%u,%llu,%llu,%llu,%.4g,%.4g,%.4g,%.4g]", i ? "," : "", cell->column, (unsigned long long)cell->pieces,
                (unsigned long long)cell->copies, (unsigned long long)cell->bytes, cell->top, cell->bottom, cell->left, cell->right);
    }
    putc(']', out);
}

static void row_json(FILE *out, struct detail *detail, const struct map_row *row)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    char cut[64];
    size_t size = 0, tensors = row->tensor_count;
    char *pattern = map_row_pattern(detail->map, row, &size);
    uint64_t left = detail->tensors < DETAIL_TENSORS ? DETAIL_TENSORS - detail->tensors : 0;
    tensors = left > detail->map->row_count ? (size_t)map_json_minimum(tensors, left / 2 + 1) : 1;
    detail->tensors += tensors;
    reshard_tensor_at(detail->map->checkpoint, row->tensors[0], &tensor);
    fputs("{\"pattern\":", out);
    json_string(out, pattern ? pattern : tensor.key.data, pattern ? size : tensor.key.size);
    free(pattern);
    putc(',', out);
    row_keys_json(out, detail->map, row, tensors);
    fprintf(out, ",\"n\":%zu,\"d\":\"%s\",\"s\":", row->tensor_count, tensor.dtype);
    json_ints(out, tensor.shape, tensor.rank);
    fprintf(out, ",\"b\":%llu,\"k\":%zu,\"r\":%zu,\"x\":%d,\"cut\":\"%s\",\"v\":%d,\"h\":%d,\"m\":%llu,\"o\":%llu",
            (unsigned long long)row->bytes, row->chunk_count, row->replica_count, map_row_colour(row), map_row_cut(row, cut), row->vertical,
            row->horizontal, (unsigned long long)row->missing, (unsigned long long)row->doubled);
    row_cells_json(out, row);
    fputs(",\"q\":[", out);
    row_pieces_json(out, detail, row, tensors, tensor.rank);
    fputs("]}", out);
}

static void columns_json(FILE *out, const struct layout_map *map)
{
    fputs(",\"columns\":[", out);
    for (size_t i = 0; i < map->column_count; i++) {
        fputs(i ? ",[" : "[", out);
        json_string(out, map->columns[i].label, strlen(map->columns[i].label));
        putc(',', out);
        json_string(out, map->columns[i].title, strlen(map->columns[i].title));
        fprintf(out, ",%llu]", (unsigned long long)map->columns[i].bytes);
    }
    putc(']', out);
}

static void detail_files_json(FILE *out, const struct detail *detail)
{
    reshard_file file = RESHARD_FILE_INIT;
    fputs(",\"files\":[", out);
    for (uint32_t i = 0; i < detail->file_count; i++) {
        reshard_file_at(detail->map->checkpoint, detail->files[i], &file);
        fputs(i ? "," : "", out);
        json_string(out, file.name.data, file.name.size);
    }
    putc(']', out);
}

void map_json(FILE *out, const struct layout_map *map, const char *name)
{
    struct detail detail = { .map = map,
                             .share = fair_share(map),
                             .file_numbers = calloc(map->file_count + 1, sizeof(*detail.file_numbers)),
                             .files = calloc(map->file_count + 1, sizeof(*detail.files)) };
    fputs("{\"name\":", out);
    json_text(out, name);
    fputs(",\"format\":", out);
    json_text(out, reshard_checkpoint_format(map->checkpoint));
    fprintf(out, ",\"unit\":\"%s\",\"units\":%zu,\"per\":%zu,\"tensors\":%zu,\"bytes\":%llu,\"chunks\":%llu,"
                 "\"replicas\":%llu,\"gaps\":%llu,\"overlaps\":%llu",
            map->is_by_rank ? "rank" : "file", map->units, map->units_per_column, reshard_tensor_count(map->checkpoint),
            (unsigned long long)map->bytes, (unsigned long long)map->chunk_count, (unsigned long long)map->replica_count,
            (unsigned long long)map->gap_count,
            (unsigned long long)map->overlap_count);
    fprintf(out, ",\"leftOut\":%zu,\"anyhow\":%s", map->rows_left_out, map->is_folded_anyhow ? "true" : "false");
    columns_json(out, map);
    fputs(",\"rows\":[", out);
    for (size_t i = 0; detail.files && detail.file_numbers && i < map->row_count; i++) {
        fputs(i ? "," : "", out);
        row_json(out, &detail, &map->rows[i]);
    }
    putc(']', out);
    detail_files_json(out, &detail);
    putc('}', out);
    free(detail.file_numbers);
    free(detail.files);
}

/* ---- moves ---- */

static int64_t move_column(const struct layout_map *map, reshard_str file, int64_t writer)
{
    reshard_file one = RESHARD_FILE_INIT;
    if (map->is_by_rank)
        return (writer < 0 ? 0 : writer) / (int64_t)map->units_per_column;
    for (size_t i = 0; i < map->file_count; i++) {
        reshard_file_at(map->checkpoint, map->files[i].number, &one);
        if (one.name.size == file.size && memcmp(one.name.data, file.data, file.size) == 0)
            return map->files[i].column == UINT32_MAX ? 0 : map->files[i].column;
    }
    return 0;
}

/* The last name looked up: moves are sorted by file, so that few are looked for. */
struct move_side {
    const struct layout_map *map;
    reshard_str name;
    int64_t writer, column;
};

static int64_t side_column(struct move_side *side, reshard_str file, int64_t writer)
{
    bool is_same = side->name.data && side->writer == writer && side->name.size == file.size &&
                   memcmp(side->name.data, file.data, file.size) == 0;
    if (!is_same)
        *side = (struct move_side){ side->map, file, writer, move_column(side->map, file, writer) };
    return side->column;
}

bool moves_json(FILE *out, const struct layout_map *from, const struct layout_map *to, const reshard_report *report)
{
    reshard_move move = RESHARD_MOVE_INIT;
    size_t width = to->column_count, rows = from->column_count + 1;
    uint64_t *bytes = calloc(width * rows + 1, sizeof(*bytes));
    struct move_side source = { .map = from }, target = { .map = to };
    bool any = false;
    for (size_t i = 0; bytes && i < report->move_count; i++) {
        reshard_report_move_at(report, i, &move);
        size_t row = move.from.size ? (size_t)side_column(&source, move.from, move.from_writer) + 1 : 0;
        bytes[row * width + (size_t)side_column(&target, move.to, move.to_writer)] += move.bytes;
    }
    putc('[', out);
    for (size_t i = 0; bytes && i < width * rows; i++) {
        if (bytes[i])
            fprintf(out, "%s[%lld,%zu,%llu]", any ? "," : "", (long long)(i / width) - 1, i % width, (unsigned long long)bytes[i]);
        any |= bytes[i] != 0;
    }
    putc(']', out);
    free(bytes);
    return bytes != NULL;
}
