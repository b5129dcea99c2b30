/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "engine/engine_blocks.h"
#include "base/array.h"
#include "engine/engine_cut.h"

#define STREAM_TARGET_MAX ((uint64_t)1 << 20) /* windows stay in a CPU's cache between reading and hashing */
#define STREAM_BATCH_MAX ((uint64_t)1 << 20)
#define WRITE_TARGET_MAX ((uint64_t)8 << 20)
#define WRITE_BATCH_MAX ((uint64_t)4 << 20)
#define COPY_CHUNK_MIN ((uint64_t)1 << 20) /* target chunks from this size on, made of runs */
#define COPY_RUN_MIN ((uint64_t)128 << 10) /* of at least this size, are left to the kernel */
#define COPY_WINDOW ((uint64_t)32 << 20)   /* after which a worker looks up */
#define ITEM_SLACK 256                     /* alignment of one item's memory, generously */

static int engine_batch_compare_items(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

/* Makes a job of the small tensors gathered so far. */
static reshard_status batch_close(struct cutter *cutter, reshard_error *err)
{
    uint32_t count = (uint32_t)(cutter->batch.size / sizeof(uint32_t));
    if (count == 0)
        return RESHARD_OK;
    uint32_t *items = (uint32_t *)(void *)cutter->batch.data;
    /* In the order of the target's bytes, so that neighbours are written together; a sink wants the tensors' own order. */
    if (!cutter->mode->is_stream)
        qsort(items, count, sizeof(*items), engine_batch_compare_items);
    struct job_shape shape = { .kind = JOB_WHOLE, .items = items, .item_count = count };
    reshard_status status = lane_open(cutter, false, err);
    if (!status)
        status = job_add(cutter, &shape, cutter->batch_target, err);
    buffer_clear(&cutter->batch);
    cutter->batch_target = cutter->batch_need = 0;
    return status;
}

/* At most so many bytes of its source does the step read: the chunk's, or what the step spans of it if that is much less. */
static uint64_t step_source_bytes(const struct plan *plan, uint32_t step, uint64_t bytes)
{
    if (plan->steps[step].source_chunk == CATALOG_NONE)
        return 0;
    const struct catalog_chunk *chunk = &plan->source->chunks[plan->steps[step].source_chunk];
    struct plan_copy copy;
    if (chunk->bytes / 2 <= bytes || chunk->flags & CHUNK_UNRESOLVED || plan_step_copy(plan, &plan->steps[step], &copy, NULL))
        return chunk->bytes;
    return spec_source_bytes(&copy.spec);
}

/* Takes the tensor into the batch if it is small; *taken says so. Sources are not taken as shared, so that no layout is needed to know that
 * it fits. */
static reshard_status batch_take(struct cutter *cutter, const uint32_t *items, uint32_t count, bool *taken, reshard_error *err)
{
    const struct plan *plan = cutter->mode->plan;
    uint64_t target = 0, need = 0;
    *taken = false;
    if (count > cutter->budget->parts_max)
        return RESHARD_OK;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i] & ITEM_EMPTY)
            continue;
        uint64_t bytes = step_bytes(plan, items[i]);
        uint64_t source_bytes = bytes > cutter->batch_target_max ? 0 : step_source_bytes(plan, items[i], bytes);
        if (bytes > cutter->batch_target_max || source_bytes > cutter->budget->data_bytes)
            return RESHARD_OK;
        target += bytes;
        need += bytes + source_bytes + ITEM_SLACK + 3 * cutter->mode->source_align;
        if (target > cutter->batch_target_max || need > cutter->budget->data_bytes)
            return RESHARD_OK;
    }
    bool has_room = cutter->batch.size / sizeof(uint32_t) + count <= cutter->budget->parts_max &&
                    cutter->batch_target + target <= cutter->batch_target_max && cutter->batch_need + need <= cutter->budget->data_bytes;
    reshard_status status = has_room ? RESHARD_OK : batch_close(cutter, err);
    if (status)
        return status;
    if (!buffer_append(&cutter->batch, items, count * sizeof(*items)))
        return error_set_memory(err);
    cutter->batch_target += target;
    cutter->batch_need += need;
    *taken = true;
    return RESHARD_OK;
}

/* Whether the kernel can make the chunk: its steps are all long runs of unchanged bytes. */
static bool chunk_is_copyable(const struct cutter *cutter, const uint32_t *steps, uint32_t count)
{
    const struct plan *plan = cutter->mode->plan;
    uint64_t total = 0, run_bytes;
    if (plan->target->chunks[plan->steps[steps[0]].target_chunk].flags & CHUNK_WANT_CRC)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bytes = step_bytes(plan, steps[i]);
        struct plan_copy copy;
        if (bytes < COPY_RUN_MIN || plan->steps[steps[i]].source_chunk == CATALOG_NONE || step_is_encoded(plan, steps[i]) ||
            plan->source->chunks[plan->steps[steps[i]].source_chunk].flags & CHUNK_UNRESOLVED)
            return false;
        if (plan_step_copy(plan, &plan->steps[steps[i]], &copy, NULL) || !copy_is_plain_run(&copy.spec, &run_bytes))
            return false;
        total += bytes;
    }
    return total >= COPY_CHUNK_MIN;
}

/* Makes copy jobs of the target chunks that allow it and moves the other steps to the front; *count is how many these are. */
static reshard_status copyable_cut(struct cutter *cutter, uint32_t *steps, uint32_t *count, reshard_error *err)
{
    const struct plan *plan = cutter->mode->plan;
    uint32_t kept = 0;
    if (cutter->mode->is_stream || cutter->io != ENGINE_IO_AUTO)
        return RESHARD_OK;
    for (uint32_t begin = 0, end; begin < *count; begin = end) {
        uint32_t chunk = plan->steps[steps[begin]].target_chunk;
        for (end = begin; end < *count && plan->steps[steps[end]].target_chunk == chunk; end++)
            continue;
        if (!chunk_is_copyable(cutter, steps + begin, end - begin)) {
            for (uint32_t i = begin; i < end; i++)
                steps[kept++] = steps[i];
            continue;
        }
        reshard_status status = lane_open(cutter, false, err);
        for (uint32_t i = begin; i < end && !status; i++)
            status = run_cut(cutter, steps[i], JOB_COPY, COPY_WINDOW, err);
        if (status)
            return status;
    }
    *count = kept;
    return RESHARD_OK;
}

static reshard_status large_cut(struct cutter *cutter, uint32_t tensor, const uint32_t *steps, uint32_t count, reshard_error *err)
{
    const struct plan *plan = cutter->mode->plan;
    bool is_streamed = false;
    for (uint32_t i = 0; i < count; i++)
        is_streamed |= step_is_streamed(plan, steps[i]);
    reshard_status status = batch_close(cutter, err);
    if (!status)
        status = lane_open(cutter, is_streamed, err);
    if (!status && dtype_element_bytes(plan->target->tensors[tensor].dtype))
        return box_cut(cutter, tensor, steps, count, err);
    uint64_t window = cutter->budget->data_bytes / 2 - ITEM_SLACK - 2 * cutter->mode->source_align;
    window = window > cutter->target_max ? cutter->target_max : window;
    for (uint32_t i = 0; i < count && !status; i++)
        status = run_cut(cutter, steps[i], JOB_RUN, window, err);
    return status;
}

static reshard_status tensor_cut(struct cutter *cutter, uint32_t tensor, uint32_t *steps, uint32_t count, reshard_error *err)
{
    bool taken = false;
    uint32_t empty = ITEM_EMPTY | tensor;
    if (count == 0)
        return batch_take(cutter, &empty, 1, &taken, err);
    reshard_status status = copyable_cut(cutter, steps, &count, err);
    if (status || count == 0)
        return status;
    status = batch_take(cutter, steps, count, &taken, err);
    return status || taken ? status : large_cut(cutter, tensor, steps, count, err);
}

/* Steps by target tensor: those of tensor t are steps[first[t]] … steps[first[t + 1] - 1], ascending. */
static void steps_by_tensor(const struct plan *plan, uint32_t *first, uint32_t *steps)
{
    uint32_t tensor_count = plan->target->tensor_count;
    for (uint32_t i = 0; i < plan->step_count; i++)
        first[plan->target->chunks[plan->steps[i].target_chunk].tensor + 1]++;
    for (uint32_t t = 0; t < tensor_count; t++)
        first[t + 1] += first[t];
    for (uint32_t i = 0; i < plan->step_count; i++)
        steps[first[plan->target->chunks[plan->steps[i].target_chunk].tensor]++] = i;
    for (uint32_t t = tensor_count; t > 0; t--)
        first[t] = first[t - 1];
    first[0] = 0;
}

/* Tensors in the order of their numbers for a sink, else in the order of their first byte in the target. */
static reshard_status tensors_cut(struct cutter *cutter, const uint32_t *first, uint32_t *steps, reshard_error *err)
{
    const struct plan *plan = cutter->mode->plan;
    reshard_status status = RESHARD_OK;
    if (cutter->mode->is_stream) {
        for (uint32_t t = 0; t < plan->target->tensor_count && !status; t++)
            status = tensor_cut(cutter, t, steps + first[t], first[t + 1] - first[t], err);
        return status ? status : batch_close(cutter, err);
    }
    uint8_t *is_done = array_zeroed(plan->target->tensor_count, 1);
    if (!is_done)
        return error_set_memory(err);
    for (uint32_t i = 0; i < plan->step_count && !status; i++) {
        uint32_t t = plan->target->chunks[plan->steps[i].target_chunk].tensor;
        if (!is_done[t])
            status = tensor_cut(cutter, t, steps + first[t], first[t + 1] - first[t], err);
        is_done[t] = 1;
    }
    free(is_done);
    return status ? status : batch_close(cutter, err);
}

reshard_status job_list_make(const struct layout_mode *mode, const struct engine_budget *budget, enum engine_io io,
                             struct job_memory *scratch, struct job_list *out, reshard_error *err)
{
    const struct plan *plan = mode->plan;
    struct cutter cutter = { .mode = mode, .budget = budget, .io = io, .scratch = scratch, .list = out };
    uint64_t half = budget->data_bytes / 2, target_max = mode->is_stream ? STREAM_TARGET_MAX : WRITE_TARGET_MAX;
    cutter.target_max = half < target_max ? half : target_max;
    cutter.batch_target_max = mode->is_stream ? STREAM_BATCH_MAX : WRITE_BATCH_MAX;

    *out = (struct job_list){ 0 };
    int64_t no_axes = 0; /* what boxes without axes point at */
    uint32_t *first = array_zeroed((size_t)plan->target->tensor_count + 2, sizeof(*first));
    uint32_t *steps = array_new(plan->step_count, sizeof(*steps));
    reshard_status status = RESHARD_OK;
    if (first && steps && buffer_append(&out->box_bytes, &no_axes, sizeof(no_axes))) {
        steps_by_tensor(plan, first, steps);
        status = tensors_cut(&cutter, first, steps, err);
    } else {
        status = error_set_memory(err);
    }
    free(first);
    free(steps);
    buffer_release(&cutter.batch);
    buffer_release(&cutter.stack);
    buffer_release(&cutter.frames);
    if (status) {
        job_list_release(out);
        return status;
    }
    out->jobs = (struct job *)(void *)out->job_bytes.data;
    out->lanes = (struct lane *)(void *)out->lane_bytes.data;
    out->items = (uint32_t *)(void *)out->item_bytes.data;
    out->boxes = (int64_t *)(void *)out->box_bytes.data;
    return RESHARD_OK;
}
