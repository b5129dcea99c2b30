/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoder of a DCP `.metadata` pickle (torch.distributed.checkpoint, 1.13 to today, Megatron's subclasses included) into
 * compact arrays: about 50 bytes a chunk, names and index vectors interned, nothing points into the input.
 *
 * Two ways lead to the same result. The fast one is a pickle machine made for the shapes that torch writes; it builds no
 * value nodes. Whatever it does not expect goes to the general one, pickle_parse and a walk over its graph, which also
 * words every error. Nothing is executed; only the classes of torch's checkpoint modules are given a meaning.
 *
 * Checked here: types (an operating system call where a size belongs is RESHARD_ERR_FORMAT with the tensor and the
 * offset), signs, and that a chunk has as many dimensions as its tensor. Not checked: boxes, coverage, paths, dtype names.
 */
#ifndef FORMATS_DCP_METADATA_DECODE_H
#define FORMATS_DCP_METADATA_DECODE_H

#include "base/error.h"
#include "base/limits.h"
#include "base/name_map.h"
#include "base/vector_pool.h"
#include "tensor/dtype.h"

#define DCP_NONE UINT32_MAX

/* One pair of state_dict_metadata, in its order. A name may occur twice. */
struct dcp_entry {
    uint32_t name;         /* in names */
    uint32_t dtype;        /* in texts, such as "float32"; DCP_NONE: a byte item, which has no size and no chunks */
    uint32_t size;         /* vector: global shape */
    uint32_t first_chunk, chunk_count;
    uint64_t offset;       /* where the key lies in the object, for messages */
};

struct dcp_chunk {
    uint32_t offsets, sizes; /* vectors */
};

/* Pair k of storage_data is indexes[k] (the MetadataIndex) and ranges[k] (the _StorageInfo). */
struct dcp_index {
    uint32_t name;         /* in names; it need not occur in state_dict_metadata */
    uint32_t offset;       /* vector, or DCP_NONE: a byte item */
    int64_t index;         /* hint: position in the entry's chunks, -1 if absent; may be wrong */
};
struct dcp_range {
    uint64_t offset, length;
    uint32_t path;         /* in texts: relative_path, as it stands */
    uint32_t transforms;   /* in transform_lists, or DCP_NONE */
};

/* transform_descriptors of a range: texts, in the order to apply on reading. Equal lists are one. */
struct dcp_transforms {
    uint32_t first, count; /* in transform_texts */
};

/* planner_data: the path of a name is path_parts[first .. first + count). */
struct dcp_path {
    uint32_t name;
    uint32_t first, count;
};
struct dcp_path_part {
    uint32_t text;         /* in texts, or DCP_NONE: an integer */
    int64_t index;
};

/* What ByteCheckpoint says of a blob that is the bytes of one storage and nothing else: the tensor in it. */
struct dcp_raw {
    bool is_there;
    enum dtype dtype;
    uint32_t shape, strides; /* vectors */
    uint64_t bytes;          /* of the storage, as many as of the blob */
    uint64_t offset_bytes;   /* where element 0 lies in it */
};

struct dcp_metadata {
    struct name_map names, texts;
    struct vector_pool vectors;
    struct dcp_entry *entries;
    struct dcp_chunk *chunks;    /* may hold some that no entry has */
    struct dcp_index *indexes;
    struct dcp_range *ranges;
    struct dcp_raw *raws;        /* by pair of storage_data; NULL: every blob is a container of torch.save */
    struct dcp_transforms *transform_lists;
    uint32_t *transform_texts;
    struct dcp_path *paths;
    struct dcp_path_part *path_parts;
    uint32_t *entry_of_name;     /* by name: the last entry of that name, or DCP_NONE */
    uint32_t *path_of_name;      /* by name: the last path of that name, or DCP_NONE */
    uint32_t entry_count, chunk_count, storage_count, transform_list_count, transform_text_count, path_count, path_part_count;
    bool has_planner_data, has_storage_data, has_storage_meta; /* present and not None */

    /* storage_meta; texts or DCP_NONE. A pathlib checkpoint_id is its parts joined. */
    uint32_t checkpoint_id, save_id, load_id;
    uint32_t version;            /* text or DCP_NONE */
    uint32_t root_class;         /* text: "torch.distributed.checkpoint.metadata.Metadata" */

    /* Texts, each once, in order of appearance in the pickle; arrays of texts indices. */
    uint32_t *class_modules;     /* modules of the checkpoint classes that occur */
    uint32_t *extra_attributes;  /* attributes of the root beyond the six known: left unread */
    uint32_t *unknown_globals;   /* "module.name" of what is neither known nor harmless: left opaque */
    uint32_t class_module_count, extra_attribute_count, unknown_global_count;

    int protocol;
    bool is_fast;                /* the fast way was enough */
};

static inline int dcp_vector_rank(const struct dcp_metadata *metadata, uint32_t vector)
{
    return vector_pool_rank(&metadata->vectors, vector);
}

static inline const int64_t *dcp_vector_at(const struct dcp_metadata *metadata, uint32_t vector)
{
    return vector_pool_at(&metadata->vectors, vector);
}

static inline struct str dcp_text(const struct dcp_metadata *metadata, uint32_t text)
{
    return name_map_at(&metadata->texts, text);
}

enum dcp_decode_way { DCP_DECODE_BEST, DCP_DECODE_GENERAL /* for tests: not the fast way */ };

/* Decodes the whole object. bytes may be freed afterwards. On failure out is left empty. */
reshard_status dcp_metadata_decode(const void *bytes, size_t size, const struct limits *limits, enum dcp_decode_way way,
                                   struct dcp_metadata *out, reshard_error *err);
void dcp_metadata_release(struct dcp_metadata *metadata);

#endif
