/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/vector_chunks.h"

#include <inttypes.h>

struct emission {
    struct catalog *catalog;
    uint32_t tensor;
    const struct model_parameter *parameter;
    const struct stored_vector *vector;
    int64_t start;             /* of the parameter in the vector; of an expert, if it is of a matrix of them */
    int64_t lead[NAME_NUMBERS_MAX];
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
static reshard_status vector_add_chunk(const struct emission *emission, const struct emitted_box *box, const struct vector_part *part,
                                       reshard_error *err)
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
    reshard_status status =
        catalog_add_chunk(emission->catalog, emission->tensor, box->start, box->extent, part->object, offset, bytes, &added, err);
    if (status)
        return status;
    added->flags = part->flags;
    added->writer = part->writer;
    added->driver_data = is_unresolved ? 1 + (uint32_t)skipped : part->driver_data;
    if (begin == box->begin && end == box->begin + box->count)
        return RESHARD_OK;
    return catalog_chunk_set_run(emission->catalog, added, begin - box->begin, end - begin, err);
}

static reshard_status vector_add_box(const struct emission *emission, const struct emitted_box *box, reshard_error *err)
{
    const struct stored_vector *vector = emission->vector;
    int64_t next = box->begin, end = box->begin + box->count;
    if (box->count == 0)
        return RESHARD_OK;
    for (uint32_t i = find_part(vector, next); i < vector->part_count && next < end; i++) {
        if (vector->parts[i].start > next)
            break;
        if (vector->parts[i].count == 0)
            continue;
        reshard_status status = vector_add_chunk(emission, box, &vector->parts[i], err);
        if (status)
            return status;
        next = vector->parts[i].start + vector->parts[i].count;
    }
    if (next < end)
        return error_set(err, RESHARD_ERR_FORMAT,
                         "elements %" PRId64 " to %" PRId64 " of the stored state, which belong to '%.*s', are missing", next, end,
                         STR_ARG(emission->parameter->text));
    return RESHARD_OK;
}

/* From which axis on a piece is a run of the rank's tensor. */
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

/* Adds the runs of a piece: boxes of the axes [first, end), at each place of the others. */
static reshard_status emit_runs(const struct emission *emission, const struct cut_piece *piece, int first, int end, reshard_error *err)
{
    const struct model_parameter *parameter = emission->parameter;
    const struct cut *cut = parameter->cut;
    int lead = parameter->lead_count;
    int64_t counter[RANK_MAX] = { 0 };
    struct emitted_box box = { .count = 1 };
    for (int i = 0; i < lead; i++) {
        box.start[i] = emission->lead[i];
        box.extent[i] = 1;
    }
    for (int i = 0; i < cut->rank; i++) {
        bool is_spanned = i >= first && i < end;
        box.extent[lead + i] = is_spanned ? piece->extent[i] : 1;
        if (is_spanned)
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
        reshard_status status = vector_add_box(emission, &box, err);
        int axis = cut->rank - 1;
        while (axis >= 0 && ((axis >= first && axis < end) || ++counter[axis] == piece->extent[axis]))
            counter[axis--] = 0;
        if (status || axis < 0)
            return status;
    }
}

static reshard_status emit_piece(const struct cut_piece *piece, void *context, reshard_error *err)
{
    const struct emission *emission = context;
    const struct cut *cut = emission->parameter->cut;
    bool is_transposed = emission->parameter->matrix_experts > 0;
    return is_transposed ? emit_runs(emission, piece, 0, 1, err) : emit_runs(emission, piece, contiguous_axes(cut, piece), cut->rank, err);
}

reshard_status vector_chunks_add(struct catalog *catalog, uint32_t tensor, const struct model_parameter *parameter,
                                 const struct rank_place *place, const struct stored_vector *vector, int64_t start, reshard_error *err)
{
    struct emission emission = { .catalog = catalog, .tensor = tensor, .parameter = parameter, .vector = vector, .start = start };
    const struct cut *cut = parameter->cut;
    int64_t volume, total, experts = parameter->matrix_experts;
    if (!shape_volume(cut->rank, cut->local, &volume) || __builtin_mul_overflow(volume, experts > 0 ? experts : 1, &total) || start < 0 ||
        start > vector->count || total > vector->count - start)
        return error_set(err, RESHARD_ERR_FORMAT, "'%.*s' lies outside the stored state of %" PRId64 " elements", STR_ARG(parameter->text),
                         vector->count);
    memcpy(emission.lead, parameter->lead, sizeof(emission.lead));
    strides_row_major(cut->rank, cut->local, emission.local_strides);
    if (experts == 0)
        return cut_pieces(cut, place, emit_piece, &emission, err);
    emission.local_strides[0] = 1;
    emission.local_strides[1] = cut->local[0];
    reshard_status status = RESHARD_OK;
    for (int64_t i = 0; !status && i < experts; i++) {
        status = cut_pieces(cut, place, emit_piece, &emission, err);
        emission.lead[parameter->lead_count - 1]++;
        emission.start += volume;
    }
    return status;
}
