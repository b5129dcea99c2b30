/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Value: the typed tree (in truth a graph: nodes may be shared, and cycles are legal) that non-tensor data decodes into.
 * Pickles are its richest source: calls and objects are kept as inert nodes that say what the pickle asks for, and
 * nothing is ever called. A graph can be printed as JSON, compared, and written as a pickle again.
 *
 * Nodes live in an arena and are numbered from 0 in order of creation (id), so a visited set is a bitmap over count.
 * Recursion over a graph is forbidden: use value_walk or an explicit stack.
 */
#ifndef BASE_VALUE_H
#define BASE_VALUE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/work.h"
#include "base/limits.h"

enum value_kind {
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIGINT, /* text: two's complement, little-endian */
    VALUE_FLOAT,
    VALUE_STR, /* text: UTF-8, lone surrogates as WTF-8 */
    VALUE_BYTES,
    VALUE_BYTEARRAY,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_SET,
    VALUE_FROZENSET,
    VALUE_DICT,   /* items: key, value, key, value, …; keys are any node and may repeat (the last wins) */
    VALUE_GLOBAL, /* names something: module and name, after Python 2 names are mapped */
    VALUE_CALL,   /* REDUCE, INST: callable(*args) */
    VALUE_NEW,    /* NEWOBJ, NEWOBJ_EX, OBJ: class.__new__(class, *args, **kwargs) */
    VALUE_PERSID  /* object: the payload of a persistent id */
};

struct value;

/* What a CALL or NEW node is made of. */
struct value_object {
    struct value *callable, *args; /* args: a TUPLE (odd inputs: a LIST) */
    struct value *kwargs;          /* NEWOBJ_EX only, else NULL */
    struct value **states;         /* BUILD, in order */
    struct value **list_items;     /* APPEND(S) on it */
    struct value **dict_items;     /* SETITEM(S) on it: key, value, … */
    struct value **set_items;      /* ADDITEMS on it */
    uint32_t state_count, list_count, dict_count, set_count; /* dict_count counts nodes: 2 a pair */
};

struct value {
    uint8_t kind;
    uint8_t via_inst;  /* CALL made by INST, NEW made by OBJ: for exact re-writing */
    uint16_t reserved;
    uint32_t id;
    uint32_t tensor;   /* 1 + index in the owner's table if this node denotes a tensor or storage, else 0 */
    uint32_t storage;  /* PERSID: 1 + index of the storage in the owner's table, else 0 */
    uint64_t offset;   /* where in the source it was made, for messages */
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct str text;                                      /* STR BYTES BYTEARRAY BIGINT */
        struct { struct value **items; size_t count; } list;  /* LIST TUPLE SET FROZENSET DICT */
        struct { struct str module, name; } global;
        struct value_object *object;                          /* CALL NEW */
        struct value *inner;                                  /* PERSID */
    };
};

struct value_graph {
    struct arena arena;
    struct value *root;
    uint32_t count; /* nodes made so far */
    uint32_t spare_count;
    struct value *spare; /* room for the next nodes */
};

/* New nodes of a graph; NULL without memory. A CALL or NEW has an empty object. Texts are copied, items arrays are taken as they are (arena
 * or longer-lived). */
struct value *value_new(struct value_graph *graph, enum value_kind kind);
struct value *value_new_int(struct value_graph *graph, int64_t integer);
struct value *value_new_str(struct value_graph *graph, struct str text);
struct value *value_new_global(struct value_graph *graph, const char *module, const char *name);
struct value *value_new_list(struct value_graph *graph, enum value_kind kind, struct value **items, size_t count);
struct value *value_new_call(struct value_graph *graph, struct value *callable, struct value **args, size_t count);
void value_graph_release(struct value_graph *graph);

/* Deep copy of a graph's part into another graph; sharing and cycles are kept. NULL without memory, or when the work of its arena is spent.
 */
struct value *value_copy(struct value_graph *into, const struct value *value, uint32_t source_count);

bool value_is_global(const struct value *value, const char *module, const char *name);

/* CALL or NEW whose callable is the GLOBAL module.name. */
bool value_is_call(const struct value *value, const char *module, const char *name);

/* DICT (or dict-like CALL such as OrderedDict, by its dict_items): value of the string key; the last one wins; NULL if absent. */
struct value *value_dict_get(const struct value *dict, const char *key);
struct value *value_dict_find(const struct value *dict, struct str key);

/* Whether the dict (may be NULL) has True under the key. */
bool value_dict_is_true(const struct value *dict, const char *key);

/* Sets a member of a DICT of the graph; a key that is not there is added if must_be. false without memory. */
bool value_dict_set(struct value_graph *graph, struct value *dict, const char *key, struct value *value, bool must_be);

/* The mapping view of a node: true for DICT and for CALL/NEW of collections.OrderedDict, defaultdict, Counter; *pairs is the
 * array key, value, … and *count the number of nodes in it. */
bool value_as_mapping(const struct value *value, struct value ***pairs, size_t *count);

/* LIST or TUPLE, and torch.Size(tuple): the items. */
bool value_as_sequence(const struct value *value, struct value ***items, size_t *count);
/* SET or FROZENSET, and the calls that protocols below 4 write for them: the items. */
bool value_as_set(const struct value *value, struct value ***items, size_t *count);
bool value_as_int(const struct value *value, int64_t *out);  /* INT only (a BOOL is not an integer) */
bool value_as_str(const struct value *value, struct str *out); /* STR, or BYTES (Python 2 strings) */

/* Appends the content of BYTES or BYTEARRAY, or of the calls that protocols below 3 write for them, such as
 * _codecs.encode(str, 'latin1'); false if it is none, or out fails. */
bool value_as_bytes(const struct value *value, struct buffer *out);

/* A sequence of integers into out[0..max); *count is set. false if it is none, too long, or a member is no integer. */
bool value_as_ints(const struct value *value, int64_t *out, size_t max, size_t *count);

#define VALUE_JSON_DEPTH_MAX 200

/*
 * Appends the value as JSON; out is left as it was on failure, RESHARD_ERR_LIMIT above the limit (shared nodes are printed
 * each time). Tuples and sets are arrays. A mapping is an object: string keys as they are, integers in decimal, other keys
 * as Python would print them; of equal keys the last counts. Floats have the fewest digits that read back the same; NaN and
 * infinities are the strings "nan", "inf", "-inf"; big integers are numbers. What JSON lacks becomes:
 *   bytes                      {"__bytes__": hex}
 *   a node inside itself       {"__cycle__": true}
 *   what lies deeper than VALUE_JSON_DEPTH_MAX containers {"__too_deep__": true}: most readers of JSON give up soon after
 *   a node that is a tensor    {"__tensor__": index in the owner's table}
 *   a function or class        {"__global__": "module.name"}; the string "torch.float32" for what the torch module holds
 *   torch.device, paths        the strings "cuda:1", "a/b"; a complex number "(1+2j)"
 *   a persistent id            {"__persistent_id__": payload}
 *   any other object           {"__class__": "module.name", "__args__": [...], "__kwargs__": {...}, its attributes,
 *                               "__state__" where the state is no set of attributes ("__states__" if several),
 *                               "__items__", "__dict__", "__set__": what was added to it}, each only where there is some
 */
reshard_status value_to_json(const struct value *value, struct buffer *out, struct named_limit limit, reshard_error *err);

/* The same for readers that use Python's json module: NaN and infinities are the words NaN, Infinity, -Infinity, which it takes. */
reshard_status value_to_python_json(const struct value *value, struct buffer *out, struct named_limit limit, reshard_error *err);

/* Appends the value as Python would print it (objects as calls); false without memory, above out's limit, or when work (may be NULL) is
 * spent. */
bool value_to_repr(const struct value *value, struct buffer *out, struct work *work);

/* Kind as the listing names it: null bool int float str bytes list dict object. */
const char *value_kind_name(const struct value *value);

/* Full name of what an object node is an instance of ("argparse.Namespace"), into out. Empty if it is no object. */
bool value_class_name(const struct value *value, struct buffer *out);

/*
 * Same structure and content, whatever is shared: cycles are equal if following them shows the same for ever. Kinds must be
 * the same (a tuple is no list); the order of set members and of a mapping's keys does not matter, as long as these have no parts.
 * What protocols spell in several ways is the same: sets, bytes, bytearrays, class.__new__ with names, numpy.core and numpy._core.
 * Persistent ids that both name a storage are equal if storages (may be NULL) says that what these hold is, however they are spelled.
 * value_equal says false without memory; value_compare tells, and spends work (may be NULL).
 */
struct value_storages {
    bool (*are_equal)(void *context, uint32_t a, uint32_t b); /* their numbers, from 0 */
    void *context;
};
bool value_equal(const struct value *a, const struct value *b);
reshard_status value_compare(const struct value *a, const struct value *b, const struct value_storages *storages, struct work *work,
                             bool *equal, reshard_error *err);

/*
 * Feeds the structure and content of a value to a digest: node by node in the order of a walk, each once, so that shared parts and cycles
 * cost nothing. Equal values that share other parts differ: it is for finding out whether one stored value has changed. graph_count as
 * below; false without memory, or when work (may be NULL) is spent.
 */
struct digest;
bool value_digest(const struct value *root, uint32_t graph_count, struct work *work, struct digest *digest);

/* Calls visit for every node reachable from root once, parents before children; stops when visit returns false.
 * false: stopped, or no memory or work (then *no_memory is set if not NULL, and work_error tells which). graph_count bounds the ids. */
bool value_walk(const struct value *root, uint32_t graph_count, struct work *work, bool (*visit)(const struct value *value, void *context),
                void *context, bool *no_memory);

#endif
