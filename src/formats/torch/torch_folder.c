/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/torch/torch_folder.h"

#include "base/array.h"
#include "encoding/json.h"
#include "formats/shared/safetensors_names.h"
#include "formats/shared/side_files.h"
#include "formats/torch/torch_alone.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define INDEX_SUFFIX ".index.json"
#define SIDE_FILE_BYTES_MAX (UINT64_C(1) << 30)

/* The file that a folder begins at, its index rather than its weights: of Transformers, PEFT and diffusers. NULL: it has none. */
static const char *torch_folder_first(struct store *store, const char *directory, reshard_error *err)
{
    static const char *const names[] = {
        "pytorch_model.bin" INDEX_SUFFIX, "pytorch_model.bin", "adapter_model.bin" INDEX_SUFFIX, "adapter_model.bin",
        "diffusion_pytorch_model.bin" INDEX_SUFFIX, "diffusion_pytorch_model.bin",
    };
    const char *found = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !found; i++)
        found = store_has_file(store, directory, names[i], err) ? names[i] : NULL;
    return found;
}

bool torch_folder_probe(struct store *store, const char *directory, reshard_error *err)
{
    return torch_folder_first(store, directory, err);
}

/* The index while its files are read. */
struct index_reading {
    struct source *source;
    struct value_graph graph;
    struct buffer text;
    struct name_map keys;      /* of weight_map */
    struct name_map files;     /* in order of first mention */
    uint32_t *key_files;       /* by number in keys: number in files */
    bool *is_found;
    uint32_t current;
    uint32_t strangers;        /* tensors that the index does not have in this file */
};

static reshard_status torch_folder_read_index(struct index_reading *index, const char *file, reshard_error *err)
{
    struct source *source = index->source;
    const char *name = store_join(&source->catalog->arena, source->name, str_of(file));
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, json_bytes), &index->text, err) : error_set_memory(err);
    if (!status)
        status = json_parse_python(index->text.data, index->text.size, &source->limits, &index->graph, err);
    struct value **pairs;
    size_t count = 0;
    if (!status && !value_as_mapping(value_dict_get(index->graph.root, "weight_map"), &pairs, &count))
        status = error_set(err, RESHARD_ERR_FORMAT, "no \"weight_map\" object");
    index->key_files = array_zeroed(count, sizeof(*index->key_files));
    index->is_found = array_zeroed(count, sizeof(*index->is_found));
    if (!status && (!index->key_files || !index->is_found))
        status = error_set_memory(err);
    for (size_t i = 0; !status && i + 1 < count; i += 2) {
        struct str key, shard;
        if (!value_as_str(pairs[i], &key) || !value_as_str(pairs[i + 1], &shard)) {
            status = error_set(err, RESHARD_ERR_FORMAT, "\"weight_map\" holds something that is not a string");
            break;
        }
        status = store_name_check(shard, err);
        if (status)
            break;
        uint32_t key_number = name_map_intern(&index->keys, key, NULL), file_number = name_map_intern(&index->files, shard, NULL);
        if (key_number == NAME_NONE || file_number == NAME_NONE)
            status = error_set_memory(err);
        else
            index->key_files[key_number] = file_number;
    }
    if (status && name) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    return status;
}

static bool accept_key(struct str key, void *context)
{
    struct index_reading *index = context;
    uint32_t number = name_map_find(&index->keys, key);
    if (number == NAME_NONE || index->key_files[number] != index->current) {
        index->strangers++;
        return false;
    }
    index->is_found[number] = true;
    return true;
}

static reshard_status read_shard(struct index_reading *index, uint32_t number, reshard_error *err)
{
    struct source *source = index->source;
    const char *name = store_join(&source->catalog->arena, source->name, name_map_at(&index->files, number));
    uint32_t file;
    reshard_status status = name ? torch_open_alone(source, name, &file, err) : error_set_memory(err);
    index->current = number;
    index->strangers = 0;
    if (!status)
        status = torch_source_add_file(source, file, accept_key, index, err);
    if (!status)
        status = torch_source_add_facts(source, file, err);
    if (!status && index->strangers > 0)
        catalog_warn(source->catalog, false, "'%s': %" PRIu32 " tensors that the index does not list there are left out", name,
                     index->strangers);
    return status;
}

static reshard_status check_all_found(const struct index_reading *index, reshard_error *err)
{
    for (uint32_t i = 0; i < index->keys.count; i++) {
        struct str key = name_map_at(&index->keys, i), file = name_map_at(&index->files, index->key_files[i]);
        if (!index->is_found[i])
            return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' is not in '%.*s', where the index has it", STR_ARG(key),
                             STR_ARG(file));
    }
    return RESHARD_OK;
}

static bool is_folder_side_file(const void *context, const struct store_entry *entry, struct str base)
{
    (void)context;
    return st_name_is_side_file(base) && entry->bytes <= SIDE_FILE_BYTES_MAX;
}

static reshard_status read_single(struct source *source, const char *file, reshard_error *err)
{
    const char *name = store_join(&source->catalog->arena, source->name, str_of(file));
    uint32_t number;
    reshard_status status = name ? torch_open_alone(source, name, &number, err) : error_set_memory(err);
    if (!status)
        status = torch_source_add_file(source, number, NULL, NULL, err);
    if (!status)
        status = torch_source_add_facts(source, number, err);
    return status;
}

static reshard_status read_sharded(struct source *source, const char *file, reshard_error *err)
{
    struct index_reading index = { .source = source };
    reshard_status status = torch_folder_read_index(&index, file, err);
    for (uint32_t i = 0; !status && i < index.files.count; i++)
        status = read_shard(&index, i, err);
    if (!status)
        status = check_all_found(&index, err);
    value_graph_release(&index.graph);
    buffer_release(&index.text);
    name_map_release(&index.keys);
    name_map_release(&index.files);
    free(index.key_files);
    free(index.is_found);
    return status;
}

reshard_status torch_folder_read(struct source *source, reshard_error *err)
{
    reshard_error seen = { 0 };
    const char *first = torch_folder_first(source->store, source->name, &seen);
    if (seen.code == RESHARD_ERR_MEMORY)
        return error_set_memory(err);
    if (!first)
        first = "pytorch_model.bin"; /* --format asked for it: its absence is told */
    const bool is_index = str_ends_with(str_of(first), INDEX_SUFFIX);
    reshard_status status = is_index ? read_sharded(source, first, err) : read_single(source, first, err);
    return status ? status : side_files_add(source, source->name, "", is_folder_side_file, NULL, err);
}
