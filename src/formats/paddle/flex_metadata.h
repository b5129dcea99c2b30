/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoder of Paddle's Flex Checkpoint metadata, `<uid>.metadata`: one pickle of a Metadata object, in every generation (below), into
 * compact arrays; names and index vectors are interned, nothing points into the input.
 *
 *   Metadata             state_dict_metadata {key: [LocalTensorMetadata, …]}, storage_metadata {LocalTensorIndex: file name},
 *                        flat_mapping {key: (path, …)} (not in 2.6), model_type and other strings (after 3.3)
 *   LocalTensorMetadata  global_offset, local_shape; from 3.0 on dtype; from 3.2 on global_shape, is_flattened, flattened_range
 *   LocalTensorIndex     tensor_key, global_offset; from 3.2 on is_flattened, flattened_range; from 3.3 on replica_id, local_shape
 *
 * The module is paddle.distributed.checkpoint.metadata up to 3.1, then paddle.distributed.flex_checkpoint.dcp.metadata. Ends of ranges may
 * be scalars of NumPy, shapes may be lists. No other class may occur, and nothing is called.
 *
 * Two ways lead to the same result: encoding/pickle_records, which takes what CPython writes at speed, and where it gives up a walk over
 * the graph of encoding/pickle.h, which also words every error. Checked here are types; boxes, ranges and what fits what are the catalog's
 * matter (flex_catalog.c).
 */
#ifndef FORMATS_PADDLE_FLEX_METADATA_H
#define FORMATS_PADDLE_FLEX_METADATA_H

#include "base/error.h"
#include "base/limits.h"
#include "base/name_map.h"
#include "base/vector_pool.h"

#define FLEX_NONE UINT32_MAX
#define FLEX_MODULE "paddle.distributed.flex_checkpoint.dcp.metadata"
#define FLEX_OLD_MODULE "paddle.distributed.checkpoint.metadata"

/* A pair of state_dict_metadata: key and shards. */
struct flex_key {
    uint32_t name; /* in names */
    uint32_t first_shard, shard_count;
    uint64_t offset; /* where the key lies in the pickle, for messages */
};

/* LocalTensorMetadata. Vectors and texts are FLEX_NONE where the attribute is absent or None. */
struct flex_shard {
    uint32_t offset, shape; /* vectors: of the box */
    uint32_t global_shape;  /* vector */
    uint32_t range;         /* vector (start, stop): of the box's elements in row-major order */
    uint32_t dtype;         /* text, such as "float32" */
    uint32_t name;          /* of the key that has it, in names */
    bool is_flattened;
};

/* A pair of storage_metadata: LocalTensorIndex and file name. */
struct flex_index {
    uint32_t name;          /* in names */
    uint32_t offset, range; /* vectors; range may be FLEX_NONE */
    uint32_t shape;         /* vector: of the box, FLEX_NONE before 3.3 */
    uint32_t file;          /* text */
    int32_t replica;        /* -1: None */
    bool is_flattened;
};

/* A pair of flat_mapping: texts [first, first + count) of path_texts. */
struct flex_path {
    uint32_t name, first, count;
};

/* What the attributes that occur say about the writer. */
struct flex_generation {
    int shard; /* -1: 2.6; 0: 3.0, 3.1; 1: from 3.2 on */
    int index; /* 0: up to 3.1; 1: 3.2; 2: from 3.3 on */
    bool is_old_module;
};

/* Strings of the root that later versions write. */
enum flex_label { FLEX_MODEL_TYPE, FLEX_CHECKPOINT_VERSION, FLEX_ERNIEBOT_COMMIT, FLEX_PADDLE_COMMIT, FLEX_LABELS };

struct flex_metadata {
    struct name_map names, texts;
    struct vector_pool vectors;
    struct flex_key *keys;
    struct flex_shard *shards; /* may hold some that no key has */
    struct flex_index *indexes;
    struct flex_path *paths;
    uint32_t *path_texts;
    uint32_t key_count, shard_count, index_count, path_count, path_text_count;
    uint32_t labels[FLEX_LABELS]; /* texts or FLEX_NONE */
    bool has_flat_mapping;
    struct flex_generation generation;
    uint32_t *extra_attributes; /* texts: attributes of any object beyond those above, left unread */
    uint32_t extra_attribute_count;
    int protocol;
    bool is_fast; /* the fast way was enough */
};

static inline int flex_vector_rank(const struct flex_metadata *metadata, uint32_t vector)
{
    return vector_pool_rank(&metadata->vectors, vector);
}

static inline const int64_t *flex_vector_at(const struct flex_metadata *metadata, uint32_t vector)
{
    return vector_pool_at(&metadata->vectors, vector);
}

static inline struct str flex_text(const struct flex_metadata *metadata, uint32_t text)
{
    return name_map_at(&metadata->texts, text);
}

static inline struct str flex_name(const struct flex_metadata *metadata, uint32_t name)
{
    return name_map_at(&metadata->names, name);
}

enum flex_decode_way { FLEX_DECODE_BEST, FLEX_DECODE_GENERAL /* for tests: not the fast way */ };

/* Decodes the whole object. bytes may be freed afterwards. On failure out is left empty. */
reshard_status flex_metadata_decode(const void *bytes, size_t size, const struct limits *limits, enum flex_decode_way way,
                                    struct flex_metadata *out, reshard_error *err);
void flex_metadata_release(struct flex_metadata *metadata);

#endif
