/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a value graph's nodes, seen alike for all kinds; and a table from nodes to numbers. For the value_*.c files. */
#ifndef BASE_VALUE_PARTS_H
#define BASE_VALUE_PARTS_H

#include "base/value.h"

/* Child number index of a node, in document order; false past the last one, leaving *out alone. *out may be NULL: a part that is not there.
 */
bool value_child(const struct value *value, size_t index, struct value **out);

/* Whether the node has no parts and is told apart by its content alone: NONE to BYTEARRAY, and GLOBAL. */
bool value_is_leaf(const struct value *value);
bool value_leaf_equal(const struct value *a, const struct value *b);
uint64_t value_leaf_hash(const struct value *value, uint64_t seed);

/* A CALL of module.name on which nothing was built afterwards: its arguments. */
bool value_is_plain_call(const struct value *value, const char *module, const char *name, struct value ***args, size_t *count);

/* Whether value_as_bytes can take it. */
bool value_is_bytes(const struct value *value);

/* Appends the name of a GLOBAL, or of what getattr(…) names in one ("module.class.name"); false if value has none, or out fails. */
bool value_append_name(const struct value *value, struct buffer *out);

/* What a CALL or NEW makes an instance of (or the function it calls), and how many of its arguments only say so; NULL if it is none. */
const struct value *value_class(const struct value *value, size_t *args_skipped);

/* Node to number. Grows; nothing is ever taken out. { 0 } is empty. */
struct value_table {
    struct value_slot { const struct value *node; uint32_t number; } *slots;
    size_t count, capacity;
};

/* The number kept for the node, 0 at first; NULL without memory. Good until the next call. */
uint32_t *value_table_at(struct value_table *table, const struct value *node);
void value_table_release(struct value_table *table);

/*
 * The leaves among items[0], items[stride], …, by content; of equal ones the last counts. Short arrays need no memory. Not to
 * be moved once built. stride 2 indexes the keys of pairs.
 */
struct value_index {
    struct value *const *items;
    uint32_t *slots; /* position / stride + 1 */
    size_t mask, count, leaf_count; /* leaf_count: different leaves */
    unsigned stride;
    uint64_t seed;
    uint32_t small[64];
};
bool value_index_build(struct value_index *index, struct value *const *items, size_t item_count, unsigned stride, uint64_t seed);

/* Position / stride of the leaf, or SIZE_MAX. */
size_t value_index_find(const struct value_index *index, const struct value *leaf);
void value_index_release(struct value_index *index);

#endif
