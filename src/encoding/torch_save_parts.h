/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files behind torch_save.h share: the state of one reading, the names that torch knows, and the checks that every
 * way of reading a tensor has to pass. Nobody else includes this.
 */
#ifndef ENCODING_TORCH_SAVE_PARTS_H
#define ENCODING_TORCH_SAVE_PARTS_H

#include "base/name_map.h"
#include "encoding/pickle.h"
#include "encoding/torch_save.h"

/* ---- names (torch_save_globals.c) ---- */

enum torch_rebuild {
    REBUILD_NONE,
    REBUILD_V1,              /* (storage, offset, size, stride) */
    REBUILD_V2,              /* (storage, offset, size, stride, requires_grad, hooks[, metadata]) */
    REBUILD_V3,              /* (storage, offset, size, stride, requires_grad, hooks, dtype[, metadata]) */
    REBUILD_PARAMETER,       /* (tensor, requires_grad, hooks) */
    REBUILD_PARAMETER_STATE, /* (tensor, requires_grad, hooks, state) */
    REBUILD_FROM_TYPE,       /* (function, type, args, state) */
    REBUILD_FROM_CPU,        /* (tensor, dtype, device, requires_grad) */
    REBUILD_QUANTIZED,       /* (storage, offset, size, stride, qparams, requires_grad, hooks) */
    REBUILD_WRAPPER,         /* (class, dtype, size, stride, offset, layout, device, requires_grad) */
    REBUILD_SPECIAL          /* sparse, nested, meta, XLA, numpy: a tensor without plain dense bytes in a storage */
};

/* What calling the GLOBAL callable rebuilds; NONE for everything that is no tensor. */
enum torch_rebuild torch_rebuild_of(const struct value *callable);

/* The dtype of a GLOBAL such as torch.float32. */
bool torch_dtype_of(const struct value *global, enum dtype *out);

/* A GLOBAL that names a storage class: its dtype, U8 and *is_untyped for untyped ones. */
bool torch_storage_class_of(const struct value *global, enum dtype *out, bool *is_untyped);

/* A GLOBAL such as torch.FloatTensor, torch.Tensor or torch.nn.parameter.Parameter. */
bool torch_is_tensor_class(const struct value *global);

/* Whether naming or calling it does nothing but make a plain value. */
bool torch_global_is_harmless(struct str module, struct str name);

/* ---- one reading ---- */

struct torch_reading {
    struct torch_archive *archive;
    const struct limits *limits;
    const struct reader *reader;
    const struct zip_archive *zip;   /* TORCH_ZIP */
    struct name_map members;         /* TORCH_ZIP: names below top -> zip->members index by member_of */
    struct name_map keys;            /* storage key -> index into archive->storages */
    struct name_map tensor_ids;      /* TORCH_TAR: id -> index into archive->tensors */
    struct name_map globals;         /* module NUL name, seen before */
    struct value **by_id;            /* nodes by id, NULL if not reachable */
    uint32_t storage_capacity, tensor_capacity, shard_capacity, unknown_capacity, warning_capacity;
    uint64_t blocker_offset;         /* of archive->weights_only_blocker */
    int rank;
    bool may_be_cut_off;             /* TORCH_ZIP: the end of the archive may be gone */
    bool is_cut_off;
};

reshard_status torch_warn(struct torch_reading *reading, reshard_error *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Notes what weights_only would refuse, if it comes before what is noted already. */
reshard_status torch_block(struct torch_reading *reading, uint64_t offset, reshard_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Appends a zeroed storage with this key; *out is its index. Refuses a second one of that key. */
reshard_status torch_add_storage(struct torch_reading *reading, struct str key, uint32_t *out, reshard_error *err);
reshard_status torch_add_tensor(struct torch_reading *reading, const struct torch_tensor *tensor, uint32_t *out, reshard_error *err);

/* A CALL or NEW node: sets node->tensor if it denotes a dense tensor; refuses calls that cannot be right. */
reshard_status torch_note_object(struct torch_reading *reading, struct value *node, reshard_error *err);

/* What torch wrote before it had rebuild functions: torch.FloatTensor made by NEWOBJ, then BUILD with (storage, offset, size, stride).
 * Such a node is older than its state, so it is looked at when all nodes have been. */
reshard_status torch_note_built(struct torch_reading *reading, struct value *node, reshard_error *err);

/* Walks archive->graph: checks globals, resolves persistent ids and finds tensors and shards. */
reshard_status torch_interpret(struct torch_reading *reading, reshard_error *err);

/* Parses archive->pickle, whose bytes start at base_offset of the archive, into archive->graph. */
reshard_status torch_parse_object(struct torch_reading *reading, uint64_t base_offset, reshard_error *err);

/* The containers. Each leaves archive->graph parsed and interpreted. */
reshard_status torch_open_zip(struct torch_reading *reading, reshard_error *err);
reshard_status torch_open_legacy(struct torch_reading *reading, reshard_error *err);
reshard_status torch_open_tar(struct torch_reading *reading, reshard_error *err);

/* ---- tensors ---- */

/* The members of a torch_tensor that say where its elements lie; shape and strides point to rank numbers. */
struct torch_view {
    enum dtype dtype;
    int rank;
    const int64_t *shape, *strides;
    int64_t offset; /* elements */
};

/* Checks a view against its storage: no negative or overflowing numbers, nothing beyond the storage, no expansion beyond the
 * limit. *offset_bytes is where element 0 lies. at is the offset for messages. */
reshard_status torch_view_check(const struct torch_view *view, uint64_t storage_bytes, const struct limits *limits, uint64_t at,
                                uint64_t *offset_bytes, reshard_error *err);

/* DTensor or ShardedTensor in a _rebuild_from_type_v2 call with REBUILD_WRAPPER: adds its shards. *is_shard false: another class. */
reshard_status torch_interpret_shard(struct torch_reading *reading, struct value *node, bool *is_shard, reshard_error *err);

/* The dict in a BUILD state: the dict itself, or the one of (None, dict) that slots give. NULL if there is none. */
const struct value *torch_state_dict(const struct value *state);

/* Member of an object whose attributes were set by BUILD; NULL if there is none. */
const struct value *torch_attribute(const struct value *object, const char *name);

#define TORCH_SPLIT_MAX 4096 /* pieces that a strided placement makes */

/* A placement of a DTensor of that rank. */
struct torch_placement;
reshard_status torch_parse_placement(const struct value *value, int tensor_rank, uint64_t at, struct torch_placement *out,
                                     reshard_error *err);

/* ---- pickles in a row (torch_save_stream.c) ---- */

/* Reads pickles and raw bytes one after the other from a reader; memory is bounded by the longest pickle. */
struct torch_stream {
    const struct reader *reader;
    const struct limits *limits;
    uint64_t position;     /* of the next byte in the reader */
    struct buffer window;  /* bytes from window_start on */
    uint64_t window_start;
};

/* The bytes of the next pickle, up to STOP; valid until the next call. Only opcodes are looked at; where they make no sense
 * the rest of the window is returned, for the parser to say why. */
reshard_status torch_stream_pickle(struct torch_stream *stream, struct str *out, reshard_error *err);

/* The next size bytes, at most 4096; valid until the next call. */
reshard_status torch_stream_bytes(struct torch_stream *stream, size_t size, struct str *out, reshard_error *err);
reshard_status torch_stream_skip(struct torch_stream *stream, uint64_t size, reshard_error *err);
void torch_stream_release(struct torch_stream *stream);

/* Whether the value is the integer that the first pickle of a legacy stream holds. */
bool torch_is_legacy_magic(const struct value *value);

#endif
