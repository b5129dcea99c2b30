/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/megatron/optimizer_emit.h"

#include <inttypes.h>

struct emission {
    struct catalog *catalog;
    uint32_t tensor;
    const struct model_parameter *parameter;
    const struct stored_vector *vector;
    int64_t start;             /* of the parameter in the vector */
    int64_t local_strides[RANK_MAX];
};

/* A box of the logical tensor whose elements, in order, are a run of the vector. */
struct emitted_box {
    int64_t start[RANK_MAX], extent[RANK_MAX];
    int64_t begin, count;      /* in the vector */
};

/* First part that ends behind the element. */
static uint32_t find_part(const struct stored_vector *vector, int64_t element)
{
    uint32_t low = 0, high = vector->part_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (vector->parts[middle].start + vector->parts[middle].count <= element)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The part of the box that lies in one part of the vector: a chunk, and a flat run of the box if it is not all of it. */
static reshard_status add_chunk(const struct emission *emission, const struct emitted_box *box, const struct vector_part *part, reshard_error *err)
{
    int64_t begin = box->begin > part->start ? box->begin : part->start, end = box->begin + box->count;
    if (part->start + part->count < end)
        end = part->start + part->count;
    int64_t skipped = begin - part->start, size = (int64_t)dtype_element_bytes(emission->vector->dtype);
    bool is_unresolved = part->flags & CHUNK_UNRESOLVED;
    uint64_t offset = part->offset, bytes = part->bytes;
    struct catalog_chunk *added;
    if (is_unresolved && skipped >= UINT32_MAX - 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a piece of a bucket of more than 2^32 elements");
    if (!is_unresolved) {
        offset += (uint64_t)(skipped * size);
        bytes = (uint64_t)((end - begin) * size);
    }
    reshard_status status = catalog_add_chunk(emission->catalog, emission->tensor, box->start, box->extent, part->object, offset, bytes, &added, err);
    if (status)
        return status;
    added->flags = part->flags;
    added->writer = part->writer;
    added->driver_data = is_unresolved ? 1 + (uint32_t)skipped : part->driver_data;
    if (begin == box->begin && end == box->begin + box->count)
        return RESHARD_OK;
    struct chunk_layout *layout = catalog_chunk_layout(emission->catalog, added);
    if (!layout)
        return error_set_memory(err);
    layout->flat_begin = begin - box->begin;
    layout->flat_count = end - begin;
    return RESHARD_OK;
}

static reshard_status add_box(const struct emission *emission, const struct emitted_box *box, reshard_error *err)
{
    const struct stored_vector *vector = emission->vector;
    int64_t next = box->begin, end = box->begin + box->count;
    if (box->count == 0)
        return RESHARD_OK;
    for (uint32_t i = find_part(vector, next); i < vector->part_count && next < end; i++) {
        if (vector->parts[i].start > next)
            break;
        reshard_status status = add_chunk(emission, box, &vector->parts[i], err);
        if (status)
            return status;
        next = vector->parts[i].start + vector->parts[i].count;
    }
    if (next < end)
        return error_set(err, RESHARD_ERR_FORMAT, "elements %" PRId64 " to %" PRId64 " of the stored state, which belong to '%.*s', are missing", next, end,
                         STR_ARG(emission->parameter->text));
    return RESHARD_OK;
}

/* How many of the last axes of a piece are, taken together, a run of the rank's tensor. */
static int contiguous_axes(const struct cut *cut, const struct cut_piece *piece)
{
    int inner = cut->rank;
    while (inner > 0) {
        int axis = inner - 1;
        bool is_run = piece->step[axis] == 1 || piece->extent[axis] == 1;
        bool is_whole_behind = inner == cut->rank || (piece->extent[inner] == cut->local[inner]);
        if (!is_run || !is_whole_behind)
            break;
        inner--;
    }
    return inner;
}

static reshard_status emit_piece(const struct cut_piece *piece, void *context, reshard_error *err)
{
    const struct emission *emission = context;
    const struct model_parameter *parameter = emission->parameter;
    const struct cut *cut = parameter->cut;
    int lead = parameter->lead_count, inner = contiguous_axes(cut, piece);
    int64_t counter[RANK_MAX] = { 0 };
    struct emitted_box box = { .count = 1 };
    for (int i = 0; i < lead; i++) {
        box.start[i] = parameter->lead[i];
        box.extent[i] = 1;
    }
    for (int i = 0; i < cut->rank; i++) {
        box.extent[lead + i] = i < inner ? 1 : piece->extent[i];
        if (i >= inner)
            box.count *= piece->extent[i];
        if (piece->extent[i] == 0)
            return RESHARD_OK;
    }
    for (;;) {
        box.begin = emission->start;
        for (int i = 0; i < cut->rank; i++) {
            box.start[lead + i] = piece->start[i] + counter[i];
            box.begin += (piece->local_start[i] + piece->step[i] * counter[i]) * emission->local_strides[i];
        }
        reshard_status status = add_box(emission, &box, err);
        int axis = inner - 1;
        while (axis >= 0 && ++counter[axis] == piece->extent[axis])
            counter[axis--] = 0;
        if (status || axis < 0)
            return status;
    }
}

reshard_status optimizer_emit(struct catalog *catalog, uint32_t tensor, const struct model_parameter *parameter, const struct rank_place *place,
                              const struct stored_vector *vector, int64_t start, reshard_error *err)
{
    struct emission emission = { .catalog = catalog, .tensor = tensor, .parameter = parameter, .vector = vector, .start = start };
    int64_t volume;
    if (!shape_volume(parameter->cut->rank, parameter->cut->local, &volume) || start < 0 || start > vector->count || volume > vector->count - start)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' lies outside the stored state of %" PRId64 " elements", STR_ARG(parameter->text), vector->count);
    strides_row_major(parameter->cut->rank, parameter->cut->local, emission.local_strides);
    return cut_pieces(parameter->cut, place, emit_piece, &emission, err);
}
