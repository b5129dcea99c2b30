/* SPDX-License-Identifier: Apache-2.0 */
#include "base/value_parts.h"

#include "base/array.h"
#include "base/hash.h"

#include <math.h>
#include <stdlib.h>

static bool object_child(const struct value_object *object, size_t index, struct value **out)
{
    struct value *const single[] = { object->callable, object->args, object->kwargs };
    struct value *const *const many[] = { object->states, object->list_items, object->dict_items, object->set_items };
    const size_t counts[] = { object->state_count, object->list_count, object->dict_count, object->set_count };
    if (index < 3) {
        *out = single[index];
        return true;
    }
    index -= 3;
    for (int i = 0; i < 4; i++) {
        if (index < counts[i]) {
            *out = many[i][index];
            return true;
        }
        index -= counts[i];
    }
    return false;
}

bool value_child(const struct value *value, size_t index, struct value **out)
{
    switch ((enum value_kind)value->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_SET:
    case VALUE_FROZENSET:
    case VALUE_DICT:
        if (index >= value->list.count)
            return false;
        *out = value->list.items[index];
        return true;
    case VALUE_CALL:
    case VALUE_NEW:
        return object_child(value->object, index, out);
    case VALUE_PERSID:
        if (index > 0)
            return false;
        *out = value->inner;
        return true;
    default:
        return false;
    }
}

bool value_is_leaf(const struct value *value)
{
    return value->kind <= VALUE_BYTEARRAY || value->kind == VALUE_GLOBAL;
}

/* Two's complement without bytes that only repeat the sign. An INT fills `bytes`. */
static struct str integer_bytes(const struct value *value, uint8_t bytes[8])
{
    struct str s = value->text;
    if (value->kind == VALUE_INT) {
        for (int i = 0; i < 8; i++)
            bytes[i] = (uint8_t)((uint64_t)value->integer >> (8 * i));
        s = (struct str){ (const char *)bytes, 8 };
    }
    while (s.size > 1 && (uint8_t)s.data[s.size - 1] == ((uint8_t)s.data[s.size - 2] & 0x80 ? 0xFF : 0))
        s.size--;
    if (s.size == 1 && s.data[0] == 0)
        s.size = 0;
    return s;
}

static bool value_parts_is_integer(const struct value *value)
{
    return value->kind == VALUE_INT || value->kind == VALUE_BIGINT;
}

/* All NaNs are one content; 0.0 and -0.0 are two. */
static uint64_t real_bits(double real)
{
    uint64_t bits;
    if (isnan(real))
        return UINT64_MAX;
    memcpy(&bits, &real, sizeof(bits));
    return bits;
}

/* NumPy 2 gave its core another name, and takes the old one. */
#define NUMPY_CORE_OLD "numpy.core"
#define NUMPY_CORE "numpy._core"

/* What a module of NumPy's core is called within it; another module's name is all of it, and *is_numpy false. */
static struct str module_rest(struct str module, bool *is_numpy)
{
    const size_t old = strlen(NUMPY_CORE_OLD), new = strlen(NUMPY_CORE);
    *is_numpy = str_starts_with(module, NUMPY_CORE_OLD ".") || str_starts_with(module, NUMPY_CORE ".");
    const size_t begin = !*is_numpy ? 0 : str_starts_with(module, NUMPY_CORE ".") ? new : old;
    return (struct str){ module.data + begin, module.size - begin };
}

static bool modules_equal(struct str a, struct str b)
{
    bool a_is_numpy, b_is_numpy;
    const struct str x = module_rest(a, &a_is_numpy), y = module_rest(b, &b_is_numpy);
    return a_is_numpy == b_is_numpy && str_equal(x, y);
}

static uint64_t module_hash(struct str module, uint64_t seed)
{
    bool is_numpy;
    const struct str rest = module_rest(module, &is_numpy);
    return hash64(rest.data, rest.size, seed + is_numpy);
}

bool value_leaf_equal(const struct value *a, const struct value *b)
{
    uint8_t a_bytes[8], b_bytes[8];
    if (value_parts_is_integer(a) && value_parts_is_integer(b)) {
        if (a->kind == VALUE_INT && b->kind == VALUE_INT)
            return a->integer == b->integer;
        return str_equal(integer_bytes(a, a_bytes), integer_bytes(b, b_bytes));
    }
    if (a->kind != b->kind)
        return false;
    switch ((enum value_kind)a->kind) {
    case VALUE_NONE:
        return true;
    case VALUE_BOOL:
        return a->boolean == b->boolean;
    case VALUE_FLOAT:
        return real_bits(a->real) == real_bits(b->real);
    case VALUE_GLOBAL:
        return modules_equal(a->global.module, b->global.module) && str_equal(a->global.name, b->global.name);
    default:
        return str_equal(a->text, b->text);
    }
}

uint64_t value_leaf_hash(const struct value *value, uint64_t seed)
{
    uint8_t bytes[8];
    struct str s;
    uint64_t bits;
    seed += value_parts_is_integer(value) ? VALUE_INT : value->kind;
    switch ((enum value_kind)value->kind) {
    case VALUE_NONE:
        return hash64("", 0, seed);
    case VALUE_BOOL:
        return hash64(value->boolean ? "1" : "0", 1, seed);
    case VALUE_INT:
    case VALUE_BIGINT:
        s = integer_bytes(value, bytes);
        return hash64(s.data, s.size, seed);
    case VALUE_FLOAT:
        bits = real_bits(value->real);
        return hash64(&bits, sizeof(bits), seed);
    case VALUE_GLOBAL:
        return hash64(value->global.name.data, value->global.name.size, module_hash(value->global.module, seed));
    default:
        return hash64(value->text.data, value->text.size, seed);
    }
}

static size_t table_slot(const struct value_slot *slots, size_t capacity, const struct value *node)
{
    size_t slot = (size_t)(((uintptr_t)node >> 3) * UINT64_C(0x9E3779B97F4A7C15) >> 20) & (capacity - 1);
    while (slots[slot].node && slots[slot].node != node)
        slot = (slot + 1) & (capacity - 1);
    return slot;
}

static bool table_grow(struct value_table *table)
{
    size_t capacity = table->capacity ? table->capacity * 2 : 64;
    struct value_slot *slots = array_zeroed(capacity, sizeof(*slots));
    if (!slots)
        return false;
    for (size_t i = 0; i < table->capacity; i++)
        if (table->slots[i].node)
            slots[table_slot(slots, capacity, table->slots[i].node)] = table->slots[i];
    free(table->slots);
    table->slots = slots;
    table->capacity = capacity;
    return true;
}

uint32_t *value_table_at(struct value_table *table, const struct value *node)
{
    if (table->count >= table->capacity / 2 && !table_grow(table))
        return NULL;
    struct value_slot *slot = &table->slots[table_slot(table->slots, table->capacity, node)];
    if (!slot->node) {
        slot->node = node;
        table->count++;
    }
    return &slot->number;
}

void value_table_release(struct value_table *table)
{
    free(table->slots);
    *table = (struct value_table){ 0 };
}

static size_t index_slot(const struct value_index *index, const struct value *leaf)
{
    size_t slot = (size_t)value_leaf_hash(leaf, index->seed) & index->mask;
    while (index->slots[slot] && !value_leaf_equal(index->items[(size_t)(index->slots[slot] - 1) * index->stride], leaf))
        slot = (slot + 1) & index->mask;
    return slot;
}

bool value_index_build(struct value_index *index, struct value *const *items, size_t item_count, unsigned stride, uint64_t seed)
{
    size_t count = item_count / stride, capacity = sizeof(index->small) / sizeof(index->small[0]);
    index->items = items;
    index->count = count;
    index->leaf_count = 0;
    index->stride = stride;
    index->seed = seed;
    index->slots = index->small;
    memset(index->small, 0, sizeof(index->small));
    while (capacity / 2 < count)
        capacity *= 2;
    if (count >= UINT32_MAX)
        return false;
    if (capacity > sizeof(index->small) / sizeof(index->small[0]))
        index->slots = array_zeroed(capacity, sizeof(*index->slots));
    if (!index->slots)
        return false;
    index->mask = capacity - 1;
    for (size_t i = 0; i < count; i++) {
        const struct value *leaf = items[i * stride];
        if (!leaf || !value_is_leaf(leaf))
            continue;
        size_t slot = index_slot(index, leaf);
        index->leaf_count += index->slots[slot] == 0;
        index->slots[slot] = (uint32_t)i + 1;
    }
    return true;
}

size_t value_index_find(const struct value_index *index, const struct value *leaf)
{
    uint32_t found = index->slots[index_slot(index, leaf)];
    return found ? found - 1 : SIZE_MAX;
}

void value_index_release(struct value_index *index)
{
    if (index->slots != index->small)
        free(index->slots);
    index->slots = NULL;
}
