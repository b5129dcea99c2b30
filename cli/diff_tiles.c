/* SPDX-License-Identifier: Apache-2.0 */
#include "diff_tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_ELEMENTS ((size_t)1 << 20) /* of each side at a time */
#define SEAMS_MAX 200

/* A tensor as a matrix: axis 0 down, all others across. */
struct matrix {
    int64_t rows, columns;
};

static struct matrix matrix_of(const reshard_tensor *tensor)
{
    struct matrix matrix = { tensor->rank > 1 ? tensor->shape[0] : 1, 1 };
    for (int axis = tensor->rank > 1 ? 1 : 0; axis < tensor->rank; axis++)
        matrix.columns *= tensor->shape[axis];
    return matrix;
}

/* Rows [first, first + count) of the matrix, as numbers. */
static bool slab_read(const reshard_checkpoint *checkpoint, size_t index, const reshard_tensor *tensor, int64_t first, int64_t count,
                      const reshard_run_options *run, double *out)
{
    int64_t *start = calloc(2 * (size_t)tensor->rank + 1, sizeof(*start)), *extent = start ? start + tensor->rank : NULL;
    size_t elements = 1;
    for (int axis = 0; start && axis < tensor->rank; axis++) {
        extent[axis] = tensor->shape[axis];
        if (axis == 0 && tensor->rank > 1) {
            start[0] = first;
            extent[0] = count;
        }
        elements *= (size_t)extent[axis];
    }
    const reshard_box box = {
        .tensor = index, .start = start, .extent = extent, .dtype = "F64", .out = out, .size = elements * sizeof(*out)
    };
    reshard_box_list list = RESHARD_BOX_LIST_INIT;
    list.boxes = &box;
    list.box_count = 1;
    bool is_read = start && reshard_read_many(checkpoint, &list, run, NULL) == RESHARD_OK;
    free(start);
    return is_read;
}

/* A tile's part of a slab of its rows. */
static void tile_count(struct diff_tiles *tiles, size_t tile, const double *a, const double *b, struct matrix slab, int64_t from,
                       int64_t to)
{
    uint64_t changed = 0;
    for (int64_t row = 0; row < slab.rows; row++) {
        for (int64_t column = from; column < to; column++) {
            double x = a[row * slab.columns + column], y = b[row * slab.columns + column];
            if (x == y || (isnan(x) && isnan(y)))
                continue;
            changed++;
            double most = fmax(fabs(x), fabs(y)), relative = isfinite(most) && most > 0 ? fabs(x - y) / most : 1;
            tiles->has_nan |= isnan(x) || isnan(y);
            tiles->largest = relative > tiles->largest ? relative : tiles->largest;
        }
    }
    uint64_t all = (uint64_t)slab.rows * (uint64_t)(to - from);
    tiles->share[tile] = all ? (double)changed / (double)all : 0;
}

static int64_t tile_edge(int64_t length, size_t tile, size_t tiles)
{
    return (int64_t)((double)length * (double)tile / (double)tiles);
}

static size_t tiles_on(int64_t length)
{
    return length < TILES_MAX ? (size_t)length : TILES_MAX;
}

bool diff_tiles_make(const reshard_checkpoint *a, size_t tensor_a, const reshard_checkpoint *b, size_t tensor_b,
                     const reshard_run_options *run, struct diff_tiles *out)
{
    reshard_tensor left = RESHARD_TENSOR_INIT, right = RESHARD_TENSOR_INIT;
    *out = (struct diff_tiles){ 0 };
    reshard_tensor_at(a, tensor_a, &left);
    reshard_tensor_at(b, tensor_b, &right);
    bool is_same = left.rank == right.rank && memcmp(left.shape, right.shape, (size_t)left.rank * sizeof(*left.shape)) == 0;
    struct matrix matrix = matrix_of(&left);
    if (!is_same || !left.bytes || (size_t)matrix.columns > SLAB_ELEMENTS)
        return false;
    out->rows = tiles_on(matrix.rows);
    out->columns = tiles_on(matrix.columns);
    int64_t most = (int64_t)(SLAB_ELEMENTS / (size_t)matrix.columns);
    double *values = malloc(2 * SLAB_ELEMENTS * sizeof(*values));
    bool is_good = values != NULL;
    for (size_t i = 0; is_good && i < out->rows; i++) {
        int64_t first = tile_edge(matrix.rows, i, out->rows), count = tile_edge(matrix.rows, i + 1, out->rows) - first;
        count = count < most ? count : most;
        is_good = slab_read(a, tensor_a, &left, first, count, run, values) &&
                  slab_read(b, tensor_b, &right, first, count, run, values + SLAB_ELEMENTS);
        for (size_t j = 0; is_good && j < out->columns; j++)
            tile_count(out, i * out->columns + j, values, values + SLAB_ELEMENTS, (struct matrix){ count, matrix.columns },
                       tile_edge(matrix.columns, j, out->columns), tile_edge(matrix.columns, j + 1, out->columns));
    }
    free(values);
    return is_good;
}

/* Where pieces begin: [0, share of the way down], [1, share of the way across]. Across only of matrices. */
static void seams_json(FILE *out, const char *name, const reshard_checkpoint *checkpoint, size_t index)
{
    reshard_tensor tensor = RESHARD_TENSOR_INIT;
    reshard_chunk chunk = RESHARD_CHUNK_INIT;
    size_t shown = 0;
    reshard_tensor_at(checkpoint, index, &tensor);
    fprintf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < tensor.chunk_count && shown < SEAMS_MAX; i++) {
        reshard_chunk_at(checkpoint, index, i, &chunk);
        for (int axis = 0; axis < tensor.rank && axis < 2 && tensor.rank <= 2; axis++) {
            int drawn = tensor.rank == 1 ? 1 : axis;
            if (chunk.start[axis] > 0 && !chunk.is_replica)
                fprintf(out, "%s[%d,%.5g]", shown++ ? "," : "", drawn, (double)chunk.start[axis] / (double)tensor.shape[axis]);
        }
    }
    putc(']', out);
}

void diff_tiles_json(FILE *out, const struct diff_tiles *tiles, const reshard_checkpoint *a, size_t tensor_a, const reshard_checkpoint *b,
                     size_t tensor_b)
{
    fprintf(out, ",\"grid\":[%zu,%zu],\"tiles\":[", tiles->rows, tiles->columns);
    for (size_t i = 0; i < tiles->rows * tiles->columns; i++)
        fprintf(out, "%s%.3g", i ? "," : "", tiles->share[i]);
    putc(']', out);
    seams_json(out, "seamsA", a, tensor_a);
    seams_json(out, "seamsB", b, tensor_b);
}
