/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named limits: everything that can grow on account of the input has one. Users raise them with --limit NAME=VALUE.
 * The table makes the struct, the defaults, the option's help and the documentation.
 */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include "base/error.h"
#include "base/str.h"
#include "base/work.h"

#include <stdbool.h>
#include <stdint.h>

#define LIMITS(X)                                                                                                                          \
    X(work, UINT64_C(1) << 28, "units of work (bytes made, nodes visited, comparisons) beyond 128 for each byte of metadata")              \
    X(metadata_bytes, UINT64_C(4) << 30, "size of one metadata object, such as .metadata or data.pkl")                                     \
    X(json_bytes, UINT64_C(100000000), "size of one JSON header or index")                                                                 \
    X(json_depth, 128, "nesting of JSON")                                                                                                  \
    X(gguf_depth, 64, "nesting of arrays in the metadata of GGUF")                                                                         \
    X(pickle_values, UINT64_C(200000000), "values that one pickle may build")                                                              \
    X(pickle_bytes, UINT64_C(2) << 30, "memory of what one pickle builds")                                                                 \
    X(pickle_depth, 100000, "open marks and nesting of one pickle")                                                                        \
    X(pickle_string_bytes, UINT64_C(256) << 20, "size of one string in a pickle")                                                          \
    X(bigint_bytes, 1024, "size of one integer in a pickle")                                                                               \
    X(memo_gap, 1000000, "how far a memo index may lie beyond the number of entries")                                                      \
    X(zip_entries, UINT64_C(4) << 20, "members of one zip archive")                                                                        \
    X(inflate_ratio, 200, "expansion of a compressed part, above 1 MiB")                                                                   \
    X(inflate_bytes, UINT64_C(64) << 30, "decompressed size of one compressed part")                                                       \
    X(chunk_bytes, UINT64_C(2) << 30, "size of one chunk that is decoded as a whole (zarr)")                                               \
    X(tensors, UINT64_C(100000000), "tensors of one checkpoint")                                                                           \
    X(chunks, UINT64_C(100000000), "chunks of one checkpoint")                                                                             \
    X(objects, UINT64_C(10000000), "files of one checkpoint")                                                                              \
    X(tensor_expansion, UINT64_C(9) << 28,                                                                                                 \
      "bytes that tensors may show beyond those that are stored, in all (views, fill values, compressed zeros)")                           \
    X(box_checks, UINT64_C(1) << 30, "comparisons while one tensor's chunks are checked for overlap")                                      \
    X(item_bytes, UINT64_C(1) << 30, "size of one item that is rewritten or carried along")                                                \
    X(shown_bytes, UINT64_C(32) << 20, "JSON text of one item that is shown")                                                              \
    X(map_text_bytes, UINT64_C(64) << 20, "size of one mapping text")                                                                      \
    X(map_bytes, UINT64_C(512) << 20, "memory of an expanded mapping, and of what its statements make")                                    \
    X(map_names, UINT64_C(20000000), "names in an expanded mapping")                                                                       \
    X(map_pieces, UINT64_C(10000000), "pieces that the statements of a mapping make of all tensors")

struct limits {
#define X(name, value, help) uint64_t name;
    LIMITS(X)
#undef X
    struct work *budget; /* of the run at hand (base/work.h), borrowed; NULL: without an end */
};

extern const struct limits limits_default;

/* A limit for who need not know which: errors tell its name. Without a name it is no user's matter, and cannot be raised. */
struct named_limit {
    const char *name;
    uint64_t value;
    struct work *budget; /* what is made is spent from; may be NULL */
};

#define NAMED_LIMIT(limits, name) ((struct named_limit){ #name, (limits)->name, (limits)->budget })
#define AT_MOST(value) ((struct named_limit){ NULL, value, NULL })

/* RESHARD_ERR_LIMIT: what ("'x.json'", "value as JSON") has found bytes; 0 if it is only known to have too many. */
reshard_status limit_error_bytes(reshard_error *err, struct named_limit limit, const char *what, uint64_t found);

/* Sets the named limit; false if there is no such name. */
bool limits_set(struct limits *limits, struct str name, uint64_t value);

/* The defaults, and those above them that were raised; without a budget. */
struct limits limits_raised(const struct limits *limits);

/* Walks the table: index 0, 1, … until NULL is returned; *help and *value are set. */
const char *limits_describe(int index, const char **help, uint64_t *value);

#endif
