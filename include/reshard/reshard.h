/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libreshard: opens sharded deep-learning checkpoints of any known format and writes them under any other layout or format.
 *
 * Strings that come from checkpoints are (pointer, size): they may hold any byte. Sizes are in bytes, shapes and boxes in elements,
 * row-major.
 *
 * Structs. All but reshard_str begin with struct_size, which the caller sets, best by the struct's _INIT macro. Later versions add members
 * behind the last: a program that was built with an older header passes a smaller struct, and what it does not know has its default. A
 * larger struct is taken as long as the bytes that this version does not know are zero, else it is RESHARD_ERR_USAGE. Structs in an array
 * have no struct_size: the struct that the array is passed in says how far they lie apart (the _INIT macros set that). A struct with
 * nothing but struct_size set, and strides of arrays where there are any, asks for the defaults.
 *
 * Results. What a function writes to, it writes on failure too: structs are zeroed behind struct_size, pointers NULL. Releasing such a
 * struct does nothing. A NULL where something is needed is RESHARD_ERR_USAGE; functions without a status return 0 or NULL.
 *
 * Memory. Calls keep nothing of what they are handed, unless they say so: structs, texts, vectors and contexts may go when they return.
 *
 * Failures. After a call that fails, its handles are as they were, can be used on and are closed as ever, unless the call says otherwise;
 * nothing was made that would have to be released. Memory of the caller's that was to be filled with values may hold some of them.
 *
 * Lists. NAME_count says how many there are, NAME_at returns RESHARD_ERR_USAGE past the end.
 *
 * Callbacks get the caller's context last, and return 0 to go on. Anything else stops the call, which returns RESHARD_ERR_CANCELLED.
 * Structs and texts that they are given are valid during the callback; struct_size says how much of a struct there is.
 *
 * Threads. What functions return that take a const handle lives until the handle is closed, and any number of threads may call them at
 * once. All others need their handle for themselves. Different handles are independent.
 */
#ifndef RESHARD_RESHARD_H
#define RESHARD_RESHARD_H

#include "reshard/error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RESHARD_VERSION_MAJOR 0
#define RESHARD_VERSION_MINOR 3
#define RESHARD_VERSION_PATCH 0

typedef struct reshard_str {
    const char *data;
    size_t size;
} reshard_str;

/* "0.3.0" */
const char *reshard_version(void);

/* Frees what a function here documents as "free with reshard_free". */
void reshard_free(void *memory);

/* ------------------------------------------------------------------------------------------------ opening and looking */

typedef struct reshard_checkpoint reshard_checkpoint;

/* Where bytes lie, if not in the file system: functions of the caller's (store.h). */
typedef struct reshard_store reshard_store;

/* How far a call has come. bytes_total is 0 where it is not known. */
typedef struct reshard_progress {
    size_t struct_size;
    uint64_t bytes_done, bytes_total, bytes_read, bytes_written, memory_bytes;
} reshard_progress;
typedef int (*reshard_progress_callback)(const reshard_progress *progress, void *context);

/* A named limit that is to be another than its default; reshard_limit_at lists them. An array's member. */
typedef struct reshard_limit_change {
    const char *name;
    uint64_t value;
} reshard_limit_change;

typedef struct reshard_open_options {
    size_t struct_size;
    const char *format;                 /* NULL: recognised from the content */
    int64_t iteration;                  /* of a root that holds several, if has_iteration is set; else the latest */
    int has_iteration;
    int follow_links;                   /* symbolic links may lead out of the directory */
    int lenient;                        /* accept what is ambiguous but readable (duplicate names: the last wins) */
    int skip_unsupported;               /* leave out, with a warning, tensors of types and codings that are not supported; for looking */
    const reshard_limit_change *limits;
    size_t limit_stride, limit_count;
    reshard_progress_callback progress; /* called while metadata is read, with bytes_read of it, or waited for; may be NULL */
    void *context;
    int64_t shows_damage;               /* pieces of a tensor that overlap or leave parts out, files that are gone or cut off, and tensors
                                           that only an index still names are warnings (reshard_warning.is_damage): to look at; what
                                           overlaps or is lost is not read or converted. Since 0.3 */
} reshard_open_options;
#define RESHARD_OPEN_OPTIONS_INIT                                                                                                          \
    {                                                                                                                                      \
        sizeof(reshard_open_options), NULL, 0, 0, 0, 0, 0, NULL, sizeof(reshard_limit_change), 0, NULL, NULL, 0                            \
    }

/* Opens a file or directory, or what a URL names (https, s3, hf: docs/urls.md). options may be NULL. Reads metadata only; no payload. */
reshard_status reshard_open(const char *path, const reshard_open_options *options, reshard_checkpoint **out, reshard_error *err);
void reshard_close(reshard_checkpoint *checkpoint);

/* What of a checkpoint is seen, and under which names: those of reshard_convert_options, applied in the order of the members. */
typedef struct reshard_view {
    size_t struct_size;
    const char *strip_prefix;                    /* NULL: none */
    const char *const *renames;                  /* "s/RE/NEW/" or "GLOB -> GLOB"; NULL-terminated or NULL */
    const char *add_prefix;
    const char *const *include, *const *exclude; /* globs on the new keys, each of which matches some; NULL-terminated lists or NULL */
} reshard_view;
#define RESHARD_VIEW_INIT { sizeof(reshard_view), NULL, NULL, NULL, NULL, NULL }

/*
 * Shows no more than the view has, of tensors and items, to all calls that look and read: what they return counts from 0 again. Before any
 * other call on the handle, and once. RESHARD_ERR_USAGE names a glob that matches nothing, or two keys that would become one, and the
 * handle stays as it was. Conversions, plans and diff want the checkpoint whole: for them it is RESHARD_ERR_USAGE. reshard_verify() looks
 * at the values of what is seen, holds its names against those of the reference that the globs choose, and at the structure of all.
 */
reshard_status reshard_checkpoint_view(reshard_checkpoint *checkpoint, const reshard_view *view, reshard_error *err);

const char *reshard_checkpoint_format(const reshard_checkpoint *checkpoint);
const char *reshard_checkpoint_path(const reshard_checkpoint *checkpoint); /* as reshard_path_shown has it */

/* A path as it may be printed and kept: of a URL no user, password and query, which may be secrets. So the library's own texts have paths.
 * Free with reshard_free; NULL without memory. */
char *reshard_path_shown(const char *path);

typedef struct reshard_tensor {
    size_t struct_size;
    reshard_str key;
    const char *dtype;     /* "BF16" */
    const int64_t *shape;
    uint64_t bytes;
    size_t chunk_count, replica_count;
    int64_t tied_to;       /* index of a tensor with the same storage and view, or -1 */
    int rank;
    int is_ambiguous;      /* another tensor has this key: only its path tells them apart */
} reshard_tensor;
#define RESHARD_TENSOR_INIT { sizeof(reshard_tensor), { NULL, 0 }, NULL, NULL, 0, 0, 0, 0, 0, 0 }

size_t reshard_tensor_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_tensor_at(const reshard_checkpoint *checkpoint, size_t index, reshard_tensor *out);

/* Index of the tensor with this key, or -1. */
int64_t reshard_tensor_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size);

/* Tensor indices in order of their keys, bytewise; ties by index, last first. reshard_tensor_count numbers, which the handle owns. */
reshard_status reshard_tensor_order(const reshard_checkpoint *checkpoint, const size_t **out, reshard_error *err);

typedef struct reshard_chunk {
    size_t struct_size;
    const int64_t *start, *extent;  /* box; rank numbers */
    reshard_str file;               /* relative to the checkpoint */
    uint64_t offset, bytes;         /* where its bytes lie; of the container blob if is_resolved is 0 */
    int64_t flat_begin, flat_count; /* flat run inside the box; flat_count -1: all of it */
    const char *encoding;           /* "", "deflate", "zstd" …; of GGUF the kind of block, such as "Q4_K" */
    int is_replica, is_resolved;
    int64_t writer;                 /* rank that wrote it, at most 65535, or -1: not known. Since 0.3 */
} reshard_chunk;
#define RESHARD_CHUNK_INIT { sizeof(reshard_chunk), NULL, NULL, { NULL, 0 }, 0, 0, 0, 0, NULL, 0, 0, 0 }

/* The pieces that a tensor is stored in: reshard_tensor.chunk_count. */
reshard_status reshard_chunk_at(const reshard_checkpoint *checkpoint, size_t tensor, size_t index, reshard_chunk *out);

enum { RESHARD_PATH_KEY = 0, RESHARD_PATH_INDEX = 1, RESHARD_PATH_INT_KEY = 2 };

/* A step of the way to a tensor or an item in the nested state dict. */
typedef struct reshard_path_part {
    size_t struct_size;
    reshard_str key; /* of RESHARD_PATH_KEY */
    int64_t index;   /* of RESHARD_PATH_INDEX, a position in a list, and RESHARD_PATH_INT_KEY */
    int64_t kind;
} reshard_path_part;
#define RESHARD_PATH_PART_INIT { sizeof(reshard_path_part), { NULL, 0 }, 0, 0 }

size_t reshard_tensor_path_count(const reshard_checkpoint *checkpoint, size_t tensor);
reshard_status reshard_tensor_path_at(const reshard_checkpoint *checkpoint, size_t tensor, size_t index, reshard_path_part *out);
size_t reshard_item_path_count(const reshard_checkpoint *checkpoint, size_t item);
reshard_status reshard_item_path_at(const reshard_checkpoint *checkpoint, size_t item, size_t index, reshard_path_part *out);

typedef struct reshard_warning {
    size_t struct_size;
    const char *text;  /* one line */
    int64_t is_damage; /* something is missing or broken */
    reshard_str lost;  /* a tensor that is lost but for its name, and so is not listed; else empty. Since 0.3 */
} reshard_warning;
#define RESHARD_WARNING_INIT { sizeof(reshard_warning), NULL, 0, { NULL, 0 } }

size_t reshard_warning_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_warning_at(const reshard_checkpoint *checkpoint, size_t index, reshard_warning *out);

/* What the format tells about itself: ("written by", "torch >= 2.9"), ("ranks", "4"), … */
typedef struct reshard_fact {
    size_t struct_size;
    const char *name, *value;
} reshard_fact;
#define RESHARD_FACT_INIT { sizeof(reshard_fact), NULL, NULL }

size_t reshard_fact_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_fact_at(const reshard_checkpoint *checkpoint, size_t index, reshard_fact *out);

typedef struct reshard_file {
    size_t struct_size;
    reshard_str name; /* relative to the checkpoint */
    uint64_t bytes;
} reshard_file;
#define RESHARD_FILE_INIT { sizeof(reshard_file), { NULL, 0 }, 0 }

size_t reshard_file_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_file_at(const reshard_checkpoint *checkpoint, size_t index, reshard_file *out);

/* ------------------------------------------------------------------------------------------------ items */

/* What is no tensor: numbers, texts, configurations, objects. */
typedef struct reshard_item {
    size_t struct_size;
    reshard_str key;
    const char *kind;       /* null bool int float str bytes list dict object file; "" until loaded, which reshard_item_value does */
    reshard_str class_name; /* "argparse.Namespace" for objects, else "" */
    uint64_t bytes;         /* stored size, 0 if unknown */
} reshard_item;
#define RESHARD_ITEM_INIT { sizeof(reshard_item), { NULL, 0 }, NULL, { NULL, 0 }, 0 }

size_t reshard_item_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_item_at(const reshard_checkpoint *checkpoint, size_t index, reshard_item *out);
int64_t reshard_item_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size);

/* A value of an item, or inside one. Values may hold each other in circles. */
typedef struct reshard_value reshard_value;

enum {
    RESHARD_VALUE_NULL = 0,
    RESHARD_VALUE_BOOL = 1,
    RESHARD_VALUE_INT = 2,    /* one that fits 64 bits */
    RESHARD_VALUE_BIG_INT = 3,
    RESHARD_VALUE_REAL = 4,
    RESHARD_VALUE_TEXT = 5,
    RESHARD_VALUE_BYTES = 6,
    RESHARD_VALUE_LIST = 7,   /* also tuples: is_tuple tells */
    RESHARD_VALUE_DICT = 8,
    RESHARD_VALUE_OBJECT = 9, /* of some class: reshard_value_json shows what it holds */
    RESHARD_VALUE_SET = 10
};

typedef struct reshard_value_info {
    size_t struct_size;
    int64_t kind;
    int64_t integer; /* of BOOL (0, 1) and INT */
    double real;
    reshard_str text; /* of TEXT; the bytes of BYTES; of BIG_INT its two's complement, little-endian; of OBJECT the name of its class */
    size_t count;     /* members of LIST, DICT and SET */
    int64_t is_tuple; /* of LIST. Since 0.3 */
} reshard_value_info;
#define RESHARD_VALUE_INFO_INIT { sizeof(reshard_value_info), 0, 0, 0, { NULL, 0 }, 0, 0 }

/* The item's value. Files (kind "file") have none: RESHARD_ERR_UNSUPPORTED. */
reshard_status reshard_item_value(const reshard_checkpoint *checkpoint, size_t index, const reshard_value **out, reshard_error *err);

/* value must be one of the checkpoint's. */
reshard_status reshard_value_look(const reshard_checkpoint *checkpoint, const reshard_value *value, reshard_value_info *out);

/* A member of LIST, DICT or SET; *key is NULL but for DICT, and key may be NULL. */
reshard_status reshard_value_at(const reshard_checkpoint *checkpoint, const reshard_value *value, size_t index, const reshard_value **key,
                                const reshard_value **member);

/* The member of a DICT under a text; NULL if there is none. Of several the last counts. */
const reshard_value *reshard_value_find(const reshard_checkpoint *checkpoint, const reshard_value *value, const char *key, size_t key_size);

/* As JSON text, NUL-terminated; free with reshard_free. What JSON cannot hold is spelled as docs/items.md says. */
reshard_status reshard_value_json(const reshard_checkpoint *checkpoint, const reshard_value *value, char **json, size_t *size,
                                  reshard_error *err);

/* The same of an item; a file is shown as its text, or its bytes. */
reshard_status reshard_item_json(const reshard_checkpoint *checkpoint, size_t index, char **json, size_t *size, reshard_error *err);

/* The same as a file of torch.save, with classes and tensors, for a program that trusts it: torch.load reads it. The limit item_bytes
 * holds. Free *bytes with reshard_free. Any thread, at once. Since 0.3 */
reshard_status reshard_item_file(const reshard_checkpoint *checkpoint, size_t index, void **bytes, size_t *size, reshard_error *err);

/*
 * What an item that is a dictionary, or a list with dictionaries in it, holds, as separate values: `param_groups.0.lr`. Dictionaries are
 * entered, and lists that have a dictionary in them; everything else is one member. Calls visit with each, none for an item without
 * members; json (NUL-terminated) is NULL where it would be too large to show. Members are views of the item: conversions move the item.
 */
typedef int (*reshard_member_visit)(const reshard_item *member, const char *json, size_t size, void *context);
reshard_status reshard_item_members(const reshard_checkpoint *checkpoint, size_t index, reshard_member_visit visit, void *context,
                                    reshard_error *err);

/* Size of the UTF-8 character that text begins with, if people may see it as it is; 0 for bytes to be escaped first: what is no UTF-8,
 * control characters, bidirectional and other invisible ones. Keys come from files, and files from strangers. size is at least 1. */
size_t reshard_visible_char(const char *text, size_t size);

/* ------------------------------------------------------------------------------------------------ reading values */

typedef struct reshard_run_options {
    size_t struct_size;
    uint64_t memory_bytes;              /* budget for buffers; 0: default */
    uint64_t threads;                   /* 0: default */
    const char *io;                     /* "auto" (NULL), "buffered", "direct", "mmap" */
    reshard_progress_callback progress; /* may be NULL; a first call precedes all writing; called while a server is waited for, too */
    void *context;
    /* A group of ranks (comm.h) that look at the same checkpoints, each through handles of its own, and make the call together: the reading
     * is shared out among them, and each gets the result of all, its callbacks too. reshard_hash, reshard_verify and reshard_diff take it;
     * elsewhere it is RESHARD_ERR_USAGE. What the ranks pass besides must be the same. NULL: none. Since 0.3 */
    struct reshard_comm *comm;
} reshard_run_options;
#define RESHARD_RUN_OPTIONS_INIT { sizeof(reshard_run_options), 0, 0, NULL, NULL, NULL, NULL }

/* Receives consecutive parts of a value. It may look at the handle, but not read from it. */
typedef int (*reshard_sink)(const void *bytes, size_t size, void *context);

/* Box [start, start + extent) of a tensor (both NULL: all) as row-major little-endian bytes. */
reshard_status reshard_read(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                            const reshard_run_options *run, reshard_sink sink, void *context, reshard_error *err);

/* The same into memory of size bytes, which must be exactly enough. */
reshard_status reshard_read_into(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                                 const reshard_run_options *run, void *out, size_t size, reshard_error *err);

/* A box of a tensor, and memory of the caller's that it is to fill. An array's member. */
typedef struct reshard_box {
    size_t tensor;
    const int64_t *start, *extent; /* of the tensor's rank; both NULL: all of it */
    const int64_t *strides;        /* of the memory, in elements; NULL: row-major. 0 or more, and no two elements in one place */
    const char *dtype;             /* that the memory is to have, a cast; NULL: the tensor's own */
    void *out;                     /* where element (0, ..., 0) of the box goes */
    size_t size;                   /* bytes from out on, at least those that the box spans; what lies between its elements stays */
} reshard_box;

typedef struct reshard_box_list {
    size_t struct_size;
    const reshard_box *boxes;
    size_t box_stride, box_count;
    unsigned char *is_done; /* NULL, or box_count of them: set to 1 where all elements are there, to 0 elsewhere, on failure too */
} reshard_box_list;
#define RESHARD_BOX_LIST_INIT { sizeof(reshard_box_list), NULL, sizeof(reshard_box), 0, NULL }

/*
 * Fills many boxes in one run: what lies together in files is read together, in the order of files and offsets, each byte once, by the
 * threads and within the memory that run allows; long runs of bytes are read right into the caller's memory. Memory of different boxes must
 * not overlap. Any number of threads may read from one handle at once (reshard_read and reshard_read_into too); files that were read stay
 * open until it is closed, at most 128 of them. Nothing is read if a box is wrong (RESHARD_ERR_USAGE, which names it).
 */
reshard_status reshard_read_many(const reshard_checkpoint *checkpoint, const reshard_box_list *list, const reshard_run_options *run,
                                 reshard_error *err);

/* The .npy header for a tensor's box (extent NULL: all of it); free with reshard_free. */
reshard_status reshard_npy_header(const reshard_checkpoint *checkpoint, size_t tensor, const int64_t *extent, void **header, size_t *size,
                                  reshard_error *err);

/* Digest of every tensor's full content, in the order of their keys, bytewise. digest: "sha256", "xxh3", "crc32c", "md5". */
typedef int (*reshard_hash_sink)(size_t tensor, const char *hex, void *context);
reshard_status reshard_hash(reshard_checkpoint *checkpoint, const char *digest, const reshard_run_options *run, reshard_hash_sink sink,
                            void *context, reshard_error *err);

#define RESHARD_STATS_BINS 256

/*
 * What values are like. Numbers are the elements' own; a complex element is two. Range, mean, deviation (of all of them: divided by their
 * number) and norm (the root of the sum of squares) are of the finite ones, NaN where there are none, the norm 0. 64-bit integers are taken
 * as doubles. Bins hold the finite numbers that are not zero, by sign and magnitude: bin b those from 2^(b - 127) on below the double of
 * it, the first also all that is smaller, the last all that is larger.
 */
typedef struct reshard_tensor_stats {
    size_t struct_size;
    uint64_t count, nan_count, inf_count, zero_count;
    uint64_t subnormal_count; /* of the element's type */
    int64_t is_opaque;        /* the type has no numbers, or none that are known: count is 0 */
    double min, max, mean, deviation, norm;
    uint64_t negative[RESHARD_STATS_BINS], positive[RESHARD_STATS_BINS];
} reshard_tensor_stats;
#define RESHARD_TENSOR_STATS_INIT { sizeof(reshard_tensor_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 }, { 0 } }

typedef struct reshard_stats_options {
    size_t struct_size;
    const char *const *include, *const *exclude; /* globs on keys; NULL-terminated lists or NULL */
} reshard_stats_options;
#define RESHARD_STATS_OPTIONS_INIT { sizeof(reshard_stats_options), NULL, NULL }
typedef int (*reshard_stats_sink)(size_t tensor, const reshard_tensor_stats *stats, void *context);

/* Statistics of tensors in one pass over their bytes, whatever the layout, handed out in the order of their keys, bytewise. Tensors without
 * stored values are left out. options may be NULL. */
reshard_status reshard_stats(reshard_checkpoint *checkpoint, const reshard_stats_options *options, const reshard_run_options *run,
                             reshard_stats_sink sink, void *context, reshard_error *err);

/* Makes *into, which begins as RESHARD_TENSOR_STATS_INIT, the statistics of what it had and of part together. */
reshard_status reshard_stats_join(reshard_tensor_stats *into, const reshard_tensor_stats *part);

/* ------------------------------------------------------------------------------------------------ names */

/* A number that attributes of a mapping may name: num_heads=num_attention_heads. An array's member. */
typedef struct reshard_map_constant {
    const char *name;
    int64_t value;
} reshard_map_constant;

/* A text of the mapping language (docs/mapping.md), or a configuration object that holds one (JSON, YAML, a Python list). name is for
 * diagnoses: a file name. An array's member. */
typedef struct reshard_map_text {
    const char *name;
    const char *text;
    size_t size;
} reshard_map_text;

/* How the names, shapes and types of a checkpoint's tensors change before they are written or compared. */
typedef struct reshard_map_options {
    size_t struct_size;
    const reshard_map_text *texts;      /* run one after the other: each sees the names that the one before it made */
    size_t text_stride, text_count;
    const char *rules;                  /* family of the model; "none"; NULL: detected where there are no texts */
    const reshard_map_text *rules_text; /* such a text from elsewhere, in place of a built-in one; or NULL. Its size is text_stride */
    int64_t strict;                     /* refuse what Paddle's own engine does not know */
    const char *config; /* JSON object, such as a model's config.json: its integers are constants; NULL: the source's own, if it has one */
    size_t config_size;
    const reshard_map_constant *constants; /* these win over the config, and both over what a text defines */
    size_t constant_stride, constant_count;
    /* Is given the diagnoses of a text as lines with name, line and column: on failure, and warnings on success. May be NULL. */
    int (*diagnose)(const char *diagnoses, size_t error_count, void *context);
    void *context;
} reshard_map_options;
#define RESHARD_MAP_OPTIONS_INIT                                                                                                           \
    {                                                                                                                                      \
        sizeof(reshard_map_options), NULL, sizeof(reshard_map_text), 0, NULL, NULL, 0, NULL, 0, NULL, sizeof(reshard_map_constant), 0,     \
            NULL, NULL                                                                                                                     \
    }

/* ------------------------------------------------------------------------------------------------ converting */

typedef struct reshard_convert_options {
    size_t struct_size;
    /* Format. NULL: that of like; without it, that which the name of the target's file ends with (.safetensors, .npz, .pt .pth .bin: torch,
     * .pdparams .pdopt: paddle). */
    const char *to;
    const char *like;             /* path of a checkpoint whose format, layout and names are taken; or NULL */
    const char *layout;           /* "ranks=8,…" or NULL */
    /* Globs on keys, which know *, ?, [set], {one,other} and {0..15}; each matches some. NULL-terminated lists or NULL. */
    const char *const *include, *const *exclude;
    const char *const *dtypes;    /* "bf16" or "GLOB=f32", the last match counts; NULL-terminated or NULL */
    const char *const *format_options; /* "name=value" of the target format; NULL-terminated or NULL */
    uint64_t max_shard_bytes;     /* largest file of a sharded format; 0: the format's default */
    int no_shard_limit;           /* files may be of any size; max_shard_bytes must be 0 */
    int drop_items;
    int overwrite, resume, no_sync;
    int verify;                   /* read back and compare */
    const char *checksum;         /* "crc32c", "sha256", "xxh3", or NULL: sidecar reshard.json with a digest per tensor */
    const reshard_open_options *open; /* for like, and limits; NULL: defaults */
    const reshard_map_options *map;   /* include, exclude and dtypes apply to what comes out; NULL: defaults */
    const char *wrap;                 /* formats of flat parameters: "root", a path of modules "transformer.h.*", or a regular expression */
    const char *strip_prefix, *add_prefix; /* of names, behind the mapping; strip_prefix: of those that have it. NULL: none */
    const char *const *renames;       /* "s/RE/NEW/" or "GLOB -> GLOB", between the two; NULL-terminated or NULL */
    /* Sets *out to the name of what would be called `key`; its text is good until the next call. Before add_prefix. NULL: none. */
    int (*rename)(reshard_str key, reshard_str *out, void *context);
    const char *missing;              /* tensors that like has and the source lacks, and what map leaves as it is: "error", "zeros", a
                                       * number, or the path of a checkpoint (opened as `open` says) that has them under the same names, in
                                       * the same shapes; NULL: those are left out, these are zeros, which a warning tells */
    /* Decides so for each: *what is a RESHARD_MISSING_, *value the number that it is filled with. NULL: as missing says. */
    int (*choose_missing)(const reshard_tensor *tensor, int *what, double *value, void *context);
    void *context;                    /* of both */
    uint64_t part, part_count;        /* only part 0, 1, ... of so many, on storage that all see; then reshard_commit. 0 parts: all of it */
    reshard_str part_words;           /* kept with the part: reshard_part_words gives it to who commits */
    const reshard_store *store;       /* where target_path is, in place of the file system (store.h); NULL: there */
    int64_t no_space_check;           /* begin to write although the file system has not enough room */
} reshard_convert_options;
#define RESHARD_CONVERT_OPTIONS_INIT                                                                                                       \
    {                                                                                                                                      \
        sizeof(reshard_convert_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL,     \
            NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, { NULL, 0 }, NULL, 0                                                                 \
    }

/* What becomes of a tensor that the reference has and the source lacks. What a mapping leaves as it is is not left out, but zeros. */
enum { RESHARD_MISSING_LEAVE_OUT = 0, RESHARD_MISSING_FILL = 1, RESHARD_MISSING_TAKE = 2 /* out of the checkpoint that `missing` names */ };

/* What a conversion does, or would do. What it points to, and what the functions below return, lives until reshard_report_release. */
typedef struct reshard_report {
    size_t struct_size;
    struct reshard_report_lists *lists; /* the library's */
    const char *source_format, *target_format;
    uint64_t tensors, items, source_chunks, target_chunks, steps;
    uint64_t read_bytes, write_bytes;   /* payload */
    uint64_t target_bytes;              /* all bytes of the target's files */
    uint64_t peak_memory_bytes;         /* buffers and metadata, as planned */
    size_t file_count, note_count;
    size_t move_count;                  /* of reshard_preview; else 0. Since 0.3 */
    uint64_t verified_tensors;          /* of tensors: read back and compared, where that was asked for; others lie within items, where
                                         * nothing names them. Since 0.3 */
    uint64_t verified_bytes;            /* of those. Since 0.3 */
} reshard_report;
#define RESHARD_REPORT_INIT { sizeof(reshard_report), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
void reshard_report_release(reshard_report *report);

/* A file of the target, and what is written into it. */
typedef struct reshard_report_file {
    size_t struct_size;
    reshard_str name;
    uint64_t bytes, chunks, sources;
} reshard_report_file;
#define RESHARD_REPORT_FILE_INIT { sizeof(reshard_report_file), { NULL, 0 }, 0, 0, 0 }
reshard_status reshard_report_file_at(const reshard_report *report, size_t index, reshard_report_file *out);

enum {
    RESHARD_NOTE_DROPPED = 0, /* the target does not have it */
    RESHARD_NOTE_CHANGED = 1, /* the target has something else in its place */
    RESHARD_NOTE_WARNING = 2
};

/* What does not arrive as it was: first all that is dropped, then what is changed, then warnings. */
typedef struct reshard_note {
    size_t struct_size;
    int64_t what;       /* RESHARD_NOTE_… */
    const char *kind;   /* a word for programs: "no-place", "layout", "tie", … (docs/api.md) */
    reshard_str key;    /* of the tensor or item concerned; "" if it is about no single one */
    reshard_str reason; /* for people */
    reshard_str text;   /* key and reason as one line */
} reshard_note;
#define RESHARD_NOTE_INIT { sizeof(reshard_note), 0, NULL, { NULL, 0 }, { NULL, 0 }, { NULL, 0 } }
reshard_status reshard_report_note_at(const reshard_report *report, size_t index, reshard_note *out);

/* Converts; the target appears whole or not at all. report may be NULL. A target that is or holds a file of the source, or lies in it, is
 * RESHARD_ERR_USAGE; so is one that overwrite may not replace: all but a checkpoint with nothing else in its folder, an empty folder or an
 * empty file. The caller's process should ignore SIGXFSZ if files may meet a limit on their size. */
reshard_status reshard_convert(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                               const reshard_run_options *run, reshard_report *report, reshard_error *err);

/*
 * Makes visible what conversions with options.part 0 to part_count - 1 have written, in any order and in any number of processes, on one
 * machine or on many that see the same storage: the bytes are those of one conversion of all. source and options are those of the parts.
 * RESHARD_DIFFERS names a part that is missing, or is of another source or of other options; nothing is visible then, and what is there
 * stays. A part that failed, or whose process died, is run again.
 */
reshard_status reshard_commit(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                              const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* The part_words of some part of a target that is not yet visible, none if its program gave none (reshard_writer_commit may do without);
 * free *words with reshard_free. RESHARD_DIFFERS: there is no part. */
reshard_status reshard_part_words(const char *target_path, char **words, size_t *size, reshard_error *err);

/* What reshard_convert would do; touches nothing. target_path may be NULL. */
reshard_status reshard_estimate(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                const reshard_run_options *run, reshard_report *report, reshard_error *err);

/*
 * The same, and what the target would look like: *target is a checkpoint to look at, whose tensors, chunks and files are those that
 * reshard_convert would write, under the names that the target's files give them; a target that is one file is named "". It has no items,
 * and none of its values can be read. Tensors without a chunk of their own are left out. It lives without the source; close it with
 * reshard_close. report, which may be NULL, tells the moves too. Since 0.3
 */
reshard_status reshard_preview(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                               const reshard_run_options *run, reshard_report *report, reshard_checkpoint **target, reshard_error *err);

/* What goes from one file of the source to one of the target: sorted by source file, then by target file, as reshard_file_at has them. */
typedef struct reshard_move {
    size_t struct_size;
    reshard_str from, to;           /* names of files; from is "" for values that the conversion makes */
    int64_t from_writer, to_writer; /* ranks, as in reshard_chunk; of the first chunk, where several ranks share a file */
    uint64_t bytes;                 /* as the target stores them */
} reshard_move;
#define RESHARD_MOVE_INIT { sizeof(reshard_move), { NULL, 0 }, { NULL, 0 }, 0, 0, 0 }
reshard_status reshard_report_move_at(const reshard_report *report, size_t index, reshard_move *out);

/* ------------------------------------------------------------------------------------------------ checking */

/* One finding of verify or diff. severity: 0 note, 1 warning, 2 failure. kind is a short word: "checksum", "replica", "coverage",
 * "unreferenced", "nan", "missing", "unexpected", "shape", "dtype", "values", "item", … index: first differing element (row-major), or -1.
 */
typedef struct reshard_finding {
    size_t struct_size;
    const char *kind;
    reshard_str key;
    const char *text;    /* one line for people */
    int64_t severity;
    int64_t index;       /* flat */
    uint64_t count;      /* elements concerned */
    double max_difference;
} reshard_finding;
typedef int (*reshard_finding_sink)(const reshard_finding *finding, void *context);

/*
 * What verify has looked at. "Checked" is what a stored checksum or the sidecar reshard.json covers, so that damage cannot go unnoticed; of
 * the rest only the structure was proved: sizes, and that every element is stored exactly once.
 */
typedef struct reshard_coverage {
    size_t struct_size;
    uint64_t tensors, bytes, checked_tensors, checked_bytes; /* a tensor counts with all its bytes, as it is shown */
    uint64_t items, checked_items;
    uint64_t replicas;       /* copies of chunks, each compared with its first */
    int names_are_checked;   /* keys, shapes and types */
    int has_sidecar;
    uint64_t elements;
    uint64_t read_bytes;     /* of payload, however often. Since 0.3 */
    uint64_t checksums;      /* that were compared: of chunks, and digests of the sidecar. Since 0.3 */
} reshard_coverage;
#define RESHARD_COVERAGE_INIT { sizeof(reshard_coverage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct reshard_verify_options {
    size_t struct_size;
    reshard_coverage *coverage; /* is filled unless verify stops with an error, else zeroed; may be NULL */
    /* Is told each tensor that has values which no checksum covers; may be NULL. */
    int (*uncovered)(reshard_str key, uint64_t bytes, void *context);
    void *context;
    int64_t
        deep; /* also read all values: NaN, Inf, all-zero counts, experts that are copies; stored checksums are checked in either case */
    int64_t expect_optimizer; /* a failure for each kind of optimizer state that trainable weights lack. Since 0.3 */
    /* What the tensors are held against: the path of another checkpoint, of the index of a Hugging Face folder, of a config.json of a known
     * family, or of a folder with one of these. Findings of the kinds "missing", "unexpected", "shape" and, as warnings, "dtype"; NULL: no.
     * Since 0.3 */
    const char *against;
    const reshard_open_options *open; /* how that is opened; NULL: defaults. Since 0.3 */
    int64_t fail_on; /* RESHARD_FAIL_ON_…, or together: values that are failures, for which all are read. Since 0.3 */
} reshard_verify_options;
#define RESHARD_VERIFY_OPTIONS_INIT { sizeof(reshard_verify_options), NULL, NULL, NULL, 0, 0, NULL, NULL, 0 }

enum {
    RESHARD_FAIL_ON_NAN = 1,
    RESHARD_FAIL_ON_INF = 2,
    RESHARD_FAIL_ON_ZERO = 4 /* nothing but zeros in a tensor */
};

/* RESHARD_OK or RESHARD_DIFFERS (there was a failure), or the error that stopped it. sink may be NULL. */
reshard_status reshard_verify(reshard_checkpoint *checkpoint, const reshard_verify_options *options, const reshard_run_options *run,
                              reshard_finding_sink sink, void *context, reshard_error *err);

/* Newest checkpoint below root that opens and verifies; *path, which begins as root does (with a password, where a URL has one), free with
 * reshard_free. RESHARD_DIFFERS if none does. */
reshard_status reshard_latest_good(const char *root, const reshard_open_options *options, const reshard_verify_options *verify,
                                   const reshard_run_options *run, reshard_finding_sink sink, void *context, char **path,
                                   reshard_error *err);

/* What salvage has found: a tensor or item is proved (a checksum covers it and agrees), unproved (none covers it) or lost. */
typedef struct reshard_salvage_counts {
    size_t struct_size;
    uint64_t tensors, proved_tensors, unproved_tensors, lost_tensors;
    uint64_t items, proved_items, unproved_items, lost_items;
} reshard_salvage_counts;
#define RESHARD_SALVAGE_COUNTS_INIT { sizeof(reshard_salvage_counts), 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct reshard_salvage_options {
    size_t struct_size;
    const char *to;   /* format; NULL: that of the damaged checkpoint */
    const char *like; /* path of a sibling, whose files that say where things lie stand in for missing ones; or NULL */
    const reshard_open_options *open; /* of both; NULL: defaults */
    int overwrite, no_sync;
    const char *const *include, *const *exclude; /* as of reshard_view: nothing else is written or told of */
} reshard_salvage_options;
#define RESHARD_SALVAGE_OPTIONS_INIT { sizeof(reshard_salvage_options), NULL, NULL, NULL, 0, 0, NULL, NULL }

/*
 * Writes what is left of a damaged checkpoint. No byte of a value is made up. RESHARD_DIFFERS: written, but something is lost. The sink is
 * told what: findings of the kinds "lost" and "lost-item" (severity 2), "unproved", "unproved-item" and "unproved-names" (0), "sibling",
 * "damage" and others (1). On any other status nothing was written. sink and counts may be NULL.
 */
reshard_status reshard_salvage(const char *path, const char *target_path, const reshard_salvage_options *options,
                               const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_salvage_counts *counts,
                               reshard_error *err);

enum {
    RESHARD_DIFF_SAME = 0,
    RESHARD_DIFF_VALUES = 1,
    RESHARD_DIFF_MISSING = 2,    /* in the second */
    RESHARD_DIFF_UNEXPECTED = 3, /* only there */
    RESHARD_DIFF_SHAPE = 4,
    RESHARD_DIFF_DTYPE = 5
};

/* What diff has found of a tensor. Changed elements have other bits, whatever the tolerance; what is beyond it counts for the differences.
 * max_difference is NaN where a side has no number, max_relative (against the second's value) infinite where that is zero, or one is no
 * number and the other is. */
typedef struct reshard_diff_tensor {
    size_t struct_size;
    reshard_str key;
    int64_t outcome; /* RESHARD_DIFF_… */
    uint64_t elements, bytes, changed_elements;
    double max_difference, max_relative;
} reshard_diff_tensor;

typedef struct reshard_diff_summary {
    size_t struct_size;
    uint64_t tensors;          /* of either */
    uint64_t same_tensors, changed_tensors, missing_tensors, unexpected_tensors, reshaped_tensors, retyped_tensors;
    uint64_t explained_tensors; /* for whose difference a cause was found */
    uint64_t items, different_items; /* of the first; and those that differ or are in one only */
    uint64_t elements, bytes, changed_elements, changed_bytes; /* of the tensors whose values were compared */
    double max_difference, max_relative;
} reshard_diff_summary;
#define RESHARD_DIFF_SUMMARY_INIT { sizeof(reshard_diff_summary), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct reshard_diff_options {
    size_t struct_size;
    double absolute_tolerance, relative_tolerance; /* 0, 0: bit equality (NaN equals itself, 0 and -0 differ) */
    const reshard_map_options *map; /* what comes out of a is compared with b; NULL: defaults */
    int64_t ignore_items;
    const char *const *include, *const *exclude; /* globs on keys of b's names; NULL-terminated lists or NULL. Since 0.3 */
    reshard_diff_summary *summary; /* is filled unless diff stops with an error, else zeroed; may be NULL. Since 0.3 */
    /* Is told each tensor, in no order; may be NULL. Since 0.3 */
    int (*tensor)(const reshard_diff_tensor *tensor, void *context);
    void *context;
    int64_t explain; /* also look for the usual mistakes that explain a difference: findings of the kind "cause". Since 0.3 */
    const char *strip_prefix, *add_prefix; /* of a's tensors behind the map, as in reshard_convert_options. NULL: none. Since 0.3 */
    const char *const *renames;            /* between the two; NULL-terminated or NULL. Since 0.3 */
    int64_t ignore_dtype; /* floating tensors that b has as another floating type are cast to that before they are compared. Since 0.3 */
} reshard_diff_options;
#define RESHARD_DIFF_OPTIONS_INIT { sizeof(reshard_diff_options), 0, 0, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0 }

/* RESHARD_OK: same; RESHARD_DIFFERS: not, and the sink was told why. */
reshard_status reshard_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_diff_options *options,
                            const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ what there is */

typedef struct reshard_format {
    size_t struct_size;
    const char *name, *summary;
    int reads, writes, is_directory, holds_items;
    size_t option_count;
} reshard_format;
#define RESHARD_FORMAT_INIT { sizeof(reshard_format), NULL, NULL, 0, 0, 0, 0, 0 }

size_t reshard_format_count(void);
reshard_status reshard_format_at(size_t index, reshard_format *out);

typedef struct reshard_format_option {
    size_t struct_size;
    const char *name, *type, *default_value, *help; /* default_value may be NULL */
} reshard_format_option;
#define RESHARD_FORMAT_OPTION_INIT { sizeof(reshard_format_option), NULL, NULL, NULL, NULL }
reshard_status reshard_format_option_at(size_t format, size_t index, reshard_format_option *out);

/* A word of reshard_convert_options.layout that a format knows, NAME=NUMBER or NAME=CHOICE. */
typedef struct reshard_format_word {
    size_t struct_size;
    const char *name, *help;
    const char *const *choices; /* what it may be, then NULL; NULL: a number */
} reshard_format_word;
#define RESHARD_FORMAT_WORD_INIT { sizeof(reshard_format_word), NULL, NULL, NULL }
reshard_status reshard_format_word_at(size_t format, size_t index, reshard_format_word *out);

/* An element type: its name here and in torch ("" if torch has none), and the bits of an element. */
typedef struct reshard_dtype {
    size_t struct_size;
    const char *name, *torch_name;
    uint64_t bits;
} reshard_dtype;
#define RESHARD_DTYPE_INIT { sizeof(reshard_dtype), NULL, NULL, 0 }

size_t reshard_dtype_count(void);
reshard_status reshard_dtype_at(size_t index, reshard_dtype *out);

/* By name, in upper or lower case, or torch's name. */
reshard_status reshard_dtype_find(const char *name, reshard_dtype *out);

/* A named limit: everything that can grow on account of the input has one. */
typedef struct reshard_limit {
    size_t struct_size;
    const char *name, *help;
    uint64_t default_value;
} reshard_limit;
#define RESHARD_LIMIT_INIT { sizeof(reshard_limit), NULL, NULL, 0 }

size_t reshard_limit_count(void);
reshard_status reshard_limit_at(size_t index, reshard_limit *out);

/* Model families that reshard_map_options.rules names, one after the other; RESHARD_ERR_USAGE past the last. The text lives as long as
 * the library. Since 0.3 */
reshard_status reshard_family_at(size_t index, reshard_str *out);

/* ------------------------------------------------------------------------------------------------ mapping */

/*
 * The mapping language (docs/mapping.md): statements such as `a^T, b -> c, axis=1` say how the tensors of one name space are made of those
 * of another. These functions try mapping texts; no checkpoint's payload is read.
 */

/* One side of a mapping: the names, shapes, types and shards of its tensors, and perhaps small values. */
typedef struct reshard_map_space reshard_map_space;

/* From a description, JSON {"tensors": {key: {"dtype", "shape", "shards": [[offset, shape], …], "data": […]}}, "initial": number}; shards,
 * data and initial may be left out. */
reshard_status reshard_map_space_describe(const char *json, size_t size, reshard_map_space **out, reshard_error *err);

/* From a checkpoint, which may be closed afterwards. */
reshard_status reshard_map_space_of(const reshard_checkpoint *checkpoint, reshard_map_space **out, reshard_error *err);
void reshard_map_space_free(reshard_map_space *space);

typedef struct reshard_map_input {
    size_t struct_size;
    const char *name;                 /* of the text, for diagnoses: a file name; NULL: "mapping" */
    const char *text;
    size_t size;
    const reshard_map_space *source;  /* not needed by reshard_map_parse */
    const reshard_map_space *target;  /* NULL: everything that is assigned or left over, and not used, is put out */
    int strict;                       /* refuse what Paddle's own engine does not know */
    int reverse;                      /* read the text backwards, as with aoa_config_reverse */
    const reshard_limit_change *limits;
    size_t limit_stride, limit_count;
    const char *config;               /* JSON object, such as a model's config.json: its integers are constants; or NULL */
    size_t config_size;
    const reshard_map_constant *constants; /* these win over the config, and both over what the text defines */
    size_t constant_stride, constant_count;
} reshard_map_input;
#define RESHARD_MAP_INPUT_INIT                                                                                                             \
    {                                                                                                                                      \
        sizeof(reshard_map_input), NULL, NULL, 0, NULL, NULL, 0, 0, NULL, sizeof(reshard_limit_change), 0, NULL, 0, NULL,                  \
            sizeof(reshard_map_constant), 0                                                                                                \
    }

/* Texts end with NUL, and live until reshard_map_output_release. */
typedef struct reshard_map_output {
    size_t struct_size;
    struct reshard_map_texts *texts; /* the library's */
    const char *text;      /* for people, or a mapping text; NULL on failure */
    const char *json;      /* the same as one JSON object; NULL on failure */
    const char *diagnoses; /* errors and warnings with line, column and caret: of a text that does not fit, too; "": none */
    size_t error_count, warning_count;
} reshard_map_output;
#define RESHARD_MAP_OUTPUT_INIT { sizeof(reshard_map_output), NULL, NULL, NULL, NULL, 0, 0 }
void reshard_map_output_release(reshard_map_output *output);

/* All return RESHARD_ERR_USAGE if the text does not fit: err holds the first diagnosis, output->diagnoses all of them. */

/* Syntax only: the syntax tree. With strict: what is left to upstream's parser behind all macros. */
reshard_status reshard_map_parse(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

/* The statements behind all macros, one a line. */
reshard_status reshard_map_expand(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

/* Whether the mapping fits, whether it loses or doubles anything, and what every tensor of the target is made of. */
reshard_status reshard_map_check(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

/* The values of the target's tensors, from those of the source's description. */
reshard_status reshard_map_eval(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

/* A mapping text that makes the source again from the target: proved by composing both, or refused with the statement that is to blame. */
reshard_status reshard_map_invert(const reshard_map_input *input, reshard_map_output *output, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
