/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_state.h"

#include "base/checked.h"
#include "base/digest.h"

#define BEHIND_BYTES_MIN 65536 /* smaller writes are left to the final sync */
#define GAP_FED_MAX 4096       /* gaps up to this size cost less to go over than to jump */
#define FALLBACK_WINDOW_MAX ((size_t)4 << 20)

/* Bytes that wait to be written together with what follows them in memory and in the object. */
struct pending {
    uint32_t object;
    uint64_t offset;
    const uint8_t *bytes;
    uint64_t size;
};

static reshard_status name_target(const struct worker *worker, uint32_t object, reshard_status status, reshard_error *err)
{
    if (status)
        error_prefix(err, "target '%.*s'", STR_ARG(worker->engine->plan->target->objects[object].name));
    return status;
}

static reshard_status pending_flush(struct worker *worker, struct pending *pending, reshard_error *err)
{
    struct engine *engine = worker->engine;
    if (pending->size == 0)
        return RESHARD_OK;
    struct store_object *object = engine->objects[pending->object];
    reshard_status status = store_write_at(object, pending->offset, pending->bytes, (size_t)pending->size, err);
    if (!status && !engine->options->no_sync && pending->size >= BEHIND_BYTES_MIN)
        store_write_behind(object, pending->offset, pending->size);
    worker->bytes_written += pending->size;
    pending->size = 0;
    return name_target(worker, pending->object, status, err);
}

static reshard_status pending_add(struct worker *worker, struct pending *pending, uint32_t object, uint64_t offset, const uint8_t *bytes,
                                  uint64_t size, reshard_error *err)
{
    if (pending->size && pending->object == object && pending->offset + pending->size == offset &&
        pending->bytes + pending->size == bytes) {
        pending->size += size;
        return RESHARD_OK;
    }
    reshard_status status = pending_flush(worker, pending, err);
    *pending = (struct pending){ object, offset, bytes, size };
    return status;
}

/* Goes on with a CRC over bytes that are zero. */
static uint32_t crc_over_gap(uint32_t crc, uint64_t bytes)
{
    static const uint8_t zeros[GAP_FED_MAX];
    return bytes <= GAP_FED_MAX ? crc32_zip(crc, zeros, (size_t)bytes) : crc32_zip_combine(crc, crc32_zip_zeros(bytes), bytes);
}

/* The same for a piece whose bytes lie apart. The CRC is that of all from its first to its last byte, with zeros between its runs. */
static reshard_status spread_write(struct worker *worker, struct pending *pending, const struct job_shape *shape, const struct piece *piece,
                                   struct crc_part *crc, reshard_error *err)
{
    struct spread_runs runs;
    reshard_status status = RESHARD_OK;
    spread_runs_of(worker->engine->plan, shape, piece->chunk, &runs);
    for (uint64_t i = 0; i < runs.run_count && !status; i++) {
        uint64_t offset = spread_run_offset(&runs, i);
        const uint8_t *bytes = piece->memory + i * runs.run_bytes;
        if (crc) {
            crc->crc = crc_over_gap(crc->crc, offset - runs.offset - crc->bytes);
            crc->crc = crc32_zip(crc->crc, bytes, (size_t)runs.run_bytes);
            crc->bytes = offset - runs.offset + runs.run_bytes;
        }
        status = pending_add(worker, pending, piece->object, offset, bytes, runs.run_bytes, err);
    }
    if (crc)
        crc->offset = runs.offset - worker->engine->plan->target->chunks[piece->chunk].offset;
    return status;
}

/* Writes a piece, or leaves it pending, and takes its CRC if crc, which is zeroed but for the chunk, is not NULL. */
static reshard_status piece_write(struct worker *worker, struct pending *pending, const struct piece *piece, struct crc_part *crc,
                                  reshard_error *err)
{
    if (crc) {
        crc->offset = piece->offset - worker->engine->plan->target->chunks[piece->chunk].offset;
        crc->bytes = piece->bytes;
    }
    if (!piece->is_split) {
        if (crc)
            crc->crc = crc32_zip(crc->crc, piece->memory, (size_t)piece->bytes);
        return pending_add(worker, pending, piece->object, piece->offset, piece->memory, piece->bytes, err);
    }
    reshard_status status = RESHARD_OK;
    for (uint32_t i = piece->first_part; i < piece->first_part + piece->part_count && !status; i++) {
        const struct part *part = &worker->memory.parts[i];
        const uint8_t *bytes = part->target ? part->target : part->source;
        if (crc)
            crc->crc = crc32_zip(crc->crc, bytes, (size_t)part->bytes);
        status = pending_add(worker, pending, piece->object, part->target_offset, bytes, part->bytes, err);
    }
    return status;
}

reshard_status job_write(struct worker *worker, const struct job *job, const struct job_shape *shape, reshard_error *err)
{
    struct engine *engine = worker->engine;
    struct pending pending = { 0 };
    uint32_t crc_number = job->first_crc;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < worker->memory.piece_count && !status; i++) {
        const struct piece *piece = &worker->memory.pieces[i];
        const struct catalog_chunk *chunk = &engine->plan->target->chunks[piece->chunk];
        struct crc_part *crc = chunk->flags & CHUNK_WANT_CRC ? &engine->crc_parts[crc_number++] : NULL;
        if (crc)
            *crc = (struct crc_part){ .chunk = piece->chunk };
        status = piece->is_spread ? spread_write(worker, &pending, shape, piece, crc, err) : piece_write(worker, &pending, piece, crc, err);
    }
    return status ? status : pending_flush(worker, &pending, err);
}

/* The kernel declined: through memory then, a window at a time. */
static reshard_status copy_through_memory(struct worker *worker, const struct store_object *source, uint64_t source_offset,
                                          struct store_object *target, uint64_t target_offset, uint64_t bytes, reshard_error *err)
{
    size_t window = worker->memory.data_bytes < FALLBACK_WINDOW_MAX ? worker->memory.data_bytes : FALLBACK_WINDOW_MAX;
    const uint8_t *map = worker->engine->origins->use_maps ? store_object_map(source) : NULL;
    while (bytes > 0) {
        size_t size = bytes < window ? (size_t)bytes : window;
        bool is_mapped = map && range_fits(source_offset, size, store_object_size(source));
        reshard_status status = is_mapped ? RESHARD_OK : store_read_at(source, source_offset, worker->memory.data, size, err);
        if (!status)
            status = store_write_at(target, target_offset, is_mapped ? map + source_offset : worker->memory.data, size, err);
        if (status)
            return status;
        source_offset += size;
        target_offset += size;
        bytes -= size;
    }
    return RESHARD_OK;
}

reshard_status job_copy(struct worker *worker, const struct job_shape *shape, reshard_error *err)
{
    struct engine *engine = worker->engine;
    const struct plan_step *step = &engine->plan->steps[shape->items[0]];
    const struct catalog_chunk *source_chunk = &engine->plan->source->chunks[step->source_chunk];
    uint32_t target_number = engine->plan->target->chunks[step->target_chunk].object;
    struct store_object *source, *target = engine->objects[target_number];
    struct plan_copy copy;
    reshard_status status = plan_step_copy(engine->plan, step, &copy, err);
    if (status)
        return status;
    status = origin_take(engine->origins, source_chunk->object, &source, err);
    if (status)
        return status;
    uint64_t from = copy.source_offset + shape->run_begin, to = copy.target_offset + shape->run_begin;
    status = worker->copy_refused ? RESHARD_ERR_UNSUPPORTED : store_copy_range(source, from, target, to, shape->run_bytes, err);
    if (status == RESHARD_ERR_UNSUPPORTED) {
        worker->copy_refused = true;
        status = copy_through_memory(worker, source, from, target, to, shape->run_bytes, err);
    }
    origin_give(engine->origins, source_chunk->object);
    if (!status && !engine->options->no_sync)
        store_write_behind(target, to, shape->run_bytes);
    worker->bytes_read += shape->run_bytes;
    worker->bytes_written += shape->run_bytes;
    if (status)
        error_prefix(err, "tensor '%.*s' from '%.*s' to '%.*s'",
                     STR_ARG(engine->plan->target->tensors[engine->plan->target->chunks[step->target_chunk].tensor].key),
                     STR_ARG(engine->plan->source->objects[source_chunk->object].name),
                     STR_ARG(engine->plan->target->objects[target_number].name));
    return status;
}
