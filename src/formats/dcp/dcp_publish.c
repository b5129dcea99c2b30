/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "base/array.h"
#include "base/crc32.h"
#include "formats/dcp/dcp_source.h"
#include "formats/dcp/dcp_target.h"

#include <inttypes.h>
#include <stdlib.h>

#define PASS_BYTES ((size_t)1 << 20)

/* Bytes of one blob on their way to its file; neighbouring small pieces become one write. */
struct blob_writing {
    struct store_object *object;
    uint64_t blob_offset, next;  /* next: where the pending bytes end, in the blob */
    struct buffer pending;
};

static reshard_status write_pending(struct blob_writing *writing, reshard_error *err)
{
    if (writing->pending.size == 0)
        return RESHARD_OK;
    uint64_t start = writing->blob_offset + writing->next - writing->pending.size;
    reshard_status status = store_write_at(writing->object, start, writing->pending.data, writing->pending.size, err);
    buffer_clear(&writing->pending);
    return status;
}

static reshard_status write_piece(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    struct blob_writing *writing = context;
    if (offset != writing->next || writing->pending.size + size > PASS_BYTES) {
        reshard_status status = write_pending(writing, err);
        if (status)
            return status;
    }
    if (!buffer_append(&writing->pending, bytes, size))
        return error_set_memory(err);
    writing->next = offset + size;
    return RESHARD_OK;
}

static void begin_blob(struct blob_writing *writing, struct store_object *object, uint64_t offset)
{
    writing->object = object;
    writing->blob_offset = offset;
    writing->next = 0;
    buffer_clear(&writing->pending);
}

/* ---- tensors ---- */

static reshard_status publish_chunk(const struct publish_job *job, uint32_t index, struct blob_writing *writing, reshard_error *err)
{
    const struct catalog *catalog = job->target->catalog;
    const struct catalog_chunk *chunk = &catalog->chunks[index];
    struct torch_frame frame;
    reshard_status status = dcp_chunk_frame(dcp_target_state(job->target), catalog, chunk->tensor, catalog_vector_at(catalog, chunk->start),
                                            catalog_vector_at(catalog, chunk->extent), &frame, err);
    if (status)
        return status;
    /* Nothing is written for an empty chunk, and the CRC of nothing is 0. */
    uint32_t crc = chunk->bytes ? job->chunk_crcs[index] : 0;
    begin_blob(writing, job->objects[chunk->object], dcp_target_state(job->target)->blobs[chunk->driver_data - 1].offset);
    status = torch_frame_write(&frame, &crc, write_piece, writing, err);
    if (!status)
        status = write_pending(writing, err);
    torch_frame_release(&frame);
    return status;
}

/* Runs that are blobs, with the archives around them. */
static reshard_status publish_runs(const struct publish_job *job, uint32_t object, const uint32_t *crcs, struct blob_writing *writing,
                                   reshard_error *err)
{
    const struct dcp_vectors *vectors = &dcp_target_state(job->target)->vectors;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < vectors->run_count && !status; i++) {
        const struct dcp_run *run = &vectors->runs[i];
        struct torch_frame frame;
        if (run->object != object)
            continue;
        status = dcp_run_frame(vectors, i, &frame, err);
        if (status)
            break;
        begin_blob(writing, job->objects[run->object], run->blob_offset);
        status = torch_frame_write(&frame, &crcs[i], write_piece, writing, err);
        if (!status)
            status = write_pending(writing, err);
        torch_frame_release(&frame);
    }
    return status;
}

/* ---- items ---- */

reshard_status dcp_item_copy(struct source *source, const struct catalog_item *item, dcp_sink sink, void *context, reshard_error *err)
{
    struct store_object *object = NULL;
    struct decoder *decoder = NULL;
    uint8_t *pass = malloc(PASS_BYTES);
    reshard_status status = pass ? dcp_open_object(source, item->object, &object, err) : error_set_memory(err);
    if (status)
        goto out;
    struct reader reader = store_object_reader(object);
    if (item->codec != CODEC_NONE)
        status = decoder_new(item->codec, &reader, item->offset, item->bytes, &source->limits, &decoder, err);
    uint64_t done = 0;
    while (!status && (decoder || done < item->bytes)) {
        size_t got = item->bytes - done < PASS_BYTES ? (size_t)(item->bytes - done) : PASS_BYTES;
        if (decoder)
            status = decoder_read(decoder, pass, PASS_BYTES, &got, err);
        else
            status = reader_read(&reader, item->offset + done, pass, got, err);
        if (!status && got == 0)
            break;
        if (!status)
            status = sink(context, pass, got, err);
        done += got;
    }

out:
    if (status)
        error_prefix(err, "item '%.*s'", STR_ARG(item->key));
    decoder_free(decoder);
    store_object_close(object);
    free(pass);
    return status;
}

struct copying {
    struct store_object *object;
    uint64_t offset, end;
};

static reshard_status write_copy(void *context, const void *bytes, size_t size, reshard_error *err)
{
    struct copying *copying = context;
    if (size > copying->end - copying->offset)
        return error_set(err, RESHARD_ERR_IO, "the source changed while it was read: there is more of it now");
    reshard_status status = store_write_at(copying->object, copying->offset, bytes, size, err);
    copying->offset += size;
    return status;
}

static reshard_status copy_item(const struct publish_job *job, const struct dcp_stored *blob, reshard_error *err)
{
    struct source *source = job->source;
    struct catalog_item from = *layout_item_stored(job->request, blob->wanted);
    struct copying copying = { job->objects[blob->object], blob->offset, blob->offset + blob->bytes };
    if (blob->form == DCP_ITEM_FILE) {
        from.offset = 0;
        from.bytes = source->catalog->objects[from.object].bytes;
        from.codec = CODEC_NONE;
    }
    reshard_status status = dcp_item_copy(source, &from, write_copy, &copying, err);
    if (!status && copying.offset != copying.end)
        status = error_set(err, RESHARD_ERR_IO, "the source changed while it was read: there is less of it now");
    return status;
}

/* The engine has written hidden tensors; other storages come from the source driver now. */
static reshard_status storage_crc(const struct publish_job *job, uint32_t item, const struct dcp_item_pickle *pickle, uint32_t number,
                                  const uint32_t *run_crcs, uint32_t *crc, reshard_error *err)
{
    const struct dcp_item_storage *storage = &pickle->storages[number];
    const struct dcp_stored *blob = &dcp_target_state(job->target)->items[item];
    const struct catalog *catalog = job->target->catalog;
    if (storage->is_run) {
        *crc = run_crcs[storage->index];
        return RESHARD_OK;
    }
    if (storage->is_tensor) {
        const struct catalog_tensor *tensor = &catalog->tensors[storage->index];
        for (uint32_t i = tensor->first_chunk; i < tensor->first_chunk + tensor->chunk_count; i++) {
            if (catalog->chunks[i].driver_data == (DCP_IN_ITEM | item))
                *crc = catalog->chunks[i].bytes ? job->chunk_crcs[i] : 0;
        }
        return RESHARD_OK;
    }
    struct buffer bytes = { 0 };
    uint64_t at = blob->offset + pickle->frame.members[pickle->frame.first_storage + number].payload_offset;
    reshard_status status = source_read_item_storage(job->source, storage->item, storage->index, &bytes, err);
    if (!status && bytes.size != storage->bytes)
        status = error_set(err, RESHARD_ERR_FORMAT, "storage %u of the item has %zu bytes, its pickle says %" PRIu64, storage->index,
                           bytes.size, storage->bytes);
    if (!status && bytes.size)
        status = store_write_at(job->objects[blob->object], at, bytes.data, bytes.size, err);
    *crc = crc32_zip(0, bytes.data, bytes.size);
    buffer_release(&bytes);
    return status;
}

static reshard_status publish_pickled(const struct publish_job *job, uint32_t item, const uint32_t *run_crcs, struct blob_writing *writing,
                                      reshard_error *err)
{
    const struct dcp_stored *blob = &dcp_target_state(job->target)->items[item];
    struct dcp_item_pickle pickle = { 0 };
    uint32_t *crcs = NULL;
    reshard_status status = dcp_item_pickle_make(job->request, dcp_target_state(job->target), item, &pickle, NULL, err);
    if (!status && pickle.frame.bytes != blob->bytes)
        status = error_set(err, RESHARD_ERR_IO, "the source changed while it was read");
    if (!status && !(crcs = array_zeroed(pickle.storage_count, sizeof(*crcs))))
        status = error_set_memory(err);
    for (uint32_t i = 0; i < pickle.storage_count && !status; i++)
        status = storage_crc(job, item, &pickle, i, run_crcs, &crcs[i], err);
    if (!status) {
        begin_blob(writing, job->objects[blob->object], blob->offset);
        status = torch_frame_write(&pickle.frame, crcs, write_piece, writing, err);
    }
    if (!status)
        status = write_pending(writing, err);
    free(crcs);
    dcp_item_pickle_release(&pickle);
    return status;
}

static reshard_status publish_item(const struct publish_job *job, uint32_t item, const uint32_t *run_crcs, struct blob_writing *writing,
                                   reshard_error *err)
{
    const struct dcp_stored *blob = &dcp_target_state(job->target)->items[item];
    reshard_status status = RESHARD_OK;
    if (blob->form == DCP_ITEM_PICKLED)
        status = publish_pickled(job, item, run_crcs, writing, err);
    else if (blob->form != DCP_ITEM_DROPPED)
        status = copy_item(job, blob, err);
    if (status)
        error_prefix(err, "item '%.*s'", STR_ARG(blob->key));
    return status;
}

reshard_status dcp_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err)
{
    const struct target *target = job->target;
    const struct dcp_target *state = dcp_target_state(target);
    struct blob_writing writing = { 0 };
    uint32_t *run_crcs = NULL;
    reshard_status status = state->vectors.run_count ? dcp_run_crcs(job, object, &run_crcs, err) : RESHARD_OK;
    for (uint32_t i = 0; i < state->item_count && !status; i++)
        if (state->items[i].object == object)
            status = publish_item(job, i, run_crcs, &writing, err);
    for (uint32_t i = target->first_chunk[object]; i < target->first_chunk[object + 1] && !status; i++) {
        uint32_t data = target->catalog->chunks[target->chunks[i]].driver_data;
        if (data && !(data & (DCP_IN_ITEM | DCP_IN_RUN)))
            status = publish_chunk(job, target->chunks[i], &writing, err);
    }
    if (!status && state->vectors.are_blobs)
        status = publish_runs(job, object, run_crcs, &writing, err);
    buffer_release(&writing.pending);
    free(run_crcs);
    return status;
}

reshard_status dcp_commit(const struct publish_job *job, reshard_error *err)
{
    const struct dcp_target *state = dcp_target_state(job->target);
    if (!state->has_metadata)
        return RESHARD_OK;
    struct copying copying = { job->objects[state->metadata_object], 0, job->target->catalog->objects[state->metadata_object].bytes };
    reshard_status status = dcp_metadata_write(job->request, job->target, write_copy, &copying, err);
    if (!status && copying.offset != copying.end)
        status = error_set_memory(err);
    return status;
}
