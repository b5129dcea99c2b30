/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch.h"
#include "base/array.h"
#include "formats/torch/torch_target.h"

#include "base/crc32.h"

#include <inttypes.h>
#include <stdlib.h>

#define ALIGNMENT_DEFAULT 64
#define ALIGNMENT_MAX (1u << 15) /* the padding field counts with 16 bits */
#define TOP_DEFAULT "archive"

/* The reference's file, if it is one of this format. */
static const struct torch_archive *like_archive(const struct layout_request *request)
{
    const struct source *like = request->like;
    if (!like || like->driver != &format_torch || torch_source_of(like)->file_count == 0)
        return NULL;
    return &torch_source_of(like)->files[0].archive;
}

static reshard_status choose_alignment(const struct layout_request *request, uint32_t *out, reshard_error *err)
{
    const char *text = layout_option(request, "alignment");
    const struct torch_archive *like = like_archive(request);
    uint64_t alignment = like && like->alignment > 0 ? like->alignment : ALIGNMENT_DEFAULT;
    if (text && !str_to_u64(str_of(text), &alignment))
        return error_set(err, RESHARD_ERR_USAGE, "alignment=%s is not a number", text);
    if (alignment == 0 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0)
        return error_set(err, RESHARD_ERR_USAGE, "alignment %" PRIu64 " is no power of two up to %u", alignment, ALIGNMENT_MAX);
    *out = (uint32_t)alignment;
    return RESHARD_OK;
}

/* As torch.save names the top directory: the file's name up to its last dot, if that is plain ASCII. */
static char *choose_top(const struct layout_request *request)
{
    const struct torch_archive *like = like_archive(request);
    struct str name = like && like->top.size > 0 ? like->top : str_of(request->file_name ? request->file_name : "");
    size_t end = name.size;
    if (!like || like->top.size == 0)
        for (size_t i = name.size; i-- > 0 && end == name.size;)
            if (name.data[i] == '.')
                end = i;
    bool is_plain = end > 0 && end < 1024 && !(name.data[0] == '.' && (end == 1 || (end == 2 && name.data[1] == '.')));
    for (size_t i = 0; i < end; i++)
        is_plain = is_plain && (unsigned char)name.data[i] >= 0x20 && (unsigned char)name.data[i] < 0x7F && name.data[i] != '/' &&
                   name.data[i] != '\\';
    return is_plain ? strndup(name.data, end) : strdup(TOP_DEFAULT);
}

static reshard_status torch_layout_plan_frame(const struct layout_request *request, struct torch_target *state, struct buffer *pickle,
                                              reshard_error *err)
{
    uint32_t alignment;
    reshard_status status = choose_alignment(request, &alignment, err);
    char *top = choose_top(request);
    uint64_t *bytes = array_zeroed(state->record_count, sizeof(*bytes));
    if (!status && (!top || !bytes))
        status = error_set_memory(err);
    for (uint32_t i = 0; !status && i < state->record_count; i++)
        bytes[i] = state->records[i].bytes;
    if (!status)
        status = torch_frame_plan(top, pickle, bytes, state->record_count, alignment, &state->frame, err);
    free(top);
    free(bytes);
    return status;
}

/* One chunk for every record that holds a tensor's bytes. */
static reshard_status torch_layout_add_chunks(struct target *target, const struct torch_target *state, reshard_error *err)
{
    uint32_t object; /* without a name: the target is this one file */
    reshard_status status = catalog_add_object(target->catalog, STR(""), state->frame.bytes, &object, err);
    for (uint32_t i = 0; !status && i < state->record_count; i++) {
        const struct torch_record *record = &state->records[i];
        if (record->tensor == TORCH_NONE || record->bytes == 0)
            continue;
        const struct zip_plan_member *member = &state->frame.members[state->frame.first_storage + i];
        struct catalog_chunk *chunk;
        status = catalog_add_chunk(target->catalog, record->tensor, NULL, NULL, object, member->payload_offset, record->bytes, &chunk, err);
        if (!status) {
            chunk->flags |= CHUNK_WANT_CRC;
            chunk->driver_data = i;
        }
    }
    return status;
}

/* What comes out is one file, and a zip archive, whatever the reference is. */
static reshard_status torch_layout_note(const struct layout_request *request, struct target *target, reshard_error *err)
{
    const struct torch_archive *like = like_archive(request);
    const uint32_t files = like ? torch_source_of(request->like)->file_count : 1;
    reshard_status status = RESHARD_OK;
    if (files > 1)
        status = target_note_changed(target, NOTE_LAYOUT, (struct str){ 0 }, err, "files: the reference is %" PRIu32 ", this is one",
                                     files);
    if (!status && like && like->container != TORCH_ZIP)
        status = target_note_changed(target, NOTE_LAYOUT, (struct str){ 0 }, err, "container: the reference is %s, this is a zip archive",
                                     like->container == TORCH_TAR ? "a tar archive" : "a legacy stream");
    return status;
}

reshard_status torch_lay_out(const struct layout_request *request, struct target *target, reshard_error *err)
{
    struct torch_target *state = calloc(1, sizeof(*state));
    struct buffer pickle = { 0 };
    if (!state)
        return error_set_memory(err);
    target->driver_state = state;
    reshard_status status = target_add_tensors(request, target, err);
    if (!status)
        status = torch_layout_note(request, target, err);
    if (!status)
        status = torch_place_tensors(request, state, err);
    if (!status)
        status = torch_emit_pickle(request, target, state, &pickle, err);
    if (!status)
        status = torch_layout_plan_frame(request, state, &pickle, err);
    if (!status)
        status = torch_layout_add_chunks(target, state, err);
    buffer_release(&pickle);
    return status;
}

void torch_close_target(struct target *target)
{
    struct torch_target *state = target->driver_state;
    if (!state)
        return;
    for (uint32_t i = 0; i < state->record_count; i++)
        buffer_release(&state->records[i].memory);
    torch_frame_release(&state->frame);
    free(state->records);
    free(state->places);
    free(state->wanted_of);
    free(state->item_storages);
    free(state);
    target->driver_state = NULL;
}

/* ---- publishing ---- */

static reshard_status torch_layout_write_frame(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    return store_write_at(context, offset, bytes, size, err);
}

static reshard_status write_memory(const struct torch_target *state, uint32_t index, struct store_object *object, uint32_t *crc,
                                   reshard_error *err)
{
    const struct torch_record *record = &state->records[index];
    const struct zip_plan_member *member = &state->frame.members[state->frame.first_storage + index];
    *crc = crc32_zip(0, record->memory.data, record->memory.size);
    return record->bytes ? store_write_at(object, member->payload_offset, record->memory.data, record->memory.size, err) : RESHARD_OK;
}

/* There is but one object. */
reshard_status torch_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    struct torch_target *state = job->target->driver_state;
    const struct catalog *catalog = job->target->catalog;
    uint32_t *crcs = array_zeroed(state->record_count, sizeof(*crcs));
    reshard_status status = crcs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < catalog->chunk_count; i++)
        crcs[catalog->chunks[i].driver_data] = job->chunk_crcs[i];
    for (uint32_t i = 0; !status && i < state->record_count; i++)
        if (state->records[i].tensor == TORCH_NONE)
            status = write_memory(state, i, job->objects[object], &crcs[i], err);
    if (!status)
        status = torch_frame_write(&state->frame, crcs, torch_layout_write_frame, job->objects[object], err);
    free(crcs);
    return status;
}
