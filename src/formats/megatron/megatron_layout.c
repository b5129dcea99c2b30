/* SPDX-License-Identifier: Apache-2.0 */
/* Laying a target out, and writing what is no payload. */
#include "formats/megatron/megatron_target.h"
#include "base/array.h"
#include "formats/megatron/optimizer_target.h"

#include "base/crc32.h"

#include <inttypes.h>
#include <stdlib.h>

#define TOP_NAME "model_optim_rng"
#define OPTIMIZER_TOP_NAME "distrib_optim"
#define ALIGNMENT 64

/* ---- chunks ---- */

struct chunking {
    const struct layout_request *request;
    struct target *target;
    struct target_rank *rank;
    const struct target_parameter *parameter;
    uint32_t tensor;  /* wanted: the parameter, or state of it */
    uint32_t record;  /* of the target */
    uint64_t payload; /* offset in the file */
};

/* A chunk of what is cut: its strides and offset count elements of the rank's tensor. */
static reshard_status layout_add_chunk(struct chunking *chunking, const int64_t *start, const int64_t *extent, const int64_t *strides,
                                       int64_t offset, reshard_error *err)
{
    const struct target_parameter *parameter = chunking->parameter;
    struct catalog *catalog = chunking->target->catalog;
    uint64_t element = dtype_element_bytes(chunking->request->wanted->tensors[chunking->tensor].dtype);
    int lead = parameter->lead_count, rank = parameter->cut.rank;
    int64_t whole_start[RANK_MAX], whole_extent[RANK_MAX], whole_strides[RANK_MAX], span;
    struct catalog_chunk *chunk;
    /* Axes in front of what is cut: one layer, one expert. */
    for (int i = 0; i < lead; i++) {
        whole_start[i] = parameter->lead[i];
        whole_extent[i] = whole_strides[i] = 1;
    }
    memcpy(whole_start + lead, start, (size_t)rank * sizeof(*start));
    memcpy(whole_extent + lead, extent, (size_t)rank * sizeof(*extent));
    memcpy(whole_strides + lead, strides, (size_t)rank * sizeof(*strides));
    if (!strides_span(rank, extent, strides, &span))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "a tensor is too large");
    reshard_status status = catalog_add_chunk(catalog, chunking->tensor, whole_start, whole_extent, chunking->rank->object,
                                              chunking->payload + (uint64_t)offset * element, (uint64_t)span * element, &chunk, err);
    if (status)
        return status;
    chunk->driver_data = chunking->record;
    chunk->flags |= CHUNK_WANT_CRC;
    if (strides_are_row_major(rank, extent, strides))
        return RESHARD_OK;
    return catalog_chunk_set_strides(catalog, chunk, lead + rank, whole_strides, err);
}

static reshard_status layout_add_piece(const struct cut_piece *piece, void *context, reshard_error *err)
{
    struct chunking *chunking = context;
    const struct cut *cut = &chunking->parameter->cut;
    int64_t extent[RANK_MAX], strides[RANK_MAX], offset = 0;
    bool is_matrix = chunking->parameter->matrix;
    memcpy(extent, piece->extent, (size_t)cut->rank * sizeof(*extent));
    if (cut->rank > 0 && !is_matrix) {
        /* Rows beyond those that have values are left as they are: zero. */
        int64_t room = chunking->parameter->rows - piece->start[0];
        if (room <= 0)
            return RESHARD_OK;
        extent[0] = extent[0] > room ? room : extent[0];
    }
    strides_row_major(cut->rank, cut->local, strides);
    if (is_matrix) {
        /* Its axes are exchanged in a matrix of experts. */
        strides[0] = 1;
        strides[1] = cut->local[0];
    }
    for (int i = 0; i < cut->rank; i++) {
        offset += piece->local_start[i] * strides[i];
        strides[i] *= piece->step[i];
    }
    return layout_add_chunk(chunking, piece->start, extent, strides, offset, err);
}

/* Whole experts of a matrix of them: one run of the whole, which its declared shape would cut in boxes. */
static reshard_status add_flat(struct chunking *chunking, reshard_error *err)
{
    const struct cut *cut = &chunking->parameter->cut;
    struct catalog *catalog = chunking->target->catalog;
    int64_t count = box_volume(cut->rank, cut->local);
    struct catalog_chunk *chunk;
    uint64_t bytes = (uint64_t)count * dtype_element_bytes(chunking->request->wanted->tensors[chunking->tensor].dtype);
    reshard_status status =
        catalog_add_chunk(catalog, chunking->tensor, NULL, NULL, chunking->rank->object, chunking->payload, bytes, &chunk, err);
    if (status)
        return status;
    chunk->driver_data = chunking->record;
    chunk->flags |= CHUNK_WANT_CRC;
    return catalog_chunk_set_run(catalog, chunk, chunking->rank->place.ep * count, count, err);
}

/* The chunks of a parameter, or of state of it, from the payload on. */
static reshard_status layout_add_parameter(struct chunking *chunking, reshard_error *err)
{
    const struct cut *cut = &chunking->parameter->cut;
    if (cut->is_grouped && cut->parts == 1)
        return add_flat(chunking, err);
    return cut_pieces(cut, &chunking->rank->place, layout_add_piece, chunking, err);
}

/* A vector of optimizer state: each parameter's has its place in it, and what lies between is zero. */
static reshard_status layout_add_vector(struct chunking *chunking, const struct target_record *record, reshard_error *err)
{
    const struct megatron_target *state = chunking->target->driver_state;
    uint64_t payload = chunking->payload;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < record->place_count; i++) {
        const struct record_place *place = &record->places[i];
        chunking->parameter = &state->parameters[place->parameter];
        chunking->tensor = place->tensor;
        chunking->payload =
            payload + (uint64_t)place->offset * dtype_element_bytes(chunking->request->wanted->tensors[place->tensor].dtype);
        status = layout_add_parameter(chunking, err);
    }
    return status;
}

/* The chunks of one record: of a parameter, of several, or of a storage of an item. */
static reshard_status add_record(struct chunking *chunking, reshard_error *err)
{
    struct megatron_target *state = chunking->target->driver_state;
    const struct target_record *record = &state->records[chunking->record];
    struct catalog_chunk *chunk;
    if (record->wanted == TORCH_NONE || record->bytes == 0)
        return RESHARD_OK;
    if (record->places)
        return layout_add_vector(chunking, record, err);
    chunking->tensor = record->wanted;
    if (record->parameter)
        chunking->parameter = &state->parameters[record->parameter - 1];
    if (chunking->parameter)
        return layout_add_parameter(chunking, err);
    reshard_status status = catalog_add_chunk(chunking->target->catalog, record->wanted, NULL, NULL, chunking->rank->object,
                                              chunking->payload, record->bytes, &chunk, err);
    if (!status) {
        chunk->flags |= CHUNK_WANT_CRC;
        chunk->driver_data = chunking->record;
    }
    return status;
}

static reshard_status layout_add_chunks(const struct layout_request *request, struct target *target, struct target_rank *rank,
                                        reshard_error *err)
{
    struct chunking chunking = { .request = request, .target = target, .rank = rank };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < rank->record_count; i++) {
        chunking.record = rank->first_record + i;
        chunking.payload = rank->frame.members[rank->frame.first_storage + i].payload_offset;
        chunking.parameter = NULL;
        status = add_record(&chunking, err);
    }
    return status;
}

/* ---- files ---- */

static char *iteration_name(const struct layout_request *request, struct megatron_target *state)
{
    const struct megatron_source *like = megatron_folder_state(request->like);
    bool is_release = state->iteration < 0 || (like && str_is(like->directory, "release"));
    if (is_release) {
        state->tracker = STR("release");
        return arena_printf(&state->arena, "release");
    }
    char *tracker = arena_printf(&state->arena, "%" PRId64, state->iteration);
    if (tracker)
        state->tracker = str_of(tracker);
    return tracker ? arena_printf(&state->arena, "iter_%07" PRId64, state->iteration) : NULL;
}

/* Parameters of the rank's records, in their order. */
uint32_t megatron_list_parameters(const struct megatron_target *state, const struct target_rank *rank, uint32_t *out)
{
    int64_t experts = state->experts / state->layout.ep;
    uint32_t count = 0;
    for (int64_t chunk = 0; chunk < state->layout.vp; chunk++) {
        int64_t stage = chunk * state->layout.pp + rank->place.pp;
        for (uint32_t i = state->stage_first[stage]; i < state->stage_first[stage + 1]; i++) {
            const struct partition_key *key = &state->parameters[i].key;
            if (key->expert_size == 0 || experts == 0 || key->expert / experts == rank->place.ep)
                out[count++] = i;
        }
    }
    return count;
}

static reshard_status layout_plan_frame(struct megatron_target *state, struct target_rank *rank, struct buffer *pickle, reshard_error *err)
{
    uint64_t *bytes = array_zeroed(rank->record_count, sizeof(*bytes));
    if (!bytes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < rank->record_count; i++)
        bytes[i] = state->records[rank->first_record + i].bytes;
    reshard_status status = torch_frame_plan(rank->is_optimizer ? OPTIMIZER_TOP_NAME : TOP_NAME, pickle, bytes, rank->record_count,
                                             ALIGNMENT, &rank->frame, err);
    free(bytes);
    return status;
}

static reshard_status lay_out_rank(const struct layout_request *request, struct target *target, const char *iteration, uint32_t index,
                                   reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    struct buffer pickle = { 0 };
    bool is_optimizer = state->ranks[index].is_optimizer;
    reshard_status status = is_optimizer ? megatron_emit_optimizer(request, target, index, &pickle, err)
                                         : megatron_emit_rank(request, target, index, &pickle, err);
    struct target_rank *rank = &state->ranks[index];
    free(rank->items);
    rank->items = NULL;
    if (!status)
        status = layout_plan_frame(state, rank, &pickle, err);
    char *name = status ? NULL
                        : arena_printf(&state->arena, "%s/%s/%s", iteration, rank->folder,
                                       is_optimizer ? MEGATRON_OPTIMIZER_FILE : MEGATRON_MODEL_FILE);
    if (!status && !name)
        status = error_set_memory(err);
    if (!status)
        status = catalog_add_object(target->catalog, str_of(name), rank->frame.bytes, &rank->object, err);
    if (!status)
        status = layout_add_chunks(request, target, rank, err);
    buffer_release(&pickle);
    return status;
}

static reshard_status find_hidden(const struct layout_request *request, struct megatron_target *state, reshard_error *err)
{
    uint32_t count = request->source_catalog->tensor_count;
    state->hidden_records = arena_zalloc(&state->arena, ((size_t)count + 1) * sizeof(*state->hidden_records));
    if (!state->hidden_records)
        return error_set_memory(err);
    for (uint32_t i = 0; i < request->wanted->tensor_count; i++)
        if (request->wanted->tensors[i].flags & TENSOR_HIDDEN && request->wanted_source[i] < count)
            state->hidden_records[request->wanted_source[i]] = i + 1;
    return RESHARD_OK;
}

static reshard_status lay_out_ranks(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = target->driver_state;
    char *iteration = iteration_name(request, state);
    reshard_status status = iteration ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < state->rank_count; i++)
        status = lay_out_rank(request, target, iteration, i, err);
    if (!status)
        status =
            catalog_add_object(target->catalog, STR("latest_checkpointed_iteration.txt"), state->tracker.size, &state->tracker_object, err);
    return status;
}

reshard_status megatron_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct megatron_target *state = calloc(1, sizeof(*state));
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = find_hidden(request, state, err);
    if (!status)
        status = megatron_choose_layout(request, target, err);
    if (!status)
        status = megatron_assign(request, target, err);
    if (!status)
        status = megatron_find_states(request, target, err);
    if (!status)
        status = megatron_add_ranks(request, target, err);
    if (!status)
        status = megatron_add_optimizer_files(target, err);
    if (!status)
        status = megatron_note_items(request, target, err);
    if (!status)
        status = lay_out_ranks(request, target, err);
    return status;
}

void megatron_close_target(struct target *target)
{
    struct megatron_target *state = target->driver_state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->record_count; i++)
        buffer_release(&state->records[i].memory);
    for (uint32_t i = 0; i < state->rank_count; i++) {
        torch_frame_release(&state->ranks[i].frame);
        free(state->ranks[i].items);
    }
    free(state->records);
    free(state->ranks);
    free(state->parameters);
    partition_gates_release(&state->gates);
    arena_release(&state->arena);
    free(state);
    target->driver_state = NULL;
}

/* ---- publishing ---- */

/* What is known of a record's CRC: that of its first `bytes`. What no chunk covers is zero. */
struct record_crc {
    uint64_t bytes;
    uint32_t crc;
};

static reshard_status layout_write_frame(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    return store_write_at(context, offset, bytes, size, err);
}

static uint64_t payload_of(const struct target_rank *rank, uint32_t record)
{
    return rank->frame.members[rank->frame.first_storage + record].payload_offset;
}

/* The CRC of a record of the rank's file; a record that no tensor fills is written. */
static reshard_status record_checksum(const struct publish_job *job, const struct target_rank *rank, uint32_t index,
                                      const struct record_crc *known, uint32_t *out, reshard_error *err)
{
    const struct megatron_target *state = job->target->driver_state;
    const struct target_record *record = &state->records[rank->first_record + index];
    *out = crc32_zip_extend(known->crc, known->bytes, record->bytes);
    if (record->wanted != TORCH_NONE)
        return RESHARD_OK;
    *out = crc32_zip(0, record->memory.data, record->memory.size);
    return record->bytes
               ? store_write_at(job->objects[rank->object], payload_of(rank, index), record->memory.data, record->memory.size, err)
               : RESHARD_OK;
}

static void add_crcs(const struct publish_job *job, const struct target_rank *rank, struct record_crc *crcs)
{
    const struct target *target = job->target;
    for (uint32_t i = target->first_chunk[rank->object]; i < target->first_chunk[rank->object + 1]; i++) {
        const struct catalog_chunk *chunk = &target->catalog->chunks[target->chunks[i]];
        uint32_t index = chunk->driver_data - rank->first_record;
        struct record_crc *crc = &crcs[index];
        crc->crc = crc32_zip_overlay(crc->crc, crc->bytes, job->chunk_crcs[target->chunks[i]], chunk->bytes,
                                     chunk->offset - payload_of(rank, index), &crc->bytes);
    }
}

reshard_status megatron_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct megatron_target *state = job->target->driver_state;
    uint32_t number = 0;
    while (number < state->rank_count && state->ranks[number].object != object)
        number++;
    if (number == state->rank_count)
        return RESHARD_OK; /* the tracker */
    struct target_rank *rank = &state->ranks[number];
    struct record_crc *known = array_zeroed(rank->record_count, sizeof(*known));
    uint32_t *crcs = array_zeroed(rank->record_count, sizeof(*crcs));
    reshard_status status = known && crcs ? RESHARD_OK : error_set_memory(err);
    if (!status)
        add_crcs(job, rank, known);
    for (uint32_t i = 0; !status && i < rank->record_count; i++)
        status = record_checksum(job, rank, i, &known[i], &crcs[i], err);
    if (!status)
        status = torch_frame_write(&rank->frame, crcs, layout_write_frame, job->objects[object], err);
    free(known);
    free(crcs);
    return status;
}

reshard_status megatron_commit(const struct publish_job *job, reshard_error *err)
{
    const struct megatron_target *state = job->target->driver_state;
    return store_write_at(job->objects[state->tracker_object], 0, state->tracker.data, state->tracker.size, err);
}
