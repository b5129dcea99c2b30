/* SPDX-License-Identifier: Apache-2.0 */
/* The members of the outermost dict: what they are called, what paddle.load would make of their arrays, and what protocols 2 and 3 cut. */
#include "base/array.h"
#include "base/checked.h"
#include "encoding/paddle_save_parts.h"

#include <inttypes.h>
#include <stdlib.h>

#define KEY_BYTES_MAX 65536 /* of what is printed for a key that is no text */

static struct paddle_tensor *tensor_of_entry(struct paddle_archive *archive, const struct paddle_entry *entry)
{
    return entry->tensor ? &archive->tensors[entry->tensor - 1] : NULL;
}

/* ---- entries ---- */

/* How a key is spelled in the map of keys: what is no text has a zero and its kind before it, as have texts that begin with a zero. */
static bool entries_spell(const struct value *node, struct str key, struct buffer *out)
{
    bool is_text = !node || node->kind == VALUE_STR;
    if (!is_text || (key.size && !key.data[0])) {
        buffer_append_byte(out, 0);
        buffer_append_byte(out, is_text ? VALUE_STR : node->kind);
    }
    return buffer_append_str(out, key) && !out->failed;
}

uint32_t paddle_save_find(const struct paddle_archive *archive, struct str key)
{
    struct buffer spelled = { 0 };
    if (!key.size || key.data[0])
        return name_map_find(&archive->keys, key);
    uint32_t found = entries_spell(NULL, key, &spelled) ? name_map_find(&archive->keys, buffer_str(&spelled)) : NAME_NONE;
    buffer_release(&spelled);
    return found;
}

/* Entry by key, whatever that is: 0 is not '0'. */
static reshard_status find_node(const struct paddle_archive *archive, const struct value *key, uint32_t *out, reshard_error *err)
{
    struct buffer text = { .limit = KEY_BYTES_MAX }, spelled = { 0 };
    *out = NAME_NONE;
    if (key->kind == VALUE_STR) {
        *out = paddle_save_find(archive, key->text);
        return RESHARD_OK;
    }
    bool is_made = value_to_repr(key, &text, NULL) && entries_spell(key, buffer_str(&text), &spelled);
    if (is_made)
        *out = name_map_find(&archive->keys, buffer_str(&spelled));
    const bool is_short = !is_made && !text.over_limit; /* of memory; no key is as long as the limit */
    buffer_release(&text);
    buffer_release(&spelled);
    return is_short ? error_set_memory(err) : RESHARD_OK;
}

reshard_status paddle_add_entry(struct paddle_reading *reading, const struct paddle_entry *entry, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    struct buffer spelled = { 0 };
    bool was_new = false;
    bool is_good = entries_spell(entry->key_node, entry->key, &spelled);
    uint32_t index = is_good ? name_map_intern(&archive->keys, buffer_str(&spelled), &was_new) : NAME_NONE;
    buffer_release(&spelled);
    if (index == NAME_NONE || !ARRAY_ROOM(archive->entries, archive->entry_count, reading->entry_capacity))
        return error_set_memory(err);
    if (!was_new)
        return paddle_fail(entry->value, err, "key '%.*s' occurs twice", STR_ARG(entry->key));
    struct str stored = name_map_at(&archive->keys, index);
    archive->entries[archive->entry_count] = *entry;
    archive->entries[archive->entry_count++].key =
        (struct str){ stored.data + (stored.size - entry->key.size), entry->key.size };
    return RESHARD_OK;
}

static reshard_status entry_of_pair(struct paddle_reading *reading, const struct value *key, const struct value *value, reshard_error *err)
{
    struct buffer text = { .limit = (size_t)reading->limits->pickle_string_bytes, .limit_name = "pickle_string_bytes" };
    struct paddle_entry entry = { .key_node = key, .value = value, .tensor = value->tensor };
    bool is_made = key->kind == VALUE_STR ? buffer_append_str(&text, key->text) : value_to_repr(key, &text, reading->limits->budget);
    entry.key = buffer_str(&text);
    reshard_status status = is_made ? paddle_add_entry(reading, &entry, err) : buffer_error(&text, err);
    buffer_release(&text);
    return status;
}

static reshard_status note_helper(const struct value *value, const char *name, const struct value **out, reshard_error *err)
{
    if (value->kind != VALUE_DICT)
        return paddle_fail(value, err, "%s is %s, not a dict", name, value_kind_name(value));
    *out = value;
    return RESHARD_OK;
}

static reshard_status read_members(struct paddle_reading *reading, struct value *const *pairs, size_t count, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i + 1 < count && !status; i += 2) {
        const struct value *key = pairs[i], *value = pairs[i + 1];
        if (key->kind == VALUE_STR && str_is(key->text, PADDLE_NAME_TABLE))
            status = note_helper(value, PADDLE_NAME_TABLE, &archive->name_table, err);
        else if (key->kind == VALUE_STR && str_is(key->text, PADDLE_BIG_TABLE))
            status = note_helper(value, PADDLE_BIG_TABLE, &archive->big_table, err);
        else
            status = entry_of_pair(reading, key, value, err);
    }
    return status;
}

/* ---- tensors that were cut ---- */

struct cut {
    const struct value *at; /* for messages */
    struct str key;
    int64_t shape[RANK_MAX];
    size_t rank;
    struct value **slices;
    size_t slice_count;
};

static reshard_status read_cut(const struct value *key, const struct value *value, struct cut *out, reshard_error *err)
{
    const struct value *shape = value_dict_get(value, "OriginShape"), *slices = value_dict_get(value, "slices");
    *out = (struct cut){ .at = value };
    if (key->kind != VALUE_STR || !shape || !slices || !value_as_ints(shape, out->shape, RANK_MAX, &out->rank) ||
        !value_as_sequence(slices, &out->slices, &out->slice_count) || !out->slice_count)
        return paddle_fail(value, err, PADDLE_BIG_TABLE " has a member without OriginShape and slices");
    out->key = key->text;
    return RESHARD_OK;
}

/* The array of slice `number`, which goes into the tensor that is put together. */
static reshard_status find_slice(struct paddle_archive *archive, const struct cut *cut, size_t number, uint32_t *entry,
                                 struct paddle_tensor **out, reshard_error *err)
{
    struct str name;
    if (!value_as_str(cut->slices[number], &name))
        return paddle_fail(cut->at, err, PADDLE_BIG_TABLE ": slice %zu of '%.*s' has no name", number, STR_ARG(cut->key));
    *entry = paddle_save_find(archive, name);
    *out = *entry == NAME_NONE ? NULL : tensor_of_entry(archive, &archive->entries[*entry]);
    if (!*out || (*out)->part_count != 1)
        return paddle_fail(cut->at, err, PADDLE_BIG_TABLE " names slice '%.*s' of '%.*s', which is %s", STR_ARG(name), STR_ARG(cut->key),
                           !*out ? "not in the file" : "used twice");
    return RESHARD_OK;
}

static reshard_status gather_parts(struct paddle_archive *archive, const struct cut *cut, struct paddle_tensor *whole,
                                   struct paddle_part *parts, uint8_t *is_gone, uint32_t *first, reshard_error *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < cut->slice_count; i++) {
        struct paddle_tensor *slice;
        uint32_t entry;
        reshard_status status = find_slice(archive, cut, i, &entry, &slice, err);
        if (status)
            return status;
        if (is_gone[entry])
            return paddle_fail(cut->at, err, PADDLE_BIG_TABLE " uses a slice of '%.*s' twice", STR_ARG(cut->key));
        if (i == 0) {
            *whole = *slice;
            *first = entry;
        }
        if (slice->rank != 1 || slice->dtype != whole->dtype || slice->is_big_endian != whole->is_big_endian)
            return paddle_fail(cut->at, err, "slice %zu of '%.*s' is no vector of %s like the first", i, STR_ARG(cut->key),
                               dtype_info(whole->dtype)->name);
        is_gone[entry] = 1;
        parts[i] = slice->parts[0];
        bytes = capped_add_u64(bytes, parts[i].bytes);
    }
    int64_t elements;
    uint64_t wanted;
    if (!shape_volume((int)cut->rank, cut->shape, &elements) || !dtype_bytes(whole->dtype, (uint64_t)elements, &wanted) || wanted != bytes)
        return paddle_fail(cut->at, err, "the slices of '%.*s' have %" PRIu64 " bytes, its OriginShape needs others", STR_ARG(cut->key),
                           bytes);
    whole->rank = (int)cut->rank;
    whole->shape = cut->shape;
    whole->parts = parts;
    whole->part_count = (uint32_t)cut->slice_count;
    return RESHARD_OK;
}

static reshard_status join_cut(struct paddle_reading *reading, const struct cut *cut, uint8_t *is_gone, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    struct paddle_tensor whole = { 0 };
    uint32_t first = 0, index;
    struct paddle_part *parts = arena_array(&archive->arena, cut->slice_count, sizeof(*parts));
    if (!parts)
        return work_error(reading->limits->budget, err);
    if (paddle_save_find(archive, cut->key) != NAME_NONE)
        return paddle_fail(cut->at, err, "'%.*s' is there whole and in slices", STR_ARG(cut->key));
    reshard_status status = gather_parts(archive, cut, &whole, parts, is_gone, &first, err);
    if (!status)
        status = paddle_add_tensor(reading, &whole, &index, err);
    if (status)
        return status;
    is_gone[first] = 0;
    archive->entries[first].tensor = index + 1;
    archive->entries[first].key = cut->key;
    archive->entries[first].key_node = NULL;
    return RESHARD_OK;
}

/* The outermost dict as if nothing had been cut: members as the entries are, behind them the table of names. */
static reshard_status rewrite_root(struct paddle_reading *reading, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    struct value_graph *graph = &archive->graph;
    struct value **items = arena_array(&graph->arena, 2 * ((size_t)archive->entry_count + 1), sizeof(*items));
    size_t count = 0;
    bool good = items != NULL;
    for (uint32_t i = 0; i < archive->entry_count && good; i++) {
        struct paddle_entry *entry = &archive->entries[i];
        struct value *value = (struct value *)(uintptr_t)entry->value;
        if (value->tensor != entry->tensor && entry->tensor) { /* of slices, the first one stands for all */
            struct value *first = value;
            value = value_new(graph, VALUE_NONE);
            if (value)
                *value = (struct value){ .kind = VALUE_NONE, .id = value->id, .offset = first->offset, .tensor = entry->tensor };
            entry->value = value;
        }
        items[count++] = entry->key_node ? (struct value *)(uintptr_t)entry->key_node : value_new_str(graph, entry->key);
        items[count++] = value;
        good = items[count - 2] && value;
    }
    if (good && archive->name_table) {
        items[count++] = value_new_str(graph, STR(PADDLE_NAME_TABLE));
        items[count++] = (struct value *)(uintptr_t)archive->name_table;
        good = items[count - 2] != NULL;
    }
    struct value *root = good ? value_new_list(graph, VALUE_DICT, items, count) : NULL;
    if (!root)
        return work_error(reading->limits->budget, err);
    graph->root = root;
    return RESHARD_OK;
}

/* The entries that stay, with a new index of their keys. */
static reshard_status drop_slices(struct paddle_reading *reading, const uint8_t *is_gone, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    uint32_t count = archive->entry_count;
    struct name_map old = archive->keys;
    archive->keys = (struct name_map){ 0 };
    archive->entry_count = 0;
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < count && !status; i++) {
        struct paddle_entry entry = archive->entries[i];
        if (!is_gone[i])
            status = paddle_add_entry(reading, &entry, err);
    }
    name_map_release(&old);
    return status ? status : rewrite_root(reading, err);
}

static reshard_status join_all(struct paddle_reading *reading, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    const struct value *table = archive->big_table;
    if (!table)
        return RESHARD_OK;
    uint8_t *is_gone = array_zeroed(archive->entry_count, 1);
    reshard_status status = is_gone ? RESHARD_OK : error_set_memory(err);
    for (size_t i = 0; i + 1 < table->list.count && !status; i += 2) {
        struct cut cut;
        status = read_cut(table->list.items[i], table->list.items[i + 1], &cut, err);
        if (!status)
            status = join_cut(reading, &cut, is_gone, err);
    }
    if (!status)
        status = drop_slices(reading, is_gone, err);
    free(is_gone);
    return status;
}

/* ---- names and what paddle.load makes of them ---- */

/*
 * What a table names becomes a tensor; without one (or with one that names nothing) all arrays do, unless there are pairs (name, array):
 * then these.
 */
static void mark_tensors(struct paddle_archive *archive, const bool *is_named)
{
    bool has_names = archive->name_table && archive->name_table->list.count, has_pairs = false;
    for (uint32_t i = 0; i < archive->tensor_count; i++)
        has_pairs = has_pairs || archive->tensors[i].is_pair;
    for (uint32_t i = 0; i < archive->tensor_count; i++) {
        struct paddle_tensor *tensor = &archive->tensors[i];
        tensor->is_numpy = has_names ? !is_named[i] : has_pairs && !tensor->is_pair;
        tensor->is_bfloat16 = tensor->dtype == DTYPE_U16 && !tensor->is_numpy;
    }
    for (uint32_t i = 0; i < archive->entry_count; i++) {
        struct paddle_tensor *tensor = tensor_of_entry(archive, &archive->entries[i]);
        if (tensor && !archive->entries[i].name.size)
            archive->entries[i].name = tensor->name;
    }
}

static reshard_status name_entries(struct paddle_archive *archive, bool *is_named, reshard_error *err)
{
    const struct value *table = archive->name_table;
    for (size_t i = 0; table && i + 1 < table->list.count; i += 2) {
        struct str name;
        if (!value_as_str(table->list.items[i + 1], &name))
            return paddle_fail(table, err, PADDLE_NAME_TABLE " holds something else than names");
        uint32_t entry;
        reshard_status status = find_node(archive, table->list.items[i], &entry, err);
        if (status)
            return status;
        if (entry == NAME_NONE)
            continue; /* left out by whoever split the file */
        const struct value *value = archive->entries[entry].value;
        if (!archive->entries[entry].tensor)
            return paddle_fail(value, err, "'%.*s', which " PADDLE_NAME_TABLE " names, is %s of numbers",
                               STR_ARG(archive->entries[entry].key),
                               pickle_array_is(value) ? "an array, but not" : "no array");
        archive->entries[entry].name = name;
        is_named[archive->entries[entry].tensor - 1] = true;
    }
    return RESHARD_OK;
}

static reshard_status read_names_and_kinds(struct paddle_archive *archive, reshard_error *err)
{
    bool *is_named = array_zeroed(archive->tensor_count, sizeof(*is_named));
    if (!is_named)
        return error_set_memory(err);
    reshard_status status = name_entries(archive, is_named, err);
    if (!status)
        mark_tensors(archive, is_named);
    free(is_named);
    return status;
}

reshard_status paddle_read_entries(struct paddle_reading *reading, reshard_error *err)
{
    struct paddle_archive *archive = reading->archive;
    const struct value *root = archive->graph.root;
    struct value **pairs;
    size_t count;
    reshard_status status = RESHARD_OK;
    if (root->tensor) {
        struct paddle_entry entry = { .value = root, .tensor = root->tensor };
        status = paddle_add_entry(reading, &entry, err);
    } else if (value_as_mapping(root, &pairs, &count)) {
        status = read_members(reading, pairs, count, err);
    }
    if (!status)
        status = join_all(reading, err);
    return status ? status : read_names_and_kinds(archive, err);
}
