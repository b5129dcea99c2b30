/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fast way's pickle machine. Its values are words of 64 bits: a tag in the low five bits, above it a small number or a
 * position in an array. Shapes that torch writes are recognised where they end (REDUCE, BUILD, APPENDS, SETITEMS), so that
 * a chunk leaves a chunk number on the stack and nothing else.
 *
 * Whatever the machine does not expect makes it give up: it never says that a pickle is broken, the general way does.
 *
 * Memory: integer tuples become interned vectors. Other tuples lie in a pool of words; lists and dicts are containers, of
 * which a list of chunks with consecutive numbers, and a dict from indexes to ranges, keep only where they start. Pool and
 * containers are stacks: what was made after an attribute dict goes when an object has taken the dict in, unless the memo
 * holds it. The memo keeps only entries that some GET may ask for, which is found out before: every occurrence of the
 * opcode's byte, whether or not it is one, counts.
 */
#ifndef FORMATS_DCP_METADATA_MACHINE_H
#define FORMATS_DCP_METADATA_MACHINE_H

#include "base/cursor.h"
#include "formats/dcp/metadata_build.h"

typedef uint64_t word;

enum word_tag {
    WORD_UNSET,    /* no value: memo entries that were never put */
    WORD_NONE,
    WORD_TRUE,
    WORD_FALSE,
    WORD_INT,      /* the number */
    WORD_STR,      /* position of the opcode << 8 | attribute */
    WORD_GLOBAL,   /* in globals */
    WORD_OPAQUE,   /* anything whose content does not matter; 1: an object, which may take items and a state */
    WORD_VECTOR,   /* tuple of integers: vector */
    WORD_TUPLE,    /* other tuple: pool[i] is the count, the items follow */
    WORD_LIST,     /* container */
    WORD_DICT,     /* container */
    WORD_SIZE,     /* torch.Size: vector */
    WORD_PATH,     /* pathlib path: text */
    WORD_NEW,      /* object without state: its class in globals */
    WORD_SLOT,     /* the same, but the memo knows it: in slots */
    WORD_PROPERTIES, /* its dtype in globals */
    WORD_CHUNK, WORD_TENSOR, WORD_INDEX, WORD_RANGE, /* number of each */
    WORD_STORAGE_META,
    WORD_ROOT      /* its attributes: container */
};

#define WORD_TAG_BITS 5
#define WORD_INT_MAX (INT64_C(1) << 57)

static inline word word_make(enum word_tag tag, uint64_t payload)
{
    return payload << WORD_TAG_BITS | tag;
}

static inline enum word_tag word_tag(word w)
{
    return (enum word_tag)(w & ((1 << WORD_TAG_BITS) - 1));
}

static inline uint64_t word_payload(word w)
{
    return w >> WORD_TAG_BITS;
}

static inline int64_t word_int(word w)
{
    return (int64_t)w >> WORD_TAG_BITS;
}

static inline enum dcp_attribute word_attribute(word w)
{
    return word_tag(w) == WORD_STR ? (enum dcp_attribute)(word_payload(w) & 0xFF) : DCP_ATTR_NONE;
}

/* The result of each step. The machine's status says why it failed, if it did. */
enum step { STEP_ON, STEP_GIVE_UP, STEP_FAILED };

struct machine_global {
    struct str module, name; /* in names' arena, or a constant */
    enum dcp_class class;
};

struct container {
    bool is_dict, is_run;
    bool is_taken;                 /* an object has read it, so it may not change any more */
    uint32_t run_first, run_value; /* a run: chunks from run_first on; or indexes from run_first on to ranges from run_value on */
    uint64_t count, capacity;      /* words: two a pair */
    word *items;                   /* unless it is a run */
    uint64_t pool_before;          /* pool_count when it was made */
};

/* A tensor whose place is not yet known. */
struct machine_tensor {
    uint32_t dtype;  /* text */
    uint32_t size, first_chunk, chunk_count;
};

/* What a GET at some place of a record led to the last time: the same bytes lead there again. */
struct get_role {
    uint64_t bytes, mask; /* of the next eight bytes of input; mask 0: nothing yet */
    uint8_t size;
    word value;
};

#define RECORD_KEYS_MAX 8
struct record_roles {
    struct get_role keys[RECORD_KEYS_MAX], strings, size_class;
    uint32_t string_id;  /* name or text of strings */
};

struct machine {
    struct dcp_build *build;
    struct cursor input;
    const uint8_t *data;
    reshard_status status;
    word *stack;
    size_t stack_count, stack_capacity;
    size_t *marks;
    size_t mark_count, mark_capacity, fence;
    struct container *containers;
    size_t container_count, container_capacity, container_made; /* made: have memory to reuse */
    size_t container_floor;      /* those below are held by the memo */
    word *pool;
    size_t pool_count, pool_capacity, pool_floor;
    word *slots;
    size_t slot_count, slot_capacity;
    struct machine_tensor *tensors;
    size_t tensor_count, tensor_capacity;
    struct machine_global *globals;
    size_t global_count, global_capacity;
    struct name_map global_names;

    uint64_t *memo_bits;         /* which entries are kept */
    uint32_t *memo_ranks;        /* kept entries before each 64 bits */
    word *memo;
    uint64_t memo_bit_count, memo_count;
    bool uses_memoize, uses_put;
    int protocol;

    struct record_roles roles[3]; /* chunk, index, range */
    word checkpoint_id, save_id, load_id; /* of STORAGE_META */
    struct { uint64_t position; uint32_t id; } name_cache[1024], text_cache[64];
};

/* ---- metadata_memo.c ---- */

/* Finds the memo entries that may be asked for. */
enum step dcp_memo_scan(struct machine *m);
enum step dcp_memo_put(struct machine *m, uint64_t index);
enum step dcp_memoize(struct machine *m);

static inline bool dcp_memo_is_kept(const struct machine *m, uint64_t index)
{
    return index < m->memo_bit_count && m->memo_bits[index >> 6] >> (index & 63) & 1;
}

static inline word *dcp_memo_slot(struct machine *m, uint64_t index)
{
    uint64_t below = m->memo_bits[index >> 6] & ((UINT64_C(1) << (index & 63)) - 1);
    return &m->memo[m->memo_ranks[index >> 6] + (unsigned)__builtin_popcountll(below)];
}

/* Whether none of the count (at most 32) entries from index on is kept. */
static inline bool dcp_memo_is_free(const struct machine *m, uint64_t index, unsigned count)
{
    uint64_t place = index >> 6, window = 0;
    unsigned shift = index & 63;
    if (index < m->memo_bit_count)
        window = m->memo_bits[place] >> shift;
    if (shift > 32 && (place + 1) << 6 < m->memo_bit_count)
        window |= m->memo_bits[place + 1] << (64 - shift);
    return !(window & ((UINT64_C(1) << count) - 1));
}

/* The entry, or a word of tag UNSET. */
static inline word dcp_memo_get(struct machine *m, uint64_t index)
{
    return dcp_memo_is_kept(m, index) ? *dcp_memo_slot(m, index) : 0;
}

/* ---- metadata_machine.c ---- */

enum step dcp_machine_fail(struct machine *m, reshard_status status);
enum step dcp_machine_grow(struct machine *m, void *array, size_t *capacity, size_t element_size);

static inline enum step dcp_push(struct machine *m, word w)
{
    if (m->stack_count == m->stack_capacity) {
        enum step step = dcp_machine_grow(m, &m->stack, &m->stack_capacity, sizeof(*m->stack));
        if (step)
            return step;
    }
    m->stack[m->stack_count++] = w;
    return STEP_ON;
}

/* The object behind a slot, once it is built. */
static inline word dcp_resolve(const struct machine *m, word w)
{
    return word_tag(w) == WORD_SLOT ? m->slots[word_payload(w)] : w;
}

/* Class of a NEW or GLOBAL word, DCP_CLASS_UNKNOWN for others. */
enum dcp_class dcp_word_class(const struct machine *m, word w);

/* The text of a STR word, which lies in the input. */
struct str dcp_word_text(const struct machine *m, word w);

/* Number of a STR word in names or texts. */
enum step dcp_word_name(struct machine *m, word w, uint32_t *out);
enum step dcp_word_to_text(struct machine *m, word w, uint32_t *out);

/* A STR word for the string opcode at position, checked; *end is behind it. */
enum step dcp_read_string(struct machine *m, size_t position, word *out, size_t *end);

enum step dcp_vector(struct machine *m, const int64_t *values, size_t count, uint32_t *out);

/* ---- metadata_shapes.c: what the opcodes that end a shape do ---- */

enum step dcp_shape_tuple(struct machine *m, const word *items, size_t count);
enum step dcp_shape_global(struct machine *m, struct str module, struct str name);
enum step dcp_shape_reduce(struct machine *m);
enum step dcp_shape_newobj(struct machine *m);
enum step dcp_shape_build(struct machine *m);
enum step dcp_shape_container(struct machine *m, bool is_dict);
enum step dcp_shape_add(struct machine *m, const word *items, size_t count, bool is_dict);

/* Puts the root's attributes into the build. */
enum step dcp_shape_finish(struct machine *m, word root);

/* ---- metadata_records.c ---- */

/*
 * Called after a GET has pushed the class of a chunk, an index or a range: if a whole record follows in the form that CPython
 * writes, takes it in one go and replaces the class by the finished object. Otherwise nothing happens.
 */
enum step dcp_record(struct machine *m, enum dcp_class class);

#endif
