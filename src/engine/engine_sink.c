/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_state.h"

/* Bytes of one tensor that wait for what follows them in memory. */
struct window {
    uint32_t tensor;
    uint64_t offset; /* in the tensor */
    const uint8_t *bytes;
    uint64_t size;
};

static reshard_status window_flush(struct worker *worker, struct window *window, reshard_error *err)
{
    struct engine *engine = worker->engine;
    const struct catalog *target = engine->plan->target;
    if (window->size == 0)
        return RESHARD_OK;
    uint64_t tensor_bytes = target->chunks[target->tensors[window->tensor].first_chunk].bytes;
    bool is_last = window->offset + window->size == tensor_bytes;
    reshard_status status = engine->sink(engine->sink_context, engine->sink_tensors[window->tensor], window->offset, window->bytes,
                                         (size_t)window->size, is_last, err);
    window->size = 0;
    return status;
}

static reshard_status window_add(struct worker *worker, struct window *window, uint32_t tensor, uint64_t offset, const uint8_t *bytes,
                                 uint64_t size, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    if (window->size && window->tensor == tensor && window->offset + window->size == offset && window->bytes + window->size == bytes) {
        window->size += size;
        return RESHARD_OK;
    }
    status = window_flush(worker, window, err);
    *window = (struct window){ tensor, offset, bytes, size };
    return status;
}

/* Target tensors of a stream have one chunk each, so that a piece is all that the job has of a tensor. */
static reshard_status piece_sink(struct worker *worker, struct window *window, const struct piece *piece, reshard_error *err)
{
    uint64_t base = worker->engine->plan->target->chunks[piece->chunk].offset;
    if (!piece->is_split)
        return window_add(worker, window, piece->tensor, piece->offset - base, piece->memory, piece->bytes, err);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = piece->first_part; i < piece->first_part + piece->part_count && !status; i++) {
        const struct part *part = &worker->memory.parts[i];
        status = window_add(worker, window, piece->tensor, part->target_offset - base, part->target ? part->target : part->source,
                            part->bytes, err);
    }
    return status;
}

reshard_status job_sink(struct worker *worker, const struct job_shape *shape, reshard_error *err)
{
    struct engine *engine = worker->engine;
    struct window window = { 0 };
    uint32_t part = 0, piece = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < shape->item_count && !status; i++) {
        if (shape->items[i] & ITEM_EMPTY) {
            status = window_flush(worker, &window, err);
            if (!status)
                status = engine->sink(engine->sink_context, engine->sink_tensors[shape->items[i] & ~ITEM_EMPTY], 0, "", 0, true, err);
            continue;
        }
        if (worker->memory.pieces[piece].first_part == part)
            status = piece_sink(worker, &window, &worker->memory.pieces[piece], err);
        part++;
        if (part == worker->memory.pieces[piece].first_part + worker->memory.pieces[piece].part_count)
            piece++;
    }
    return status ? status : window_flush(worker, &window, err);
}
