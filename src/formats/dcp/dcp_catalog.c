/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/dcp_source.h"

#include "base/array.h"
#include "base/checked.h"
#include "base/hash.h"

#include <inttypes.h>
#include <stdlib.h>

/* What a name of an earlier metadata file became. */
struct known_name {
    bool is_item;
    uint32_t index; /* in tensors or items */
};

/* The checkpoint being put together, from one metadata file or one a rank. */
struct building {
    struct source *source;
    const struct dcp_read_hooks *hooks; /* NULL: none */
    bool is_per_rank;
    struct name_map keys;        /* per rank only */
    struct known_name *known;    /* by keys */
    uint32_t known_capacity;
    uint32_t shared_items;       /* that several ranks stored under one name */
    uint8_t *ranks_seen;         /* bitmap of P of the files */
    uint32_t rank_count, compressed_count;
};

/* One metadata file of it. */
struct reading {
    struct building *building;
    const struct dcp_metadata *metadata;
    const char *name;
    uint32_t *slots;             /* of storage_data by (name, offset): index + 1, 0 is free */
    uint32_t slot_mask;
    uint64_t seed;               /* of their hash */
    uint8_t *used;               /* bitmap of storage_data */
    uint32_t *object_of_text;    /* CATALOG_NONE: not asked for yet */
};

#define RANKS_SEEN_MAX 65536

/* ---- storage_data ---- */

static uint32_t dcp_catalog_slot_of(const struct reading *reading, uint32_t name, uint32_t offset)
{
    uint64_t key = (uint64_t)name << 32 | offset;
    return (uint32_t)hash64(&key, sizeof(key), reading->seed) & reading->slot_mask;
}

/* Index of the pair for (name, offset), or DCP_NONE. */
static uint32_t dcp_catalog_find_storage(const struct reading *reading, uint32_t name, uint32_t offset)
{
    const struct dcp_metadata *metadata = reading->metadata;
    for (uint32_t slot = dcp_catalog_slot_of(reading, name, offset); reading->slots[slot]; slot = (slot + 1) & reading->slot_mask) {
        uint32_t index = reading->slots[slot] - 1;
        if (metadata->indexes[index].name == name && metadata->indexes[index].offset == offset)
            return index;
    }
    return DCP_NONE;
}

static bool range_equal(const struct dcp_range *a, const struct dcp_range *b)
{
    return a->offset == b->offset && a->length == b->length && a->path == b->path && a->transforms == b->transforms;
}

static reshard_status index_storage(struct reading *reading, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    uint64_t capacity = 16;
    while (capacity < (uint64_t)metadata->storage_count * 2)
        capacity *= 2;
    if (capacity > UINT32_MAX)
        return error_set_limit(err, "chunks", metadata->storage_count, UINT32_MAX / 2);
    reading->slots = array_zeroed(capacity, sizeof(*reading->slots));
    reading->used = array_zeroed((size_t)metadata->storage_count / 8 + 1, 1);
    reading->object_of_text = array_new(metadata->texts.count, sizeof(*reading->object_of_text));
    if (!reading->slots || !reading->used || !reading->object_of_text)
        return error_set_memory(err);
    memset(reading->object_of_text, 0xFF, (size_t)metadata->texts.count * sizeof(*reading->object_of_text));
    reading->slot_mask = (uint32_t)capacity - 1;
    reading->seed = hash_table_seed();
    for (uint32_t i = 0; i < metadata->storage_count; i++) {
        const struct dcp_index *index = &metadata->indexes[i];
        uint32_t other = dcp_catalog_find_storage(reading, index->name, index->offset);
        if (other != DCP_NONE) {
            if (!range_equal(&metadata->ranges[other], &metadata->ranges[i]))
                return error_set(err, RESHARD_ERR_FORMAT, "storage_data has '%.*s' twice, with different blobs",
                                 STR_ARG(name_map_at(&metadata->names, index->name)));
            reading->used[i / 8] |= (uint8_t)(1u << i % 8);
            continue;
        }
        uint32_t slot = dcp_catalog_slot_of(reading, index->name, index->offset);
        while (reading->slots[slot])
            slot = (slot + 1) & reading->slot_mask;
        reading->slots[slot] = i + 1;
    }
    return RESHARD_OK;
}

/* ---- files ---- */

bool dcp_file_rank(struct str name, uint64_t *out)
{
    static const char suffix[] = ".distcp";
    if (!str_ends_with(name, suffix))
        return false;
    size_t end = name.size - (sizeof(suffix) - 1), middle = end;
    while (middle > 0 && name.data[middle - 1] != '_')
        middle--;
    size_t start = middle > 0 ? middle - 1 : 0;
    while (start > 0 && name.data[start - 1] >= '0' && name.data[start - 1] <= '9')
        start--;
    uint64_t number;
    return middle > 1 && start >= 2 && name.data[start - 1] == '_' && name.data[start - 2] == '_' &&
           str_to_u64((struct str){ name.data + middle, end - middle }, &number) &&
           str_to_u64((struct str){ name.data + start, middle - 1 - start }, out);
}

static reshard_status find_file(struct reading *reading, struct str path, uint32_t *out, reshard_error *err)
{
    struct source *source = reading->building->source;
    char *name = NULL;
    bool is_directory;
    uint64_t bytes;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, path, &name, err);
    if (status)
        return status;
    bool is_there = store_exists(source->store, name, &is_directory, &bytes);
    if (!is_there && source_bears_loss(source)) {
        status = catalog_add_object(source->catalog, str_of(name), 0, out, err); /* what lies in it is lost */
        if (!source->is_salvage)
            catalog_warn(source->catalog, true, "data file '%s', which storage_data refers to, does not exist", name);
    } else if (!is_there) {
        status = error_set(err, RESHARD_ERR_FORMAT, "data file '%s', which storage_data refers to, does not exist", name);
        error_object(err, "%s", name);
        error_hint(err, "reshard_salvage() writes what is left");
    } else if (is_directory) {
        status = error_set(err, RESHARD_ERR_FORMAT, "data file '%s' is a directory", name);
        error_object(err, "%s", name);
    } else {
        status = catalog_add_object(source->catalog, str_of(name), bytes, out, err);
    }
    free(name);
    return status;
}

static void note_rank(struct building *building, uint64_t rank)
{
    if (rank >= RANKS_SEEN_MAX || building->ranks_seen[rank / 8] & 1u << rank % 8)
        return;
    building->ranks_seen[rank / 8] |= (uint8_t)(1u << rank % 8);
    building->rank_count++;
}

/* Where a blob lies. */
struct place {
    const struct dcp_raw *raw; /* it is a storage without a container; NULL: it is not */
    uint32_t object;
    uint64_t offset, bytes;
    enum codec codec;
    uint16_t writer;
    bool is_left_out; /* it lies beyond the file's end: who only looks sees that it is missing */
};

static reshard_status find_place(struct reading *reading, uint32_t storage, struct place *out, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    const struct dcp_range *range = &metadata->ranges[storage];
    uint32_t *object = &reading->object_of_text[range->path];
    struct str path = dcp_text(metadata, range->path);
    reading->used[storage / 8] |= (uint8_t)(1u << storage % 8);
    if (*object == CATALOG_NONE) {
        uint64_t rank;
        reshard_status status = find_file(reading, path, object, err);
        if (status)
            return status;
        if (dcp_file_rank(path, &rank))
            note_rank(reading->building, rank);
    }
    uint64_t file_bytes = reading->building->source->catalog->objects[*object].bytes, rank = 0;
    bool is_lost = !range_fits(range->offset, range->length, file_bytes);
    if (is_lost && !source_bears_loss(reading->building->source)) {
        error_set(err, RESHARD_ERR_FORMAT, "blob of %" PRIu64 " bytes at offset %" PRIu64 " of '%.*s' reaches beyond its %" PRIu64 " bytes",
                  range->length, range->offset, STR_ARG(path), file_bytes);
        error_object(err, "%.*s", STR_ARG(path));
        return RESHARD_ERR_FORMAT;
    }
    *out = (struct place){ .object = *object, .offset = range->offset, .bytes = range->length };
    if (metadata->raws && metadata->raws[storage].is_there)
        out->raw = &metadata->raws[storage];
    out->is_left_out = is_lost && !reading->building->source->is_salvage;
    if (dcp_file_rank(path, &rank))
        out->writer = catalog_writer(rank);
    reshard_status status = dcp_transform_codec(metadata, range->transforms, &out->codec, err);
    reading->building->compressed_count += out->codec != CODEC_NONE;
    return status;
}

reshard_status dcp_transform_codec(const struct dcp_metadata *metadata, uint32_t transforms, enum codec *out, reshard_error *err)
{
    *out = CODEC_NONE;
    if (transforms == DCP_NONE)
        return RESHARD_OK;
    const struct dcp_transforms *list = &metadata->transform_lists[transforms];
    for (uint32_t i = 0; i < list->count; i++) {
        struct str name = dcp_text(metadata, metadata->transform_texts[list->first + i]);
        /* NAME[@DOMAIN]/VERSION; the domain says whose implementation wrote it. */
        bool is_zstd = str_is(name, "stream.zstd/1") || (str_starts_with(name, "stream.zstd@") && str_ends_with(name, "/1"));
        if (!is_zstd || *out != CODEC_NONE) {
            error_set(err, RESHARD_ERR_UNSUPPORTED, "transform '%.*s'%s", STR_ARG(name), is_zstd ? " is applied twice" : " is not known");
            error_hint(err, "blobs that are plain or of stream.zstd/1 can be read");
            return RESHARD_ERR_UNSUPPORTED;
        }
        *out = CODEC_ZSTD;
    }
    return RESHARD_OK;
}

/* ---- paths ---- */

/* The path of a name; no parts if it is just the name. */
static reshard_status path_of(const struct dcp_metadata *metadata, uint32_t name, struct path_part **out, size_t *out_count,
                              reshard_error *err)
{
    *out = NULL;
    *out_count = 0;
    uint32_t index = metadata->has_planner_data ? metadata->path_of_name[name] : DCP_NONE;
    if (index == DCP_NONE)
        return RESHARD_OK;
    const struct dcp_path *path = &metadata->paths[index];
    const struct dcp_path_part *parts = metadata->path_parts + path->first;
    bool is_name =
        path->count == 1 && parts[0].text != DCP_NONE && str_equal(dcp_text(metadata, parts[0].text), name_map_at(&metadata->names, name));
    if (is_name || path->count == 0)
        return RESHARD_OK;
    struct path_part *made = array_zeroed(path->count, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    for (uint32_t i = 0; i < path->count; i++) {
        if (parts[i].text != DCP_NONE)
            made[i] = (struct path_part){ .kind = PATH_KEY, .key = dcp_text(metadata, parts[i].text) };
        else
            made[i] = (struct path_part){ .kind = parts[i].index < 0 ? PATH_INT_KEY : PATH_INDEX, .index = parts[i].index };
    }
    *out = made;
    *out_count = path->count;
    return RESHARD_OK;
}

/* ---- names that several ranks have ---- */

static struct known_name *known_find(const struct building *building, struct str name)
{
    uint32_t index = building->is_per_rank ? name_map_find(&building->keys, name) : NAME_NONE;
    return index == NAME_NONE ? NULL : &building->known[index];
}

static reshard_status known_add(struct building *building, struct str name, bool is_item, uint32_t index, reshard_error *err)
{
    if (!building->is_per_rank)
        return RESHARD_OK;
    uint32_t key = name_map_intern(&building->keys, name, NULL);
    if (key == NAME_NONE)
        return error_set_memory(err);
    if (!ARRAY_ROOM(building->known, key, building->known_capacity))
        return error_set_memory(err);
    building->known[key] = (struct known_name){ is_item, index };
    return RESHARD_OK;
}

/* ---- items ---- */

static reshard_status dcp_catalog_add_item(struct reading *reading, const struct dcp_entry *entry, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    struct building *building = reading->building;
    struct catalog *catalog = building->source->catalog;
    struct str name = name_map_at(&metadata->names, entry->name);
    struct place place;
    uint32_t storage = dcp_catalog_find_storage(reading, entry->name, DCP_NONE), index;
    if (storage == DCP_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "storage_data has no entry for item '%.*s'", STR_ARG(name));
    reshard_status status = find_place(reading, storage, &place, err);
    if (status)
        goto out;
    if (place.is_left_out) {
        catalog_warn(catalog, true, "item '%.*s' is lost: it lies in '%.*s', which is gone or cut off", STR_ARG(name),
                     STR_ARG(catalog->objects[place.object].name));
        return RESHARD_OK;
    }
    const struct known_name *known = known_find(building, name);
    if (known) {
        building->shared_items++;
        return known->is_item ? RESHARD_OK
                              : error_set(err, RESHARD_ERR_FORMAT, "'%.*s' is an item here and a tensor of another rank", STR_ARG(name));
    }
    if (building->hooks && building->hooks->take_item) {
        bool is_taken = false;
        status = building->hooks->take_item(building->hooks->context, name, place.object, place.offset, place.bytes, place.codec,
                                              &is_taken, err);
        if (status || is_taken)
            goto out;
    }
    struct path_part *parts = NULL;
    size_t part_count;
    struct catalog_item item = { .key = name, .path = CATALOG_NONE, .writer = place.writer, .kind = ITEM_BLOB, .object = place.object,
                                 .offset = place.offset, .bytes = place.bytes, .codec = place.codec };
    status = path_of(metadata, entry->name, &parts, &part_count, err);
    if (!status)
        status = catalog_add_item(catalog, &item, parts, part_count, &index, err);
    if (!status)
        status = known_add(building, name, true, index, err);
    free(parts);
out:
    if (status)
        error_prefix(err, "item '%.*s'", STR_ARG(name));
    return status;
}

/* ---- tensors ---- */

static reshard_status tensor_failed(struct str name, reshard_status status, reshard_error *err)
{
    if (status)
        error_prefix(err, "tensor '%.*s'", STR_ARG(name));
    return status;
}

/* The same for what the catalog says, which names the tensor itself unless a limit or memory is at its end. */
static reshard_status tensor_refused(struct str name, reshard_status status, reshard_error *err)
{
    return status == RESHARD_ERR_LIMIT || status == RESHARD_ERR_MEMORY ? tensor_failed(name, status, err) : status;
}

/* A chunk of a tensor that is stored in another form than its own. */
static reshard_status add_reshaped_chunk(struct reading *reading, const struct dcp_entry *entry, uint32_t tensor,
                                         const struct dcp_chunk *chunk, const struct catalog_chunk *like, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    const struct dcp_read_hooks *hooks = reading->building->hooks;
    struct dcp_form stored = { .rank = dcp_vector_rank(metadata, entry->size) };
    size_t bytes = (size_t)stored.rank * sizeof(*stored.size);
    memcpy(stored.size, dcp_vector_at(metadata, entry->size), bytes);
    memcpy(stored.start, dcp_vector_at(metadata, chunk->offsets), bytes);
    memcpy(stored.extent, dcp_vector_at(metadata, chunk->sizes), bytes);
    return hooks->add_chunk(hooks->context, name_map_at(&metadata->names, entry->name), tensor, &stored, like, err);
}

/* Where the blob of a chunk lies. */
static reshard_status find_chunk_place(struct reading *reading, const struct dcp_entry *entry, const struct dcp_chunk *chunk,
                                       struct place *out, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    uint32_t storage = dcp_catalog_find_storage(reading, entry->name, chunk->offsets);
    /* A plain tensor's only chunk may be indexed by the name alone. */
    if (storage == DCP_NONE && entry->chunk_count == 1)
        storage = dcp_catalog_find_storage(reading, entry->name, DCP_NONE);
    if (storage == DCP_NONE)
        return error_set(err, RESHARD_ERR_FORMAT, "storage_data has no entry for chunk %u",
                         (unsigned)(chunk - metadata->chunks - entry->first_chunk));
    return find_place(reading, storage, out, err);
}

/* ByteCheckpoint: the metadata says all of a tensor, and its blob is read when the values are wanted. */
static reshard_status resolve_raw(struct reading *reading, struct catalog_chunk *chunk, const struct place *place, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    const struct dcp_raw *raw = place->raw;
    struct torch_blob_tensor tensor = { .is_tensor = true, .dtype = raw->dtype, .rank = dcp_vector_rank(metadata, raw->shape),
                                        .payload_bytes = raw->bytes, .stored_bytes = raw->bytes, .offset_bytes = raw->offset_bytes };
    if (place->codec != CODEC_NONE)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "it is compressed and has no container");
    memcpy(tensor.shape, dcp_vector_at(metadata, raw->shape), (size_t)tensor.rank * sizeof(*tensor.shape));
    memcpy(tensor.strides, dcp_vector_at(metadata, raw->strides), (size_t)tensor.rank * sizeof(*tensor.strides));
    return dcp_resolve_chunk(reading->building->source, chunk, &tensor, place->offset, err);
}

static reshard_status add_chunk(struct reading *reading, const struct dcp_entry *entry, uint32_t tensor, bool is_reshaped,
                                const struct dcp_chunk *chunk, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    struct catalog *catalog = reading->building->source->catalog;
    const int64_t *start = dcp_vector_at(metadata, chunk->offsets), *extent = dcp_vector_at(metadata, chunk->sizes);
    struct str name = name_map_at(&metadata->names, entry->name);
    struct place place;
    reshard_status status = find_chunk_place(reading, entry, chunk, &place, err);
    if (!status && is_reshaped && (place.codec != CODEC_NONE || place.raw))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "it is flattened and %s", place.raw ? "has no container" : "compressed");
    if (status || place.is_left_out)
        return tensor_failed(name, status, err);
    struct catalog_chunk made = { .object = place.object, .offset = place.offset, .bytes = place.bytes, .writer = place.writer,
                                  .flags = CHUNK_UNRESOLVED };
    if (is_reshaped)
        return add_reshaped_chunk(reading, entry, tensor, chunk, &made, err);
    struct catalog_chunk *added;
    status = catalog_add_chunk(catalog, tensor, start, extent, place.object, place.offset, place.bytes, &added, err);
    if (status)
        return tensor_refused(name, status, err);
    added->flags = made.flags;
    added->writer = made.writer;
    if (place.raw)
        return tensor_failed(name, resolve_raw(reading, added, &place, err), err);
    if (place.codec != CODEC_NONE)
        return tensor_failed(name, catalog_chunk_set_codec(catalog, added, place.codec, place.offset, place.bytes, err), err);
    return RESHARD_OK;
}

/* Whether the tensor that an earlier rank's file has made is the same. */
static reshard_status check_known(const struct catalog *catalog, const struct known_name *known, enum dtype dtype, int rank,
                                  const int64_t *shape, reshard_error *err)
{
    if (known->is_item)
        return error_set(err, RESHARD_ERR_FORMAT, "is a tensor here and an item of another rank");
    const struct catalog_tensor *tensor = &catalog->tensors[known->index];
    const int64_t *known_shape = catalog_vector_at(catalog, tensor->shape);
    if (tensor->dtype != dtype || tensor->rank != rank || (rank && memcmp(known_shape, shape, (size_t)rank * sizeof(*shape)) != 0))
        return error_set(err, RESHARD_ERR_FORMAT, "another rank gives it another dtype or size");
    return RESHARD_OK;
}

/* The catalog's tensor of an entry. rank, shape: its own, which may not be what is stored. */
static reshard_status find_tensor(struct reading *reading, const struct dcp_entry *entry, struct str name, int rank, const int64_t *shape,
                                  uint32_t *out, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    struct building *building = reading->building;
    struct catalog *catalog = building->source->catalog;
    struct str dtype_name = dcp_text(metadata, entry->dtype);
    const struct known_name *known = known_find(building, name);
    enum dtype dtype;
    reshard_status status = RESHARD_OK;
    if (!dtype_from_torch(dtype_name, &dtype))
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "dtype 'torch.%.*s' is not known", STR_ARG(dtype_name));
    else if (known)
        status = check_known(catalog, known, dtype, rank, shape, err);
    if (status)
        return tensor_failed(name, status, err);
    if (known) {
        *out = known->index;
        return RESHARD_OK;
    }
    struct path_part *parts = NULL;
    size_t part_count;
    status = tensor_refused(name, catalog_add_tensor(catalog, name, dtype, rank, shape, out, err), err);
    if (status)
        return status;
    status = path_of(metadata, entry->name, &parts, &part_count, err);
    if (!status && part_count)
        status = catalog_set_tensor_path(catalog, *out, parts, part_count, err);
    free(parts);
    if (!status)
        status = known_add(building, name, false, *out, err);
    return tensor_failed(name, status, err);
}

static reshard_status dcp_catalog_add_tensor(struct reading *reading, const struct dcp_entry *entry, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    const struct dcp_read_hooks *hooks = reading->building->hooks;
    struct str name = name_map_at(&metadata->names, entry->name);
    int rank = dcp_vector_rank(metadata, entry->size);
    int64_t shape[RANK_MAX];
    memcpy(shape, dcp_vector_at(metadata, entry->size), (size_t)rank * sizeof(*shape));
    bool is_reshaped = hooks && hooks->reshape && hooks->reshape(hooks->context, name, &rank, shape);
    uint32_t tensor;
    reshard_status status = find_tensor(reading, entry, name, rank, shape, &tensor, err);
    for (uint32_t i = 0; i < entry->chunk_count && !status; i++)
        status = add_chunk(reading, entry, tensor, is_reshaped, &metadata->chunks[entry->first_chunk + i], err);
    if (status)
        error_object(err, "%.*s", STR_ARG(name));
    return status;
}

/* ---- one metadata file ---- */

static void warn_unused(const struct reading *reading)
{
    const struct dcp_metadata *metadata = reading->metadata;
    uint32_t unused = 0, first = DCP_NONE;
    for (uint32_t i = 0; i < metadata->storage_count; i++) {
        if (reading->used[i / 8] & 1u << i % 8)
            continue;
        if (unused++ == 0)
            first = metadata->indexes[i].name;
    }
    if (unused)
        catalog_warn(reading->building->source->catalog, false,
                     "'%s': %u entries of storage_data belong to no tensor or item, the first to '%.*s'", reading->name, unused,
                     STR_ARG(name_map_at(&metadata->names, first)));
}

static reshard_status dcp_catalog_add_entries(struct reading *reading, reshard_error *err)
{
    const struct dcp_metadata *metadata = reading->metadata;
    for (uint32_t i = 0; i < metadata->entry_count; i++) {
        const struct dcp_entry *entry = &metadata->entries[i];
        if (metadata->entry_of_name[entry->name] != i)
            return error_set_at(err, RESHARD_ERR_FORMAT, entry->offset, "state_dict_metadata has '%.*s' twice",
                                STR_ARG(name_map_at(&metadata->names, entry->name)));
        reshard_status status =
            entry->dtype == DCP_NONE ? dcp_catalog_add_item(reading, entry, err) : dcp_catalog_add_tensor(reading, entry, err);
        if (status)
            return status;
    }
    return RESHARD_OK;
}

static reshard_status dcp_catalog_add_metadata(struct building *building, const struct dcp_metadata *metadata, const char *name,
                                               reshard_error *err)
{
    struct reading reading = { .building = building, .metadata = metadata, .name = name };
    reshard_status status;
    if (!metadata->has_storage_data)
        status = error_set(err, RESHARD_ERR_FORMAT, "storage_data is missing or None: it says nothing about where the tensors are");
    else
        status = index_storage(&reading, err);
    if (!status)
        status = dcp_catalog_add_entries(&reading, err);
    if (!status)
        warn_unused(&reading);
    else
        error_prefix(err, "'%s'", name);
    free(reading.slots);
    free(reading.used);
    free(reading.object_of_text);
    return status;
}

/* ---- facts ---- */

static bool has_module(const struct dcp_metadata *metadata, const char *prefix)
{
    for (uint32_t i = 0; i < metadata->class_module_count; i++) {
        if (str_starts_with(dcp_text(metadata, metadata->class_modules[i]), prefix))
            return true;
    }
    return false;
}

static const char *torch_generation(const struct dcp_metadata *metadata)
{
    if (has_module(metadata, "torch.distributed._shard.checkpoint"))
        return "torch 1.12 or 1.13";
    if (has_module(metadata, "torch.distributed._shard.sharded_tensor.metadata"))
        return "torch 2.0 to 2.2";
    if (metadata->version != DCP_NONE)
        return "torch 2.9 or newer";
    return metadata->has_storage_meta ? "torch 2.3 to 2.8" : "unknown";
}

static reshard_status dcp_catalog_add_facts(const struct building *building, const struct dcp_metadata *metadata, reshard_error *err)
{
    struct catalog *catalog = building->source->catalog;
    reshard_status status = catalog_add_fact(catalog, "written by", err, "%s", torch_generation(metadata));
    if (!status && building->is_per_rank)
        status = catalog_add_fact(catalog, "metadata", err, "one file a rank");
    if (!status && metadata->checkpoint_id != DCP_NONE)
        status = catalog_add_fact(catalog, "saved as", err, "%.*s", STR_ARG(dcp_text(metadata, metadata->checkpoint_id)));
    if (!status && metadata->version != DCP_NONE)
        status = catalog_add_fact(catalog, "version", err, "%.*s", STR_ARG(dcp_text(metadata, metadata->version)));
    if (!status && !metadata->has_planner_data)
        status = catalog_add_fact(catalog, "paths", err, "not stored");
    for (uint32_t i = 0; i < metadata->unknown_global_count && !status; i++)
        status = catalog_add_fact(catalog, "unknown class", err, "%.*s", STR_ARG(dcp_text(metadata, metadata->unknown_globals[i])));
    return status;
}

/* What is known when all metadata is read. */
static reshard_status add_totals(const struct building *building, uint32_t file_count, reshard_error *err)
{
    struct catalog *catalog = building->source->catalog;
    catalog->ranks = building->is_per_rank && file_count > building->rank_count ? file_count : building->rank_count;
    if (building->shared_items)
        catalog_warn(catalog, false, "%u items are stored by several ranks; those of the lowest rank are used", building->shared_items);
    if (building->compressed_count) {
        reshard_status status = catalog_add_fact(catalog, "compression", err, "zstd, %u blobs", building->compressed_count);
        if (status)
            return status;
    }
    return catalog->ranks ? catalog_add_fact(catalog, "ranks", err, "%u", catalog->ranks) : RESHARD_OK;
}

/* The metadata counts among the checkpoint's files. */
static reshard_status add_own_file(struct source *source, const char *name, reshard_error *err)
{
    bool is_directory;
    uint64_t bytes;
    uint32_t object;
    if (!store_exists(source->store, name, &is_directory, &bytes) || is_directory) {
        reshard_status failure = store_failure(source->store, err);
        return failure ? failure : error_set(err, RESHARD_ERR_IO, "'%s' has vanished", name);
    }
    return catalog_add_object(source->catalog, str_of(name), bytes, &object, err);
}

/* One of the files: its entries become tensors and items. */
static reshard_status dcp_catalog_read_file(struct building *building, const char *name, bool is_first, reshard_error *err)
{
    const struct dcp_read_hooks *hooks = building->hooks;
    struct dcp_metadata metadata = { 0 };
    struct buffer pickle = { 0 };
    bool is_seen = hooks && hooks->see_metadata && !building->is_per_rank;
    reshard_status status = add_own_file(building->source, name, err);
    if (!status)
        status = dcp_metadata_read(building->source, name, is_seen ? &pickle : NULL, &metadata, err);
    if (!status && is_seen)
        status = hooks->see_metadata(hooks->context, &pickle, err);
    buffer_release(&pickle);
    if (!status && is_first)
        status = dcp_catalog_add_facts(building, &metadata, err);
    if (!status)
        status = dcp_catalog_add_metadata(building, &metadata, name, err);
    dcp_metadata_release(&metadata);
    return status;
}

reshard_status dcp_read_tensors(struct source *source, const struct dcp_read_hooks *hooks, reshard_error *err)
{
    struct building building = { .source = source, .hooks = hooks };
    struct arena arena = { 0 };
    struct dcp_metadata_file *files;
    uint32_t count;
    reshard_status status = dcp_metadata_files(source, &arena, &files, &count, &building.is_per_rank, err);
    if (status)
        goto out;
    building.ranks_seen = array_zeroed(RANKS_SEEN_MAX / 8, 1);
    if (!building.ranks_seen) {
        status = error_set_memory(err);
        goto out;
    }
    for (uint32_t i = 0; i < count && !status; i++)
        status = dcp_catalog_read_file(&building, files[i].name, i == 0, err);
    if (!status)
        status = add_totals(&building, count, err);

out:
    free(building.ranks_seen);
    free(building.known);
    name_map_release(&building.keys);
    arena_release(&arena);
    return status;
}
