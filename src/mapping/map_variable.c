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

/* Of an axis of the variable: the weight's axis, or MAP_AXIS_NEW. */
static int map_variable_source_axis(const struct map_piece *piece, int axis)
{
    return piece->axes ? piece->axes[axis] : axis;
}

reshard_status map_variable_input(struct map_workshop *workshop, const struct map_space *source, uint32_t weight, struct map_variable *out,
                                  reshard_error *err)
{
    static const int64_t zeros[RANK_MAX];
    const struct map_tensor *shaped = map_space_shaped(source, weight);
    uint32_t own = source->weights[weight].tensors[MAP_STATE_WEIGHT];
    reshard_status status;
    struct map_piece *piece = pieces_new(workshop, 1, &status, err);
    if (status)
        return status;
    enum dtype dtype = own == MAP_NONE ? MAP_DTYPE_NONE : source->tensors[own].dtype;
    *piece = (struct map_piece){
        .weight = weight, .source_rank = shaped->rank, .source_start = zeros, .start = zeros, .extent = shaped->shape, .dtype = dtype
    };
    *out = (struct map_variable){ .rank = shaped->rank, .shape = shaped->shape, .pieces = piece };
    out->piece_count = box_is_empty(shaped->rank, shaped->shape) ? 0 : 1;
    out->dtype = dtype;
    return RESHARD_OK;
}

/* The part of a piece that lies in [begin, end) of the axis, moved so that begin becomes 0. */
static bool map_variable_cut_piece(struct map_workshop *workshop, const struct map_piece *in, int rank, int axis, int64_t begin,
                                   int64_t end, struct map_piece *out)
{
    int64_t piece_end = in->start[axis] + in->extent[axis];
    int64_t low = in->start[axis] > begin ? in->start[axis] : begin, high = piece_end < end ? piece_end : end;
    int64_t *start = vector_copy(workshop, in->start, rank), *extent = vector_copy(workshop, in->extent, rank);
    int64_t *source_start = vector_copy(workshop, in->source_start, in->source_rank);
    if (!start || !extent || !source_start)
        return false;
    if (map_variable_source_axis(in, axis) != MAP_AXIS_NEW)
        source_start[map_variable_source_axis(in, axis)] += low - in->start[axis];
    start[axis] = low - begin;
    extent[axis] = high - low;
    *out = *in;
    out->start = start;
    out->extent = extent;
    out->source_start = source_start;
    return true;
}

/* The part that holds a position: the first that ends behind it. */
static uint32_t map_variable_part_at(const int64_t *ends, uint32_t count, int64_t position)
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
        for (uint32_t part = map_variable_part_at(ends, count, begin); part <= map_variable_part_at(ends, count, last) && total <= limit;
             part++, total++)
            counts[part]++;
    }
    return total;
}

static bool shape_parts(struct map_workshop *workshop, const struct map_variable *in, int axis, const int64_t *ends, uint32_t count,
                        struct map_variable *out)
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

reshard_status map_variable_split(struct map_workshop *workshop, const struct map_variable *in, int axis, const int64_t *ends,
                                  uint32_t count, struct map_variable *out, reshard_error *err)
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
        uint32_t last = map_variable_part_at(ends, count, piece->start[axis] + piece->extent[axis] - 1);
        for (uint32_t part = map_variable_part_at(ends, count, piece->start[axis]); part <= last; part++) {
            if (!map_variable_cut_piece(workshop, piece, in->rank, axis, part ? ends[part - 1] : 0, ends[part], next[part]++))
                return error_set_memory(err);
        }
    }
    return RESHARD_OK;
}

static bool same_axes(const struct map_piece *a, const struct map_piece *b, int rank)
{
    for (int i = 0; i < rank; i++) {
        if (map_variable_source_axis(a, i) != map_variable_source_axis(b, i))
            return false;
    }
    return true;
}

/* Whether b continues a along the axis, in the variable and in the source: then both are one box. */
static bool continues(const struct map_piece *a, const struct map_piece *b, int rank, int axis, int64_t b_start)
{
    if (a->weight != b->weight || a->casts != b->casts || a->start[axis] + a->extent[axis] != b_start || !same_axes(a, b, rank))
        return false;
    uint64_t named = 0;
    for (int i = 0; i < rank; i++) {
        int at = map_variable_source_axis(a, i);
        if (i != axis && (a->start[i] != b->start[i] || a->extent[i] != b->extent[i]))
            return false;
        if (at == MAP_AXIS_NEW && i == axis)
            return false;
        if (at == MAP_AXIS_NEW)
            continue;
        named |= UINT64_C(1) << at;
        if (a->source_start[at] + (i == axis ? a->extent[i] : 0) != b->source_start[at])
            return false;
    }
    for (int at = 0; at < a->source_rank; at++) {
        if (!(named & UINT64_C(1) << at) && a->source_start[at] != b->source_start[at])
            return false;
    }
    return true;
}

/* Appends a piece moved along the axis, or lengthens the one before it. */
static bool append_moved(struct map_workshop *workshop, const struct map_piece *piece, int rank, int axis, int64_t shift,
                         struct map_piece *pieces, uint32_t *count)
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

reshard_status map_variable_concat(struct map_workshop *workshop, const struct map_variable *const *parts, uint32_t count, int axis,
                                   struct map_variable *out, reshard_error *err)
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

static bool is_identity(const struct map_piece *piece, int rank, const uint8_t *axes)
{
    for (int i = 0; i < rank; i++) {
        if (axes[i] != i)
            return false;
    }
    return rank == piece->source_rank;
}

static bool permute_piece(struct map_workshop *workshop, const struct map_piece *in, int rank, const uint8_t *axes, struct map_piece *out)
{
    int64_t *start = arena_array(workshop->arena, (size_t)rank, sizeof(*start)),
            *extent = arena_array(workshop->arena, (size_t)rank, sizeof(*extent));
    uint8_t *composed = arena_alloc(workshop->arena, (size_t)rank);
    if (!start || !extent || !composed)
        return false;
    for (int i = 0; i < rank; i++) {
        start[i] = in->start[axes[i]];
        extent[i] = in->extent[axes[i]];
        composed[i] = (uint8_t)map_variable_source_axis(in, axes[i]);
    }
    *out = *in;
    out->start = start;
    out->extent = extent;
    out->axes = is_identity(in, rank, composed) ? NULL : composed;
    return true;
}

reshard_status map_variable_permute(struct map_workshop *workshop, const struct map_variable *in, const uint8_t *axes,
                                    struct map_variable *out, reshard_error *err)
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

/* ---- axes that come and go ---- */

static bool map_variable_is_named(const uint8_t *axes, int rank, int axis)
{
    return memchr(axes, axis, (size_t)rank) != NULL;
}

/* Where an axis was added and another one dropped, both of extent 1, they are one. */
static void pair_axes(const struct map_piece *piece, int rank, uint8_t *axes)
{
    int dropped = 0;
    for (int i = 0; i < rank; i++) {
        if (axes[i] != MAP_AXIS_NEW)
            continue;
        while (dropped < piece->source_rank && map_variable_is_named(axes, rank, dropped))
            dropped++;
        if (dropped == piece->source_rank)
            return;
        axes[i] = (uint8_t)dropped;
    }
}

/* The piece with one axis more, of extent 1, or without one of extent 1. rank: of the result. */
static bool change_axis(struct map_workshop *workshop, const struct map_piece *in, int rank, int axis, bool is_added, struct map_piece *out)
{
    size_t count = rank ? (size_t)rank : 1;
    int64_t *start = arena_array(workshop->arena, count, sizeof(*start)), *extent = arena_array(workshop->arena, count, sizeof(*extent));
    uint8_t *axes = arena_alloc(workshop->arena, count);
    if (!start || !extent || !axes)
        return false;
    for (int i = 0; i < rank; i++) {
        bool is_new = is_added && i == axis;
        int from = is_added ? i - (i > axis) : i + (i >= axis);
        start[i] = is_new ? 0 : in->start[from];
        extent[i] = is_new ? 1 : in->extent[from];
        axes[i] = is_new ? MAP_AXIS_NEW : (uint8_t)map_variable_source_axis(in, from);
    }
    pair_axes(in, rank, axes);
    *out = *in;
    out->start = start;
    out->extent = extent;
    out->axes = is_identity(in, rank, axes) ? NULL : axes;
    return true;
}

/* The variable with one axis more, of extent 1, or without one of extent 1. */
static reshard_status change_axes(struct map_workshop *workshop, const struct map_variable *in, int axis, bool is_added,
                                  struct map_variable *out, reshard_error *err)
{
    int rank = is_added ? in->rank + 1 : in->rank - 1;
    reshard_status status;
    struct map_piece *pieces = pieces_new(workshop, in->piece_count, &status, err);
    if (status)
        return status;
    int64_t *shape = arena_array(workshop->arena, rank ? (size_t)rank : 1, sizeof(*shape));
    if (!shape)
        return error_set_memory(err);
    for (int i = 0; i < rank; i++)
        shape[i] = is_added && i == axis ? 1 : in->shape[is_added ? i - (i > axis) : i + (i >= axis)];
    for (uint32_t i = 0; i < in->piece_count; i++) {
        if (!change_axis(workshop, &in->pieces[i], rank, axis, is_added, &pieces[i]))
            return error_set_memory(err);
    }
    *out = *in;
    out->rank = rank;
    out->shape = shape;
    out->pieces = pieces;
    return RESHARD_OK;
}

reshard_status map_variable_unstack(struct map_workshop *workshop, const struct map_variable *in, int axis, uint32_t count,
                                    struct map_variable *out, reshard_error *err)
{
    int64_t *ends = arena_array(workshop->arena, count, sizeof(*ends));
    struct map_variable *slices = arena_array(workshop->arena, count, sizeof(*slices));
    if (!ends || !slices)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        ends[i] = (int64_t)i + 1;
    reshard_status status = map_variable_split(workshop, in, axis, ends, count, slices, err);
    for (uint32_t i = 0; i < count && !status; i++)
        status = change_axes(workshop, &slices[i], axis, false, &out[i], err);
    return status;
}

reshard_status map_variable_stack(struct map_workshop *workshop, const struct map_variable *const *parts, uint32_t count, int axis,
                                  struct map_variable *out, reshard_error *err)
{
    struct map_variable *slices = arena_array(workshop->arena, count, sizeof(*slices));
    const struct map_variable **order = arena_array(workshop->arena, count, sizeof(*order));
    reshard_status status = slices && order ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < count && !status; i++) {
        status = change_axes(workshop, parts[i], axis, true, &slices[i], err);
        order[i] = &slices[i];
    }
    return status ? status : map_variable_concat(workshop, order, count, axis, out, err);
}

void map_piece_source_extent(const struct map_piece *piece, int rank, int64_t *extent)
{
    for (int axis = 0; axis < piece->source_rank; axis++)
        extent[axis] = 1;
    for (int axis = 0; axis < rank; axis++) {
        if (map_variable_source_axis(piece, axis) != MAP_AXIS_NEW)
            extent[map_variable_source_axis(piece, axis)] = piece->extent[axis];
    }
}

/* Pieces often share their casts: one new link serves a run of them. */
reshard_status map_variable_cast(struct map_workshop *workshop, const struct map_variable *in, enum dtype dtype, struct map_variable *out,
                                 reshard_error *err)
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
