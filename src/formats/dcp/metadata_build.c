/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/dcp/metadata_build.h"

#include "base/buffer.h"
#include "encoding/pickle_records.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- names with a meaning ---- */

#define CHECKPOINT_MODULES "torch.distributed.checkpoint.", "torch.distributed._shard.checkpoint."

struct known_class {
    const char *module, *name;
    enum dcp_class class;
};

static const struct known_class metadata_classes[] = {
    { "metadata", "Metadata", DCP_CLASS_METADATA },
    { "metadata", "TensorStorageMetadata", DCP_CLASS_TENSOR },
    { "metadata", "TensorProperties", DCP_CLASS_PROPERTIES },
    { "metadata", "ChunkStorageMetadata", DCP_CLASS_CHUNK },
    { "metadata", "BytesStorageMetadata", DCP_CLASS_BYTES },
    { "metadata", "MetadataIndex", DCP_CLASS_INDEX },
    { "metadata", "StorageMeta", DCP_CLASS_STORAGE_META },
    { "metadata", "_MEM_FORMAT_ENCODING", DCP_CLASS_HARMLESS },
    { "filesystem", "_StorageInfo", DCP_CLASS_RANGE },
    { "planner", "SavePlan", DCP_CLASS_HARMLESS },
    { "planner", "WriteItem", DCP_CLASS_HARMLESS },
    { "planner", "WriteItemType", DCP_CLASS_HARMLESS },
    { "planner", "TensorWriteData", DCP_CLASS_HARMLESS },
    { "planner", "BytesIOWriteData", DCP_CLASS_HARMLESS },
    { "planner", "LoadPlan", DCP_CLASS_HARMLESS },
    { "planner", "ReadItem", DCP_CLASS_HARMLESS },
    { "planner", "LoadItemType", DCP_CLASS_HARMLESS },
    { "_hf_utils", "_HFStorageInfo", DCP_CLASS_HARMLESS },
};

static const struct known_class other_classes[] = {
    { "torch.distributed._shard.sharded_tensor.metadata", "TensorProperties", DCP_CLASS_PROPERTIES },
    { "torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING", DCP_CLASS_HARMLESS },
    { "megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata", DCP_CLASS_METADATA },
    { "megatron.core.dist_checkpointing.strategies.torch", "MCoreSavePlan", DCP_CLASS_HARMLESS },
    { "bytecheckpoint.checkpointer.meta_type", "Metadata", DCP_CLASS_METADATA },
    { "bytecheckpoint.checkpointer.meta_type", "_StorageInfo", DCP_CLASS_RANGE },
    { "torch", "Size", DCP_CLASS_SIZE },
    { "torch", "device", DCP_CLASS_HARMLESS },
    { "torch.serialization", "_get_layout", DCP_CLASS_HARMLESS },
    { "pathlib", "PosixPath", DCP_CLASS_PATH },
    { "pathlib", "PurePosixPath", DCP_CLASS_PATH },
    { "pathlib", "WindowsPath", DCP_CLASS_PATH },
    { "pathlib", "PureWindowsPath", DCP_CLASS_PATH },
    { "pathlib._local", "PosixPath", DCP_CLASS_PATH },
    { "pathlib._local", "PurePosixPath", DCP_CLASS_PATH },
    { "pathlib._local", "WindowsPath", DCP_CLASS_PATH },
    { "pathlib._local", "PureWindowsPath", DCP_CLASS_PATH },
    { "collections", "OrderedDict", DCP_CLASS_HARMLESS },
    { "collections", "defaultdict", DCP_CLASS_HARMLESS },
    { "collections", "Counter", DCP_CLASS_HARMLESS },
    { "collections", "deque", DCP_CLASS_HARMLESS },
    { "_codecs", "encode", DCP_CLASS_HARMLESS },
    { "datetime", "datetime", DCP_CLASS_HARMLESS },
    { "datetime", "date", DCP_CLASS_HARMLESS },
    { "datetime", "time", DCP_CLASS_HARMLESS },
    { "datetime", "timedelta", DCP_CLASS_HARMLESS },
    { "datetime", "timezone", DCP_CLASS_HARMLESS },
    { "uuid", "UUID", DCP_CLASS_HARMLESS },
    { "uuid", "SafeUUID", DCP_CLASS_HARMLESS },
    { "copyreg", "_reconstructor", DCP_CLASS_HARMLESS },
    { "copyreg", "__newobj__", DCP_CLASS_HARMLESS },
    { "copyreg", "__newobj_ex__", DCP_CLASS_HARMLESS },
    { "builtins", "bool", DCP_CLASS_HARMLESS },
    { "builtins", "bytearray", DCP_CLASS_HARMLESS },
    { "builtins", "bytes", DCP_CLASS_HARMLESS },
    { "builtins", "complex", DCP_CLASS_HARMLESS },
    { "builtins", "dict", DCP_CLASS_HARMLESS },
    { "builtins", "float", DCP_CLASS_HARMLESS },
    { "builtins", "frozenset", DCP_CLASS_HARMLESS },
    { "builtins", "int", DCP_CLASS_HARMLESS },
    { "builtins", "list", DCP_CLASS_HARMLESS },
    { "builtins", "object", DCP_CLASS_HARMLESS },
    { "builtins", "range", DCP_CLASS_HARMLESS },
    { "builtins", "set", DCP_CLASS_HARMLESS },
    { "builtins", "slice", DCP_CLASS_HARMLESS },
    { "builtins", "str", DCP_CLASS_HARMLESS },
    { "builtins", "tuple", DCP_CLASS_HARMLESS },
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static bool find_class(const struct known_class *table, size_t count, struct str module, struct str name, enum dcp_class *out)
{
    for (size_t i = 0; i < count; i++) {
        if (str_is(module, table[i].module) && str_is(name, table[i].name)) {
            *out = table[i].class;
            return true;
        }
    }
    return false;
}

enum dcp_class dcp_class_of(struct str module, struct str name, bool *is_harmless)
{
    static const char *const prefixes[] = { CHECKPOINT_MODULES };
    enum dcp_class class = DCP_CLASS_UNKNOWN;
    enum dtype dtype;
    *is_harmless = true;
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        size_t size = strlen(prefixes[i]);
        if (str_starts_with(module, prefixes[i]) &&
            find_class(metadata_classes, COUNT(metadata_classes), (struct str){ module.data + size, module.size - size }, name, &class))
            return class;
    }
    if (find_class(other_classes, COUNT(other_classes), module, name, &class))
        return class;
    if (str_is(module, "torch")) {
        *is_harmless = dtype_from_torch(name, &dtype);
        return DCP_CLASS_DTYPE;
    }
    *is_harmless = false;
    return DCP_CLASS_UNKNOWN;
}

static const struct str attribute_names[DCP_ATTR_COUNT] = {
    { "", 0 },
#define X(id, name) { name, sizeof(name) - 1 },
    DCP_ATTRIBUTES(X)
#undef X
};

enum dcp_attribute dcp_attribute_of(struct str name)
{
    return (enum dcp_attribute)records_attribute_find(attribute_names, DCP_ATTR_COUNT, name);
}

const char *dcp_attribute_name(enum dcp_attribute attribute)
{
    return attribute_names[attribute].data;
}

/* ---- arrays ---- */

/* Room for added more elements behind count ones. array: the address of a pointer of any type. */
static reshard_status array_grow(struct dcp_build *build, void *array, uint64_t count, uint64_t added, uint32_t *capacity,
                                 size_t element_size)
{
    void *old;
    if (count + added <= *capacity)
        return RESHARD_OK;
    uint64_t wanted = (uint64_t)*capacity + *capacity / 2 + 16;
    if (wanted < count + added)
        wanted = count + added;
    if (wanted > UINT32_MAX - 1)
        return error_set(build->err, RESHARD_ERR_LIMIT, "more than %" PRIu32 " parts of one kind", UINT32_MAX - 1);
    reshard_status status = work_spend(build->limits->budget, (wanted - *capacity) * element_size, build->err);
    if (status)
        return status;
    memcpy(&old, array, sizeof(old));
    void *grown = reallocarray(old, (size_t)wanted, element_size);
    if (!grown)
        return error_set_memory(build->err);
    memcpy(array, &grown, sizeof(grown));
    *capacity = (uint32_t)wanted;
    return RESHARD_OK;
}

reshard_status dcp_build_init(struct dcp_build *build, const struct limits *limits, struct dcp_metadata *out, reshard_error *err)
{
    *build = (struct dcp_build){ .out = out, .limits = limits, .err = err };
    *out = (struct dcp_metadata){
        .checkpoint_id = DCP_NONE, .save_id = DCP_NONE, .load_id = DCP_NONE, .version = DCP_NONE, .root_class = DCP_NONE
    };
    return vector_pool_init(&out->vectors, err);
}

reshard_status dcp_build_vector(struct dcp_build *build, const int64_t *values, size_t rank, uint32_t *out)
{
    return vector_pool_keep(&build->out->vectors, values, rank, out, build->err);
}

reshard_status dcp_build_name(struct dcp_build *build, struct str name, uint32_t *out)
{
    *out = name_map_intern(&build->out->names, name, NULL);
    return *out == NAME_NONE ? error_set_memory(build->err) : RESHARD_OK;
}

reshard_status dcp_build_text(struct dcp_build *build, struct str text, uint32_t *out)
{
    *out = name_map_intern(&build->out->texts, text, NULL);
    return *out == NAME_NONE ? error_set_memory(build->err) : RESHARD_OK;
}

reshard_status dcp_build_joined(struct dcp_build *build, const struct str *parts, size_t count, uint32_t *out)
{
    struct buffer joined = { 0 };
    for (size_t i = 0; i < count; i++) {
        if (joined.size && joined.data[joined.size - 1] != '/')
            buffer_append_byte(&joined, '/');
        buffer_append_str(&joined, parts[i]);
    }
    reshard_status status = joined.failed ? error_set_memory(build->err) : dcp_build_text(build, buffer_str(&joined), out);
    buffer_release(&joined);
    return status;
}

reshard_status dcp_build_class_name(struct dcp_build *build, struct str module, struct str name, uint32_t *out)
{
    struct buffer full = { 0 };
    buffer_append_str(&full, module);
    buffer_append_byte(&full, '.');
    buffer_append_str(&full, name);
    reshard_status status = full.failed ? error_set_memory(build->err) : dcp_build_text(build, buffer_str(&full), out);
    buffer_release(&full);
    return status;
}

reshard_status dcp_build_chunk(struct dcp_build *build, uint32_t offsets, uint32_t sizes, uint32_t *out)
{
    struct dcp_metadata *metadata = build->out;
    if (metadata->chunk_count >= build->limits->chunks)
        return error_set_limit(build->err, "chunks", (uint64_t)metadata->chunk_count + 1, build->limits->chunks);
    reshard_status status =
        array_grow(build, &metadata->chunks, metadata->chunk_count, 1, &build->chunk_capacity, sizeof(*metadata->chunks));
    if (status)
        return status;
    *out = metadata->chunk_count++;
    metadata->chunks[*out] = (struct dcp_chunk){ offsets, sizes };
    return RESHARD_OK;
}

reshard_status dcp_build_index(struct dcp_build *build, struct dcp_index index, uint32_t *out)
{
    struct dcp_metadata *metadata = build->out;
    if (build->index_count >= build->limits->chunks)
        return error_set_limit(build->err, "chunks", (uint64_t)build->index_count + 1, build->limits->chunks);
    reshard_status status =
        array_grow(build, &metadata->indexes, build->index_count, 1, &build->index_capacity, sizeof(*metadata->indexes));
    if (status)
        return status;
    *out = build->index_count++;
    metadata->indexes[*out] = index;
    return RESHARD_OK;
}

reshard_status dcp_build_range(struct dcp_build *build, struct dcp_range range, uint32_t *out)
{
    struct dcp_metadata *metadata = build->out;
    if (build->range_count >= build->limits->chunks)
        return error_set_limit(build->err, "chunks", (uint64_t)build->range_count + 1, build->limits->chunks);
    reshard_status status = array_grow(build, &metadata->ranges, build->range_count, 1, &build->range_capacity, sizeof(*metadata->ranges));
    if (status)
        return status;
    *out = build->range_count++;
    metadata->ranges[*out] = range;
    return RESHARD_OK;
}

reshard_status dcp_build_entry(struct dcp_build *build, struct dcp_entry entry)
{
    struct dcp_metadata *metadata = build->out;
    if (metadata->entry_count >= build->limits->tensors)
        return error_set_limit(build->err, "tensors", (uint64_t)metadata->entry_count + 1, build->limits->tensors);
    reshard_status status =
        array_grow(build, &metadata->entries, metadata->entry_count, 1, &build->entry_capacity, sizeof(*metadata->entries));
    if (!status)
        metadata->entries[metadata->entry_count++] = entry;
    return status;
}

reshard_status dcp_build_path(struct dcp_build *build, uint32_t name, const struct dcp_path_part *parts, size_t count)
{
    struct dcp_metadata *metadata = build->out;
    reshard_status status = array_grow(build, &metadata->paths, metadata->path_count, 1, &build->path_capacity, sizeof(*metadata->paths));
    if (!status)
        status = array_grow(build, &metadata->path_parts, metadata->path_part_count, count, &build->path_part_capacity, sizeof(*parts));
    if (status)
        return status;
    metadata->paths[metadata->path_count++] = (struct dcp_path){ name, metadata->path_part_count, (uint32_t)count };
    if (count)
        memcpy(metadata->path_parts + metadata->path_part_count, parts, count * sizeof(*parts));
    metadata->path_part_count += (uint32_t)count;
    return RESHARD_OK;
}

/* Few lists differ in practice, so the last few are compared. */
static bool find_transforms(const struct dcp_metadata *metadata, const uint32_t *texts, size_t count, uint32_t *out)
{
    for (uint32_t i = metadata->transform_list_count, tries = 0; i > 0 && tries < 16; i--, tries++) {
        const struct dcp_transforms *list = &metadata->transform_lists[i - 1];
        if (list->count == count && (!count || memcmp(metadata->transform_texts + list->first, texts, count * sizeof(*texts)) == 0)) {
            *out = i - 1;
            return true;
        }
    }
    return false;
}

reshard_status dcp_build_transforms(struct dcp_build *build, const uint32_t *texts, size_t count, uint32_t *out)
{
    struct dcp_metadata *metadata = build->out;
    if (find_transforms(metadata, texts, count, out))
        return RESHARD_OK;
    reshard_status status = array_grow(build, &metadata->transform_lists, metadata->transform_list_count, 1,
                                       &build->transform_list_capacity, sizeof(*metadata->transform_lists));
    if (!status)
        status = array_grow(build, &metadata->transform_texts, metadata->transform_text_count, count, &build->transform_text_capacity,
                            sizeof(*metadata->transform_texts));
    if (status)
        return status;
    *out = metadata->transform_list_count++;
    metadata->transform_lists[*out] = (struct dcp_transforms){ metadata->transform_text_count, (uint32_t)count };
    if (count)
        memcpy(metadata->transform_texts + metadata->transform_text_count, texts, count * sizeof(*texts));
    metadata->transform_text_count += (uint32_t)count;
    return RESHARD_OK;
}

/* ---- what was seen ---- */

static reshard_status note_text(struct dcp_build *build, uint32_t **array, uint32_t *count, uint32_t *capacity, uint32_t text)
{
    for (uint32_t i = 0; i < *count; i++)
        if ((*array)[i] == text)
            return RESHARD_OK;
    reshard_status status = array_grow(build, array, *count, 1, capacity, sizeof(**array));
    if (!status)
        (*array)[(*count)++] = text;
    return status;
}

/* Lists of what is odd are kept short: a hostile file may have millions. */
#define NOTED_MAX 1000

reshard_status dcp_build_note_global(struct dcp_build *build, struct str module, struct str name)
{
    struct dcp_metadata *out = build->out;
    bool is_harmless;
    uint32_t text;
    enum dcp_class class = dcp_class_of(module, name, &is_harmless);
    bool is_ours = class >= DCP_CLASS_METADATA && class < DCP_CLASS_SIZE;
    if ((is_harmless && !is_ours) || out->unknown_global_count >= NOTED_MAX)
        return RESHARD_OK;
    reshard_status status = is_ours ? dcp_build_text(build, module, &text) : dcp_build_class_name(build, module, name, &text);
    if (status)
        return status;
    return is_ours ? note_text(build, &out->class_modules, &out->class_module_count, &build->class_module_capacity, text)
                   : note_text(build, &out->unknown_globals, &out->unknown_global_count, &build->unknown_global_capacity, text);
}

reshard_status dcp_build_note_attribute(struct dcp_build *build, struct str name)
{
    struct dcp_metadata *out = build->out;
    uint32_t text;
    if (out->extra_attribute_count >= NOTED_MAX)
        return RESHARD_OK;
    reshard_status status = dcp_build_text(build, name, &text);
    return status ? status : note_text(build, &out->extra_attributes, &out->extra_attribute_count, &build->extra_attribute_capacity, text);
}

/* ---- the end ---- */

static bool has_negative(const struct dcp_metadata *metadata, uint32_t vector)
{
    const int64_t *values = dcp_vector_at(metadata, vector);
    for (int i = 0; i < dcp_vector_rank(metadata, vector); i++)
        if (values[i] < 0)
            return true;
    return false;
}

static reshard_status fail_entry(const struct dcp_build *build, const struct dcp_entry *entry, const char *what, uint32_t chunk,
                                 uint32_t vector)
{
    const struct dcp_metadata *metadata = build->out;
    struct str name = name_map_at(&metadata->names, entry->name);
    char text[SHAPE_TEXT_MAX];
    shape_text(dcp_vector_rank(metadata, vector), dcp_vector_at(metadata, vector), ", ", text);
    if (chunk == DCP_NONE)
        return error_set_at(build->err, RESHARD_ERR_FORMAT, entry->offset, "tensor '%.*s': %s: %s", STR_ARG(name), what, text);
    return error_set_at(build->err, RESHARD_ERR_FORMAT, entry->offset,
                        "tensor '%.*s': chunk %" PRIu32 ": %s: %s, the tensor has %d dimensions", STR_ARG(name), chunk, what, text,
                        dcp_vector_rank(metadata, entry->size));
}

static reshard_status check_entry(const struct dcp_build *build, const struct dcp_entry *entry)
{
    const struct dcp_metadata *metadata = build->out;
    int rank = dcp_vector_rank(metadata, entry->size);
    if (rank > RANK_MAX)
        return fail_entry(build, entry, "more dimensions than are supported", DCP_NONE, entry->size);
    if (has_negative(metadata, entry->size))
        return fail_entry(build, entry, "a negative size", DCP_NONE, entry->size);
    for (uint32_t i = 0; i < entry->chunk_count; i++) {
        const struct dcp_chunk *chunk = &metadata->chunks[entry->first_chunk + i];
        if (dcp_vector_rank(metadata, chunk->offsets) != rank)
            return fail_entry(build, entry, "its offsets have another number of dimensions", i, chunk->offsets);
        if (dcp_vector_rank(metadata, chunk->sizes) != rank)
            return fail_entry(build, entry, "its sizes have another number of dimensions", i, chunk->sizes);
        if (has_negative(metadata, chunk->offsets))
            return fail_entry(build, entry, "a negative offset", i, chunk->offsets);
        if (has_negative(metadata, chunk->sizes))
            return fail_entry(build, entry, "a negative size", i, chunk->sizes);
    }
    return RESHARD_OK;
}

static reshard_status index_names(struct dcp_build *build)
{
    struct dcp_metadata *metadata = build->out;
    size_t bytes = ((size_t)metadata->names.count + 1) * sizeof(uint32_t);
    metadata->entry_of_name = malloc(bytes);
    metadata->path_of_name = malloc(bytes);
    if (!metadata->entry_of_name || !metadata->path_of_name)
        return error_set_memory(build->err);
    memset(metadata->entry_of_name, 0xFF, bytes);
    memset(metadata->path_of_name, 0xFF, bytes);
    for (uint32_t i = 0; i < metadata->entry_count; i++)
        metadata->entry_of_name[metadata->entries[i].name] = i;
    for (uint32_t i = 0; i < metadata->path_count; i++)
        metadata->path_of_name[metadata->paths[i].name] = i;
    return RESHARD_OK;
}

/* Gives back what growing left over. That it fails does no harm. */
static void metadata_build_shrink(void *array, uint64_t count, size_t element_size)
{
    void *old;
    memcpy(&old, array, sizeof(old));
    void *smaller = count ? realloc(old, (size_t)count * element_size) : NULL;
    if (smaller)
        memcpy(array, &smaller, sizeof(smaller));
}

reshard_status dcp_build_finish(struct dcp_build *build)
{
    struct dcp_metadata *metadata = build->out;
    for (uint32_t i = 0; i < metadata->entry_count; i++) {
        if (metadata->entries[i].dtype == DCP_NONE)
            continue;
        reshard_status status = check_entry(build, &metadata->entries[i]);
        if (status)
            return status;
    }
    metadata_build_shrink(&metadata->chunks, metadata->chunk_count, sizeof(*metadata->chunks));
    metadata_build_shrink(&metadata->indexes, metadata->storage_count, sizeof(*metadata->indexes));
    metadata_build_shrink(&metadata->ranges, metadata->storage_count, sizeof(*metadata->ranges));
    vector_pool_finish(&metadata->vectors);
    return index_names(build);
}
