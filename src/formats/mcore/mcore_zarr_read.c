/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a Megatron checkpoint has beside its arrays: metadata.json, common.pt, and a file for each cell of an object:
 *
 *   KEY/shard_0.1_2.4.pt   cell (0,1) of a grid of (2,4). Versions before 0.7 lost the last number: shard_0.1_2.pt
 *
 * The objects get the keys and the form that they have in torch_dist: a list of one value.
 */
#include "formats/mcore/mcore_zarr.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "encoding/json.h"
#include "formats/mcore/mcore.h"
#include "formats/mcore/mcore_source.h"
#include "formats/mcore/mcore_stored.h"
#include "formats/zarr/zarr.h"
#include "formats/zarr/zarr_read.h"
#include "parallel/rank_parameters.h"
#include "parallel/state_keys.h"
#include "parallel/training_args.h"

#define CONFIG_BYTES_MAX 65536

/* ---- whose store it is ---- */

static bool says_zarr(struct store *store, const char *directory, reshard_error *err)
{
    struct mcore_config config = { 0 };
    return !mcore_config_read(store, directory, &config, err) && config.backend == MCORE_ZARR;
}

/* Megatron writes metadata.json last: with common.pt and arrays, but without it, this is a save that was not finished. */
int mcore_zarr_probe(struct store *store, const char *name, reshard_error *err)
{
    char directory[4096] = "";
    int score = zarr_probe(store, name, err);
    if (name[0] && snprintf(directory, sizeof(directory), "%s/", name) >= (int)sizeof(directory))
        return score;
    if (says_zarr(store, directory, err))
        return 100;
    return score == ZARR_SCORE_OF_ARRAYS && store_has_file(store, directory, MCORE_COMMON_FILE, err) ? 96 : score;
}

/* Plain stores have no state. */
bool mcore_zarr_is_megatron(const struct source *source)
{
    return source->driver == &format_zarr && source->driver_state;
}

/* Makes the state of a source that is Megatron's: it says so, or has its common.pt. */
static reshard_status decide_flavour(struct zarr_reading *reading, bool *has_common, reshard_error *err)
{
    struct source *source = reading->source;
    struct buffer directory = { 0 };
    reshard_error seen = { 0 }; /* another's metadata.json may be anything; one that cannot be read may be Megatron's */
    *has_common = !reading->keys.is_zip && zarr_keys_find(&reading->keys, STR(MCORE_COMMON_FILE));
    if (reading->keys.is_zip)
        return RESHARD_OK;
    if (source->name[0])
        buffer_printf(&directory, "%s/", source->name);
    buffer_append_byte(&directory, '\0');
    reshard_status status = directory.failed ? error_set_memory(err) : RESHARD_OK;
    if (!status && (*has_common || says_zarr(source->store, (const char *)directory.data, &seen))) {
        reading->flavour = "Megatron Core";
        reading->hints.void_is_bf16 = true;
        reading->hints.null_is_zero = false; /* every chunk is stored: one that is not there was lost */
        reading->has_plain_nans = *has_common; /* Megatron can load it, and does so by way of float32, as it saves */
        status = dcp_source_new(source, (const char *)directory.data, err);
    }
    if (!status && (seen.code == RESHARD_ERR_MEMORY || seen.code == RESHARD_ERR_IO)) {
        if (err)
            *err = seen;
        status = seen.code;
    }
    buffer_release(&directory);
    return status;
}

/* ---- metadata.json ---- */

/* has_common: there is a common.pt, and metadata.json a mark of the format, as in torch_dist; else it is all that is beside the arrays. */
static reshard_status mcore_zarr_read_add_config(struct zarr_reading *reading, bool has_common, reshard_error *err)
{
    struct source *source = reading->source;
    struct zarr_entry *entry = zarr_keys_find(&reading->keys, STR(MCORE_CONFIG_FILE));
    struct mcore_config config;
    struct buffer bytes = { 0 };
    struct value_graph graph = { 0 };
    reshard_status status = mcore_config_read(source->store, dcp_state(source)->directory, &config, err);
    if (status == RESHARD_ERR_FORMAT && source->lenient)
        status = RESHARD_OK;
    if (status)
        return status;
    if (!entry || config.backend != MCORE_ZARR) {
        catalog_warn(source->catalog, true, "there is no %s that says 'zarr': the save may not have been finished", MCORE_CONFIG_FILE);
        return RESHARD_OK;
    }
    if (config.version != 1)
        return error_set(err, RESHARD_ERR_UNSUPPORTED, "'%s': sharded_backend_version %" PRId64 ", expected 1", MCORE_CONFIG_FILE,
                         config.version);
    entry->is_used = true;
    if (has_common)
        return RESHARD_OK;
    status = zarr_keys_read(source->store, &reading->keys, entry, &source->limits, AT_MOST(CONFIG_BYTES_MAX), &bytes, err);
    if (!status)
        status = json_parse_python(bytes.data, bytes.size, &source->limits, &graph, err);
    if (!status) {
        struct value *copy = value_copy(reading->kept, graph.root, graph.count);
        struct catalog_item item = {
            .key = STR(MCORE_CONFIG_FILE), .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = copy, .graph = reading->kept
        };
        status = copy ? catalog_add_item(source->catalog, &item, NULL, 0, NULL, err) : error_set_memory(err);
    }
    value_graph_release(&graph);
    buffer_release(&bytes);
    return status;
}

/* ---- objects ---- */

/* The name of an object's file, taken apart: KEY/shard_OFFSETS_SHAPE.pt */
struct shard_name {
    struct str key, offsets, shape;
};

static size_t mcore_zarr_read_count_numbers(struct str numbers)
{
    size_t count = 1;
    for (size_t i = 0; i < numbers.size; i++)
        count += numbers.data[i] == '.';
    return count;
}

static bool is_numbers(struct str text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.data[i] != '.' && (text.data[i] < '0' || text.data[i] > '9'))
            return false;
    return text.size > 0;
}

static bool shard_name_parse(struct str name, struct shard_name *out)
{
    const size_t slash = str_folder(name).size;
    struct str base = str_base_name(name);
    size_t score;
    if (slash < 2 || !str_starts_with(base, "shard_") || !str_ends_with(base, ".pt"))
        return false;
    base = (struct str){ base.data + 6, base.size - 6 - 3 };
    if (!str_find_char(base, '_', &score))
        return false;
    out->key = (struct str){ name.data, slash - 1 };
    out->offsets = (struct str){ base.data, score };
    out->shape = (struct str){ base.data + score + 1, base.size - score - 1 };
    return is_numbers(out->offsets) && is_numbers(out->shape);
}

static uint64_t last_number(struct str numbers)
{
    size_t at = numbers.size;
    uint64_t number = 0;
    while (at > 0 && numbers.data[at - 1] != '.')
        at--;
    return str_to_u64((struct str){ numbers.data + at, numbers.size - at }, &number) ? number : 0;
}

/* The extent that is missing in the shape of the objects of a key: one more than the last offset of any of its files. */
static uint64_t lost_extent(const struct zarr_keys *keys, uint32_t entry, struct str key)
{
    uint64_t largest = 0;
    struct shard_name name;
    uint32_t first = entry;
    while (first > 0 && shard_name_parse(keys->entries[first - 1].name, &name) && str_equal(name.key, key))
        first--;
    for (uint32_t i = first; i < keys->count && shard_name_parse(keys->entries[i].name, &name) && str_equal(name.key, key); i++) {
        uint64_t number = last_number(name.offsets);
        largest = number > largest ? number : largest;
    }
    return largest + 1;
}

static reshard_status mcore_zarr_read_add_item(struct source *source, struct str key, uint32_t object, uint64_t bytes, reshard_error *err)
{
    struct dcp_archive *archive;
    struct value_graph *own; /* the catalog's, to which the list is added */
    uint32_t index;
    reshard_status status = dcp_archive_open_numbered(source, object, bytes, &archive, &own, err);
    if (status)
        return status;
    struct value **items = arena_array(&own->arena, 1, sizeof(struct value *));
    struct value *list = items ? value_new_list(own, VALUE_LIST, items, 1) : NULL;
    if (!list)
        return error_set_memory(err);
    items[0] = own->root;
    struct catalog_item item = { .key = key, .path = CATALOG_NONE, .kind = ITEM_VALUE, .value = list, .graph = own, .object = object };
    status = catalog_add_item(source->catalog, &item, NULL, 0, &index, err);
    return status ? status : dcp_item_set_archive(source, index, archive, err);
}

static reshard_status mcore_zarr_read_add_object(struct zarr_reading *reading, uint32_t entry_index, const struct shard_name *name,
                                                 uint64_t lost, reshard_error *err)
{
    struct source *source = reading->source;
    const struct zarr_entry *entry = &reading->keys.entries[entry_index];
    struct buffer key = { 0 };
    uint32_t object;
    const struct str parts[] = { name->key, STR("/shard_"), name->offsets, STR("_"), name->shape };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        buffer_append_str(&key, parts[i]);
    if (lost)
        buffer_printf(&key, ".%" PRIu64, lost);
    reshard_status status = key.failed ? error_set_memory(err) : RESHARD_OK;
    if (!status)
        status = catalog_add_object(source->catalog, entry->object, entry->bytes, &object, err);
    if (!status)
        status = mcore_zarr_read_add_item(source, buffer_str(&key), object, entry->bytes, err);
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(entry->name));
        error_object(err, "%.*s", STR_ARG(entry->name));
    }
    buffer_release(&key);
    return status;
}

static reshard_status add_objects(struct zarr_reading *reading, reshard_error *err)
{
    struct str last_key = { 0 };
    uint64_t last_lost = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < reading->keys.count && !status; i++) {
        struct zarr_entry *entry = &reading->keys.entries[i];
        struct shard_name name;
        if (entry->is_used || !shard_name_parse(entry->name, &name))
            continue;
        entry->is_used = true;
        size_t offsets = mcore_zarr_read_count_numbers(name.offsets), extents = mcore_zarr_read_count_numbers(name.shape);
        if (extents + 1 == offsets && !str_equal(name.key, last_key))
            last_lost = lost_extent(&reading->keys, i, name.key);
        last_key = name.key;
        status = mcore_zarr_read_add_object(reading, i, &name, extents + 1 == offsets ? last_lost : 0, err);
    }
    return status;
}

/* Flattened state is stored as arrays of the real shape. What tells is that only the distributed optimizer flattens, and calls its copies
 * fp32_param. */
static bool mcore_zarr_read_has_flattened_state(const struct catalog *catalog)
{
    const struct value *namespace = mcore_item_value(catalog, "args");
    struct training_args args;
    if (!namespace)
        return false;
    training_args_read(namespace, &args);
    bool found = false;
    for (uint32_t i = 0; i < catalog->tensor_count && args.is_distributed_optimizer == 1 && !found; i++)
        found = state_key_is_any(catalog->tensors[i].key);
    return found;
}

/* What Megatron has beside the arrays. */
static reshard_status read_objects(struct zarr_reading *reading, bool has_common, reshard_error *err)
{
    struct mcore_stored *stored;
    struct source *source = reading->source;
    reshard_status status = mcore_zarr_read_add_config(reading, has_common, err);
    if (!status)
        status = mcore_common_file_read(source, &has_common, err);
    struct zarr_entry *entry = zarr_keys_find(&reading->keys, STR(MCORE_COMMON_FILE));
    if (entry)
        entry->is_used = true;
    if (!status)
        status = add_objects(reading, err);
    if (!status)
        status = mcore_stored_new(source, &stored, err);
    if (!status) {
        stored->is_flattened = mcore_zarr_read_has_flattened_state(source->catalog);
        status = mcore_stored_note(source, stored, err);
    }
    return status ? status : mcore_note_parallel_sizes(source, err);
}

/* ---- the driver ---- */

reshard_status mcore_zarr_read(struct source *source, reshard_error *err)
{
    struct zarr_reading reading = { .source = source };
    bool has_common;
    reshard_status status = zarr_read_begin(&reading, err);
    if (!status)
        status = decide_flavour(&reading, &has_common, err);
    if (!status)
        status = zarr_read_documents(&reading, err);
    if (!status && reading.flavour)
        status = read_objects(&reading, has_common, err);
    if (!status)
        status = zarr_read_end(&reading, err);
    zarr_reading_release(&reading);
    return status;
}

reshard_status mcore_zarr_verify(struct source *source, bool deep, reshard_error *err)
{
    return mcore_zarr_is_megatron(source) ? dcp_verify_archives(source, deep, err) : RESHARD_OK;
}
