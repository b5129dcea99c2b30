/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_blocks.h"

bool spec_is_identity(const struct copy_spec *spec)
{
    struct copy_spec element; /* its axes, of which it has none, are left alone: they are 1.5 KiB */
    uint64_t bytes;
    element.rank = 0;
    element.source_dtype = spec->source_dtype;
    element.target_dtype = spec->target_dtype;
    element.flags = spec->flags;
    element.via = spec->via;
    element.via_count = spec->via_count;
    return copy_is_plain_run(&element, &bytes);
}

uint64_t spec_source_bytes(const struct copy_spec *spec)
{
    uint64_t bytes = dtype_element_bytes(spec->source_dtype);
    for (int axis = 0; axis < spec->rank; axis++)
        bytes += (uint64_t)(spec->extent[axis] - 1) * (uint64_t)spec->source_stride[axis];
    return bytes;
}

uint64_t spec_target_bytes(const struct copy_spec *spec)
{
    uint64_t bytes = dtype_element_bytes(spec->target_dtype);
    for (int axis = 0; axis < spec->rank; axis++)
        bytes += (uint64_t)(spec->extent[axis] - 1) * (uint64_t)spec->target_stride[axis];
    return bytes;
}

bool spec_runs(const struct copy_spec *simple, uint64_t *run_bytes, uint64_t *run_count)
{
    int64_t element = dtype_element_bytes(simple->source_dtype);
    int inner = simple->rank - 1;
    *run_bytes = (uint64_t)element;
    *run_count = 1;
    if (!spec_is_identity(simple))
        return false;
    for (int axis = 0; axis < simple->rank; axis++) {
        if (axis == inner && simple->source_stride[axis] == element && simple->target_stride[axis] == element)
            *run_bytes = (uint64_t)(element * simple->extent[axis]);
        else if (simple->source_stride[axis] == 0)
            return false;
        else
            *run_count *= (uint64_t)simple->extent[axis];
    }
    return true;
}

/* Axes by source stride, smallest first. */
static void axes_by_stride(const struct copy_spec *spec, int axes[RANK_MAX])
{
    for (int axis = 0; axis < spec->rank; axis++) {
        int at = axis;
        for (; at > 0 && spec->source_stride[axes[at - 1]] > spec->source_stride[axis]; at--)
            axes[at] = axes[at - 1];
        axes[at] = axis;
    }
}

void blocks_of(const struct copy_spec *simple, unsigned fill_min, struct blocks *out)
{
    int axes[RANK_MAX], inner = 0;
    double wanted = dtype_element_bytes(simple->source_dtype);
    *out = (struct blocks){ .block_bytes = dtype_element_bytes(simple->source_dtype), .block_count = 1 };
    axes_by_stride(simple, axes);
    for (; inner < simple->rank; inner++) {
        uint64_t stride = (uint64_t)simple->source_stride[axes[inner]], count = (uint64_t)simple->extent[axes[inner]];
        uint64_t gap = stride > out->block_bytes ? stride - out->block_bytes : 0;
        uint64_t joined = out->block_bytes + stride * (count - 1);
        double wanted_after = stride ? wanted * (double)count : wanted;
        if (gap > GAP_MAX || (gap > GAP_ALWAYS && wanted_after * fill_min < (double)joined))
            break;
        out->block_bytes = joined;
        wanted = wanted_after;
    }
    for (int i = simple->rank - 1; i >= inner; i--) {
        out->outer_axis[out->outer_rank++] = axes[i];
        out->block_count *= (uint64_t)simple->extent[axes[i]];
    }
}

uint64_t block_offset(const struct copy_spec *simple, const struct blocks *blocks, uint64_t index)
{
    uint64_t offset = 0;
    for (int i = blocks->outer_rank - 1; i >= 0; i--) {
        int axis = blocks->outer_axis[i];
        uint64_t extent = (uint64_t)simple->extent[axis];
        offset += index % extent * (uint64_t)simple->source_stride[axis];
        index /= extent;
    }
    return offset;
}

void blocks_pack(struct copy_spec *simple, const struct blocks *blocks)
{
    uint64_t stride = blocks->block_bytes;
    for (int i = blocks->outer_rank - 1; i >= 0; i--) {
        int axis = blocks->outer_axis[i];
        simple->source_stride[axis] = (int64_t)stride;
        stride *= (uint64_t)simple->extent[axis];
    }
}
