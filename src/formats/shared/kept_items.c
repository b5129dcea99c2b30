/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/shared/kept_items.h"

#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/decimal_text.h"
#include "encoding/json.h"

#define DEPTH_MAX 40 /* of values that are kept: with their wrapping objects less than json_depth */
#define ITEM_BYTES_MAX ((size_t)16 << 20)
#define PATH_MAX_PARTS 64
#define END_TEXT "\n]}\n"

/* ---- writing ---- */

/* A container that is being written. */
struct kept_frame {
    const struct value *value;
    size_t next;
    bool is_pairs; /* a dict as a list of pairs */
};

static bool is_plain_text(const struct value *value)
{
    return value->kind == VALUE_STR && str_is_utf8(value->text, false, NULL);
}

/* Whether a dict can be an object of JSON: texts as keys, none twice, none that looks like one of our own. Sets *lacks_memory. */
static bool is_plain_dict(const struct value *dict, bool *lacks_memory)
{
    struct name_map keys = { 0 };
    bool is_plain = true, is_new = true;
    for (size_t i = 0; i < dict->list.count && is_plain; i += 2) {
        const struct value *key = dict->list.items[i];
        is_plain = is_plain_text(key) && !str_starts_with(key->text, "__");
        *lacks_memory |= is_plain && name_map_intern(&keys, key->text, &is_new) == NAME_NONE;
        is_plain = is_plain && is_new;
    }
    name_map_release(&keys);
    return is_plain;
}

static void kept_hex(struct buffer *out, struct str bytes)
{
    for (size_t i = 0; i < bytes.size && !out->failed; i++)
        buffer_printf(out, "%02x", (unsigned char)bytes.data[i]);
}

/* Old protocols of pickle write bytes as a call. */
static bool kept_called_bytes(struct buffer *out, const struct value *value)
{
    struct buffer bytes = { 0 };
    bool is_kept = value_as_bytes(value, &bytes);
    if (is_kept) {
        buffer_append_text(out, "{\"__bytes__\":\"");
        kept_hex(out, buffer_str(&bytes));
        buffer_append_text(out, "\"}");
    }
    out->failed = out->failed || bytes.failed;
    buffer_release(&bytes);
    return is_kept;
}

/* A value without parts. false: it cannot be written. */
static bool kept_leaf(struct buffer *out, const struct value *value)
{
    switch (value->kind) {
    case VALUE_NONE: return buffer_append_text(out, "null");
    case VALUE_BOOL: return buffer_append_text(out, value->boolean ? "true" : "false");
    case VALUE_INT: return buffer_append_integer(out, value->integer);
    case VALUE_BIGINT: return buffer_append_bigint(out, value->text);
    case VALUE_STR: return is_plain_text(value) && buffer_append_json_string(out, value->text);
    case VALUE_FLOAT:
        if (isfinite(value->real))
            return buffer_append_double(out, value->real);
        return buffer_printf(out, "{\"__float__\":\"%s\"}", isnan(value->real) ? "nan" : value->real > 0 ? "inf" : "-inf");
    default: return kept_called_bytes(out, value);
    }
}

static void kept_open(struct buffer *out, struct kept_frame *frame)
{
    const struct value *value = frame->value;
    frame->is_pairs = value->kind == VALUE_DICT && !is_plain_dict(value, &out->failed);
    buffer_append_text(out, frame->is_pairs              ? "{\"__dict__\":["
                            : value->kind == VALUE_TUPLE ? "{\"__tuple__\":["
                            : value->kind == VALUE_DICT  ? "{"
                                                         : "[");
}

/* What stands before the next member, or the end. Returns the member, or NULL behind the last. */
static const struct value *kept_next_member(struct buffer *out, struct kept_frame *frame)
{
    const struct value *value = frame->value;
    const bool is_dict = value->kind == VALUE_DICT;
    const size_t at = frame->next++;
    if (at == value->list.count) {
        buffer_append_text(out, frame->is_pairs ? (at ? "]]}" : "]}") : value->kind == VALUE_TUPLE ? "]}" : is_dict ? "}" : "]");
        return NULL;
    }
    const bool is_key = is_dict && at % 2 == 0;
    if (at && (!is_dict || is_key))
        buffer_append_text(out, frame->is_pairs ? "]," : ",");
    if (frame->is_pairs)
        buffer_append_text(out, is_key ? "[" : ",");
    else if (is_dict && !is_key)
        buffer_append_text(out, ":");
    return value->list.items[at];
}

/* Appends a value; false: it cannot be, or there is no memory (out->failed). */
static bool kept_value(struct buffer *out, const struct value *root)
{
    struct kept_frame frames[DEPTH_MAX];
    int depth = 0;
    const struct value *value = root;
    while (value && !out->failed) {
        const bool is_container = value->kind == VALUE_LIST || value->kind == VALUE_TUPLE || value->kind == VALUE_DICT;
        if (value->tensor || value->storage || out->size > ITEM_BYTES_MAX || (is_container && depth == DEPTH_MAX))
            return false;
        if (is_container) {
            frames[depth] = (struct kept_frame){ .value = value };
            kept_open(out, &frames[depth++]);
        } else if (!kept_leaf(out, value)) {
            return false;
        }
        value = NULL;
        while (depth && !value && !out->failed) {
            value = kept_next_member(out, &frames[depth - 1]);
            depth -= !value;
        }
    }
    return !out->failed;
}

static void kept_path(struct buffer *out, const struct path_part *parts, size_t count)
{
    buffer_append_text(out, ",\"path\":[");
    for (size_t i = 0; i < count; i++) {
        buffer_append_text(out, i ? "," : "");
        if (parts[i].kind == PATH_KEY)
            buffer_append_json_string(out, parts[i].key);
        else
            buffer_printf(out, parts[i].kind == PATH_INDEX ? "%lld" : "[%lld]", (long long)parts[i].index);
    }
    buffer_append_byte(out, ']');
}

reshard_status kept_items_append(struct kept_items *items, const struct catalog *catalog, const struct catalog_item *item, bool *is_kept,
                                 reshard_error *err)
{
    struct buffer made = { 0 }, *text = &items->text;
    struct path_part single;
    const struct path_part *parts;
    *is_kept = false;
    if (items->in_vain > KEPT_IN_VAIN_MAX)
        return RESHARD_OK;
    const size_t count = catalog_item_path(catalog, item, &single, &parts);
    bool is_named = str_is_utf8(item->key, false, NULL) && count <= PATH_MAX_PARTS;
    for (size_t i = 0; i < count && is_named; i++)
        is_named = parts[i].kind != PATH_KEY || str_is_utf8(parts[i].key, false, NULL);
    buffer_append_text(&made, text->size ? ",\n{\"key\":" : "{\"schema\":\"reshard-items/1\",\"items\":[\n{\"key\":");
    if (is_named)
        buffer_append_json_string(&made, item->key);
    if (is_named && count > 1)
        kept_path(&made, parts, count);
    buffer_append_text(&made, ",\"value\":");
    *is_kept = is_named && item->value && kept_value(&made, item->value);
    items->is_full = *is_kept && items->bytes_max && text->size + made.size + sizeof(END_TEXT) > items->bytes_max;
    *is_kept = *is_kept && !items->is_full;
    /* Items that share their parts are made one by one, and given up one by one. */
    reshard_status status = made.failed ? error_set_memory(err) : work_spend(catalog->limits.budget, made.size, err);
    items->in_vain += *is_kept ? 0 : made.size;
    if (!status && *is_kept && !(buffer_append_byte(&made, '}') && buffer_append(text, made.data, made.size)))
        status = error_set_memory(err);
    buffer_release(&made);
    return status;
}

reshard_status kept_items_end(struct buffer *text, reshard_error *err)
{
    return buffer_append_text(text, END_TEXT) ? RESHARD_OK : error_set_memory(err);
}

/* ---- reading ---- */

/* Where values of JSON become others again. */
struct restoring {
    struct arena *arena;
    bool no_memory;
};

static bool hex_bytes(struct restoring *restoring, struct str hex, struct str *out)
{
    char *bytes = hex.size % 2 == 0 ? arena_alloc(restoring->arena, hex.size / 2 + 1) : NULL;
    restoring->no_memory |= hex.size % 2 == 0 && !bytes;
    for (size_t i = 0; bytes && i < hex.size; i++) {
        const char c = hex.data[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        bytes[i / 2] = (char)(i % 2 ? bytes[i / 2] | digit : digit << 4);
    }
    *out = (struct str){ bytes, hex.size / 2 };
    return bytes != NULL;
}

/* [[key, value], …] becomes a dict. */
static bool pairs_to_dict(struct restoring *restoring, struct value *value, const struct value *list)
{
    struct value **items = arena_array(restoring->arena, list->list.count * 2, sizeof(*items));
    restoring->no_memory |= !items;
    for (size_t i = 0; items && i < list->list.count; i++) {
        const struct value *pair = list->list.items[i];
        if (pair->kind != VALUE_LIST || pair->list.count != 2)
            return false;
        items[2 * i] = pair->list.items[0];
        items[2 * i + 1] = pair->list.items[1];
    }
    value->list.items = items;
    value->list.count = list->list.count * 2;
    return items != NULL;
}

/* An object of one member that stands for something else becomes that. false: it does not fit. */
static bool restore_node(struct restoring *restoring, struct value *value)
{
    struct str word;
    if (value->kind != VALUE_DICT || value->list.count != 2 || !value_as_str(value->list.items[0], &word) || !str_starts_with(word, "__"))
        return true;
    const struct value *member = value->list.items[1];
    if (str_is(word, "__tuple__") && member->kind == VALUE_LIST) {
        value->kind = VALUE_TUPLE;
        value->list = member->list;
        return true;
    }
    if (str_is(word, "__dict__") && member->kind == VALUE_LIST)
        return pairs_to_dict(restoring, value, member);
    if (member->kind != VALUE_STR)
        return false;
    if (str_is(word, "__bytes__")) {
        struct str bytes;
        value->kind = VALUE_BYTES;
        bool is_hex = hex_bytes(restoring, member->text, &bytes);
        value->text = bytes;
        return is_hex;
    }
    const bool is_negative = str_is(member->text, "-inf"), is_nan = str_is(member->text, "nan");
    if (!str_is(word, "__float__") || !(is_negative || is_nan || str_is(member->text, "inf")))
        return false;
    value->kind = VALUE_FLOAT;
    value->real = is_nan ? NAN : is_negative ? -INFINITY : INFINITY;
    return true;
}

/* All nodes below root, from the leaves up; JSON is a tree, and not deeper than its limit. */
static bool restore_values(struct restoring *restoring, struct value *root, uint64_t depth_max)
{
    struct restore_frame {
        struct value *value;
        size_t next;
    } *frames = array_zeroed(depth_max + 2, sizeof(*frames));
    bool fits = frames != NULL;
    size_t depth = 0;
    restoring->no_memory = !fits;
    if (fits)
        frames[depth++].value = root;
    while (fits && depth) {
        struct restore_frame *frame = &frames[depth - 1];
        const bool is_container = frame->value->kind == VALUE_LIST || frame->value->kind == VALUE_DICT;
        if (is_container && frame->next < frame->value->list.count) {
            frames[depth] = (struct restore_frame){ .value = frame->value->list.items[frame->next++] };
            fits = depth++ <= depth_max;
        } else {
            fits = restore_node(restoring, frame->value);
            depth--;
        }
    }
    free(frames);
    return fits;
}

static bool kept_read_path(const struct value *list, struct path_part *parts, size_t *count)
{
    int64_t index[1];
    size_t one;
    *count = 0;
    if (!list)
        return true;
    if (list->kind != VALUE_LIST || list->list.count > PATH_MAX_PARTS)
        return false;
    for (; *count < list->list.count; ++*count) {
        const struct value *part = list->list.items[*count];
        struct path_part *out = &parts[*count];
        *out = (struct path_part){ 0 };
        if (value_as_str(part, &out->key))
            out->kind = PATH_KEY;
        else if (value_as_int(part, &out->index))
            out->kind = PATH_INDEX;
        else if (part->kind == VALUE_LIST && value_as_ints(part, index, 1, &one) && one == 1)
            *out = (struct path_part){ .kind = PATH_INT_KEY, .index = index[0] };
        else
            return false;
    }
    return true;
}

static reshard_status add_kept(struct catalog *catalog, struct value_graph *graph, const struct value *entry, size_t index,
                               reshard_error *err)
{
    struct path_part parts[PATH_MAX_PARTS];
    size_t count;
    const struct value *key = entry->kind == VALUE_DICT ? value_dict_get(entry, "key") : NULL;
    struct value *value = key ? value_dict_get(entry, "value") : NULL;
    struct catalog_item item = { .kind = ITEM_VALUE, .graph = graph };
    if (!value || !value_as_str(key, &item.key) || !kept_read_path(value_dict_get(entry, "path"), parts, &count))
        return error_set(err, RESHARD_ERR_FORMAT, "item %zu: expected {\"key\", \"path\", \"value\"}", index);
    struct restoring restoring = { .arena = &graph->arena };
    if (!restore_values(&restoring, value, catalog->limits.json_depth))
        return restoring.no_memory ? work_error(catalog->limits.budget, err)
                                   : error_set(err, RESHARD_ERR_FORMAT, "item '%.*s': its value does not fit", STR_ARG(item.key));
    item.value = value;
    return catalog_add_item(catalog, &item, count ? parts : NULL, count, NULL, err);
}

reshard_status kept_items_read(struct catalog *catalog, struct str text, reshard_error *err)
{
    struct value_graph parsed = { 0 };
    reshard_status status = json_parse(text.data, text.size, &catalog->limits, &parsed, err);
    const struct value *items = !status && parsed.root->kind == VALUE_DICT ? value_dict_get(parsed.root, "items") : NULL;
    if (!status && (!items || items->kind != VALUE_LIST))
        status = error_set(err, RESHARD_ERR_FORMAT, "expected an object with a list of items");
    struct value_graph *graph = status ? NULL : catalog_adopt_graph(catalog, parsed);
    if (!status && !graph)
        status = error_set_memory(err);
    else if (status)
        value_graph_release(&parsed);
    for (size_t i = 0; !status && i < items->list.count; i++)
        status = add_kept(catalog, graph, items->list.items[i], i, err);
    if (status)
        error_prefix(err, "'" KEPT_ITEMS_NAME "'");
    return status;
}
