/* SPDX-License-Identifier: Apache-2.0 */
/* Items and the values in them. */
#include "api/handle.h"
#include "api/items.h"

#include "api/public_options.h"
#include "base/array.h"
#include "base/value_members.h"
#include "base/value_parts.h"

#include <stdlib.h>

API_EXPORT size_t reshard_item_count(const reshard_checkpoint *checkpoint)
{
    return checkpoint ? checkpoint_item_count(checkpoint->opened) : 0;
}

/* The name of an object's class, "" if it is none; false without memory. Under the lock. */
static bool class_name_of(reshard_checkpoint *checkpoint, const struct value *value, struct str *out)
{
    struct buffer name = { 0 };
    *out = STR("");
    bool is_object = value_class_name(value, &name), is_made = !name.failed;
    if (is_object && is_made) {
        uint32_t number = name_map_intern(&checkpoint->classes, buffer_str(&name), NULL);
        is_made = number != NAME_NONE;
        if (is_made)
            *out = name_map_at(&checkpoint->classes, number);
    }
    buffer_release(&name);
    return is_made;
}

API_EXPORT reshard_status reshard_item_at(const reshard_checkpoint *checkpoint, size_t index, reshard_item *out)
{
    if (!entry_begin(out, "reshard_item", index, reshard_item_count(checkpoint)))
        return RESHARD_ERR_USAGE;
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    const struct catalog_item *item = &checkpoint_catalog(handle)->items[checkpoint_item_at(handle->opened, index)];
    reshard_item made = {
        .key = public_str(checkpoint_item_name(handle->opened, index)), .kind = "", .class_name = { "", 0 }, .bytes = item->bytes
    };
    struct str class_name = STR("");
    bool is_made = true;
    if (item->kind == ITEM_FILE) {
        made.kind = "file";
    } else if (item->value) {
        made.kind = value_kind_name(item->value);
        is_made = class_name_of(handle, item->value, &class_name);
        made.class_name = public_str(class_name);
    }
    checkpoint_unlock(handle);
    if (!is_made)
        return RESHARD_ERR_MEMORY;
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT int64_t reshard_item_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size)
{
    if (!checkpoint || !key)
        return -1;
    if (checkpoint->opened->view) {
        for (uint32_t i = 0; i < checkpoint_item_count(checkpoint->opened); i++) /* items are few */
            if (str_equal(checkpoint_item_name(checkpoint->opened, i), (struct str){ key, key_size }))
                return i;
        return -1;
    }
    uint32_t item = catalog_find_item(checkpoint_catalog(checkpoint), (struct str){ key, key_size });
    return item == CATALOG_NONE ? -1 : (int64_t)item;
}

/* ---- as JSON ---- */

/* A side file is shown as its text if it is UTF-8, else as bytes. */
static reshard_status side_file_json(const reshard_checkpoint *checkpoint, const struct catalog_item *item, struct buffer *out,
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
static void api_items_look_at(reshard_checkpoint *checkpoint, size_t *last, size_t index)
{
    if (index < *last)
        work_renew(&checkpoint_source(checkpoint)->work);
    *last = index + 1;
}

/* NULL is printed as null. */
static reshard_status value_json(const reshard_checkpoint *checkpoint, const struct value *value, struct buffer *out, reshard_error *err)
{
    if (value)
        return value_to_json(value, out, NAMED_LIMIT(&checkpoint_source(checkpoint)->limits, shown_bytes), err);
    return buffer_append_text(out, "null") ? RESHARD_OK : error_set_memory(err);
}

/* Takes the buffer over in either case. */
static reshard_status json_give(reshard_status status, struct buffer *text, char **json, size_t *size, reshard_error *err)
{
    if (!status && !buffer_append_byte(text, 0))
        status = error_set_memory(err);
    if (status) {
        buffer_release(text);
        return status;
    }
    *json = (char *)text->data;
    *size = text->size - 1;
    return RESHARD_OK;
}

/* index: the catalog's. */
static reshard_status item_json(reshard_checkpoint *checkpoint, uint32_t index, char **json, size_t *size, reshard_error *err)
{
    const struct catalog_item *item = &checkpoint_catalog(checkpoint)->items[index];
    struct buffer text = { 0 };
    reshard_status status = RESHARD_OK;
    api_items_look_at(checkpoint, &checkpoint->json_item, index);
    if (item->kind == ITEM_FILE) {
        status = side_file_json(checkpoint, item, &text, err);
    } else {
        status = source_load_item(checkpoint_source(checkpoint), index, err);
        if (!status)
            status = value_json(checkpoint, checkpoint_catalog(checkpoint)->items[index].value, &text, err);
    }
    status = json_give(status, &text, json, size, err);
    if (status)
        error_object(err, "item '%.*s'", STR_ARG(checkpoint_catalog(checkpoint)->items[index].key));
    return status;
}

reshard_status item_number(const reshard_checkpoint *checkpoint, size_t index, uint32_t *out, reshard_error *err)
{
    size_t count = reshard_item_count(checkpoint);
    if (index >= count)
        return error_set(err, RESHARD_ERR_USAGE, "item %zu of %zu", index, count);
    *out = checkpoint_item_at(checkpoint->opened, index);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_item_json(const reshard_checkpoint *checkpoint, size_t index, char **json, size_t *size,
                                            reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(json, err);
    *json = NULL;
    NEEDS(size, err);
    *size = 0;
    NEEDS(checkpoint, err);
    uint32_t number;
    reshard_status status = item_number(checkpoint, index, &number, err);
    if (status)
        return status;
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    status = item_json(handle, number, json, size, err);
    checkpoint_unlock(handle);
    return status;
}

/* ---- members ---- */

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
    struct str class_name;
    if (!class_name_of(listing->checkpoint, value, &class_name)) {
        listing->status = error_set_memory(listing->err);
        return false;
    }
    const reshard_item member = { .struct_size = sizeof(member),
                                  .key = public_str(key),
                                  .kind = value_kind_name(value),
                                  .class_name = public_str(class_name) };
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
    if (listing->visit(&member, is_shown ? (const char *)listing->json.data : NULL, size, listing->context))
        listing->status = error_set(listing->err, RESHARD_ERR_CANCELLED, "stopped by the visitor");
    return listing->status == RESHARD_OK;
}

static reshard_status item_members(struct member_listing *listing, uint32_t index, struct str name, reshard_error *err)
{
    reshard_checkpoint *checkpoint = listing->checkpoint;
    struct source *source = checkpoint_source(checkpoint);
    if (source->catalog->items[index].kind == ITEM_FILE)
        return RESHARD_OK;
    api_items_look_at(checkpoint, &checkpoint->members_item, index);
    reshard_status status = source_load_item(source, index, err);
    const struct catalog_item *item = &source->catalog->items[index];
    if (!status && item->value)
        status = value_members(item->value, name, source->limits.budget, list_member, listing, err);
    buffer_release(&listing->json);
    if (!status)
        status = listing->status;
    if (status)
        error_object(err, "item '%.*s'", STR_ARG(item->key));
    return status;
}

API_EXPORT reshard_status reshard_item_members(const reshard_checkpoint *checkpoint, size_t index, reshard_member_visit visit,
                                               void *context, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(checkpoint, err);
    NEEDS(visit, err);
    uint32_t number;
    reshard_status status = item_number(checkpoint, index, &number, err);
    if (status)
        return status;
    struct member_listing listing = { .visit = visit, .context = context, .err = err };
    listing.checkpoint = checkpoint_lock(checkpoint);
    listing.bytes_left = (size_t)checkpoint_source(checkpoint)->limits.shown_bytes;
    status = item_members(&listing, number, checkpoint_item_name(checkpoint->opened, index), err);
    checkpoint_unlock(listing.checkpoint);
    return status;
}

/* ---- values ---- */

static const struct value *value_of(const reshard_value *value)
{
    return (const struct value *)value;
}

/* Where nothing is, there is a null. */
static const reshard_value *public_value(const struct value *value)
{
    static const struct value nothing = { .kind = VALUE_NONE };
    return (const reshard_value *)(value ? value : &nothing);
}

API_EXPORT reshard_status reshard_item_value(const reshard_checkpoint *checkpoint, size_t index, const reshard_value **out,
                                             reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(checkpoint, err);
    uint32_t number;
    reshard_status status = item_number(checkpoint, index, &number, err);
    if (status)
        return status;
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    struct source *source = checkpoint_source(handle);
    const struct str key = source->catalog->items[number].key;
    if (source->catalog->items[number].kind == ITEM_FILE)
        status = error_set(err, RESHARD_ERR_UNSUPPORTED, "item '%.*s' is a file, which reshard_item_json() shows", STR_ARG(key));
    else
        status = source_load_item(source, number, err);
    if (!status)
        *out = public_value(source->catalog->items[number].value);
    checkpoint_unlock(handle);
    return status;
}

static int64_t value_kind_of(const struct value *value)
{
    static const int kinds[] = {
        [VALUE_NONE] = RESHARD_VALUE_NULL,   [VALUE_BOOL] = RESHARD_VALUE_BOOL, [VALUE_INT] = RESHARD_VALUE_INT,
        [VALUE_BIGINT] = RESHARD_VALUE_BIG_INT, [VALUE_FLOAT] = RESHARD_VALUE_REAL, [VALUE_STR] = RESHARD_VALUE_TEXT,
    };
    struct value **items;
    size_t count;
    if (value_as_mapping(value, &items, &count))
        return RESHARD_VALUE_DICT;
    if (value_as_set(value, &items, &count))
        return RESHARD_VALUE_SET;
    if (value_as_sequence(value, &items, &count))
        return RESHARD_VALUE_LIST;
    if (value_is_bytes(value))
        return RESHARD_VALUE_BYTES;
    return value->kind <= VALUE_STR ? kinds[value->kind] : RESHARD_VALUE_OBJECT;
}

/* The bytes that a call writes instead of a literal, made once. false without memory. Under the lock. */
static bool made_bytes(reshard_checkpoint *checkpoint, const struct value *value, struct str *out)
{
    bool is_new;
    uint32_t number = name_map_intern(&checkpoint->text_values, (struct str){ (const char *)&value, sizeof(value) }, &is_new);
    if (number == NAME_NONE)
        return false;
    while (checkpoint->text_capacity <= number) {
        uint32_t capacity = checkpoint->text_capacity ? 2 * checkpoint->text_capacity : 16;
        struct str *grown = reallocarray(checkpoint->texts, capacity, sizeof(*grown));
        if (!grown)
            return false;
        memset(grown + checkpoint->text_capacity, 0, (capacity - checkpoint->text_capacity) * sizeof(*grown));
        checkpoint->texts = grown;
        checkpoint->text_capacity = capacity;
    }
    struct buffer bytes = { 0 };
    bool is_made = checkpoint->texts[number].data ||
                   (value_as_bytes(value, &bytes) && arena_str(&checkpoint->text_arena, buffer_str(&bytes), &checkpoint->texts[number]));
    buffer_release(&bytes);
    *out = checkpoint->texts[number];
    return is_made;
}

/* What info->kind says is filled in; false without memory. Under the lock. */
static bool value_info_fill(reshard_checkpoint *checkpoint, const struct value *value, reshard_value_info *info)
{
    struct value **items;
    struct str text = { 0 };
    bool is_made = true;
    switch (info->kind) {
    case RESHARD_VALUE_BOOL: info->integer = value->boolean; break;
    case RESHARD_VALUE_INT: info->integer = value->integer; break;
    case RESHARD_VALUE_REAL: info->real = value->real; break;
    case RESHARD_VALUE_BIG_INT:
    case RESHARD_VALUE_TEXT: text = value->text; break;
    case RESHARD_VALUE_BYTES: is_made = made_bytes(checkpoint, value, &text); break;
    case RESHARD_VALUE_OBJECT: is_made = class_name_of(checkpoint, value, &text); break;
    case RESHARD_VALUE_SET: value_as_set(value, &items, &info->count); break;
    case RESHARD_VALUE_LIST:
        value_as_sequence(value, &items, &info->count);
        info->is_tuple = value->kind != VALUE_LIST; /* torch.Size is one, too */
        break;
    case RESHARD_VALUE_DICT:
        value_as_mapping(value, &items, &info->count);
        info->count /= 2;
        break;
    }
    info->text = public_str(text);
    return is_made;
}

API_EXPORT reshard_status reshard_value_look(const reshard_checkpoint *checkpoint, const reshard_value *value, reshard_value_info *out)
{
    NEEDS(out, NULL);
    reshard_status status = struct_clear(out, "reshard_value_info", NULL);
    NEEDS(checkpoint, NULL);
    NEEDS(value, NULL);
    if (status)
        return status;
    reshard_value_info made = { .kind = value_kind_of(value_of(value)) };
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    bool is_made = value_info_fill(handle, value_of(value), &made);
    checkpoint_unlock(handle);
    if (!is_made)
        return RESHARD_ERR_MEMORY;
    struct_give(out, &made, sizeof(made));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_value_at(const reshard_checkpoint *checkpoint, const reshard_value *value, size_t index,
                                           const reshard_value **key, const reshard_value **member)
{
    struct value **items;
    size_t count = 0;
    if (key)
        *key = NULL;
    NEEDS(member, NULL);
    *member = NULL;
    NEEDS(checkpoint, NULL);
    NEEDS(value, NULL);
    bool is_dict = value_as_mapping(value_of(value), &items, &count);
    if (!is_dict && !value_as_set(value_of(value), &items, &count) && !value_as_sequence(value_of(value), &items, &count))
        return RESHARD_ERR_USAGE;
    if (index >= (is_dict ? count / 2 : count))
        return RESHARD_ERR_USAGE;
    if (is_dict && key)
        *key = public_value(items[2 * index]);
    *member = public_value(is_dict ? items[2 * index + 1] : items[index]);
    return RESHARD_OK;
}

API_EXPORT const reshard_value *reshard_value_find(const reshard_checkpoint *checkpoint, const reshard_value *value, const char *key,
                                                   size_t key_size)
{
    struct value **pairs;
    size_t count;
    if (!checkpoint || !value || !key || !value_as_mapping(value_of(value), &pairs, &count))
        return NULL;
    for (size_t i = count; i >= 2; i -= 2) {
        const struct value *name = pairs[i - 2];
        if (name && name->kind == VALUE_STR && str_equal(name->text, (struct str){ key, key_size }))
            return public_value(pairs[i - 1]);
    }
    return NULL;
}

API_EXPORT reshard_status reshard_value_json(const reshard_checkpoint *checkpoint, const reshard_value *value, char **json, size_t *size,
                                             reshard_error *err)
{
    struct buffer text = { 0 };
    ERROR_SCOPE(err);
    NEEDS(json, err);
    *json = NULL;
    NEEDS(size, err);
    *size = 0;
    NEEDS(checkpoint, err);
    NEEDS(value, err);
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    reshard_status status = value_json(handle, value_of(value), &text, err);
    checkpoint_unlock(handle);
    return json_give(status, &text, json, size, err);
}
