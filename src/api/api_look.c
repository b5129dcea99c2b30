/* SPDX-License-Identifier: Apache-2.0 */
/* Accessors: what a catalog holds, in public structs. */
#include "api/handle.h"
#include "base/value_members.h"

#include <stdlib.h>

static reshard_str public_str(struct str s)
{
    return (reshard_str){ s.data, s.size };
}

#define TEXT_OF(number) #number
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
#define VERSION VERSION_TEXT(RESHARD_VERSION_MAJOR, RESHARD_VERSION_MINOR, RESHARD_VERSION_PATCH)

#ifdef RESHARD_BUILD_VERSION
_Static_assert(__builtin_strcmp(RESHARD_BUILD_VERSION, VERSION) == 0, "the build and the header have one version");
#endif

API_EXPORT const char *reshard_version(void)
{
    return VERSION;
}

API_EXPORT void reshard_free(void *memory)
{
    free(memory);
}

API_EXPORT const char *reshard_checkpoint_format(const reshard_checkpoint *checkpoint)
{
    return checkpoint_source(checkpoint)->driver->name;
}

API_EXPORT const char *reshard_checkpoint_path(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->path;
}

API_EXPORT size_t reshard_tensor_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint->opened->listed_count;
}

API_EXPORT reshard_status reshard_tensor_at(const reshard_checkpoint *checkpoint, size_t index, reshard_tensor *out)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (index >= checkpoint->opened->listed_count)
        return RESHARD_ERR_USAGE;
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, index)];
    *out = (reshard_tensor){
        .key = public_str(tensor->key),
        .dtype = dtype_info(tensor->dtype)->name,
        .rank = tensor->rank,
        .shape = catalog_vector_at(catalog, tensor->shape),
        .bytes = catalog_tensor_bytes(catalog, tensor),
        .chunk_count = tensor->chunk_count,
        .tied_to = -1,
        .is_ambiguous = (tensor->flags & TENSOR_AMBIGUOUS) != 0,
    };
    if (tensor->tied_to != CATALOG_NONE && checkpoint->public_index[tensor->tied_to] != CATALOG_NONE)
        out->tied_to = checkpoint->public_index[tensor->tied_to];
    for (uint32_t i = 0; i < tensor->chunk_count; i++)
        out->replica_count += (catalog->chunks[tensor->first_chunk + i].flags & CHUNK_REPLICA) != 0;
    return RESHARD_OK;
}

API_EXPORT int64_t reshard_tensor_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size)
{
    uint32_t tensor = catalog_find(checkpoint_catalog(checkpoint), (struct str){ key, key_size });
    return tensor == CATALOG_NONE ? -1 : (int64_t)checkpoint->public_index[tensor];
}

static const char *encoding_name(const struct chunk_layout *layout)
{
    static const char *const names[CODEC_COUNT] = { [CODEC_NONE] = "", [CODEC_DEFLATE] = "deflate", [CODEC_ZSTD] = "zstd" };
    if (!layout)
        return "";
    if (layout->chain && layout->chain->literal)
        return "fill";
    if (layout->chain)
        return layout->chain->step_count ? chain_kind_name(layout->chain->steps[0].kind) : "";
    return names[layout->outer_codec != CODEC_NONE ? layout->outer_codec : layout->codec];
}

API_EXPORT reshard_status reshard_chunk_at(const reshard_checkpoint *checkpoint, size_t tensor_index, size_t index, reshard_chunk *out)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (tensor_index >= checkpoint->opened->listed_count)
        return RESHARD_ERR_USAGE;
    const struct catalog_tensor *tensor = &catalog->tensors[checkpoint_listed(checkpoint, tensor_index)];
    if (index >= tensor->chunk_count)
        return RESHARD_ERR_USAGE;
    const struct catalog_chunk *chunk = &catalog->chunks[tensor->first_chunk + index];
    const struct chunk_layout *layout = catalog_layout_of(catalog, chunk);
    bool encoded = catalog_chunk_is_coded(catalog, chunk);
    *out = (reshard_chunk){
        .start = catalog_vector_at(catalog, chunk->start),
        .extent = catalog_vector_at(catalog, chunk->extent),
        .file = public_str(catalog->objects[chunk->object].name),
        .offset = encoded ? layout->coded_offset : chunk->offset,
        .bytes = encoded ? layout->coded_bytes : chunk->bytes,
        .is_replica = (chunk->flags & CHUNK_REPLICA) != 0,
        .is_resolved = !(chunk->flags & CHUNK_UNRESOLVED),
        .flat_begin = layout ? layout->flat_begin : 0,
        .flat_count = layout ? layout->flat_count : -1,
        .encoding = encoding_name(layout),
    };
    return RESHARD_OK;
}

API_EXPORT size_t reshard_path_of(reshard_checkpoint *checkpoint, int is_item, size_t index, const reshard_path_part **parts)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    struct path_part single;
    const struct path_part *inner = NULL;
    size_t count = 0;
    if (is_item ? index >= catalog->item_count : index >= checkpoint->opened->listed_count)
        return 0;
    if (is_item)
        count = catalog_item_path(catalog, &catalog->items[index], &single, &inner);
    else
        count = catalog_tensor_path(catalog, &catalog->tensors[checkpoint_listed(checkpoint, index)], &single, &inner);
    if (count > checkpoint->part_capacity) {
        reshard_path_part *grown = realloc(checkpoint->parts, count * sizeof(*grown));
        if (!grown)
            return 0;
        checkpoint->parts = grown;
        checkpoint->part_capacity = count;
    }
    for (size_t i = 0; i < count; i++) {
        static const int kinds[] = { [PATH_KEY] = 0, [PATH_INDEX] = 1, [PATH_INT_KEY] = 2 };
        checkpoint->parts[i] = (reshard_path_part){ kinds[inner[i].kind], inner[i].index, public_str(inner[i].key) };
    }
    *parts = checkpoint->parts;
    return count;
}

API_EXPORT size_t reshard_item_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint_catalog(checkpoint)->item_count;
}

API_EXPORT reshard_status reshard_item_at(reshard_checkpoint *checkpoint, size_t index, reshard_item *out)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (index >= catalog->item_count)
        return RESHARD_ERR_USAGE;
    const struct catalog_item *item = &catalog->items[index];
    *out = (reshard_item){ .key = public_str(item->key), .kind = "", .bytes = item->bytes };
    if (item->kind == ITEM_FILE) {
        out->kind = "file";
    } else if (item->value) {
        out->kind = value_kind_name(item->value);
        buffer_clear(&checkpoint->class_name);
        if (value_class_name(item->value, &checkpoint->class_name))
            out->class_name = public_str(buffer_str(&checkpoint->class_name));
    }
    return RESHARD_OK;
}

API_EXPORT int64_t reshard_item_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size)
{
    uint32_t item = catalog_find_item(checkpoint_catalog(checkpoint), (struct str){ key, key_size });
    return item == CATALOG_NONE ? -1 : (int64_t)item;
}

/* A side file is shown as its text if it is UTF-8, else as bytes. */
static reshard_status side_file_json(reshard_checkpoint *checkpoint, const struct catalog_item *item, struct buffer *out,
                                     reshard_error *err)
{
    const struct source *source = checkpoint_source(checkpoint);
    struct buffer bytes = { 0 };
    size_t bad;
    char *name = str_copy(source->catalog->objects[item->object].name);
    if (!name)
        return error_set_memory(err);
    reshard_status status = store_read_all(source->store, name, NAMED_LIMIT(&source->limits, item_bytes), &bytes, err);
    if (status)
        goto out;
    if (str_is_utf8(buffer_str(&bytes), false, &bad)) {
        buffer_append_json_visible(out, buffer_str(&bytes));
    } else {
        buffer_append_text(out, "{\"__bytes__\": \"");
        for (size_t i = 0; i < bytes.size; i++)
            buffer_printf(out, "%02x", bytes.data[i]);
        buffer_append_text(out, "\"}");
    }
    if (out->failed)
        status = error_set_memory(err);

out:
    buffer_release(&bytes);
    free(name);
    return status;
}

/* Showing all items in their order is one run, whose work is bounded in all: they may share their parts. */
static void look_at(reshard_checkpoint *checkpoint, size_t *last, size_t index)
{
    if (index < *last)
        work_renew(&checkpoint_source(checkpoint)->work);
    *last = index + 1;
}

API_EXPORT reshard_status reshard_item_json(reshard_checkpoint *checkpoint, size_t index, char **json, size_t *size, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (index >= catalog->item_count)
        return error_set(err, RESHARD_ERR_USAGE, "item %zu of %u", index, catalog->item_count);
    const struct catalog_item *item = &catalog->items[index];
    struct buffer out = { 0 };
    reshard_status status = RESHARD_OK;
    look_at(checkpoint, &checkpoint->json_item, index);
    if (item->kind == ITEM_FILE) {
        status = side_file_json(checkpoint, item, &out, err);
    } else {
        status = source_load_item(checkpoint_source(checkpoint), (uint32_t)index, err);
        item = &checkpoint_catalog(checkpoint)->items[index];
        if (!status && item->value)
            status = value_to_json(item->value, &out, NAMED_LIMIT(&checkpoint_source(checkpoint)->limits, shown_bytes), err);
        else if (!status && !buffer_append_text(&out, "null"))
            status = error_set_memory(err);
    }
    if (!status && !buffer_append_byte(&out, 0))
        status = error_set_memory(err);
    if (status) {
        error_object(err, "item '%.*s'", STR_ARG(item->key));
        buffer_release(&out);
        return status;
    }
    *json = (char *)out.data;
    *size = out.size - 1;
    return RESHARD_OK;
}

struct member_listing {
    reshard_checkpoint *checkpoint;
    reshard_member_visit visit;
    void *context;
    struct buffer json;
    size_t bytes_left; /* of JSON text that is shown for one item */
    reshard_status status;
    reshard_error *err;
};

static bool list_member(void *context, struct str key, const struct value *value)
{
    struct member_listing *listing = context;
    reshard_item member = { .key = public_str(key), .kind = value_kind_name(value) };
    buffer_clear(&listing->checkpoint->class_name);
    if (value_class_name(value, &listing->checkpoint->class_name))
        member.class_name = public_str(buffer_str(&listing->checkpoint->class_name));
    buffer_clear(&listing->json);
    struct work *work = checkpoint_source(listing->checkpoint)->limits.budget;
    listing->status = value_to_json(value, &listing->json, (struct named_limit){ "shown_bytes", listing->bytes_left, work }, listing->err);
    bool is_shown = listing->status == RESHARD_OK;
    if (listing->status == RESHARD_ERR_LIMIT && !work_is_spent(work))
        listing->status = RESHARD_OK;
    else if (is_shown && !buffer_append_byte(&listing->json, 0))
        listing->status = error_set_memory(listing->err);
    if (listing->status)
        return false;
    size_t size = is_shown ? listing->json.size - 1 : 0;
    listing->bytes_left -= size;
    return listing->visit(listing->context, &member, is_shown ? (const char *)listing->json.data : NULL, size) == 0;
}

API_EXPORT reshard_status reshard_item_members(reshard_checkpoint *checkpoint, size_t index, reshard_member_visit visit, void *context,
                                               reshard_error *err)
{
    struct member_listing listing = { checkpoint, visit, context, { 0 }, (size_t)checkpoint_source(checkpoint)->limits.shown_bytes,
                                      RESHARD_OK, err };
    if (index >= checkpoint_catalog(checkpoint)->item_count)
        return error_set(err, RESHARD_ERR_USAGE, "item %zu of %u", index, checkpoint_catalog(checkpoint)->item_count);
    if (checkpoint_catalog(checkpoint)->items[index].kind == ITEM_FILE)
        return RESHARD_OK;
    look_at(checkpoint, &checkpoint->members_item, index);
    reshard_status status = source_load_item(checkpoint_source(checkpoint), (uint32_t)index, err);
    const struct catalog_item *item = &checkpoint_catalog(checkpoint)->items[index];
    if (!status && item->value)
        status = value_members(item->value, item->key, checkpoint_source(checkpoint)->limits.budget, list_member, &listing, err);
    buffer_release(&listing.json);
    if (!status)
        status = listing.status;
    if (status)
        error_object(err, "item '%.*s'", STR_ARG(item->key));
    return status;
}

API_EXPORT size_t reshard_warning_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint_catalog(checkpoint)->warning_count;
}

API_EXPORT const char *reshard_warning_at(const reshard_checkpoint *checkpoint, size_t index)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    return index < catalog->warning_count ? catalog->warnings[index].text.data : NULL;
}

API_EXPORT const char *reshard_fact_at(const reshard_checkpoint *checkpoint, size_t index, const char **value)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    if (index >= catalog->fact_count)
        return NULL;
    *value = catalog->facts[index].value.data;
    return catalog->facts[index].name.data;
}

API_EXPORT size_t reshard_file_count(const reshard_checkpoint *checkpoint, uint64_t *bytes)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    *bytes = 0;
    for (uint32_t i = 0; i < catalog->object_count; i++)
        *bytes += catalog->objects[i].bytes;
    return catalog->object_count;
}

API_EXPORT reshard_status reshard_format_at(size_t index, reshard_format *out)
{
    static const reshard_format_option none = { 0 };
    const struct format_driver *driver = NULL;
    for (size_t i = 0; i <= index; i++) {
        driver = format_driver_at((int)i);
        if (!driver)
            return RESHARD_ERR_USAGE;
    }
    _Static_assert(sizeof(reshard_format_option) == sizeof(struct format_option), "the public option mirrors the driver's");
    *out = (reshard_format){
        .name = driver->name,
        .summary = driver->summary,
        .reads = (driver->abilities & FORMAT_READS) != 0,
        .writes = (driver->abilities & FORMAT_WRITES) != 0,
        .is_directory = (driver->abilities & FORMAT_IS_DIRECTORY) != 0,
        .holds_items = (driver->abilities & FORMAT_HOLDS_ITEMS) != 0,
        .options = driver->options ? (const reshard_format_option *)driver->options : &none,
    };
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_limit_at(size_t index, reshard_limit *out)
{
    const char *name = limits_describe((int)index, &out->help, &out->value);
    if (!name)
        return RESHARD_ERR_USAGE;
    out->name = name;
    return RESHARD_OK;
}

API_EXPORT size_t reshard_visible_char(const char *text, size_t size)
{
    return str_printable_char((struct str){ text, size }, 0);
}
