/* SPDX-License-Identifier: Apache-2.0 */
/* What a layout map is told in: patterns of keys, how rows are cut. */
#include "layout_map.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const map_colour_names[7] = { "not cut",           "cut on axis 0",       "cut on axis 1", "cut on axis 2",
                                          "cut on a later axis", "cut on several axes", "row-major runs" };

void key_numbers_find(reshard_str key, struct key_numbers *out)
{
    out->count = 0;
    for (size_t at = 0; at < key.size && out->count < MAP_NUMBERS_MAX;) {
        size_t end = at;
        uint64_t value = 0;
        while (end < key.size && end < at + 9 && key.data[end] >= '0' && key.data[end] <= '9')
            value = value * 10 + (uint64_t)(key.data[end++] - '0');
        bool is_number = end > at && (end == key.size || key.data[end] == '.') && (end == at + 1 || key.data[at] != '0');
        if (is_number) {
            out->begin[out->count] = at;
            out->end[out->count] = end;
            out->value[out->count++] = value;
        }
        while (end < key.size && key.data[end] != '.')
            end++;
        at = end + 1;
    }
}

static int compare_values(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* "{0..31}", "{0,2,4..7}", or the number alone. */
static void values_print(FILE *out, uint64_t *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare_values);
    bool is_alone = values[0] == values[count - 1];
    fputs(is_alone ? "" : "{", out);
    for (size_t i = 0, shown = 0; i < count;) {
        size_t last = i;
        while (last + 1 < count && values[last + 1] - values[last] <= 1)
            last++;
        if (shown == 6) {
            fputs(",…", out);
            break;
        }
        fprintf(out, "%s%" PRIu64, shown++ ? "," : "", values[i]);
        if (values[last] != values[i])
            fprintf(out, values[last] - values[i] == 1 ? ",%" PRIu64 : "..%" PRIu64, values[last]);
        i = last + 1;
    }
    fputs(is_alone ? "" : "}", out);
}

char *map_row_pattern(const struct layout_map *map, const struct map_row *row, size_t *size)
{
    char *text = NULL;
    reshard_tensor first = RESHARD_TENSOR_INIT, tensor = RESHARD_TENSOR_INIT;
    struct key_numbers numbers, others;
    uint64_t *values = malloc((row->tensor_count + 1) * sizeof(*values));
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
        values_print(out, values, row->tensor_count);
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
