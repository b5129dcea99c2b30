/* SPDX-License-Identifier: Apache-2.0 */
/* The columns of a layout map: ranks where several are known to have written, else files, in the order of their names. */
#include "layout_map.h"

#include "natural_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_file_addresses(const void *a, const void *b)
{
    const struct map_file *left = a, *right = b;
    return (left->name > right->name) - (left->name < right->name);
}

static bool files_take(struct layout_map *map)
{
    reshard_file file = RESHARD_FILE_INIT;
    map->file_count = reshard_file_count(map->checkpoint);
    map->files = calloc(map->file_count + 1, sizeof(*map->files));
    for (size_t i = 0; map->files && i < map->file_count; i++) {
        reshard_file_at(map->checkpoint, i, &file);
        map->files[i] = (struct map_file){ file.name.data, (uint32_t)i, UINT32_MAX };
    }
    if (map->files)
        qsort(map->files, map->file_count, sizeof(*map->files), compare_file_addresses);
    return map->files != NULL;
}

static struct map_file *file_find(const struct layout_map *map, const char *name)
{
    const struct map_file wanted = { .name = name };
    return bsearch(&wanted, map->files, map->file_count, sizeof(*map->files), compare_file_addresses);
}

uint32_t layout_map_file(const struct layout_map *map, const reshard_chunk *chunk)
{
    const struct map_file *file = file_find(map, chunk->file.data);
    return file ? file->number : UINT32_MAX;
}

uint32_t layout_map_column(const struct layout_map *map, const reshard_chunk *chunk)
{
    if (map->is_by_rank)
        return (uint32_t)((chunk->writer < 0 ? 0 : (size_t)chunk->writer) / map->units_per_column);
    const struct map_file *file = file_find(map, chunk->file.data);
    return file && file->column != UINT32_MAX ? file->column : 0;
}

/* ---- which units there are ---- */

/* One pass over all chunks: the highest rank, and which files hold tensors. */
static void units_look(struct layout_map *map, int64_t *last_rank)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    struct map_file *file = NULL;
    for (size_t i = 0; i < reshard_tensor_count(map->checkpoint); i++) {
        reshard_tensor_at(map->checkpoint, i, &tensor);
        for (size_t j = 0; j < tensor.chunk_count; j++) {
            reshard_chunk_at(map->checkpoint, i, j, &chunk);
            if (!file || file->name != chunk.file.data)
                file = file_find(map, chunk.file.data);
            if (file)
                file->column = 0;
            *last_rank = chunk.writer > *last_rank ? chunk.writer : *last_rank;
        }
        map->bytes += tensor.bytes;
        map->chunk_count += tensor.chunk_count;
        map->replica_count += tensor.replica_count;
    }
}

static int compare_file_names(const void *a, const void *b, void *context)
{
    reshard_file left = RESHARD_FILE_INIT, right = RESHARD_FILE_INIT;
    reshard_file_at(context, (*(struct map_file *const *)a)->number, &left);
    reshard_file_at(context, (*(struct map_file *const *)b)->number, &right);
    return natural_order(left.name, right.name);
}

/* The files that hold tensors, by name; malloc'd. */
static struct map_file **files_used(struct layout_map *map, size_t *count)
{
    struct map_file **used = calloc(map->file_count + 1, sizeof(*used));
    *count = 0;
    for (size_t i = 0; used && i < map->file_count; i++) {
        if (map->files[i].column != UINT32_MAX)
            used[(*count)++] = &map->files[i];
    }
    if (used)
        qsort_r(used, *count, sizeof(*used), compare_file_names, (void *)(uintptr_t)map->checkpoint);
    return used;
}

/* ---- labels ---- */

static bool columns_new(struct layout_map *map, size_t units)
{
    map->units = units;
    map->units_per_column = (units + MAP_COLUMNS_MAX - 1) / MAP_COLUMNS_MAX;
    map->units_per_column += map->units_per_column == 0;
    map->column_count = (units + map->units_per_column - 1) / map->units_per_column;
    map->columns = calloc(map->column_count + 1, sizeof(*map->columns));
    return map->columns != NULL;
}

static bool columns_of_ranks(struct layout_map *map, size_t ranks)
{
    if (!columns_new(map, ranks))
        return false;
    for (size_t i = 0; i < map->column_count; i++) {
        size_t first = i * map->units_per_column, last = first + map->units_per_column - 1;
        last = last < ranks ? last : ranks - 1;
        char **label = &map->columns[i].label;
        int made = first == last ? asprintf(label, "%zu", first) : asprintf(label, "%zu–%zu", first, last);
        if (made < 0 || asprintf(&map->columns[i].title, first == last ? "rank %s" : "ranks %s", map->columns[i].label) < 0)
            return false;
    }
    return true;
}

/* How many bytes all names begin with, and end with. What is left of each begins behind a separator, so that numbers stay whole. */
static void names_common(const reshard_checkpoint *checkpoint, struct map_file *const *used, size_t count, size_t *head, size_t *tail)
{
    reshard_file first = RESHARD_FILE_INIT, other = RESHARD_FILE_INIT;
    *head = *tail = 0;
    if (count < 2)
        return;
    reshard_file_at(checkpoint, used[0]->number, &first);
    *head = *tail = first.name.size;
    for (size_t i = 1; i < count; i++) {
        size_t begin = 0, end = 0;
        reshard_file_at(checkpoint, used[i]->number, &other);
        while (begin < *head && begin < other.name.size && first.name.data[begin] == other.name.data[begin])
            begin++;
        while (end < *tail && end + begin < other.name.size && end + begin < first.name.size &&
               first.name.data[first.name.size - 1 - end] == other.name.data[other.name.size - 1 - end])
            end++;
        *head = begin;
        *tail = end;
    }
    while (*head && !strchr("-_./", first.name.data[*head - 1]))
        --*head;
    while (*tail && !strchr("-_./", first.name.data[first.name.size - *tail]))
        --*tail;
}

static bool columns_of_files(struct layout_map *map, struct map_file *const *used, size_t count)
{
    size_t head, tail;
    if (!columns_new(map, count))
        return false;
    names_common(map->checkpoint, used, count, &head, &tail);
    for (size_t i = 0; i < count; i++) {
        reshard_file file = RESHARD_FILE_INIT;
        struct map_column *column = &map->columns[i / map->units_per_column];
        used[i]->column = (uint32_t)(i / map->units_per_column);
        reshard_file_at(map->checkpoint, used[i]->number, &file);
        if (i % map->units_per_column)
            continue;
        column->label = strndup(file.name.data + head, file.name.size - head - tail);
        column->title = map->units_per_column == 1 ? strndup(file.name.data, file.name.size) : NULL;
        if (!column->title && asprintf(&column->title, "%.*s and those behind it, %zu files a column", (int)file.name.size, file.name.data,
                                       map->units_per_column) < 0)
            column->title = NULL;
        if (!column->label || !column->title)
            return false;
    }
    return true;
}

/* Bytes of each column: of all its chunks, replicas too. */
static void columns_weigh(struct layout_map *map)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    for (size_t i = 0; map->column_count && i < reshard_tensor_count(map->checkpoint); i++) {
        reshard_tensor_at(map->checkpoint, i, &tensor);
        for (size_t j = 0; j < tensor.chunk_count; j++) {
            reshard_chunk_at(map->checkpoint, i, j, &chunk);
            map->columns[layout_map_column(map, &chunk)].bytes += chunk.bytes;
        }
    }
}

bool map_columns_make(struct layout_map *map, bool wants_files)
{
    int64_t last_rank = -1;
    size_t count;
    if (!files_take(map))
        return false;
    units_look(map, &last_rank);
    map->is_by_rank = last_rank > 0 && !wants_files;
    struct map_file **used = files_used(map, &count);
    bool is_good = used != NULL;
    if (is_good)
        is_good = map->is_by_rank ? columns_of_ranks(map, (size_t)last_rank + 1) : columns_of_files(map, used, count);
    free(used);
    if (is_good)
        columns_weigh(map);
    return is_good;
}
