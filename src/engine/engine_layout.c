/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine_layout.h"

#include <inttypes.h>

#include "engine/engine_blocks.h"

#define PLACE_BYTES_MIN 16384 /* from here on another read costs less than copying */
#define MEMORY_ALIGN 64
#define SPARSE_MIN 2                           /* times as many bytes read as wanted: see whether smaller blocks do better */
#define SPARSE_BYTES_MIN ((uint64_t)256 << 10) /* where it is worth the while */

void job_memory_init(struct job_memory *memory, uint8_t *share, size_t share_bytes, size_t data_bytes, uint32_t parts_max)
{
    *memory = (struct job_memory){ .parts_max = parts_max, .data_bytes = data_bytes, .data = share + (share_bytes - data_bytes) };
    memory->parts = (struct part *)(void *)share;
    memory->pieces = (struct piece *)(void *)(memory->parts + parts_max);
    memory->ranges = (struct range *)(void *)(memory->pieces + parts_max);
    memory->order = (struct sort_entry *)(void *)(memory->ranges + parts_max);
    memory->spare = memory->order + parts_max;
}

bool piece_is_spread(const struct plan *plan, const struct job_shape *shape, uint32_t chunk)
{
    return shape->kind == JOB_TILE || (shape->kind != JOB_RUN && catalog_chunk_is_strided(plan->target, &plan->target->chunks[chunk]));
}

bool piece_box(const struct plan *plan, const struct job_shape *shape, uint32_t chunk_index, int64_t *start, int64_t *extent)
{
    const struct catalog_chunk *chunk = &plan->target->chunks[chunk_index];
    const int64_t *chunk_start = catalog_vector_at(plan->target, chunk->start),
                  *chunk_extent = catalog_vector_at(plan->target, chunk->extent);
    return box_intersect(plan->target->tensors[chunk->tensor].rank, chunk_start, chunk_extent, shape->start ? shape->start : chunk_start,
                         shape->start ? shape->extent : chunk_extent, start, extent);
}

/* Makes the copy's target the piece, packed in the order in which the chunk's bytes lie, instead of the chunk. */
static void copy_to_spread(const struct plan *plan, const struct job_shape *shape, const struct plan_step *step, const int64_t *start,
                           struct plan_copy *copy)
{
    int64_t piece_start[RANK_MAX], piece_extent[RANK_MAX], strides[RANK_MAX];
    int64_t stride = dtype_element_bytes(copy->spec.target_dtype);
    int order[RANK_MAX];
    copy->target_offset = 0;
    if (!piece_box(plan, shape, step->target_chunk, piece_start, piece_extent))
        return;
    catalog_chunk_strides(plan->target, &plan->target->chunks[step->target_chunk], strides);
    strides_order(copy->spec.rank, strides, order);
    for (int i = copy->spec.rank - 1; i >= 0; i--) {
        int axis = order[i];
        copy->spec.target_stride[axis] = stride;
        copy->target_offset += (uint64_t)((start[axis] - piece_start[axis]) * stride);
        stride *= piece_extent[axis];
    }
}

/* The bytes [run_begin, run_begin + run_bytes) of a step that is a plain run. */
static reshard_status copy_of_run(const struct plan *plan, const struct job_shape *shape, const struct plan_step *step,
                                  struct plan_copy *out, reshard_error *err)
{
    reshard_status status = plan_step_copy(plan, step, out, err);
    if (status)
        return status;
    out->source_offset += shape->run_begin;
    out->target_offset += shape->run_begin;
    out->spec.rank = 1;
    out->spec.extent[0] = (int64_t)shape->run_bytes;
    out->spec.source_stride[0] = step->source_chunk == CATALOG_NONE ? 0 : 1;
    out->spec.target_stride[0] = 1;
    out->spec.source_dtype = out->spec.target_dtype = DTYPE_U8;
    out->spec.flags = 0;
    return RESHARD_OK;
}

static reshard_status copy_of_step(const struct plan *plan, const struct job_shape *shape, uint32_t step_index, struct plan_copy *out,
                                   reshard_error *err)
{
    const struct plan_step *step = &plan->steps[step_index];
    const int64_t *step_start = plan->vectors + step->start, *step_extent = plan->vectors + step->extent;
    if (shape->kind == JOB_RUN || shape->kind == JOB_COPY)
        return copy_of_run(plan, shape, step, out, err);
    int64_t start[RANK_MAX], extent[RANK_MAX];
    if (!box_intersect(plan->recipes[step->recipe].rank, step_start, step_extent, shape->start ? shape->start : step_start,
                       shape->start ? shape->extent : step_extent, start, extent))
        return error_set(err, RESHARD_ERR_USAGE, "step %" PRIu32 " lies outside its job", step_index);
    reshard_status status = plan_part_copy(plan, step, start, extent, out, err);
    if (!status && piece_is_spread(plan, shape, step->target_chunk))
        copy_to_spread(plan, shape, step, start, out);
    return status;
}

reshard_status part_copy(const struct layout_mode *mode, const struct job_shape *shape, const struct part *part, struct plan_copy *out,
                         reshard_error *err)
{
    return copy_of_step(mode->plan, shape, part->step, out, err);
}

/* Decides how the part's source is read. */
static void part_classify(const struct layout_mode *mode, const struct copy_spec *spec, unsigned fill_min, struct part *part)
{
    uint64_t run_bytes, run_count;
    part->kind = PART_RANGE;
    part->block_count = 1;
    part->is_plain = copy_is_plain_run(spec, &run_bytes);
    if (part->is_chunk) {
        part->kind = PART_DECODED;
        return;
    }
    if (part->is_encoded)
        return;
    if (part->is_plain) {
        /* Past the page cache only whole pages are read, which the place in the target does not fit. */
        part->kind = mode->is_stream || mode->source_align > 1 || part->bytes < PLACE_BYTES_MIN ? PART_RANGE : PART_PLACE;
        return;
    }
    struct copy_spec simple = *spec;
    copy_simplify(&simple);
    if (spec_runs(&simple, &run_bytes, &run_count) && run_bytes >= PLACE_BYTES_MIN) {
        part->kind = PART_PLACE;
        return;
    }
    struct blocks blocks;
    blocks_of(&simple, fill_min, &blocks);
    if (blocks.block_count > 1 && blocks.block_count <= UINT32_MAX) {
        part->kind = PART_BLOCKS;
        part->block_count = (uint32_t)blocks.block_count;
        part->source_bytes = blocks.block_bytes;
    }
}

static reshard_status part_make(const struct layout_mode *mode, const struct job_shape *shape, uint32_t step_index, unsigned fill_min,
                                struct part *part, uint64_t *target_end, reshard_error *err)
{
    const struct plan *plan = mode->plan;
    uint32_t source_chunk = plan->steps[step_index].source_chunk;
    const struct catalog_chunk *source = source_chunk == CATALOG_NONE ? NULL : &plan->source->chunks[source_chunk];
    const struct chunk_layout *layout = source ? catalog_layout_of(plan->source, source) : NULL;
    struct plan_copy copy;
    if (source && source->flags & CHUNK_UNRESOLVED)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s' is not resolved", STR_ARG(plan->source->tensors[source->tensor].key));
    reshard_status status = copy_of_step(plan, shape, step_index, &copy, err);
    if (status)
        return status;
    *part = (struct part){ .source_offset = copy.source_offset, .target_offset = copy.target_offset, .step = step_index };
    part->bytes = (uint64_t)box_volume(copy.spec.rank, copy.spec.extent) * dtype_element_bytes(copy.spec.target_dtype);
    *target_end = copy.target_offset + spec_target_bytes(&copy.spec);
    if (!source) {
        part->kind = PART_FILL;
        return RESHARD_OK;
    }
    part->source_bytes = spec_source_bytes(&copy.spec);
    part->is_chunk = layout && layout->chain;
    part->is_encoded = layout && layout->codec != CODEC_NONE;
    part->origin = part->is_encoded || part->is_chunk ? source_chunk : source->object;
    part_classify(mode, &copy.spec, fill_min, part);
    return RESHARD_OK;
}

/* Adds the part to the piece of its chunk, which is the last one or a new one. */
static void piece_join(const struct layout_mode *mode, const struct job_shape *shape, struct job_memory *memory, struct part *part)
{
    const struct plan *plan = mode->plan;
    uint32_t chunk = plan->steps[part->step].target_chunk, index = memory->part_count;
    struct piece *piece = memory->piece_count ? &memory->pieces[memory->piece_count - 1] : NULL;
    if (!piece || piece->chunk != chunk) {
        piece = &memory->pieces[memory->piece_count++];
        *piece = (struct piece){ .chunk = chunk,
                                 .object = plan->target->chunks[chunk].object,
                                 .tensor = plan->target->chunks[chunk].tensor,
                                 .offset = part->target_offset,
                                 .first_part = index,
                                 .is_spread = piece_is_spread(plan, shape, chunk),
                                 .is_direct = mode->is_stream };
        piece->is_split = !piece->is_spread;
    }
    /* Steps are in the order of their first elements, their overlaps with a box need not be. */
    piece->is_split &= part->is_plain && part->target_offset == piece->offset + piece->bytes;
    piece->is_direct &= piece->is_split && part->kind == PART_RANGE;
    piece->offset = part->target_offset < piece->offset ? part->target_offset : piece->offset;
    piece->bytes += part->bytes;
    piece->part_count++;
    part->piece = memory->piece_count - 1;
}

/* Where bytes of the given offset go, so that they keep their alignment; moves *used behind them. */
static uint64_t memory_place(uint64_t *used, uint64_t offset, uint64_t bytes, uint64_t align)
{
    uint64_t place = *used + ((offset - *used) & (align - 1));
    *used = bytes > UINT64_MAX / 4 || place > UINT64_MAX / 4 ? UINT64_MAX / 2 : place + bytes;
    return place;
}

/* Where the piece is to be in the end, if that is memory: made there, it need not be moved. */
static uint8_t *piece_room(const struct layout_mode *mode, const struct piece *piece)
{
    uint8_t *room = mode->objects && !piece->is_spread ? store_object_room(mode->objects[piece->object]) : NULL;
    return room ? room + piece->offset : NULL;
}

static void pieces_place(const struct layout_mode *mode, struct job_memory *memory, uint64_t *used)
{
    for (uint32_t i = 0; i < memory->piece_count; i++) {
        struct piece *piece = &memory->pieces[i];
        if (piece->is_direct)
            continue;
        piece->memory = piece_room(mode, piece);
        if (piece->memory)
            continue;
        uint64_t place = memory_place(used, piece->offset, piece->bytes, MEMORY_ALIGN);
        piece->memory = place < memory->data_bytes ? memory->data + place : NULL;
    }
}

static void blocks_place(struct job_memory *memory, uint64_t *used)
{
    for (uint32_t i = 0; i < memory->part_count; i++) {
        struct part *part = &memory->parts[i];
        uint64_t bytes;
        if (part->kind != PART_BLOCKS)
            continue;
        if (__builtin_mul_overflow(part->source_bytes, (uint64_t)part->block_count, &bytes))
            bytes = UINT64_MAX / 2;
        uint64_t place = memory_place(used, 0, bytes, MEMORY_ALIGN);
        part->packed = place < memory->data_bytes ? memory->data + place : NULL;
    }
}

/* Orders the parts that read ranges by where they read. */
static uint32_t parts_by_source(struct job_memory *memory)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < memory->part_count; i++)
        if (memory->parts[i].kind == PART_RANGE)
            memory->order[count++] = (struct sort_entry){ (int64_t)(memory->parts[i].source_offset & INT64_MAX), i };
    entries_sort(memory->order, memory->spare, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct part *part = &memory->parts[memory->order[i].value];
        memory->order[i].key = (int64_t)((uint64_t)part->is_encoded << 32 | part->origin);
    }
    entries_sort(memory->order, memory->spare, count);
    return count;
}

static bool range_takes(const struct range *range, const struct part *part, uint64_t begin, bool over_gaps)
{
    if (range->origin != part->origin || range->is_encoded != part->is_encoded)
        return false;
    if (begin <= range->end)
        return true;
    uint64_t gap = begin - range->end;
    if (!over_gaps || range->is_encoded)
        return false;
    return gap <= GAP_ALWAYS || (gap <= GAP_MAX && gap <= range->end - range->begin);
}

static void ranges_make(const struct layout_mode *mode, struct job_memory *memory, uint32_t count, bool over_gaps)
{
    uint64_t align = mode->source_align;
    memory->range_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct part *part = &memory->parts[memory->order[i].value];
        uint64_t begin = part->source_offset, end;
        if (__builtin_add_overflow(begin, part->source_bytes, &end))
            end = UINT64_MAX;
        if (align > 1 && !part->is_encoded) {
            uint64_t object_bytes = mode->plan->source->objects[part->origin].bytes;
            uint64_t up = end > UINT64_MAX - align ? end : (end + align - 1) / align * align;
            begin = begin / align * align;
            end = up <= object_bytes ? up : end;
        }
        struct range *last = memory->range_count ? &memory->ranges[memory->range_count - 1] : NULL;
        if (last && range_takes(last, part, begin, over_gaps)) {
            last->end = end > last->end ? end : last->end;
        } else {
            memory->ranges[memory->range_count++] =
                (struct range){ .begin = begin, .end = end, .origin = part->origin, .is_encoded = part->is_encoded };
        }
        part->range = memory->range_count - 1;
    }
}

static bool ranges_place(const struct layout_mode *mode, struct job_memory *memory, uint64_t used)
{
    uint64_t align = mode->source_align > MEMORY_ALIGN ? mode->source_align : MEMORY_ALIGN;
    for (uint32_t i = 0; i < memory->range_count; i++) {
        struct range *range = &memory->ranges[i];
        uint64_t place = memory_place(&used, range->begin, range->end - range->begin, align);
        range->memory = place < memory->data_bytes ? memory->data + place : NULL;
    }
    return used <= memory->data_bytes;
}

static void targets_set(struct job_memory *memory)
{
    for (uint32_t i = 0; i < memory->part_count; i++) {
        struct part *part = &memory->parts[i];
        const struct piece *piece = &memory->pieces[part->piece];
        part->target = piece->is_direct ? NULL : piece->memory + (part->target_offset - piece->offset);
    }
}

/* Parts and pieces of the job. *fits is cleared if there are too many or they alone have no room. */
static reshard_status parts_make(const struct layout_mode *mode, const struct job_shape *shape, struct job_memory *memory, bool *fits,
                                 reshard_error *err)
{
    uint64_t bytes = 0, piece_end = 0;
    for (uint32_t i = 0; i < shape->item_count; i++) {
        uint64_t end;
        if (shape->items[i] & ITEM_EMPTY)
            continue;
        *fits = memory->part_count < memory->parts_max && (mode->is_stream || bytes <= memory->data_bytes);
        if (!*fits)
            return RESHARD_OK;
        struct part *part = &memory->parts[memory->part_count];
        reshard_status status = part_make(mode, shape, shape->items[i], memory->fill_min, part, &end, err);
        if (status)
            return status;
        uint32_t pieces_before = memory->piece_count;
        piece_join(mode, shape, memory, part);
        memory->part_count++;
        bytes += part->bytes;
        piece_end = memory->piece_count == pieces_before && piece_end > end ? piece_end : end;
        const struct piece *piece = &memory->pieces[memory->piece_count - 1];
        bool is_last = i + 1 == shape->item_count || shape->items[i + 1] & ITEM_EMPTY ||
                       mode->plan->steps[shape->items[i + 1]].target_chunk != piece->chunk;
        /* Made where it is to be, it may leave gaps: what lies there stays. */
        if (is_last && !piece->is_spread && piece_end - piece->offset != piece->bytes && !piece_room(mode, piece))
            return error_set(err, RESHARD_ERR_USAGE, "job writes %" PRIu64 " of the %" PRIu64 " bytes of a run", piece->bytes,
                             piece_end - piece->offset);
    }
    return RESHARD_OK;
}

/* Lays the job out with memory->fill_min. *is_sparse: most of what its ranges read is not wanted. */
static reshard_status layout_try(const struct layout_mode *mode, const struct job_shape *shape, struct job_memory *memory, bool *fits,
                                 bool *is_sparse, reshard_error *err)
{
    uint64_t used = 0, wanted = 0, read = 0;
    memory->part_count = memory->piece_count = memory->range_count = 0;
    *fits = true;
    *is_sparse = false;
    reshard_status status = parts_make(mode, shape, memory, fits, err);
    if (status || !*fits)
        return status;
    uint32_t count = parts_by_source(memory);
    pieces_place(mode, memory, &used);
    blocks_place(memory, &used);
    ranges_make(mode, memory, count, true);
    *fits = ranges_place(mode, memory, used);
    if (!*fits) {
        ranges_make(mode, memory, count, false);
        *fits = ranges_place(mode, memory, used);
    }
    for (uint32_t i = 0; i < memory->part_count; i++)
        if (memory->parts[i].kind == PART_RANGE)
            wanted += memory->parts[i].is_encoded ? memory->parts[i].source_bytes : memory->parts[i].bytes;
    for (uint32_t i = 0; i < memory->range_count; i++)
        read += memory->ranges[i].end - memory->ranges[i].begin;
    *is_sparse = read / SPARSE_MIN > wanted && read > SPARSE_BYTES_MIN;
    return RESHARD_OK;
}

reshard_status job_layout(const struct layout_mode *mode, const struct job_shape *shape, struct job_memory *memory, bool *fits,
                          reshard_error *err)
{
    bool is_sparse, fits_loose;
    memory->fill_min = GAP_FILL_LOOSE;
    reshard_status status = layout_try(mode, shape, memory, fits, &is_sparse, err);
    if (!status && is_sparse) {
        fits_loose = *fits;
        memory->fill_min = GAP_FILL_TIGHT;
        status = layout_try(mode, shape, memory, fits, &is_sparse, err);
        if (!status && !*fits && fits_loose) {
            memory->fill_min = GAP_FILL_LOOSE;
            status = layout_try(mode, shape, memory, fits, &is_sparse, err);
        }
    }
    if (!status && *fits)
        targets_set(memory);
    return status;
}

void spread_runs_of(const struct plan *plan, const struct job_shape *shape, uint32_t chunk_index, struct spread_runs *out)
{
    const struct catalog_chunk *chunk = &plan->target->chunks[chunk_index];
    const struct catalog_tensor *tensor = &plan->target->tensors[chunk->tensor];
    const int64_t *chunk_start = catalog_vector_at(plan->target, chunk->start);
    int64_t start[RANK_MAX], extent[RANK_MAX], strides[RANK_MAX];
    int64_t element = dtype_element_bytes(tensor->dtype);
    int order[RANK_MAX], inner = tensor->rank;

    *out = (struct spread_runs){ .run_bytes = (uint64_t)element, .run_count = 1, .offset = chunk->offset };
    if (!piece_box(plan, shape, chunk_index, start, extent))
        return;
    catalog_chunk_strides(plan->target, chunk, strides);
    for (int axis = 0; axis < tensor->rank; axis++)
        out->offset += (uint64_t)((start[axis] - chunk_start[axis]) * strides[axis] * element);
    /* The densest axes belong to the run for as long as each goes on where those before it end. */
    strides_order(tensor->rank, strides, order);
    for (; inner > 0; inner--) {
        int axis = order[inner - 1];
        if (extent[axis] > 1 && (uint64_t)(strides[axis] * element) != out->run_bytes)
            break;
        out->run_bytes *= (uint64_t)extent[axis];
    }
    out->outer_rank = inner;
    for (int i = 0; i < inner; i++) {
        out->extent[i] = extent[order[i]];
        out->stride[i] = strides[order[i]] * element;
        out->run_count *= (uint64_t)extent[order[i]];
    }
}

uint64_t spread_run_offset(const struct spread_runs *runs, uint64_t index)
{
    uint64_t offset = runs->offset;
    for (int axis = runs->outer_rank - 1; axis >= 0; axis--) {
        uint64_t extent = (uint64_t)runs->extent[axis];
        offset += index % extent * (uint64_t)runs->stride[axis];
        index /= extent;
    }
    return offset;
}
