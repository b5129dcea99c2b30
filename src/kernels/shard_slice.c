/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/shard_slice.h"

#include <inttypes.h>

/* One side: where region and shard meet, in indices of the whole. */
struct slice_side {
    int64_t start[RANK_MAX + 1], extent[RANK_MAX + 1];
};

struct slice_run {
    const struct shard_slice *slice;
    struct slice_side source, target;
    struct copy_spec spec; /* all but extents */
    int64_t box_start[RANK_MAX + 1], box_extent[RANK_MAX + 1]; /* of the source's box at hand, in indices of the target's whole */
    uint64_t elements;
};

static reshard_status side_find(const struct shard *region, const struct shard *shard, const char *which, struct slice_side *out,
                                reshard_error *err)
{
    if (region->rank != shard->rank)
        return error_set(err, RESHARD_ERR_USAGE, "%s: the region has %d axes, the shard of '%.*s' has %d", which, region->rank,
                         STR_ARG(shard->key), shard->rank);
    if (!box_intersect(shard->rank, region->start, region->extent, shard->start, shard->extent, out->start, out->extent))
        return error_set(err, RESHARD_ERR_USAGE, "%s: the region and the shard of '%.*s' do not meet", which, STR_ARG(shard->key));
    return RESHARD_OK;
}

static reshard_status shapes_check(const struct slice_run *run, reshard_error *err)
{
    const struct shard_slice *slice = run->slice;
    if (slice->source->rank != slice->target->rank)
        return error_set(err, RESHARD_ERR_USAGE, "the source's slice has %d axes, the target's %d", slice->source->rank,
                         slice->target->rank);
    for (int axis = 0; axis < slice->target->rank; axis++) {
        int64_t source = run->source.extent[slice->axes[axis]];
        if (source != run->target.extent[axis])
            return error_set(err, RESHARD_ERR_USAGE, "axis %d: the source's slice has %" PRId64 " there, the target's %" PRId64, axis,
                             source, run->target.extent[axis]);
    }
    return RESHARD_OK;
}

static reshard_status types_check(const struct shard_slice *slice, reshard_error *err)
{
    enum dtype from = slice->source->dtype;
    for (unsigned i = 0; i <= slice->via_count; i++) {
        enum dtype to = i < slice->via_count ? slice->via[i] : slice->target->dtype;
        if (!dtype_element_bytes(from) || !dtype_element_bytes(to) || !copy_can_cast(from, to))
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "elements of %s cannot become %s in a slice", dtype_info(from)->name,
                             dtype_info(to)->name);
        from = to;
    }
    return RESHARD_OK;
}

/* Bytes from the shard's memory to the element of the whole. */
static int64_t element_place(const struct shard *shard, const int64_t *index)
{
    int64_t inside[RANK_MAX + 1];
    for (int axis = 0; axis < shard->rank; axis++)
        inside[axis] = index[axis] - shard->start[axis];
    int64_t flat = shape_ravel(shard->rank, shard->extent, inside) - (shard->is_flattened ? shard->flat_begin : 0);
    return flat * dtype_element_bytes(shard->dtype);
}

static bool copy_target_box(const int64_t *start, const int64_t *extent, void *context)
{
    struct slice_run *run = context;
    const struct shard_slice *slice = run->slice;
    int rank = slice->target->rank;
    int64_t at[RANK_MAX + 1], from[RANK_MAX + 1];
    if (!box_intersect(rank, start, extent, run->box_start, run->box_extent, at, run->spec.extent))
        return true;
    for (int axis = 0; axis < rank; axis++)
        from[slice->axes[axis]] = run->source.start[slice->axes[axis]] + at[axis] - run->target.start[axis];
    run->elements += (uint64_t)box_volume(rank, run->spec.extent);
    copy_run(&run->spec, slice->source->data + element_place(slice->source, from), slice->target->data + element_place(slice->target, at));
    return true;
}

static bool copy_source_box(const int64_t *start, const int64_t *extent, void *context)
{
    struct slice_run *run = context;
    const struct shard_slice *slice = run->slice;
    int rank = slice->source->rank;
    int64_t at[RANK_MAX + 1], found[RANK_MAX + 1];
    if (!box_intersect(rank, start, extent, run->source.start, run->source.extent, at, found))
        return true;
    for (int axis = 0; axis < rank; axis++) {
        int from = slice->axes[axis];
        run->box_start[axis] = run->target.start[axis] + at[from] - run->source.start[from];
        run->box_extent[axis] = found[from];
    }
    return shard_boxes(slice->target, copy_target_box, run);
}

static void strides_set(struct slice_run *run)
{
    const struct shard_slice *slice = run->slice;
    int64_t source[RANK_MAX + 1], target[RANK_MAX + 1];
    strides_row_major(slice->source->rank, slice->source->extent, source);
    strides_row_major(slice->target->rank, slice->target->extent, target);
    for (int axis = 0; axis < slice->target->rank; axis++) {
        run->spec.source_stride[axis] = source[slice->axes[axis]] * dtype_element_bytes(slice->source->dtype);
        run->spec.target_stride[axis] = target[axis] * dtype_element_bytes(slice->target->dtype);
    }
}

reshard_status shard_slice_copy(const struct shard_slice *slice, uint64_t *elements, reshard_error *err)
{
    struct slice_run run = { .slice = slice,
                             .spec = { .rank = slice->target->rank,
                                       .source_dtype = slice->source->dtype,
                                       .target_dtype = slice->target->dtype,
                                       .via_count = slice->via_count,
                                       .via = slice->via } };
    *elements = 0;
    reshard_status status = side_find(slice->source_region, slice->source, "source", &run.source, err);
    if (!status)
        status = side_find(slice->target_region, slice->target, "target", &run.target, err);
    if (!status)
        status = shapes_check(&run, err);
    if (!status)
        status = types_check(slice, err);
    if (status)
        return status;
    strides_set(&run);
    shard_boxes(slice->source, copy_source_box, &run);
    *elements = run.elements;
    return RESHARD_OK;
}
