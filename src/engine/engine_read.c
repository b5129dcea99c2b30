/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "base/checked.h"
#include "engine/engine_blocks.h"
#include "engine/engine_cut.h"
#include "engine/engine_state.h"

#define DIRECT_BYTES_MIN 65536 /* mapped or decoded runs from this size on are written from where they are */
#define HELD_CHUNKS_MAX 2      /* decoded chunks that a job may keep until its bytes are handed over */
#define AHEAD_JOBS_MAX 64      /* how far a worker looks for what it can decode while it would have to wait */

static void name_part(const struct worker *worker, const struct part *part, reshard_error *err)
{
    const struct plan *plan = worker->engine->plan;
    const struct plan_step *step = &plan->steps[part->step];
    if (step->source_chunk == CATALOG_NONE)
        return;
    struct str target = plan->target->tensors[plan->target->chunks[step->target_chunk].tensor].key;
    struct str object = plan->source->objects[plan->source->chunks[step->source_chunk].object].name;
    error_prefix(err, "tensor '%.*s' from '%.*s'", STR_ARG(target), STR_ARG(object));
    error_object(err, "%.*s", STR_ARG(object));
}

/* The object's bytes [offset, offset + bytes) where it is mapped, or NULL if it is not. */
static reshard_status map_find(const struct worker *worker, const struct store_object *object, uint64_t offset, uint64_t bytes,
                               const uint8_t **out, reshard_error *err)
{
    const uint8_t *map = worker->engine->origins->use_maps ? store_object_map(object) : NULL;
    *out = NULL;
    if (!map)
        return RESHARD_OK;
    if (!range_fits(offset, bytes, store_object_size(object)))
        return error_set_at(err, RESHARD_ERR_FORMAT, offset, "file of %" PRIu64 " bytes ends inside the %" PRIu64 " bytes at %" PRIu64,
                            store_object_size(object), bytes, offset);
    *out = map + offset;
    return RESHARD_OK;
}

static reshard_status range_read(struct worker *worker, struct range *range, reshard_error *err)
{
    struct origins *origins = worker->engine->origins;
    struct store_object *object;
    size_t size = (size_t)(range->end - range->begin);
    worker->bytes_read += size;
    range->source = range->memory;
    if (range->is_encoded)
        return stream_read(&worker->streams, range->origin, range->begin, range->memory, size, err);
    reshard_status status = origin_take(origins, range->origin, &object, err);
    if (status)
        return status;
    const uint8_t *map;
    status = map_find(worker, object, range->begin, size, &map, err);
    if (map) {
        range->source = map;
        range->pinned = object;
        return RESHARD_OK;
    }
    if (!status)
        status = store_read_at(object, range->begin, range->memory, size, err);
    origin_give(origins, range->origin);
    return status;
}

static reshard_status ranges_read(struct worker *worker, reshard_error *err)
{
    struct job_memory *memory = &worker->memory;
    for (uint32_t i = 0; i < memory->range_count; i++) {
        reshard_status status = range_read(worker, &memory->ranges[i], err);
        if (!status)
            continue;
        for (uint32_t p = 0; p < memory->part_count; p++) {
            if (memory->parts[p].kind == PART_RANGE && memory->parts[p].range == i) {
                name_part(worker, &memory->parts[p], err);
                break;
            }
        }
        return status;
    }
    return RESHARD_OK;
}

/* Moves a part whose source is in memory to its place, unless it can stay. */
static reshard_status part_move(struct worker *worker, const struct job_shape *shape, struct part *part, bool may_stay, reshard_error *err)
{
    struct plan_copy copy;
    const struct piece *piece = &worker->memory.pieces[part->piece];
    if (!part->target)
        return RESHARD_OK;
    if (part->is_plain && piece->is_split && may_stay && part->bytes >= DIRECT_BYTES_MIN) {
        part->target = NULL;
        return RESHARD_OK;
    }
    if (part->is_plain) {
        memcpy(part->target, part->source, (size_t)part->bytes);
        return RESHARD_OK;
    }
    reshard_status status = part_copy(&worker->engine->mode, shape, part, &copy, err);
    if (!status)
        copy_run(&copy.spec, part->source, part->target);
    return status;
}

/* Source and target offsets of run number index, from the first one. */
static void run_offsets(const struct copy_spec *simple, uint64_t index, uint64_t *source, uint64_t *target)
{
    int64_t element = dtype_element_bytes(simple->source_dtype);
    int axis = simple->rank - 1;
    *source = *target = 0;
    if (axis >= 0 && simple->source_stride[axis] == element && simple->target_stride[axis] == element)
        axis--;
    for (; axis >= 0; axis--) {
        uint64_t at = index % (uint64_t)simple->extent[axis];
        index /= (uint64_t)simple->extent[axis];
        *source += at * (uint64_t)simple->source_stride[axis];
        *target += at * (uint64_t)simple->target_stride[axis];
    }
}

static reshard_status runs_read(struct worker *worker, const struct store_object *object, const struct part *part,
                                const struct copy_spec *simple, reshard_error *err)
{
    uint64_t run_bytes, run_count, source, target;
    spec_runs(simple, &run_bytes, &run_count);
    for (uint64_t i = 0; i < run_count; i++) {
        run_offsets(simple, i, &source, &target);
        reshard_status status = store_read_at(object, part->source_offset + source, part->target + target, (size_t)run_bytes, err);
        if (status)
            return status;
        worker->bytes_read += run_bytes;
    }
    return RESHARD_OK;
}

static reshard_status blocks_read(struct worker *worker, const struct store_object *object, const struct part *part,
                                  struct copy_spec *simple, reshard_error *err)
{
    struct blocks blocks;
    blocks_of(simple, worker->memory.fill_min, &blocks);
    for (uint64_t i = 0; i < blocks.block_count; i++) {
        reshard_status status = store_read_at(object, part->source_offset + block_offset(simple, &blocks, i),
                                              part->packed + i * blocks.block_bytes, (size_t)blocks.block_bytes, err);
        if (status)
            return status;
        worker->bytes_read += blocks.block_bytes;
    }
    blocks_pack(simple, &blocks);
    copy_run(simple, part->packed, part->target);
    return RESHARD_OK;
}

/* Reads a part that has its bytes for itself. */
static reshard_status part_read(struct worker *worker, const struct job_shape *shape, struct part *part, reshard_error *err)
{
    struct origins *origins = worker->engine->origins;
    struct store_object *object;
    struct plan_copy copy;
    reshard_status status = part_copy(&worker->engine->mode, shape, part, &copy, err);
    if (status)
        return status;
    status = origin_take(origins, part->origin, &object, err);
    if (status)
        return status;
    status = map_find(worker, object, part->source_offset, spec_source_bytes(&copy.spec), &part->source, err);
    if (part->source) {
        part->pinned = object;
        return part_move(worker, shape, part, true, err);
    }
    if (!status) {
        copy_simplify(&copy.spec);
        status = part->kind == PART_PLACE ? runs_read(worker, object, part, &copy.spec, err)
                                          : blocks_read(worker, object, part, &copy.spec, err);
    }
    origin_give(origins, part->origin);
    return status;
}

static bool chunk_decode_ahead(struct worker *worker, uint32_t chunk)
{
    uint64_t read;
    bool did = decoded_load_ahead(&worker->engine->decoded, chunk, &read);
    worker->bytes_read += read;
    return did;
}

/* Instead of waiting, decodes one chunk that is wanted next: by the job in hand, or by those behind it. */
static bool decode_ahead(struct worker *worker, const struct part *part)
{
    const struct engine *engine = worker->engine;
    const struct plan *plan = engine->plan;
    const struct job_memory *memory = &worker->memory;
    for (const struct part *next = part + 1; next < memory->parts + memory->part_count; next++) {
        if (next->kind == PART_DECODED && chunk_decode_ahead(worker, next->origin))
            return true;
    }
    const struct lane *lane = &engine->list.lanes[engine->list.jobs[worker->job].lane];
    for (uint32_t j = worker->job + 1; j < lane->end_job && j - worker->job <= AHEAD_JOBS_MAX; j++) {
        const struct job *job = &engine->list.jobs[j];
        for (uint32_t i = 0; i < job->item_count; i++) {
            uint32_t item = engine->list.items[job->first_item + i];
            uint32_t chunk = item & ITEM_EMPTY ? CATALOG_NONE : plan->steps[item].source_chunk;
            if (chunk != CATALOG_NONE && step_is_decoded(plan, item) && chunk_decode_ahead(worker, chunk))
                return true;
        }
    }
    return false;
}

/* Streams go through their tensors front to back: who has the last byte of a chunk has no more use for it. */
static bool part_spends(const struct worker *worker, const struct part *part, const struct chain *chain)
{
    return worker->engine->mode.is_stream && part->source_offset + part->source_bytes == chain->decoded_bytes;
}

static const struct chain *part_chain(const struct worker *worker, const struct part *part)
{
    const struct catalog *catalog = worker->engine->plan->source;
    return catalog_layout_of(catalog, &catalog->chunks[part->origin])->chain;
}

/* Copies a part out of a decoded chunk, or, where that is all the job has, leaves it there for as long as the job lasts. */
static reshard_status part_decode(struct worker *worker, const struct job_shape *shape, struct part *part, reshard_error *err)
{
    struct decoded_chunks *decoded = &worker->engine->decoded;
    const struct chain *chain = part_chain(worker, part);
    const uint8_t *bytes;
    uint64_t read;
    while (decoded_is_loading(decoded, part->origin) && decode_ahead(worker, part))
        continue;
    if (part->is_plain && part->source_offset == 0 && part->bytes == chain->decoded_bytes) {
        reshard_status status = decoded_copy(decoded, part->origin, part->target, &read, err);
        worker->bytes_read += read;
        return status;
    }
    if (!range_fits(part->source_offset, part->source_bytes, chain->decoded_bytes))
        return error_set(err, RESHARD_ERR_FORMAT, "bytes [%" PRIu64 ", +%" PRIu64 ") of a chunk that decodes to %" PRIu64,
                         part->source_offset, part->source_bytes, chain->decoded_bytes);
    reshard_status status = decoded_take(decoded, part->origin, &bytes, &read, err);
    worker->bytes_read += read;
    if (status)
        return status;
    part->source = bytes + part->source_offset;
    bool may_hold = part->target && worker->memory.part_count <= HELD_CHUNKS_MAX && decoded_hold(decoded, part->origin);
    status = part_move(worker, shape, part, may_hold, err);
    part->is_held = !part->target;
    if (may_hold && !part->is_held)
        decoded_unhold(decoded, part->origin);
    if (!part->is_held)
        decoded_give(decoded, part->origin, part_spends(worker, part, chain));
    return status;
}

/* How many of the parts from first on are read by one call: plain ones that continue each other in the file and in memory. */
static uint32_t parts_in_row(const struct job_memory *memory, uint32_t first, uint64_t *bytes)
{
    uint32_t count = 0;
    *bytes = 0;
    for (uint32_t i = first; i < memory->part_count; i++, count++) {
        const struct part *part = &memory->parts[i], *start = &memory->parts[first];
        if (part->kind != PART_PLACE || !part->is_plain || part->origin != start->origin ||
            part->source_offset != start->source_offset + *bytes || part->target != start->target + *bytes)
            break;
        *bytes += part->bytes;
    }
    return count;
}

/* Reads such a row at once; *count is 0 if the object is mapped, where there is nothing to gain. */
static reshard_status row_read(struct worker *worker, uint32_t first, uint32_t *count, reshard_error *err)
{
    struct origins *origins = worker->engine->origins;
    const struct part *part = &worker->memory.parts[first];
    struct store_object *object;
    uint64_t bytes;
    *count = parts_in_row(&worker->memory, first, &bytes);
    if (*count < 2) {
        *count = 0;
        return RESHARD_OK;
    }
    reshard_status status = origin_take(origins, part->origin, &object, err);
    if (status)
        return status;
    if (origins->use_maps && store_object_map(object))
        *count = 0;
    else
        status = store_read_at(object, part->source_offset, part->target, (size_t)bytes, err);
    if (!status && *count)
        worker->bytes_read += bytes;
    origin_give(origins, part->origin);
    return status;
}

/* One element of a part that is filled. */
static const uint8_t *part_fill(const struct worker *worker, const struct part *part)
{
    static const uint8_t zeros[16];
    const struct plan *plan = worker->engine->plan;
    const void *fill = plan->recipes[plan->steps[part->step].recipe].fill;
    return fill ? fill : zeros;
}

reshard_status job_read(struct worker *worker, const struct job_shape *shape, reshard_error *err)
{
    struct job_memory *memory = &worker->memory;
    reshard_status status = ranges_read(worker, err);
    for (uint32_t i = 0; i < memory->part_count && !status; i++) {
        struct part *part = &memory->parts[i];
        uint32_t row_count = 0;
        if (part->kind == PART_RANGE) {
            const struct range *range = &memory->ranges[part->range];
            part->source = range->source + (part->source_offset - range->begin);
            status = part_move(worker, shape, part, range->pinned != NULL, err);
        } else if (part->kind == PART_FILL) {
            part->source = part_fill(worker, part);
            status = part_move(worker, shape, part, false, err);
        } else if (part->kind == PART_DECODED) {
            status = part_decode(worker, shape, part, err);
        } else {
            status = row_read(worker, i, &row_count, err);
            if (!status && row_count == 0)
                status = part_read(worker, shape, part, err);
        }
        if (status)
            name_part(worker, part, err);
        if (row_count > 0)
            i += row_count - 1;
    }
    if (status)
        job_unpin(worker);
    return status;
}

void job_unpin(struct worker *worker)
{
    struct job_memory *memory = &worker->memory;
    for (uint32_t i = 0; i < memory->range_count; i++) {
        if (memory->ranges[i].pinned)
            origin_give(worker->engine->origins, memory->ranges[i].origin);
        memory->ranges[i].pinned = NULL;
    }
    for (uint32_t i = 0; i < memory->part_count; i++) {
        if (memory->parts[i].pinned)
            origin_give(worker->engine->origins, memory->parts[i].origin);
        memory->parts[i].pinned = NULL;
        if (memory->parts[i].is_held)
            decoded_unhold(&worker->engine->decoded, memory->parts[i].origin);
        if (memory->parts[i].is_held)
            decoded_give(&worker->engine->decoded, memory->parts[i].origin,
                         part_spends(worker, &memory->parts[i], part_chain(worker, &memory->parts[i])));
        memory->parts[i].is_held = false;
    }
}
