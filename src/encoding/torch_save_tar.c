/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tar of torch before 0.1.10. Members: `storages` (pickled count; then per storage a pickled (key, location, type), i64 number of
 * elements and the bytes; then a pickled list of views (key, root key, offset, size)), `tensors` (pickled count; then per tensor a pickled
 * (key, storage key, type), i32 rank, 4 bytes, i64 sizes, i64 strides, i64 offset), `pickle` (the object, whose persistent ids are tensor
 * keys) and `sys_info`. Nothing is ever unpacked by name.
 */
#include "base/checked.h"
#include "base/cursor.h"
#include "encoding/torch_save_parts.h"

#include <inttypes.h>
#include <stdio.h>

#define BLOCK_BYTES 512

enum tar_member { TAR_STORAGES, TAR_TENSORS, TAR_PICKLE, TAR_MEMBER_COUNT };

static const char *const tar_names[TAR_MEMBER_COUNT] = { "storages", "tensors", "pickle" };

struct tar_range {
    bool is_there;
    uint64_t offset, bytes;
};

/* ---- headers ---- */

/* Octal digits with blanks or NULs around; GNU's base 256 if the top bit is set. */
static bool parse_number(const uint8_t *field, size_t size, uint64_t *out)
{
    uint64_t value = 0;
    size_t i = 0;
    if (field[0] & 0x80) {
        if (field[0] != 0x80)
            return false;
        for (i = 1; i < size; i++) {
            if (value >> 56)
                return false;
            value = value << 8 | field[i];
        }
        *out = value;
        return value <= INT64_MAX;
    }
    while (i < size && field[i] == ' ')
        i++;
    size_t first = i;
    for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    if (i == first || (i < size && field[i] != ' ' && field[i] != '\0'))
        return false;
    *out = value;
    return true;
}

static bool checksum_fits(const uint8_t *block)
{
    uint64_t stored, sum = 0;
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        sum += i >= 148 && i < 156 ? ' ' : block[i];
    return parse_number(block + 148, 8, &stored) && stored == sum;
}

static bool is_zero_block(const uint8_t *block)
{
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        if (block[i])
            return false;
    return true;
}

static struct str text_field(const uint8_t *field, size_t size)
{
    return (struct str){ (const char *)field, strnlen((const char *)field, size) };
}

static reshard_status torch_save_tar_check_name(struct str name, uint64_t at, reshard_error *err)
{
    struct str rest = name;
    bool is_safe = name.size > 0 && name.data[0] != '/' && !memchr(name.data, '\\', name.size);
    while (is_safe && rest.size > 0) {
        size_t slash;
        if (!str_find_char(rest, '/', &slash))
            slash = rest.size;
        is_safe = !str_is((struct str){ rest.data, slash }, "..");
        size_t skip = slash < rest.size ? slash + 1 : slash;
        rest = (struct str){ rest.data + skip, rest.size - skip };
    }
    if (is_safe)
        return RESHARD_OK;
    return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar member name '%.*s' leaves the archive", STR_ARG(name));
}

/* A pax header may only change what does not matter here. */
static reshard_status check_pax(const struct reader *reader, uint64_t offset, uint64_t bytes, reshard_error *err)
{
    char text[4096];
    if (bytes > sizeof(text))
        return error_set_at(err, RESHARD_ERR_UNSUPPORTED, offset, "pax header of %" PRIu64 " bytes", bytes);
    reshard_status status = reader_read(reader, offset, text, (size_t)bytes, err);
    if (status)
        return status;
    static const char *const records[] = { " path=", " size=", " linkpath=", " GNU.sparse" };
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++)
        if (memmem(text, (size_t)bytes, records[i], strlen(records[i])))
            return error_set_at(err, RESHARD_ERR_UNSUPPORTED, offset, "pax header that changes%s", records[i]);
    return RESHARD_OK;
}

static reshard_status note_member(const struct reader *reader, const uint8_t *block, uint64_t at, uint64_t bytes, struct tar_range *members,
                                  reshard_error *err)
{
    struct str name = text_field(block, 100);
    uint8_t type = block[156];
    reshard_status status = torch_save_tar_check_name(name, at, err);
    if (status)
        return status;
    if (type == 'x' || type == 'g')
        return check_pax(reader, at + BLOCK_BYTES, bytes, err);
    if (type == '5')
        return RESHARD_OK;
    if (type != '0' && type != '\0')
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar member '%.*s' is no regular file (type %d)", STR_ARG(name), type);
    if (str_starts_with(name, "./"))
        name = (struct str){ name.data + 2, name.size - 2 };
    for (int i = 0; i < TAR_MEMBER_COUNT; i++) {
        if (!str_is(name, tar_names[i]))
            continue;
        if (members[i].is_there)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar member '%s' occurs twice", tar_names[i]);
        members[i] = (struct tar_range){ true, at + BLOCK_BYTES, bytes };
    }
    return RESHARD_OK;
}

static reshard_status list_members(const struct reader *reader, struct tar_range *members, reshard_error *err)
{
    uint8_t block[BLOCK_BYTES];
    uint64_t at = 0, bytes, count = 0;
    reshard_status status = RESHARD_OK;
    while (!status && range_fits(at, BLOCK_BYTES, reader->size)) {
        status = reader_read(reader, at, block, sizeof(block), err);
        if (status || is_zero_block(block))
            break;
        if (memcmp(block + 257, "ustar", 5) != 0 || !checksum_fits(block))
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar header with a wrong checksum");
        if (++count > 1000)
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar of more than 1000 members");
        if (!parse_number(block + 124, 12, &bytes) || !range_fits(at + BLOCK_BYTES, bytes, reader->size))
            return error_set_at(err, RESHARD_ERR_FORMAT, at, "tar member reaches beyond the file");
        status = note_member(reader, block, at, bytes, members, err);
        uint64_t padded = bytes + (BLOCK_BYTES - bytes % BLOCK_BYTES) % BLOCK_BYTES;
        if (!checked_add_u64(at, BLOCK_BYTES + padded, &at))
            break;
    }
    for (int i = 0; !status && i < TAR_MEMBER_COUNT; i++)
        if (!members[i].is_there)
            status = error_set(err, RESHARD_ERR_FORMAT, "tar without a member '%s'", tar_names[i]);
    return status;
}

/* ---- members ---- */

/* The next pickle of a member, as a graph whose texts point into *copy. */
static reshard_status torch_save_tar_next_graph(struct torch_stream *stream, struct buffer *copy, struct value_graph *graph,
                                                reshard_error *err)
{
    uint64_t start = stream->position;
    struct str bytes;
    reshard_status status = torch_stream_pickle(stream, &bytes, err);
    if (status)
        return status;
    buffer_clear(copy);
    if (!buffer_append_str(copy, bytes))
        return error_set_memory(err);
    return pickle_parse(copy->data, copy->size, start, stream->limits, graph, NULL, err);
}

static reshard_status next_count(struct torch_stream *stream, struct buffer *copy, int64_t *out, reshard_error *err)
{
    struct value_graph graph = { 0 };
    uint64_t at = stream->position;
    reshard_status status = torch_save_tar_next_graph(stream, copy, &graph, err);
    if (!status && (!value_as_int(graph.root, out) || *out < 0))
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "count of tar entries is not a number");
    value_graph_release(&graph);
    return status;
}

static size_t torch_save_tar_key_text(int64_t key, char out[24])
{
    return (size_t)snprintf(out, 24, "%" PRId64, key);
}

/* (key, location, type), number of elements, bytes. */
static reshard_status torch_save_tar_read_storage(struct torch_reading *reading, struct torch_stream *stream, struct buffer *copy,
                                                  uint64_t base, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct value_graph graph = { 0 };
    struct value **items;
    size_t count;
    struct torch_storage found = { .has_data = true };
    struct str location, bytes;
    int64_t key;
    uint64_t at = base + stream->position;
    uint32_t index;
    reshard_status status = torch_save_tar_next_graph(stream, copy, &graph, err);
    if (!status && (!value_as_sequence(graph.root, &items, &count) || count != 3 || !value_as_int(items[0], &key) ||
                    !value_as_str(items[1], &location) || items[2]->kind != VALUE_GLOBAL))
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "storage of a tar is not (key, location, type)");
    if (!status && !torch_storage_class_of(items[2], &found.dtype, &found.is_untyped))
        status = error_set_at(err, RESHARD_ERR_UNSUPPORTED, at, "storage of a class that torch does not have: its size is not known");
    if (!status)
        status = torch_stream_bytes(stream, 8, &bytes, err);
    if (!status) {
        int64_t elements = (int64_t)load_le((const uint8_t *)bytes.data, 8);
        if (elements < 0 || !dtype_bytes(found.dtype, (uint64_t)elements, &found.bytes))
            status = error_set_at(err, RESHARD_ERR_FORMAT, at, "storage of %" PRId64 " elements", elements);
    }
    if (!status) {
        char text[24];
        status = torch_add_storage(reading, (struct str){ text, torch_save_tar_key_text(key, text) }, &index, err);
    }
    if (!status && !arena_str(&archive->arena, location, &found.location))
        status = error_set_memory(err);
    if (!status) {
        found.key = archive->storages[index].key;
        found.offset = base + stream->position;
        found.stored_bytes = found.bytes;
        archive->storages[index] = found;
        status = torch_stream_skip(stream, found.bytes, err);
    }
    value_graph_release(&graph);
    return status;
}

/* (key, root key, offset, size): a storage that is a part of another. */
static reshard_status read_view(struct torch_reading *reading, const struct value *view, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    int64_t numbers[4], end;
    size_t count;
    char text[24];
    if (!value_as_ints(view, numbers, 4, &count) || count != 4)
        return error_set(err, RESHARD_ERR_FORMAT, "storage view of a tar is not (key, root key, offset, size)");
    uint32_t root = name_map_find(&reading->keys, (struct str){ text, torch_save_tar_key_text(numbers[1], text) }), index;
    if (root == NAME_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "storage view of storage %" PRId64 ", which is not there", numbers[1]);
    unsigned item = dtype_element_bytes(archive->storages[root].dtype);
    if (numbers[2] < 0 || numbers[3] < 0 || !checked_add_i64(numbers[2], numbers[3], &end) ||
        (uint64_t)end > archive->storages[root].bytes / item)
        return error_set(err, RESHARD_ERR_FORMAT, "storage view reaches beyond its root of %" PRIu64 " bytes",
                         archive->storages[root].bytes);
    reshard_status status = torch_add_storage(reading, (struct str){ text, torch_save_tar_key_text(numbers[0], text) }, &index, err);
    if (status)
        return status;
    struct str key = archive->storages[index].key;
    archive->storages[index] = archive->storages[root];
    archive->storages[index].key = key;
    archive->storages[index].view_of = root + 1;
    archive->storages[index].offset += (uint64_t)numbers[2] * item;
    archive->storages[index].bytes = archive->storages[index].stored_bytes = (uint64_t)numbers[3] * item;
    return RESHARD_OK;
}

static reshard_status torch_save_tar_read_storages(struct torch_reading *reading, const struct tar_range *member, reshard_error *err)
{
    struct reader window;
    struct torch_stream stream = { .limits = reading->limits };
    struct buffer copy = { 0 };
    struct value_graph views = { 0 };
    struct value **items;
    size_t view_count = 0;
    int64_t count = 0;
    reshard_status status = reader_window(reading->reader, member->offset, member->bytes, &window, err);
    stream.reader = &window;
    if (!status)
        status = next_count(&stream, &copy, &count, err);
    for (int64_t i = 0; !status && i < count; i++)
        status = torch_save_tar_read_storage(reading, &stream, &copy, member->offset, err);
    if (!status)
        status = torch_save_tar_next_graph(&stream, &copy, &views, err);
    if (!status && !value_as_sequence(views.root, &items, &view_count))
        status = error_set(err, RESHARD_ERR_FORMAT, "list of storage views is a %s", value_kind_name(views.root));
    for (size_t i = 0; !status && i < view_count; i++)
        status = read_view(reading, items[i], err);
    value_graph_release(&views);
    buffer_release(&copy);
    torch_stream_release(&stream);
    return status;
}

/* Rank, sizes, strides and offset behind the pickled names of a tensor. */
static reshard_status read_tensor_numbers(struct torch_reading *reading, struct torch_stream *stream, struct torch_tensor *tensor,
                                          reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct str bytes;
    uint64_t at = stream->position;
    reshard_status status = torch_stream_bytes(stream, 8, &bytes, err);
    if (status)
        return status;
    int32_t rank = (int32_t)load_le((const uint8_t *)bytes.data, 4);
    if (rank < 0 || rank > RANK_MAX)
        return error_set_at(err, RESHARD_ERR_FORMAT, at, "tensor of %" PRId32 " dimensions", rank);
    status = torch_stream_bytes(stream, 16 * (size_t)rank + 8, &bytes, err);
    if (status)
        return status;
    int64_t *numbers = arena_array(&archive->arena, 2 * (size_t)rank + 1, sizeof(*numbers));
    if (!numbers)
        return error_set_memory(err);
    for (int32_t i = 0; i < 2 * rank + 1; i++)
        numbers[i] = (int64_t)load_le((const uint8_t *)bytes.data + 8 * (size_t)i, 8);
    const struct torch_storage *storage = &archive->storages[tensor->storage];
    struct torch_view view = { storage->dtype, rank, numbers, numbers + rank, numbers[2 * rank] };
    tensor->dtype = storage->dtype;
    tensor->rank = rank;
    tensor->shape = view.shape;
    tensor->strides = view.strides;
    return torch_view_check(&view, storage->bytes, reading->limits, at, &tensor->offset_bytes, err);
}

static reshard_status torch_save_tar_read_tensor(struct torch_reading *reading, struct torch_stream *stream, struct buffer *copy,
                                                 reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct value **items;
    size_t count;
    int64_t key, storage_key;
    char text[24];
    struct torch_tensor tensor = { 0 };
    uint64_t at = stream->position;
    uint32_t index;
    bool was_new = true;
    reshard_status status = torch_save_tar_next_graph(stream, copy, &graph, err);
    if (!status && (!value_as_sequence(graph.root, &items, &count) || count != 3 || !value_as_int(items[0], &key) ||
                    !value_as_int(items[1], &storage_key)))
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "tensor of a tar is not (key, storage key, type)");
    if (!status) {
        tensor.storage = name_map_find(&reading->keys, (struct str){ text, torch_save_tar_key_text(storage_key, text) });
        if (tensor.storage == NAME_NONE)
            status = error_set_at(err, RESHARD_ERR_FORMAT, at, "tensor on storage %" PRId64 ", which is not there", storage_key);
    }
    if (!status)
        status = read_tensor_numbers(reading, stream, &tensor, err);
    if (!status && name_map_intern(&reading->tensor_ids, (struct str){ text, torch_save_tar_key_text(key, text) }, &was_new) == NAME_NONE)
        status = error_set_memory(err);
    if (!status && !was_new)
        status = error_set_at(err, RESHARD_ERR_FORMAT, at, "tensor %" PRId64 " occurs twice", key);
    if (!status)
        status = torch_add_tensor(reading, &tensor, &index, err);
    value_graph_release(&graph);
    return status;
}

static reshard_status read_tensors(struct torch_reading *reading, const struct tar_range *member, reshard_error *err)
{
    struct reader window;
    struct torch_stream stream = { .limits = reading->limits };
    struct buffer copy = { 0 };
    int64_t count = 0;
    reshard_status status = reader_window(reading->reader, member->offset, member->bytes, &window, err);
    stream.reader = &window;
    if (!status)
        status = next_count(&stream, &copy, &count, err);
    for (int64_t i = 0; !status && i < count; i++)
        status = torch_save_tar_read_tensor(reading, &stream, &copy, err);
    buffer_release(&copy);
    torch_stream_release(&stream);
    return status;
}

reshard_status torch_open_tar(struct torch_reading *reading, reshard_error *err)
{
    struct torch_archive *archive = reading->archive;
    struct tar_range members[TAR_MEMBER_COUNT] = { 0 };
    reshard_status status = list_members(reading->reader, members, err);
    if (!status)
        status = torch_save_tar_read_storages(reading, &members[TAR_STORAGES], err);
    if (!status)
        status = read_tensors(reading, &members[TAR_TENSORS], err);
    const struct tar_range *pickle = &members[TAR_PICKLE];
    if (!status && pickle->bytes > reading->limits->metadata_bytes)
        status = error_set_limit(err, "metadata_bytes", pickle->bytes, reading->limits->metadata_bytes);
    if (!status)
        status = reader_append(reading->reader, pickle->offset, pickle->bytes, &archive->pickle, err);
    if (!status)
        status = torch_block(reading, 0, err, "a tar container");
    if (!status)
        status = torch_parse_object(reading, pickle->offset, err);
    return status;
}
