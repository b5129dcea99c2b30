/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The float32 values of quantised optimizer states, computed as they are read, in the very steps of PaddleFormers' loader, each rounded to
 * float32:
 *
 *   first moment    O1: q / 127 * scale          O2: q * scale / 7
 *   second moment   r = q / 255 * (max - min) + min (O2: q / 15), which is 1 / (sqrt(m) + 1e-8): m = (1 / r - 1e-8)^2
 *
 * O1 has a scale a column (one in all for a vector), O2 one for 32 elements of a column, and two numbers in each byte: the first moment in
 * the high four bits, with a sign, the second in the low ones.
 */
#include "formats/paddle/unified_quantised.h"

#include <stdlib.h>

#define TILE 16384 /* elements at a time */

/* Some elements: whole rows, or a part of one row. */
struct uc_tile {
    uint64_t first, rows, width; /* first element */
    uint64_t scale_first, scale_rows;
    uint8_t stored[TILE];
    float scales[2][TILE], values[TILE];
};

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The next tile from an element on. Rows are at most as many as their elements, so that the scales of their groups fit too. */
static void unified_scales_cut(const struct uc_quantised *state, uint64_t begin, uint64_t end, struct uc_tile *tile)
{
    uint64_t row = begin / state->columns, column = begin % state->columns, left = end - begin;
    bool is_part = column || left < state->columns || state->columns > TILE;
    tile->first = begin;
    tile->width = is_part ? smaller(smaller(state->columns - column, left), TILE) : state->columns;
    tile->rows = is_part ? 1 : smaller(TILE / state->columns, left / state->columns);
    tile->scale_first = row / state->group * state->columns + column;
    tile->scale_rows = (row + tile->rows - 1) / state->group - row / state->group + 1;
}

static reshard_status unified_scales_read(const struct uc_quantised *state, const struct store_object *object, struct uc_tile *tile,
                                          reshard_error *err)
{
    reshard_status status = store_read_at(object, state->offset + tile->first, tile->stored, (size_t)(tile->rows * tile->width), err);
    for (int i = 0; i < 2 && !status; i++)
        if (state->scale_offsets[i] != UC_NO_SCALE)
            status = store_read_at(object, state->scale_offsets[i] + tile->scale_first * sizeof(float), tile->scales[i],
                                   (size_t)(tile->scale_rows * tile->width) * sizeof(float), err);
    return status;
}

static void unified_scales_moment1(enum uc_quantised_kind kind, const uint8_t *in, const float *scale, float *out, uint64_t count)
{
    if (kind == UC_MOMENT1_8) {
        for (uint64_t i = 0; i < count; i++)
            out[i] = (float)(int8_t)in[i] / 127.0F * scale[i];
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)((int8_t)in[i] >> 4) * scale[i] / 7.0F;
}

static void unified_scales_moment2(enum uc_quantised_kind kind, const uint8_t *in, const float *low, const float *high, float *out,
                                   uint64_t count)
{
    const uint8_t mask = kind == UC_MOMENT2_8 ? 0xFF : 0x0F;
    const float steps = mask;
    for (uint64_t i = 0; i < count; i++) {
        float ratio = (float)(in[i] & mask) / steps * (high[i] - low[i]) + low[i], root = 1.0F / ratio - 1e-8F;
        out[i] = root * root;
    }
}

static void unified_scales_compute(const struct uc_quantised *state, struct uc_tile *tile)
{
    uint64_t first_row = tile->first / state->columns, first_group = first_row / state->group;
    bool is_first = state->kind == UC_MOMENT1_8 || state->kind == UC_MOMENT1_4;
    for (uint64_t i = 0; i < tile->rows; i++) {
        uint64_t at = i * tile->width, scale = ((first_row + i) / state->group - first_group) * tile->width;
        const float *low = tile->scales[0] + scale, *high = tile->scales[1] + scale;
        if (is_first)
            unified_scales_moment1(state->kind, tile->stored + at, low, tile->values + at, tile->width);
        else
            unified_scales_moment2(state->kind, tile->stored + at, low, high, tile->values + at, tile->width);
    }
}

reshard_status uc_quantised_read(void *context, uint64_t offset, void *out, size_t size, reshard_error *err)
{
    const struct uc_quantised *state = context;
    struct uc_tile *tile = malloc(sizeof(*tile));
    struct store_object *object = NULL;
    uint64_t done = 0, end = (offset + size + sizeof(float) - 1) / sizeof(float);
    if (!tile)
        return error_set_memory(err);
    reshard_status status = store_open_object(state->store, state->file, &object, err);
    while (done < size && !status) {
        uint64_t at = offset + done, within = at % sizeof(float);
        unified_scales_cut(state, at / sizeof(float), end, tile);
        status = unified_scales_read(state, object, tile, err);
        if (status)
            break;
        unified_scales_compute(state, tile);
        uint64_t bytes = smaller(tile->rows * tile->width * sizeof(float) - within, size - done);
        memcpy((uint8_t *)out + done, (const uint8_t *)tile->values + within, (size_t)bytes);
        done += bytes;
    }
    store_object_close(object);
    free(tile);
    return status;
}
