/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/salvage_look.h"

#include "convert/payload_check.h"
#include "convert/salvage_read.h"
#include "convert/verify.h"

#include <inttypes.h>
#include <stdio.h>

struct looking {
    struct remains *remains;
    const struct engine_options *engine;
    struct finding_sink *findings;
    struct source *source;
    const struct catalog *catalog;
};

/* ---- tensors ---- */

static void note_spans(struct looking *looking, uint32_t tensor)
{
    const struct catalog_tensor *entry = &looking->catalog->tensors[tensor];
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count; i++)
        looking->remains->spans[i] = catalog_chunk_span(looking->catalog, &looking->catalog->chunks[i]);
}

/* Whether a chunk lies in its file. */
static bool lies_in_file(struct looking *looking, uint32_t chunk, char *why, size_t size)
{
    const struct catalog_span *span = &looking->remains->spans[chunk];
    uint64_t begin = span->offset, bytes = span->bytes, found = 0;
    bool is_directory = false;
    struct str name = looking->catalog->objects[looking->catalog->chunks[chunk].object].name;
    bool has_file = store_exists(looking->source->store, name.data, &is_directory, &found) && !is_directory;
    if (has_file && begin <= found && bytes <= found - begin)
        return true;
    if (has_file)
        snprintf(why, size, "'%.*s' ends at %" PRIu64 ", its bytes are [%" PRIu64 ", +%" PRIu64 ")", STR_ARG(name), found, begin, bytes);
    else
        snprintf(why, size, "'%.*s' is missing", STR_ARG(name));
    return false;
}

/* Notes the chunks that reach beyond their file's end. */
static reshard_status look_at_ends(struct looking *looking, uint32_t tensor, bool *all_there, reshard_error *err)
{
    const struct catalog_tensor *entry = &looking->catalog->tensors[tensor];
    reshard_status status = RESHARD_OK;
    char why[512];
    *all_there = true;
    note_spans(looking, tensor);
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status; i++) {
        if (lies_in_file(looking, i, why, sizeof(why)))
            continue;
        *all_there = false;
        status = bad_chunks_add(&looking->remains->bad, i, why, err);
    }
    return status;
}

/* Finds the payload of each chunk by itself, so that one that cannot be found says nothing of the others. */
static reshard_status resolve_each(struct looking *looking, uint32_t tensor, reshard_error *err)
{
    struct source *source = looking->source;
    const struct catalog_tensor *entry = &looking->catalog->tensors[tensor];
    struct bad_chunks *bad = &looking->remains->bad;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status && source->driver->resolve; i++) {
        reshard_error seen = { 0 };
        if (!(looking->catalog->chunks[i].flags & CHUNK_UNRESOLVED))
            continue;
        reshard_status found = source->driver->resolve(source, &i, 1, &seen);
        if (failure_ends_run(found, &seen, err))
            return found;
        if (found)
            status = bad_chunks_add(bad, i, seen.message, err);
    }
    return status;
}

/* Whether a text has the name between quotes. */
static bool is_quoted(struct str text, struct str name)
{
    const char *at = text.data, *end = text.data + text.size;
    bool found = false;
    while (name.size && !found && (at = memmem(at, (size_t)(end - at), name.data, name.size))) {
        found = at > text.data && at[-1] == '\'' && at + name.size < end && at[name.size] == '\'';
        at++;
    }
    return found;
}

/* What reading has said of a tensor that has holes says more than that it has: what would tell its pieces, for example. */
static reshard_status settle_holes(struct looking *looking, uint32_t tensor, reshard_error *err)
{
    const struct catalog *catalog = looking->catalog;
    struct remains *remains = looking->remains;
    bool is_torn = !remains->tensors[tensor] && catalog->tensors[tensor].flags & TENSOR_TORN;
    for (uint32_t i = 0; is_torn && i < catalog->warning_count; i++) {
        const struct catalog_warning *warning = &catalog->warnings[i];
        if (warning->is_damage && !warning->key.size && is_quoted(warning->text, catalog->tensors[tensor].key))
            return remains_lose(remains, tensor, warning->text.data, err);
    }
    return remains_settle_holes(remains, tensor, err);
}

static reshard_status look_at_tensor(struct looking *looking, uint32_t tensor, reshard_error *err)
{
    struct source *source = looking->source;
    reshard_error seen = { 0 };
    bool all_there;
    work_renew(&source->work);
    reshard_status status = look_at_ends(looking, tensor, &all_there, err);
    if (status)
        return status;
    reshard_status found = all_there ? source_resolve(source, &tensor, 1, &seen) : RESHARD_ERR_FORMAT;
    if (failure_ends_run(found, &seen, err))
        return found;
    if (found)
        status = resolve_each(looking, tensor, err);
    if (!status)
        status = look_at_ends(looking, tensor, &all_there, err); /* what a blob says of itself */
    if (!status)
        status = remains_settle(looking->remains, tensor, err);
    return status ? status : settle_holes(looking, tensor, err);
}

static reshard_status look_at_tensors(struct looking *looking, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < looking->catalog->tensor_count && !status; i++)
        status = looking->remains->tensors[i] ? RESHARD_OK : look_at_tensor(looking, i, err);
    return status;
}

/* ---- checksums ---- */

static bool is_tensor_key(const struct catalog *catalog, struct str key)
{
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !found; i++)
        found = str_equal(catalog->tensors[i].key, key);
    return found;
}

/* What goes against a checksum is bad: a chunk, whose copies may be good, or every tensor of that key, if there are several. */
static reshard_status take_finding(void *context, const struct finding *finding)
{
    struct looking *looking = context;
    struct remains *remains = looking->remains;
    const struct catalog *catalog = looking->catalog;
    bool is_tensor = finding->key.size > 0 && is_tensor_key(catalog, finding->key), is_item = false;
    reshard_status status = RESHARD_OK;
    if (finding->severity != FINDING_FAILURE)
        return RESHARD_OK;
    if (finding->chunk)
        return bad_chunks_add_checked(&remains->bad, catalog, finding->chunk - 1, finding->text, NULL);
    for (uint32_t i = 0; is_tensor && i < catalog->tensor_count && !status; i++)
        if (str_equal(catalog->tensors[i].key, finding->key))
            status = remains_lose_all(remains, i, finding->text, NULL);
    for (uint32_t i = 0; !is_tensor && i < catalog->item_count && !status; i++) {
        if (!finding->key.size || !str_equal(catalog->items[i].key, finding->key))
            continue;
        is_item = true;
        status = remains_lose_item(remains, i, finding->text, NULL);
    }
    if (!is_tensor && !is_item)
        finding_report(looking->findings, FINDING_WARNING, finding->kind, finding->key, "%s", finding->text);
    return status;
}

static bool span_meets(const struct catalog_span *span, const struct catalog_warning *warning)
{
    return warning->bytes && span->object == warning->object && span->offset < warning->offset + warning->bytes &&
           warning->offset < span->offset + span->bytes;
}

/* Whether damage is where the chunk's bytes lie, or lay before another copy stood in. */
static bool lies_at(const struct remains *remains, const struct catalog_warning *warning, uint32_t chunk)
{
    const struct catalog *catalog = remains->checkpoint->source->catalog;
    const struct catalog_span now = catalog_chunk_span(catalog, &catalog->chunks[chunk]);
    return span_meets(&remains->spans[chunk], warning) || span_meets(&now, warning);
}

static bool item_lies_at(const struct catalog_item *item, const struct catalog_warning *warning)
{
    const struct catalog_span span = { item->object, item->offset, item->bytes };
    return (item->kind == ITEM_BLOB || item->kind == ITEM_LATE) && span_meets(&span, warning);
}

/* Chunks, and items with bytes of their own, are bad where the damage is; false: there are none, or nobody knows where it is. */
static bool take_place_of_damage(struct looking *looking, const struct catalog_warning *warning, reshard_status *status,
                                 reshard_error *err)
{
    const struct catalog *catalog = looking->catalog;
    bool is_any = false;
    for (uint32_t i = 0; i < catalog->chunk_count && !*status; i++) {
        if (!lies_at(looking->remains, warning, i))
            continue;
        is_any = true;
        *status = bad_chunks_add(&looking->remains->bad, i, warning->text.data, err);
    }
    for (uint32_t i = 0; i < catalog->item_count && !*status; i++) {
        if (!item_lies_at(&catalog->items[i], warning))
            continue;
        is_any = true;
        *status = remains_lose_item(looking->remains, i, warning->text.data, err);
    }
    return is_any;
}

/* What the driver has checked itself proves nothing any more, of a file or (CATALOG_NONE) of all. */
static void withdraw_checks(struct looking *looking, uint32_t object)
{
    struct catalog *catalog = looking->source->catalog;
    for (uint32_t i = 0; i < catalog->chunk_count; i++)
        if (object == CATALOG_NONE || catalog->chunks[i].object == object)
            catalog->chunks[i].flags &= (uint16_t)~CHUNK_CHECKED;
    for (uint32_t i = 0; i < catalog->item_count; i++)
        catalog->items[i].is_checked = false;
}

/* Whether the text names a file that has chunks. */
static bool names_data_file(const struct catalog *catalog, struct str text)
{
    bool found = false;
    for (uint32_t i = 0; i < catalog->chunk_count && !found; i++)
        found = is_quoted(text, catalog->objects[catalog->chunks[i].object].name);
    return found;
}

/* A tensor that damage names is lost; where its file is named too, what it has there is bad. Another file may have another copy. */
static reshard_status take_named_damage(struct looking *looking, uint32_t tensor, struct str text, bool has_file, reshard_error *err)
{
    const struct catalog *catalog = looking->catalog;
    const struct catalog_tensor *entry = &catalog->tensors[tensor];
    reshard_status status = RESHARD_OK;
    if (!has_file)
        return remains_lose_all(looking->remains, tensor, text.data, err);
    for (uint32_t i = entry->first_chunk; i < entry->first_chunk + entry->chunk_count && !status; i++)
        if (is_quoted(text, catalog->objects[catalog->chunks[i].object].name))
            status = bad_chunks_add(&looking->remains->bad, i, text.data, err);
    return status;
}

/* Damage that the driver has found is a tensor's that it names, else a file's, else anybody's. */
static reshard_status take_damage(struct looking *looking, const struct catalog_warning *warning, reshard_error *err)
{
    const struct catalog *catalog = looking->catalog;
    struct str text = warning->text;
    reshard_status status = RESHARD_OK;
    bool is_named = take_place_of_damage(looking, warning, &status, err), is_placed = false;
    if (is_named)
        return status;
    bool has_file = names_data_file(catalog, text);
    for (uint32_t i = 0; i < catalog->tensor_count && !status; i++) {
        if (!is_quoted(text, catalog->tensors[i].key))
            continue;
        is_named = true;
        status = take_named_damage(looking, i, text, has_file, err);
    }
    for (uint32_t i = 0; i < catalog->object_count && !is_named; i++) {
        bool is_there = warning->bytes ? warning->object == i : is_quoted(text, catalog->objects[i].name);
        if (!is_there)
            continue;
        is_placed = true;
        withdraw_checks(looking, i);
    }
    if (!is_named && !is_placed)
        withdraw_checks(looking, CATALOG_NONE);
    return status;
}

/* Stored checksums that only the driver knows. */
static reshard_status verify_by_driver(struct looking *looking, reshard_error *err)
{
    const struct catalog *catalog = looking->catalog;
    reshard_error seen = { 0 };
    uint32_t before = catalog->warning_count;
    reshard_status status = source_verify(looking->source, false, &seen);
    if (failure_ends_run(status, &seen, err))
        return status;
    if (status)
        finding_report(looking->findings, FINDING_WARNING, "damage", (struct str){ 0 }, "%s", seen.message);
    reshard_status taken = RESHARD_OK;
    for (uint32_t i = before; i < catalog->warning_count && !taken; i++)
        if (catalog->warnings[i].is_damage)
            taken = take_damage(looking, &catalog->warnings[i], err);
    if (status || catalog->damage_dropped)
        withdraw_checks(looking, CATALOG_NONE);
    return taken;
}

static reshard_status check_payload(struct looking *looking, reshard_error *err)
{
    struct remains *remains = looking->remains;
    struct finding_sink sink = { .receive = take_finding, .context = looking };
    reshard_status status = verify_by_driver(looking, err);
    if (!status)
        status = payload_check(looking->source, NULL, NULL, NULL, looking->engine, &sink, err);
    if (!status)
        status = salvage_read(remains, looking->engine, err);
    for (uint32_t i = 0; !status && i < looking->catalog->tensor_count; i++)
        status = remains_settle(remains, i, err);
    return status ? status : sidecar_verify(remains->checkpoint, remains->tensors, NULL, looking->engine, &sink, &remains->cover, err);
}

/* ---- items ---- */

struct item_walk {
    const struct remains *remains;
    bool is_lost;
};

static bool note_lost_storage(const struct value *value, void *context)
{
    struct item_walk *walk = context;
    uint32_t count = walk->remains->checkpoint->source->catalog->tensor_count;
    if (value->kind == VALUE_PERSID && value->storage > 0 && value->storage <= count &&
        walk->remains->tensors[value->storage - 1] == IS_LOST)
        walk->is_lost = true;
    return !walk->is_lost;
}

static reshard_status load_items(struct looking *looking, reshard_error *err)
{
    struct source *source = looking->source;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < looking->catalog->item_count && !status; i++) {
        enum item_kind kind = looking->catalog->items[i].kind;
        reshard_error seen = { 0 };
        work_renew(&source->work);
        if (looking->remains->items[i] || kind == ITEM_FILE || kind == ITEM_RAW)
            continue;
        reshard_status loaded = source_load_item(source, i, &seen);
        if (failure_ends_run(loaded, &seen, err))
            return loaded;
        if (loaded)
            status = remains_lose_item(looking->remains, i, seen.message, err);
    }
    return status;
}

/* Once it is known which tensors are lost: an item may be made of them. */
static reshard_status look_at_items(struct looking *looking, reshard_error *err)
{
    bool may_name = looking->source->driver->abilities & FORMAT_ITEMS_NAME_TENSORS;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < looking->catalog->item_count && may_name && !status; i++) {
        const struct catalog_item *item = &looking->catalog->items[i];
        struct item_walk walk = { looking->remains, false };
        bool no_memory = false;
        if (item->value && item->graph)
            value_walk(item->value, item->graph->count, NULL, note_lost_storage, &walk, &no_memory);
        if (no_memory)
            status = error_set_memory(err);
        else if (walk.is_lost)
            status = remains_lose_item(looking->remains, i, "a storage in it is lost", err);
    }
    return status;
}

static void note_proofs(struct looking *looking)
{
    struct remains *remains = looking->remains;
    for (uint32_t i = 0; i < looking->catalog->tensor_count; i++)
        remains->is_proved_tensor[i] = verify_is_checked(looking->catalog, i, &remains->cover);
    for (uint32_t i = 0; i < looking->catalog->item_count; i++)
        remains->is_proved_item[i] = looking->catalog->items[i].is_checked || (remains->cover.items && remains->cover.items[i]);
}

/* ---- all ---- */

bool salvage_is_told(const struct remains *remains, const struct catalog_warning *warning)
{
    const struct catalog *catalog = remains->checkpoint->source->catalog;
    bool told = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !told; i++)
        told = remains->tensors[i] && is_quoted(warning->text, catalog->tensors[i].key);
    for (uint32_t i = 0; i < catalog->chunk_count && !told; i++)
        told = remains->tensors[catalog->chunks[i].tensor] && lies_at(remains, warning, i);
    for (uint32_t i = 0; i < catalog->item_count && !told; i++)
        told = remains->items[i] && item_lies_at(&catalog->items[i], warning);
    return told;
}

reshard_status salvage_look(struct remains *remains, const struct engine_options *engine, struct finding_sink *findings,
                            reshard_error *err)
{
    struct source *source = remains->checkpoint->source;
    struct looking looking = {
        .remains = remains, .engine = engine, .findings = findings, .source = source, .catalog = source->catalog
    };
    reshard_status status = look_at_tensors(&looking, err);
    if (!status)
        status = load_items(&looking, err);
    if (!status)
        status = check_payload(&looking, err);
    if (!status)
        status = look_at_items(&looking, err);
    if (!status)
        note_proofs(&looking);
    return status;
}
