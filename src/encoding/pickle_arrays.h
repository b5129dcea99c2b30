/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NumPy arrays inside pickles: what protocols 2 to 4 write (_reconstruct, then a state) and what protocol 5 does (_frombuffer), found in
 * the inert graph of a skimmed pickle. Nothing is called.
 */
#ifndef ENCODING_PICKLE_ARRAYS_H
#define ENCODING_PICKLE_ARRAYS_H

#include "encoding/pickle_skim.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

struct pickle_array {
    enum dtype dtype;   /* as NumPy calls it: paddle's bfloat16 is U16, its float8 I8 */
    bool is_big_endian; /* only where elements have several bytes */
    bool is_fortran;    /* elements lie in column-major order */
    bool is_latin1;     /* the bytes are the code points of UTF-8 text: protocol 2 */
    int rank;
    int64_t shape[RANK_MAX];
    uint64_t offset, stored_bytes; /* in the file */
    uint64_t bytes;     /* of the elements; more stored ones only if is_latin1 */
};

/* Whether the node is a call that makes an array. */
bool pickle_array_is(const struct value *node);

/*
 * Reads such a node. Refuses what no NumPy wrote, and bytes that are not those of the shape. *is_plain false: the elements are none of
 * numbers or bools (Python objects, strings, dates, records), and the array is a value like others.
 */
reshard_status pickle_array_read(const struct pickle_skim *skim, const struct value *node, struct pickle_array *out, bool *is_plain,
                                 reshard_error *err);

/* Whether pickle_array_read takes such a node once it is written: of a value whose strings are loaded. */
bool pickle_array_is_sound(const struct value *node);

/*
 * The elements of an array of Python objects, in the order of its rows, or of its columns; false if the node is no such array, or their
 * number is not that of its shape.
 */
struct pickle_object_array {
    int rank;
    int64_t shape[RANK_MAX];
    bool is_fortran;
    struct value *const *items;
    size_t count;
};
bool pickle_array_objects(const struct value *node, struct pickle_object_array *out);

/* The string node that holds the elements; NULL if the node is no such array. */
const struct value *pickle_array_payload(const struct value *node);

#endif
