/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The torch.save container in both directions: zip archive, legacy stream or tar on reading, zip on writing. Used for
 * whole .pt files, for every blob of a .distcp file, and for items of many formats. Spec: docs/formats/torch.md.
 *
 * Reading finds where the bytes of each storage lie and what the pickle says about tensors; it reads no payload.
 */
#ifndef ENCODING_TORCH_SAVE_H
#define ENCODING_TORCH_SAVE_H

#include "base/limits.h"
#include "base/reader.h"
#include "base/value.h"
#include "encoding/compress.h"
#include "encoding/zip.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

enum torch_container { TORCH_NO_CONTAINER, TORCH_ZIP, TORCH_LEGACY, TORCH_TAR };

/* What the first bytes say, TORCH_NO_CONTAINER if they cannot be read. A bare pickle is none. */
reshard_status torch_save_probe(const struct reader *reader, enum torch_container *out, reshard_error *err);

/*
 * Of bytes that are no container: fails if they were one. What ends as a zip archive, or begins as a legacy stream but for a few bits, has
 * a damaged beginning, and its bytes are no value.
 */
reshard_status torch_save_check_raw(const struct reader *reader, reshard_error *err);

struct torch_storage {
    struct str key;       /* "0", or a legacy address; for a view the root's key and more */
    struct str location;  /* "cpu", "cuda:0", "meta" */
    bool is_untyped;
    enum dtype dtype;     /* U8 if untyped */
    uint64_t bytes;       /* decoded size */
    uint64_t offset;      /* payload, relative to the archive's start; for codec != NONE, where the coded bytes start */
    uint64_t stored_bytes;
    enum codec codec;     /* NONE or DEFLATE */
    bool has_data;        /* false: meta */
    uint32_t crc32;       /* of the zip member; has_crc says whether it counts */
    bool has_crc;
    bool is_unknown_class; /* of a class that torch does not have: bytes without a type, tensors on it are opaque */
    uint32_t view_of;     /* legacy and tar: 1 + index of the storage whose sub-range it is, else 0 */
};

enum torch_tensor_flags {
    TORCH_TENSOR_CONJ = 1, TORCH_TENSOR_NEG = 2, TORCH_TENSOR_REQUIRES_GRAD = 4, TORCH_TENSOR_PARAMETER = 8,
    TORCH_TENSOR_META = 16,    /* shape only */
    TORCH_TENSOR_SWAP = 32     /* elements are big-endian */
};

struct torch_tensor {
    uint32_t storage;      /* index */
    enum dtype dtype;
    int rank;
    const int64_t *shape, *strides; /* elements; arena */
    uint64_t offset_bytes; /* of element 0 in the storage's decoded bytes */
    unsigned flags;
    const struct value *node; /* the innermost rebuild call, or what stands for it */
};

/*
 * A DTensor or ShardedTensor found inside the pickle: which part of a global tensor a torch_tensor is. Its node is no dense
 * tensor, so value.tensor of it is 0; look it up by node. A ShardedTensor has a record for each local shard.
 */
struct torch_shard {
    uint32_t tensor;       /* index of the local tensor, or UINT32_MAX: this rank holds nothing of it */
    enum dtype dtype;
    int rank;
    const int64_t *global_shape, *start; /* arena */
    bool is_partial;       /* unreduced: the full value is a sum over ranks */
    bool is_unknown_place; /* the rank or its place in the mesh is not known: start is 0 */
    uint32_t mesh_coordinate_count;      /* 0: ShardedTensor */
    const struct value *node;            /* the outer node */
};

struct torch_archive {
    struct value_graph graph;  /* nodes that denote dense tensors have .tensor set, also their wrappers (Parameter …) */
    enum torch_container container;
    struct torch_storage *storages;
    uint32_t storage_count;
    struct torch_tensor *tensors;
    uint32_t tensor_count;
    struct torch_shard *shards; /* empty for plain files */
    uint32_t shard_count;
    bool is_big_endian;
    bool checksums_are_off;    /* zip: the writer wrote no CRCs */
    uint32_t alignment;        /* 0: not said */
    struct str top;            /* name of the top directory */
    struct str *unknown_globals; /* "module.name" of what would be called or named and is not in the table of harmless ones, each once */
    uint32_t unknown_global_count;
    struct str *warnings;
    uint32_t warning_count;
    int pickle_protocol;
    struct str weights_only_blocker; /* first thing that torch.load(weights_only=True) refuses, "" if none */
    struct arena arena;
    struct buffer pickle;      /* data.pkl, kept because the graph points into it */
    struct buffer extra;       /* other bytes that the graph points into */
};

/*
 * Opens the archive that fills reader. rank, for DTensors whose coordinate the pickle does not hold: the rank whose file this
 * is, or -1.
 */
reshard_status torch_save_open(const struct reader *reader, const struct limits *limits, int rank, struct torch_archive *out,
                               reshard_error *err);
void torch_save_release(struct torch_archive *archive);

/* The same of a zip whose end may be gone: storages without a record lie behind the end of the file. */
reshard_status torch_save_open_cut_off(const struct reader *reader, const struct limits *limits, int rank, struct torch_archive *out,
                                       reshard_error *err);

/* How a node whose value.tensor is set spells its tensor. */
enum torch_spelling {
    TORCH_SPELLS_ITSELF,  /* the rebuild call itself (or what stood for one once): all of it means the tensor */
    TORCH_SPELLS_INNER,   /* a wrapper such as Parameter: its first argument, or that of the call it dresses, means the tensor */
    TORCH_SPELLS_DRESSED  /* _rebuild_from_type_v2(function, type, args, state): args are those of a rebuild call */
};

/* *args, for TORCH_SPELLS_DRESSED: the tuple of arguments; else NULL. *requires_grad as the spelling says. */
enum torch_spelling torch_save_spelling(const struct value *value, const struct value **args, bool *requires_grad);

/* What the arguments of a rebuild call say of that (may be NULL). */
bool torch_save_args_require_grad(const struct value *args);

/* The class and the number of elements that the persistent id of a storage says; false if it is no storage's. */
bool torch_save_storage_id(const struct value *persid, const struct value **class_, bool *is_known, enum dtype *dtype, bool *is_untyped,
                           int64_t *numel);

/* Whether torch.load(weights_only=True) takes the class or function. */
bool torch_global_is_weights_only(struct str module, struct str name);

/* Whether the node denotes a tensor of any kind: dense, sparse, quantized, nested, meta, DTensor … */
bool torch_save_is_tensor_node(const struct value *value);

/* The fast way for a blob that holds exactly one tensor (DCP): container, dtype, shape, strides and payload extent, nothing
 * allocated beyond scratch. Falls back to torch_save_open inside; same checks. is_tensor false: the blob is an item. */
struct torch_blob_tensor {
    bool is_tensor;
    enum dtype dtype;
    int rank;
    int64_t shape[RANK_MAX], strides[RANK_MAX];
    uint64_t payload_offset, payload_bytes, offset_bytes; /* storage extent in the blob; element 0 inside it */
    uint64_t stored_bytes;
    enum codec codec;
    unsigned flags;
    uint32_t crc32;
    bool has_crc;
};
reshard_status torch_save_open_tensor(const struct reader *reader, const struct limits *limits, struct buffer *scratch,
                                      struct torch_blob_tensor *out, reshard_error *err);

/* The same of data.pkl alone, where the storage lies elsewhere: payload_offset is 0. false: it is not what torch.save writes of one dense
 * tensor, or the tensor does not fit its storage. */
bool torch_save_tensor_of_pickle(struct str text, const struct limits *limits, struct torch_blob_tensor *out);

/* ---- writing ---- */

/* Appends the pickle expression of a dense tensor: _rebuild_tensor_v2 or v3 with BINPERSID. strides in elements, NULL: row-major. */
void torch_save_put_tensor(struct buffer *out, enum dtype dtype, int rank, const int64_t *shape, const int64_t *strides,
                           uint64_t offset_elements, const char *storage_key, uint64_t storage_bytes, bool requires_grad);

/* The argument tuple of that expression alone, for calls that wrap it. The function is _rebuild_tensor_v3 where the type has no
 * storage class (dtype_info()->torch_storage is ""), else _rebuild_tensor_v2. */
void torch_save_put_tensor_args(struct buffer *out, enum dtype dtype, int rank, const int64_t *shape, const int64_t *strides,
                                uint64_t offset_elements, const char *storage_key, uint64_t storage_bytes, bool requires_grad);

/* Appends a persistent id of a storage on the CPU, with BINPERSID. */
void torch_save_put_storage(struct buffer *out, const char *class_module, const char *class_name, const char *storage_key, uint64_t numel);

/* Whether torch.save can hold the type at all. */
bool torch_save_can_hold(enum dtype dtype);

/* A torch zip to be written: the pickle, then storages in order. Frames are everything that is not storage payload. */
struct torch_frame {
    struct zip_plan_member
        *members; /* data.pkl, .format_version, .storage_alignment, byteorder, data/0…, version, .data/serialization_id */
    uint32_t member_count, first_storage, storage_count;
    struct buffer pickle;
    uint32_t alignment;
    uint64_t directory_offset, bytes; /* bytes: of the archive */
    struct arena arena;
};

/* Lays the archive out. Takes over pickle's memory. Storage i's payload lies at members[first_storage + i].payload_offset. */
reshard_status torch_frame_plan(const char *top, struct buffer *pickle, const uint64_t *storage_bytes, uint32_t storage_count,
                                uint32_t alignment, struct torch_frame *out, reshard_error *err);

/* Emits every non-payload byte in ascending order, as (offset in archive, bytes), given the CRC-32 of each storage payload. */
typedef reshard_status (*torch_frame_sink)(void *context, uint64_t offset, const void *bytes, size_t size, reshard_error *err);
reshard_status torch_frame_write(struct torch_frame *frame, const uint32_t *storage_crcs, torch_frame_sink sink, void *context,
                                 reshard_error *err);
void torch_frame_release(struct torch_frame *frame);

#endif
