/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pickle writer of protocol 4, byte for byte as CPython's own pickler: frames of 64 KiB, everything that it memoizes memoized in its
 * order, batches of 1000 items. For files that a framework writes with pickle.dump and that are to be the same.
 *
 * Low level: each call appends one construct; failures are kept in out->failed. What CPython saves as one object begins with
 * pickle_modern_node, which ends a frame that is full; the calls below do so where they say "saves".
 */
#ifndef ENCODING_PICKLE_MODERN_H
#define ENCODING_PICKLE_MODERN_H

#include "base/buffer.h"
#include "base/name_map.h"
#include "base/value.h"

#define PICKLE_MODERN_NONE UINT32_MAX

struct pickle_modern {
    struct buffer *out;
    size_t frame;           /* where the open frame's header stands; SIZE_MAX: none is open */
    uint32_t memo_next;
    struct name_map words;  /* texts that are one object wherever they occur: identifiers */
    uint32_t *word_memo;
    uint32_t word_capacity;
};

enum pickle_modern_opcode {
    PICKLE_MODERN_MARK = '(', PICKLE_MODERN_EMPTY_TUPLE = ')', PICKLE_MODERN_EMPTY_LIST = ']', PICKLE_MODERN_EMPTY_DICT = '}',
    PICKLE_MODERN_EMPTY_SET = 0x8F, PICKLE_MODERN_ADDITEMS = 0x90, PICKLE_MODERN_FROZENSET = 0x91, PICKLE_MODERN_STACK_GLOBAL = 0x93,
    PICKLE_MODERN_TUPLE = 't', PICKLE_MODERN_TUPLE1 = 0x85, PICKLE_MODERN_REDUCE = 'R', PICKLE_MODERN_BUILD = 'b',
    PICKLE_MODERN_APPENDS = 'e', PICKLE_MODERN_APPEND = 'a', PICKLE_MODERN_SETITEMS = 'u', PICKLE_MODERN_SETITEM = 's'
};

void pickle_modern_begin(struct pickle_modern *writer, struct buffer *out);
void pickle_modern_end(struct pickle_modern *writer); /* STOP */
void pickle_modern_release(struct pickle_modern *writer);

void pickle_modern_node(struct pickle_modern *writer);
void pickle_modern_put(struct pickle_modern *writer, uint8_t opcode);
uint32_t pickle_modern_memoize(struct pickle_modern *writer); /* returns the index */

/* Saves. */
void pickle_modern_get(struct pickle_modern *writer, uint32_t memo);
void pickle_modern_int(struct pickle_modern *writer, int64_t value);
void pickle_modern_bool(struct pickle_modern *writer, bool value);
uint32_t pickle_modern_text(struct pickle_modern *writer, struct str text);  /* a new object; returns its memo index */
void pickle_modern_word(struct pickle_modern *writer, struct str text);      /* the one object of that text */
void pickle_modern_ints(struct pickle_modern *writer, const int64_t *values, size_t count);      /* a new tuple */
uint32_t pickle_modern_int_list(struct pickle_modern *writer, const int64_t *values, size_t count); /* a new list */

/* Items of a list or pairs of a dict are written in batches: call before item `index` of `count`, and once behind the last with index ==
 * count. */
void pickle_modern_batch(struct pickle_modern *writer, size_t index, size_t count, uint8_t single, uint8_t many);

/*
 * Appends the whole pickle of a graph's node. UNSUPPORTED for what pickle.dump would write in ways that are not known here: objects with a
 * class of their own, persistent ids, tuples inside themselves. Spends work (may be NULL).
 */
reshard_status pickle_modern_write(const struct value *root, uint32_t graph_count, struct work *work, struct buffer *out,
                                   reshard_error *err);

#endif
