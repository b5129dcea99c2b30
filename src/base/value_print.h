/* SPDX-License-Identifier: Apache-2.0 */
/* What printing a value graph needs in any notation: the stack of open nodes, and which nodes are open. For value_json.c, value_repr.c. */
#ifndef BASE_VALUE_PRINT_H
#define BASE_VALUE_PRINT_H

#include "base/value_parts.h"

enum print_kind {
    PRINT_ITEMS,  /* items, one by one */
    PRINT_PAIRS,  /* items: key, value, … */
    PRINT_OBJECT  /* the sections of node's object */
};

/* A list that is being printed. */
struct print_frame {
    const struct value *node;    /* closed with the frame; NULL: a part of the frame below */
    struct value *const *items;
    size_t count, next;          /* items or pairs */
    uint32_t *order;             /* owned: the pairs to print; NULL: all */
    const char *between, *close; /* texts; between stands before every element but the first */
    uint8_t kind;                /* enum print_kind */
    uint8_t section;             /* PRINT_OBJECT: the next one */
    bool any;                    /* an element was printed */
    bool pair_open;              /* the value of pair is next; only where keys may be open for long */
    size_t pair;
};

struct printer {
    struct buffer *out;
    struct buffer scratch; /* for texts that are escaped afterwards */
    struct print_frame *frames;
    size_t frame_count, frame_capacity;
    struct value_table open; /* 1: on the stack */
    uint64_t seed;
    struct work *work; /* spent in steps for what is visited; who prints spends the bytes */
    bool is_python; /* JSON as Python's module writes it: NaN and Infinity are words */
    bool no_memory;
};

/* Whether node is open already; else it is marked open. */
bool printer_enter(struct printer *printer, const struct value *node, bool *is_open);
bool printer_push(struct printer *printer, struct print_frame frame);

/* Writes the frame's close and takes it off. */
bool printer_pop(struct printer *printer);

/* The next element's number in the top frame, after writing what stands between; SIZE_MAX if there is none. */
bool printer_next(struct printer *printer, size_t *index);

/* Leaves only the last of pairs with equal keys to be printed. */
bool printer_order_pairs(struct printer *printer, struct print_frame *frame);
void printer_release(struct printer *printer);

#endif
