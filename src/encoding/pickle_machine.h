/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine behind pickle_parse: its state, what every opcode needs, and the table of opcodes. Nobody else includes this.
 *
 * The stack holds nodes only; marks are positions in it, kept apart, and nothing is popped below the topmost mark.
 */
#ifndef ENCODING_PICKLE_MACHINE_H
#define ENCODING_PICKLE_MACHINE_H

#include "base/cursor.h"
#include "encoding/pickle.h"
#include "encoding/pickle_names.h"

#include <inttypes.h>

#define PICKLE_GLOBALS_KEPT 64

struct pickle_machine {
    struct cursor input;
    size_t op_start;          /* of the opcode that is being executed */
    uint64_t base_offset;     /* with shifts: the last one that was passed */
    const struct pickle_shift *shifts;
    size_t shifts_left;
    const struct limits *limits;
    struct value_graph *graph;
    struct pickle_report report;
    reshard_error *err;
    struct value **stack;
    size_t stack_count, stack_capacity;
    size_t *marks;
    size_t mark_count, mark_capacity;
    size_t fence;             /* position of the topmost mark, 0 if there is none */
    struct value **memo;
    size_t memo_count, memo_capacity; /* count: entries that are set */
    struct value *nodes;      /* the rest of a slab in the graph's arena */
    size_t nodes_left, slab_size;
    struct value *result;     /* set by STOP */
    struct value *globals[PICKLE_GLOBALS_KEPT]; /* the last ones by their names: a class that is named again is the same node */
    int protocol;             /* as the last PROTO said */
    bool takes_ids;           /* persistent ones */
};

#define PICKLE_LINE_MAX 65536

reshard_status pickle_fail(struct pickle_machine *m, reshard_status code, const char *format, ...) PRINTF_LIKE(3, 4);
reshard_status pickle_fail_limit(struct pickle_machine *m, const char *limit_name, uint64_t found, uint64_t limit);
reshard_status pickle_fail_underflow(struct pickle_machine *m);

/* A new node of the kind at the current opcode; NULL after setting the error. */
struct value *pickle_node(struct pickle_machine *m, enum value_kind kind, reshard_status *status);
reshard_status pickle_stack_grow(struct pickle_machine *m);

static inline reshard_status pickle_push(struct pickle_machine *m, struct value *value)
{
    if (m->stack_count == m->stack_capacity) {
        reshard_status status = pickle_stack_grow(m);
        if (status)
            return status;
    }
    m->stack[m->stack_count++] = value;
    return RESHARD_OK;
}

/* Whether count values lie above the topmost mark. */
static inline bool pickle_has(const struct pickle_machine *m, size_t count)
{
    return m->stack_count - m->fence >= count;
}

static inline struct value *pickle_top(const struct pickle_machine *m)
{
    return m->stack[m->stack_count - 1];
}

/* Removes the topmost mark and everything above it; the values stay readable at *items until the next push. */
reshard_status pickle_pop_mark(struct pickle_machine *m, struct value ***items, size_t *count);

/* Pushes a new STR; checks length and encoding. */
reshard_status pickle_push_text(struct pickle_machine *m, struct str text);

/* Pushes an integer given as little-endian two's complement: INT if it fits 64 bits, else BIGINT. text must outlive the graph. */
reshard_status pickle_push_integer(struct pickle_machine *m, struct str bytes);

/* Pushes a GLOBAL; checks and modernises the names. */
reshard_status pickle_push_global(struct pickle_machine *m, struct str module, struct str name);
reshard_status pickle_read_line(struct pickle_machine *m, size_t size_max, struct str *out);

/*
 * byte, name, whether torch's weights_only loader takes it. The handlers of scalars, the memo and the stack are in
 * pickle_read.c, those with text arguments in pickle_text.c, those that build containers and objects in pickle_build.c.
 */
#define PICKLE_OPCODES(X)            \
    X(0x28, mark, true)              \
    X(0x29, empty_tuple, true)       \
    X(0x2E, stop, true)              \
    X(0x30, pop, false)              \
    X(0x31, pop_mark, false)         \
    X(0x32, dup, false)              \
    X(0x42, binbytes, false)         \
    X(0x43, short_binbytes, false)   \
    X(0x46, float, false)            \
    X(0x47, binfloat, true)          \
    X(0x49, int, false)              \
    X(0x4A, binint, true)            \
    X(0x4B, binint1, true)           \
    X(0x4C, long, false)             \
    X(0x4D, binint2, true)           \
    X(0x4E, none, true)              \
    X(0x50, persid, false)           \
    X(0x51, binpersid, true)         \
    X(0x52, reduce, true)            \
    X(0x53, string, false)           \
    X(0x54, binstring, false)        \
    X(0x55, short_binstring, true)   \
    X(0x56, unicode, false)          \
    X(0x58, binunicode, true)        \
    X(0x5D, empty_list, true)        \
    X(0x61, append, true)            \
    X(0x62, build, true)             \
    X(0x63, global, true)            \
    X(0x64, dict, false)             \
    X(0x65, appends, true)           \
    X(0x67, get, false)              \
    X(0x68, binget, true)            \
    X(0x69, inst, false)             \
    X(0x6A, long_binget, true)       \
    X(0x6C, list, false)             \
    X(0x6F, obj, false)              \
    X(0x70, put, false)              \
    X(0x71, binput, true)            \
    X(0x72, long_binput, true)       \
    X(0x73, setitem, true)           \
    X(0x74, tuple, true)             \
    X(0x75, setitems, true)          \
    X(0x7D, empty_dict, true)        \
    X(0x80, proto, true)             \
    X(0x81, newobj, true)            \
    X(0x82, ext, false)              \
    X(0x83, ext, false)              \
    X(0x84, ext, false)              \
    X(0x85, tuple1, true)            \
    X(0x86, tuple2, true)            \
    X(0x87, tuple3, true)            \
    X(0x88, newtrue, true)           \
    X(0x89, newfalse, true)          \
    X(0x8A, long1, true)             \
    X(0x8B, long4, false)            \
    X(0x8C, short_binunicode, false) \
    X(0x8D, binunicode8, false)      \
    X(0x8E, binbytes8, false)        \
    X(0x8F, empty_set, true)         \
    X(0x90, additems, false)         \
    X(0x91, frozenset, false)        \
    X(0x92, newobj_ex, false)        \
    X(0x93, stack_global, false)     \
    X(0x94, memoize, false)          \
    X(0x95, frame, false)            \
    X(0x96, bytearray8, false)       \
    X(0x97, buffer, false)           \
    X(0x98, buffer, false)

/* Declares the handlers. A name that occurs twice is declared twice, which is harmless. */
#define X(byte, name, weights_only) reshard_status pickle_op_##name(struct pickle_machine *m);
PICKLE_OPCODES(X)
#undef X

#endif
