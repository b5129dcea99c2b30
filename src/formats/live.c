/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/live.h"

#include "base/array.h"
#include "encoding/json.h"
#include "formats/shared/torch_item.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Items that are files of torch.save; what is read of their storages lies in these. The graphs are the catalog's. */
struct live_file {
    struct torch_archive archive;
    struct reader reader;
    uint32_t item;
};

struct live_source {
    const struct live_state *given; /* until the catalog is read */
    struct live_file *files;
    size_t file_count, file_capacity;
};

/* Tensors are those of the first shard of each key; the others must agree with it. */
static reshard_status live_add_tensor(struct catalog *catalog, const struct shard *shard, struct name_map *keys, uint32_t *out,
                                      reshard_error *err)
{
    bool is_new;
    *out = name_map_intern(keys, shard->key, &is_new);
    if (*out == NAME_NONE)
        return error_set_memory(err);
    if (is_new) {
        reshard_status status = catalog_add_tensor(catalog, shard->key, shard->dtype, shard->rank, shard->shape, out, err);
        if (!status)
            catalog->tensors[*out].tied_to = catalog->tensors[*out].storage_group = CATALOG_NONE;
        return status;
    }
    const struct catalog_tensor *tensor = &catalog->tensors[*out];
    if (tensor->dtype != shard->dtype)
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': one shard is %s, another %s", STR_ARG(shard->key),
                         dtype_info(tensor->dtype)->name, dtype_info(shard->dtype)->name);
    bool is_equal = shape_equal(tensor->rank, catalog_vector_at(catalog, tensor->shape), shard->rank, shard->shape);
    return is_equal ? RESHARD_OK
                    : error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': its shards are of several global shapes", STR_ARG(shard->key));
}

static reshard_status live_add_chunk(struct catalog *catalog, uint32_t tensor, const struct shard *shard, uint32_t object, uint64_t bytes,
                                     reshard_error *err)
{
    struct catalog_chunk *chunk;
    reshard_status status = catalog_add_chunk(catalog, tensor, shard->start, shard->extent, object, 0, bytes, &chunk, err);
    if (status)
        return status;
    chunk->writer = catalog_writer(shard->writer);
    if (!shard->is_flattened && !shard->strides)
        return RESHARD_OK;
    return shard->is_flattened ? catalog_chunk_set_run(catalog, chunk, shard->flat_begin, shard->flat_end - shard->flat_begin, err)
                               : catalog_chunk_set_strides(catalog, chunk, shard->rank, shard->strides, err);
}

static reshard_status live_shard_bytes(const struct shard *shard, uint64_t *out, reshard_error *err)
{
    if (!shard_span(shard, out))
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "tensor '%.*s': a shard is no whole number of bytes", STR_ARG(shard->key));
    if (*out && !shard_has_values(shard) && !shard->is_elsewhere)
        return error_set(err, RESHARD_ERR_USAGE, "tensor '%.*s': a shard has no values", STR_ARG(shard->key));
    return RESHARD_OK;
}

/* A shard is an object of the store: its number is its name. */
static reshard_status live_add_shard(struct catalog *catalog, const struct shard *shard, struct name_map *keys, uint32_t number,
                                     reshard_error *err)
{
    uint32_t tensor, object;
    uint64_t bytes;
    char name[STORE_REGION_NAME_MAX];
    reshard_status status = live_shard_bytes(shard, &bytes, err);
    if (!status)
        status = live_add_tensor(catalog, shard, keys, &tensor, err);
    store_region_name(number, name);
    if (!status)
        status = catalog_add_object(catalog, str_of(name), bytes, &object, err);
    return status ? status : live_add_chunk(catalog, tensor, shard, object, bytes, err);
}

/* bytes live as long as the source. */
static reshard_status live_file_graph(struct source *source, struct str bytes, struct value_graph *out, reshard_error *err)
{
    struct live_source *state = source->driver_state;
    if (!ARRAY_ROOM(state->files, state->file_count, state->file_capacity))
        return error_set_memory(err);
    struct live_file *file = &state->files[state->file_count];
    *file = (struct live_file){ .reader = reader_over_memory(bytes.data, bytes.size, "item"), .item = source->catalog->item_count };
    state->file_count++; /* whatever becomes of it, it is released with the source */
    reshard_status status = torch_save_open(&file->reader, &source->limits, -1, &file->archive, err);
    if (status)
        return status;
    *out = file->archive.graph;
    file->archive.graph = (struct value_graph){ 0 };
    if (torch_item_forget_tensors(out, source->limits.budget))
        return RESHARD_OK;
    value_graph_release(out);
    return work_error(source->limits.budget, err);
}

/* On failure nothing is to be released. */
static reshard_status live_item_graph(struct source *source, const struct live_item *given, struct value_graph *out, reshard_error *err)
{
    struct str json, file;
    work_add_input(source->limits.budget, given->json.size + given->file.size);
    if (given->value) {
        out->root = value_copy(out, given->value, given->value_count);
        work_add_input(source->limits.budget, out->arena.bytes_used);
        if (out->root)
            return RESHARD_OK;
        value_graph_release(out);
        return error_set_memory(err);
    }
    if (!arena_str(&source->catalog->arena, given->json, &json) || !arena_str(&source->catalog->arena, given->file, &file))
        return error_set_memory(err);
    if (given->file.data)
        return live_file_graph(source, file, out, err);
    reshard_status status = json_parse(json.data, json.size, &source->limits, out, err);
    if (status)
        value_graph_release(out);
    return status;
}

static reshard_status live_add_item(struct source *source, const struct live_item *given, reshard_error *err)
{
    struct catalog *catalog = source->catalog;
    struct value_graph graph = { 0 };
    if (catalog_find_item(catalog, given->key) != CATALOG_NONE)
        return error_set(err, RESHARD_ERR_USAGE, "item '%.*s' is there twice", STR_ARG(given->key));
    reshard_status status = live_item_graph(source, given, &graph, err);
    if (status) {
        error_prefix(err, "item '%.*s'", STR_ARG(given->key));
        return status;
    }
    struct value_graph *kept = catalog_adopt_graph(catalog, graph);
    if (!kept)
        return error_set_memory(err);
    const struct catalog_item item = { .key = given->key, .kind = ITEM_VALUE, .value = kept->root, .graph = kept };
    return catalog_add_item(catalog, &item, NULL, 0, NULL, err);
}

static reshard_status live_read_catalog(struct source *source, reshard_error *err)
{
    struct live_source *own = source->driver_state;
    const struct live_state *state = own->given;
    struct name_map keys = { 0 };
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < state->shard_count && !status; i++)
        status = live_add_shard(source->catalog, &state->shards[i], &keys, (uint32_t)i, err);
    for (size_t i = 0; i < state->item_count && !status; i++)
        status = live_add_item(source, &state->items[i], err);
    name_map_release(&keys);
    own->given = NULL;
    return status;
}

static reshard_status live_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err)
{
    const struct live_source *state = source->stored ? source->stored->driver_state : source->driver_state; /* a view has none */
    for (size_t i = 0; i < state->file_count; i++)
        if (state->files[i].item == item)
            return torch_item_storage(&state->files[i].archive, &state->files[i].reader, &source->limits, storage, out, err);
    return error_set(err, RESHARD_ERR_USAGE, "item %u has no storage %u", item, storage);
}

static void live_close_source(struct source *source)
{
    struct live_source *state = source->driver_state;
    if (!state)
        return; /* of a view */
    for (size_t i = 0; i < state->file_count; i++)
        torch_save_release(&state->files[i].archive);
    free(state->files);
    free(state);
}

static const struct format_driver format_live = {
    .name = "memory",
    .summary = "shards in the memory of a running job",
    .abilities = FORMAT_READS | FORMAT_HOLDS_ITEMS,
    .read_catalog = live_read_catalog,
    .read_item_storage = live_read_item_storage,
    .close_source = live_close_source,
};

static reshard_status live_store(const struct live_state *state, struct store **out, reshard_error *err)
{
    struct store_region *regions = array_zeroed(state->shard_count, sizeof(*regions));
    reshard_status status = regions ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i < state->shard_count && !status; i++) {
        const struct shard *shard = &state->shards[i];
        regions[i] = (struct store_region){ .memory = shard->data, .give = shard->read, .context = shard->context };
        status = live_shard_bytes(&state->shards[i], &regions[i].bytes, err);
    }
    if (!status)
        status = store_new_over(regions, state->shard_count, out, err);
    free(regions);
    return status;
}

void live_source_of(struct catalog *catalog, const struct limits *limits, struct source *out)
{
    *out = (struct source){ .driver = &format_live, .catalog = catalog, .limits = *limits, .iteration = -1 };
}

reshard_status live_source_open(const struct live_state *state, const struct open_options *options, struct source **out,
                                reshard_error *err)
{
    struct store *store;
    struct live_source *own;
    *out = NULL;
    if (state->shard_count >= UINT32_MAX)
        return error_set(err, RESHARD_ERR_LIMIT, "%zu shards", state->shard_count);
    reshard_status status = live_store(state, &store, err);
    if (status)
        return status;
    own = calloc(1, sizeof(*own));
    if (!own) {
        store_free(store);
        return error_set_memory(err);
    }
    own->given = state;
    return source_open_made(&format_live, store, own, options, out, err);
}
