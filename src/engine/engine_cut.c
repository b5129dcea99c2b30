/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_cut.h"

#include <inttypes.h>

#include "catalog/catalog_cover.h"

/* Runs of a tile are this much longer in the target than in the source: short writes cost more than short reads. */
#define TILE_RATIO 4

/* A box still to be cut; its steps are [begin, end) of the stack. */
struct cut_frame {
    int64_t start[RANK_MAX], extent[RANK_MAX];
    size_t begin, end;
};

bool step_is_encoded(const struct plan *plan, uint32_t step)
{
    if (plan->steps[step].source_chunk == CATALOG_NONE)
        return false;
    return catalog_chunk_is_coded(plan->source, &plan->source->chunks[plan->steps[step].source_chunk]);
}

bool step_is_decoded(const struct plan *plan, uint32_t step)
{
    if (plan->steps[step].source_chunk == CATALOG_NONE)
        return false;
    const struct chunk_layout *layout = catalog_layout_of(plan->source, &plan->source->chunks[plan->steps[step].source_chunk]);
    return layout && layout->chain;
}

bool step_is_streamed(const struct plan *plan, uint32_t step)
{
    if (plan->steps[step].source_chunk == CATALOG_NONE)
        return false;
    const struct chunk_layout *layout = catalog_layout_of(plan->source, &plan->source->chunks[plan->steps[step].source_chunk]);
    return layout && layout->codec != CODEC_NONE;
}

uint64_t step_bytes(const struct plan *plan, uint32_t step_index)
{
    const struct plan_step *step = &plan->steps[step_index];
    const struct catalog_tensor *tensor = &plan->target->tensors[plan->target->chunks[step->target_chunk].tensor];
    uint64_t elements = (uint64_t)box_volume(tensor->rank, plan->vectors + step->extent), bytes = 0;
    return dtype_bytes(tensor->dtype, elements, &bytes) ? bytes : UINT64_MAX / 4;
}

reshard_status lane_open(struct cutter *cutter, bool is_exclusive, reshard_error *err)
{
    struct job_list *list = cutter->list;
    struct lane *lanes = (struct lane *)(void *)list->lane_bytes.data;
    if (list->lane_count && !cutter->mode->is_stream && !is_exclusive && !lanes[list->lane_count - 1].is_exclusive)
        return RESHARD_OK;
    struct lane lane = { .first_job = list->job_count,
                         .end_job = list->job_count,
                         .next_job = list->job_count,
                         .next_turn = list->job_count,
                         .is_exclusive = is_exclusive };
    if (!buffer_append(&list->lane_bytes, &lane, sizeof(lane)))
        return error_set_memory(err);
    list->lane_count++;
    return RESHARD_OK;
}

/* Target chunks of the job that want their CRC; items of one chunk follow each other. */
static uint32_t shape_crc_count(const struct plan *plan, const struct job_shape *shape)
{
    uint32_t count = 0, previous = CATALOG_NONE;
    for (uint32_t i = 0; i < shape->item_count; i++) {
        if (shape->items[i] & ITEM_EMPTY)
            continue;
        uint32_t chunk = plan->steps[shape->items[i]].target_chunk;
        count += chunk != previous && plan->target->chunks[chunk].flags & CHUNK_WANT_CRC;
        previous = chunk;
    }
    return count;
}

reshard_status job_add(struct cutter *cutter, const struct job_shape *shape, uint64_t target_bytes, reshard_error *err)
{
    const struct plan *plan = cutter->mode->plan;
    struct job_list *list = cutter->list;
    size_t first_item = list->item_bytes.size / sizeof(uint32_t);
    struct job job = {
        .target_bytes = target_bytes,
        .run_begin = shape->run_begin,
        .box = list->box_bytes.size / sizeof(int64_t),
        .kind = shape->kind,
        .lane = list->lane_count - 1,
        .first_item = (uint32_t)first_item,
        .item_count = shape->item_count,
        .first_crc = list->crc_count,
        .crc_count = cutter->mode->is_stream ? 0 : shape_crc_count(plan, shape),
    };
    if (list->job_count >= JOB_NONE - 1 || first_item + shape->item_count > UINT32_MAX || job.crc_count > UINT32_MAX - list->crc_count)
        return error_set(err, RESHARD_ERR_LIMIT, "more than 2^32 jobs; a larger reshard_run_options.memory_bytes makes fewer");
    if (!buffer_append(&list->job_bytes, &job, sizeof(job)) ||
        !buffer_append(&list->item_bytes, shape->items, shape->item_count * sizeof(uint32_t)))
        return error_set_memory(err);
    if (shape->start) {
        size_t bytes = (size_t)plan->recipes[plan->steps[shape->items[0]].recipe].rank * sizeof(int64_t);
        if (!buffer_append(&list->box_bytes, shape->start, bytes) || !buffer_append(&list->box_bytes, shape->extent, bytes))
            return error_set_memory(err);
    }
    list->crc_count += job.crc_count;
    list->job_count++;
    ((struct lane *)(void *)list->lane_bytes.data)[list->lane_count - 1].end_job = list->job_count;
    return RESHARD_OK;
}

reshard_status run_cut(struct cutter *cutter, uint32_t step, enum job_kind kind, uint64_t window_bytes, reshard_error *err)
{
    uint64_t bytes = step_bytes(cutter->mode->plan, step);
    reshard_status status = RESHARD_OK;
    for (uint64_t begin = 0; begin < bytes && !status; begin += window_bytes) {
        uint64_t size = bytes - begin < window_bytes ? bytes - begin : window_bytes;
        struct job_shape shape = { .kind = kind, .items = &step, .item_count = 1, .run_begin = begin, .run_bytes = size };
        status = job_add(cutter, &shape, size, err);
    }
    return status;
}

/* What does not change while one tensor is cut. */
struct cut_tensor {
    struct cutter *cutter;
    const struct catalog_tensor *tensor;
    const int64_t *shape;
    uint64_t target_max;
    bool may_tile;
};

static bool box_is_run(const struct cut_tensor *cut, const struct cut_frame *frame)
{
    int axis = 0;
    while (axis < cut->tensor->rank && frame->extent[axis] == 1)
        axis++;
    for (axis++; axis < cut->tensor->rank; axis++)
        if (frame->extent[axis] != cut->shape[axis])
            return false;
    return true;
}

static const uint32_t *frame_items(const struct cut_tensor *cut, const struct cut_frame *frame)
{
    return (const uint32_t *)(const void *)cut->cutter->stack.data + frame->begin;
}

/* The outermost axis on which the box can be cut, in the order in which the first of its target chunks lies; -1: there is none. */
static int target_axis(const struct cut_tensor *cut, const struct cut_frame *frame)
{
    const struct plan *plan = cut->cutter->mode->plan;
    int64_t strides[RANK_MAX];
    int order[RANK_MAX];
    catalog_chunk_strides(plan->target, &plan->target->chunks[plan->steps[frame_items(cut, frame)[0]].target_chunk], strides);
    strides_order(cut->tensor->rank, strides, order);
    for (int i = 0; i < cut->tensor->rank; i++) {
        int axis = cut->may_tile ? order[i] : i;
        if (frame->extent[axis] > 1)
            return axis;
    }
    return -1;
}

/* The axis of the box on which the source reaches farthest, or -1. */
static reshard_status engine_cut_source_axis(const struct cut_tensor *cut, const struct cut_frame *frame, int *axis, reshard_error *err)
{
    const struct plan *plan = cut->cutter->mode->plan;
    const struct plan_step *step = &plan->steps[frame_items(cut, frame)[0]];
    int64_t start[RANK_MAX], extent[RANK_MAX], farthest = -1;
    struct plan_copy copy;
    *axis = -1;
    box_intersect(cut->tensor->rank, plan->vectors + step->start, plan->vectors + step->extent, frame->start, frame->extent, start, extent);
    reshard_status status = plan_part_copy(plan, step, start, extent, &copy, err);
    for (int i = 0; i < cut->tensor->rank && !status; i++) {
        if (frame->extent[i] > 1 && copy.spec.source_stride[i] > farthest) {
            farthest = copy.spec.source_stride[i];
            *axis = i;
        }
    }
    return status;
}

/*
 * Where the source is a grid of chunks that are decoded as a whole, a box no higher than a chunk is cut between its chunks, so that each of
 * them is wanted by few boxes.
 */
static int chunk_axis(const struct cut_tensor *cut, const struct cut_frame *frame, int outermost)
{
    const struct plan *plan = cut->cutter->mode->plan;
    const int64_t *extent = plan->vectors + plan->steps[frame_items(cut, frame)[0]].extent;
    if (frame->extent[outermost] > extent[outermost])
        return outermost;
    for (int axis = outermost + 1; axis < cut->tensor->rank; axis++)
        if (frame->extent[axis] > extent[axis])
            return axis;
    return outermost;
}

static reshard_status split_axis(const struct cut_tensor *cut, const struct cut_frame *frame, int *axis, reshard_error *err)
{
    int outermost = target_axis(cut, frame), farthest = 0;
    if (outermost < 0) {
        error_set(err, RESHARD_ERR_LIMIT, "tensor '%.*s': one element with its %zu sources and copies does not fit into a worker's memory",
                  STR_ARG(cut->tensor->key), frame->end - frame->begin);
        error_hint(err, "raise reshard_run_options.memory_bytes or lower reshard_run_options.threads");
        return RESHARD_ERR_LIMIT;
    }
    *axis = outermost;
    if (!cut->may_tile)
        return RESHARD_OK;
    if (step_is_encoded(cut->cutter->mode->plan, frame_items(cut, frame)[0])) {
        *axis = chunk_axis(cut, frame, outermost);
        return RESHARD_OK;
    }
    reshard_status status = engine_cut_source_axis(cut, frame, &farthest, err);
    if (!status && farthest != outermost && frame->extent[farthest] / TILE_RATIO > frame->extent[outermost])
        *axis = farthest;
    return status;
}

/* Pushes the half of the frame on the axis from start on, with the steps that reach into it. */
static bool half_push(const struct cut_tensor *cut, const struct cut_frame *frame, int axis, int64_t start, int64_t extent)
{
    struct cutter *cutter = cut->cutter;
    const struct plan *plan = cutter->mode->plan;
    struct cut_frame half = *frame;
    half.start[axis] = start;
    half.extent[axis] = extent;
    half.begin = cutter->stack.size / sizeof(uint32_t);
    if (!buffer_reserve(&cutter->stack, (frame->end - frame->begin) * sizeof(uint32_t)))
        return false;
    for (size_t i = 0; i < frame->end - frame->begin; i++) {
        uint32_t item = frame_items(cut, frame)[i];
        const struct plan_step *step = &plan->steps[item];
        int64_t step_start = plan->vectors[step->start + (uint32_t)axis], step_extent = plan->vectors[step->extent + (uint32_t)axis];
        if (step_start < start + extent && step_start + step_extent > start && !buffer_append(&cutter->stack, &item, sizeof(item)))
            return false;
    }
    half.end = cutter->stack.size / sizeof(uint32_t);
    return half.end == half.begin || buffer_append(&cutter->frames, &half, sizeof(half));
}

static reshard_status frame_fits(const struct cut_tensor *cut, const struct job_shape *shape, bool *fits, reshard_error *err)
{
    const struct cutter *cutter = cut->cutter;
    uint64_t bytes;
    *fits = shape->item_count <= cutter->budget->parts_max &&
            dtype_bytes(cut->tensor->dtype, (uint64_t)box_volume(cut->tensor->rank, shape->extent), &bytes) && bytes <= cut->target_max;
    return *fits ? job_layout(cutter->mode, shape, cutter->scratch, fits, err) : RESHARD_OK;
}

/* Makes the frame a job, or two frames. */
static reshard_status frame_cut(const struct cut_tensor *cut, const struct cut_frame *frame, reshard_error *err)
{
    struct job_shape shape = {
        .kind = box_is_run(cut, frame) ? JOB_BOX : JOB_TILE,
        .items = frame_items(cut, frame),
        .item_count = (uint32_t)(frame->end - frame->begin),
        .start = frame->start,
        .extent = frame->extent,
    };
    bool fits;
    int axis;
    reshard_status status = frame_fits(cut, &shape, &fits, err);
    if (status)
        return status;
    if (fits) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < cut->cutter->scratch->piece_count; i++)
            bytes += cut->cutter->scratch->pieces[i].bytes;
        return job_add(cut->cutter, &shape, bytes, err);
    }
    status = split_axis(cut, frame, &axis, err);
    if (status)
        return status;
    int64_t half = frame->extent[axis] / 2;
    if (!half_push(cut, frame, axis, frame->start[axis] + half, frame->extent[axis] - half) ||
        !half_push(cut, frame, axis, frame->start[axis], half))
        return error_set_memory(err);
    return RESHARD_OK;
}

/* Whether none of the tensor's target chunks must be written front to back. */
static bool tensor_may_tile(const struct cutter *cutter, const struct catalog_tensor *tensor, const uint32_t *steps, uint32_t count)
{
    const struct plan *plan = cutter->mode->plan;
    for (uint32_t c = tensor->first_chunk; c < tensor->first_chunk + tensor->chunk_count; c++) {
        const struct catalog_chunk *chunk = &plan->target->chunks[c];
        const struct chunk_layout *layout = catalog_layout_of(plan->target, chunk);
        bool wants_order = chunk->flags & CHUNK_WANT_CRC && !catalog_chunk_is_strided(plan->target, chunk);
        if (wants_order || (layout && layout->flat_count >= 0))
            return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (step_is_streamed(plan, steps[i]))
            return false;
    return !cutter->mode->is_stream;
}

/* Whether the chunks side by side in the tensor, decoded, are more than the half of what can be kept. */
static bool chunk_row_is_wide(const struct cut_tensor *cut, uint32_t step_index)
{
    const struct plan *plan = cut->cutter->mode->plan;
    const struct plan_step *step = &plan->steps[step_index];
    if (!step_is_encoded(plan, step_index) || step_is_streamed(plan, step_index))
        return false;
    const struct chunk_layout *layout = catalog_layout_of(plan->source, &plan->source->chunks[step->source_chunk]);
    uint64_t room = cut->cutter->budget->decoded_bytes / 2, row = layout->chain->decoded_bytes;
    for (int axis = 1; axis < cut->tensor->rank && row <= room; axis++)
        row *= (uint64_t)(cut->shape[axis] / plan->vectors[step->extent + (uint32_t)axis]) + 1;
    return row > room;
}

reshard_status box_cut(struct cutter *cutter, uint32_t tensor_index, const uint32_t *steps, uint32_t count, reshard_error *err)
{
    const struct catalog_tensor *tensor = &cutter->mode->plan->target->tensors[tensor_index];
    struct cut_tensor cut = { .cutter = cutter,
                              .tensor = tensor,
                              .target_max = cutter->target_max,
                              .shape = catalog_vector_at(cutter->mode->plan->target, tensor->shape) };
    struct cut_frame frame = { .end = count };
    int axis;
    for (int i = 0; i < tensor->rank; i++)
        frame.extent[i] = cut.shape[i];
    cut.may_tile = tensor_may_tile(cutter, tensor, steps, count);
    buffer_clear(&cutter->frames);
    buffer_clear(&cutter->stack);
    if (!buffer_append(&cutter->stack, steps, count * sizeof(*steps)) || !buffer_append(&cutter->frames, &frame, sizeof(frame)))
        return error_set_memory(err);
    reshard_status status = engine_cut_source_axis(&cut, &frame, &axis, err);
    /* A window of a transposed tensor reads all over the source, and one across more chunks than can be kept decodes them all: the fewer
     * windows the better. */
    if (cutter->mode->is_stream && (axis != target_axis(&cut, &frame) || chunk_row_is_wide(&cut, steps[0])))
        cut.target_max = cutter->budget->data_bytes / 2;
    while (cutter->frames.size && !status) {
        cutter->frames.size -= sizeof(frame);
        memcpy(&frame, cutter->frames.data + cutter->frames.size, sizeof(frame));
        cutter->stack.size = frame.end * sizeof(uint32_t);
        status = frame_cut(&cut, &frame, err);
    }
    return status;
}
