/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron Core's torch_dist: DCP under Megatron's keys. What is not sharded lies in common.pt, or since 0.19 in the byte item
 * common_state/shard_0_1 as a list of one dict; its members become items. Other byte items are ShardedObjects and stay as they are.
 */
#include "formats/mcore/mcore_source.h"

#include "formats/mcore/mcore_data.h"
#include "formats/mcore/mcore_stored.h"
#include "formats/shared/megatron_keys.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COMMON_ITEM "common_state/shard_0_1"

struct mcore_reading {
    struct source *source;
    bool has_common_file;
    struct mcore_stored *stored;
};

/* ---- common state ---- */

static reshard_status add_common_item(struct source *source, struct dcp_archive *archive, const struct value_graph *graph,
                                      const struct value *key, const struct value *value, reshard_error *err)
{
    struct str text;
    char number[32];
    int64_t integer;
    if (value_as_int(key, &integer)) {
        int size = snprintf(number, sizeof(number), "%" PRId64, integer);
        text = (struct str){ number, (size_t)size };
    } else if (!value_as_str(key, &text)) {
        return error_set(err, RESHARD_ERR_FORMAT, "a key of the common state is neither a string nor an integer");
    }
    uint32_t index;
    struct path_part part = { .kind = key->kind == VALUE_INT ? PATH_INT_KEY : PATH_KEY,
                              .key = text,
                              .index = key->kind == VALUE_INT ? key->integer : 0 };
    struct catalog_item item = {
        .key = text, .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = value, .graph = graph, .object = archive->object
    };
    reshard_status status = catalog_add_item(source->catalog, &item, &part, part.kind == PATH_KEY ? 0 : 1, &index, err);
    return status ? status : dcp_item_set_archive(source, index, archive, err);
}

/* The dict, or the one dict of a list, member by member. */
static reshard_status mcore_read_add_common(struct source *source, struct dcp_archive *archive, const struct value_graph *graph,
                                            reshard_error *err)
{
    const struct value *state = graph->root;
    struct value **items;
    size_t count;
    if (state->kind == VALUE_LIST && state->list.count == 1)
        state = state->list.items[0];
    if (!value_as_mapping(state, &items, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "the common state is no dict");
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < count && !status; i += 2)
        status = add_common_item(source, archive, graph, items[i], items[i + 1], err);
    return status;
}

static reshard_status read_common(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, enum codec codec,
                                  const char *what, reshard_error *err)
{
    struct dcp_archive *archive;
    const struct value_graph *graph;
    reshard_status status = dcp_archive_open(source, object, offset, bytes, codec, &archive, &graph, err);
    if (!status)
        status = mcore_read_add_common(source, archive, graph, err);
    if (status) {
        error_prefix(err, "%s", what);
        error_object(err, "%.*s", STR_ARG(source->catalog->objects[object].name));
    }
    return status;
}

reshard_status mcore_common_file_read(struct source *source, bool *has_file, reshard_error *err)
{
    char *name = NULL;
    bool is_directory;
    uint64_t bytes;
    uint32_t object;
    reshard_status status = dcp_name_join(dcp_state(source)->directory, STR(MCORE_COMMON_FILE), &name, err);
    if (status)
        return status;
    *has_file = store_exists(source->store, name, &is_directory, &bytes) && !is_directory;
    if (*has_file) {
        status = catalog_add_object(source->catalog, str_of(name), bytes, &object, err);
        if (!status)
            status = read_common(source, object, 0, bytes, CODEC_NONE, "'" MCORE_COMMON_FILE "'", err);
    }
    free(name);
    return status;
}

/* ---- optimizer state ---- */

/* Whether any of it was flattened. */
static bool mcore_read_has_flattened_state(const struct mcore_reading *reading)
{
    const struct catalog *catalog = reading->source->catalog;
    struct mcore_reshape reshape;
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && !found; i++)
        found = state_key_is_any(catalog->tensors[i].key) && mcore_data_find(&reading->stored->data, catalog->tensors[i].key, &reshape);
    return found;
}

static reshard_status see_metadata(void *context, const struct buffer *pickle, reshard_error *err)
{
    const struct mcore_reading *reading = context;
    return mcore_data_read(pickle, &reading->source->limits, &reading->stored->data, err);
}

/* common.pt takes precedence over the object, as upstream. */
static reshard_status take_item(void *context, struct str name, uint32_t object, uint64_t offset, uint64_t bytes, enum codec codec,
                                bool *taken, reshard_error *err)
{
    struct mcore_reading *reading = context;
    if (reading->has_common_file || !str_is(name, COMMON_ITEM))
        return RESHARD_OK;
    *taken = true;
    return read_common(reading->source, object, offset, bytes, codec, "common state", err);
}

static bool mcore_read_reshape(void *context, struct str name, int *rank, int64_t *shape)
{
    const struct mcore_reading *reading = context;
    struct mcore_reshape found;
    int64_t flat;
    if (!mcore_data_find(&reading->stored->data, name, &found))
        return false;
    *rank = found.rank;
    memcpy(shape, found.shape, (size_t)found.rank * sizeof(*shape));
    if (found.is_flat && shape_volume(found.rank, found.shape, &flat)) {
        *rank = 1;
        shape[0] = flat;
    }
    return true;
}

static reshard_status add_flattened(void *context, struct str name, uint32_t tensor, const struct dcp_form *stored,
                                    const struct catalog_chunk *like, reshard_error *err)
{
    struct mcore_reading *reading = context;
    struct mcore_reshape found;
    if (!mcore_data_find(&reading->stored->data, name, &found))
        return error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s': its original shape is not known", STR_ARG(name));
    reshard_status status = found.is_flat ? mcore_stored_keep(reading->stored, tensor, stored, like, err) : RESHARD_OK;
    return status ? status : mcore_add_flattened(reading->source->catalog, tensor, &found, stored, like, err);
}

/* ---- facts ---- */

static const struct {
    const char *argument, *word;
} parallel_sizes[] = {
    { "tensor_model_parallel_size", "tp" },
    { "pipeline_model_parallel_size", "pp" },
    { "virtual_pipeline_model_parallel_size", "vpp" },
    { "expert_model_parallel_size", "ep" },
    { "expert_tensor_parallel_size", "etp" },
    { "context_parallel_size", "cp" },
    { "data_parallel_size", "dp" },
};

/* The attributes of an object such as argparse.Namespace. */
static const struct value *attributes_of(const struct value *value)
{
    bool is_object = value->kind == VALUE_NEW || value->kind == VALUE_CALL;
    const struct value *state = is_object && value->object->state_count ? value->object->states[0] : value;
    return state->kind == VALUE_DICT ? state : NULL;
}

reshard_status mcore_note_parallel_sizes(struct source *source, reshard_error *err)
{
    const struct catalog *catalog = source->catalog;
    uint32_t item = catalog_find_item(catalog, STR("args"));
    const struct value *value = item == CATALOG_NONE ? NULL : catalog->items[item].value, *arguments = value ? attributes_of(value) : NULL;
    char text[256] = "";
    size_t size = 0;
    for (size_t i = 0; arguments && i < sizeof(parallel_sizes) / sizeof(parallel_sizes[0]); i++) {
        int64_t number;
        value = value_dict_get(arguments, parallel_sizes[i].argument);
        if (value && value_as_int(value, &number) && size < sizeof(text) - 40)
            size += (size_t)snprintf(text + size, sizeof(text) - size, "%s%s=%" PRId64, size ? "," : "", parallel_sizes[i].word, number);
    }
    return size ? catalog_add_fact(source->catalog, "saved under", err, "%s", text) : RESHARD_OK;
}

/* ---- the checkpoint ---- */

static reshard_status check_config(struct source *source, reshard_error *err)
{
    struct mcore_config config;
    reshard_status status = mcore_config_read(source->store, dcp_state(source)->directory, &config, err);
    if (status)
        return status;
    switch (config.backend) {
    case MCORE_TORCH_DIST:
        break;
    case MCORE_ABSENT:
        error_set(err, RESHARD_ERR_FORMAT, "no metadata.json with a 'sharded_backend': the save was never finished");
        error_hint(
            err,
            "metadata.json is written last: reshard_open_options.format torch-dcp reads what .metadata describes, where that is there");
        return RESHARD_ERR_FORMAT;
    default:
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'metadata.json': sharded_backend '%s', expected 'torch_dist'", config.name);
    }
    if (config.version != 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'metadata.json': sharded_backend_version %" PRId64 ", expected 1", config.version);
    return RESHARD_OK;
}

/* The tokenizer lies in a directory of its own; a quantizer's state there is a checkpoint by itself. */
static reshard_status mcore_read_add_files(struct source *source, reshard_error *err)
{
    const char *directory = dcp_state(source)->directory, *tokenizer = store_join(&source->catalog->arena, directory, STR("tokenizer")),
               *quantizer = store_join(&source->catalog->arena, directory, STR("modelopt_state"));
    reshard_status status = tokenizer && quantizer ? dcp_add_side_files(source, "", mcore_own_files, err) : error_set_memory(err);
    if (!status && store_is_directory(source->store, tokenizer))
        status = dcp_add_side_files(source, "tokenizer/", NULL, err);
    if (!status && store_is_directory(source->store, quantizer))
        catalog_warn(source->catalog, false, "'%s' is a checkpoint of its own, which is not read with this one", quantizer);
    return status;
}

reshard_status mcore_read_torch_dist(struct source *source, reshard_error *err)
{
    struct mcore_reading reading = { .source = source };
    const struct dcp_read_hooks hooks = {
        .context = &reading, .see_metadata = see_metadata, .reshape = mcore_read_reshape, .add_chunk = add_flattened, .take_item = take_item
    };
    reshard_status status = dcp_read_open(source, err);
    if (!status)
        status = check_config(source, err);
    if (!status)
        status = mcore_stored_new(source, &reading.stored, err);
    if (!status)
        status = mcore_common_file_read(source, &reading.has_common_file, err);
    if (!status)
        status = dcp_read_tensors(source, &hooks, err);
    if (!status) {
        reading.stored->is_flattened = mcore_read_has_flattened_state(&reading);
        status = mcore_stored_note(source, reading.stored, err);
    }
    if (!status)
        status = mcore_read_add_files(source, err);
    return status ? status : mcore_note_parallel_sizes(source, err);
}

reshard_status mcore_read_plain(struct source *source, reshard_error *err)
{
    reshard_status status = dcp_read_open(source, err);
    if (!status)
        status = dcp_read_tensors(source, NULL, err);
    if (!status)
        status = mcore_read_add_files(source, err);
    return status ? status : megatron_keys_note(source->catalog, err);
}
