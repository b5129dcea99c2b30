/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fast decoder for pickles that are large tables: metadata of checkpoints, which are the same few small objects a million times. The
 * driver gives a table of what its classes and attributes mean (struct records_shapes). Shapes are recognised where they end (REDUCE,
 * BUILD, APPENDS, SETITEMS), so that an object of the driver's leaves its number on the stack and nothing else; and records, objects in the
 * very form in which CPython writes them, are taken in one go.
 *
 * Values are words of 64 bits: a tag in the low five bits, above it a small number or a position in an array.
 *
 * Whatever the decoder does not expect makes it give up: it never says that a pickle is broken. A general way (encoding/pickle.h) does.
 *
 * Memory: integer tuples become vectors, which the driver keeps. Other tuples lie in a pool of words; lists and dicts are containers, of
 * which those that count objects on keep only where they start. Pool and containers are stacks: what was made after an attribute dict goes
 * when an object has taken the dict in, unless the memo holds it. The memo keeps only entries that some GET may ask for, which is found out
 * before: every occurrence of the opcode's byte, whether or not it is one, counts.
 */
#ifndef ENCODING_PICKLE_RECORDS_H
#define ENCODING_PICKLE_RECORDS_H

#include "base/cursor.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/name_map.h"

typedef uint64_t records_word;

enum records_tag {
    RECORDS_UNSET,  /* no value: memo entries that were never put */
    RECORDS_NONE,
    RECORDS_TRUE,
    RECORDS_FALSE,
    RECORDS_INT,    /* the number */
    RECORDS_STR,    /* position of the opcode << 8 | attribute */
    RECORDS_GLOBAL, /* in globals */
    RECORDS_BYTES,  /* position of the opcode */
    RECORDS_OPAQUE, /* anything whose content does not matter; 1: an object, which may take items and a state */
    RECORDS_VECTOR, /* tuple of integers: the driver's vector */
    RECORDS_TUPLE,  /* other tuple: pool[i] is the count, the items follow */
    RECORDS_LIST,   /* container */
    RECORDS_DICT,   /* container */
    RECORDS_SIZE,   /* a call of a RECORDS_IS_SIZE class: vector */
    RECORDS_NEW,    /* object without state: its class in globals */
    RECORDS_SLOT,   /* the same, but the memo knows it: in slots */
    RECORDS_OWN     /* this tag and those up to RECORDS_TAG_MAX are the driver's */
};

#define RECORDS_TAG_BITS 5
#define RECORDS_TAG_MAX ((1 << RECORDS_TAG_BITS) - 1)
#define RECORDS_INT_MAX (INT64_C(1) << 57)
#define RECORDS_ATTRIBUTES_MAX 255

static inline records_word records_word_of(int tag, uint64_t payload)
{
    return payload << RECORDS_TAG_BITS | (unsigned)tag;
}

static inline int records_tag(records_word w)
{
    return (int)(w & RECORDS_TAG_MAX);
}

static inline uint64_t records_payload(records_word w)
{
    return w >> RECORDS_TAG_BITS;
}

static inline int64_t records_int(records_word w)
{
    return (int64_t)w >> RECORDS_TAG_BITS;
}

/* The driver's number of a string that is the name of an attribute; 0 for others. */
static inline unsigned records_attribute(records_word w)
{
    return records_tag(w) == RECORDS_STR ? (unsigned)(records_payload(w) & 0xFF) : 0;
}

/* The number of a name among `names`, of which [0] is none; 0: it is no attribute that has a meaning. */
static inline unsigned records_attribute_find(const struct str *names, unsigned count, struct str name)
{
    for (unsigned i = 1; i < count; i++) {
        if (name.size == names[i].size && name.data[0] == names[i].data[0] && memcmp(name.data, names[i].data, name.size) == 0)
            return i;
    }
    return 0;
}

/* The result of each step. The decoder's status says why it failed, if it did. */
enum records_step { RECORDS_ON, RECORDS_GIVE_UP, RECORDS_FAILED };

/* What becomes of a class. */
enum records_role {
    RECORDS_IS_OPAQUE, /* what is made of it does not matter */
    RECORDS_IS_OBJECT, /* an object is NEW until `build` gets its state */
    RECORDS_IS_SIZE,   /* a call with a tuple of integers is SIZE: torch.Size */
    RECORDS_IS_SCALAR, /* a call with one of the driver's words, its type, and bytes is the INT that `scalar` says: numpy's scalars */
    RECORDS_IS_CALL    /* `call` says what a call gives */
};

struct records_global {
    struct str module, name; /* as in Python 3; they live as long as the decoder */
    enum records_role role;
    int kind;                /* the driver's number */
};

struct records_container {
    bool is_dict, is_run;
    bool is_taken;                 /* an object has read it, so it may not change any more */
    uint32_t run_first, run_value; /* a run: list_tag from run_first on; or key_tag from run_first on to value_tag from run_value on */
    uint64_t count, capacity;      /* words: two a pair */
    records_word *items;           /* unless it is a run */
    uint64_t pool_before;          /* pool_count when it was made */
};

/* ---- records ---- */

#define RECORDS_KEYS_MAX 8
#define RECORDS_SLOTS_MAX 4
#define RECORDS_SPACES 2 /* kinds of strings, which the driver keeps apart */

/* What an attribute of a record is, and in which of the slots of its type it goes; the slot of a string is its space. */
struct records_field {
    uint8_t attribute;
    enum {
        RECORDS_FIELD_SIZE, RECORDS_FIELD_TUPLE,     /* vectors: of a RECORDS_IS_SIZE class, and plain */
        RECORDS_FIELD_NUMBER, RECORDS_FIELD_NATURAL, /* any integer, and one that is not negative */
        RECORDS_FIELD_BOOL,                          /* a number, 0 or 1 */
        RECORDS_FIELD_STRING,
        RECORDS_FIELD_NONE                           /* always None */
    } type;
    uint8_t slot;
    bool is_required, may_be_none;
};

/* What a record has given; where nothing was given or None, a number is -1, and a vector or a string RECORDS_ABSENT. */
#define RECORDS_ABSENT UINT32_MAX
struct records_values {
    uint32_t vectors[RECORDS_SLOTS_MAX], strings[RECORDS_SPACES];
    int64_t numbers[RECORDS_SLOTS_MAX];
};

struct records;

/* A class whose objects are taken as records. */
struct records_shape {
    int kind;
    const struct records_field *fields;
    unsigned field_count;
    reshard_status (*make)(struct records *m, const struct records_values *values, records_word *out);
};
#define RECORDS_SHAPES_MAX 4

/* What the driver says about its pickles, and does with what is in them. */
struct records_shapes {
    int list_tag, key_tag, value_tag; /* tags that come in runs: in a list, and as pairs of a dict */
    const struct records_shape *shapes; /* at most RECORDS_SHAPES_MAX */
    unsigned shape_count;

    /* The number of an attribute that has a meaning, or 0. */
    unsigned (*attribute)(struct str name);

    /* Fills in role and kind of a class. Each is told once, in order of appearance. */
    reshard_status (*classify)(struct records *m, struct records_global *global);

    /* Keeps a vector of at most RANK_MAX numbers; *out is its number. Equal ones may have equal numbers. */
    reshard_status (*keep_vector)(struct records *m, const int64_t *values, size_t count, uint32_t *out);

    /* Keeps a string. */
    reshard_status (*keep_string)(struct records *m, int space, struct str text, uint32_t *out);

    /* What the call of a RECORDS_IS_CALL class gives. */
    enum records_step (*call)(struct records *m, int kind, records_word args, records_word *out);

    /* The number that a RECORDS_IS_SCALAR class makes of a type and bytes; false gives up. NULL: there are none. */
    bool (*scalar)(struct records *m, records_word type, struct str bytes, int64_t *out);

    /* What one of the driver's own words is with a state. NULL gives up. */
    enum records_step (*restate)(struct records *m, records_word w, records_word state, records_word *out);

    /* What an object with that state is, in words of the driver's tags. */
    enum records_step (*build)(struct records *m, records_word object, records_word state, records_word *out);

    /* Takes what the whole pickle is. */
    enum records_step (*finish)(struct records *m, records_word root);
};

/* What a GET at some place of a record led to the last time: the same bytes lead there again. */
struct records_get {
    uint64_t bytes, mask; /* of the next eight bytes of input; mask 0: nothing yet */
    uint8_t size;
    const struct records_field *field; /* of a key */
    records_word value;
};

struct records_seen {
    struct records_get keys[RECORDS_KEYS_MAX], strings[RECORDS_SPACES], size_class;
    uint32_t string_ids[RECORDS_SPACES];
};

/* ---- the decoder ---- */

struct records {
    const struct records_shapes *shapes;
    void *context;               /* the driver's own */
    const struct limits *limits;
    reshard_error *err;
    struct cursor input;
    const uint8_t *data;
    reshard_status status;
    records_word *stack;
    size_t stack_count, stack_capacity;
    size_t *marks;
    size_t mark_count, mark_capacity, fence;
    struct records_container *containers;
    size_t container_count, container_capacity, container_made; /* made: have memory to reuse */
    size_t container_floor;      /* those below are held by the memo */
    records_word *pool;
    size_t pool_count, pool_capacity, pool_floor;
    records_word *slots;
    size_t slot_count, slot_capacity;
    struct records_global *globals;
    size_t global_count, global_capacity;
    struct name_map global_names;

    uint64_t *memo_bits;         /* which entries are kept */
    uint32_t *memo_ranks;        /* kept entries before each 64 bits */
    records_word *memo;
    uint64_t memo_bit_count, memo_count;
    bool uses_memoize, uses_put;
    int protocol, first_protocol; /* of the last PROTO, and of the one at the start */

    struct records_seen seen[RECORDS_SHAPES_MAX];
    struct { uint64_t position; uint32_t id; } string_cache[RECORDS_SPACES][1024]; /* by space */
};

/*
 * Decodes a whole pickle. *is_done false: it is not of the expected shape (perhaps broken), and nothing is said about it; what the driver
 * has kept must be thrown away. Errors are memory, limits, and the driver's.
 */
reshard_status records_decode(const void *bytes, size_t size, const struct records_shapes *shapes, void *context,
                              const struct limits *limits, bool *is_done, int *protocol, reshard_error *err);

/* ---- for the driver's functions ---- */

enum records_step records_fail(struct records *m, reshard_status status);

/* array: the address of a pointer of any type. */
enum records_step records_grow(struct records *m, void *array, size_t *capacity, size_t element_size);

/* The object behind a slot, once it is built. */
static inline records_word records_resolve(const struct records *m, records_word w)
{
    return records_tag(w) == RECORDS_SLOT ? m->slots[records_payload(w)] : w;
}

/* The global that a NEW or GLOBAL word is of, NULL for others. */
const struct records_global *records_class(const struct records *m, records_word w);

/* The text of a STR word, which lies in the input. */
struct str records_text(const struct records *m, records_word w);

/* The content of a BYTES word, which lies in the input. */
struct str records_bytes(const struct records *m, records_word w);

/* The number of a STR word's text in a space. */
enum records_step records_string(struct records *m, int space, records_word w, uint32_t *out);

/* The items of a TUPLE. Those of a VECTOR are the driver's. */
static inline const records_word *records_tuple(const struct records *m, records_word w, size_t *count)
{
    *count = (size_t)m->pool[records_payload(w)];
    return m->pool + records_payload(w) + 1;
}

/* Marks a list or dict as read, so that it stays as it is. */
static inline const struct records_container *records_take_container(struct records *m, records_word w)
{
    struct records_container *container = &m->containers[records_payload(w)];
    container->is_taken = true;
    return container;
}

/* All that was made stays, whatever happens. */
static inline void records_keep_all(struct records *m)
{
    m->container_floor = m->container_count;
    m->pool_floor = m->pool_count;
}

/* The attributes that an object's state gives, by number; UNSET if absent. False if the state is no dict of attributes. */
bool records_read_attributes(struct records *m, records_word state, records_word *values, unsigned count);

/* Whether the word is a tuple of integers or a size; its vector. */
static inline bool records_is_vector(records_word w, uint32_t *out)
{
    *out = (uint32_t)records_payload(w);
    return records_tag(w) == RECORDS_SIZE || records_tag(w) == RECORDS_VECTOR;
}

static inline bool records_is_absent(records_word w)
{
    return records_tag(w) == RECORDS_UNSET || records_tag(w) == RECORDS_NONE;
}

#endif
