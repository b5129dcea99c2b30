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

/* Pickles of protocol 2 have no bytes: they call _codecs.encode() with a text. */
static bool bytes_equal_call(struct comparison *c, const struct value *leaf, const struct value *call)
{
    struct value **args;
    size_t count;
    struct buffer bytes = { 0 };
    if (leaf->kind != VALUE_BYTES || !value_is_plain_call(call, "_codecs", "encode", &args, &count) || count == 0 || !args[0])
        return false;
    if (!compare_take_text(c, args[0], DECODED_UNITS) || !value_is_bytes(call))
        return false;
    bool is_read = value_as_bytes(call, &bytes);
    bool is_same = is_read && str_equal(buffer_str(&bytes), leaf->text);
    c->no_memory |= !is_read;
    buffer_release(&bytes);
    return is_same;
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
    if (value_is_leaf(a) || value_is_leaf(b))
        return value_is_leaf(a) ? bytes_equal_call(c, a, b) : bytes_equal_call(c, b, a);
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

static bool value_compare_objects(struct comparison *c, const struct value_object *a, const struct value_object *b)
{
    return require(c, a->callable, b->callable) && require(c, a->args, b->args) && require(c, a->kwargs, b->kwargs) &&
           value_compare_items(c, a->states, a->state_count, b->states, b->state_count) &&
           value_compare_items(c, a->list_items, a->list_count, b->list_items, b->list_count) &&
           compare_unordered(c, a->dict_items, a->dict_count, b->dict_items, b->dict_count, 2) &&
           compare_unordered(c, a->set_items, a->set_count, b->set_items, b->set_count, 1);
}

static bool compare_parts(struct comparison *c, const struct value *a, const struct value *b)
{
    if (a->kind != b->kind)
        return false;
    switch ((enum value_kind)a->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
        return value_compare_items(c, a->list.items, a->list.count, b->list.items, b->list.count);
    case VALUE_SET:
    case VALUE_FROZENSET:
        return compare_unordered(c, a->list.items, a->list.count, b->list.items, b->list.count, 1);
    case VALUE_DICT:
        return compare_unordered(c, a->list.items, a->list.count, b->list.items, b->list.count, 2);
    case VALUE_PERSID:
        if (c->storages && a->storage && b->storage)
            return c->storages->are_equal(c->storages->context, a->storage - 1, b->storage - 1);
        return require(c, a->inner, b->inner);
    default:
        return value_compare_objects(c, a->object, b->object);
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
