/* SPDX-License-Identifier: Apache-2.0 */
#include "layout_map.h"

#include "natural_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 1024 /* pieces of a tensor whose overlaps are looked for */

/* ---- rows: tensors whose keys differ in numbers only, and that are stored alike ---- */

/* A tensor, and a hash of what it must have in common with the others of its row. */
struct row_entry {
    uint64_t hash;
    size_t place; /* in map->order */
};

static uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

static uint64_t mixed_bytes(uint64_t hash, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        hash = mixed(hash, (unsigned char)bytes[i]);
    return mixed(hash, size);
}

/* The key without its numbers, dtype and shape. */
static uint64_t hash_of_tensor(const reshard_tensor *tensor)
{
    struct key_numbers numbers;
    uint64_t hash = mixed((uint64_t)tensor->rank, tensor->chunk_count);
    size_t from = 0;
    key_numbers_find(tensor->key, &numbers);
    for (size_t i = 0; i < numbers.count; i++) {
        hash = mixed_bytes(hash, tensor->key.data + from, numbers.begin[i] - from);
        from = numbers.end[i];
    }
    hash = mixed_bytes(hash, tensor->key.data + from, tensor->key.size - from);
    hash = mixed_bytes(hash, tensor->dtype, strlen(tensor->dtype));
    return mixed_bytes(hash, (const char *)tensor->shape, (size_t)tensor->rank * sizeof(*tensor->shape));
}

static uint64_t hash_of_chunks(const struct layout_map *map, size_t index, const reshard_tensor *tensor, uint64_t hash)
{
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    for (size_t i = 0; i < tensor->chunk_count; i++) {
        reshard_chunk_at(map->checkpoint, index, i, &chunk);
        hash = mixed(hash, layout_map_column(map, &chunk) * 2u + (chunk.is_replica != 0));
        hash = mixed(mixed(hash, (uint64_t)chunk.flat_begin), (uint64_t)chunk.flat_count);
        for (int axis = 0; axis < tensor->rank; axis++)
            hash = mixed(mixed(hash, (uint64_t)chunk.start[axis]), (uint64_t)chunk.extent[axis]);
    }
    return hash;
}

static int compare_entries(const void *a, const void *b)
{
    const struct row_entry *left = a, *right = b;
    if (left->hash != right->hash)
        return left->hash < right->hash ? -1 : 1;
    return (left->place > right->place) - (left->place < right->place);
}

static int compare_rows(const void *a, const void *b, void *context)
{
    const struct map_row *left = a, *right = b;
    const size_t *places = context;
    size_t first = places[left->tensors[0]], second = places[right->tensors[0]];
    return (first > second) - (first < second);
}

static void entries_fill(const struct layout_map *map, size_t count, bool is_anyhow, struct row_entry *entries)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    for (size_t i = 0; i < count; i++) {
        reshard_tensor_at(map->checkpoint, map->order[i], &tensor);
        uint64_t hash = hash_of_tensor(&tensor);
        entries[i] = (struct row_entry){ is_anyhow ? hash : hash_of_chunks(map, map->order[i], &tensor, hash), i };
    }
    qsort(entries, count, sizeof(*entries), compare_entries);
}

static size_t entries_groups(const struct row_entry *entries, size_t count)
{
    size_t groups = 0;
    for (size_t i = 0; i < count; i++)
        groups += i == 0 || entries[i].hash != entries[i - 1].hash;
    return groups;
}

/* The tensors of all rows lie in one block, which the first row in it owns: rows[0] before they are sorted. */
static bool rows_take(struct layout_map *map, const struct row_entry *entries, size_t count, size_t **block)
{
    *block = malloc((count + 1) * sizeof(**block));
    map->rows = calloc(entries_groups(entries, count) + 1, sizeof(*map->rows));
    if (!*block || !map->rows)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || entries[i].hash != entries[i - 1].hash)
            map->rows[map->row_count++].tensors = *block + i;
        (*block)[i] = map->order[entries[i].place];
        map->rows[map->row_count - 1].tensor_count++;
    }
    return true;
}

static bool rows_group(struct layout_map *map)
{
    size_t count = reshard_tensor_count(map->checkpoint);
    struct row_entry *entries = calloc(count + 1, sizeof(*entries));
    size_t *places = calloc(count + 1, sizeof(*places));
    bool is_good = entries && places;
    if (is_good) {
        entries_fill(map, count, false, entries);
        map->is_folded_anyhow = entries_groups(entries, count) > MAP_ROWS_MAX;
        if (map->is_folded_anyhow)
            entries_fill(map, count, true, entries);
        is_good = rows_take(map, entries, count, &map->row_tensors);
    }
    for (size_t i = 0; is_good && i < count; i++)
        places[map->order[i]] = i;
    if (is_good)
        qsort_r(map->rows, map->row_count, sizeof(*map->rows), compare_rows, places);
    free(entries);
    free(places);
    return is_good;
}

/* ---- cells ---- */

/* Whether the picture shows this axis rather than another: the first that is cut, else the longest. */
static bool axis_is_better(const struct map_row *row, const reshard_tensor *tensor, int axis, int than)
{
    bool is_cut = axis < 62 && row->cuts >> axis & 1, other_is_cut = than >= 0 && than < 62 && row->cuts >> than & 1;
    if (than < 0 || is_cut != other_is_cut)
        return than < 0 || is_cut;
    return !is_cut && tensor->shape[axis] > tensor->shape[than];
}

/* Which axes are cut, and which two the picture shows: cut ones first, then the longest. */
static void row_axes(const struct layout_map *map, struct map_row *row, const reshard_tensor *tensor)
{
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    int chosen[2] = { -1, -1 };
    for (size_t i = 0; i < tensor->chunk_count; i++) {
        reshard_chunk_at(map->checkpoint, row->tensors[0], i, &chunk);
        if (chunk.flat_count >= 0)
            row->cuts |= UINT64_C(1) << MAP_CUT_FLAT;
        for (int axis = 0; axis < tensor->rank; axis++) {
            if (chunk.extent[axis] != tensor->shape[axis])
                row->cuts |= UINT64_C(1) << (axis < 62 ? axis : 62);
        }
    }
    for (int want = 0; want < 2; want++) {
        for (int axis = 0; axis < tensor->rank; axis++) {
            if (axis != chosen[0] && axis != chosen[1] && axis_is_better(row, tensor, axis, chosen[want]))
                chosen[want] = axis;
        }
    }
    row->vertical = chosen[0] >= 0 && chosen[1] >= 0 && chosen[1] < chosen[0] ? chosen[1] : chosen[0];
    row->horizontal = row->vertical == chosen[0] ? chosen[1] : chosen[0];
}

/* Widens [*begin, *end) to what the chunk holds of an axis, as a part of the whole. */
static void cell_span(const reshard_tensor *tensor, const reshard_chunk *chunk, int axis, bool is_first, double *begin, double *end)
{
    double from = 0, to = 1;
    if (axis >= 0 && tensor->shape[axis] > 0) {
        double whole = (double)tensor->shape[axis];
        from = (double)chunk->start[axis] / whole;
        to = from + (double)chunk->extent[axis] / whole;
    }
    *begin = is_first || from < *begin ? from : *begin;
    *end = is_first || to > *end ? to : *end;
}

static double volume_of(int rank, const int64_t *extent)
{
    double volume = 1;
    for (int axis = 0; axis < rank; axis++)
        volume *= (double)extent[axis];
    return volume;
}

/* A run lies in its box from top to bottom: it is shown by the rows that it touches. */
static void cell_add(struct map_cell *cell, const struct map_row *row, const reshard_tensor *tensor, const reshard_chunk *chunk)
{
    bool is_first = cell->pieces + cell->copies == 0;
    double top = cell->top, bottom = cell->bottom, volume = volume_of(tensor->rank, chunk->extent);
    cell_span(tensor, chunk, row->horizontal, is_first, &cell->left, &cell->right);
    cell_span(tensor, chunk, row->vertical, is_first, &cell->top, &cell->bottom);
    if (chunk->flat_count >= 0 && volume > 0) {
        double from = (double)chunk->flat_begin / volume, to = from + (double)chunk->flat_count / volume;
        cell->top = is_first || from < top ? from : top;
        cell->bottom = is_first || to > bottom ? to : bottom;
    }
    *(chunk->is_replica ? &cell->copies : &cell->pieces) += 1;
    cell->bytes += chunk->bytes;
}

void map_piece_span(const struct layout_map *map, const struct map_row *row, const reshard_chunk *chunk, struct map_cell *out)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    *out = (struct map_cell){ 0 };
    reshard_tensor_at(map->checkpoint, row->tensors[0], &tensor);
    cell_add(out, row, &tensor, chunk);
}

/* Elements that two boxes of a tensor both hold. */
static double volume_shared(int rank, const reshard_chunk *a, const reshard_chunk *b)
{
    double volume = a->flat_count < 0 && b->flat_count < 0;
    for (int axis = 0; axis < rank && volume > 0; axis++) {
        int64_t from = a->start[axis] > b->start[axis] ? a->start[axis] : b->start[axis];
        int64_t a_end = a->start[axis] + a->extent[axis], b_end = b->start[axis] + b->extent[axis], to = a_end < b_end ? a_end : b_end;
        volume *= to > from ? (double)(to - from) : 0;
    }
    return volume;
}

/* Elements of a row's first tensor that two of its pieces hold, replicas left out. Pairs are looked at, so only of few pieces. */
static double volume_twice(const struct layout_map *map, const struct map_row *row, const reshard_tensor *tensor)
{
    reshard_chunk a = RESHARD_CHUNK_INIT, b = RESHARD_CHUNK_INIT;
    double volume = 0;
    for (size_t i = 0; tensor->chunk_count <= PAIRS_MAX && i < tensor->chunk_count; i++) {
        reshard_chunk_at(map->checkpoint, row->tensors[0], i, &a);
        for (size_t j = 0; j < i && !a.is_replica; j++) {
            reshard_chunk_at(map->checkpoint, row->tensors[0], j, &b);
            volume += b.is_replica ? 0 : volume_shared(tensor->rank, &a, &b);
        }
    }
    return volume;
}

static bool row_cells(struct layout_map *map, struct map_row *row, struct map_cell *by_column)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    reshard_tensor_at(map->checkpoint, row->tensors[0], &tensor);
    row_axes(map, row, &tensor);
    memset(by_column, 0, map->column_count * sizeof(*by_column));
    double covered = 0, whole = volume_of(tensor.rank, tensor.shape);
    for (size_t i = 0; i < tensor.chunk_count; i++) {
        reshard_chunk_at(map->checkpoint, row->tensors[0], i, &chunk);
        struct map_cell *cell = &by_column[layout_map_column(map, &chunk)];
        row->cell_count += cell->pieces + cell->copies == 0;
        cell_add(cell, row, &tensor, &chunk);
        if (!chunk.is_replica)
            covered += chunk.flat_count >= 0 ? (double)chunk.flat_count : volume_of(tensor.rank, chunk.extent);
    }
    row->chunk_count = tensor.chunk_count;
    row->replica_count = tensor.replica_count;
    double twice = map->is_damaged ? volume_twice(map, row, &tensor) : 0;
    row->doubled = (uint64_t)twice;
    row->missing = whole > covered - twice ? (uint64_t)(whole - covered + twice) : 0;
    row->cells = calloc(row->cell_count + 1, sizeof(*row->cells));
    size_t at = 0;
    for (uint32_t i = 0; row->cells && i < map->column_count; i++) {
        if (by_column[i].pieces + by_column[i].copies) {
            row->cells[at] = by_column[i];
            row->cells[at++].column = i;
        }
    }
    return row->cells != NULL;
}

static bool rows_fill(struct layout_map *map)
{
    struct map_cell *by_column = calloc(map->column_count + 1, sizeof(*by_column));
    bool is_good = by_column != NULL;
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    if (map->row_count > 4 * MAP_ROWS_MAX) {
        map->rows_left_out = map->row_count - 4 * MAP_ROWS_MAX;
        map->row_count = 4 * MAP_ROWS_MAX;
    }
    for (size_t i = 0; is_good && i < map->row_count; i++) {
        struct map_row *row = &map->rows[i];
        is_good = row_cells(map, row, by_column);
        for (size_t j = 0; j < row->tensor_count; j++) {
            reshard_tensor_at(map->checkpoint, row->tensors[j], &tensor);
            row->bytes += tensor.bytes;
        }
        map->gap_count += row->missing ? row->tensor_count : 0;
        map->overlap_count += row->doubled ? row->tensor_count : 0;
    }
    free(by_column);
    return is_good;
}

/* ---- all of it ---- */

static int compare_tensors(const void *a, const void *b, void *context)
{
    const struct layout_map *map = context;
    reshard_tensor left = RESHARD_TENSOR_INIT, right = RESHARD_TENSOR_INIT;
    size_t first = *(const size_t *)a, second = *(const size_t *)b;
    reshard_tensor_at(map->checkpoint, first, &left);
    reshard_tensor_at(map->checkpoint, second, &right);
    int order = natural_order(left.key, right.key);
    return order ? order : (first > second) - (first < second);
}

static bool order_make(struct layout_map *map)
{
    size_t count = reshard_tensor_count(map->checkpoint);
    map->order = malloc((count + 1) * sizeof(*map->order));
    for (size_t i = 0; map->order && i < count; i++)
        map->order[i] = i;
    if (map->order)
        qsort_r(map->order, count, sizeof(*map->order), compare_tensors, map);
    return map->order != NULL;
}

bool layout_map_make(const reshard_checkpoint *checkpoint, bool wants_files, struct layout_map *out)
{
    reshard_warning warning = RESHARD_WARNING_INIT;
    *out = (struct layout_map){ .checkpoint = checkpoint };
    for (size_t i = 0; reshard_warning_at(checkpoint, i, &warning) == RESHARD_OK; i++)
        out->is_damaged |= warning.is_damage != 0;
    return map_columns_make(out, wants_files) && order_make(out) && rows_group(out) && rows_fill(out);
}

void layout_map_release(struct layout_map *map)
{
    for (size_t i = 0; map->columns && i < map->column_count; i++) {
        free(map->columns[i].label);
        free(map->columns[i].title);
    }
    for (size_t i = 0; map->rows && i < map->row_count; i++)
        free(map->rows[i].cells);
    free(map->columns);
    free(map->rows);
    free(map->row_tensors);
    free(map->order);
    free(map->files);
    *map = (struct layout_map){ 0 };
}
