/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a GGUF file, version 2 or 3, in either byte order:
 *
 *   "GGUF"  u32 version  u64 tensors  u64 pairs
 *   pairs:   string key, u32 type, value                  string: u64 length, bytes    array: u32 type, u64 count, values
 *   tensors: string name, u32 axes, u64 dims[axes] (fastest first), u32 type, u64 offset behind the header
 *   zeros up to a multiple of general.alignment (32), data
 *
 * The header is read from front to back, a page at a time; values are passed over, and read when they are wanted.
 */
#ifndef ENCODING_GGUF_H
#define ENCODING_GGUF_H

#include "base/buffer.h"
#include "base/limits.h"
#include "base/name_map.h"
#include "base/reader.h"
#include "base/value.h"
#include "encoding/ggml_blocks.h"
#include "tensor/dtype.h"

#define GGUF_AXES_MAX 4

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
};

/* A place in a file that moves forwards. The reader and the limits outlive it. */
struct gguf_scan {
    const struct reader *reader;
    const struct limits *limits;
    struct buffer page;
    uint64_t page_at; /* where it lies in the file */
    uint64_t at;
    uint64_t counted; /* up to here, bytes have added to the budget of work */
    bool is_swapped;
};
void gguf_scan_release(struct gguf_scan *scan);

struct gguf_pair {
    enum gguf_type type;
    uint64_t offset, bytes; /* of the value */
    uint64_t bits;          /* of a number, as it is stored */
};

enum gguf_kind { GGUF_PLAIN, GGUF_BLOCKS, GGUF_UNKNOWN };

struct gguf_tensor {
    uint32_t number; /* of its type */
    enum gguf_kind kind;
    enum dtype dtype;      /* GGUF_PLAIN */
    enum ggml_block block; /* GGUF_BLOCKS */
    int rank;
    int64_t shape[GGUF_AXES_MAX]; /* slowest first */
    uint64_t offset, bytes;       /* in the file; bytes 0 if GGUF_UNKNOWN */
};

struct gguf_header {
    uint32_t version;
    bool is_swapped; /* big-endian */
    uint64_t alignment, data_start;
    struct name_map keys, names;
    struct gguf_pair *pairs;     /* by number of the key */
    struct gguf_tensor *tensors; /* by number of the name */
    size_t pair_capacity, tensor_capacity;
};

/* Reads and checks all of the header; tensors do not overlap, but may lie behind the end of the file. */
reshard_status gguf_header_read(const struct reader *reader, const struct limits *limits, struct gguf_header *out, reshard_error *err);
void gguf_header_release(struct gguf_header *header);

/* The integer of a key; false if there is none, or it is no integer. */
bool gguf_header_integer(const struct gguf_header *header, const char *key, int64_t *out);

/* The next bytes, good until the next call. Numbers are in the machine's order. */
reshard_status gguf_scan_take(struct gguf_scan *scan, uint64_t size, const char *what, const uint8_t **out, reshard_error *err);
reshard_status gguf_scan_number(struct gguf_scan *scan, int bytes, const char *what, uint64_t *out, reshard_error *err);

/* The length of a string; the file has so many bytes behind it. */
reshard_status gguf_scan_length(struct gguf_scan *scan, const char *what, uint64_t *out, reshard_error *err);

/* Bytes of a number of the type; 0 of strings and arrays. */
int gguf_type_bytes(enum gguf_type type);

/* Passes over a value. With a graph, whose arena has the limit item_bytes and the budget: makes it. Integers, floats, truth values, texts
 * (bytes, where they are none), lists. */
reshard_status gguf_value_skip(struct gguf_scan *scan, enum gguf_type type, reshard_error *err);
reshard_status gguf_value_read(struct gguf_scan *scan, enum gguf_type type, struct value_graph *graph, struct value **out,
                               reshard_error *err);

#endif
