/* SPDX-License-Identifier: Apache-2.0 */
/* Items made by the caller. */
#include "api/handle.h"
#include "api/items.h"
#include "base/array.h"

#include <stdlib.h>

API_EXPORT reshard_status reshard_items_new(reshard_items **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = calloc(1, sizeof(**out));
    if (*out)
        (*out)->graph.root = value_new(&(*out)->graph, VALUE_DICT);
    if (*out && (*out)->graph.root)
        return RESHARD_OK;
    free(*out);
    *out = NULL;
    return error_set_memory(err);
}

API_EXPORT void reshard_items_free(reshard_items *items)
{
    if (!items)
        return;
    value_graph_release(&items->graph);
    free(items->files);
    free(items);
}

/* ---- values ---- */

/* A member at the end; arrays double where their size is a power of two. */
static bool member_append(struct value_graph *graph, struct value *holder, struct value *member)
{
    size_t count = holder->list.count;
    if (count == 0 || (count >= 4 && !(count & (count - 1)))) {
        struct value **grown = arena_array(&graph->arena, count ? 2 * count : 4, sizeof(struct value *));
        if (!grown)
            return false;
        if (count)
            memcpy(grown, holder->list.items, count * sizeof(struct value *));
        holder->list.items = grown;
    }
    holder->list.items[holder->list.count++] = member;
    return true;
}

/* A member of a DICT whose key is not there. */
static bool pair_append(struct value_graph *graph, struct value *dict, struct str key, struct value *member)
{
    struct value *name = value_new_str(graph, key);
    return name && member_append(graph, dict, name) && member_append(graph, dict, member);
}

static bool items_have(const reshard_items *items, struct str key)
{
    const struct value *root = items->graph.root;
    for (size_t i = 0; i + 1 < root->list.count; i += 2)
        if (str_equal(root->list.items[i]->text, key))
            return true;
    for (size_t i = 0; i < items->file_count; i++)
        if (str_equal(items->files[i].key, key))
            return true;
    return false;
}

static reshard_status text_check(const reshard_value_info *info, struct str key, reshard_error *err)
{
    bool has_text = info->kind == RESHARD_VALUE_TEXT || info->kind == RESHARD_VALUE_BYTES || info->kind == RESHARD_VALUE_BIG_INT;
    size_t bad;
    if (has_text && info->text.size && !info->text.data)
        return error_set(err, RESHARD_ERR_USAGE, "item '%.*s': a text without bytes", STR_ARG(key));
    if (info->kind == RESHARD_VALUE_TEXT && !str_is_utf8((struct str){ info->text.data, info->text.size }, false, &bad))
        return error_set(err, RESHARD_ERR_USAGE, "item '%.*s': a text is no UTF-8 at byte %zu", STR_ARG(key), bad);
    if (info->kind == RESHARD_VALUE_BIG_INT && !info->text.size)
        return error_set(err, RESHARD_ERR_USAGE, "item '%.*s': a big integer without bytes", STR_ARG(key));
    return RESHARD_OK;
}

static struct value *text_make(struct value_graph *graph, enum value_kind kind, reshard_str text)
{
    struct str copy;
    if (!arena_str(&graph->arena, (struct str){ text.size ? text.data : "", text.size }, &copy))
        return NULL;
    struct value *value = value_new(graph, kind);
    if (value)
        value->text = copy;
    return value;
}

/* NULL without memory; *is_known is cleared where no value can be of that kind. */
static struct value *value_make(struct value_graph *graph, const reshard_value_info *info, bool *is_known)
{
    struct value *value;
    *is_known = true;
    switch (info->kind) {
    case RESHARD_VALUE_NULL:
        return value_new(graph, VALUE_NONE);
    case RESHARD_VALUE_BOOL:
        value = value_new(graph, VALUE_BOOL);
        if (value)
            value->boolean = info->integer != 0;
        return value;
    case RESHARD_VALUE_INT:
        return value_new_int(graph, info->integer);
    case RESHARD_VALUE_REAL:
        value = value_new(graph, VALUE_FLOAT);
        if (value)
            value->real = info->real;
        return value;
    case RESHARD_VALUE_TEXT:
        return text_make(graph, VALUE_STR, info->text);
    case RESHARD_VALUE_BYTES:
        return text_make(graph, VALUE_BYTES, info->text);
    case RESHARD_VALUE_BIG_INT:
        return text_make(graph, VALUE_BIGINT, info->text);
    case RESHARD_VALUE_LIST:
        return value_new(graph, info->is_tuple ? VALUE_TUPLE : VALUE_LIST);
    case RESHARD_VALUE_DICT:
        return value_new(graph, VALUE_DICT);
    case RESHARD_VALUE_SET:
        return value_new(graph, VALUE_SET);
    default:
        *is_known = false;
        return NULL;
    }
}

static reshard_status member_add(reshard_items *items, struct value *holder, struct str key, struct value *value, reshard_error *err)
{
    bool is_pair = holder->kind == VALUE_DICT;
    bool is_good = is_pair ? pair_append(&items->graph, holder, key, value) : member_append(&items->graph, holder, value);
    return is_good ? RESHARD_OK : error_set_memory(err);
}

static reshard_status holder_check(const reshard_items *items, const struct value *holder, reshard_str key, reshard_error *err)
{
    struct str text = { key.data, key.size };
    if (holder->kind != VALUE_DICT)
        return holder->kind == VALUE_LIST || holder->kind == VALUE_TUPLE || holder->kind == VALUE_SET
                   ? RESHARD_OK
                   : error_set(err, RESHARD_ERR_USAGE, "nothing can be added to a %s", value_kind_name(holder));
    if (!key.data)
        return error_set(err, RESHARD_ERR_USAGE, "a value has no key");
    if (holder == items->graph.root && items_have(items, text))
        return error_set(err, RESHARD_ERR_USAGE, "item '%.*s' is there twice", STR_ARG(text));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_items_add(reshard_items *items, reshard_value *holder, reshard_str key, const reshard_value_info *value,
                                            reshard_value **out, reshard_error *err)
{
    reshard_value_info info;
    bool is_known;
    ERROR_SCOPE(err);
    if (out)
        *out = NULL;
    NEEDS(items, err);
    NEEDS(value, err);
    struct value *into = holder ? (struct value *)(void *)holder : items->graph.root;
    reshard_status status = struct_take(&info, sizeof(info), value, "reshard_value_info", err);
    if (!status)
        status = holder_check(items, into, key, err);
    if (!status)
        status = text_check(&info, (struct str){ key.data, key.size }, err);
    if (status)
        return status;
    struct value *made = value_make(&items->graph, &info, &is_known);
    if (!made)
        return is_known ? error_set_memory(err)
                        : error_set(err, RESHARD_ERR_USAGE, "reshard_value_info.kind is %lld, of which no value can be made",
                                    (long long)info.kind);
    status = member_add(items, into, (struct str){ key.data, key.size }, made, err);
    if (!status && out)
        *out = (reshard_value *)(void *)made;
    return status;
}

/* ---- files ---- */

reshard_status items_add_file(struct reshard_items *items, struct str key, struct str bytes, reshard_error *err)
{
    struct items_file file;
    if (!ARRAY_ROOM(items->files, items->file_count, items->file_capacity) || !arena_str(&items->graph.arena, key, &file.key) ||
        !arena_str(&items->graph.arena, bytes, &file.bytes))
        return error_set_memory(err);
    items->files[items->file_count++] = file;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_items_add_file(reshard_items *items, reshard_str key, const void *bytes, size_t size, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(items, err);
    NEEDS(bytes, err);
    reshard_status status = holder_check(items, items->graph.root, key, err);
    return status ? status : items_add_file(items, (struct str){ key.data, key.size }, (struct str){ bytes, size }, err);
}

/* ---- items of checkpoints ---- */

static bool refers_to_none(const struct value *value, void *context)
{
    (void)context;
    return !value->tensor && !value->storage;
}

reshard_status item_side_file(struct source *source, const struct catalog_item *item, struct value_graph *graph, struct value **out,
                              reshard_error *err)
{
    struct buffer bytes = { 0 };
    char *name = str_copy(source->catalog->objects[item->object].name);
    reshard_status status =
        name ? store_read_all(source->store, name, NAMED_LIMIT(&source->limits, item_bytes), &bytes, err) : error_set_memory(err);
    *out = status ? NULL : text_make(graph, VALUE_BYTES, (reshard_str){ (const char *)bytes.data, bytes.size });
    buffer_release(&bytes);
    free(name);
    return status || *out ? status : error_set_memory(err);
}

/* *out NULL: it holds tensors. */
static reshard_status copied_value(struct source *source, uint32_t index, struct value_graph *graph, struct value **out, reshard_error *err)
{
    *out = NULL;
    const struct catalog_item *item = &source->catalog->items[index];
    if (item->kind == ITEM_FILE)
        return item_side_file(source, item, graph, out, err);
    reshard_status status = source_load_item(source, index, err);
    if (status)
        return status;
    bool no_memory = false;
    if (!value_walk(item->value, item->graph->count, NULL, refers_to_none, NULL, &no_memory))
        return no_memory ? error_set_memory(err) : RESHARD_OK;
    *out = value_copy(graph, item->value, item->graph->count);
    return *out ? RESHARD_OK : error_set_memory(err);
}

static reshard_status copied_file(reshard_items *items, const reshard_checkpoint *checkpoint, size_t item, reshard_str key,
                                  reshard_error *err)
{
    void *bytes;
    size_t size;
    reshard_status status = reshard_item_file(checkpoint, item, &bytes, &size, err);
    if (!status)
        status = items_add_file(items, (struct str){ key.data, key.size }, (struct str){ bytes, size }, err);
    free(bytes);
    return status;
}

API_EXPORT reshard_status reshard_items_copy(reshard_items *items, const reshard_checkpoint *checkpoint, size_t item, reshard_str key,
                                             reshard_error *err)
{
    struct value *made;
    ERROR_SCOPE(err);
    NEEDS(items, err);
    NEEDS(checkpoint, err);
    if (item >= reshard_item_count(checkpoint))
        return error_set(err, RESHARD_ERR_USAGE, "there is no item %zu", item);
    struct str own = checkpoint_item_name(checkpoint->opened, item);
    key = key.data ? key : public_str(own);
    reshard_status status = holder_check(items, items->graph.root, key, err);
    if (status)
        return status;
    reshard_checkpoint *handle = checkpoint_lock(checkpoint);
    status = copied_value(checkpoint_source(handle), checkpoint_item_at(handle->opened, item), &items->graph, &made, err);
    checkpoint_unlock(handle);
    if (status)
        return status;
    return made ? member_add(items, items->graph.root, (struct str){ key.data, key.size }, made, err)
                : copied_file(items, checkpoint, item, key, err);
}

/* ---- for those who take them ---- */

reshard_status items_take(const reshard_state_item *items, size_t count, size_t stride, const reshard_items *values, struct live_item **out,
                          size_t *out_count, reshard_error *err)
{
    const struct value *root = values ? values->graph.root : NULL;
    size_t value_count = root ? root->list.count / 2 : 0, file_count = values ? values->file_count : 0;
    void *taken = NULL;
    *out_count = 0;
    *out = array_zeroed(count + value_count + file_count, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    reshard_status status = array_take(items, count, stride, sizeof(reshard_state_item), "reshard_state_item", &taken, err);
    const reshard_state_item *given = taken;
    for (size_t i = 0; i < count && !status; i++) {
        (*out)[i] =
            (struct live_item){ .key = { given[i].key.data, given[i].key.size }, .json = { given[i].json.data, given[i].json.size } };
        if (!given[i].key.data || !given[i].json.data)
            status = error_set(err, RESHARD_ERR_USAGE, "item %zu has no key or no JSON", i);
    }
    for (size_t i = 0; i < value_count; i++)
        (*out)[count + i] = (struct live_item){ .key = root->list.items[2 * i]->text,
                                                .value = root->list.items[2 * i + 1],
                                                .value_count = values->graph.count };
    for (size_t i = 0; i < file_count; i++)
        (*out)[count + value_count + i] = (struct live_item){ .key = values->files[i].key, .file = values->files[i].bytes };
    free(taken);
    *out_count = count + value_count + file_count;
    return status;
}
