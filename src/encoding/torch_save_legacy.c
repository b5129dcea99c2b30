/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream that torch wrote from 0.1.10 to 1.5, and still writes on request: pickles of a magic number, a protocol version, facts about
 * the machine, the object, and the storage keys; then, for each key, the number of elements and the raw bytes, little-endian always.
 */
#include "base/checked.h"
#include "base/array.h"
#include "base/cursor.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#define LEGACY_VERSION 1001

/* The next pickle as a graph of its own; texts in it point into the stream's window. */
static reshard_status torch_save_legacy_next_graph(struct torch_stream *stream, struct value_graph *graph, reshard_error *err)
{
    uint64_t start = stream->position;
    struct str bytes;
    reshard_status status = torch_stream_pickle(stream, &bytes, err);
    if (!status)
        status = pickle_parse(bytes.data, bytes.size, start, stream->limits, graph, NULL, err);
    return status;
}

static reshard_status read_head(struct torch_reading *reading, struct torch_stream *stream, reshard_error *err)
{
    struct value_graph magic = { 0 }, version = { 0 }, system = { 0 };
    struct value **pairs;
    size_t count;
    int64_t number = -1;
    reshard_status status = torch_save_legacy_next_graph(stream, &magic, err);
    if (!status && !torch_is_legacy_magic(magic.root))
        status = error_set_at(err, RESHARD_ERR_FORMAT, 0, "wrong magic number");
    uint64_t at = stream->position;
    if (!status)
        status = torch_save_legacy_next_graph(stream, &version, err);
    if (!status && (!value_as_int(version.root, &number) || number != LEGACY_VERSION))
        status =
            error_set_at(err, RESHARD_ERR_FORMAT, at, "legacy protocol version %" PRId64 " is not known, %d is", number, LEGACY_VERSION);
    if (!status)
        status = torch_save_legacy_next_graph(stream, &system, err);
    if (!status && !value_as_mapping(system.root, &pairs, &count))
        status = torch_warn(reading, err, "the record about the writing machine is not a dictionary");
    value_graph_release(&magic);
    value_graph_release(&version);
    value_graph_release(&system);
    return status;
}

static reshard_status read_object(struct torch_reading *reading, struct torch_stream *stream, reshard_error *err)
{
    uint64_t start = stream->position;
    struct str bytes;
    reshard_status status = torch_stream_pickle(stream, &bytes, err);
    if (status)
        return status;
    if (!buffer_append_str(&reading->archive->pickle, bytes))
        return error_set_memory(err);
    return torch_parse_object(reading, start, err);
}

/* One storage: i64 count of elements, then its bytes. is_read says which storages came already. */
static reshard_status torch_save_legacy_read_storage(struct torch_reading *reading, struct torch_stream *stream, const struct value *key,
                                                     bool *is_read, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct str name, bytes;
    uint64_t at = stream->position;
    if (!value_as_str(key, &name))
        return error_set_at(err, RESHARD_ERR_FORMAT, key->offset, "storage key is not a string but a %s", value_kind_name(key));
    uint32_t index = name_map_find(&reading->keys, name);
    if (index == NAME_NONE || archive->storages[index].view_of > 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, key->offset, "storage key %.*s is not in the pickle", STR_ARG(name));
    if (is_read[index])
        return error_set_at(err, RESHARD_ERR_FORMAT, key->offset, "storage key %.*s twice in the list", STR_ARG(name));
    struct torch_storage *storage = &archive->storages[index];
    if (storage->is_unknown_class)
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "storage %.*s is of a class that torch does not have: its size is not known",
                            STR_ARG(name));
    reshard_status status = torch_stream_bytes(stream, 8, &bytes, err);
    if (status)
        return status;
    int64_t elements = (int64_t)load_le((const uint8_t *)bytes.data, 8);
    uint64_t size;
    if (elements < 0)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "negative size %" PRId64 " of storage %.*s", elements, STR_ARG(name));
    if (!dtype_bytes(storage->dtype, (uint64_t)elements, &size) || size != storage->bytes)
        return error_set_at(err, RESHARD_ERR_FORMAT, at,
                            "storage %.*s has %" PRId64 " elements of %s, its persistent id says %" PRIu64 " bytes", STR_ARG(name),
                            elements, dtype_info(storage->dtype)->name, storage->bytes);
    storage->offset = stream->position;
    storage->stored_bytes = size;
    is_read[index] = true;
    return torch_stream_skip(stream, size, err);
}

static reshard_status check_all_read(struct torch_archive *archive, const bool *is_read, reshard_error *err)
{
    for (uint32_t i = 0; i < archive->storage_count; i++) {
        struct torch_storage *storage = &archive->storages[i];
        if (storage->view_of > 0)
            storage->offset += archive->storages[storage->view_of - 1].offset;
        else if (!is_read[i] && storage->has_data)
            return error_set(err, RESHARD_ERR_FORMAT, "storage %.*s has no data", STR_ARG(storage->key));
    }
    return RESHARD_OK;
}

static reshard_status torch_save_legacy_read_storages(struct torch_reading *reading, struct torch_stream *stream, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct value_graph keys = { 0 };
    struct value **items;
    size_t count;
    struct str bytes;
    struct buffer copy = { 0 };
    bool *is_read = array_zeroed(archive->storage_count, sizeof(*is_read));
    uint64_t start = stream->position;
    reshard_status status = is_read ? torch_stream_pickle(stream, &bytes, err) : error_set_memory(err);
    if (!status && !buffer_append_str(&copy, bytes))
        status = error_set_memory(err);
    if (!status)
        status = pickle_parse(copy.data, copy.size, start, stream->limits, &keys, NULL, err);
    if (!status && !value_as_sequence(keys.root, &items, &count))
        status = error_set_at(err, RESHARD_ERR_FORMAT, start, "list of storage keys is a %s", value_kind_name(keys.root));
    for (size_t i = 0; !status && i < count; i++)
        status = torch_save_legacy_read_storage(reading, stream, items[i], is_read, err);
    if (!status)
        status = check_all_read(archive, is_read, err);
    if (!status && stream->position < stream->reader->size)
        status = torch_warn(reading, err, "%" PRIu64 " bytes after the last storage are ignored", stream->reader->size - stream->position);
    value_graph_release(&keys);
    buffer_release(&copy);
    free(is_read);
    return status;
}

/* torch 2.13 asks the storage class of an untyped storage for its dtype, which it does not have. */
static reshard_status note_untyped(struct torch_reading *reading, reshard_error *err)
{
    for (uint32_t i = 0; i < reading->archive->storage_count; i++)
        if (reading->archive->storages[i].is_untyped)
            return torch_block(reading, UINT64_MAX, err, "an untyped storage in a legacy stream, which torch cannot read back");
    return RESHARD_OK;
}

reshard_status torch_open_legacy(struct torch_reading *reading, reshard_error *err)
{
    struct torch_stream stream = { .reader = reading->reader, .limits = reading->limits };
    reshard_status status = read_head(reading, &stream, err);
    if (!status)
        status = read_object(reading, &stream, err);
    if (!status)
        status = torch_save_legacy_read_storages(reading, &stream, err);
    if (!status)
        status = note_untyped(reading, err);
    torch_stream_release(&stream);
    return status;
}
