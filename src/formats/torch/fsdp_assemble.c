/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model group's files become tensors: a DTensor or shard is a chunk of the whole that it says it belongs to, a plain tensor is the same
 * on all ranks. Of what lies beside (optimizer and extra state) the top-level entries without tensors become items; entries with
 * tensors (optimizer moments, random number states) are named in a warning: they belong to ranks, not to the model, and their
 * own group can be opened. Items of further ranks are kept as "rank_N.KEY" where they differ from rank 0's.
 */
#include "formats/torch/fsdp_assemble.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"

/* A tensor by its key, and the CRC of the plain tensor that rank 0 or a later one has for it. */
struct known_tensor {
    uint32_t tensor;
    bool has_crc;
    uint32_t crc32;
};

struct assembling {
    struct source *source;
    struct torch_source *state;
    uint32_t file, rank;
    struct name_map keys;       /* of tensors: number -> tensors[number] */
    struct known_tensor *tensors;
    uint32_t tensor_capacity;
    struct name_map item_keys;  /* of rank 0's items: number -> index of the catalog's item */
    uint32_t *items;
    uint32_t item_capacity;
    struct name_map partials;   /* keys of tensors that would have to be added up */
    struct value **item_values; /* of this file */
    size_t item_count, item_value_capacity;
    struct buffer key;
};

/* ---- tensors ---- */

static reshard_status check_same(const struct assembling *assembling, uint32_t index, enum dtype dtype, int rank, const int64_t *shape,
                                 reshard_error *err)
{
    const struct catalog *catalog = assembling->source->catalog;
    const struct catalog_tensor *tensor = &catalog->tensors[index];
    bool is_same = tensor->dtype == dtype && tensor->rank == rank;
    for (int i = 0; is_same && i < rank; i++)
        is_same = catalog_vector_at(catalog, tensor->shape)[i] == shape[i];
    if (is_same)
        return RESHARD_OK;
    return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' has another type or shape on rank %" PRIu32 " than before",
                     STR_ARG(tensor->key), assembling->rank);
}

/* The tensor of the key, made on first sight. *out is good until the next call. */
static reshard_status tensor_for(struct assembling *assembling, const struct torch_leaf *leaf, enum dtype dtype, int rank,
                                 const int64_t *shape, struct known_tensor **out, reshard_error *err)
{
    struct catalog *catalog = assembling->source->catalog;
    bool was_new;
    uint32_t number = name_map_intern(&assembling->keys, buffer_str(&assembling->key), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(assembling->tensors, number, assembling->tensor_capacity))
        return error_set_memory(err);
    *out = &assembling->tensors[number];
    if (!was_new)
        return check_same(assembling, (*out)->tensor, dtype, rank, shape, err);
    **out = (struct known_tensor){ 0 };
    reshard_status status = catalog_add_tensor(catalog, buffer_str(&assembling->key), dtype, rank, shape, &(*out)->tensor, err);
    bool is_key_path = leaf->part_count == 1 && leaf->parts[0].kind == PATH_KEY;
    if (!status && !is_key_path)
        status = catalog_set_tensor_path(catalog, (*out)->tensor, leaf->parts, leaf->part_count, err);
    return status;
}

static reshard_status fsdp_assemble_add_chunk(struct assembling *assembling, uint32_t tensor, const int64_t *start, uint32_t archive_tensor,
                                              reshard_error *err)
{
    struct catalog_chunk *chunk;
    const struct torch_file *file = &assembling->state->files[assembling->file];
    bool with_crc = !file->has_crc_in_chunk[file->archive.tensors[archive_tensor].storage];
    reshard_status status =
        torch_source_add_chunk(assembling->source, tensor, start, assembling->file, archive_tensor, with_crc, &chunk, err);
    if (!status && chunk)
        chunk->writer = assembling->rank > UINT16_MAX ? UINT16_MAX : (uint16_t)assembling->rank;
    return status;
}

/* First shard record of the node: they are in the order of node ids. */
static uint32_t find_shard(const struct torch_archive *archive, const struct value *node)
{
    uint32_t low = 0, high = archive->shard_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (archive->shards[middle].node->id < node->id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < archive->shard_count && archive->shards[low].node == node ? low : TORCH_NONE;
}

static reshard_status note_partial(struct assembling *assembling, reshard_error *err)
{
    bool was_new;
    struct str key = buffer_str(&assembling->key);
    if (name_map_intern(&assembling->partials, key, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (was_new)
        catalog_warn(assembling->source->catalog, false,
                     "tensor '%.*s' is left out: its placement is Partial, the ranks' parts would have to be added up", STR_ARG(key));
    return RESHARD_OK;
}

static reshard_status add_shards(struct assembling *assembling, const struct torch_leaf *leaf, uint32_t first, reshard_error *err)
{
    const struct torch_archive *archive = &assembling->state->files[assembling->file].archive;
    const struct torch_shard *shard = &archive->shards[first];
    struct known_tensor *known;
    if (shard->is_partial)
        return note_partial(assembling, err);
    if (shard->is_unknown_place)
        return error_set(err, RESHARD_ERR_UNSUPPORTED,
                         "tensor '%.*s': its file does not say where in the device mesh rank %" PRIu32 " stands",
                         STR_ARG(buffer_str(&assembling->key)), assembling->rank);
    reshard_status status = tensor_for(assembling, leaf, shard->dtype, shard->rank, shard->global_shape, &known, err);
    for (uint32_t i = first; !status && i < archive->shard_count && archive->shards[i].node == leaf->value; i++)
        if (archive->shards[i].tensor != UINT32_MAX)
            status = fsdp_assemble_add_chunk(assembling, known->tensor, archive->shards[i].start, archive->shards[i].tensor, err);
    return status;
}

/* FSDP1 keeps optimizer state as flat pieces that look like plain tensors: CRCs tell them from what is the same on all ranks. */
static reshard_status check_replica(const struct assembling *assembling, struct known_tensor *known, const struct torch_tensor *found,
                                    reshard_error *err)
{
    const struct torch_storage *storage = &assembling->state->files[assembling->file].archive.storages[found->storage];
    uint64_t bytes = 0;
    bool is_whole = storage->has_crc && strides_are_row_major(found->rank, found->shape, found->strides) &&
                    dtype_bytes(found->dtype, (uint64_t)box_volume(found->rank, found->shape), &bytes) && bytes == storage->bytes;
    if (!is_whole)
        return RESHARD_OK;
    if (known->has_crc && known->crc32 != storage->crc32) {
        struct str key = buffer_str(&assembling->key);
        if (!assembling->source->lenient)
            return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' is a plain one but differs on rank %" PRIu32
                             ": what part of the whole each rank holds is not in the files", STR_ARG(key), assembling->rank);
        catalog_warn(assembling->source->catalog, true, "tensor '%.*s' differs on rank %" PRIu32, STR_ARG(key), assembling->rank);
    }
    known->has_crc = true;
    known->crc32 = storage->crc32;
    return RESHARD_OK;
}

static reshard_status add_replica(struct assembling *assembling, const struct torch_leaf *leaf, reshard_error *err)
{
    uint32_t index = leaf->value->tensor - 1;
    const struct torch_tensor *found = &assembling->state->files[assembling->file].archive.tensors[index];
    struct known_tensor *known;
    reshard_status status = tensor_for(assembling, leaf, found->dtype, found->rank, found->shape, &known, err);
    if (!status)
        status = check_replica(assembling, known, found, err);
    return status ? status : fsdp_assemble_add_chunk(assembling, known->tensor, NULL, index, err);
}

/* ---- items ---- */

static reshard_status keep_item_value(struct assembling *assembling, struct value *value, reshard_error *err)
{
    if (!ARRAY_ROOM(assembling->item_values, assembling->item_count, assembling->item_value_capacity))
        return error_set_memory(err);
    assembling->item_values[assembling->item_count++] = value;
    return RESHARD_OK;
}

static bool note_storage(const struct value *value, void *context)
{
    bool *found = context;
    *found = *found || value->kind == VALUE_PERSID;
    return !*found;
}

/* Whether a storage lies somewhere inside the value of this file. */
static reshard_status has_storage(const struct assembling *assembling, const struct value *value, bool *out, reshard_error *err)
{
    *out = false;
    bool walked = value_walk(value, assembling->state->files[assembling->file].graph->count, assembling->source->limits.budget,
                             note_storage, out, NULL);
    return walked || *out ? RESHARD_OK : error_set_memory(err);
}

/* Storage numbers in values count a file's own tables, so equal structure is not equal content where a storage lies inside. */
static reshard_status is_same_item(struct assembling *assembling, const struct catalog_item *known, const struct value *value, bool *out,
                                   reshard_error *err)
{
    bool found;
    reshard_status status = has_storage(assembling, value, &found, err);
    *out = false;
    return status || found ? status : value_compare(known->value, value, assembling->source->limits.budget, out, err);
}

static reshard_status fsdp_assemble_add_item(struct assembling *assembling, const struct path_part *parts, size_t part_count,
                                             struct value *value, reshard_error *err)
{
    struct catalog *catalog = assembling->source->catalog;
    bool was_new, is_same;
    uint32_t number = name_map_intern(&assembling->item_keys, buffer_str(&assembling->key), &was_new);
    if (number == NAME_NONE || !ARRAY_ROOM(assembling->items, number, assembling->item_capacity))
        return error_set_memory(err);
    struct str key = buffer_str(&assembling->key);
    if (!was_new) {
        reshard_status status = is_same_item(assembling, &catalog->items[assembling->items[number]], value, &is_same, err);
        if (status || is_same)
            return status;
        char *text = arena_printf(&catalog->arena, "rank_%" PRIu32 ".%.*s", assembling->rank, STR_ARG(key));
        if (!text)
            return error_set_memory(err);
        key = str_of(text);
        part_count = 0;
    }
    bool is_key_path = part_count == 1 && parts[0].kind == PATH_KEY;
    reshard_status status =
        torch_source_add_item(assembling->source, assembling->file, key, parts, is_key_path ? 0 : part_count, value, err);
    if (!status && was_new)
        assembling->items[number] = catalog->item_count - 1;
    return status ? status : keep_item_value(assembling, value, err);
}

/* ---- files ---- */

static reshard_status fsdp_assemble_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct assembling *assembling = context;
    buffer_clear(&assembling->key);
    if (!path_join(leaf->parts, leaf->part_count, &assembling->key))
        return error_set_memory(err);
    uint32_t shard = find_shard(&assembling->state->files[assembling->file].archive, leaf->value);
    if (shard != TORCH_NONE)
        return add_shards(assembling, leaf, shard, err);
    if (leaf->value->tensor > 0)
        return add_replica(assembling, leaf, err);
    return fsdp_assemble_add_item(assembling, leaf->parts, leaf->part_count, leaf->value, err);
}

static reshard_status fsdp_assemble_add_entry(struct assembling *assembling, struct value *value, const struct fsdp_file *file,
                                              reshard_error *err)
{
    bool found;
    reshard_status status = has_storage(assembling, value, &found, err);
    if (status)
        return status;
    if (!found)
        return fsdp_assemble_add_item(assembling, NULL, 0, value, err);
    if (file->rank == 0)
        catalog_warn(assembling->source->catalog, false,
                     "'%.*s' of '%.*s' and the other ranks holds tensors that are no part of the model: it is left out; "
                     "reshard_open_options.format fsdp-ranks opens that file's own group",
                     STR_ARG(buffer_str(&assembling->key)), STR_ARG(file->name));
    return RESHARD_OK;
}

/* The top-level entries of a file beside the model, each whole. */
static reshard_status fsdp_assemble_add_entries(struct assembling *assembling, const struct fsdp_file *file, reshard_error *err)
{
    struct value *root = assembling->state->files[assembling->file].graph->root, **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (!value_as_mapping(root, &pairs, &count)) {
        buffer_clear(&assembling->key);
        return buffer_append_str(&assembling->key, file->prefix) ? fsdp_assemble_add_entry(assembling, root, file, err)
                                                                 : error_set_memory(err);
    }
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        buffer_clear(&assembling->key);
        bool good = pairs[i]->kind == VALUE_STR ? buffer_append_str(&assembling->key, pairs[i]->text)
                                                : value_to_repr(pairs[i], &assembling->key, assembling->source->limits.budget);
        status = good ? fsdp_assemble_add_entry(assembling, pairs[i + 1], file, err) : error_set_memory(err);
    }
    return status;
}

static reshard_status fsdp_assemble_add_file(struct assembling *assembling, const struct fsdp_file *file, bool is_model, reshard_error *err)
{
    struct source *source = assembling->source;
    char *name = strndup(file->name.data, file->name.size);
    reshard_status status = name ? torch_source_open_file(source, name, (int)file->rank, &assembling->file, err) : error_set_memory(err);
    free(name);
    if (status)
        return status;
    assembling->rank = file->rank;
    assembling->item_count = 0;
    const struct torch_file *opened = &assembling->state->files[assembling->file];
    bool *wanted = calloc((size_t)opened->archive.storage_count + 1, sizeof(*wanted));
    if (!wanted)
        return error_set_memory(err);
    status = is_model ? torch_flatten(opened->graph, &source->limits, fsdp_assemble_add_leaf, assembling, err)
                      : fsdp_assemble_add_entries(assembling, file, err);
    if (!status)
        status = torch_source_hide_storages(source, assembling->file, assembling->item_values, assembling->item_count, wanted, err);
    if (!status && file->rank == 0)
        status = torch_source_add_facts(source, assembling->file, err);
    free(wanted);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
    }
    return status;
}

static reshard_status fsdp_assemble_add_groups(struct assembling *assembling, const struct fsdp_groups *groups, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < groups->count; i++)
        for (uint32_t j = 0; !status && j < groups->groups[i].count; j++)
            status = fsdp_assemble_add_file(assembling, &groups->groups[i].files[j], i == 0, err);
    return status;
}

static void assembling_release(struct assembling *assembling)
{
    name_map_release(&assembling->keys);
    name_map_release(&assembling->item_keys);
    name_map_release(&assembling->partials);
    free(assembling->tensors);
    free(assembling->items);
    free(assembling->item_values);
    buffer_release(&assembling->key);
}

reshard_status fsdp_read_catalog(struct source *source, reshard_error *err)
{
    struct fsdp_groups groups = { 0 };
    struct assembling assembling = { .source = source };
    reshard_status status = torch_source_new(source, err);
    assembling.state = torch_source_of(source);
    if (!status)
        status = fsdp_groups_find(source->store, source->name, &groups, err);
    if (!status && groups.count == 0)
        status = error_set(err, RESHARD_ERR_FORMAT, "no file of a rank (NAME_rank_N.pt) in '%s'", source->name);
    if (!status) {
        source->catalog->ranks = groups.groups[0].count;
        status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, groups.groups[0].count);
    }
    if (!status)
        status = fsdp_assemble_add_groups(&assembling, &groups, err);
    assembling_release(&assembling);
    fsdp_groups_release(&groups);
    return status;
}
