/* SPDX-License-Identifier: Apache-2.0 */
/* Common values of sharded state dicts: what of them is compared, and how those of two ranks differ. */
#include "api/sharded_handle.h"

#include "base/array.h"
#include "encoding/json.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- taking out ---- */

static void dict_remove(struct value *dict, size_t place)
{
    dict->list.count -= 2;
    memmove(dict->list.items + place, dict->list.items + place + 2, (dict->list.count - place) * sizeof(*dict->list.items));
}

/* The member of a dictionary is gone; false if it is not there. */
static bool member_remove(struct value *dict, const reshard_str *path, size_t count)
{
    for (size_t at = 0; at < count && dict && dict->kind == VALUE_DICT; at++) {
        size_t i = 0;
        while (i < dict->list.count && !str_equal(dict->list.items[i]->text, given_str(path[at])))
            i += 2;
        if (i >= dict->list.count)
            return false;
        if (at + 1 < count) {
            dict = dict->list.items[i + 1];
            continue;
        }
        dict_remove(dict, i);
        return true;
    }
    return false;
}

static reshard_status value_without(struct sharded_dict *dict, struct sharded_value *value, const reshard_str *path, size_t count,
                                    reshard_error *err)
{
    struct value_graph graph = { 0 };
    struct buffer json = { 0 };
    reshard_status status = json_parse(value->json.data, value->json.size, &limits_default, &graph, err);
    if (status)
        error_prefix(err, "common value '%.*s'", STR_ARG(value->key));
    if (!status && member_remove(graph.root, path, count)) {
        status = value_to_json(graph.root, &json, NAMED_LIMIT(&limits_default, json_bytes), err);
        if (!status && !arena_str(&dict->arena, buffer_str(&json), &value->json))
            status = error_set_memory(err);
    }
    buffer_release(&json);
    value_graph_release(&graph);
    return status;
}

API_EXPORT reshard_status reshard_sharded_remove_value(reshard_sharded *sharded, const reshard_str *path, size_t count, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(sharded, err);
    NEEDS(path, err);
    struct sharded_dict *dict = &sharded->dict;
    struct sharded_value *value = count ? sharded_find_value(dict, SHARDED_COMMON, given_str(path[0])) : NULL;
    if (!value)
        return RESHARD_OK;
    if (count > 1)
        return value->file.data ? RESHARD_OK : value_without(dict, value, path + 1, count - 1, err);
    memmove(value, value + 1, (size_t)(dict->values + dict->value_count - (value + 1)) * sizeof(*value));
    dict->value_count--;
    return RESHARD_OK;
}

/* ---- common values of two ranks ---- */

/* Two values at the same path, still to be compared; one of them may be missing. */
struct pair {
    const struct value *left, *right;
    size_t path, path_size; /* in paths, as Python prints its parts */
};

struct comparing {
    struct pair *pairs;
    size_t count, capacity;
    struct buffer paths, only_left, only_right, mismatched;
};

static const char *python_type(const struct value *value)
{
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE: return "NoneType";
    case VALUE_BOOL: return "bool";
    case VALUE_INT:
    case VALUE_BIGINT: return "int";
    case VALUE_FLOAT: return "float";
    case VALUE_STR: return "str";
    case VALUE_LIST: return "list";
    case VALUE_DICT: return "dict";
    default: return "object";
    }
}

static bool pair_push(struct comparing *comparing, const struct pair *parent, struct str key, size_t index, const struct value *left,
                      const struct value *right)
{
    size_t path = comparing->paths.size;
    if (!ARRAY_ROOM(comparing->pairs, comparing->count, comparing->capacity))
        return false;
    if (parent && parent->path_size) {
        if (!buffer_reserve(&comparing->paths, parent->path_size + 2))
            return false;
        buffer_append(&comparing->paths, comparing->paths.data + parent->path, parent->path_size);
        buffer_append_text(&comparing->paths, ", ");
    }
    if (key.data)
        buffer_printf(&comparing->paths, "'%.*s'", STR_ARG(key));
    else
        buffer_printf(&comparing->paths, "%zu", index);
    comparing->pairs[comparing->count++] = (struct pair){ left, right, path, comparing->paths.size - path };
    return !comparing->paths.failed;
}

/* (path, type, type), or the path alone. */
static void pair_put(struct comparing *comparing, const struct pair *pair, struct buffer *out)
{
    const char *path = (const char *)comparing->paths.data + pair->path;
    bool is_one = !memmem(path, pair->path_size, ", ", 2);
    buffer_append_text(out, out->size ? ", " : "");
    if (pair->left && pair->right)
        buffer_append_byte(out, '(');
    buffer_append_byte(out, '(');
    buffer_append(out, path, pair->path_size);
    buffer_append_text(out, is_one ? ",)" : ")");
    if (pair->left && pair->right)
        buffer_printf(out, ", %s, %s)", python_type(pair->left), python_type(pair->right));
}

static const struct value *member_of(const struct value *dict, const struct value *key)
{
    for (size_t i = 0; i + 1 < dict->list.count; i += 2) {
        if (str_equal(dict->list.items[i]->text, key->text))
            return dict->list.items[i + 1];
    }
    return NULL;
}

static bool dicts_compare(struct comparing *comparing, const struct pair *pair)
{
    const struct value *left = pair->left, *right = pair->right;
    bool is_done = true;
    for (size_t i = 0; is_done && i + 1 < left->list.count; i += 2)
        is_done = pair_push(comparing, pair, left->list.items[i]->text, 0, left->list.items[i + 1], member_of(right, left->list.items[i]));
    for (size_t i = 0; is_done && i + 1 < right->list.count; i += 2) {
        if (!member_of(left, right->list.items[i]))
            is_done = pair_push(comparing, pair, right->list.items[i]->text, 0, NULL, right->list.items[i + 1]);
    }
    return is_done;
}

static bool lists_compare(struct comparing *comparing, const struct pair *pair)
{
    size_t a = pair->left->list.count, b = pair->right->list.count;
    bool is_done = true;
    for (size_t i = 0; is_done && i < (a > b ? a : b); i++)
        is_done = pair_push(comparing, pair, (struct str){ 0 }, i, i < a ? pair->left->list.items[i] : NULL,
                            i < b ? pair->right->list.items[i] : NULL);
    return is_done;
}

static reshard_status pair_compare(struct comparing *comparing, reshard_error *err)
{
    const struct pair pair = comparing->pairs[--comparing->count];
    bool is_equal, is_done = true, is_alike = pair.left && pair.right && pair.left->kind == pair.right->kind;
    if (!pair.left || !pair.right) {
        pair_put(comparing, &pair, pair.left ? &comparing->only_left : &comparing->only_right);
    } else if (is_alike && pair.left->kind == VALUE_DICT) {
        is_done = dicts_compare(comparing, &pair);
    } else if (is_alike && pair.left->kind == VALUE_LIST) {
        is_done = lists_compare(comparing, &pair);
    } else {
        reshard_status status = value_compare(pair.left, pair.right, NULL, NULL, &is_equal, err);
        if (status)
            return status;
        if (!is_equal)
            pair_put(comparing, &pair, &comparing->mismatched);
    }
    return is_done ? RESHARD_OK : error_set_memory(err);
}

/* What of a rank's values is compared. */
static enum sharded_value_kind compared_kind(const struct sharded_dict *dict)
{
    return dict->has_compared ? SHARDED_COMPARED : SHARDED_COMMON;
}

static reshard_status common_parse(const struct sharded_value *value, struct value_graph *graph, reshard_error *err)
{
    reshard_status status = value ? json_parse(value->json.data, value->json.size, &limits_default, graph, err) : RESHARD_OK;
    if (status)
        error_prefix(err, "common value '%.*s'", STR_ARG(value->key));
    return status;
}

/* Of files the bytes: what they hold may be cyclic, and of any size. */
static reshard_status files_compare(struct comparing *comparing, const struct sharded_value *left, const struct sharded_value *right,
                                    reshard_error *err)
{
    static const struct value object = { .kind = VALUE_CALL };
    if (left && right && left->file.data && right->file.data && str_equal(left->file, right->file))
        return RESHARD_OK;
    if (!pair_push(comparing, NULL, (left ? left : right)->key, 0, left ? &object : NULL, right ? &object : NULL))
        return error_set_memory(err);
    const struct pair pair = comparing->pairs[--comparing->count];
    pair_put(comparing, &pair, left && right ? &comparing->mismatched : left ? &comparing->only_left : &comparing->only_right);
    return RESHARD_OK;
}

static reshard_status common_compare(struct comparing *comparing, const struct sharded_value *left, const struct sharded_value *right,
                                     reshard_error *err)
{
    struct value_graph graphs[2] = { 0 };
    comparing->count = 0;
    buffer_clear(&comparing->paths);
    if ((left && left->file.data) || (right && right->file.data))
        return files_compare(comparing, left, right, err);
    reshard_status status = common_parse(left, &graphs[0], err);
    if (!status)
        status = common_parse(right, &graphs[1], err);
    if (!status && !pair_push(comparing, NULL, (left ? left : right)->key, 0, graphs[0].root, graphs[1].root))
        status = error_set_memory(err);
    while (!status && comparing->count)
        status = pair_compare(comparing, err);
    value_graph_release(&graphs[0]);
    value_graph_release(&graphs[1]);
    return status;
}

/* Of a rank's values the one to compare with: of what any rank may have there need be none. */
static const struct sharded_value *common_counterpart(const struct sharded_dict *dict, const struct sharded_value *value)
{
    return sharded_find_value(dict, value->kind == SHARDED_ANY_RANK ? SHARDED_ANY_RANK : compared_kind(dict), value->key);
}

static reshard_status dicts_common_compare(struct comparing *comparing, const struct sharded_dict *first, const struct sharded_dict *other,
                                           reshard_error *err)
{
    const enum sharded_value_kind left = compared_kind(first), right = compared_kind(other);
    reshard_status status = RESHARD_OK;
    for (size_t i = 0; i < first->value_count && !status; i++) {
        const struct sharded_value *value = &first->values[i], *found = common_counterpart(other, value);
        if (value->kind == left || (value->kind == SHARDED_ANY_RANK && found))
            status = common_compare(comparing, value, found, err);
    }
    for (size_t i = 0; i < other->value_count && !status; i++) {
        if (other->values[i].kind == right && !sharded_find_value(first, left, other->values[i].key))
            status = common_compare(comparing, NULL, &other->values[i], err);
    }
    return status;
}

reshard_status common_difference(const struct sharded_dict *first, const struct sharded_dict *other, int64_t rank, struct buffer *out,
                                 reshard_error *err)
{
    struct comparing comparing = { 0 };
    reshard_status status = dicts_common_compare(&comparing, first, other, err);
    if (!status && (comparing.only_left.size || comparing.only_right.size || comparing.mismatched.size)) {
        buffer_printf(out, "Rank %" PRId64 " common state dict differs from rank 0 common state dict. Keys only on rank 0: [", rank);
        buffer_append_str(out, buffer_str(&comparing.only_left));
        buffer_printf(out, "], Keys only on %" PRId64 ": [", rank);
        buffer_append_str(out, buffer_str(&comparing.only_right));
        buffer_append_text(out, "], Mismatched keys: [");
        buffer_append_str(out, buffer_str(&comparing.mismatched));
        buffer_append_text(out, "]");
    }
    if (!status && (out->failed || comparing.only_left.failed || comparing.only_right.failed || comparing.mismatched.failed))
        status = error_set_memory(err);
    free(comparing.pairs);
    buffer_release(&comparing.paths);
    buffer_release(&comparing.only_left);
    buffer_release(&comparing.only_right);
    buffer_release(&comparing.mismatched);
    return status;
}

API_EXPORT reshard_status reshard_sharded_compare_common(const reshard_sharded *first, const reshard_sharded *other, int64_t rank,
                                                         char **text, reshard_error *err)
{
    struct buffer out = { 0 };
    ERROR_SCOPE(err);
    NEEDS(text, err);
    *text = NULL;
    NEEDS(first, err);
    NEEDS(other, err);
    reshard_status status = common_difference(&first->dict, &other->dict, rank, &out, err);
    if (!status && out.size && !buffer_append_byte(&out, '\0'))
        status = error_set_memory(err);
    if (status || !out.size)
        buffer_release(&out);
    else
        *text = (char *)out.data;
    return status;
}
