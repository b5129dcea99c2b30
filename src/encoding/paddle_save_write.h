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
enum paddle_step { PADDLE_LEAF, PADDLE_OPEN_DICT, PADDLE_OPEN_LIST, PADDLE_CLOSE };
enum paddle_key { PADDLE_KEY_TEXT, PADDLE_KEY_NUMBER, PADDLE_NO_KEY };

/* A member of the dict: an array, or a value. */
struct paddle_member {
    enum paddle_step step;
    enum paddle_key key_kind;  /* PADDLE_NO_KEY: of members of a list, and of PADDLE_CLOSE */
    struct str key;
    int64_t key_number;
    uint64_t member_count;     /* of a container that begins */
    const struct value *value; /* NULL: an array */
    uint32_t graph_count;      /* nodes of the value's graph */
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
    bool is_one_array;     /* there is no dict: the one member is all */
    reshard_status (*member)(void *context, uint64_t index, struct paddle_member *out, reshard_error *err);
    void *context;
    int protocol;          /* 4 or 5 */
    bool is_numpy2;        /* module names of NumPy 2; the older ones are good for both */
    bool has_no_names;     /* no table at all */
    struct work *work;     /* for the writing of values; may be NULL */
};

/* Whether paddle.save can hold elements of the type: bfloat16 as uint16, float8 as int8, with nothing in the file that says so. */
bool paddle_save_can_hold(enum dtype dtype);

/* Payload offsets by member into offsets (count numbers; may be NULL; those of values are 0), and the size of the file. */
reshard_status paddle_save_plan(const struct paddle_content *content, uint64_t *offsets, uint64_t *bytes, reshard_error *err);

/* Emits every byte that is no payload, in ascending order. */
reshard_status paddle_save_write(const struct paddle_content *content, pickle_sink sink, void *context, reshard_error *err);

#endif
