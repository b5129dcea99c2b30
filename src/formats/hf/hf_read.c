/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/hf/hf_read.h"

#include <inttypes.h>
#include <stdlib.h>

#define COMPARE_BYTES ((size_t)1 << 20)

/* ---- files ---- */

void hf_files_release(struct hf_files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        st_header_release(&files->items[i].header);
    free(files->items);
    *files = (struct hf_files){ 0 };
}

static reshard_status read_file(struct source *source, struct hf_file *file, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, file->name.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = st_header_read(&reader, &source->limits, source->lenient, &file->header, err);
    file->bytes = reader.size;
    store_object_close(object);
    if (status) {
        error_prefix(err, "shard '%.*s'", STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
    }
    return status;
}

reshard_status hf_files_read(struct source *source, const struct str *names, size_t count, struct hf_files *out, reshard_error *err)
{
    struct hf_files files = { 0 };
    reshard_status status = RESHARD_OK;
    if (count > source->limits.objects || count >= UINT32_MAX)
        return error_set_limit(err, "objects", count, source->limits.objects);
    files.items = calloc(count + 1, sizeof(*files.items));
    if (!files.items)
        return error_set_memory(err);
    while (files.count < count && !status) {
        struct hf_file *file = &files.items[files.count];
        file->name = names[files.count++];
        status = read_file(source, file, err);
    }
    if (status)
        hf_files_release(&files);
    else
        *out = files;
    return status;
}

reshard_status hf_files_add_objects(struct source *source, struct hf_files *files, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < files->count && !status; i++) {
        struct hf_file *file = &files->items[i];
        status = catalog_add_object(source->catalog, file->name, file->bytes, &file->object, err);
        if (file->header.starts_with_space)
            catalog_warn(source->catalog, false, "'%.*s': white space before the header's object, which the format does not allow",
                         STR_ARG(file->name));
    }
    return status;
}

static reshard_status hf_read_compare_objects(const struct store_object *a, uint64_t a_offset, const struct store_object *b,
                                              uint64_t b_offset, uint64_t bytes, bool *equal, reshard_error *err)
{
    uint8_t *buffers = malloc(2 * COMPARE_BYTES);
    reshard_status status = buffers ? RESHARD_OK : error_set_memory(err);
    *equal = true;
    for (uint64_t done = 0; done < bytes && *equal && !status;) {
        size_t part = bytes - done < COMPARE_BYTES ? (size_t)(bytes - done) : COMPARE_BYTES;
        status = store_read_at(a, a_offset + done, buffers, part, err);
        if (!status)
            status = store_read_at(b, b_offset + done, buffers + COMPARE_BYTES, part, err);
        if (!status)
            *equal = memcmp(buffers, buffers + COMPARE_BYTES, part) == 0;
        done += part;
    }
    free(buffers);
    return status;
}

reshard_status hf_ranges_equal(struct store *store, struct str a, uint64_t a_offset, struct str b, uint64_t b_offset, uint64_t bytes,
                               bool *equal, reshard_error *err)
{
    struct store_object *a_object = NULL, *b_object = NULL;
    reshard_status status = store_open_object(store, a.data, &a_object, err);
    if (!status)
        status = store_open_object(store, b.data, &b_object, err);
    if (!status)
        status = hf_read_compare_objects(a_object, a_offset, b_object, b_offset, bytes, equal, err);
    store_object_close(a_object);
    store_object_close(b_object);
    return status;
}

/* ---- the index ---- */

static int hf_read_name_order(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    return str_compare(*x, *y);
}

/* The index's files in the order of their names, with the folder's directory before them; file_of is renumbered. */
static reshard_status sort_index_files(struct hf_read *read, struct str **out, reshard_error *err)
{
    struct hf_index *index = &read->index;
    uint32_t count = index->files.count;
    struct str *names = arena_array(&read->arena, (size_t)count + 1, sizeof(*names));
    uint32_t *new_number = arena_array(&read->arena, (size_t)count + 1, sizeof(*new_number));
    if (!names || !new_number)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        names[i] = name_map_at(&index->files, i);
    if (count)
        qsort(names, count, sizeof(*names), hf_read_name_order);
    for (uint32_t i = 0; i < count; i++)
        new_number[name_map_find(&index->files, names[i])] = i;
    for (uint32_t i = 0; i < index->keys.count; i++)
        index->file_of[i] = new_number[index->file_of[i]];
    for (uint32_t i = 0; i < count; i++) {
        char *path = arena_printf(&read->arena, "%s%s", read->folder.directory.data, names[i].data);
        if (!path)
            return error_set_memory(err);
        names[i] = str_of(path);
    }
    *out = names;
    return RESHARD_OK;
}

static reshard_status check_files_exist(const struct hf_read *read, const struct str *names, reshard_error *err)
{
    for (uint32_t i = 0; i < read->index.files.count; i++) {
        bool is_directory = false;
        uint64_t bytes;
        if (store_exists(read->source->store, names[i].data, &is_directory, &bytes) && !is_directory)
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s' names the file '%.*s', which is not there", STR_ARG(read->folder.index),
                  STR_ARG(names[i]));
        error_object(err, "%.*s", STR_ARG(names[i]));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

static reshard_status read_index_text(struct hf_read *read, reshard_error *err)
{
    struct buffer text = { 0 };
    struct source *source = read->source;
    reshard_status status = store_read_all(source->store, read->folder.index.data, NAMED_LIMIT(&source->limits, json_bytes), &text, err);
    if (!status)
        status = hf_index_parse(buffer_str(&text), &source->limits, source->lenient, &read->index, err);
    buffer_release(&text);
    if (status) {
        st_error_place(err, "index");
        error_prefix(err, "'%.*s'", STR_ARG(read->folder.index));
        error_object(err, "%.*s", STR_ARG(read->folder.index));
    }
    return status;
}

/* Every mapped name must be in its file: what is promised and absent is a damaged checkpoint, not a smaller one. */
static reshard_status check_mapped(const struct hf_read *read, reshard_error *err)
{
    for (uint32_t i = 0; i < read->index.keys.count; i++) {
        struct str key = name_map_at(&read->index.keys, i);
        const struct hf_file *file = &read->files.items[read->index.file_of[i]];
        if (name_map_find(&file->header.names, key) != NAME_NONE)
            continue;
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s': index: tensor '%.*s' is mapped to '%.*s', which does not hold it",
                  STR_ARG(read->folder.index), STR_ARG(key), STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

/* Names that no map has are read too, as the hub's loader does, which takes whole files; the first file that has one owns it. */
static reshard_status add_unmapped(struct hf_read *read, bool has_index, reshard_error *err)
{
    read->mapped_count = read->index.keys.count;
    for (uint32_t f = 0; f < read->files.count; f++) {
        const struct hf_file *file = &read->files.items[f];
        for (uint32_t i = 0; i < file->header.count; i++) {
            struct str key = name_map_at(&file->header.names, i);
            bool was_new;
            if (!hf_index_add(&read->index, key, f, &was_new))
                return error_set_memory(err);
            if (was_new && has_index)
                catalog_warn(read->source->catalog, false, "tensor '%.*s' of '%.*s' is not in the index", STR_ARG(key),
                             STR_ARG(file->name));
        }
    }
    return RESHARD_OK;
}

static reshard_status load_indexed(struct hf_read *read, reshard_error *err)
{
    struct str *names;
    reshard_status status = read_index_text(read, err);
    if (status)
        return status;
    status = sort_index_files(read, &names, err);
    if (status)
        return status;
    status = check_files_exist(read, names, err);
    if (status)
        return status;
    status = hf_files_read(read->source, names, read->index.files.count, &read->files, err);
    if (status)
        return status;
    status = check_mapped(read, err);
    return status ? status : add_unmapped(read, true, err);
}

static reshard_status load_listed(struct hf_read *read, reshard_error *err)
{
    reshard_status status = hf_files_read(read->source, read->folder.files, read->folder.file_count, &read->files, err);
    if (status)
        return status;
    status = add_unmapped(read, false, err);
    if (status)
        return status;
    if (read->folder.kind != HF_SINGLE)
        catalog_warn(read->source->catalog, false, "no index file: %" PRIu32 " files are read as one model", read->files.count);
    if (read->folder.incomplete.size)
        catalog_warn(read->source->catalog, true, "'%.*s' is one of several files, not all of which are here, and there is no index",
                     STR_ARG(read->folder.incomplete));
    return RESHARD_OK;
}

/* ---- the catalog ---- */

static reshard_status refuse_copy(struct str key, const struct hf_file *owner, const struct hf_file *other, const char *what,
                                  reshard_error *err)
{
    error_set(err, RESHARD_ERR_FORMAT, "tensor '%.*s' is in '%.*s' and in '%.*s' with %s", STR_ARG(key), STR_ARG(owner->name),
              STR_ARG(other->name), what);
    error_object(err, "%.*s", STR_ARG(key));
    return RESHARD_ERR_FORMAT;
}

/* A name in two files is harmless only if both mean the same. Readers disagree on which one counts, so their bytes are compared now. */
static reshard_status check_copy(const struct hf_read *read, struct str key, const struct hf_file *owner, const struct hf_file *other,
                                 const struct st_entry *entry, reshard_error *err)
{
    const struct st_entry *owned = &owner->header.entries[name_map_find(&owner->header.names, key)];
    bool equal = owned->dtype == entry->dtype && owned->rank == entry->rank;
    for (int i = 0; i < entry->rank && equal; i++)
        equal = st_entry_shape(&owner->header, owned)[i] == st_entry_shape(&other->header, entry)[i];
    if (!equal)
        return refuse_copy(key, owner, other, "another dtype or shape", err);
    reshard_status status = hf_ranges_equal(read->source->store, owner->name, owner->header.data_start + owned->begin, other->name,
                                            other->header.data_start + entry->begin, entry->end - entry->begin, &equal, err);
    if (status)
        return status;
    if (!equal)
        return refuse_copy(key, owner, other, "other bytes", err);
    catalog_warn(read->source->catalog, false, "tensor '%.*s' is also in '%.*s', with the same bytes", STR_ARG(key), STR_ARG(other->name));
    return RESHARD_OK;
}

static reshard_status hf_read_add_tensor(struct hf_read *read, const struct hf_file *file, uint32_t entry_index, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    const struct st_entry *entry = &file->header.entries[entry_index];
    struct str key = name_map_at(&file->header.names, entry_index);
    uint32_t tensor;
    reshard_status status = catalog_add_tensor(catalog, key, entry->dtype, entry->rank, st_entry_shape(&file->header, entry), &tensor, err);
    if (status)
        return status;
    if (entry->rank == 0) {
        status = hf_scalar_find(read, &file, &entry, key, err);
        if (status)
            return status;
    }
    return catalog_add_chunk(catalog, tensor, NULL, NULL, file->object, file->header.data_start + entry->begin, entry->end - entry->begin,
                             NULL, err);
}

static reshard_status hf_read_add_file(struct hf_read *read, uint32_t file_index, uint64_t *total_bytes, reshard_error *err)
{
    const struct hf_file *file = &read->files.items[file_index];
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < file->header.count && !status; i++) {
        struct str key = name_map_at(&file->header.names, i);
        uint32_t number = name_map_find(&read->index.keys, key);
        if (read->index.file_of[number] == file_index) {
            *total_bytes += number < read->mapped_count ? file->header.entries[i].end - file->header.entries[i].begin : 0;
            status = hf_read_add_tensor(read, file, i, err);
        } else {
            status = check_copy(read, key, &read->files.items[read->index.file_of[number]], file, &file->header.entries[i], err);
        }
    }
    return status;
}

static void warn_of_odd(const struct hf_read *read, uint64_t total_bytes)
{
    struct catalog *catalog = read->source->catalog;
    const struct hf_index *index = &read->index;
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
}

static reshard_status read_whole(struct hf_read *read, reshard_error *err)
{
    uint64_t total_bytes = 0;
    reshard_status status = read->folder.kind == HF_INDEXED ? load_indexed(read, err) : load_listed(read, err);
    if (status)
        return status;
    status = hf_files_add_objects(read->source, &read->files, err);
    for (uint32_t i = 0; i < read->files.count && !status; i++)
        status = hf_read_add_file(read, i, &total_bytes, err);
    if (!status)
        warn_of_odd(read, total_bytes);
    return status;
}

static reshard_status hf_read_read_shards(struct hf_read *read, reshard_error *err)
{
    reshard_status status = hf_files_read(read->source, read->folder.files, read->folder.file_count, &read->files, err);
    if (status)
        return status;
    status = hf_files_add_objects(read->source, &read->files, err);
    return status ? status : hf_read_shards(read, err);
}

static reshard_status keep_state(struct hf_read *read, reshard_error *err)
{
    struct catalog *catalog = read->source->catalog;
    struct hf_state *state = arena_zalloc(&catalog->arena, sizeof(*state));
    if (!state || !arena_str(&catalog->arena, read->folder.directory, &state->directory))
        return error_set_memory(err);
    if (read->folder.index.size && !arena_str(&catalog->arena, hf_base_name(&read->folder, read->folder.index), &state->index_name))
        return error_set_memory(err);
    state->is_dcp = read->folder.kind == HF_DCP;
    read->source->driver_state = state;
    return RESHARD_OK;
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
    hf_files_release(&read.files);
    hf_files_release(&read.sharded);
    hf_index_release(&read.index);
    arena_release(&read.arena);
    return status;
}
