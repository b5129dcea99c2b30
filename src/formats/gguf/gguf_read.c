/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/gguf/gguf_source.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- parts ---- */

/* Whether the metadata says of the file what its name does. */
static reshard_status check_split(struct gguf_reading *reading, const struct gguf_part *part, reshard_error *err)
{
    const struct gguf_folder *folder = &reading->folder;
    int64_t count = 1;
    bool has_count = gguf_header_integer(&part->header, "split.count", &count);
    if (folder->total > 1 && has_count && (count < 0 || (uint64_t)count != folder->total))
        return error_set(err, RESHARD_ERR_FORMAT, "'%s': 'split.count' is %" PRId64 ", its name says %" PRIu64, part->name, count,
                         folder->total);
    if (folder->total > 1 || !has_count || count <= 1)
        return RESHARD_OK;
    if (!source_bears_loss(reading->source)) {
        error_set(err, RESHARD_ERR_FORMAT, "'%s' is one part of %" PRId64 " ('split.count'), and its name does not tell the others",
                  part->name, count);
        error_hint(err, "parts are called NAME-00001-of-%05" PRId64 GGUF_SUFFIX " and lie in one folder", count);
        return RESHARD_ERR_FORMAT;
    }
    reading->has_lost = true;
    catalog_warn_lost(reading->source->catalog, (struct str){ 0 },
                      "'%s' is one part of %" PRId64 ", and its name does not tell the others: what they hold is lost", part->name, count);
    return RESHARD_OK;
}

static reshard_status name_once(struct gguf_reading *reading, const struct gguf_part *part, struct str name, reshard_error *err)
{
    bool was_new;
    if (name_map_intern(&reading->names, name, &was_new) == NAME_NONE)
        return error_set_memory(err);
    return was_new ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_FORMAT, "'%s': tensor '%.*s' is in a part before it too", part->name, STR_ARG(name));
}

static reshard_status take_state(struct gguf_reading *reading, const struct gguf_part *part, bool is_first, reshard_error *err)
{
    struct source *source = reading->source;
    struct gguf_state *state = source->driver_state;
    if (is_first)
        state->is_swapped = part->header.is_swapped;
    if (state->is_swapped != part->header.is_swapped)
        return error_set(err, RESHARD_ERR_FORMAT, "'%s': in another byte order than the parts before it", part->name);
    if (!is_first)
        return RESHARD_OK;
    reading->version = part->header.version;
    if (reading->folder.total > 1)
        gguf_header_integer(&part->header, "split.tensors.count", &reading->tensors_wanted);
    reshard_status status = catalog_add_fact(source->catalog, "GGUF version", err, "%" PRIu32, part->header.version);
    if (!status && state->is_swapped)
        status = catalog_add_fact(source->catalog, "byte order", err, "big-endian");
    return status;
}

static reshard_status gguf_part_take(struct gguf_reading *reading, struct gguf_part *part, reshard_error *err)
{
    struct source *source = reading->source;
    bool is_first = !reading->version;
    reshard_status status = check_split(reading, part, err);
    if (!status)
        status = catalog_add_object(source->catalog, str_of(part->name), part->reader.size, &part->object, err);
    if (!status)
        status = take_state(reading, part, is_first, err);
    reading->tensor_count += part->header.names.count;
    for (uint32_t i = 0; i < part->header.names.count && !status; i++) {
        status = reading->folder.total > 1 ? name_once(reading, part, name_map_at(&part->header.names, i), err) : RESHARD_OK;
        if (!status)
            status = gguf_add_tensor(reading, part, i, err);
    }
    return status ? status : gguf_add_items(reading, part, err);
}

/* A part that is damaged is lost where that is borne, if there are others. */
static reshard_status part_bear(struct gguf_reading *reading, const char *name, reshard_status status, const reshard_error *seen,
                                reshard_error *err)
{
    if (status == RESHARD_ERR_FORMAT && source_bears_loss(reading->source) && reading->folder.total > 1) {
        reading->has_lost = true;
        catalog_warn_lost(reading->source->catalog, (struct str){ 0 }, "'%s': %s: what it holds is lost", name, seen->message);
        return RESHARD_OK;
    }
    if (err)
        *err = *seen;
    error_object(err, "%s", name);
    return status;
}

static reshard_status gguf_part_read(struct gguf_reading *reading, size_t index, reshard_error *err)
{
    struct gguf_part part = { .name = reading->folder.files[index] };
    struct store_object *object = NULL;
    reshard_error seen = { 0 };
    reshard_status status = store_open_object(reading->source->store, part.name, &object, err);
    if (status)
        return status;
    part.reader = store_object_reader(object);
    status = gguf_header_read(&part.reader, &reading->source->limits, &part.header, &seen);
    if (status) {
        status = part_bear(reading, part.name, status, &seen, err);
    } else {
        status = gguf_part_take(reading, &part, err);
        if (status)
            error_object(err, "%s", part.name);
    }
    gguf_header_release(&part.header);
    store_object_close(object);
    return status;
}

/* ---- the whole ---- */

static reshard_status check_parts(struct gguf_reading *reading, reshard_error *err)
{
    const struct gguf_folder *folder = &reading->folder;
    char others[64] = "";
    if (!folder->missing_count)
        return RESHARD_OK;
    if (folder->missing_count > 1)
        snprintf(others, sizeof(others), ", nor %s %" PRIu64 " more", folder->missing_count > 2 ? "are" : "is", folder->missing_count - 1);
    if (!source_bears_loss(reading->source))
        return error_set(err, RESHARD_ERR_FORMAT, "'%s', one of %" PRIu64 " parts, is not there%s", folder->missing, folder->total, others);
    reading->has_lost = true;
    catalog_warn_lost(reading->source->catalog, (struct str){ 0 }, "'%s', one of %" PRIu64 " parts, is not there%s: what they hold is lost",
                      folder->missing, folder->total, others);
    return RESHARD_OK;
}

/* The count that each part has of all tensors. */
static reshard_status check_total(const struct gguf_reading *reading, reshard_error *err)
{
    int64_t wanted = reading->tensors_wanted;
    if (reading->has_lost || wanted < 0 || (uint64_t)wanted == reading->tensor_count)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_FORMAT, "%" PRIu64 " tensors in all parts, 'split.tensors.count' is %" PRId64, reading->tensor_count,
                     wanted);
}

/* How many tensors are quantised, and as what. */
static reshard_status add_quantised(const struct gguf_reading *reading, reshard_error *err)
{
    struct buffer text = { 0 };
    uint64_t all = 0;
    for (int i = 0; i < GGML_BLOCK_COUNT; i++) {
        if (!reading->block_counts[i])
            continue;
        buffer_printf(&text, "%s%" PRIu64 " %s", all ? ", " : "", reading->block_counts[i], ggml_block_info((enum ggml_block)i)->name);
        all += reading->block_counts[i];
    }
    reshard_status status = text.failed ? error_set_memory(err) : RESHARD_OK;
    if (!status && all)
        status = catalog_add_fact(reading->source->catalog, "quantised", err, "%.*s (shown as F32)", STR_ARG(buffer_str(&text)));
    buffer_release(&text);
    return status;
}

static reshard_status gguf_read_files(struct gguf_reading *reading, reshard_error *err)
{
    struct source *source = reading->source;
    const struct gguf_folder *folder = &reading->folder;
    reshard_status status = check_parts(reading, err);
    for (size_t i = 0; i < folder->file_count && !status; i++)
        status = gguf_part_read(reading, i, err);
    if (!status && !reading->version)
        status = error_set(err, RESHARD_ERR_FORMAT, "no part can be read");
    if (!status)
        status = check_total(reading, err);
    if (!status && folder->total > 1)
        status = catalog_add_fact(source->catalog, "parts", err, "%" PRIu64, folder->total);
    if (!status && folder->left_alone)
        catalog_warn(source->catalog, false, "'%s' is another model and is left alone", folder->left_alone);
    return status ? status : add_quantised(reading, err);
}

reshard_status gguf_read_catalog(struct source *source, reshard_error *err)
{
    struct gguf_reading reading = { .source = source, .tensors_wanted = -1 };
    reshard_status status = gguf_folder_scan(source->store, source->name, &reading.arena, &reading.folder, err);
    if (!status && !reading.folder.file_count)
        status = error_set(err, RESHARD_ERR_FORMAT, "no GGUF files here");
    source->driver_state = status ? NULL : arena_zalloc(&source->catalog->arena, sizeof(struct gguf_state));
    if (!status && !source->driver_state)
        status = error_set_memory(err);
    if (!status)
        status = gguf_read_files(&reading, err);
    name_map_release(&reading.keys);
    name_map_release(&reading.names);
    arena_release(&reading.arena);
    return status;
}
