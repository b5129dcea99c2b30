/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/checked.h"
#include "catalog/catalog_cover.h"
#include "plan/plan.h"

/* Where a block lies in a chunk, in elements of the chunk's bytes. */
struct chunk_place {
    int64_t index;
    int64_t strides[RANK_MAX]; /* by the chunk's own axes */
};

static void place_row_major(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct chunk_layout *layout, int rank,
                            const int64_t *start, struct chunk_place *out)
{
    const int64_t *chunk_start = catalog_vector_at(catalog, chunk->start), *chunk_extent = catalog_vector_at(catalog, chunk->extent);
    int64_t stride = 1, index = 0;
    for (int axis = rank - 1; axis >= 0; axis--) {
        out->strides[axis] = stride;
        index += (start[axis] - chunk_start[axis]) * stride;
        stride *= chunk_extent[axis];
    }
    out->index = layout && layout->flat_count >= 0 ? index - layout->flat_begin : index;
}

/* Strides come from files and are trusted for nothing. */
static bool place_strided(const struct catalog *catalog, const struct catalog_chunk *chunk, const struct chunk_layout *layout, int rank,
                          const int64_t *start, struct chunk_place *out)
{
    const int64_t *chunk_start = catalog_vector_at(catalog, chunk->start), *strides = catalog_vector_at(catalog, layout->strides);
    out->index = 0;
    for (int axis = 0; axis < rank; axis++) {
        int64_t moved;
        if (strides[axis] < 0 || !checked_mul_i64(start[axis] - chunk_start[axis], strides[axis], &moved) ||
            !checked_add_i64(out->index, moved, &out->index))
            return false;
        out->strides[axis] = strides[axis];
    }
    return true;
}

static reshard_status place_find(const struct catalog *catalog, uint32_t chunk_index, int rank, const int64_t *start,
                                 struct chunk_place *out, reshard_error *err)
{
    const struct catalog_chunk *chunk = &catalog->chunks[chunk_index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    struct str key = catalog->tensors[chunk->tensor].key;
    if (!layout || layout->strides == CATALOG_NONE) {
        place_row_major(catalog, chunk, layout, rank, start, out);
        return RESHARD_OK;
    }
    if (layout->flat_count >= 0)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a flat run with strides", STR_ARG(key));
    if (!place_strided(catalog, chunk, layout, rank, start, out))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': strides are negative or lead beyond 2^63", STR_ARG(key));
    return RESHARD_OK;
}

/* The block as one run of bytes. strides of spec are in elements here. */
static reshard_status copy_packed(const struct catalog_tensor *source, const struct catalog_tensor *target, const struct chunk_place *from,
                                  const struct chunk_place *to, struct plan_copy *out, reshard_error *err)
{
    uint64_t elements = 0;
    int64_t bits = dtype_info(target->dtype)->bits;
    struct copy_spec spec = out->spec;
    spec.source_dtype = spec.target_dtype = DTYPE_U8;
    if (source->dtype != target->dtype || spec.via_count || spec.flags & ~(unsigned)COPY_SWAP_SOURCE ||
        !copy_is_plain_run(&spec, &elements) || from->index * bits % 8 || to->index * bits % 8 || elements * (uint64_t)bits % 8) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': %s can be moved in contiguous runs of whole bytes only",
                  STR_ARG(target->key), dtype_info(target->dtype)->name);
        error_hint(err, "cut it on its first axis, or not at all");
        return RESHARD_ERR_UNSUPPORTED;
    }
    spec.flags = 0;
    spec.rank = 1;
    spec.extent[0] = (int64_t)(elements * (uint64_t)bits / 8);
    spec.source_stride[0] = spec.target_stride[0] = 1;
    out->spec = spec;
    out->source_offset = (uint64_t)(from->index * bits / 8);
    out->target_offset = (uint64_t)(to->index * bits / 8);
    return RESHARD_OK;
}

/* Turns strides from elements to bytes. reach: bytes from the first one to the end of the last element of the source. */
static bool copy_to_bytes(struct plan_copy *copy, const struct chunk_place *from, const struct chunk_place *to, int64_t source_bytes,
                          int64_t target_bytes, int64_t *reach)
{
    struct copy_spec *spec = &copy->spec;
    int64_t offset;
    *reach = source_bytes;
    for (int axis = 0; axis < spec->rank; axis++) {
        int64_t span;
        if (!checked_mul_i64(spec->source_stride[axis], source_bytes, &spec->source_stride[axis]) ||
            !checked_mul_i64(spec->source_stride[axis], spec->extent[axis] - 1, &span) || !checked_add_i64(*reach, span, reach) ||
            !checked_mul_i64(spec->target_stride[axis], target_bytes, &spec->target_stride[axis])) /* of an axis of 1 it may be anything */
            return false;
    }
    if (!checked_mul_i64(from->index, source_bytes, &offset) || offset < 0)
        return false;
    copy->source_offset = (uint64_t)offset;
    copy->target_offset = (uint64_t)(to->index * target_bytes);
    return true;
}

static unsigned plan_copy_flags_of(const struct catalog_chunk *chunk)
{
    return (chunk->flags & CHUNK_SWAP ? COPY_SWAP_SOURCE : 0) | (chunk->flags & CHUNK_CONJUGATE ? COPY_CONJUGATE : 0) |
           (chunk->flags & CHUNK_NEGATE ? COPY_NEGATE : 0) | (chunk->flags & CHUNK_PLAIN_NAN ? COPY_PLAIN_NAN : 0);
}

/* Makes offsets relative to the objects, and checks that the source's bytes are the chunk's. */
static reshard_status copy_anchor(const struct catalog_tensor *tensor, const struct catalog_chunk *source,
                                  const struct catalog_chunk *target, uint64_t reach, struct plan_copy *out, reshard_error *err)
{
    if (!(source->flags & CHUNK_UNRESOLVED) && !range_fits(out->source_offset, reach, source->bytes)) {
        error_set_at(err, RESHARD_ERR_FORMAT, source->offset,
                     "tensor '%.*s': its elements reach to byte %" PRIu64 " of a chunk that has %" PRIu64, STR_ARG(tensor->key),
                     out->source_offset + reach, source->bytes);
        return RESHARD_ERR_FORMAT;
    }
    if (!checked_add_u64(out->source_offset, source->offset, &out->source_offset) ||
        !checked_add_u64(out->target_offset, target->offset, &out->target_offset))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': offset beyond 2^64", STR_ARG(tensor->key));
    return RESHARD_OK;
}

/* A box that is filled: every element of it is copied from one and the same place. */
static reshard_status copy_of_fill(const struct plan *plan, const struct plan_step *step, const int64_t *start, const int64_t *extent,
                                   struct plan_copy *out, reshard_error *err)
{
    const struct catalog_chunk *chunk = &plan->target->chunks[step->target_chunk];
    const struct catalog_tensor *tensor = &plan->target->tensors[chunk->tensor];
    int64_t bytes = dtype_element_bytes(tensor->dtype);
    struct chunk_place to;
    reshard_status status = place_find(plan->target, step->target_chunk, tensor->rank, start, &to, err);
    if (status)
        return status;
    out->spec.rank = tensor->rank;
    out->spec.source_dtype = out->spec.target_dtype = tensor->dtype;
    out->spec.via_count = out->spec.flags = 0;
    for (int axis = 0; axis < tensor->rank; axis++) {
        out->spec.extent[axis] = extent[axis];
        out->spec.source_stride[axis] = to.strides[axis];
        out->spec.target_stride[axis] = to.strides[axis] * (bytes ? bytes : 1);
    }
    if (bytes) {
        out->target_offset = (uint64_t)(to.index * bytes);
    } else {
        status = copy_packed(tensor, tensor, &to, &to, out, err);
    }
    for (int axis = 0; axis < out->spec.rank; axis++)
        out->spec.source_stride[axis] = 0;
    out->source_offset = 0;
    if (!status && !checked_add_u64(out->target_offset, chunk->offset, &out->target_offset))
        status = error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': offset beyond 2^64", STR_ARG(tensor->key));
    return status;
}

reshard_status plan_part_copy(const struct plan *plan, const struct plan_step *step, const int64_t *start, const int64_t *extent,
                              struct plan_copy *out, reshard_error *err)
{
    if (step->source_chunk == CATALOG_NONE)
        return copy_of_fill(plan, step, start, extent, out, err);
    const struct recipe *recipe = &plan->recipes[step->recipe];
    const struct catalog_chunk *source = &plan->source->chunks[step->source_chunk], *target = &plan->target->chunks[step->target_chunk];
    const struct catalog_tensor *source_tensor = &plan->source->tensors[source->tensor],
                                *target_tensor = &plan->target->tensors[target->tensor];
    enum dtype stored = catalog_stored_dtype(source_tensor);
    unsigned source_bytes = dtype_element_bytes(stored), target_bytes = dtype_element_bytes(target_tensor->dtype);
    struct chunk_place from, to;
    int64_t source_start[RANK_MAX], reach;
    int rank = recipe->rank;

    for (int axis = 0; axis < source_tensor->rank; axis++)
        source_start[axis] = recipe->source_start[axis];
    for (int axis = 0; axis < rank; axis++) {
        int source_axis = recipe_source_axis(recipe, axis);
        if (source_axis >= 0)
            source_start[source_axis] += start[axis] - recipe->target_start[axis];
    }
    reshard_status status = place_find(plan->source, step->source_chunk, source_tensor->rank, source_start, &from, err);
    if (!status)
        status = place_find(plan->target, step->target_chunk, rank, start, &to, err);
    if (status)
        return status;
    out->spec.rank = rank;
    out->spec.source_dtype = stored;
    out->spec.target_dtype = target_tensor->dtype;
    out->spec.via = recipe->via;
    out->spec.via_count = recipe->via_count;
    out->spec.flags = plan_copy_flags_of(source);
    for (int axis = 0; axis < rank; axis++) {
        int source_axis = recipe_source_axis(recipe, axis);
        out->spec.extent[axis] = extent[axis];
        out->spec.source_stride[axis] = source_axis < 0 ? 0 : from.strides[source_axis];
        out->spec.target_stride[axis] = to.strides[axis];
    }
    if (source_bytes == 0 || target_bytes == 0) {
        status = copy_packed(source_tensor, target_tensor, &from, &to, out, err);
        reach = status ? 0 : out->spec.extent[0];
    } else if (!copy_to_bytes(out, &from, &to, source_bytes, target_bytes, &reach)) {
        status = error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': strides lead beyond 2^63", STR_ARG(source_tensor->key));
    }
    return status ? status : copy_anchor(source_tensor, source, target, (uint64_t)reach, out, err);
}

reshard_status plan_step_copy(const struct plan *plan, const struct plan_step *step, struct plan_copy *out, reshard_error *err)
{
    return plan_part_copy(plan, step, plan->vectors + step->start, plan->vectors + step->extent, out, err);
}
