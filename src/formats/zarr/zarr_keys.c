/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/zarr/zarr_keys.h"

#include <stdlib.h>

#include "base/array.h"
#include "formats/shared/file_tree.h"

void zarr_keys_release(struct zarr_keys *keys)
{
    free(keys->entries);
    zip_release(&keys->zip);
    store_object_close(keys->zip_object);
    arena_release(&keys->arena);
    *keys = (struct zarr_keys){ 0 };
}

reshard_status zarr_keys_add(struct zarr_keys *keys, const struct limits *limits, const struct zarr_entry *entry, reshard_error *err)
{
    if (keys->count >= limits->objects || keys->count >= UINT32_MAX / 2)
        return error_set_limit(err, "objects", (uint64_t)keys->count + 1, limits->objects);
    if (!ARRAY_ROOM(keys->entries, keys->count, keys->capacity))
        return error_set_memory(err);
    keys->entries[keys->count++] = *entry;
    return RESHARD_OK;
}

static int zarr_keys_entry_order(const void *a, const void *b)
{
    const struct zarr_entry *x = a, *y = b;
    return str_compare(x->name, y->name);
}

/* ---- directories ---- */

struct tree_listing {
    const struct limits *limits;
    struct zarr_keys *keys;
};

static reshard_status add_file(void *context, const struct store_entry *file, struct str below, reshard_error *err)
{
    const struct tree_listing *listing = context;
    const struct zarr_entry entry = { .name = below, .object = file->name, .bytes = file->bytes, .object_bytes = file->bytes };
    return zarr_keys_add(listing->keys, listing->limits, &entry, err);
}

static reshard_status list_tree(struct store *store, const char *name, const struct limits *limits, struct zarr_keys *keys,
                                reshard_error *err)
{
    struct tree_listing listing = { limits, keys };
    return file_tree_walk(store, name, SIZE_MAX, &keys->arena, add_file, &listing, err);
}

/* ---- zip files ---- */

static reshard_status list_zip(struct store *store, const char *name, const struct limits *limits, struct zarr_keys *keys,
                               reshard_error *err)
{
    reshard_status status = store_open_object(store, name, &keys->zip_object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(keys->zip_object);
    keys->is_zip = true;
    status = zip_open_rewritten(&reader, limits, &keys->zip, err);
    char *object = status ? NULL : arena_copy(&keys->arena, name, strlen(name));
    if (!status && !object)
        status = error_set_memory(err);
    for (uint32_t i = 0; !status && i < keys->zip.member_count; i++) {
        const struct zip_member *member = &keys->zip.members[i];
        if (member->is_directory || member->is_superseded)
            continue;
        struct zarr_entry entry = { .name = member->name,
                                    .object = { object, strlen(name) },
                                    .offset = member->payload_offset,
                                    .bytes = member->stored_bytes,
                                    .object_bytes = store_object_size(keys->zip_object),
                                    .is_deflated = member->method != 0,
                                    .member = i };
        status = zarr_keys_add(keys, limits, &entry, err);
    }
    if (status) {
        error_prefix(err, "'%s'", name);
        error_object(err, "%s", name);
    }
    return status;
}

static bool is_document(struct str name)
{
    static const char *const documents[] = { ".zarray", ".zgroup", ".zmetadata", "zarr.json" };
    const struct str base = str_base_name(name);
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++)
        if (str_is(base, documents[i]))
            return true;
    return false;
}

bool zarr_zip_probe(struct store *store, const char *name, reshard_error *err)
{
    static const uint8_t magic[] = { 'P', 'K', 3, 4 };
    struct store_object *object = NULL;
    struct zip_archive zip = { 0 };
    uint8_t first[sizeof(magic)];
    bool is_zarr = false;
    if (store_open_object(store, name, &object, err))
        return false;
    struct reader reader = store_object_reader(object);
    if (reader.size > sizeof(magic) && !store_read_at(object, 0, first, sizeof(first), err) &&
        memcmp(first, magic, sizeof(magic)) == 0 && !zip_open_rewritten(&reader, &limits_default, &zip, err)) {
        for (uint32_t i = 0; i < zip.member_count && !is_zarr; i++)
            is_zarr = is_document(zip.members[i].name);
    }
    zip_release(&zip);
    store_object_close(object);
    return is_zarr;
}

/* ---- both ---- */

reshard_status zarr_keys_list(struct store *store, const char *name, const struct limits *limits, struct zarr_keys *out, reshard_error *err)
{
    bool is_directory = true;
    uint64_t bytes;
    *out = (struct zarr_keys){ 0 };
    if (name[0] && !store_exists(store, name, &is_directory, &bytes))
        return error_set(err, RESHARD_ERR_IO, "'%s' does not exist", name);
    reshard_status status = is_directory ? list_tree(store, name, limits, out, err) : list_zip(store, name, limits, out, err);
    if (!status)
        zarr_keys_sort(out);
    return status;
}

void zarr_keys_sort(struct zarr_keys *keys)
{
    if (keys->count)
        qsort(keys->entries, keys->count, sizeof(*keys->entries), zarr_keys_entry_order);
}

uint32_t zarr_keys_lower(const struct zarr_keys *keys, struct str name)
{
    uint32_t low = 0, high = keys->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (str_compare(keys->entries[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct zarr_entry *zarr_keys_find(const struct zarr_keys *keys, struct str name)
{
    uint32_t at = zarr_keys_lower(keys, name);
    return at < keys->count && str_equal(keys->entries[at].name, name) ? &keys->entries[at] : NULL;
}

/* A part of an object, as containers of their own have it. */
static reshard_status read_part_of(struct store *store, const struct zarr_entry *entry, struct named_limit most, struct buffer *out,
                                reshard_error *err)
{
    struct store_object *object = NULL;
    if (entry->bytes > most.value)
        return limit_error_bytes(err, most, "the file is read at once", entry->bytes);
    reshard_status status = store_open_object(store, entry->object.data, &object, err);
    if (status)
        return status;
    struct reader reader = store_object_reader(object);
    status = reader_append(&reader, entry->offset, entry->bytes, out, err);
    store_object_close(object);
    return status;
}

reshard_status zarr_keys_read(struct store *store, const struct zarr_keys *keys, const struct zarr_entry *entry,
                              const struct limits *limits, struct named_limit most, struct buffer *out, reshard_error *err)
{
    reshard_status status;
    if (keys->is_zip) {
        struct reader reader = store_object_reader(keys->zip_object);
        const struct zip_member *member = &keys->zip.members[entry->member];
        if (member->bytes > most.value)
            return limit_error_bytes(err, most, "the file is read at once", member->bytes);
        status = zip_read_member(&reader, &keys->zip, member, limits, out, err);
    } else if (entry->bytes != entry->object_bytes) {
        status = read_part_of(store, entry, most, out, err);
    } else {
        status = store_read_all(store, entry->object.data, most, out, err);
    }
    if (status) {
        error_prefix(err, "'%.*s'", STR_ARG(entry->name));
        error_object(err, "%.*s", STR_ARG(entry->name));
    }
    return status;
}
