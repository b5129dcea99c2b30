/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage_read.h"

#include "base/array.h"
#include "formats/driver.h"

#include <stdlib.h>

#define WINDOW_BYTES ((size_t)256 << 10) /* stays in the second-level cache, and within any budget */

struct piece_read {
    struct catalog_span span;
    uint32_t number; /* of a chunk, or of an item */
    bool is_item;
};

struct salvage_reading {
    struct remains *remains;
    const struct engine_options *engine;
    const struct catalog *catalog;
    struct piece_read *pieces; /* by place */
    size_t count;
    struct engine_progress progress;
    uint8_t *window;
    struct store_object *object;
    uint32_t opened; /* its number, or CATALOG_NONE */
};

static reshard_status pieces_list(struct salvage_reading *reading, reshard_error *err)
{
    const struct catalog *catalog = reading->catalog;
    reading->pieces = array_new((size_t)catalog->chunk_count + catalog->item_count, sizeof(*reading->pieces));
    if (!reading->pieces)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct catalog_item *item = &catalog->items[i];
        bool is_copied = item->kind == ITEM_FILE || item->kind == ITEM_RAW; /* others have been loaded */
        if (is_copied && item->bytes && reading->remains->items[i] == IS_THERE)
            reading->pieces[reading->count++] = (struct piece_read){ { item->object, item->offset, item->bytes }, i, true };
    }
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        const struct catalog_chunk *chunk = &catalog->chunks[i];
        const struct piece_read piece = { catalog_chunk_span(catalog, chunk), i, false };
        bool is_wanted = reading->remains->tensors[chunk->tensor] == IS_THERE && !reading->remains->bad.why[i];
        if (is_wanted && piece.span.bytes && !catalog_chunk_is_coded(catalog, chunk) && !(chunk->flags & (CHUNK_HAS_CRC | CHUNK_CHECKED)))
            reading->pieces[reading->count++] = piece;
    }
    qsort(reading->pieces, reading->count, sizeof(*reading->pieces), catalog_span_order);
    return RESHARD_OK;
}

/* As many pieces from `first` on as share bytes, each with one before it; *span is theirs. */
static size_t pieces_together(const struct salvage_reading *reading, size_t first, struct catalog_span *span)
{
    size_t at = first + 1;
    *span = reading->pieces[first].span;
    for (; at < reading->count; at++) {
        const struct catalog_span *next = &reading->pieces[at].span;
        if (next->object != span->object || next->offset - span->offset >= span->bytes)
            break;
        uint64_t end = next->offset - span->offset + next->bytes;
        span->bytes = end > span->bytes ? end : span->bytes;
    }
    return at - first;
}

static reshard_status object_to_read(struct salvage_reading *reading, uint32_t number, reshard_error *err)
{
    if (reading->opened == number)
        return RESHARD_OK;
    store_object_close(reading->object);
    reading->object = NULL;
    reading->opened = CATALOG_NONE;
    reshard_status status = store_open_object_as(reading->remains->checkpoint->source->store, reading->catalog->objects[number].name.data,
                                                 engine_access(reading->engine->io), &reading->object, err);
    if (!status)
        reading->opened = number;
    return status;
}

static reshard_status span_read(struct salvage_reading *reading, const struct catalog_span *span, reshard_error *err)
{
    reshard_status status = object_to_read(reading, span->object, err);
    for (uint64_t at = 0; at < span->bytes && !status;) {
        size_t size = span->bytes - at < WINDOW_BYTES ? (size_t)(span->bytes - at) : WINDOW_BYTES;
        status = store_read_at(reading->object, span->offset + at, reading->window, size, err);
        at += size;
        reading->progress.bytes_done = reading->progress.bytes_read += size;
        if (!status && reading->engine->progress && !reading->engine->progress(&reading->progress, reading->engine->context))
            return error_set(err, RESHARD_ERR_CANCELLED, "interrupted");
    }
    return status;
}

static reshard_status piece_lose(struct salvage_reading *reading, const struct piece_read *piece, const char *why, reshard_error *err)
{
    return piece->is_item ? remains_lose_item(reading->remains, piece->number, why, err)
                          : bad_chunks_add(&reading->remains->bad, piece->number, why, err);
}

static reshard_status pieces_read(struct salvage_reading *reading, reshard_error *err)
{
    struct catalog_span span;
    reshard_status status = RESHARD_OK;
    for (size_t first = 0, together; first < reading->count && !status; first += together) {
        reshard_error seen = { 0 };
        together = pieces_together(reading, first, &span);
        status = span_read(reading, &span, &seen);
        if (failure_ends_run(status, &seen, err))
            return status;
        if (!status)
            continue;
        error_prefix(&seen, "'%.*s'", STR_ARG(reading->catalog->objects[span.object].name));
        status = RESHARD_OK;
        for (size_t i = first; i < first + together && !status; i++)
            status = piece_lose(reading, &reading->pieces[i], seen.message, err);
    }
    return status;
}

reshard_status salvage_read(struct remains *remains, const struct engine_options *engine, reshard_error *err)
{
    struct salvage_reading reading = {
        .remains = remains, .engine = engine, .catalog = remains->checkpoint->source->catalog, .opened = CATALOG_NONE
    };
    struct catalog_span span;
    reshard_status status = pieces_list(&reading, err);
    for (size_t first = 0; first < reading.count && !status; reading.progress.bytes_total += span.bytes)
        first += pieces_together(&reading, first, &span);
    reading.window = status ? NULL : aligned_alloc(4096, WINDOW_BYTES);
    if (!status && !reading.window)
        status = error_set_memory(err);
    if (!status)
        status = pieces_read(&reading, err);
    store_object_close(reading.object);
    free(reading.window);
    free(reading.pieces);
    return status;
}
