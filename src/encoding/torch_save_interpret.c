/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Second stage of reading: the inert graph of the pickle is searched for what torch would have rebuilt. Nodes are visited in the
 * order in which the pickle made them, so arguments come before the calls that use them.
 */
#include "base/checked.h"
#include "base/array.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define WARNINGS_MAX 100

static reshard_status append_text(struct torch_reading *reading, struct str **list, uint32_t *count, uint32_t *capacity, struct str text,
                                  reshard_error *err)
{
    if (!ARRAY_ROOM(*list, *count, *capacity) || !arena_str(&reading->archive->arena, text, &(*list)[*count]))
        return error_set_memory(err);
    (*count)++;
    return RESHARD_OK;
}

reshard_status torch_warn(struct torch_reading *reading, reshard_error *err, const char *format, ...)
{
    struct torch_archive *archive = reading->archive;
    if (archive->warning_count >= WARNINGS_MAX)
        return RESHARD_OK;
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return append_text(reading, &archive->warnings, &archive->warning_count, &reading->warning_capacity, str_of(text), err);
}

reshard_status torch_block(struct torch_reading *reading, uint64_t offset, reshard_error *err, const char *format, ...)
{
    struct torch_archive *archive = reading->archive;
    if (archive->weights_only_blocker.size > 0 && reading->blocker_offset <= offset)
        return RESHARD_OK;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    reading->blocker_offset = offset;
    return arena_str(&archive->arena, str_of(text), &archive->weights_only_blocker) ? RESHARD_OK : error_set_memory(err);
}

reshard_status torch_add_storage(struct torch_reading *reading, struct str key, uint32_t *out, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    bool was_new;
    uint32_t index = name_map_intern(&reading->keys, key, &was_new);
    if (index == NAME_NONE || !ARRAY_ROOM(archive->storages, archive->storage_count, reading->storage_capacity))
        return error_set_memory(err);
    if (!was_new)
        return error_set(err, RESHARD_ERR_FORMAT, "storage key '%.*s' occurs twice", STR_ARG(key));
    struct torch_storage *storage = &archive->storages[archive->storage_count];
    *storage = (struct torch_storage){ .has_data = true };
    if (!arena_str(&archive->arena, key, &storage->key))
        return error_set_memory(err);
    *out = archive->storage_count++;
    return RESHARD_OK;
}

reshard_status torch_add_tensor(struct torch_reading *reading, const struct torch_tensor *tensor, uint32_t *out, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    if (archive->tensor_count >= reading->limits->tensors)
        return error_set_limit(err, "tensors", (uint64_t)archive->tensor_count + 1, reading->limits->tensors);
    if (!ARRAY_ROOM(archive->tensors, archive->tensor_count, reading->tensor_capacity))
        return error_set_memory(err);
    archive->tensors[archive->tensor_count] = *tensor;
    *out = archive->tensor_count++;
    return RESHARD_OK;
}

/* ---- globals ---- */

static reshard_status note_global(struct torch_reading *reading, const struct value *node, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct str module = node->global.module, name = node->global.name;
    if (module.size == 0 || name.size == 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "global with an empty name");

    char text[256];
    int size = snprintf(text, sizeof(text), "%.*s.%.*s", STR_ARG(module), STR_ARG(name));
    size_t length = size < 0 ? 0 : (size_t)size < sizeof(text) ? (size_t)size : sizeof(text) - 1;
    bool was_new;
    if (name_map_intern(&reading->globals, (struct str){ text, length }, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return RESHARD_OK;

    if (!torch_global_is_weights_only(module, name)) {
        reshard_status status = torch_block(reading, node->offset, err, "global %s", text);
        if (status)
            return status;
    }
    if (torch_global_is_harmless(module, name))
        return RESHARD_OK;
    return append_text(reading, &archive->unknown_globals, &archive->unknown_global_count, &reading->unknown_capacity,
                       (struct str){ text, length }, err);
}

/* ---- persistent ids ---- */

struct storage_id {
    struct str key, location;
    const struct value *class_;
    int64_t numel;
    bool is_view; /* legacy view_metadata: [view_offset, view_offset + view_numel) elements of the storage */
    struct str view_key;
    int64_t view_offset, view_numel;
};

static reshard_status torch_save_interpret_parse_view(const struct value *metadata, uint64_t at, struct storage_id *out, reshard_error *err)
{
    if (metadata->kind == VALUE_NONE)
        return RESHARD_OK;
    struct value **items;
    size_t count;
    if (!value_as_sequence(metadata, &items, &count) || count != 3 || !value_as_str(items[0], &out->view_key) ||
        !value_as_int(items[1], &out->view_offset) || !value_as_int(items[2], &out->view_numel) || out->view_offset < 0 ||
        out->view_numel < 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "view metadata of a storage is not (key, offset, size)");
    out->is_view = true;
    return RESHARD_OK;
}

static reshard_status parse_storage_id(struct torch_reading *reading, const struct value *node, struct storage_id *out, reshard_error *err)
{
    const struct value *payload = node->inner;
    bool is_legacy = reading->archive->container == TORCH_LEGACY;
    size_t wanted = is_legacy ? 6 : 5;
    if (payload->kind != VALUE_TUPLE)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "persistent id is a %s, not a tuple", value_kind_name(payload));
    struct value **items = payload->list.items;
    struct str tag;
    if (payload->list.count == 0 || !value_as_str(items[0], &tag) || !str_is(tag, "storage"))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "persistent id is not a storage");
    if (payload->list.count != wanted)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "persistent id has %zu members, not %zu", payload->list.count, wanted);
    if (items[1]->kind != VALUE_GLOBAL)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage type is not a class but a %s", value_kind_name(items[1]));
    if (!value_as_str(items[2], &out->key))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage key is not a string");
    for (size_t i = 0; i < out->key.size; i++)
        if (out->key.data[i] < '0' || out->key.data[i] > '9')
            return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage key '%.*s' is not a number", STR_ARG(out->key));
    if (out->key.size == 0 || out->key.size > 32)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage key of %zu digits", out->key.size);
    if (!value_as_str(items[3], &out->location))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage location is not a string");
    if (!value_as_int(items[4], &out->numel))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage size is not a 64-bit integer");
    if (out->numel < 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "negative storage size %" PRId64, out->numel);
    out->class_ = items[1];
    return is_legacy ? torch_save_interpret_parse_view(items[5], node->offset, out, err) : RESHARD_OK;
}

/* Where the record of a storage lies in the zip; its size must be what the persistent id says. */
static reshard_status locate_in_zip(struct torch_reading *reading, struct str key, struct torch_storage *storage, reshard_error *err)
{
    if (!storage->has_data)
        return RESHARD_OK;
    char name[48];
    int size = snprintf(name, sizeof(name), "data/%.*s", STR_ARG(key));
    uint32_t index = name_map_find(&reading->members, (struct str){ name, (size_t)size });
    if (index == NAME_NONE && reading->is_cut_off) {
        storage->offset = reading->reader->size; /* what was there is gone */
        storage->stored_bytes = storage->bytes;
        return RESHARD_OK;
    }
    if (index == NAME_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "no record %s, which the pickle refers to", name);
    const struct zip_member *member = &reading->zip->members[index];
    if (storage->is_unknown_class)
        storage->bytes = member->bytes;
    if (member->bytes != storage->bytes)
        return error_set_at(err, RESHARD_ERR_FORMAT, member->payload_offset, "record %s has %" PRIu64 " bytes, its storage %" PRIu64, name,
                            member->bytes, storage->bytes);
    storage->offset = member->payload_offset;
    storage->stored_bytes = member->stored_bytes;
    storage->codec = member->method == 8 ? CODEC_DEFLATE : CODEC_NONE;
    storage->crc32 = member->crc32;
    storage->has_crc = !reading->zip->crc_is_off;
    return RESHARD_OK;
}

/*
 * A later mention of a storage must agree with the first. torch writes bytes as ByteStorage for uint8 tensors, and as UntypedStorage for
 * types without a storage class: one storage may be both.
 */
static reshard_status check_same_storage(struct torch_storage *old, const struct torch_storage *new, uint64_t at, reshard_error *err)
{
    old->is_untyped = old->is_untyped || (new->is_untyped && old->dtype == new->dtype);
    if (old->dtype != new->dtype)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "storage %.*s is declared with two types, %s and %s", STR_ARG(old->key),
                            dtype_info(old->dtype)->name, dtype_info(new->dtype)->name);
    if (old->bytes != new->bytes)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "storage %.*s is declared with two sizes, %" PRIu64 " and %" PRIu64 " bytes",
                            STR_ARG(old->key), old->bytes, new->bytes);
    return RESHARD_OK;
}

/* The sub-range of a storage that view metadata asks for becomes a storage of its own, with the view's key behind the root's. */
static reshard_status note_view(struct torch_reading *reading, struct value *node, const struct storage_id *id, uint32_t root,
                                reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    unsigned item = dtype_element_bytes(archive->storages[root].dtype);
    int64_t end;
    if (!checked_add_i64(id->view_offset, id->view_numel, &end) || end > id->numel)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset,
                            "storage view [%" PRId64 ", +%" PRId64 ") reaches beyond its root of %" PRId64 " elements", id->view_offset,
                            id->view_numel, id->numel);
    char key[160];
    int size = snprintf(key, sizeof(key), "%.*s/%.64s+%" PRId64 "+%" PRId64, STR_ARG(id->key), "view", id->view_offset, id->view_numel);
    uint32_t index = name_map_find(&reading->keys, (struct str){ key, (size_t)size });
    if (index == NAME_NONE) {
        reshard_status status = torch_add_storage(reading, (struct str){ key, (size_t)size }, &index, err);
        if (status)
            return status;
        struct torch_storage *view = &archive->storages[index], *base = &archive->storages[root];
        view->location = base->location;
        view->dtype = base->dtype;
        view->is_untyped = base->is_untyped;
        view->has_data = base->has_data;
        view->bytes = view->stored_bytes = (uint64_t)id->view_numel * item;
        view->offset = (uint64_t)id->view_offset * item;
        view->view_of = root + 1;
    }
    node->storage = index + 1;
    return RESHARD_OK;
}

static reshard_status note_persid(struct torch_reading *reading, struct value *node, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct value *payload = node->inner;
    struct str tag;
    if (archive->container == TORCH_LEGACY && payload->kind == VALUE_TUPLE && payload->list.count == 4 &&
        value_as_str(payload->list.items[0], &tag) && str_is(tag, "module"))
        return RESHARD_OK; /* ('module', class, file, source): the class, with its source text as a comment */

    struct storage_id id = { 0 };
    struct torch_storage found = { .has_data = true };
    reshard_status status = parse_storage_id(reading, node, &id, err);
    if (status)
        return status;
    bool is_known = torch_storage_class_of(id.class_, &found.dtype, &found.is_untyped);
    if (!is_known) {
        found.is_untyped = true;
        found.dtype = DTYPE_U8;
    }
    found.has_data = !str_is(id.location, "meta");
    if (!dtype_bytes(found.dtype, (uint64_t)id.numel, &found.bytes) || found.bytes > INT64_MAX)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "storage size of %" PRId64 " elements overflows", id.numel);

    /* What a class that torch does not have says about a record is no concern of those that it has. */
    char foreign[40];
    struct str key = id.key;
    if (!is_known && archive->container == TORCH_ZIP)
        key = (struct str){ foreign, (size_t)snprintf(foreign, sizeof(foreign), "?%.*s", STR_ARG(id.key)) };
    uint32_t index = name_map_find(&reading->keys, key);
    if (index == NAME_NONE) {
        status = torch_add_storage(reading, key, &index, err);
        if (status)
            return status;
        struct torch_storage *storage = &archive->storages[index];
        found.key = storage->key;
        found.is_unknown_class = !is_known;
        if (!arena_str(&archive->arena, id.location, &found.location))
            return error_set_memory(err);
        *storage = found;
        if (archive->container == TORCH_ZIP)
            status = locate_in_zip(reading, id.key, storage, err);
    } else if (is_known) {
        status = check_same_storage(&archive->storages[index], &found, node->offset, err);
    }
    if (status)
        return status;
    if (id.is_view)
        return note_view(reading, node, &id, index, err);
    node->storage = index + 1;
    return RESHARD_OK;
}

/* In a tar a persistent id is the decimal id of a tensor. */
static reshard_status note_tar_id(struct torch_reading *reading, struct value *node, reshard_error *err)
{
    struct str id;
    const struct value *payload = node->inner;
    if (payload->kind == VALUE_TUPLE)
        return RESHARD_OK; /* (class, file, source) */
    if (!value_as_str(payload, &id))
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "persistent id is a %s, not a string", value_kind_name(payload));
    uint32_t index = name_map_find(&reading->tensor_ids, id);
    if (index == NAME_NONE)
        return error_set_at(err, RESHARD_ERR_FORMAT, node->offset, "no tensor '%.*s' in the archive", STR_ARG(id));
    node->tensor = index + 1;
    if (!reading->archive->tensors[index].node)
        reading->archive->tensors[index].node = node;
    return RESHARD_OK;
}

/* ---- the walk ---- */

static bool torch_save_interpret_collect(const struct value *value, void *context)
{
    struct torch_reading *reading = context;
    reading->by_id[value->id] = (struct value *)value;
    return true;
}

static reshard_status torch_save_interpret_check_keys(struct value *const *pairs, size_t count, uint64_t at, reshard_error *err)
{
    for (size_t i = 0; i + 1 < count; i += 2) {
        enum value_kind kind = pairs[i]->kind;
        if (kind == VALUE_LIST || kind == VALUE_DICT || kind == VALUE_SET || kind == VALUE_BYTEARRAY)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "a %s as a dictionary key", value_kind_name(pairs[i]));
    }
    return RESHARD_OK;
}

static reshard_status note_node(struct torch_reading *reading, struct value *node, reshard_error *err)
{
    switch (node->kind) {
    case VALUE_GLOBAL:
        return note_global(reading, node, err);
    case VALUE_DICT:
        return torch_save_interpret_check_keys(node->list.items, node->list.count, node->offset, err);
    case VALUE_PERSID:
        return reading->archive->container == TORCH_TAR ? note_tar_id(reading, node, err) : note_persid(reading, node, err);
    case VALUE_CALL:
    case VALUE_NEW: {
        reshard_status status = torch_save_interpret_check_keys(node->object->dict_items, node->object->dict_count, node->offset, err);
        return status ? status : torch_note_object(reading, node, err);
    }
    default:
        return RESHARD_OK;
    }
}

reshard_status torch_interpret(struct torch_reading *reading, reshard_error *err)
{
    struct value_graph *graph = &reading->archive->graph;
    reading->by_id = array_zeroed(graph->count, sizeof(*reading->by_id));
    bool no_memory = false;
    reshard_status status = RESHARD_OK;
    if (!reading->by_id ||
        !value_walk(graph->root, graph->count, reading->limits->budget, torch_save_interpret_collect, reading, &no_memory)) {
        status = error_set_memory(err);
        goto out;
    }
    for (uint32_t id = 0; !status && id < graph->count; id++)
        if (reading->by_id[id])
            status = note_node(reading, reading->by_id[id], err);
    for (uint32_t id = 0; !status && id < graph->count; id++)
        if (reading->by_id[id] && reading->by_id[id]->kind == VALUE_NEW)
            status = torch_note_built(reading, reading->by_id[id], err);

out:
    free(reading->by_id);
    reading->by_id = NULL;
    return status;
}

reshard_status torch_parse_object(struct torch_reading *reading, uint64_t base_offset, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct pickle_report report;
    reshard_status status =
        pickle_parse_with_ids(archive->pickle.data, archive->pickle.size, base_offset, reading->limits, &archive->graph, &report, err);
    if (status)
        return status;
    archive->pickle_protocol = report.protocol;
    if (report.stack_left)
        return error_set_at(err, RESHARD_ERR_FORMAT, base_offset + report.consumed - 1, "values are left on the stack at STOP");
    if (report.not_weights_only)
        status = torch_block(reading, report.not_weights_only_offset, err,
                             "a pickle opcode at byte %" PRIu64 " that torch.save does not write", report.not_weights_only_offset);
    if (!status && report.consumed < archive->pickle.size)
        status = torch_warn(reading, err, "%zu bytes after the end of the pickle are ignored", archive->pickle.size - report.consumed);
    return status ? status : torch_interpret(reading, err);
}

bool torch_save_storage_id(const struct value *persid, const struct value **class_, bool *is_known, enum dtype *dtype, bool *is_untyped,
                           int64_t *numel)
{
    const struct value *payload = persid->inner;
    struct str tag;
    if (payload->kind != VALUE_TUPLE || payload->list.count < 5 || !value_as_str(payload->list.items[0], &tag) || !str_is(tag, "storage") ||
        payload->list.items[1]->kind != VALUE_GLOBAL || !value_as_int(payload->list.items[4], numel))
        return false;
    *class_ = payload->list.items[1];
    *is_known = torch_storage_class_of(*class_, dtype, is_untyped);
    return true;
}
