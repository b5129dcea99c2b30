/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/numpy/numpy_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/cursor.h"
#include "formats/shared/file_tree.h"
#include "formats/source_probe.h"

#include <inttypes.h>
#include <stdlib.h>

#define HEAD_BYTES 256 /* more than nearly all headers have */
#define ENTRY_UNITS 512 /* of work: an array that is looked at */

/* A file of an array, or a member of an archive. */
struct numpy_entry {
    struct str name, key;
    const struct reader *reader; /* of the object */
    uint32_t object, member;     /* member: CATALOG_NONE for a file */
    uint64_t offset, stored_bytes, bytes; /* in the object; bytes decoded */
    enum codec codec;
};

struct numpy_reading {
    struct source *source;
    struct numpy_source *state;
    struct name_map keys;
    struct buffer head;
};

/* ---- headers ---- */

/* The next bytes of what was begun, up to `size` in all or the end. */
static reshard_status head_extend(struct numpy_reading *reading, const struct numpy_entry *entry, struct decoder *decoder, uint64_t size,
                                  reshard_error *err)
{
    struct buffer *head = &reading->head;
    const uint64_t whole = size < entry->bytes ? size : entry->bytes, before = head->size;
    const struct limits *limits = &reading->source->limits;
    if (whole <= before)
        return RESHARD_OK;
    if (whole > limits->metadata_bytes)
        return error_set_limit(err, "metadata_bytes", whole, limits->metadata_bytes);
    reshard_status status = work_spend(limits->budget, whole - before, err);
    uint8_t *room = status ? NULL : buffer_extend(head, (size_t)(whole - before));
    size_t got = (size_t)(whole - before);
    if (!status && !room)
        status = error_set_memory(err);
    if (!status && decoder)
        status = decoder_read(decoder, room, (size_t)(whole - before), &got, err);
    else if (!status)
        status = reader_read(entry->reader, entry->offset + before, room, got, err);
    if (!status && before + got < whole)
        status = error_set_at(err, RESHARD_ERR_FORMAT, entry->offset, "inflates to %" PRIu64 " bytes, the directory says %" PRIu64,
                              before + got, entry->bytes);
    return status;
}

/* The first bytes of an entry in reading->head: all of the header, if it begins as one. *is_array: it does. */
static reshard_status head_read(struct numpy_reading *reading, const struct numpy_entry *entry, bool *is_array, reshard_error *err)
{
    const struct limits *limits = &reading->source->limits;
    struct decoder *decoder = NULL;
    uint64_t offset = 0;
    *is_array = false;
    buffer_clear(&reading->head);
    work_add_input(limits->budget, entry->stored_bytes < HEAD_BYTES ? entry->stored_bytes : HEAD_BYTES);
    reshard_status status = work_spend(limits->budget, ENTRY_UNITS + entry->name.size, err);
    if (!status && entry->codec != CODEC_NONE)
        status = decoder_new(entry->codec, entry->reader, entry->offset, entry->stored_bytes, limits, &decoder, err);
    if (!status)
        status = head_extend(reading, entry, decoder, HEAD_BYTES, err);
    if (!status)
        *is_array = reading->head.size >= 6 && memcmp(reading->head.data, "\x93NUMPY", 6) == 0;
    if (!status && *is_array) {
        status = npy_data_offset(reading->head.data, reading->head.size, &offset, err);
        if (!status)
            status = head_extend(reading, entry, decoder, offset, err);
    }
    decoder_free(decoder);
    return status;
}

/* ---- arrays ---- */

/* In a file that is cut off the elements are lost; bytes behind them are another array's, or nobody's. */
static reshard_status check_elements(struct numpy_reading *reading, const struct numpy_entry *entry, const struct npy_header *header,
                                 reshard_error *err)
{
    const int64_t volume = box_volume(header->rank, header->shape);
    uint64_t wanted;
    const uint64_t found = entry->bytes - header->data_offset;
    if (!checked_mul_u64((uint64_t)volume, header->element_bytes, &wanted) || wanted > INT64_MAX)
        return error_set(err, RESHARD_ERR_FORMAT, "the size of its shape overflows");
    if (header->content == NPY_OBJECTS || found == wanted)
        return RESHARD_OK;
    if (found > wanted && reading->source->lenient) {
        catalog_warn(reading->source->catalog, false, "'%.*s': %" PRIu64 " bytes behind the array are not read", STR_ARG(entry->name),
                     found - wanted);
        return RESHARD_OK;
    }
    error_set_at(err, RESHARD_ERR_FORMAT, header->data_offset, "%" PRIu64 " bytes of elements, its shape needs %" PRIu64, found, wanted);
    if (found > wanted)
        error_hint(err, "numpy.load reads one array; if more were saved to the same file, save each to its own, or all with numpy.savez");
    return RESHARD_ERR_FORMAT;
}

static reshard_status numpy_set_layout(struct catalog *catalog, struct catalog_chunk *chunk, const struct numpy_entry *entry,
                                 const struct npy_header *header, reshard_error *err)
{
    int64_t strides[RANK_MAX];
    reshard_status status = RESHARD_OK;
    if (header->is_big_endian)
        chunk->flags |= CHUNK_SWAP;
    if (header->is_fortran && header->rank > 1) {
        strides_column_major(header->rank, header->shape, strides);
        status = catalog_chunk_set_strides(catalog, chunk, header->rank, strides, err);
    }
    if (!status && entry->codec != CODEC_NONE)
        status = catalog_chunk_set_codec(catalog, chunk, entry->codec, entry->offset, entry->stored_bytes, err);
    return status;
}

static reshard_status add_tensor(struct numpy_reading *reading, const struct numpy_entry *entry, const struct npy_header *header,
                                 reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    struct catalog_chunk *chunk;
    uint32_t tensor;
    const uint64_t bytes = (uint64_t)box_volume(header->rank, header->shape) * header->element_bytes;
    reshard_status status = catalog_add_tensor(catalog, entry->key, header->dtype, header->rank, header->shape, &tensor, err);
    if (!status && header->content == NPY_TIMES)
        catalog_warn(catalog, false, "'%.*s' is of type %.*s: shown as the I64 numbers that it is stored as, without the unit",
                     STR_ARG(entry->key), STR_ARG(header->descr));
    const uint64_t base = entry->codec == CODEC_NONE ? entry->offset : 0;
    if (!status) /* without elements too: the file is the tensor's */
        status = catalog_add_chunk(catalog, tensor, NULL, NULL, entry->object, base + header->data_offset, bytes, &chunk, err);
    return status || !bytes ? status : numpy_set_layout(catalog, chunk, entry, header, err);
}

/* All bytes of an entry; those of a member with its CRC compared. */
static reshard_status numpy_read_whole(struct numpy_reading *reading, const struct numpy_entry *entry, struct buffer *out,
                                       reshard_error *err)
{
    const struct limits *limits = &reading->source->limits;
    const struct zip_archive *zip = &reading->state->zip;
    if (entry->bytes > limits->item_bytes)
        return error_set_limit(err, "item_bytes", entry->bytes, limits->item_bytes);
    if (entry->member != CATALOG_NONE)
        return zip_read_member(entry->reader, zip, &zip->members[entry->member], limits, out, err);
    work_add_input(limits->budget, entry->bytes);
    return reader_append(entry->reader, entry->offset, entry->bytes, out, err);
}

/* header NULL: bytes that are no array. */
static reshard_status numpy_add_item(struct numpy_reading *reading, const struct numpy_entry *entry, const struct npy_header *header,
                                     reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    struct catalog_item item = { .key = entry->key, .path = CATALOG_NONE, .kind = ITEM_VALUE };
    struct value_graph graph = { 0 }, *kept = NULL;
    struct buffer bytes = { 0 };
    reshard_status status = numpy_read_whole(reading, entry, &bytes, err);
    if (!status) {
        status = numpy_value_decode(header, &bytes, &reading->source->limits, &graph, err);
        if (status && entry->codec == CODEC_NONE)
            error_shift(err, entry->offset);
    }
    buffer_release(&bytes);
    if (status) {
        value_graph_release(&graph);
        return status;
    }
    kept = catalog_adopt_graph(catalog, graph);
    if (!kept)
        return error_set_memory(err);
    item.value = kept->root;
    item.graph = kept;
    return catalog_add_item(catalog, &item, NULL, 0, NULL, err);
}

static reshard_status read_entry(struct numpy_reading *reading, const struct numpy_entry *entry, reshard_error *err)
{
    struct npy_header header;
    bool is_array, was_new;
    reshard_status status = head_read(reading, entry, &is_array, err);
    if (status)
        return status;
    if (name_map_intern(&reading->keys, entry->key, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (!was_new)
        return error_set(err, RESHARD_ERR_FORMAT, "a second array is called '%.*s'", STR_ARG(entry->key));
    if (!is_array && entry->member != CATALOG_NONE && entry->key.size == entry->name.size)
        return numpy_add_item(reading, entry, NULL, err);
    status = npy_parse_any(reading->head.data, reading->head.size, &header, err);
    if (!status)
        status = check_elements(reading, entry, &header, err);
    if (status && entry->codec == CODEC_NONE) /* else the place counts in what the member inflates to */
        error_shift(err, entry->offset);
    if (status)
        return status;
    bool is_tensor = header.content == NPY_NUMBERS || header.content == NPY_TIMES;
    return is_tensor ? add_tensor(reading, entry, &header, err) : numpy_add_item(reading, entry, &header, err);
}

static void hint_unsupported(reshard_error *err)
{
    error_hint(err, "reshard_open_options.lenient leaves out arrays that are not supported");
    error_hint(err, "numpy saves numbers of array.view('u1'), and of each field of records, array['FIELD']");
}

/* Where an entry cannot be read, the others still can, if the caller takes what there is. */
static reshard_status numpy_add_entry(struct numpy_reading *reading, const struct numpy_entry *entry, reshard_error *err)
{
    struct source *source = reading->source;
    reshard_error found = { 0 };
    reshard_status status = read_entry(reading, entry, &found);
    bool is_lost = status == RESHARD_ERR_FORMAT && source->is_salvage;
    if (!status)
        return RESHARD_OK;
    if (is_lost || (status == RESHARD_ERR_UNSUPPORTED && source->skip_unsupported)) {
        source_warn_left_out(source, entry->key, is_lost, "%s", found.message);
        if (entry->member != CATALOG_NONE)
            reading->state->is_lost[entry->member] = is_lost;
        return RESHARD_OK;
    }
    if (err)
        *err = found;
    struct str object = source->catalog->objects[entry->object].name;
    error_prefix(err, "'%.*s'", STR_ARG(entry->name));
    error_object(err, "%.*s", STR_ARG(object));
    if (status == RESHARD_ERR_UNSUPPORTED)
        hint_unsupported(err);
    return status;
}

static struct str npy_key_of(struct str name)
{
    return str_ends_with(name, NUMPY_SUFFIX) ? (struct str){ name.data, name.size - NUMPY_SUFFIX_BYTES } : name;
}

static reshard_status numpy_reading_begin(struct numpy_reading *reading, reshard_error *err)
{
    reading->state = calloc(1, sizeof(*reading->state));
    reading->source->driver_state = reading->state;
    return reading->state ? RESHARD_OK : error_set_memory(err);
}

static void numpy_reading_release(struct numpy_reading *reading)
{
    name_map_release(&reading->keys);
    buffer_release(&reading->head);
}

/* ---- npz ---- */

#define EMPTY_BYTES 22

bool numpy_is_without_arrays(const void *bytes, size_t size)
{
    static const uint8_t end[EMPTY_BYTES] = { 'P', 'K', 5, 6 };
    return size == sizeof(end) && memcmp(bytes, end, sizeof(end)) == 0;
}

static reshard_status is_without_members(const struct reader *reader, bool *out, reshard_error *err)
{
    uint8_t bytes[EMPTY_BYTES];
    *out = false;
    if (reader->size != sizeof(bytes))
        return RESHARD_OK;
    reshard_status status = reader_read(reader, 0, bytes, sizeof(bytes), err);
    *out = !status && numpy_is_without_arrays(bytes, sizeof(bytes));
    return status;
}

static reshard_status open_members(struct numpy_reading *reading, const struct reader *reader, reshard_error *err)
{
    struct source *source = reading->source;
    struct zip_archive *zip = &reading->state->zip;
    bool is_empty;
    reshard_status status = is_without_members(reader, &is_empty, err);
    if (status || is_empty)
        return status;
    status = zip_open_cased(reader, &source->limits, zip, err);
    if (status == RESHARD_ERR_FORMAT && source->is_salvage) {
        status = zip_open_cut_off(reader, &source->limits, zip, err);
        reading->state->is_cut_off = true;
        if (!status)
            catalog_warn_lost(source->catalog, (struct str){ 0 }, "the end of the archive is not there, and what it would name is lost");
    }
    if (!status && zip->trailing_bytes)
        catalog_warn(source->catalog, false, "%" PRIu64 " bytes after the end of the archive are ignored", zip->trailing_bytes);
    return status;
}

static reshard_status add_members(struct numpy_reading *reading, const struct reader *reader, reshard_error *err)
{
    const struct zip_archive *zip = &reading->state->zip;
    uint32_t deflated = 0;
    reshard_status status = RESHARD_OK;
    reading->state->is_lost = array_zeroed(zip->member_count, sizeof(*reading->state->is_lost));
    if (!reading->state->is_lost)
        return error_set_memory(err);
    for (uint32_t i = 0; !status && i < zip->member_count; i++) {
        const struct zip_member *member = &zip->members[i];
        const struct numpy_entry entry = { .name = member->name,
                                           .key = npy_key_of(member->name),
                                           .reader = reader,
                                           .object = reading->state->object,
                                           .member = i,
                                           .offset = member->payload_offset,
                                           .stored_bytes = member->stored_bytes,
                                           .bytes = member->bytes,
                                           .codec = member->method ? CODEC_DEFLATE : CODEC_NONE };
        deflated += member->method != 0;
        if (!member->is_directory)
            status = numpy_add_entry(reading, &entry, err);
    }
    if (!status)
        status = catalog_add_fact(reading->source->catalog, "members", err, "%" PRIu32 "%s", zip->member_count,
                                  deflated ? deflated < zip->member_count ? ", some of them deflated" : ", deflated" : ", stored");
    return status;
}

reshard_status numpy_read_npz(struct source *source, reshard_error *err)
{
    struct numpy_reading reading = { .source = source };
    struct store_object *object = NULL;
    reshard_status status = numpy_reading_begin(&reading, err);
    if (!status)
        status = store_open_object(source->store, source->name, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = catalog_add_object(source->catalog, str_of(source->name), reader.size, &reading.state->object, err);
    if (!status)
        status = open_members(&reading, &reader, err);
    if (!status)
        status = add_members(&reading, &reader, err);
    if (status)
        error_object(err, "%s", source->name);
    numpy_reading_release(&reading);
    store_object_close(object);
    return status;
}

/* ---- npy ---- */

static reshard_status npy_read_file(struct numpy_reading *reading, struct str name, struct str key, reshard_error *err)
{
    struct source *source = reading->source;
    struct store_object *object = NULL;
    struct arena arena = { 0 };
    char *plain = arena_copy(&arena, name.data, name.size);
    struct numpy_entry entry = { .name = name, .key = key, .member = CATALOG_NONE };
    reshard_status status = plain ? store_open_object(source->store, plain, &object, err) : error_set_memory(err);
    if (!status) {
        struct reader reader = store_object_reader(object);
        entry.reader = &reader;
        entry.stored_bytes = entry.bytes = reader.size;
        status = catalog_add_object(source->catalog, name, reader.size, &entry.object, err);
        if (!status)
            status = numpy_add_entry(reading, &entry, err);
    }
    store_object_close(object);
    arena_release(&arena);
    return status;
}

struct npy_files {
    struct numpy_reading *reading;
    struct str *names, *keys;
    uint32_t count, name_capacity, key_capacity, other_count;
    struct str other; /* the first file that is no array */
};

static reshard_status note_file(void *context, const struct store_entry *file, struct str below, reshard_error *err)
{
    struct npy_files *files = context;
    const struct limits *limits = &files->reading->source->limits;
    if (!str_ends_with(below, NUMPY_SUFFIX)) {
        if (!str_is(below, SIDECAR_NAME) && !files->other_count++)
            files->other = below;
        return RESHARD_OK;
    }
    if (files->count >= limits->objects)
        return error_set_limit(err, "objects", (uint64_t)files->count + 1, limits->objects);
    if (!ARRAY_ROOM(files->names, files->count, files->name_capacity) || !ARRAY_ROOM(files->keys, files->count, files->key_capacity))
        return error_set_memory(err);
    files->names[files->count] = file->name;
    files->keys[files->count++] = npy_key_of(below);
    return RESHARD_OK;
}

static reshard_status npy_read_folder(struct numpy_reading *reading, reshard_error *err)
{
    struct source *source = reading->source;
    struct npy_files files = { .reading = reading };
    struct arena arena = { 0 };
    reshard_status status = file_tree_walk(source->store, source->name, SIZE_MAX, &arena, note_file, &files, err);
    if (!status && !files.count)
        status = error_set(err, RESHARD_ERR_FORMAT, "no file NAME.npy in '%s', nor below it", source->name);
    for (uint32_t i = 0; !status && i < files.count; i++)
        status = npy_read_file(reading, files.names[i], files.keys[i], err);
    if (!status && files.other_count)
        catalog_warn(source->catalog, false, "%" PRIu32 " files are no arrays and are not read, the first is '%.*s'", files.other_count,
                     STR_ARG(files.other));
    free(files.names);
    free(files.keys);
    arena_release(&arena);
    return status;
}

reshard_status numpy_read_npy(struct source *source, reshard_error *err)
{
    struct numpy_reading reading = { .source = source };
    reshard_status status = numpy_reading_begin(&reading, err);
    struct str name = str_of(source->name), base = name;
    for (size_t at; str_find_char(base, '/', &at);)
        base = (struct str){ base.data + at + 1, base.size - at - 1 };
    if (!status)
        status = store_is_directory(source->store, source->name) ? npy_read_folder(&reading, err)
                                                                 : npy_read_file(&reading, name, npy_key_of(base), err);
    numpy_reading_release(&reading);
    return status;
}
