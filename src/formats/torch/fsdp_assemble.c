/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/fsdp_assemble.h"

#include "formats/shared/accelerate_names.h"
#include "formats/shared/flat_keys.h"
#include "formats/shared/side_files.h"
#include "formats/source_probe.h"
#include "formats/torch/fsdp_flat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/hash.h"
#include "encoding/json.h"

#define CONFIG_NAME "fsdp_config.json"
#define CONFIG_BYTES_MAX 65536

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
    if (!status && assembling->is_hidden)
        catalog->tensors[(*out)->tensor].flags |= TENSOR_HIDDEN;
    bool is_key_path = assembling->is_hidden || (leaf->part_count == 1 && leaf->parts[0].kind == PATH_KEY);
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
        chunk->writer = catalog_writer(assembling->rank);
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

const struct value *fsdp_shard_of(const struct source *source, uint32_t tensor)
{
    const struct torch_ranks *ranks = torch_source_of(source)->ranks;
    return ranks && tensor < ranks->shard_count ? ranks->shards[tensor] : NULL;
}

/* Remembers the object that a tensor is in its file. An optimizer's nodes change later, so this keeps a copy. */
static reshard_status note_shard(struct assembling *assembling, uint32_t tensor, const struct value *node, reshard_error *err)
{
    struct torch_ranks *ranks = assembling->state->ranks;
    struct value *copy = arena_alloc(&assembling->source->catalog->arena, sizeof(*copy));
    if (!copy || !ARRAY_ROOM(ranks->shards, tensor, ranks->shard_capacity))
        return error_set_memory(err);
    *copy = *node;
    for (; ranks->shard_count <= tensor; ranks->shard_count++)
        ranks->shards[ranks->shard_count] = NULL;
    if (!ranks->shards[tensor])
        ranks->shards[tensor] = copy;
    return RESHARD_OK;
}

static reshard_status note_partial(struct assembling *assembling, reshard_error *err)
{
    bool was_new;
    struct str key = buffer_str(&assembling->key);
    if (name_map_intern(&assembling->partials, key, &was_new) == NAME_NONE)
        return error_set_memory(err);
    if (was_new)
        source_warn_left_out(assembling->source, key, false, "its placement is Partial, the ranks' parts would have to be added up");
    return RESHARD_OK;
}

static reshard_status add_shards(struct assembling *assembling, const struct torch_leaf *leaf, uint32_t first, uint32_t *out,
                                 reshard_error *err)
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
    *out = status ? CATALOG_NONE : known->tensor;
    if (!status)
        known->is_cut = true;
    if (!status)
        status = note_shard(assembling, known->tensor, shard->node, err);
    for (uint32_t i = first; !status && i < archive->shard_count && archive->shards[i].node == leaf->value; i++)
        if (archive->shards[i].tensor != UINT32_MAX)
            status = fsdp_assemble_add_chunk(assembling, known->tensor, archive->shards[i].start, archive->shards[i].tensor, err);
    return status;
}

/* Whether the model has tensors of which ranks hold pieces. */
static bool model_is_cut(const struct assembling *assembling)
{
    bool is_cut = false;
    for (uint32_t i = 0; i < assembling->keys.count && !is_cut; i++)
        is_cut = assembling->tensors[i].is_cut;
    return is_cut;
}

/* FSDP1 keeps optimizer state as flat pieces that look like plain tensors: CRCs tell them from what is the same on all ranks. */
static bool is_other_replica(const struct assembling *assembling, struct known_tensor *known, const struct torch_tensor *found)
{
    const struct torch_storage *storage = &assembling->state->files[assembling->file].archive.storages[found->storage];
    uint64_t bytes = 0;
    bool is_whole = storage->has_crc && strides_are_row_major(found->rank, found->shape, found->strides) &&
                    dtype_bytes(found->dtype, (uint64_t)box_volume(found->rank, found->shape), &bytes) && bytes == storage->bytes;
    bool is_other = is_whole && known->has_crc && known->crc32 != storage->crc32;
    if (is_whole && !known->has_crc) {
        known->has_crc = true;
        known->crc32 = storage->crc32;
    }
    return is_other;
}

/* States of random numbers and counters beside a model of pieces: no parameters, of which a rank may have its own. */
static bool is_of_rank(const struct assembling *assembling, const struct torch_tensor *found)
{
    bool is_float = dtype_info(found->dtype)->class_ == DTYPE_CLASS_FLOAT;
    return !assembling->is_hidden && !assembling->item.size && !is_float && found->rank <= 1 && model_is_cut(assembling);
}

static reshard_status tell_other_replica(const struct assembling *assembling, reshard_error *err)
{
    struct str key = buffer_str(&assembling->key);
    if (assembling->source->lenient) {
        catalog_warn(assembling->source->catalog, true, "tensor '%.*s' differs on rank %" PRIu32, STR_ARG(key), assembling->rank);
        return RESHARD_OK;
    }
    error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s' is a plain one but differs on rank %" PRIu32
              ": what part of the whole each rank holds is not in the files", STR_ARG(key), assembling->rank);
    error_hint(err, "reshard_open_options.lenient opens it, with what the first rank has");
    return RESHARD_ERR_UNSUPPORTED;
}

static reshard_status add_replica(struct assembling *assembling, const struct torch_leaf *leaf, uint32_t *out, reshard_error *err)
{
    uint32_t index = leaf->value->tensor - 1;
    const struct torch_tensor *found = &assembling->state->files[assembling->file].archive.tensors[index];
    struct known_tensor *known;
    reshard_status status = tensor_for(assembling, leaf, found->dtype, found->rank, found->shape, &known, err);
    *out = status ? CATALOG_NONE : known->tensor;
    bool is_other = !status && is_other_replica(assembling, known, found);
    if (is_other && is_of_rank(assembling, found))
        return fsdp_add_own_item(assembling, buffer_str(&assembling->key), leaf->parts, leaf->part_count, leaf->value, err);
    if (is_other)
        status = tell_other_replica(assembling, err);
    return status ? status : fsdp_assemble_add_chunk(assembling, known->tensor, NULL, index, err);
}

reshard_status fsdp_add_tensor(struct assembling *assembling, const struct torch_leaf *leaf, uint32_t *out, reshard_error *err)
{
    uint32_t shard = find_shard(&assembling->state->files[assembling->file].archive, leaf->value);
    *out = CATALOG_NONE;
    if (shard != TORCH_NONE)
        return add_shards(assembling, leaf, shard, out, err);
    return leaf->value->tensor > 0 ? add_replica(assembling, leaf, out, err) : RESHARD_OK;
}

/* ---- files ---- */

static reshard_status fsdp_assemble_add_leaf(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct assembling *assembling = context;
    uint32_t tensor;
    buffer_clear(&assembling->key);
    if (!path_join(leaf->parts, leaf->part_count, &assembling->key))
        return error_set_memory(err);
    bool is_tensor = leaf->value->tensor > 0 ||
                     find_shard(&assembling->state->files[assembling->file].archive, leaf->value) != TORCH_NONE;
    if (is_tensor)
        assembling->keys_sum += hash64(assembling->key.data, assembling->key.size, hash_table_seed());
    return is_tensor ? fsdp_add_tensor(assembling, leaf, &tensor, err)
                     : fsdp_add_item(assembling, leaf->parts, leaf->part_count, leaf->value, err);
}

/* The same with the item's key in front. */
static reshard_status add_leaf_of_item(const struct torch_leaf *leaf, void *context, reshard_error *err)
{
    struct assembling *assembling = context;
    struct torch_leaf whole = *leaf;
    if (!ARRAY_RESERVE(assembling->parts, leaf->part_count + 1, assembling->part_capacity))
        return error_set_memory(err);
    assembling->parts[0] = (struct path_part){ .kind = PATH_KEY, .key = assembling->item };
    if (leaf->part_count)
        memcpy(assembling->parts + 1, leaf->parts, leaf->part_count * sizeof(*leaf->parts));
    whole.parts = assembling->parts;
    whole.part_count = leaf->part_count + 1;
    return fsdp_assemble_add_leaf(&whole, context, err);
}

/* An item without tensors is one value. */
static reshard_status take_item_file(struct assembling *assembling, const struct torch_file *opened, reshard_error *err)
{
    const struct torch_leaf root = { .value = opened->graph->root };
    bool has_tensors;
    reshard_status status = fsdp_has_storage(assembling, opened->graph->root, &has_tensors, err);
    if (!status && !has_tensors)
        return add_leaf_of_item(&root, assembling, err);
    return status ? status : torch_flatten(opened->graph, &assembling->source->limits, add_leaf_of_item, assembling, err);
}

/* Pipeline stages hold other parameters each. */
static void note_stage(struct assembling *assembling)
{
    if (!assembling->has_keys_sum)
        assembling->first_keys_sum = assembling->keys_sum;
    assembling->is_staged |= assembling->has_keys_sum && assembling->keys_sum != assembling->first_keys_sum;
    assembling->has_keys_sum = true;
}

/* *is_lost: the file cannot be read, and what it holds may be missing. */
static reshard_status open_rank_file(struct assembling *assembling, const struct fsdp_file *file, bool *is_lost, reshard_error *err)
{
    struct source *source = assembling->source;
    *is_lost = false;
    char *name = strndup(file->name.data, file->name.size);
    reshard_status status = name ? torch_source_open_file(source, name, (int)file->rank, &assembling->file, err) : error_set_memory(err);
    free(name);
    if (status == RESHARD_ERR_FORMAT && source_bears_loss(source) && err) { /* what it has of tensors is missing then */
        catalog_warn(source->catalog, true, "%s", err->message);
        *is_lost = true;
        return RESHARD_OK;
    }
    return status;
}

/* Takes what the opened file assembling->file holds. */
static reshard_status take_rank_file(struct assembling *assembling, const struct fsdp_file *file, enum fsdp_kind kind, reshard_error *err)
{
    struct source *source = assembling->source;
    reshard_status status;
    assembling->rank = file->rank;
    assembling->item_count = 0;
    assembling->keys_sum = 0;
    const struct torch_file *opened = &assembling->state->files[assembling->file];
    bool *wanted = array_zeroed(opened->archive.storage_count, sizeof(*wanted));
    if (!wanted)
        return error_set_memory(err);
    if (assembling->item.size)
        status = take_item_file(assembling, opened, err);
    else
        status = kind == FSDP_MODEL ? torch_flatten(opened->graph, &source->limits, fsdp_assemble_add_leaf, assembling, err)
                                    : fsdp_add_beside(assembling, kind, file, err);
    if (!status && kind == FSDP_MODEL)
        note_stage(assembling);
    if (!status)
        status = torch_source_hide_storages(source, assembling->file, assembling->item_values, assembling->item_count, wanted, err);
    if (!status && assembling->is_merged && file->rank == 0)
        status = fsdp_name_wholes(assembling, err);
    assembling->is_hidden = assembling->is_merged = assembling->is_beside = false;
    if (!status && file->rank == 0)
        status = torch_source_add_facts(source, assembling->file, err);
    free(wanted);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
    }
    return status;
}

static reshard_status add_rank_files(struct assembling *assembling, const struct fsdp_group *group, enum fsdp_kind kind, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < group->count; i++) {
        bool is_lost;
        status = open_rank_file(assembling, &group->files[i], &is_lost, err);
        if (!status && !is_lost)
            status = take_rank_file(assembling, &group->files[i], kind, err);
    }
    return status;
}

/* Whether its state goes by numbers, which torch deals out to the parameters that a rank has. */
static bool state_has_numbers(const struct value *optimizer)
{
    struct value *state = value_dict_get(optimizer, "state"), **pairs;
    size_t count;
    return state && value_as_mapping(state, &pairs, &count) && count > 0 && pairs[0]->kind == VALUE_INT;
}

static void find_stages(struct assembling *assembling, uint32_t file)
{
    struct torch_ranks *ranks = assembling->state->ranks;
    ranks->is_staged = assembling->is_staged && state_has_numbers(assembling->state->files[file].graph->root);
    if (ranks->is_staged)
        catalog_warn(assembling->source->catalog, false,
                     "the ranks' files of the model hold different tensors, as those of pipeline stages do: each rank's optimizer numbers "
                     "its own, and is kept rank by rank");
}

/* Whether two files have the same plain tensors one after the other, as their CRC-32s tell. */
static bool tensors_are_copies(const struct torch_archive *a, const struct torch_archive *b)
{
    bool same = a->tensor_count == b->tensor_count && b->shard_count == 0;
    for (uint32_t i = 0; i < a->tensor_count && same; i++) {
        const struct torch_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        const struct torch_storage *from = &a->storages[x->storage], *other = &b->storages[y->storage];
        same = x->dtype == y->dtype && shape_equal(x->rank, x->shape, y->rank, y->shape) &&
               shape_equal(x->rank, x->strides, y->rank, y->strides) && x->offset_bytes == y->offset_bytes && x->flags == y->flags &&
               from->has_crc && other->has_crc && from->bytes == other->bytes && from->crc32 == other->crc32;
    }
    return same;
}

/* NO_SHARD: where the model is whole on all ranks, and so are its moments. */
static bool is_replicated(const struct assembling *assembling, const uint32_t *files, uint32_t count)
{
    const struct torch_file *all = assembling->state->files;
    bool same = !model_is_cut(assembling);
    for (uint32_t i = 1; i < count && same; i++)
        same = tensors_are_copies(&all[files[0]].archive, &all[files[i]].archive);
    return same;
}

/* The optimizer's files say together what flat pieces are: all are opened, then looked at. */
static reshard_status add_optimizer_files(struct assembling *assembling, const struct fsdp_group *group, reshard_error *err)
{
    struct torch_ranks *ranks = assembling->state->ranks;
    uint32_t *files = array_zeroed(group->count, sizeof(*files)), opened = 0;
    reshard_status status = files ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < group->count; i++) {
        bool is_lost;
        status = open_rank_file(assembling, &group->files[i], &is_lost, err);
        if (!status)
            files[i] = is_lost ? TORCH_NONE : assembling->file;
        opened += !is_lost;
    }
    for (uint32_t i = 0; !status && i < group->count && !ranks->is_staged; i++)
        if (files[i] != TORCH_NONE)
            find_stages(assembling, files[i]);
    bool is_flat = !status && !ranks->is_staged && opened == group->count && opened == group->world &&
                   assembling->state->files[files[0]].archive.shard_count == 0 &&
                   assembling->state->files[files[0]].archive.tensor_count > 0;
    assembling->is_replicated = is_flat && is_replicated(assembling, files, group->count);
    if (is_flat && !assembling->is_replicated)
        status = fsdp_flat_read(assembling, files[0], group->count, &ranks->flat, err);
    assembling->is_joined = !status && ranks->flat;
    if (assembling->is_joined)
        status = fsdp_add_beside(assembling, FSDP_OPTIMIZER, &group->files[0], err);
    for (uint32_t i = 0; !status && !assembling->is_joined && i < group->count; i++) {
        assembling->file = files[i];
        if (files[i] != TORCH_NONE)
            status = take_rank_file(assembling, &group->files[i], FSDP_OPTIMIZER, err);
    }
    assembling->is_joined = assembling->is_beside = assembling->is_replicated = false;
    free(files);
    return status;
}

/* Keeps what the file of rank 0 is called, of the first group of a kind. */
static reshard_status fsdp_note_name(struct source *source, enum fsdp_kind kind, const struct fsdp_file *file, reshard_error *err)
{
    struct fsdp_file *kept = &torch_source_of(source)->ranks->names[kind];
    struct str base = file->name;
    size_t slash;
    while (str_find_char(base, '/', &slash))
        base = (struct str){ base.data + slash + 1, base.size - slash - 1 };
    if (kept->name.data)
        return RESHARD_OK;
    char *copy = arena_copy(&source->catalog->arena, base.data, base.size);
    if (!copy)
        return error_set_memory(err);
    fsdp_file_parse((struct str){ copy, base.size }, kept);
    return RESHARD_OK;
}

/* The first group is what is opened, whatever it is called. */
static reshard_status fsdp_assemble_add_groups(struct assembling *assembling, const struct fsdp_groups *groups, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; !status && i < groups->count; i++) {
        const struct fsdp_group *group = &groups->groups[i];
        enum fsdp_kind kind = i == 0 ? FSDP_MODEL : fsdp_file_kind(&group->files[0]);
        if (kind == FSDP_MODEL && i > 0)
            kind = FSDP_OTHER;
        assembling->is_one_file = group->world == 1;
        if (kind != FSDP_MODEL && group->files[0].rank > 0) {
            catalog_warn(assembling->source->catalog, true, "the file of rank 0 beside '%.*s' is missing: what they hold is lost",
                         STR_ARG(group->files[0].name));
            continue;
        }
        status = fsdp_note_name(assembling->source, kind, &group->files[0], err);
        if (!status)
            status = kind == FSDP_OPTIMIZER && group->world > 1 ? add_optimizer_files(assembling, group, err)
                                                                : add_rank_files(assembling, group, kind, err);
    }
    return status;
}

/* ---- what lies beside ---- */

/* What fsdp_config.json says goes against the files at most in their number. */
static void check_ranks_said(struct source *source, const struct value *config, uint32_t ranks)
{
    int64_t world;
    const struct value *said = value_dict_get(config, "world_size");
    if (said && value_as_int(said, &world) && world != ranks)
        catalog_warn(source->catalog, true, CONFIG_NAME " says %" PRId64 " ranks, but there are files of %" PRIu32, world, ranks);
}

static reshard_status fsdp_add_config(struct source *source, uint32_t ranks, reshard_error *err)
{
    struct buffer text = { 0 };
    struct value_graph graph = { 0 };
    int64_t version;
    char *name = store_join(&source->catalog->arena, source->name, STR(CONFIG_NAME));
    if (!name)
        return error_set_memory(err);
    if (!store_is_file(source->store, name))
        return RESHARD_OK;
    reshard_status status = store_read_all(source->store, name, AT_MOST(CONFIG_BYTES_MAX), &text, err);
    if (!status)
        status = json_parse_python(text.data, text.size, &source->limits, &graph, err);
    if (!status) {
        check_ranks_said(source, graph.root, ranks);
        const struct value *said = value_dict_get(graph.root, "FSDP_version");
        if (said && value_as_int(said, &version) && (torch_source_of(source)->ranks->fsdp_version = version) > 0)
            status = catalog_add_fact(source->catalog, "FSDP version", err, "%" PRId64, version);
    } else {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    value_graph_release(&graph);
    buffer_release(&text);
    return status;
}

static bool is_no_weights(const void *context, const struct store_entry *entry, struct str base)
{
    (void)context, (void)entry;
    return base.data[0] != '.' && !str_ends_with(base, ".safetensors") && !str_ends_with(base, ".bin") &&
           !str_ends_with(base, ".index.json");
}

static reshard_status add_huggingface(struct source *source, reshard_error *err)
{
    const char *folder = store_join(&source->catalog->arena, source->name, STR("huggingface"));
    if (!folder)
        return error_set_memory(err);
    return store_is_directory(source->store, folder) ? side_files_add(source, folder, "", is_no_weights, NULL, err) : RESHARD_OK;
}

static void assembling_release(struct assembling *assembling)
{
    name_map_release(&assembling->keys);
    name_map_release(&assembling->item_keys);
    name_map_release(&assembling->item_paths);
    name_map_release(&assembling->partials);
    free(assembling->tensors);
    free(assembling->items);
    free(assembling->item_values);
    free(assembling->merged);
    free(assembling->parts);
    buffer_release(&assembling->key);
}

/* The step folder of verl holds one of the model for each of its roles. */
static reshard_status enter_folder(struct source *source, reshard_error *err)
{
    struct arena arena = { 0 };
    const char *other;
    char *found = fsdp_folder_find(source->store, source->name, &arena, &other, err), *name = found ? strdup(found) : NULL;
    arena_release(&arena);
    if (!name)
        return error_set_memory(err);
    if (other)
        catalog_warn(source->catalog, false, "'%s' is read; the folder has other models, such as '%s', which open by their own path", name,
                     other);
    free(source->name);
    source->name = name;
    return RESHARD_OK;
}

static reshard_status read_rank_files(struct assembling *assembling, const struct fsdp_groups *groups, reshard_error *err)
{
    struct source *source = assembling->source;
    if (groups->count == 0)
        return error_set(err, RESHARD_ERR_FORMAT, "no file of a rank (NAME_rank_N.pt) in '%s'", source->name);
    uint32_t ranks = groups->groups[0].world;
    source->catalog->ranks = ranks;
    torch_source_of(source)->ranks->is_one_file = ranks == 1;
    reshard_status status = catalog_add_fact(source->catalog, "ranks", err, "%" PRIu32, ranks);
    if (!status)
        status = fsdp_assemble_add_groups(assembling, groups, err);
    if (status || !store_is_directory(source->store, source->name))
        return status;
    uint32_t number;
    status = fsdp_add_config(source, ranks, err);
    if (!status)
        status = add_huggingface(source, err);
    const bool is_numbered = !status && fsdp_model_number(&groups->groups[0].files[0], &number);
    return is_numbered ? accelerate_warn_further(source, source->name, number, err) : status;
}

void fsdp_close_source(struct source *source)
{
    struct torch_source *state = torch_source_of(source);
    if (state && state->ranks) {
        free(state->ranks->shards);
        fsdp_flat_release(state->ranks->flat);
    }
    torch_source_close(source);
}

static reshard_status assembling_begin(struct assembling *assembling, reshard_error *err)
{
    struct source *source = assembling->source;
    reshard_status status = torch_source_new(source, err);
    assembling->state = torch_source_of(source);
    if (!status && !(assembling->state->ranks = arena_zalloc(&source->catalog->arena, sizeof(*assembling->state->ranks))))
        status = error_set_memory(err);
    return status;
}

reshard_status fsdp_read_items(struct source *source, const struct fsdp_groups *groups, uint32_t ranks, reshard_error *err)
{
    struct assembling assembling = { .source = source };
    reshard_status status = assembling_begin(&assembling, err);
    source->catalog->ranks = ranks;
    assembling.is_one_file = ranks == 1;
    for (uint32_t i = 0; !status && i < groups->count; i++) {
        assembling.item = groups->groups[i].files[0].prefix;
        status = add_rank_files(&assembling, &groups->groups[i], FSDP_MODEL, err);
    }
    if (!status)
        status = fsdp_copies_check(&assembling, err);
    if (!status)
        status = fsdp_ties_find(source->catalog, err);
    assembling_release(&assembling);
    return status;
}

reshard_status fsdp_read_catalog(struct source *source, reshard_error *err)
{
    struct fsdp_groups groups = { 0 };
    struct assembling assembling = { .source = source };
    reshard_status status = assembling_begin(&assembling, err);
    if (!status)
        status = enter_folder(source, err);
    if (!status)
        status = fsdp_groups_find(source->store, source->name, source_bears_loss(source), &groups, err);
    if (!status)
        status = read_rank_files(&assembling, &groups, err);
    if (!status)
        status = fsdp_copies_check(&assembling, err);
    if (!status)
        status = fsdp_ties_find(source->catalog, err);
    if (!status)
        flat_keys_warn(source->catalog);
    assembling_release(&assembling);
    fsdp_groups_release(&groups);
    return status;
}
