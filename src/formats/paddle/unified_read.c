/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a Unified Checkpoint: family by family, the weights first, then what is of the checkpoint as a whole. */
#include "formats/paddle/unified_quantised.h"

#include "formats/shared/safetensors_names.h"

#include <inttypes.h>

uint16_t uc_file_number(struct str name, uint32_t index, uint32_t *count)
{
    struct str stem;
    uint64_t number, total;
    if (st_name_parse_numbered(str_base_name(name), &stem, &number, &total) && number > 0 &&
        number <= total && total < UINT16_MAX) {
        *count = total > *count ? (uint32_t)total : *count;
        index = (uint32_t)number - 1;
    }
    *count = index + 1 > *count ? index + 1 : *count;
    return catalog_writer(index);
}

reshard_status uc_add_tensor(struct uc_read *read, enum uc_family family, const struct st_file *file, uint32_t file_index,
                             uint32_t entry_index, struct str name, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    const struct st_entry *entry = &file->header.entries[entry_index];
    struct catalog_chunk *chunk;
    uint32_t tensor;
    buffer_clear(&read->key);
    buffer_printf(&read->key, "%s:", uc_stems[family]);
    if (!buffer_append_str(&read->key, name))
        return error_set_memory(err);
    reshard_status status = catalog_add_tensor(catalog, buffer_str(&read->key), entry->dtype, entry->rank,
                                               st_entry_shape(&file->header, entry), &tensor, err);
    if (!status)
        status = st_file_add_chunk(read->source, tensor, file, entry, NULL, &chunk, err);
    if (!status && chunk)
        chunk->writer = uc_file_number(file->name, file_index, &read->files[family]);
    return status;
}

/* ---- the files of a family ---- */

/* Without an index the numbers in the names say how many files there are. */
static reshard_status unified_read_check_numbered(const struct uc_members *members, reshard_error *err)
{
    for (size_t i = 0; i < members->numbered_count; i++) {
        struct str name = members->numbered[i], stem;
        uint64_t number = 0, total = 0;
        st_name_parse_numbered(str_base_name(name), &stem, &number, &total);
        if (number == i + 1 && total == members->numbered_count)
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s': there is no index, and of %" PRIu64 " files there are %zu", STR_ARG(name), total,
                  members->numbered_count);
        error_object(err, "%.*s", STR_ARG(name));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

static reshard_status unified_read_load_ranked(struct uc_read *read, const struct uc_members *members, struct st_set *set,
                                               reshard_error *err)
{
    struct str *names = arena_array(&read->arena, members->ranked_count, sizeof(*names));
    if (!names)
        return error_set_memory(err);
    for (size_t i = 0; i < members->ranked_count; i++)
        names[i] = members->ranked[i].name;
    set->index_name = (struct str){ 0 };
    return st_set_read_listed(read->source, names, members->ranked_count, set, err);
}

static reshard_status unified_read_load(struct uc_read *read, enum uc_family family, bool *is_ranked, reshard_error *err)
{
    const struct uc_members *members = &read->folder.families[family];
    struct st_set *set = &read->sets[family];
    reshard_status status = RESHARD_OK;
    *is_ranked = false;
    set->may_lack_map = members->ranked_count > 0;
    set->is_beside = uc_quantised_is_scale;
    set->is_within = uc_quantised_is_merged;
    struct str *numbered = arena_array(&read->arena, members->numbered_count, sizeof(*numbered));
    if (!numbered)
        return error_set_memory(err);
    for (size_t i = 0; i < members->numbered_count; i++)
        numbered[i] = str_base_name(members->numbered[i]);
    set->numbered = numbered;
    set->numbered_count = members->numbered_count;
    if (members->index.size)
        status = st_set_read_indexed(read->source, members->index, read->folder.directory, &read->arena, set, err);
    if (status || set->index.has_map)
        return status;
    *is_ranked = members->ranked_count > 0;
    if (*is_ranked)
        return unified_read_load_ranked(read, members, set, err);
    if (members->single.size)
        return st_set_read_listed(read->source, &members->single, 1, set, err);
    status = unified_read_check_numbered(members, err);
    return status ? status : st_set_read_listed(read->source, members->numbered, members->numbered_count, set, err);
}

/* The trainer's own loader takes whole files and believes the map, so the two must agree. */
static reshard_status unified_read_check_map(const struct uc_read *read, const struct st_set *set, reshard_error *err)
{
    uint32_t key = set->mapped_count;
    if (!set->index_name.size || !set->index.has_map || read->source->lenient)
        return RESHARD_OK;
    while (key < set->index.keys.count && uc_quantised_is_scale(set, name_map_at(&set->index.keys, key)))
        key++;
    if (key == set->index.keys.count)
        return RESHARD_OK;
    struct str file = set->files.items[set->index.file_of[key]].name;
    error_set(err, RESHARD_ERR_FORMAT, "'%.*s': index: the tensor '%.*s' of '%.*s' is not in weight_map", STR_ARG(set->index_name),
              STR_ARG(name_map_at(&set->index.keys, key)), STR_ARG(file));
    error_object(err, "%.*s", STR_ARG(file));
    error_hint(err, "reshard_open_options.lenient reads it all the same");
    return RESHARD_ERR_FORMAT;
}

static void unified_read_check_size(const struct uc_read *read, const struct st_set *set)
{
    uint64_t bytes = 0;
    if (!set->index.has_total_size || read->renumbered || st_index_find(&set->index, "ckpt_quant_stage")) /* of before it */
        return;
    for (uint32_t k = 0; k < set->mapped_count; k++) {
        if (set->index.file_of[k] == ST_NO_FILE)
            continue;
        const struct st_header *header = &set->files.items[set->index.file_of[k]].header;
        const struct st_entry *entry = &header->entries[name_map_find(&header->names, name_map_at(&set->index.keys, k))];
        bytes += entry->end - entry->begin;
    }
    if (bytes != set->index.total_size)
        catalog_warn(read->source->catalog, false, "'%.*s': total_size is %" PRIu64 ", the tensors take %" PRIu64 " bytes",
                     STR_ARG(set->index_name), set->index.total_size, bytes);
}

static reshard_status unified_read_family(struct uc_read *read, enum uc_family family, reshard_error *err)
{
    struct st_set *set = &read->sets[family];
    bool is_ranked;
    if (!uc_family_is_there(&read->folder, family))
        return RESHARD_OK;
    reshard_status status = unified_read_load(read, family, &is_ranked, err);
    if (status)
        return status;
    status = unified_read_check_map(read, set, err);
    if (status)
        return status;
    status = st_files_add_objects(read->source, &set->files, err);
    if (status)
        return status;
    status = is_ranked ? uc_add_ranked(read, family, err) : uc_add_whole(read, family, err);
    if (status)
        return status;
    unified_read_check_size(read, set);
    if (set->files.count > read->source->catalog->ranks)
        read->source->catalog->ranks = set->files.count;
    return catalog_add_fact(read->source->catalog, uc_stems[family], err, "%" PRIu32 " file%s%s", set->files.count,
                            set->files.count == 1 ? "" : "s", is_ranked ? ", not merged (ignore_merge_optimizer)" : "");
}

/* ---- the whole ---- */

/* In skip_save_model_weight mode the weights under the model's names are the master weights: float32 where the optimizer has states. */
static bool unified_read_is_skip(const struct uc_read *read)
{
    const struct st_set *model = &read->sets[UC_MODEL], *optimizer = &read->sets[UC_OPTIMIZER];
    const struct value *flag = st_index_find(&optimizer->index, "master_weights");
    if (uc_family_is_there(&read->folder, UC_MASTERS) || !model->files.count || !flag || flag->kind != VALUE_BOOL || !flag->boolean)
        return false;
    for (uint32_t f = 0; f < model->files.count; f++) {
        const struct st_header *header = &model->files.items[f].header;
        for (uint32_t i = 0; i < header->count; i++) {
            if (header->entries[i].dtype != DTYPE_F32)
                return false;
        }
    }
    return true;
}

static void unified_read_note_quantised(struct source *source, struct str stage)
{
    source->has_other_view = uc_stage_is_known(stage);
    catalog_warn(source->catalog, false, "optimizer states are quantised (ckpt_quant_stage %.*s): they are listed as they are stored, with "
                                         "their scales beside them (@scales, @min_scales, @max_scales)%s", STR_ARG(stage),
                 source->has_other_view ? "; other names and diff take their float32 values" : "");
}

static reshard_status unified_read_add_mode(struct uc_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    bool is_skip = unified_read_is_skip(read);
    const struct value *stage = st_index_find(&read->sets[UC_OPTIMIZER].index, "ckpt_quant_stage");
    reshard_status status = RESHARD_OK;
    if (is_skip) {
        status = catalog_add_fact(catalog, "mode", err, "skip_save_model_weight");
        catalog_warn(catalog, false, "the weights are not stored: what has their names are the float32 master weights, from which the "
                                     "trainer casts them");
    } else if (uc_family_is_there(&read->folder, UC_OPTIMIZER) && !uc_family_is_there(&read->folder, UC_MASTERS)) {
        status = catalog_add_fact(catalog, "mode", err, "no master weights: the trainer makes them of the weights");
    } else if (uc_family_is_there(&read->folder, UC_MASTERS) && !uc_family_is_there(&read->folder, UC_MODEL) &&
               !uc_family_is_there(&read->folder, UC_PEFT)) {
        catalog_warn(catalog, false, "there are no weights, but master weights, from which the trainer casts them");
    }
    if (!status && stage && stage->kind == VALUE_STR && !str_is(stage->text, "O0"))
        unified_read_note_quantised(read->source, stage->text);
    return status;
}

static reshard_status unified_read_add_side_files(struct uc_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < read->folder.entry_count && !status; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        struct str base = str_base_name(entry->name);
        if (!entry->is_directory && !entry->leads_out && str_ends_with(base, ".safetensors") &&
            name_map_find(&catalog->object_names, entry->name) == NAME_NONE)
            catalog_warn(catalog, false, "'%.*s' is no part of the checkpoint", STR_ARG(entry->name));
        if (!entry->is_directory && !entry->leads_out && uc_is_side_file(base))
            status = catalog_add_file(catalog, base, entry->name, entry->bytes, err);
    }
    return status;
}

static reshard_status unified_read_keep_state(struct uc_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    struct uc_state *state = arena_zalloc(&catalog->arena, sizeof(*state));
    if (!state || !arena_str(&catalog->arena, read->folder.directory, &state->directory))
        return error_set_memory(err);
    for (int f = 0; f < UC_FAMILIES; f++) {
        state->has[f] = uc_family_is_there(&read->folder, f);
        state->is_indexed[f] = read->folder.families[f].index.size > 0;
        state->files[f] = read->files[f];
    }
    const struct st_index *index = &read->sets[UC_OPTIMIZER].index;
    const struct value *times = st_index_find(index, "quant_ckpt_resume_times"), *flag = st_index_find(index, "master_weights"),
                       *stage = st_index_find(index, "ckpt_quant_stage");
    state->resume_times = times && times->kind == VALUE_INT ? times->integer : 0;
    state->had_masters = flag && flag->kind == VALUE_BOOL && flag->boolean;
    if (stage && stage->kind == VALUE_STR && !arena_str(&catalog->arena, stage->text, &state->quant_stage))
        return error_set_memory(err);
    read->source->driver_state = state;
    return RESHARD_OK;
}

reshard_status uc_read_catalog(struct source *source, reshard_error *err)
{
    struct uc_read read = { .source = source };
    uint32_t families = 0;
    reshard_status status = uc_folder_scan(source->store, source->name, &read.arena, &read.folder, err);
    for (int f = 0; f < UC_FAMILIES && !status; f++) {
        families += uc_family_is_there(&read.folder, f);
        status = unified_read_family(&read, f, err);
    }
    if (!status && !families)
        status = error_set(err, RESHARD_ERR_FORMAT, "no files of a Unified Checkpoint here, such as model.safetensors.index.json");
    if (!status)
        status = unified_read_add_mode(&read, err);
    if (!status)
        status = unified_read_add_side_files(&read, err);
    if (!status)
        status = unified_read_keep_state(&read, err);
    for (int f = 0; f < UC_FAMILIES; f++)
        st_set_release(&read.sets[f]);
    buffer_release(&read.key);
    arena_release(&read.arena);
    return status;
}
