/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/gguf/gguf_folder.h"

#include "formats/shared/safetensors_names.h"
#include "formats/source_probe.h"

#include <inttypes.h>
#include <stdio.h>

/* What a file's name says. */
struct gguf_name {
    struct str path, base, stem;
    uint64_t number, total; /* total 0: it is no part */
};

static struct gguf_name gguf_name_of(struct str path)
{
    struct gguf_name name = { .path = path, .base = str_base_name(path) };
    name.stem = name.base;
    if (!name_parse_numbered(name.base, GGUF_SUFFIX, &name.stem, &name.number, &name.total))
        name.total = 0;
    return name;
}

static bool is_of_model(const struct gguf_name *name, const struct gguf_name *model)
{
    return str_equal(name->stem, model->stem) && name->total == model->total;
}

/* Encoders of images and sounds lie beside the language model that they belong to, under such names. */
static bool is_encoder(const struct gguf_name *name)
{
    return str_starts_with(name->base, "mmproj");
}

static reshard_status gguf_note_missing(struct gguf_folder *folder, const struct gguf_name *model, uint64_t number, uint64_t count,
                                        struct arena *arena, reshard_error *err)
{
    if (!count)
        return RESHARD_OK;
    folder->missing_count += count;
    if (folder->missing)
        return RESHARD_OK;
    char end[64];
    snprintf(end, sizeof(end), "-%05" PRIu64 "-of-%05" PRIu64 GGUF_SUFFIX, number, model->total);
    folder->missing = ARENA_JOIN(arena, str_folder(model->path), model->stem, str_of(end)).data;
    return folder->missing ? RESHARD_OK : error_set_memory(err);
}

/* Takes the files of the model out of the sorted entries. */
static reshard_status take_parts(struct gguf_folder *folder, const struct gguf_name *model, const struct store_entry *entries, size_t count,
                                 struct arena *arena, reshard_error *err)
{
    uint64_t expected = 1;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < count && !status; i++) {
        struct gguf_name name = gguf_name_of(entries[i].name);
        if (entries[i].is_directory || !str_ends_with(name.base, GGUF_SUFFIX) || !is_of_model(&name, model))
            continue;
        if (name.number < expected || name.number > name.total)
            return error_set(err, RESHARD_ERR_FORMAT, "'%.*s': no part of %" PRIu64 " has this number", STR_ARG(name.path), name.total);
        status = gguf_note_missing(folder, model, expected, name.number - expected, arena, err);
        folder->files[folder->file_count++] = name.path.data;
        expected = name.number + 1;
    }
    return status ? status : gguf_note_missing(folder, model, expected, model->total + 1 - expected, arena, err);
}

static reshard_status gguf_folder_list(struct store *store, const char *directory, struct arena *arena, struct store_entry **entries,
                                       size_t *count, struct gguf_folder *folder, reshard_error *err)
{
    reshard_status status = store_list(store, directory, arena, entries, count, err);
    if (status)
        return status;
    folder->files = arena_array(arena, *count + 1, sizeof(*folder->files));
    return folder->files ? RESHARD_OK : error_set_memory(err);
}

/* The model of a folder, which one of its files is of. */
static reshard_status choose_model(struct gguf_folder *folder, const struct store_entry *entries, size_t count,
                                   struct gguf_name *model, reshard_error *err)
{
    *model = (struct gguf_name){ 0 };
    for (size_t i = 0; i < count; i++) {
        struct gguf_name name = gguf_name_of(entries[i].name);
        if (entries[i].is_directory || !str_ends_with(name.base, GGUF_SUFFIX) || (model->path.data && is_of_model(&name, model)))
            continue;
        if (!model->path.data || (is_encoder(model) && !is_encoder(&name))) {
            folder->left_alone = model->path.data;
            *model = name;
        } else if (is_encoder(&name) && !is_encoder(model)) {
            folder->left_alone = name.path.data;
        } else {
            error_set(err, RESHARD_ERR_UNSUPPORTED, "several models, such as '%.*s' and '%.*s': which is meant?", STR_ARG(model->path),
                      STR_ARG(name.path));
            error_hint(err, "open one of them by its own path");
            return RESHARD_ERR_UNSUPPORTED;
        }
    }
    return RESHARD_OK;
}

static reshard_status scan_directory(struct store *store, const char *name, struct arena *arena, struct gguf_folder *folder,
                                     reshard_error *err)
{
    size_t count;
    struct store_entry *entries;
    struct gguf_name model;
    reshard_status status = gguf_folder_list(store, name, arena, &entries, &count, folder, err);
    if (!status)
        status = choose_model(folder, entries, count, &model, err);
    if (status || !model.path.data)
        return status;
    folder->total = model.total;
    if (model.total)
        return take_parts(folder, &model, entries, count, arena, err);
    folder->files[folder->file_count++] = model.path.data;
    return RESHARD_OK;
}

static reshard_status scan_file(struct store *store, const char *name, struct arena *arena, struct gguf_folder *folder, reshard_error *err)
{
    const struct str above = str_without_slashes(str_folder(str_of(name)));
    size_t count;
    struct gguf_name model = gguf_name_of(str_of(name));
    struct store_entry *entries;
    char *directory = arena_copy(arena, above.data, above.size), *kept = arena_copy(arena, name, strlen(name));
    if (!directory || !kept)
        return error_set_memory(err);
    folder->total = model.total;
    if (model.total) {
        reshard_status status = gguf_folder_list(store, directory, arena, &entries, &count, folder, err);
        return status ? status : take_parts(folder, &model, entries, count, arena, err);
    }
    folder->files = arena_array(arena, 1, sizeof(*folder->files));
    if (!folder->files)
        return error_set_memory(err);
    folder->files[folder->file_count++] = kept;
    return RESHARD_OK;
}

reshard_status gguf_folder_scan(struct store *store, const char *name, struct arena *arena, struct gguf_folder *out, reshard_error *err)
{
    *out = (struct gguf_folder){ 0 };
    return store_is_directory(store, name) ? scan_directory(store, name, arena, out, err) : scan_file(store, name, arena, out, err);
}
