/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libreshard: opens sharded deep-learning checkpoints of any known format and writes them under any other layout or format.
 *
 * Strings that come from checkpoints are (pointer, size): they may hold any byte. Sizes are in bytes, shapes and boxes in elements,
 * row-major. Pointers that accessors return belong to the handle and live until it is closed. A handle may be used by one thread at
 * a time; different handles are independent. Structs with a `struct_size` are initialised by their _INIT macro.
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
#define RESHARD_VERSION_MINOR 1
#define RESHARD_VERSION_PATCH 0

typedef struct reshard_str {
    const char *data;
    size_t size;
} reshard_str;

/* "0.1.0" */
const char *reshard_version(void);

/* Frees what a function here documents as "free with reshard_free". */
void reshard_free(void *memory);

/* ------------------------------------------------------------------------------------------------ opening and looking */

typedef struct reshard_checkpoint reshard_checkpoint;

/* NAME=VALUE of a named limit; reshard_limit_at lists them. */
typedef struct reshard_limit {
    const char *name;
    uint64_t value;
    const char *help;
} reshard_limit;

typedef struct reshard_open_options {
    size_t struct_size;
    const char *format;          /* NULL: recognised from the content */
    int64_t iteration;           /* -1: the latest, where a root holds several */
    const reshard_limit *limits; /* changes to the defaults; help is ignored */
    size_t limit_count;
    int follow_links;            /* symbolic links may lead out of the directory */
    int lenient;                 /* accept what is ambiguous but readable (duplicate names: the last wins) */
    int skip_unsupported;        /* leave out, with a warning, tensors of types and codings that are not supported; for looking */
} reshard_open_options;
#define RESHARD_OPEN_OPTIONS_INIT { sizeof(reshard_open_options), NULL, -1, NULL, 0, 0, 0, 0 }

/* Opens a file or directory. options may be NULL. Reads metadata only; no payload. */
reshard_status reshard_open(const char *path, const reshard_open_options *options, reshard_checkpoint **out, reshard_error *err);
void reshard_close(reshard_checkpoint *checkpoint);

typedef struct reshard_path_part {
    int is_index;    /* 1: list position, 2: integer dict key (both in index); 0: string key */
    int64_t index;
    reshard_str key;
} reshard_path_part;

typedef struct reshard_tensor {
    reshard_str key;
    const char *dtype;     /* "BF16" */
    int rank;
    const int64_t *shape;
    uint64_t bytes;
    size_t chunk_count, replica_count;
    int64_t tied_to;       /* index of a tensor with the same storage and view, or -1 */
    int is_ambiguous;      /* another tensor has this key: only reshard_tensor_path tells them apart */
} reshard_tensor;

typedef struct reshard_chunk {
    const int64_t *start, *extent; /* box; rank numbers */
    reshard_str file;              /* relative to the checkpoint */
    uint64_t offset, bytes;        /* where its bytes lie; of the container blob if is_resolved is 0 */
    int is_replica, is_resolved;
    int64_t flat_begin, flat_count; /* flat run inside the box; flat_count -1: all of it */
    const char *encoding;          /* "", "deflate", "zstd" */
} reshard_chunk;

typedef struct reshard_item {
    reshard_str key;
    const char *kind;   /* null bool int float str bytes list dict object file; "" until loaded (reshard_item_json loads) */
    uint64_t bytes;     /* stored size, 0 if unknown */
    reshard_str class_name; /* "argparse.Namespace" for objects, else "" */
} reshard_item;

const char *reshard_checkpoint_format(const reshard_checkpoint *checkpoint);
const char *reshard_checkpoint_path(const reshard_checkpoint *checkpoint);
size_t reshard_tensor_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_tensor_at(const reshard_checkpoint *checkpoint, size_t index, reshard_tensor *out);

/* Index of the tensor with this key, or -1. */
int64_t reshard_tensor_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size);
reshard_status reshard_chunk_at(const reshard_checkpoint *checkpoint, size_t tensor, size_t index, reshard_chunk *out);

/* Path of a tensor (or, with is_item, an item) in the nested state dict; *parts is valid until the next call. */
size_t reshard_path_of(reshard_checkpoint *checkpoint, int is_item, size_t index, const reshard_path_part **parts);

size_t reshard_item_count(const reshard_checkpoint *checkpoint);
reshard_status reshard_item_at(reshard_checkpoint *checkpoint, size_t index, reshard_item *out);
int64_t reshard_item_find(const reshard_checkpoint *checkpoint, const char *key, size_t key_size);

/* The item's value as JSON text, NUL-terminated; free with reshard_free. What JSON cannot hold is spelled as docs/items.md says. */
reshard_status reshard_item_json(reshard_checkpoint *checkpoint, size_t index, char **json, size_t *size, reshard_error *err);

/*
 * What an item that is a dictionary, or a list with dictionaries in it, holds, as separate values: `param_groups.0.lr`. Dictionaries are
 * entered, and lists that have a dictionary in them; everything else is one member. Calls visit with each, none for an item without
 * members; key, member and json (NUL-terminated) are valid during the call; json is NULL where it would be too large to show; a visit that
 * does not return 0 ends the walk. Members are views of the item: conversions move the item.
 */
typedef int (*reshard_member_visit)(void *context, const reshard_item *member, const char *json, size_t size);
reshard_status reshard_item_members(reshard_checkpoint *checkpoint, size_t index, reshard_member_visit visit, void *context,
                                    reshard_error *err);

size_t reshard_warning_count(const reshard_checkpoint *checkpoint);
const char *reshard_warning_at(const reshard_checkpoint *checkpoint, size_t index);

/* Facts that the format tells about itself: ("written by", "torch >= 2.9"), ("ranks", "4"), … NULL past the end. */
const char *reshard_fact_at(const reshard_checkpoint *checkpoint, size_t index, const char **value);

/* Number of files, and their bytes. */
size_t reshard_file_count(const reshard_checkpoint *checkpoint, uint64_t *bytes);

/* ------------------------------------------------------------------------------------------------ reading values */

typedef struct reshard_progress {
    uint64_t bytes_done, bytes_total, bytes_read, bytes_written, memory_bytes;
} reshard_progress;

typedef struct reshard_run_options {
    size_t struct_size;
    uint64_t memory_bytes;  /* budget for buffers; 0: default */
    unsigned threads;       /* 0: default */
    const char *io;         /* "auto" (NULL), "buffered", "direct", "mmap" */
    int (*progress)(const reshard_progress *progress, void *context); /* 0 cancels; may be NULL; a first call precedes all writing */
    void *context;
} reshard_run_options;
#define RESHARD_RUN_OPTIONS_INIT { sizeof(reshard_run_options), 0, 0, NULL, NULL, NULL }

/* Receives consecutive parts of a value; a status other than RESHARD_OK stops. */
typedef reshard_status (*reshard_sink)(const void *bytes, size_t size, void *context);

/* Box [start, start + extent) of a tensor (both NULL: all) as row-major little-endian bytes. */
reshard_status reshard_read(reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                            const reshard_run_options *run, reshard_sink sink, void *context, reshard_error *err);

/* The same into memory of size bytes, which must be exactly enough. */
reshard_status reshard_read_into(reshard_checkpoint *checkpoint, size_t tensor, const int64_t *start, const int64_t *extent,
                                 void *out, size_t size, reshard_error *err);

/* The .npy header for a tensor's box; free with reshard_free. */
reshard_status reshard_npy_header(reshard_checkpoint *checkpoint, size_t tensor, const int64_t *extent, void **header, size_t *size,
                                  reshard_error *err);

/* Digest of every tensor's full content, in the order of their keys, bytewise. digest: "sha256", "xxh3", "crc32c". */
typedef void (*reshard_hash_sink)(size_t tensor, const char *hex, void *context);
reshard_status reshard_hash(reshard_checkpoint *checkpoint, const char *digest, const reshard_run_options *run, reshard_hash_sink sink,
                            void *context, reshard_error *err);

/* Tensor indices in order of their keys, bytewise; ties by index, last first. count numbers; free with reshard_free. */
reshard_status reshard_sorted_tensors(const reshard_checkpoint *checkpoint, size_t **out, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ names */

/* A number that attributes of a mapping may name: num_heads=num_attention_heads. */
typedef struct reshard_map_constant {
    const char *name;
    int64_t value;
} reshard_map_constant;

/* A text of the mapping language (docs/mapping.md), or a configuration object that holds one (JSON, YAML, a Python list). name is for
 * diagnoses: a file name. */
typedef struct reshard_map_text {
    const char *name;
    const char *text;
    size_t size;
} reshard_map_text;

/* How the names, shapes and types of a checkpoint's tensors change before they are written or compared. */
typedef struct reshard_map_options {
    size_t struct_size;
    const reshard_map_text *texts;  /* run one after the other: each sees the names that the one before it made */
    size_t text_count;
    const char *rules;              /* family of the model, which relates name spaces; "none"; NULL: detected where there are no texts */
    const reshard_map_text *rules_text; /* such a text from elsewhere, in place of a built-in one; or NULL */
    int strict;                     /* refuse what Paddle's own engine does not know */
    const char *config; /* JSON object, such as a model's config.json: its integers are constants; NULL: the source's own, if it has one */
    size_t config_size;
    const reshard_map_constant *constants; /* these win over the config, and both over what a text defines */
    size_t constant_count;
    /* Is given the diagnoses of a text as lines with name, line and column: on failure, and warnings on success. May be NULL. */
    void (*diagnose)(const char *diagnoses, size_t error_count, void *context);
    void *context;
} reshard_map_options;
#define RESHARD_MAP_OPTIONS_INIT { sizeof(reshard_map_options), NULL, 0, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, NULL }

/* ------------------------------------------------------------------------------------------------ converting */

typedef struct reshard_convert_options {
    size_t struct_size;
    const char *to;               /* format; NULL only with like */
    const char *like;             /* path of a checkpoint whose format, layout and names are taken; or NULL */
    const char *layout;           /* "ranks=8,…" or NULL */
    const char *const *include, *const *exclude; /* globs on keys; NULL-terminated lists or NULL */
    const char *const *dtypes;    /* "bf16" or "GLOB=f32", the last match counts; NULL-terminated or NULL */
    const char *const *format_options; /* "name=value" of the target format; NULL-terminated or NULL */
    int64_t max_shard_bytes;      /* -1: the format's default */
    int drop_items;
    int overwrite, resume, no_sync;
    int verify;                   /* read back and compare */
    const char *checksum;         /* "crc32c", "sha256", or NULL: sidecar reshard.json with a digest per tensor */
    const reshard_open_options *open; /* for source and like; NULL: defaults */
    const reshard_map_options *map;   /* include, exclude and dtypes apply to what comes out; NULL: defaults */
} reshard_convert_options;
#define RESHARD_CONVERT_OPTIONS_INIT                                                                                                       \
    {                                                                                                                                      \
        sizeof(reshard_convert_options), NULL, NULL, NULL, NULL, NULL, NULL, NULL, -1, 0, 0, 0, 0, 0, NULL, NULL, NULL                     \
    }

/* What a conversion does, or would do. Lists are NULL-terminated; free with reshard_report_release. */
typedef struct reshard_report {
    char *source_format, *target_format;
    uint64_t tensors, items, source_chunks, target_chunks, steps;
    uint64_t read_bytes, write_bytes;  /* payload */
    uint64_t target_files, target_bytes; /* all bytes of the target's files */
    uint64_t peak_memory_bytes;        /* buffers and metadata, as planned */
    char **dropped, **changed, **warnings;
    struct reshard_report_rank {       /* by target file */
        char *file;
        uint64_t bytes, chunks, sources;
    } *files;
} reshard_report;
void reshard_report_release(reshard_report *report);

/* Size of the UTF-8 character that text begins with, if people may see it as it is; 0 for bytes to be escaped first: what is no UTF-8,
 * control characters, bidirectional and other invisible ones. Keys come from files, and files from strangers. size is at least 1. */
size_t reshard_visible_char(const char *text, size_t size);

/* Converts; the target appears whole or not at all. report may be NULL. A target that is or holds a file of the source, or lies in it, is
 * RESHARD_ERR_USAGE; so is one that overwrite may not replace: all but a checkpoint with nothing else in its folder, an empty folder or an
 * empty file. The caller's process should ignore SIGXFSZ if files may meet a limit on their size. */
reshard_status reshard_convert(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                               const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* What reshard_convert would do; touches nothing. target_path may be NULL. */
reshard_status reshard_plan(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                            const reshard_run_options *run, reshard_report *report, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ checking */

/* One finding of verify or diff. severity: 0 note, 1 warning, 2 failure. kind is a short word: "checksum", "replica", "coverage",
 * "unreferenced", "nan", "missing", "unexpected", "shape", "dtype", "values", "item", … index: first differing element (row-major), or -1.
 */
typedef struct reshard_finding {
    int severity;
    const char *kind;
    reshard_str key;
    const char *text;    /* one line for people */
    int64_t index;       /* flat */
    uint64_t count;      /* elements concerned */
    double max_difference;
} reshard_finding;
typedef void (*reshard_finding_sink)(const reshard_finding *finding, void *context);

/*
 * What verify has looked at. "Checked" is what a stored checksum or the sidecar reshard.json covers, so that damage cannot go unnoticed; of
 * the rest only the structure was proved: sizes, and that every element is stored exactly once.
 */
typedef struct reshard_coverage {
    uint64_t tensors, bytes, checked_tensors, checked_bytes; /* a tensor counts with all its bytes, as it is shown */
    uint64_t items, checked_items;
    uint64_t replicas;       /* copies of chunks, each compared with its first */
    int names_are_checked;   /* keys, shapes and types */
    int has_sidecar;
} reshard_coverage;

typedef struct reshard_verify_options {
    size_t struct_size;
    int deep; /* also read all values: NaN, Inf, all-zero counts; stored payload checksums are checked in either case */
    reshard_coverage *coverage; /* is filled unless verify stops with an error; may be NULL */
    /* Is told each tensor that has values which no checksum covers; may be NULL. */
    void (*uncovered)(reshard_str key, uint64_t bytes, void *context);
    void *context;
} reshard_verify_options;
#define RESHARD_VERIFY_OPTIONS_INIT { sizeof(reshard_verify_options), 0, NULL, NULL, NULL }

/* RESHARD_OK or RESHARD_DIFFERS (there was a failure), or the error that stopped it. */
reshard_status reshard_verify(reshard_checkpoint *checkpoint, const reshard_verify_options *options, const reshard_run_options *run,
                              reshard_finding_sink sink, void *context, reshard_error *err);

/* Newest checkpoint below root that opens and verifies; *path free with reshard_free. RESHARD_DIFFERS if none does. */
reshard_status reshard_latest_good(const char *root, const reshard_open_options *options, const reshard_verify_options *verify,
                                   reshard_finding_sink sink, void *context, char **path, reshard_error *err);

typedef struct reshard_diff_options {
    size_t struct_size;
    int ignore_items;
    double absolute_tolerance, relative_tolerance; /* 0, 0: bit equality (NaN equals itself, 0 and -0 differ) */
    const reshard_map_options *map; /* what comes out of a is compared with b; NULL: defaults */
} reshard_diff_options;
#define RESHARD_DIFF_OPTIONS_INIT { sizeof(reshard_diff_options), 0, 0, 0, NULL }

/* RESHARD_OK: same; RESHARD_DIFFERS: not, and the sink was told why. */
reshard_status reshard_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_diff_options *options,
                            const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ what there is */

typedef struct reshard_format_option {
    const char *name, *type, *default_value, *help;
} reshard_format_option;

typedef struct reshard_format {
    const char *name, *summary;
    int reads, writes, is_directory, holds_items;
    const reshard_format_option *options; /* ends with a NULL name */
} reshard_format;

/* RESHARD_ERR_USAGE past the end. */
reshard_status reshard_format_at(size_t index, reshard_format *out);
reshard_status reshard_limit_at(size_t index, reshard_limit *out);

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
    const reshard_limit *limits;      /* changes to the defaults; help is ignored */
    size_t limit_count;
    const char *config;               /* JSON object, such as a model's config.json: its integers are constants; or NULL */
    size_t config_size;
    const reshard_map_constant *constants; /* these win over the config, and both over what the text defines */
    size_t constant_count;
} reshard_map_input;
#define RESHARD_MAP_INPUT_INIT { sizeof(reshard_map_input), NULL, NULL, 0, NULL, NULL, 0, 0, NULL, 0, NULL, 0, NULL, 0 }

/* Texts end with NUL. Release with reshard_map_output_release. */
typedef struct reshard_map_output {
    char *text;      /* for people, or a mapping text; NULL on failure */
    char *json;      /* the same as one JSON object; NULL on failure */
    char *diagnoses; /* errors and warnings with line, column and caret: written on failure too; "" if there are none */
    size_t error_count, warning_count;
} reshard_map_output;
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
