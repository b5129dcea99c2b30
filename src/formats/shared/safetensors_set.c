/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/safetensors_set.h"

#include "base/array.h"
#include "formats/shared/safetensors_names.h"

#include <inttypes.h>
#include <stdlib.h>

#define COMPARE_BYTES ((size_t)1 << 20)

/* ---- files ---- */

void st_files_release(struct st_files *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        st_header_release(&files->items[i].header);
    free(files->items);
    *files = (struct st_files){ 0 };
}

/* How headers are read: strictly, but where damage is shown a file may end before its tensors do. */
static enum st_care header_care(const struct source *source)
{
    if (source->is_salvage)
        return ST_CUT_OFF;
    if (source->lenient)
        return ST_LENIENT;
    return source->shows_damage ? ST_STRICT_CUT_OFF : ST_STRICT;
}

static reshard_status safetensors_set_read_file(struct source *source, struct st_file *file, reshard_error *err)
{
    struct store_object *object = NULL;
    reshard_status status = store_open_object(source->store, file->name.data, &object, err);
    if (status && !store_is_file(source->store, file->name.data))
        status = error_set(err, RESHARD_ERR_FORMAT, "it is not there");
    if (!status) {
        struct reader reader = store_object_reader(object);
        status = st_header_read(&reader, &source->limits, header_care(source), &file->header, err);
        file->bytes = reader.size;
        store_object_close(object);
    }
    if (status) {
        error_prefix(err, "shard '%.*s'", STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
    }
    return status;
}

/* Reads the next file. What is no safetensors file at all is lost where that is borne; the first such reason is kept. */
static reshard_status read_next(struct source *source, struct str name, bool has_index, struct st_files *files,
                                reshard_error *first_lost, reshard_error *err)
{
    struct st_file *file = &files->items[files->count];
    reshard_error seen = { 0 };
    file->name = name;
    reshard_status status = safetensors_set_read_file(source, file, &seen);
    if (!status) {
        files->count++;
    } else if (status == RESHARD_ERR_FORMAT && source_bears_loss(source)) {
        if (has_index && store_is_file(source->store, name.data)) /* the index tells what was in it, and what is not there is told */
            catalog_warn(source->catalog, true, "%s", seen.message);
        else if (!has_index)
            catalog_warn_lost(source->catalog, (struct str){ 0 }, "%s", seen.message);
        *first_lost = first_lost->message[0] ? *first_lost : seen;
        return RESHARD_OK;
    } else if (err) {
        *err = seen;
    }
    return status;
}

reshard_status st_files_read(struct source *source, const struct str *names, size_t count, uint32_t *numbers, struct st_files *out,
                             reshard_error *err)
{
    struct st_files files = { 0 };
    reshard_error first_lost = { 0 };
    reshard_status status = RESHARD_OK;
    if (count > source->limits.objects || count >= UINT32_MAX)
        return error_set_limit(err, "objects", count, source->limits.objects);
    files.items = array_zeroed(count, sizeof(*files.items));
    if (!files.items)
        return error_set_memory(err);
    for (size_t i = 0; i < count && !status; i++) {
        uint32_t before = files.count;
        status = read_next(source, names[i], numbers != NULL, &files, &first_lost, err);
        if (numbers)
            numbers[i] = files.count > before ? before : ST_NO_FILE;
    }
    if (!status && count && !files.count) { /* nothing is left that could be shown */
        status = RESHARD_ERR_FORMAT;
        if (err)
            *err = first_lost;
    }
    if (status)
        st_files_release(&files);
    else
        *out = files;
    return status;
}

reshard_status st_files_add_objects(struct source *source, struct st_files *files, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < files->count && !status; i++) {
        struct st_file *file = &files->items[i];
        status = catalog_add_object(source->catalog, file->name, file->bytes, &file->object, err);
        if (file->header.starts_with_space)
            catalog_warn(source->catalog, false, "'%.*s': white space before the header's object, which the format does not allow",
                         STR_ARG(file->name));
        if (!source->is_salvage && st_file_end(file) > file->bytes)
            catalog_warn(source->catalog, true, "'%.*s' is cut off: it ends at %" PRIu64 ", its tensors at %" PRIu64, STR_ARG(file->name),
                         file->bytes, st_file_end(file));
    }
    return status;
}

uint64_t st_file_end(const struct st_file *file)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < file->header.count; i++)
        end = file->header.entries[i].end > end ? file->header.entries[i].end : end;
    return file->header.data_start + end;
}

reshard_status st_file_add_chunk(struct source *source, uint32_t tensor, const struct st_file *file, const struct st_entry *entry,
                                 const int64_t *start, struct catalog_chunk **out, reshard_error *err)
{
    uint64_t begin = file->header.data_start + entry->begin;
    *out = NULL;
    if (!source->is_salvage && !st_entry_is_there(file, entry))
        return RESHARD_OK;
    return catalog_add_chunk(source->catalog, tensor, start, start ? st_entry_shape(&file->header, entry) : NULL, file->object, begin,
                             entry->end - entry->begin, out, err);
}

static reshard_status safetensors_set_compare(const struct store_object *a, uint64_t a_offset, const struct store_object *b,
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

reshard_status st_ranges_equal(struct store *store, struct str a, uint64_t a_offset, struct str b, uint64_t b_offset, uint64_t bytes,
                               bool *equal, reshard_error *err)
{
    struct store_object *a_object = NULL, *b_object = NULL;
    reshard_status status = store_open_object(store, a.data, &a_object, err);
    if (!status)
        status = store_open_object(store, b.data, &b_object, err);
    if (!status)
        status = safetensors_set_compare(a_object, a_offset, b_object, b_offset, bytes, equal, err);
    store_object_close(a_object);
    store_object_close(b_object);
    return status;
}

/* ---- the index ---- */

static int safetensors_set_name_order(const void *a, const void *b)
{
    const struct str *x = a, *y = b;
    return str_compare(*x, *y);
}

/* Files that the map does not name, though they are numbered as those that it names. */
static reshard_status add_numbered(struct st_set *set, reshard_error *err)
{
    struct str stem, own;
    uint64_t number, total, own_total;
    if (!set->index.files.count || !st_name_parse_numbered(name_map_at(&set->index.files, 0), &stem, &number, &total))
        return RESHARD_OK;
    for (size_t i = 0; i < set->numbered_count; i++) {
        struct str name = set->numbered[i];
        if (st_name_parse_numbered(name, &own, &number, &own_total) && own_total == total && str_equal(own, stem) &&
            name_map_intern(&set->index.files, name, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* The index's files in the order of their names, with the folder's directory before them; file_of is renumbered. */
static reshard_status sort_index_files(struct st_set *set, struct str directory, struct arena *arena, struct str **out,
                                       reshard_error *err)
{
    struct st_index *index = &set->index;
    uint32_t count = index->files.count;
    struct str *names = arena_array(arena, count, sizeof(*names));
    uint32_t *new_number = arena_array(arena, count, sizeof(*new_number));
    if (!names || !new_number)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++)
        names[i] = name_map_at(&index->files, i);
    if (count)
        qsort(names, count, sizeof(*names), safetensors_set_name_order);
    for (uint32_t i = 0; i < count; i++)
        new_number[name_map_find(&index->files, names[i])] = i;
    for (uint32_t i = 0; i < index->keys.count; i++)
        index->file_of[i] = new_number[index->file_of[i]];
    for (uint32_t i = 0; i < count; i++) {
        char *path = arena_printf(arena, "%s%s", directory.data, names[i].data);
        if (!path)
            return error_set_memory(err);
        names[i] = str_of(path);
    }
    *out = names;
    return RESHARD_OK;
}

static reshard_status check_files_exist(const struct source *source, const struct st_set *set, const struct str *names,
                                        reshard_error *err)
{
    for (uint32_t i = 0; i < set->index.files.count; i++) {
        if (store_is_file(source->store, names[i].data))
            continue;
        if (source_bears_loss(source)) {
            catalog_warn(source->catalog, true, "'%.*s' names the file '%.*s', which is not there", STR_ARG(set->index_name),
                         STR_ARG(names[i]));
            continue;
        }
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s' names the file '%.*s', which is not there", STR_ARG(set->index_name),
                  STR_ARG(names[i]));
        error_object(err, "%.*s", STR_ARG(names[i]));
        error_hint(err, "reshard_salvage() writes what is left");
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

static reshard_status read_index_text(struct source *source, struct st_set *set, reshard_error *err)
{
    struct buffer text = { 0 };
    reshard_status status = store_read_all(source->store, set->index_name.data, NAMED_LIMIT(&source->limits, json_bytes), &text, err);
    if (!status)
        status = st_index_parse(buffer_str(&text), &source->limits, source->lenient, &set->index, err);
    if (!status && !set->index.has_map && !set->may_lack_map)
        status = error_set(err, RESHARD_ERR_FORMAT, "the index has no weight_map");
    buffer_release(&text);
    if (status) {
        st_error_place(err, "index");
        error_prefix(err, "'%.*s'", STR_ARG(set->index_name));
        error_object(err, "%.*s", STR_ARG(set->index_name));
    }
    return status;
}

static reshard_status is_within_another(const struct st_set *set, struct str key, bool *out, reshard_error *err)
{
    *out = false;
    return set->is_within ? set->is_within(set, key, out, err) : RESHARD_OK;
}

/* Every mapped name must be in its file: what is promised and absent is a damaged checkpoint, not a smaller one. */
static reshard_status check_mapped(struct source *source, struct st_set *set, reshard_error *err)
{
    for (uint32_t i = 0; i < set->index.keys.count; i++) {
        struct str key = name_map_at(&set->index.keys, i);
        const struct st_file *file = set->index.file_of[i] == ST_NO_FILE ? NULL : &set->files.items[set->index.file_of[i]];
        if (!file || name_map_find(&file->header.names, key) != NAME_NONE)
            continue;
        bool is_within;
        reshard_status status = is_within_another(set, key, &is_within, err);
        if (status)
            return status;
        if (is_within) {
            set->index.file_of[i] = ST_NO_FILE;
            continue;
        }
        if (source_bears_loss(source)) {
            catalog_warn(source->catalog, true, "'%.*s': index: tensor '%.*s' is mapped to '%.*s', which does not hold it",
                         STR_ARG(set->index_name), STR_ARG(key), STR_ARG(file->name));
            set->index.file_of[i] = ST_NO_FILE;
            continue;
        }
        error_set(err, RESHARD_ERR_FORMAT, "'%.*s': index: tensor '%.*s' is mapped to '%.*s', which does not hold it",
                  STR_ARG(set->index_name), STR_ARG(key), STR_ARG(file->name));
        error_object(err, "%.*s", STR_ARG(file->name));
        return RESHARD_ERR_FORMAT;
    }
    return RESHARD_OK;
}

/* Names that no map has are read too, as the hub's loader does, which takes whole files; the first file that has one owns it. */
static reshard_status add_unmapped(struct source *source, struct st_set *set, reshard_error *err)
{
    set->mapped_count = set->index.keys.count;
    for (uint32_t f = 0; f < set->files.count; f++) {
        const struct st_file *file = &set->files.items[f];
        for (uint32_t i = 0; i < file->header.count; i++) {
            struct str key = name_map_at(&file->header.names, i);
            bool was_new;
            if (!st_index_add(&set->index, key, f, &was_new))
                return error_set_memory(err);
            uint32_t number = name_map_find(&set->index.keys, key);
            if (set->index.file_of[number] == ST_NO_FILE)
                set->index.file_of[number] = f;
            if (was_new && set->index_name.size && !(set->is_beside && set->is_beside(set, key)))
                catalog_warn(source->catalog, false, "tensor '%.*s' of '%.*s' is not in the index", STR_ARG(key),
                             STR_ARG(file->name));
        }
    }
    return RESHARD_OK;
}

/* The files that are there; file_of counts these. */
static reshard_status read_index_files(struct source *source, struct st_set *set, const struct str *names, struct arena *arena,
                                       reshard_error *err)
{
    uint32_t count = set->index.files.count, *numbers = arena_array(arena, count, sizeof(*numbers));
    reshard_status status = numbers ? st_files_read(source, names, count, numbers, &set->files, err) : error_set_memory(err);
    for (uint32_t i = 0; i < set->index.keys.count && !status; i++)
        set->index.file_of[i] = numbers[set->index.file_of[i]];
    return status;
}

/* Names of the map that no file has: nothing is left that says what they were. */
static reshard_status tell_lost(struct source *source, const struct st_set *set, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < set->mapped_count && !status; i++) {
        struct str key = name_map_at(&set->index.keys, i);
        bool is_within;
        if (set->index.file_of[i] != ST_NO_FILE)
            continue;
        status = is_within_another(set, key, &is_within, err);
        if (!status && !is_within)
            catalog_warn_lost(source->catalog, key, "tensor '%.*s' is lost: '%.*s' has it, no file does", STR_ARG(key),
                              STR_ARG(set->index_name));
    }
    return status;
}

reshard_status st_set_read_indexed(struct source *source, struct str index_name, struct str directory, struct arena *arena,
                                   struct st_set *out, reshard_error *err)
{
    struct str *names;
    out->index_name = index_name;
    reshard_status status = read_index_text(source, out, err);
    if (status)
        return status;
    status = add_numbered(out, err);
    if (status)
        return status;
    status = sort_index_files(out, directory, arena, &names, err);
    if (status)
        return status;
    status = check_files_exist(source, out, names, err);
    if (status)
        return status;
    status = read_index_files(source, out, names, arena, err);
    if (status)
        return status;
    status = check_mapped(source, out, err);
    if (!status)
        status = add_unmapped(source, out, err);
    return status ? status : tell_lost(source, out, err);
}

reshard_status st_set_read_listed(struct source *source, const struct str *names, size_t count, struct st_set *out, reshard_error *err)
{
    st_files_release(&out->files);
    reshard_status status = st_files_read(source, names, count, NULL, &out->files, err);
    return status ? status : add_unmapped(source, out, err);
}

void st_set_release(struct st_set *set)
{
    st_files_release(&set->files);
    st_index_release(&set->index);
    *set = (struct st_set){ 0 };
}
