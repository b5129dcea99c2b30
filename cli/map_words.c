/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout map is told in: patterns of keys, how rows are cut. */
#include "layout_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANGES_SHOWN 6

const char *const map_colour_names[7] = { "not cut",           "cut on axis 0",       "cut on axis 1", "cut on axis 2",
                                          "cut on a later axis", "cut on several axes", "row-major runs" };

static int compare_values(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

char *map_row_pattern(const struct layout_map *map, const struct map_row *row, size_t *size)
{
    char *text = NULL;
    reshard_tensor first = RESHARD_TENSOR_INIT, tensor = RESHARD_TENSOR_INIT;
    struct key_numbers numbers, others;
    int64_t *values = malloc((row->tensor_count + 1) * sizeof(*values));
    FILE *out = values ? open_memstream(&text, size) : NULL;
    size_t from = 0;
    reshard_tensor_at(map->checkpoint, row->tensors[0], &first);
    key_numbers_find(first.key, &numbers);
    for (size_t i = 0; out && i < numbers.count; i++) {
        fwrite(first.key.data + from, 1, numbers.begin[i] - from, out);
        from = numbers.end[i];
        for (size_t j = 0; j < row->tensor_count; j++) {
            reshard_tensor_at(map->checkpoint, row->tensors[j], &tensor);
            key_numbers_find(tensor.key, &others);
            values[j] = i < others.count ? others.value[i] : 0;
        }
        qsort(values, row->tensor_count, sizeof(*values), compare_values);
        key_numbers_print(out, values, row->tensor_count, RANGES_SHOWN);
    }
    if (out)
        fwrite(first.key.data + from, 1, first.key.size - from, out);
    free(values);
    if (!out || fclose(out)) {
        free(text);
        return NULL;
    }
    return text;
}

int map_row_colour(const struct map_row *row)
{
    if (row->cuts >> MAP_CUT_FLAT & 1)
        return 6;
    if (!row->cuts)
        return 0;
    if (row->cuts & (row->cuts - 1))
        return 5;
    return row->cuts == 1 ? 1 : row->cuts == 2 ? 2 : row->cuts == 4 ? 3 : 4;
}

const char *map_row_cut(const struct map_row *row, char out[64])
{
    size_t pieces = row->chunk_count - row->replica_count, at = 0;
    int colour = map_row_colour(row);
    if (colour == 0)
        at = (size_t)snprintf(out, 64, "whole");
    else if (colour == 6)
        at = (size_t)snprintf(out, 64, "%zu runs", pieces);
    else if (colour == 5)
        at = (size_t)snprintf(out, 64, "axes");
    for (int axis = 0, shown = 0; colour && colour < 6 && axis < 63 && at < 40; axis++) {
        if (row->cuts >> axis & 1)
            at += (size_t)snprintf(out + at, 64 - at, "%s%d", colour != 5 ? "axis " : shown++ ? "," : " ", axis);
    }
    if (colour && colour < 6)
        snprintf(out + at, 64 - at, " in %zu", pieces);
    return out;
}
