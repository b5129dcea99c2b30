/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/deepspeed/deepspeed.h"

#include "formats/deepspeed/deepspeed_source.h"

#include "base/array.h"
#include "formats/shared/safetensors_names.h"
#include "formats/shared/side_files.h"
#include "formats/source_probe.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The same model files lie beside the folder zero/ of a universal checkpoint, and beside ranks' files of the optimizer. */
static int probe_either(struct store *store, const char *name, bool wants_universal, reshard_error *err)
{
    struct arena arena = { 0 };
    struct store_entry *entries;
    size_t count = 0;
    int score = 0;
    if (!store_is_directory(store, name) || store_list(store, name, &arena, &entries, &count, err)) {
        arena_release(&arena);
        return 0;
    }
    bool is_universal = false;
    for (size_t i = 0; i < count; i++) {
        uint64_t rank, part;
        struct str base = str_base_name(entries[i].name);
        is_universal = is_universal || (entries[i].is_directory && str_is(base, "zero"));
        if (!entries[i].is_directory && deepspeed_file_of(base, &rank, &part) != DEEPSPEED_BESIDE)
            score = 92;
    }
    arena_release(&arena);
    return is_universal == wants_universal ? score : 0;
}

static int deepspeed_probe(struct store *store, const char *name, reshard_error *err)
{
    return probe_either(store, name, false, err);
}

static int ucp_probe(struct store *store, const char *name, reshard_error *err)
{
    return probe_either(store, name, true, err);
}

/* ---- files ---- */

static reshard_status open_files(struct deepspeed_reading *reading, const struct store_entry *const *entries, uint32_t count,
                                 uint32_t **out, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    *out = array_new(count, sizeof(**out));
    reshard_status status = *out ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; !status && i < count; i++) {
        char *name = arena_copy(&catalog->arena, entries[i]->name.data, entries[i]->name.size);
        status = name ? torch_source_open_file(reading->source, name, (int)i, &(*out)[i], err) : error_set_memory(err);
    }
    return status;
}

static reshard_status open_optimizers(struct deepspeed_reading *reading, reshard_error *err)
{
    reading->ranks = reading->folder.optimizer_count;
    reading->origin = &deepspeed_origin_parts;
    reshard_status status = open_files(reading, reading->folder.optimizers, reading->ranks, &reading->optimizer_files, err);
    reading->optimizers = array_zeroed(reading->ranks, sizeof(*reading->optimizers));
    if (!status && !reading->optimizers)
        status = error_set_memory(err);
    for (uint32_t i = 0; !status && i < reading->ranks; i++) {
        const struct torch_file *file = &torch_source_of(reading->source)->files[reading->optimizer_files[i]];
        reading->optimizers[i] = value_dict_get(file->graph->root, "optimizer_state_dict");
        if (reading->optimizers[i])
            continue;
        status = error_set(err, RESHARD_ERR_FORMAT, "there is no optimizer_state_dict in it");
        deepspeed_name_file(reading, reading->optimizer_files[i], err);
    }
    return status;
}

/* ---- the checkpoint ---- */

static reshard_status add_zero_facts(const struct deepspeed_reading *reading, reshard_error *err)
{
    struct catalog *catalog = reading->source->catalog;
    const struct value *version = value_dict_get(reading->model, "ds_version");
    int64_t said, ranks;
    struct str text;
    const struct value *counted = value_dict_get(reading->model, "dp_world_size");
    reshard_status status = RESHARD_OK;
    if (version && value_as_str(version, &text))
        status = catalog_add_fact(catalog, "DeepSpeed version", err, "%.*s", STR_ARG(text));
    const struct value *optimizer = deepspeed_common(reading);
    struct value *stage = optimizer ? value_dict_get(optimizer, "zero_stage") : NULL;
    if (!status && stage && value_as_int(deepspeed_plain(stage), &said))
        status = catalog_add_fact(catalog, "ZeRO stage", err, "%" PRId64, said);
    if (counted && value_as_int(counted, &ranks) && ranks > 0 && ranks <= UINT32_MAX)
        catalog->ranks = (uint32_t)ranks;
    if (!status && catalog->ranks)
        status = catalog_add_fact(catalog, "ranks", err, "%" PRIu32, catalog->ranks);
    return status;
}

/* The optimizer's files are gone, where the model file says that there were some. */
static void note_lost_optimizer(const struct deepspeed_reading *reading)
{
    const struct value *shapes = value_dict_get(reading->model, "param_shapes");
    if (reading->origin || !shapes || shapes->kind == VALUE_NONE)
        return;
    catalog_warn(reading->source->catalog, false,
                 "there are no files *_optim_states.pt: the optimizer's state is lost, and the weights are the model file's copies, of the "
                 "type that the model computes in");
}

static reshard_status open_models(struct deepspeed_reading *reading, bool is_universal, reshard_error *err)
{
    struct deepspeed_folder *folder = &reading->folder;
    reshard_status status = deepspeed_folder_read(reading->source, is_universal, folder, err);
    if (!status)
        status = open_files(reading, folder->models, folder->model_count, &reading->model_files, err);
    if (!status)
        status = open_files(reading, folder->parts, folder->part_count, &reading->part_files, err);
    if (!status)
        reading->model = deepspeed_root(reading, reading->model_files[0]);
    return status;
}

static reshard_status read_files(struct deepspeed_reading *reading, bool is_universal, reshard_error *err)
{
    struct source *source = reading->source;
    reshard_status status = open_models(reading, is_universal, err);
    if (status)
        return status;
    if (is_universal)
        status = deepspeed_read_universal(reading, err);
    else if (reading->folder.optimizer_count)
        status = open_optimizers(reading, err);
    if (!status && reading->optimizers)
        status = deepspeed_read_groups(reading, err);
    if (status)
        return status;
    note_lost_optimizer(reading);
    if (!status)
        status = torch_source_add_facts(source, reading->model_files[0], err);
    if (!status)
        status = add_zero_facts(reading, err);
    if (!status)
        status = deepspeed_add_model(reading, err);
    if (!status && reading->universal)
        status = deepspeed_universal_add_rest(reading, err);
    if (!status && reading->origin)
        status = deepspeed_add_optimizer(reading, err);
    return status;
}

/* DeepSpeed's own scripts lie there as well. */
static bool is_beside_run(const void *context, const struct store_entry *entry, struct str base)
{
    (void)context, (void)entry;
    return st_name_is_side_file(base) && !str_ends_with(base, ".py") && !str_starts_with(base, "latest");
}

/* Who opens a run's folder gets what Transformers keeps beside `latest`: config.json, a tokenizer. */
static reshard_status add_side_files(struct source *source, reshard_error *err)
{
    if (!source->name[0])
        return RESHARD_OK;
    const struct str above = str_without_slashes(str_folder(str_of(source->name)));
    const char *folder = arena_copy(&source->catalog->arena, above.data, above.size);
    return folder ? side_files_add(source, folder, "", is_beside_run, NULL, err) : error_set_memory(err);
}

static reshard_status read_either(struct source *source, bool is_universal, reshard_error *err)
{
    struct deepspeed_reading reading = { .source = source };
    reshard_status status = torch_source_new(source, err);
    if (!status)
        status = read_files(&reading, is_universal, err);
    if (!status)
        status = add_side_files(source, err);
    deepspeed_universal_release(reading.universal);
    deepspeed_folder_release(&reading.folder);
    free(reading.model_files);
    free(reading.part_files);
    free(reading.optimizer_files);
    free(reading.optimizers);
    free(reading.masters);
    free(reading.states);
    free(reading.parameters);
    free(reading.groups);
    free(reading.items);
    name_map_release(&reading.names);
    name_map_release(&reading.listed);
    free(reading.listed_tensors);
    buffer_release(&reading.key);
    return status;
}

static reshard_status deepspeed_read_catalog(struct source *source, reshard_error *err)
{
    return read_either(source, false, err);
}

static reshard_status ucp_read_catalog(struct source *source, reshard_error *err)
{
    return read_either(source, true, err);
}

static const char *const folder_entries[] = { "*mp_rank_*_model_states.pt", "*zero_pp_rank_*_optim_states.pt", NULL };
static const char *const ucp_entries[] = { "*mp_rank_*_model_states.pt", "zero/", NULL };

const struct format_driver format_deepspeed = {
    .name = "deepspeed",
    .summary = "DeepSpeed's checkpoints of ZeRO 0 to 3: a model file, and each rank's part of masters and optimizer",
    .abilities = FORMAT_READS | FORMAT_ITEMS_NAME_TENSORS,
    .folder_entries = folder_entries,
    .probe = deepspeed_probe,
    .read_catalog = deepspeed_read_catalog,
    .verify = torch_source_verify,
    .close_source = torch_source_close,
};

const struct format_driver format_ucp = {
    .name = "ucp",
    .summary = "DeepSpeed's universal checkpoints: a file of each state of each parameter, whole",
    .abilities = FORMAT_READS | FORMAT_ITEMS_NAME_TENSORS,
    .folder_entries = ucp_entries,
    .probe = ucp_probe,
    .read_catalog = ucp_read_catalog,
    .verify = torch_source_verify,
    .close_source = torch_source_close,
};
