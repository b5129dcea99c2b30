/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_read.h"

#include <inttypes.h>
#include <stdio.h>

/* Numbers that no file of a set has. */
static reshard_status check_missing(const struct hf_read *read, reshard_error *err)
{
    const struct hf_folder *folder = &read->folder;
    char others[64] = "";
    if (!folder->missing_count)
        return RESHARD_OK;
    if (folder->missing_count > 1)
        snprintf(others, sizeof(others), ", and %" PRIu64 " more are", folder->missing_count - 1);
    if (!source_bears_loss(read->source)) {
        error_set(err, RESHARD_ERR_FORMAT, "file %" PRIu64 " of %" PRIu64 " is missing%s, and there is no index", folder->missing_first,
                  folder->numbered_total, others);
        error_hint(err, "reshard_salvage() writes what is left");
        return RESHARD_ERR_FORMAT;
    }
    catalog_warn_lost(read->source->catalog, (struct str){ 0 },
                      "file %" PRIu64 " of %" PRIu64 " is missing%s, and there is no index: what they held is lost", folder->missing_first,
                      folder->numbered_total, others);
    return RESHARD_OK;
}

static reshard_status load_listed(struct hf_read *read, reshard_error *err)
{
    reshard_status status = check_missing(read, err);
    if (status)
        return status;
    status = st_set_read_listed(read->source, read->folder.files, read->folder.file_count, &read->set, err);
    if (status)
        return status;
    if (read->folder.kind != HF_SINGLE)
        catalog_warn(read->source->catalog, false, "no index file: %" PRIu32 " files are read as one model", read->set.files.count);
    if (read->folder.incomplete.size)
        catalog_warn_lost(read->source->catalog, (struct str){ 0 },
                          "'%.*s' is one of several files, not all of which are here, and there is no index",
                          STR_ARG(read->folder.incomplete));
    return RESHARD_OK;
}

/* ---- the catalog ---- */

static reshard_status refuse_copy(struct str key, const struct st_file *owner, const struct st_file *other, const char *what,
                                  reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' is in '%.*s' and in '%.*s' with %s", STR_ARG(key), STR_ARG(owner->name),
              STR_ARG(other->name), what);
    error_object(err, "%.*s", STR_ARG(key));
    return RESHARD_ERR_FORMAT;
}

/* A name in two files is harmless only if both mean the same. Readers disagree on which one counts, so their bytes are compared now. */
static reshard_status check_copy(const struct hf_read *read, struct str key, const struct st_file *owner, const struct st_file *other,
                                 const struct st_entry *entry, reshard_error *err)
{
    const struct st_entry *owned = &owner->header.entries[name_map_find(&owner->header.names, key)];
    bool equal = owned->dtype == entry->dtype && owned->rank == entry->rank;
    for (int i = 0; i < entry->rank && equal; i++)
        equal = st_entry_shape(&owner->header, owned)[i] == st_entry_shape(&other->header, entry)[i];
    if (!equal)
        return refuse_copy(key, owner, other, "another dtype or shape", err);
    if (!st_entry_is_there(owner, owned) || !st_entry_is_there(other, entry))
        return RESHARD_OK;
    reshard_status status = st_ranges_equal(read->source->store, owner->name, owner->header.data_start + owned->begin, other->name,
                                            other->header.data_start + entry->begin, entry->end - entry->begin, &equal, err);
    if (status)
        return status;
    if (!equal)
        return refuse_copy(key, owner, other, "other bytes", err);
    catalog_warn(read->source->catalog, false, "tensor '%.*s' is also in '%.*s', with the same bytes", STR_ARG(key), STR_ARG(other->name));
    return RESHARD_OK;
}

static reshard_status hf_read_add_tensor(struct hf_read *read, const struct st_file *file, uint32_t entry_index, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    const struct st_entry *entry = &file->header.entries[entry_index];
    struct str key = name_map_at(&file->header.names, entry_index);
    struct catalog_chunk *chunk;
    uint32_t tensor;
    reshard_status status = catalog_add_tensor(catalog, key, entry->dtype, entry->rank, st_entry_shape(&file->header, entry), &tensor, err);
    if (status)
        return status;
    if (entry->rank == 0 && st_entry_is_there(file, entry)) {
        status = hf_scalar_find(read, &file, &entry, key, err);
        if (status)
            return status;
    }
    return st_file_add_chunk(read->source, tensor, file, entry, NULL, &chunk, err);
}

static reshard_status hf_read_add_file(struct hf_read *read, uint32_t file_index, uint64_t *total_bytes, reshard_error *err)
{
    const struct st_file *file = &read->set.files.items[file_index];
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < file->header.count && !status; i++) {
        struct str key = name_map_at(&file->header.names, i);
        uint32_t number = name_map_find(&read->set.index.keys, key);
        if (read->set.index.file_of[number] == file_index) {
            *total_bytes += number < read->set.mapped_count ? file->header.entries[i].end - file->header.entries[i].begin : 0;
            status = hf_read_add_tensor(read, file, i, err);
        } else {
            status = check_copy(read, key, &read->set.files.items[read->set.index.file_of[number]], file, &file->header.entries[i], err);
        }
    }
    return status;
}

static void warn_of_odd(const struct hf_read *read, uint64_t total_bytes)
{
    struct catalog *catalog = read->source->catalog;
    const struct st_index *index = &read->set.index;
    if (index->has_total_size && index->total_size != total_bytes)
        catalog_warn(catalog, false, "index: total_size is %" PRIu64 ", the tensors take %" PRIu64 " bytes", index->total_size,
                     total_bytes);
    if (read->folder.other_index.size)
        catalog_warn(catalog, false, "there is another index, '%.*s', which is left alone", STR_ARG(read->folder.other_index));
    for (size_t i = 0; i < read->folder.entry_count; i++) {
        const struct store_entry *entry = &read->folder.entries[i];
        if (!entry->is_directory && str_ends_with(entry->name, ".safetensors") &&
            name_map_find(&catalog->object_names, entry->name) == NAME_NONE)
            catalog_warn(catalog, false, "'%.*s' is no part of the model", STR_ARG(entry->name));
    }
    hf_beside_warn(read);
}

static reshard_status read_whole(struct hf_read *read, reshard_error *err)
{
    uint64_t total_bytes = 0;
    reshard_status status = read->folder.kind == HF_INDEXED ? st_set_read_indexed(read->source, read->folder.index, read->folder.directory,
                                                                                  &read->arena, &read->set, err)
                                                            : load_listed(read, err);
    if (status)
        return status;
    status = st_files_add_objects(read->source, &read->set.files, err);
    for (uint32_t i = 0; i < read->set.files.count && !status; i++)
        status = hf_read_add_file(read, i, &total_bytes, err);
    if (!status)
        warn_of_odd(read, total_bytes);
    return status;
}

static reshard_status hf_read_read_shards(struct hf_read *read, reshard_error *err)
{
    reshard_status status = st_files_read(read->source, read->folder.files, read->folder.file_count, NULL, &read->set.files, err);
    if (status)
        return status;
    status = st_files_add_objects(read->source, &read->set.files, err);
    return status ? status : hf_read_shards(read, err);
}

static reshard_status keep_state(const struct hf_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    struct hf_state *state = arena_zalloc(&catalog->arena, sizeof(*state));
    if (!state || !arena_str(&catalog->arena, read->folder.directory, &state->directory))
        return error_set_memory(err);
    if (read->folder.index.size && !arena_str(&catalog->arena, str_base_name(read->folder.index), &state->index_name))
        return error_set_memory(err);
    state->is_dcp = read->folder.kind == HF_DCP;
    read->source->driver_state = state;
    return hf_beside_left(read, state, err);
}

static reshard_status hf_read_add_facts(const struct hf_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    reshard_status status = catalog_add_fact(catalog, "layout", err, "%s",
                                             read->folder.kind == HF_DCP      ? "pieces (torch DCP HuggingFace storage)"
                                             : read->folder.kind == HF_SINGLE ? "one file"
                                                                              : "several files");
    if (!status && read->folder.index.size)
        status = catalog_add_fact(catalog, "index", err, "%.*s", STR_ARG(read->folder.index));
    return status;
}

reshard_status hf_read_catalog(struct source *source, reshard_error *err)
{
    struct hf_read read = { .source = source };
    reshard_status status = hf_folder_scan(source->store, source->name, &read.arena, &read.folder, err);
    if (status)
        goto out;
    if (read.folder.kind == HF_NOTHING) {
        status = error_set(err, RESHARD_ERR_FORMAT, "no safetensors files here");
        goto out;
    }
    status = read.folder.kind == HF_DCP ? hf_read_read_shards(&read, err) : read_whole(&read, err);
    if (status)
        goto out;
    status = hf_read_items(&read, err);
    if (status)
        goto out;
    status = hf_read_add_facts(&read, err);
    if (status)
        goto out;
    status = keep_state(&read, err);

out:
    st_set_release(&read.set);
    st_files_release(&read.sharded);
    arena_release(&read.arena);
    return status;
}
