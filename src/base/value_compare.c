/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Equality of graphs as of automata (Hopcroft and Karp): a pair that has to be equal joins two classes of nodes, and a pair
 * inside one class needs no second look. So there are fewer looks than nodes, however much is shared, and cycles end.
 */
#include "base/hash.h"
#include "base/array.h"
#include "base/value_parts.h"

#include <stdlib.h>

struct pair {
    const struct value *a, *b;
};

struct comparison {
    struct pair *pending;
    size_t pending_count, pending_capacity;
    struct value_table numbers; /* node to class member, from 1 */
    uint32_t *parents;          /* union-find over members; 0 is unused */
    uint32_t member_count, member_capacity;
    uint64_t seed;
    const struct value_storages *storages;
    struct work *work;
    bool no_memory; /* or no work */
};

static bool value_compare_out_of_memory(struct comparison *c)
{
    c->no_memory = true;
    return false;
}

static bool pending_push(struct comparison *c, const struct value *a, const struct value *b)
{
    if (!ARRAY_ROOM(c->pending, c->pending_count, c->pending_capacity))
        return value_compare_out_of_memory(c);
    c->pending[c->pending_count++] = (struct pair){ a, b };
    return true;
}

#define DECODED_UNITS 8 /* a byte: decoding is that much slower than comparing */

/* A text may be met as often as there are references to it: each look at it spends what it is long. */
static bool compare_take_text(struct comparison *c, const struct value *leaf, uint64_t units)
{
    const bool has_text = leaf->kind == VALUE_BIGINT || (leaf->kind >= VALUE_STR && leaf->kind <= VALUE_BYTEARRAY);
    return !has_text || work_take(c->work, leaf->text.size * units) || value_compare_out_of_memory(c);
}

/* BYTES or BYTEARRAY, also of the calls by which pickles of lower protocols spell them; VALUE_NONE of anything else. */
static enum value_kind bytes_kind(const struct value *value)
{
    if (value->kind == VALUE_BYTES || value->kind == VALUE_BYTEARRAY)
        return (enum value_kind)value->kind;
    if (value_is_call(value, "builtins", "bytearray"))
        return VALUE_BYTEARRAY;
    return value_is_call(value, "_codecs", "encode") || value_is_call(value, "builtins", "bytes") ? VALUE_BYTES : VALUE_NONE;
}

/* The work of decoding: a bytearray may be made of bytes, which may be made of a text. */
static bool compare_take_bytes(struct comparison *c, const struct value *value)
{
    struct value **args;
    size_t count = 1;
    for (int depth = 0; depth < 2 && count && !value_is_leaf(value); depth++) {
        if (!value_is_plain_call(value, "builtins", "bytearray", &args, &count) &&
            !value_is_plain_call(value, "_codecs", "encode", &args, &count))
            return true;
        if (count && !args[0])
            return true;
        value = count ? args[0] : value;
    }
    return compare_take_text(c, value, DECODED_UNITS);
}

/* Whether both are bytes, or both bytearrays, and not in the same way stored: *equal then says whether they hold the same. */
static bool bytes_compare(struct comparison *c, const struct value *a, const struct value *b, bool *equal)
{
    struct buffer left = { 0 }, right = { 0 };
    enum value_kind kind = bytes_kind(a);
    *equal = false;
    if (kind == VALUE_NONE || kind != bytes_kind(b) || !compare_take_bytes(c, a) || !compare_take_bytes(c, b))
        return false;
    if (!value_is_bytes(a) || !value_is_bytes(b))
        return false;
    const bool are_read = value_as_bytes(a, &left) && value_as_bytes(b, &right);
    *equal = are_read && str_equal(buffer_str(&left), buffer_str(&right));
    c->no_memory |= !are_read;
    buffer_release(&left);
    buffer_release(&right);
    return true;
}

/* Leaves are compared at once: most pairs need no memory. */
static bool require(struct comparison *c, const struct value *a, const struct value *b)
{
    if (a == b)
        return true;
    if (!a || !b)
        return false;
    if (value_is_leaf(a) && value_is_leaf(b))
        return compare_take_text(c, a, 1) && value_leaf_equal(a, b);
    if (value_is_leaf(a) || value_is_leaf(b)) {
        bool equal;
        return bytes_compare(c, a, b, &equal) && equal;
    }
    return pending_push(c, a, b);
}

static uint32_t root_of(struct comparison *c, uint32_t member)
{
    while (c->parents[member] != member) {
        c->parents[member] = c->parents[c->parents[member]];
        member = c->parents[member];
    }
    return member;
}

/* The class of a node, a new one if it is met for the first time; 0 without memory. */
static uint32_t value_compare_class_of(struct comparison *c, const struct value *node)
{
    uint32_t *number = value_table_at(&c->numbers, node);
    if (!number)
        return 0;
    if (*number)
        return root_of(c, *number);
    if (!ARRAY_ROOM(c->parents, c->member_count + 1, c->member_capacity))
        return 0;
    *number = ++c->member_count;
    c->parents[*number] = *number;
    return *number;
}

/* Joins the classes of a and b; *was_joined says that they were one before. */
static bool value_compare_join(struct comparison *c, const struct value *a, const struct value *b, bool *was_joined)
{
    uint32_t a_class = value_compare_class_of(c, a), b_class = value_compare_class_of(c, b);
    if (!a_class || !b_class)
        return value_compare_out_of_memory(c);
    *was_joined = a_class == b_class;
    c->parents[a_class < b_class ? b_class : a_class] = a_class < b_class ? a_class : b_class;
    return true;
}

static bool value_compare_items(struct comparison *c, struct value *const *a, size_t a_count, struct value *const *b, size_t b_count)
{
    if (a_count != b_count)
        return false;
    if (!work_take_steps(c->work, a_count))
        return value_compare_out_of_memory(c);
    for (size_t i = 0; i < a_count; i++)
        if (!require(c, a[i], b[i]))
            return false;
    return true;
}

/* The first element at or after position whose key is no leaf; count if there is none. */
static size_t next_with_parts(const struct value_index *index, size_t position)
{
    while (position < index->count) {
        const struct value *key = index->items[position * index->stride];
        if (key && !value_is_leaf(key))
            break;
        position++;
    }
    return position;
}

static bool require_element(struct comparison *c, const struct value_index *a, size_t i, const struct value_index *b, size_t j)
{
    for (unsigned part = 0; part < a->stride; part++)
        if (!require(c, a->items[i * a->stride + part], b->items[j * b->stride + part]))
            return false;
    return true;
}

/* Elements whose key is a leaf are matched by it, the others by their order. */
static bool compare_indexed(struct comparison *c, const struct value_index *a, const struct value_index *b)
{
    if (a->leaf_count != b->leaf_count)
        return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct value *key = a->items[i * a->stride];
        if (!key || !value_is_leaf(key) || value_index_find(a, key) != i)
            continue;
        size_t found = value_index_find(b, key);
        if (found == SIZE_MAX || !require_element(c, a, i, b, found))
            return false;
    }
    size_t i = next_with_parts(a, 0), j = next_with_parts(b, 0);
    while (i < a->count && j < b->count) {
        if (!require_element(c, a, i, b, j))
            return false;
        i = next_with_parts(a, i + 1);
        j = next_with_parts(b, j + 1);
    }
    return i >= a->count && j >= b->count;
}

static bool compare_unordered(struct comparison *c, struct value *const *a, size_t a_count, struct value *const *b, size_t b_count,
                              unsigned stride)
{
    struct value_index a_index, b_index;
    if (!work_take_steps(c->work, (uint64_t)a_count + b_count))
        return value_compare_out_of_memory(c);
    if (!value_index_build(&a_index, a, a_count, stride, c->seed))
        return value_compare_out_of_memory(c);
    if (!value_index_build(&b_index, b, b_count, stride, c->seed)) {
        value_index_release(&a_index);
        return value_compare_out_of_memory(c);
    }
    bool equal = compare_indexed(c, &a_index, &b_index);
    value_index_release(&a_index);
    value_index_release(&b_index);
    return equal;
}

static bool value_compare_built(struct comparison *c, const struct value_object *a, const struct value_object *b)
{
    return value_compare_items(c, a->states, a->state_count, b->states, b->state_count) &&
           value_compare_items(c, a->list_items, a->list_count, b->list_items, b->list_count) &&
           compare_unordered(c, a->dict_items, a->dict_count, b->dict_items, b->dict_count, 2) &&
           compare_unordered(c, a->set_items, a->set_count, b->set_items, b->set_count, 1);
}

/* How an object is made. Protocols below 4 spell class.__new__(class, *args, **kwargs) as a call of copyreg.__newobj_ex__. */
struct making {
    enum value_kind kind;
    const struct value *callable, *args, *kwargs;
};

static struct making making_of(const struct value *value)
{
    const struct value_object *object = value->object;
    const struct value *args = object->args;
    if (value_is_call(value, "copyreg", "__newobj_ex__") && value->kind == VALUE_CALL && args && args->kind == VALUE_TUPLE &&
        args->list.count == 3)
        return (struct making){ VALUE_NEW, args->list.items[0], args->list.items[1], args->list.items[2] };
    return (struct making){ (enum value_kind)value->kind, object->callable, object->args, object->kwargs };
}

static bool value_compare_objects(struct comparison *c, const struct value *a, const struct value *b)
{
    const struct making x = making_of(a), y = making_of(b);
    return x.kind == y.kind && require(c, x.callable, y.callable) && require(c, x.args, y.args) && require(c, x.kwargs, y.kwargs) &&
           value_compare_built(c, a->object, b->object);
}

static bool is_frozen(const struct value *set)
{
    return set->kind == VALUE_FROZENSET || value_is_call(set, "builtins", "frozenset");
}

static bool is_object(const struct value *value)
{
    return value->kind == VALUE_CALL || value->kind == VALUE_NEW;
}

static bool compare_parts(struct comparison *c, const struct value *a, const struct value *b)
{
    struct value **a_items, **b_items;
    size_t a_count, b_count;
    bool equal;
    if (value_as_set(a, &a_items, &a_count) && value_as_set(b, &b_items, &b_count))
        return is_frozen(a) == is_frozen(b) && compare_unordered(c, a_items, a_count, b_items, b_count, 1);
    if (is_object(a) && is_object(b))
        return bytes_compare(c, a, b, &equal) ? equal : !c->no_memory && value_compare_objects(c, a, b);
    if (a->kind != b->kind)
        return false;
    switch ((enum value_kind)a->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
        return value_compare_items(c, a->list.items, a->list.count, b->list.items, b->list.count);
    case VALUE_DICT:
        return compare_unordered(c, a->list.items, a->list.count, b->list.items, b->list.count, 2);
    default:
        if (c->storages && a->storage && b->storage)
            return c->storages->are_equal(c->storages->context, a->storage - 1, b->storage - 1);
        return require(c, a->inner, b->inner);
    }
}

reshard_status value_compare(const struct value *a, const struct value *b, const struct value_storages *storages, struct work *work,
                             bool *equal, reshard_error *err)
{
    struct comparison c = { .seed = hash_table_seed(), .storages = storages, .work = work };
    bool same = require(&c, a, b);
    while (same && c.pending_count) {
        struct pair pair = c.pending[--c.pending_count];
        bool was_joined;
        same = value_compare_join(&c, pair.a, pair.b, &was_joined) && (was_joined || compare_parts(&c, pair.a, pair.b));
    }
    free(c.pending);
    free(c.parents);
    value_table_release(&c.numbers);
    if (c.no_memory)
        return work_error(work, err);
    *equal = same;
    return RESHARD_OK;
}

bool value_equal(const struct value *a, const struct value *b)
{
    bool equal;
    return value_compare(a, b, NULL, NULL, &equal, NULL) == RESHARD_OK && equal;
}
