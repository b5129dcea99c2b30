/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_variable.h"

static struct map_piece *pieces_new(struct map_workshop *workshop, uint64_t count, reshard_status *status, reshard_error *err)
{
    workshop->pieces_made += count;
    if (workshop->pieces_made > workshop->pieces_max || count > UINT32_MAX / 2) {
        *status = error_set_limit(err, "map_pieces", workshop->pieces_made, workshop->pieces_max);
        return NULL;
    }
    struct map_piece *pieces = arena_array(workshop->arena, (size_t)count, sizeof(*pieces));
    *status = pieces ? RESHARD_OK : error_set_memory(err);
    return pieces;
}

static int64_t *vector_copy(struct map_workshop *workshop, const int64_t *values, int rank)
{
    int64_t *copy = arena_array(workshop->arena, (size_t)rank, sizeof(*copy));
    if (copy && rank)
        memcpy(copy, values, (size_t)rank * sizeof(*copy));
    return copy;
}

static int source_axis(const struct map_piece *piece, int axis)
{
    return piece->axes ? piece->axes[axis] : axis;
}

reshard_status map_variable_input(struct map_workshop *workshop, const struct map_space *source, uint32_t weight, struct map_variable *out, reshard_error *err)
{
    static const int64_t zeros[RANK_MAX];
    const struct map_tensor *shaped = map_space_shaped(source, weight);
    uint32_t own = source->weights[weight].tensors[MAP_STATE_WEIGHT];
    reshard_status status;
    struct map_piece *piece = pieces_new(workshop, 1, &status, err);
    if (status)
        return status;
    enum dtype dtype = own == MAP_NONE ? MAP_DTYPE_NONE : source->tensors[own].dtype;
    *piece = (struct map_piece){ .weight = weight, .source_start = zeros, .start = zeros, .extent = shaped->shape, .dtype = dtype };
    *out = (struct map_variable){ .rank = shaped->rank, .shape = shaped->shape, .pieces = piece };
    out->piece_count = box_is_empty(shaped->rank, shaped->shape) ? 0 : 1;
    out->dtype = dtype;
    return RESHARD_OK;
}

/* The part of a piece that lies in [begin, end) of the axis, moved so that begin becomes 0. */
static bool cut_piece(struct map_workshop *workshop, const struct map_piece *in, int rank, int axis, int64_t begin, int64_t end, struct map_piece *out)
{
    int64_t piece_end = in->start[axis] + in->extent[axis];
    int64_t low = in->start[axis] > begin ? in->start[axis] : begin, high = piece_end < end ? piece_end : end;
    int64_t *start = vector_copy(workshop, in->start, rank), *extent = vector_copy(workshop, in->extent, rank);
    int64_t *source_start = vector_copy(workshop, in->source_start, rank);
    if (!start || !extent || !source_start)
        return false;
    source_start[source_axis(in, axis)] += low - in->start[axis];
    start[axis] = low - begin;
    extent[axis] = high - low;
    *out = *in;
    out->start = start;
    out->extent = extent;
    out->source_start = source_start;
    return true;
}

/* The part that holds a position: the first that ends behind it. */
static uint32_t part_at(const int64_t *ends, uint32_t count, int64_t position)
{
    uint32_t low = 0, high = count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (ends[middle] > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Pieces that reach into each part, counted until there are more than limit. */
static uint64_t count_cuts(const struct map_variable *in, int axis, const int64_t *ends, uint32_t count, uint64_t limit, uint32_t *counts)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < in->piece_count && total <= limit; i++) {
        int64_t begin = in->pieces[i].start[axis], last = begin + in->pieces[i].extent[axis] - 1;
        for (uint32_t part = part_at(ends, count, begin); part <= part_at(ends, count, last) && total <= limit; part++, total++)
            counts[part]++;
    }
    return total;
}

static bool shape_parts(struct map_workshop *workshop, const struct map_variable *in, int axis, const int64_t *ends, uint32_t count, struct map_variable *out)
{
    const int64_t *shape = NULL;
    for (uint32_t part = 0; part < count; part++) {
        int64_t width = ends[part] - (part ? ends[part - 1] : 0);
        if (!shape || shape[axis] != width) {
            int64_t *own = vector_copy(workshop, in->shape, in->rank);
            if (!own)
                return false;
            own[axis] = width;
            shape = own;
        }
        out[part] = *in;
        out[part].shape = shape;
    }
    return true;
}

reshard_status map_variable_split(struct map_workshop *workshop, const struct map_variable *in, int axis, const int64_t *ends, uint32_t count, struct map_variable *out,
                                  reshard_error *err)
{
    uint32_t *counts = arena_zalloc(workshop->arena, (size_t)count * sizeof(*counts));
    struct map_piece **next = arena_array(workshop->arena, count, sizeof(*next));
    if (!counts || !next || !shape_parts(workshop, in, axis, ends, count, out))
        return error_set_memory(err);
    reshard_status status;
    struct map_piece *pieces = pieces_new(workshop, count_cuts(in, axis, ends, count, workshop->pieces_max, counts), &status, err);
    if (status)
        return status;
    for (uint32_t part = 0; part < count; part++) {
        out[part].pieces = next[part] = pieces;
        out[part].piece_count = counts[part];
        pieces += counts[part];
    }
    for (uint32_t i = 0; i < in->piece_count; i++) {
        const struct map_piece *piece = &in->pieces[i];
        uint32_t last = part_at(ends, count, piece->start[axis] + piece->extent[axis] - 1);
        for (uint32_t part = part_at(ends, count, piece->start[axis]); part <= last; part++) {
            if (!cut_piece(workshop, piece, in->rank, axis, part ? ends[part - 1] : 0, ends[part], next[part]++))
                return error_set_memory(err);
        }
    }
    return RESHARD_OK;
}

static bool same_axes(const struct map_piece *a, const struct map_piece *b, int rank)
{
    for (int i = 0; i < rank; i++) {
        if (source_axis(a, i) != source_axis(b, i))
            return false;
    }
    return true;
}

/* Whether b continues a along the axis, in the variable and in the source: then both are one box. */
static bool continues(const struct map_piece *a, const struct map_piece *b, int rank, int axis, int64_t b_start)
{
    if (a->weight != b->weight || a->casts != b->casts || a->start[axis] + a->extent[axis] != b_start || !same_axes(a, b, rank))
        return false;
    for (int i = 0; i < rank; i++) {
        int at = source_axis(a, i);
        int64_t source_end = a->source_start[at] + (i == axis ? a->extent[i] : 0);
        if (source_end != b->source_start[at] || (i != axis && (a->start[i] != b->start[i] || a->extent[i] != b->extent[i])))
            return false;
    }
    return true;
}

/* Appends a piece moved along the axis, or lengthens the one before it. */
static bool append_moved(struct map_workshop *workshop, const struct map_piece *piece, int rank, int axis, int64_t shift, struct map_piece *pieces, uint32_t *count)
{
    if (*count && continues(&pieces[*count - 1], piece, rank, axis, piece->start[axis] + shift)) {
        int64_t *extent = vector_copy(workshop, pieces[*count - 1].extent, rank);
        if (!extent)
            return false;
        extent[axis] += piece->extent[axis];
        pieces[*count - 1].extent = extent;
        return true;
    }
    int64_t *start = vector_copy(workshop, piece->start, rank);
    if (!start)
        return false;
    start[axis] += shift;
    pieces[*count] = *piece;
    pieces[(*count)++].start = start;
    return true;
}

reshard_status map_variable_concat(struct map_workshop *workshop, const struct map_variable *const *parts, uint32_t count, int axis, struct map_variable *out,
                                   reshard_error *err)
{
    uint64_t total = 0;
    reshard_status status;
    for (uint32_t i = 0; i < count; i++)
        total += parts[i]->piece_count;
    struct map_piece *pieces = pieces_new(workshop, total, &status, err);
    if (status)
        return status;
    int64_t *shape = vector_copy(workshop, parts[0]->shape, parts[0]->rank), volume;
    if (!shape)
        return error_set_memory(err);
    shape[axis] = 0;
    uint32_t made = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < parts[i]->piece_count; j++) {
            if (!append_moved(workshop, &parts[i]->pieces[j], parts[0]->rank, axis, shape[axis], pieces, &made))
                return error_set_memory(err);
        }
        if (__builtin_add_overflow(shape[axis], parts[i]->shape[axis], &shape[axis]) || !shape_volume(parts[0]->rank, shape, &volume))
            return error_set(err, RESHARD_ERR_LIMIT, "a joined tensor has more than 2^63 elements");
    }
    *out = *parts[0];
    out->shape = shape;
    out->pieces = pieces;
    out->piece_count = made;
    for (uint32_t i = 0; i < count && out->dtype == MAP_DTYPE_NONE; i++)
        out->dtype = parts[i]->dtype;
    return RESHARD_OK;
}

static bool permute_piece(struct map_workshop *workshop, const struct map_piece *in, int rank, const uint8_t *axes, struct map_piece *out)
{
    int64_t *start = arena_array(workshop->arena, (size_t)rank, sizeof(*start)), *extent = arena_array(workshop->arena, (size_t)rank, sizeof(*extent));
    uint8_t *composed = arena_alloc(workshop->arena, (size_t)rank);
    bool is_identity = true;
    if (!start || !extent || !composed)
        return false;
    for (int i = 0; i < rank; i++) {
        start[i] = in->start[axes[i]];
        extent[i] = in->extent[axes[i]];
        composed[i] = (uint8_t)source_axis(in, axes[i]);
        is_identity &= composed[i] == i;
    }
    *out = *in;
    out->start = start;
    out->extent = extent;
    out->axes = is_identity ? NULL : composed;
    return true;
}

reshard_status map_variable_permute(struct map_workshop *workshop, const struct map_variable *in, const uint8_t *axes, struct map_variable *out, reshard_error *err)
{
    reshard_status status;
    struct map_piece *pieces = pieces_new(workshop, in->piece_count, &status, err);
    if (status)
        return status;
    int64_t *shape = vector_copy(workshop, in->shape, in->rank);
    if (!shape)
        return error_set_memory(err);
    for (int i = 0; i < in->rank; i++)
        shape[i] = in->shape[axes[i]];
    for (uint32_t i = 0; i < in->piece_count; i++) {
        if (!permute_piece(workshop, &in->pieces[i], in->rank, axes, &pieces[i]))
            return error_set_memory(err);
    }
    *out = *in;
    out->shape = shape;
    out->pieces = pieces;
    return RESHARD_OK;
}

/* Pieces often share their casts: one new link serves a run of them. */
reshard_status map_variable_cast(struct map_workshop *workshop, const struct map_variable *in, enum dtype dtype, struct map_variable *out, reshard_error *err)
{
    reshard_status status;
    struct map_piece *pieces = pieces_new(workshop, in->piece_count, &status, err);
    struct map_cast *link = NULL;
    if (status)
        return status;
    for (uint32_t i = 0; i < in->piece_count; i++) {
        pieces[i] = in->pieces[i];
        if (map_piece_dtype(&pieces[i]) == dtype)
            continue;
        if (!link || link->before != pieces[i].casts) {
            link = arena_alloc(workshop->arena, sizeof(*link));
            if (!link)
                return error_set_memory(err);
            *link = (struct map_cast){ pieces[i].casts, dtype };
        }
        pieces[i].casts = link;
    }
    *out = *in;
    out->pieces = pieces;
    return RESHARD_OK;
}
