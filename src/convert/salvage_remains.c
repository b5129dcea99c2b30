/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage_remains.h"

#include "base/array.h"

#include <stdlib.h>

reshard_status remains_begin(struct remains *remains, struct checkpoint *checkpoint, reshard_error *err)
{
    const struct catalog *catalog = checkpoint->source->catalog;
    size_t tensors = (size_t)catalog->tensor_count + 1, items = (size_t)catalog->item_count + 1;
    remains->checkpoint = checkpoint;
    remains->tensors = array_zeroed(tensors, 1);
    remains->items = array_zeroed(items, 1);
    remains->tensor_reasons = array_zeroed(tensors, sizeof(*remains->tensor_reasons));
    remains->item_reasons = array_zeroed(items, sizeof(*remains->item_reasons));
    remains->is_proved_tensor = array_zeroed(tensors, sizeof(*remains->is_proved_tensor));
    remains->is_proved_item = array_zeroed(items, sizeof(*remains->is_proved_item));
    remains->spans = array_zeroed(catalog->chunk_count, sizeof(*remains->spans));
    if (!remains->tensors || !remains->items || !remains->tensor_reasons || !remains->item_reasons || !remains->is_proved_tensor ||
        !remains->is_proved_item || !remains->spans)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        remains->spans[i] = catalog_chunk_span(catalog, &catalog->chunks[i]);
    return bad_chunks_init(&remains->bad, catalog, err);
}

void remains_release(struct remains *remains)
{
    free(remains->tensors);
    free(remains->items);
    free(remains->tensor_reasons);
    free(remains->item_reasons);
    free(remains->is_proved_tensor);
    free(remains->is_proved_item);
    free(remains->spans);
    bad_chunks_release(&remains->bad);
    sidecar_cover_release(&remains->cover);
    arena_release(&remains->arena);
    *remains = (struct remains){ 0 };
}

/* ---- what is lost ---- */

static void remains_close_chunk(struct catalog_chunk *chunk)
{
    chunk->flags &= (uint16_t) ~(CHUNK_UNRESOLVED | CHUNK_HAS_CRC | CHUNK_CHECKED);
    chunk->bytes = 0;
    chunk->layout = 0;
}

void remains_close(struct remains *remains, uint32_t tensor)
{
    struct catalog *catalog = remains->checkpoint->source->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count; i++)
        remains_close_chunk(&catalog->chunks[i]);
}

/* The good pieces of what a view cuts otherwise are still looked at. */
static void remains_close_lost(struct remains *remains, uint32_t tensor)
{
    struct catalog *catalog = remains->checkpoint->source->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    if (!remains->has_view)
        remains_close(remains, tensor);
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count; i++)
        if (remains->bad.why[i])
            remains_close_chunk(&catalog->chunks[i]);
}

reshard_status remains_lose(struct remains *remains, uint32_t tensor, const char *why, reshard_error *err)
{
    if (remains->tensors[tensor] == IS_THERE) {
        remains->tensors[tensor] = IS_LOST;
        remains->tensor_reasons[tensor] = arena_printf(&remains->arena, "%s", why);
        if (!remains->tensor_reasons[tensor])
            return error_set_memory(err);
    }
    if (remains->tensors[tensor] == IS_LOST)
        remains_close_lost(remains, tensor);
    return RESHARD_OK;
}

reshard_status remains_lose_all(struct remains *remains, uint32_t tensor, const char *why, reshard_error *err)
{
    const struct catalog_tensor *entry = &remains->checkpoint->source->catalog->tensors[tensor];
    reshard_status status = RESHARD_OK;
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status; i++)
        status = bad_chunks_add(&remains->bad, i, why, err);
    return status ? status : remains_lose(remains, tensor, why, err);
}

reshard_status remains_lose_item(struct remains *remains, uint32_t item, const char *why, reshard_error *err)
{
    if (remains->items[item] != IS_THERE)
        return RESHARD_OK;
    remains->items[item] = IS_LOST;
    remains->item_reasons[item] = arena_printf(&remains->arena, "%s", why);
    return remains->item_reasons[item] ? RESHARD_OK : error_set_memory(err);
}

reshard_status remains_settle(struct remains *remains, uint32_t tensor, reshard_error *err)
{
    uint32_t replaced;
    const char *why;
    if (remains->tensors[tensor] == IS_LEFT_OUT)
        return RESHARD_OK;
    if (remains->tensors[tensor] == IS_LOST) {
        remains_close_lost(remains, tensor);
        return RESHARD_OK;
    }
    if (!bad_chunks_replace(&remains->bad, remains->checkpoint->source->catalog, tensor, &replaced, &why))
        return remains_lose(remains, tensor, why, err);
    if (replaced && !remains->tensor_reasons[tensor])
        remains->tensor_reasons[tensor] = why;
    return RESHARD_OK;
}

reshard_status remains_settle_holes(struct remains *remains, uint32_t tensor, reshard_error *err)
{
    const struct catalog *catalog = remains->checkpoint->source->catalog;
    if (remains->tensors[tensor] || !(catalog->tensors[tensor].flags & TENSOR_TORN))
        return RESHARD_OK;
    return remains_lose(remains, tensor, "not all of its pieces are there", err);
}

void remains_tell(const struct remains *remains, struct finding_sink *findings)
{
    const struct checkpoint *checkpoint = remains->checkpoint;
    for (uint32_t i = 0; i < checkpoint->listed_count; i++) {
        uint32_t tensor = checkpoint->listed[i];
        struct str key = checkpoint->source->catalog->tensors[tensor].key;
        const char *why = remains->tensor_reasons[tensor];
        if (remains->tensors[tensor] == IS_LOST)
            finding_report(findings, FINDING_FAILURE, "lost", key, "%s", why);
        else if (remains->tensors[tensor] == IS_THERE && why)
            finding_report(findings, FINDING_WARNING, "replaced", key, "%s: another copy stands in", why);
    }
}

/* ---- by place ---- */

/* Bytes of files: spans that do not meet, by object and offset, each with what was said of the first of those that it is made of. */
struct places {
    struct place {
        struct catalog_span span;
        const char *why;
    } *all;
    size_t count;
};

static bool places_begin(struct places *places, const struct catalog *catalog)
{
    places->all = array_new((size_t)catalog->chunk_count + catalog->item_count, sizeof(*places->all));
    return places->all != NULL;
}

static void places_add(struct places *places, const struct catalog_span *span, const char *why)
{
    if (span->bytes)
        places->all[places->count++] = (struct place){ *span, why };
}

static void places_join(struct places *places)
{
    size_t kept = 0;
    qsort(places->all, places->count, sizeof(*places->all), catalog_span_order);
    for (size_t i = 0; i < places->count; i++) {
        const struct catalog_span *next = &places->all[i].span;
        struct catalog_span *last = kept ? &places->all[kept - 1].span : NULL;
        if (last && last->object == next->object && next->offset - last->offset <= last->bytes) {
            uint64_t end = next->offset - last->offset + next->bytes;
            last->bytes = end > last->bytes ? end : last->bytes;
        } else {
            places->all[kept++] = places->all[i];
        }
    }
    places->count = kept;
}

/* The place that has bytes of the span, or NULL. */
static const struct place *places_meet(const struct places *places, const struct catalog_span *span)
{
    size_t low = 0, high = places->count;
    while (low < high) { /* the first that begins behind the span */
        size_t middle = low + (high - low) / 2;
        const struct catalog_span *at = &places->all[middle].span;
        if (at->object < span->object || (at->object == span->object && at->offset < span->offset + span->bytes))
            low = middle + 1;
        else
            high = middle;
    }
    const struct place *last = low ? &places->all[low - 1] : NULL;
    return last && span->bytes && last->span.object == span->object && span->offset < last->span.offset + last->span.bytes ? last : NULL;
}

/* What is carried over. */
struct carrying {
    const struct remains *stored;
    struct remains *view;
    struct places bad, kept, unproved;
};

static void carrying_note_items(struct carrying *carrying)
{
    const struct remains *stored = carrying->stored;
    const struct catalog *catalog = stored->checkpoint->source->catalog;
    for (uint32_t i = 0; i < catalog->item_count; i++) {
        const struct catalog_item *item = &catalog->items[i];
        const struct catalog_span span = { item->object, item->offset, item->bytes };
        bool has_bytes = item->kind == ITEM_BLOB || item->kind == ITEM_LATE || item->kind == ITEM_RAW;
        if (!has_bytes || stored->items[i] == IS_LEFT_OUT)
            continue;
        places_add(&carrying->kept, &span, NULL);
        if (stored->items[i] == IS_LOST)
            places_add(&carrying->bad, &span, stored->item_reasons[i]);
        else if (!stored->is_proved_item[i])
            places_add(&carrying->unproved, &span, NULL);
    }
}

static reshard_status carrying_note(struct carrying *carrying, reshard_error *err)
{
    const struct remains *stored = carrying->stored;
    const struct catalog *catalog = stored->checkpoint->source->catalog;
    if (!places_begin(&carrying->bad, catalog) || !places_begin(&carrying->kept, catalog) || !places_begin(&carrying->unproved, catalog))
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->chunk_count; i++) {
        uint32_t tensor = catalog->chunks[i].tensor;
        if (stored->tensors[tensor] == IS_LEFT_OUT)
            continue;
        places_add(&carrying->kept, &stored->spans[i], NULL);
        if (stored->bad.first[i])
            places_add(&carrying->bad, &stored->spans[i], stored->bad.first[i]);
        else if (!stored->is_proved_tensor[tensor] && !(catalog->chunks[i].flags & (CHUNK_HAS_CRC | CHUNK_CHECKED)))
            places_add(&carrying->unproved, &stored->spans[i], NULL);
    }
    carrying_note_items(carrying);
    places_join(&carrying->bad);
    places_join(&carrying->kept);
    places_join(&carrying->unproved);
    return RESHARD_OK;
}

/* What speaks against a chunk of the view. One that is computed has no place: it may be made of anything. */
static const struct place *carrying_meet(const struct carrying *carrying, const struct places *places, uint32_t chunk)
{
    const struct catalog_span *span = &carrying->view->spans[chunk];
    if (span->object < carrying->stored->checkpoint->source->catalog->object_count)
        return places_meet(places, span);
    return places->count ? &places->all[0] : NULL;
}

static reshard_status carrying_take_tensor(struct carrying *carrying, uint32_t tensor, reshard_error *err)
{
    struct remains *view = carrying->view;
    const struct catalog_tensor *entry = &view->checkpoint->source->catalog->tensors[tensor];
    bool is_kept = entry->chunk_count == 0, is_proved = true;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status; i++) {
        const struct place *bad = carrying_meet(carrying, &carrying->bad, i);
        is_kept |= !view->spans[i].bytes || carrying_meet(carrying, &carrying->kept, i);
        is_proved &= !carrying_meet(carrying, &carrying->unproved, i);
        if (bad)
            status = bad_chunks_add(&view->bad, i, bad->why, err);
    }
    view->is_proved_tensor[tensor] = is_proved;
    if (!is_kept)
        view->tensors[tensor] = IS_LEFT_OUT;
    if (!status)
        status = remains_settle(view, tensor, err);
    return status ? status : remains_settle_holes(view, tensor, err);
}

reshard_status remains_carry(const struct remains *stored, struct remains *view, reshard_error *err)
{
    const struct source *source = view->checkpoint->source;
    struct carrying carrying = { .stored = stored, .view = view };
    reshard_status status = carrying_note(&carrying, err);
    for (uint32_t i = 0; i < source->catalog->tensor_count && !status; i++)
        status = carrying_take_tensor(&carrying, i, err);
    for (uint32_t i = 0; i < source->catalog->item_count && !status; i++) {
        view->items[i] = stored->items[source->stored_items[i]];
        view->item_reasons[i] = stored->item_reasons[source->stored_items[i]];
        view->is_proved_item[i] = stored->is_proved_item[source->stored_items[i]];
    }
    free(carrying.bad.all);
    free(carrying.kept.all);
    free(carrying.unproved.all);
    return status;
}
