/* SPDX-License-Identifier: Apache-2.0 */
#include "cuts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITERS_MAX 65536

/* The axis that alone is not at its beginning: -1 none, -2 several. */
static int lone_axis(const reshard_chunk *chunk, int rank)
{
    int found = -1;
    for (int axis = 0; axis < rank; axis++) {
        if (chunk->start[axis] != 0)
            found = found == -1 ? axis : -2;
    }
    return found;
}

/* In a grid, the parts along an axis are those that begin at 0 on all others. */
static struct cut cut_of(const reshard_checkpoint *checkpoint, size_t index, const reshard_tensor *tensor, uint8_t *has_written)
{
    size_t parts[CUT_AXES_MAX] = { 0 }, pieces = 0, product = 1;
    struct cut out = { .is_runs = tensor->rank > CUT_AXES_MAX };
    for (size_t i = 0; i < tensor->chunk_count; i++) {
        reshard_chunk chunk = RESHARD_CHUNK_INIT;
        if (reshard_chunk_at(checkpoint, index, i, &chunk))
            continue;
        if (has_written && chunk.writer >= 0 && chunk.writer < WRITERS_MAX)
            has_written[chunk.writer] = 1;
        if (chunk.is_replica || out.is_runs)
            continue;
        out.is_runs = chunk.flat_count >= 0;
        int axis = lone_axis(&chunk, tensor->rank);
        if (axis >= 0)
            parts[axis]++;
        pieces++;
    }
    for (int axis = 0; !out.is_runs && axis < tensor->rank; axis++) {
        if (parts[axis] == 0)
            continue;
        out.axes[out.axis_count] = axis;
        out.parts[out.axis_count++] = parts[axis] + 1;
        if (__builtin_mul_overflow(product, parts[axis] + 1, &product))
            product = 0;
    }
    if (out.is_runs || (pieces && pieces != product))
        out = (struct cut){ .is_runs = 1 };
    return out;
}

static bool same_cut(const struct cut *a, const struct cut *b)
{
    return a->axis_count == b->axis_count && a->is_runs == b->is_runs &&
           memcmp(a->axes, b->axes, (size_t)a->axis_count * sizeof(*a->axes)) == 0 &&
           memcmp(a->parts, b->parts, (size_t)a->axis_count * sizeof(*a->parts)) == 0;
}

static void count_cut(struct cuts *out, struct cut cut)
{
    if (out->count >= CUT_KINDS_MAX - 1)
        cut = (struct cut){ .is_runs = 1 };
    size_t at = 0;
    while (at < out->count && !same_cut(&out->kinds[at], &cut))
        at++;
    if (at == CUT_KINDS_MAX)
        return;
    if (at == out->count)
        out->kinds[out->count++] = cut;
    out->kinds[at].tensors++;
}

static int compare_cuts(const void *x, const void *y)
{
    const struct cut *a = x, *b = y;
    return (a->tensors < b->tensors) - (a->tensors > b->tensors);
}

void cuts_find(const reshard_checkpoint *checkpoint, struct cuts *out)
{
    uint8_t *has_written = calloc(WRITERS_MAX, 1);
    *out = (struct cuts){ 0 };
    for (size_t i = 0; i < reshard_tensor_count(checkpoint); i++) {
        reshard_tensor tensor = RESHARD_TENSOR_INIT;
        reshard_tensor_at(checkpoint, i, &tensor);
        count_cut(out, cut_of(checkpoint, i, &tensor, has_written));
    }
    for (size_t i = 0; has_written && i < WRITERS_MAX; i++)
        out->writers += has_written[i];
    free(has_written);
    qsort(out->kinds, out->count, sizeof(*out->kinds), compare_cuts);
}

const char *cut_text(const struct cut *cut, char out[160])
{
    size_t used = 0;
    if (cut->is_runs || cut->axis_count == 0)
        return strcpy(out, cut->is_runs ? "in runs" : "whole");
    for (int i = 0; i < cut->axis_count; i++)
        used += (size_t)snprintf(out + used, 160 - used, "%s%d", i ? " and " : cut->axis_count > 1 ? "axes " : "axis ", cut->axes[i]);
    for (int i = 0; i < cut->axis_count; i++)
        used += (size_t)snprintf(out + used, 160 - used, "%s%zu", i ? "x" : " in ", cut->parts[i]);
    return out;
}

/* The most parts of tensors that are cut along that axis alone, and how many such tensors there are. */
static size_t most_parts(const struct cuts *cuts, int axis, uint64_t *tensors)
{
    size_t most = 0;
    *tensors = 0;
    for (size_t i = 0; i < cuts->count; i++) {
        const struct cut *cut = &cuts->kinds[i];
        if (cut->is_runs || cut->axis_count != 1 || cut->axes[0] != axis)
            continue;
        most = cut->parts[0] > most ? cut->parts[0] : most; /* small tensors have fewer parts than there are ranks */
        *tensors += cut->tensors;
    }
    return most;
}

const char *cuts_mesh(const struct cuts *cuts, char out[64])
{
    size_t both[2] = { 0 };
    uint64_t rows, columns;
    for (size_t i = 0; i < cuts->count; i++) {
        const struct cut *cut = &cuts->kinds[i];
        if (cut->is_runs || cut->axis_count > 2 || (cut->axis_count == 2 && (cut->axes[0] != 0 || cut->axes[1] != 1)))
            return NULL;
        for (int axis = 0; axis < 2 && cut->axis_count == 2; axis++)
            both[axis] = cut->parts[axis] > both[axis] ? cut->parts[axis] : both[axis];
    }
    size_t first = most_parts(cuts, 0, &rows), second = most_parts(cuts, 1, &columns);
    if (both[0])
        snprintf(out, 64, "FSDP %zu x TP %zu", both[0], both[1]);
    else if (first && first == second && columns * 5 >= rows) /* of the matrices of a layer, two in seven */
        snprintf(out, 64, "TP %zu", first);
    else if (first)
        snprintf(out, 64, "FSDP %zu", first);
    else
        return NULL;
    return out;
}
