/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/shard.h"

#include <inttypes.h>

static reshard_status shard_check_strides(const struct shard *shard, reshard_error *err)
{
    int64_t end;
    if (!shard->strides)
        return RESHARD_OK;
    if (shard->is_flattened)
        return error_set(err, RESHARD_ERR_USAGE, "shard of '%.*s': a flat range has no strides", STR_ARG(shard->key));
    if (!dtype_element_bytes(shard->dtype))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "shard of '%.*s': elements of %s have no strides", STR_ARG(shard->key),
                         dtype_info(shard->dtype)->name);
    if (!strides_span(shard->rank, shard->extent, shard->strides, &end) || !strides_are_apart(shard->rank, shard->extent, shard->strides))
        return error_set(err, RESHARD_ERR_USAGE, "shard of '%.*s': strides are negative, too large, or give two elements one place",
                         STR_ARG(shard->key));
    return RESHARD_OK;
}

reshard_status shard_check(const struct shard *shard, reshard_error *err)
{
    int64_t volume;
    int axis;
    if (!shape_volume(shard->rank, shard->shape, &volume))
        return error_set(err, RESHARD_ERR_USAGE, "shard of '%.*s': the global shape has a negative extent or too many elements",
                         STR_ARG(shard->key));
    if (!box_check(shard->rank, shard->start, shard->extent, shard->shape, &axis))
        return error_set(err, RESHARD_ERR_USAGE,
                         "shard of '%.*s': axis %d: offset %" PRId64 " and extent %" PRId64 " leave the global extent of %" PRId64,
                         STR_ARG(shard->key), axis, shard->start[axis], shard->extent[axis], shard->shape[axis]);
    volume = box_volume(shard->rank, shard->extent);
    if (shard->is_flattened && (shard->flat_begin < 0 || shard->flat_begin >= shard->flat_end || shard->flat_end > volume))
        return error_set(err, RESHARD_ERR_USAGE,
                         "shard of '%.*s': flat range [%" PRId64 ", %" PRId64 ") is empty or leaves the box of %" PRId64 " elements",
                         STR_ARG(shard->key), shard->flat_begin, shard->flat_end, volume);
    return shard_check_strides(shard, err);
}

struct run_boxes {
    const struct shard *shard;
    shard_box_emit emit;
    void *context;
};

static bool run_box_in_whole(const int64_t *start, const int64_t *extent, int64_t flat_index, void *context)
{
    const struct run_boxes *run = context;
    int64_t moved[RANK_MAX + 1];
    (void)flat_index;
    for (int axis = 0; axis < run->shard->rank; axis++)
        moved[axis] = run->shard->start[axis] + start[axis];
    return run->emit(moved, extent, run->context);
}

bool shard_boxes(const struct shard *shard, shard_box_emit emit, void *context)
{
    struct run_boxes run = { shard, emit, context };
    if (!shard->is_flattened)
        return box_is_empty(shard->rank, shard->extent) || emit(shard->start, shard->extent, context);
    return flat_run_boxes(shard->rank, shard->extent, shard->flat_begin, shard->flat_end - shard->flat_begin, run_box_in_whole, &run);
}

bool shard_bytes(const struct shard *shard, uint64_t *out)
{
    int64_t count = shard->is_flattened ? shard->flat_end - shard->flat_begin : box_volume(shard->rank, shard->extent);
    return dtype_bytes(shard->dtype, (uint64_t)count, out);
}

bool shard_span(const struct shard *shard, uint64_t *out)
{
    int64_t end;
    if (!shard->strides)
        return shard_bytes(shard, out);
    return strides_span(shard->rank, shard->extent, shard->strides, &end) && dtype_bytes(shard->dtype, (uint64_t)end, out);
}
