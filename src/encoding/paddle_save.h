/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that paddle.save writes: .pdparams, .pdopt, .distcp, single tensors. A pickle of protocol 2 to 5 with arrays of NumPy in it, or
 * (with use_binary_format) one tensor behind a TensorDesc. Reading finds where the bytes of each array lie; it reads no payload, and calls
 * nothing.
 * Spec: docs/formats/paddle.md.
 */
#ifndef ENCODING_PADDLE_SAVE_H
#define ENCODING_PADDLE_SAVE_H

#include "base/limits.h"
#include "base/name_map.h"
#include "base/reader.h"
#include "base/value.h"
#include "encoding/pickle_skim.h"
#include "tensor/dtype.h"

#define PADDLE_NAME_TABLE "StructuredToParameterName@@"
#define PADDLE_BIG_TABLE "UnpackBigParamInfor@@"

/* Elements in one run of the file. */
struct paddle_part {
    uint64_t offset, stored_bytes;
    uint64_t bytes; /* of the elements */
    bool is_latin1; /* coded as text: CODEC_LATIN1 gives `bytes` bytes of [offset, +stored_bytes) */
};

/* An array, or several that paddle.save cut one into. */
struct paddle_tensor {
    enum dtype dtype;      /* as stored: bfloat16 is U16 (see is_bfloat16), float8 is I8 */
    bool is_big_endian;
    bool is_fortran;       /* the elements lie in column-major order */
    bool is_pair;          /* its array stands in a tuple (name, array) */
    bool is_numpy;         /* paddle.load makes no tensor of it, but leaves it to NumPy */
    bool is_bfloat16;      /* U16 that is none of these, which Paddle takes for bfloat16 */
    int rank;
    const int64_t *shape;  /* arena */
    const struct paddle_part *parts; /* arena; in the order of the elements. One, but for what was cut */
    uint32_t part_count;
    struct str name;       /* the framework's own name, if a tuple (name, array) says it; else "" */
    const struct value *node; /* the array in the graph; that of the first slice for what was cut */
};

/* A member of the outermost dict, helper tables aside. */
struct paddle_entry {
    struct str key;        /* as it is; of a key that is no text what Python prints for it */
    const struct value *key_node; /* NULL: what was cut, or the file is one tensor */
    const struct value *value; /* NULL: PADDLE_BINARY */
    uint32_t tensor;       /* 1 + index, or 0: it is something else, in which tensors may be nested */
    struct str name;       /* the framework's own name, of the name table or of the tensor; else "" */
};

enum paddle_container { PADDLE_PICKLE, PADDLE_BINARY };

struct paddle_archive {
    enum paddle_container container;
    struct value_graph graph;  /* nodes that denote tensors have .tensor = 1 + index, also their wrappers. What was cut stands in the
                                * outermost dict as one tensor. No root for PADDLE_BINARY */
    struct paddle_tensor *tensors;
    uint32_t tensor_count;
    struct paddle_entry *entries; /* in file order. One without a key if the file is one tensor; none if it is neither that nor a dict */
    uint32_t entry_count;
    struct name_map keys;      /* of the entries, numbered like them; keys that are no texts are told apart from texts (paddle_save_find) */
    const struct value *name_table; /* key -> framework name, or NULL */
    const struct value *big_table;  /* the slices of what was cut, or NULL */
    struct str *unknown_globals; /* lenient: "module.name" of what paddle.save never names, each once */
    uint32_t unknown_global_count;
    int protocol;
    uint64_t end;              /* of the pickle, or of the tensor; what follows in the file means nothing */
    struct arena arena;
    struct pickle_skim skim;   /* the graph points into it */
};

/* Whether the first bytes may be those of such a file: a pickle of protocol 2 to 5, or a binary tensor. */
bool paddle_save_probe(const uint8_t *head, size_t size);

struct paddle_open_options {
    const struct limits *limits;
    bool lenient; /* what paddle.save never names (other classes, functions) becomes inert values; else it is an error */
};

reshard_status paddle_save_open(const struct reader *reader, const struct paddle_open_options *options, struct paddle_archive *out,
                                reshard_error *err);

/* Makes an array that stands inside of a value (a set, an object) part of the value: its node denotes no tensor any more, and the elements
 * are read. For what is not listed as a tensor. */
reshard_status paddle_save_load_value(struct paddle_archive *archive, const struct reader *reader, const struct limits *limits,
                                      struct value_graph *graph, const struct value *value, reshard_error *err);
void paddle_save_release(struct paddle_archive *archive);

/* Whether a value can stand in such a file without paddle.load calling anything but what makes plain values of NumPy and Python. If not,
 * *stranger (an arena's text, may stay empty) names what it would call. false in *out also for tensors and storages of other containers,
 * and for arrays that paddle_save_open would refuse. */
reshard_status paddle_save_check_value(const struct value *value, uint32_t graph_count, struct work *work, struct arena *arena, bool *out,
                                       struct str *stranger, reshard_error *err);

/*
 * Whether paddle.load takes the value in a file without a table of names, where it looks into every container for tensors: it fails at
 * bytes, and at what else can be iterated over and is neither dict, OrderedDict, list, tuple, set, text nor array. For what check_value
 * takes.
 */
reshard_status paddle_save_check_load(const struct value *value, uint32_t graph_count, struct work *work, bool *out, reshard_error *err);

/* Entry by a key that is a text: index, or UINT32_MAX. */
uint32_t paddle_save_find(const struct paddle_archive *archive, struct str key);

#endif
