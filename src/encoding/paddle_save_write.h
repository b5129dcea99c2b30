/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes what paddle.save makes of a state dict: a dict of NumPy arrays and other values, the table of the framework's names last.
 * Protocol 4 (which every Paddle since 2.1.1 reads) or 5. Payload is left out: paddle_save_plan says where each array's elements go. The
 * bytes are those of CPython's pickler. Spec: docs/formats/paddle.md.
 */
#ifndef ENCODING_PADDLE_SAVE_WRITE_H
#define ENCODING_PADDLE_SAVE_WRITE_H

#include "base/work.h"
#include "encoding/pickle_stream.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

/* What a member is: a leaf, or the begin or the end of a container that holds the members between them. */
enum paddle_step { PADDLE_LEAF, PADDLE_OPEN_DICT, PADDLE_OPEN_LIST, PADDLE_OPEN_TUPLE, PADDLE_OPEN_OBJECT, PADDLE_CLOSE };
enum paddle_key { PADDLE_KEY_TEXT, PADDLE_KEY_NUMBER, PADDLE_KEY_VALUE, PADDLE_NO_KEY };

/* A member of the dict: an array, or a value. */
struct paddle_member {
    enum paddle_step step;
    enum paddle_key key_kind;  /* PADDLE_NO_KEY: of members of a list or tuple, and of PADDLE_CLOSE */
    struct str key;
    int64_t key_number;
    const struct value *key_value;
    uint32_t graph_count;      /* nodes of the graph of key_value and of the value of PADDLE_OPEN_OBJECT */
    uint64_t member_count;     /* of a container that begins */
    const struct value *value; /* of a leaf; NULL: an array. Of PADDLE_OPEN_OBJECT the call that made the dict-like object: its class,
                                * what the class takes beside members, and attributes come from there */
    uint32_t value_graph_count; /* PADDLE_LEAF: nodes of the value's graph */
    bool is_stateless;         /* PADDLE_OPEN_OBJECT: without the attributes */
    enum dtype dtype;
    int rank;
    const int64_t *shape;      /* row-major */
    struct str name;           /* of the framework; "": the key. paddle.load makes tensors of what is in the table */
    bool is_bare;              /* not in the table: paddle.load leaves the array to NumPy */
    bool is_pair;              /* a tuple (name, array), as tensors in nested objects are */
};

/* What to write; member is asked for each index twice each time, in order. What it points to must last until the next call. */
struct paddle_content {
    uint64_t count;        /* members and ends of containers */
    uint64_t member_count; /* of the outermost dict itself; 0: count, nothing is nested */
    const struct paddle_member *root; /* begins the outermost container, without key and member_count; NULL: a dict */
    bool is_one;           /* there is no container: the one member is all */
    reshard_status (*member)(void *context, uint64_t index, struct paddle_member *out, reshard_error *err);
    void *context;
    int protocol;          /* 4 or 5 */
    bool is_numpy2;        /* module names of NumPy 2; the older ones are good for both */
    bool has_no_names;     /* no table at all; a list or tuple has none */
    struct work *work;     /* for the writing of values; may be NULL */
};

/* What the class of a dict-like object takes beside members; NULL: nothing. */
const struct value *paddle_save_class_argument(const struct value *object);

/* Whether paddle.save can hold elements of the type: bfloat16 as uint16, float8 as int8, with nothing in the file that says so. */
bool paddle_save_can_hold(enum dtype dtype);

/* The same for arrays that are left to NumPy, which has more types. */
bool paddle_save_can_hold_bare(enum dtype dtype);

/* Payload offsets by member into offsets (count numbers; may be NULL; those of values are 0), and the size of the file. */
reshard_status paddle_save_plan(const struct paddle_content *content, uint64_t *offsets, uint64_t *bytes, reshard_error *err);

/* Emits every byte that is no payload, in ascending order. */
reshard_status paddle_save_write(const struct paddle_content *content, pickle_sink sink, void *context, reshard_error *err);

#endif
