/* SPDX-License-Identifier: Apache-2.0 */
/* Items as files of torch.save: values with their classes, and with the tensors inside. */
#include "api/handle.h"
#include "api/items.h"
#include "api/public_options.h"
#include "base/array.h"
#include "base/crc32.h"
#include "encoding/pickle_write.h"
#include "formats/shared/torch_spell.h"

#include <stdlib.h>

#define FILE_ALIGNMENT 64

/* A storage that the value refers to: its bytes, or the hidden tensor that they are. */
struct filed_storage {
    uint32_t number; /* the value's */
    uint32_t tensor; /* CATALOG_NONE: the bytes are there */
    struct buffer bytes;
};

struct filing {
    struct source *source;
    uint32_t item;
    struct filed_storage *storages;
    uint32_t count, capacity;
    uint64_t size; /* of all storages */
    reshard_error *err;
};

static void filing_release(struct filing *filing)
{
    for (uint32_t i = 0; i < filing->count; i++)
        buffer_release(&filing->storages[i].bytes);
    free(filing->storages);
}

static uint64_t storage_size(const struct filing *filing, const struct filed_storage *storage)
{
    const struct catalog *catalog = filing->source->catalog;
    return storage->tensor == CATALOG_NONE ? storage->bytes.size : catalog_tensor_bytes(catalog, &catalog->tensors[storage->tensor]);
}

/* What the number means is the driver's: a storage that it can give, or a hidden tensor of the catalog. */
static reshard_status storage_take(struct filing *filing, struct filed_storage *out, reshard_error *err)
{
    const uint64_t limit = filing->source->limits.item_bytes;
    reshard_status status = RESHARD_OK;
    out->tensor = CATALOG_NONE;
    out->bytes = (struct buffer){ .limit = (size_t)limit, .limit_name = "item_bytes" };
    if (filing->source->driver->read_item_storage)
        status = source_read_item_storage(filing->source, filing->item, out->number, &out->bytes, err);
    else if (out->number < filing->source->catalog->tensor_count)
        out->tensor = out->number;
    else
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "it holds a tensor whose bytes the checkpoint cannot give");
    if (!status && storage_size(filing, out) > limit - filing->size)
        status = error_set_limit(err, "item_bytes", filing->size + storage_size(filing, out), limit);
    return status;
}

static reshard_status filing_find(void *context, const struct value *persid, uint32_t *record, uint64_t *bytes)
{
    struct filing *filing = context;
    if (!persid->storage)
        return error_set(filing->err, RESHARD_ERR_UNSUPPORTED, "it refers to a storage that the checkpoint does not hold");
    for (*record = 0; *record < filing->count && filing->storages[*record].number != persid->storage - 1;)
        ++*record;
    if (*record == filing->count) {
        if (!ARRAY_ROOM(filing->storages, filing->count, filing->capacity))
            return error_set_memory(filing->err);
        struct filed_storage *added = &filing->storages[filing->count];
        *added = (struct filed_storage){ .number = persid->storage - 1 };
        reshard_status status = storage_take(filing, added, filing->err);
        if (status) {
            buffer_release(&added->bytes);
            return status;
        }
        filing->size += storage_size(filing, added);
        filing->count++;
    }
    *bytes = storage_size(filing, &filing->storages[*record]);
    return RESHARD_OK;
}

/* What pickle_write calls. */
struct filing_spelling {
    struct torch_storage_finder finder;
    reshard_status status;
};

static bool filing_spell(const struct value *value, struct buffer *out, void *context)
{
    struct filing_spelling *spelling = context;
    return torch_spell(value, &spelling->finder, &spelling->status, out);
}

static reshard_status value_pickle(struct filing *filing, const struct value *value, uint32_t graph_count, struct buffer *out,
                                   reshard_error *err)
{
    struct filing_spelling spelling = { { filing_find, filing }, RESHARD_OK };
    *out = (struct buffer){ .limit = (size_t)filing->source->limits.item_bytes, .limit_name = "item_bytes" };
    reshard_status status = pickle_write(value, graph_count, filing->source->limits.budget, filing_spell, &spelling, out, err);
    return spelling.status ? spelling.status : status;
}

static reshard_status side_file_pickle(struct filing *filing, const struct catalog_item *item, struct buffer *out, reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct value *value;
    reshard_status status = item_side_file(filing->source, item, &graph, &value, err);
    if (!status)
        status = value_pickle(filing, value, graph.count, out, err);
    value_graph_release(&graph);
    return status;
}

/* The caller holds the checkpoint. */
static reshard_status item_pickle(struct filing *filing, struct buffer *out, reshard_error *err)
{
    const struct catalog_item *item = &filing->source->catalog->items[filing->item];
    static const struct value none = { .kind = VALUE_NONE };
    if (item->kind == ITEM_FILE)
        return side_file_pickle(filing, item, out, err);
    reshard_status status = source_load_item(filing->source, filing->item, err);
    item = &filing->source->catalog->items[filing->item];
    return status ? status : value_pickle(filing, item->value ? item->value : &none, item->graph ? item->graph->count : 1, out, err);
}

/* ---- hidden tensors ---- */

static reshard_status hidden_sink(void *context, uint32_t tensor, uint64_t offset, const void *bytes, size_t size, bool is_last,
                                  reshard_error *err)
{
    (void)tensor, (void)offset, (void)is_last;
    return buffer_append(context, bytes, size) ? RESHARD_OK : error_set_memory(err);
}

static reshard_status hidden_read(const reshard_checkpoint *checkpoint, struct filed_storage *storage, reshard_error *err)
{
    struct engine_source source;
    struct run_call running;
    reshard_status status = run_options_read(NULL, &running, err);
    if (!status)
        status = reading_begin(checkpoint, &storage->tensor, 1, &source, err);
    if (status)
        return status;
    status = engine_stream(&source, &storage->tensor, 1, NULL, NULL, &running.engine, hidden_sink, &storage->bytes, err);
    reading_end(checkpoint);
    storage->tensor = CATALOG_NONE;
    return status;
}

/* ---- the archive ---- */

static reshard_status archive_sink(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err)
{
    (void)err;
    memcpy((uint8_t *)context + offset, bytes, size);
    return RESHARD_OK;
}

static reshard_status frame_fill(struct torch_frame *frame, const struct filing *filing, uint8_t **out, reshard_error *err)
{
    uint8_t *archive = calloc(1, (size_t)frame->bytes);
    uint32_t *crcs = array_zeroed(filing->count, sizeof(*crcs));
    reshard_status status = archive && crcs ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < filing->count && !status; i++) {
        const struct buffer *bytes = &filing->storages[i].bytes;
        crcs[i] = crc32_zip(0, bytes->data, bytes->size);
        if (bytes->size)
            memcpy(archive + frame->members[frame->first_storage + i].payload_offset, bytes->data, bytes->size);
    }
    if (!status)
        status = torch_frame_write(frame, crcs, archive_sink, archive, err);
    free(crcs);
    if (status)
        free(archive);
    else
        *out = archive;
    return status;
}

static reshard_status archive_make(const struct filing *filing, struct buffer *pickle, uint8_t **out, size_t *size, reshard_error *err)
{
    struct torch_frame frame = { 0 };
    uint64_t *sizes = array_zeroed(filing->count, sizeof(*sizes));
    reshard_status status = sizes ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < filing->count && !status; i++)
        sizes[i] = filing->storages[i].bytes.size;
    if (!status)
        status = torch_frame_plan("archive", pickle, sizes, filing->count, FILE_ALIGNMENT, &frame, err);
    if (!status)
        status = frame_fill(&frame, filing, out, err);
    if (!status)
        *size = (size_t)frame.bytes;
    torch_frame_release(&frame);
    free(sizes);
    return status;
}

API_EXPORT reshard_status reshard_item_file(const reshard_checkpoint *checkpoint, size_t index, void **bytes, size_t *size,
                                            reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(bytes, err);
    *bytes = NULL;
    NEEDS(size, err);
    *size = 0;
    NEEDS(checkpoint, err);
    uint32_t number;
    reshard_status status = item_number(checkpoint, index, &number, err);
    if (status)
        return status;
    struct buffer pickle = { 0 };
    uint8_t *archive = NULL;
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    struct filing filing = { .source = checkpoint_source(handle), .item = number, .err = err };
    status = item_pickle(&filing, &pickle, err);
    checkpoint_unlock(handle);
    for (uint32_t i = 0; i < filing.count && !status; i++)
        if (filing.storages[i].tensor != CATALOG_NONE)
            status = hidden_read(checkpoint, &filing.storages[i], err);
    if (!status)
        status = archive_make(&filing, &pickle, &archive, size, err);
    if (status)
        error_object(err, "item '%.*s'", STR_ARG(checkpoint_item_name(checkpoint->opened, index)));
    filing_release(&filing);
    buffer_release(&pickle);
    *bytes = archive;
    return status;
}
