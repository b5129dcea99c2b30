/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two ways of decoding a `.metadata` share: the names that have a meaning, the arrays that grow, and the last
 * checks. Only the metadata_*.c files include this.
 */
#ifndef FORMATS_DCP_METADATA_BUILD_H
#define FORMATS_DCP_METADATA_BUILD_H

#include "encoding/pickle.h"
#include "formats/dcp/metadata_decode.h"

/* What a global of the pickle is to us. */
enum dcp_class {
    DCP_CLASS_UNKNOWN,  /* neither known nor harmless: reported */
    DCP_CLASS_HARMLESS, /* left opaque */
    DCP_CLASS_METADATA, DCP_CLASS_TENSOR, DCP_CLASS_PROPERTIES, DCP_CLASS_CHUNK, DCP_CLASS_BYTES, DCP_CLASS_INDEX, DCP_CLASS_RANGE,
    DCP_CLASS_STORAGE_META,
    DCP_CLASS_SIZE,     /* torch.Size */
    DCP_CLASS_DTYPE,    /* torch.NAME: anything in that module may stand for a dtype, the driver knows which exist */
    DCP_CLASS_PATH      /* pathlib's classes: a call joins its arguments */
};
enum dcp_class dcp_class_of(struct str module, struct str name, bool *is_harmless);

/* Attributes of the known classes. One name means the same in every class that has it. */
#define DCP_ATTRIBUTES(X)                                                                                            \
    X(STATE_DICT_METADATA, "state_dict_metadata") X(PLANNER_DATA, "planner_data") X(STORAGE_DATA, "storage_data")    \
    X(STORAGE_META, "storage_meta") X(RAW, "all_tensor_metadata") X(VERSION, "version")                              \
    X(PROPERTIES, "properties") X(SIZE, "size")                                                                      \
    X(CHUNKS, "chunks") X(OFFSETS, "offsets") X(SIZES, "sizes") X(FQN, "fqn") X(OFFSET, "offset") X(INDEX, "index")  \
    X(RELATIVE_PATH, "relative_path") X(LENGTH, "length") X(TRANSFORMS, "transform_descriptors")                     \
    X(CHECKPOINT_ID, "checkpoint_id") X(SAVE_ID, "save_id") X(LOAD_ID, "load_id") X(DTYPE, "dtype")

enum dcp_attribute {
    DCP_ATTR_NONE, /* any other string */
#define X(id, name) DCP_ATTR_##id,
    DCP_ATTRIBUTES(X)
#undef X
    DCP_ATTR_COUNT
};
enum dcp_attribute dcp_attribute_of(struct str name);
const char *dcp_attribute_name(enum dcp_attribute attribute);

struct dcp_build {
    struct dcp_metadata *out;
    const struct limits *limits;
    reshard_error *err;
    uint32_t entry_capacity, chunk_capacity, index_capacity, range_capacity, path_capacity, path_part_capacity, transform_list_capacity,
        transform_text_capacity, class_module_capacity, extra_attribute_capacity, unknown_global_capacity;
    uint32_t index_count, range_count; /* made so far; storage_count is set at the end */
};

reshard_status dcp_build_init(struct dcp_build *build, const struct limits *limits, struct dcp_metadata *out, reshard_error *err);

/* Each adds one element and gives its number; failures are memory or a limit. */
reshard_status dcp_build_vector(struct dcp_build *build, const int64_t *values, size_t rank, uint32_t *out);
reshard_status dcp_build_name(struct dcp_build *build, struct str name, uint32_t *out);
reshard_status dcp_build_text(struct dcp_build *build, struct str text, uint32_t *out);
reshard_status dcp_build_chunk(struct dcp_build *build, uint32_t offsets, uint32_t sizes, uint32_t *out);
reshard_status dcp_build_index(struct dcp_build *build, struct dcp_index index, uint32_t *out);
reshard_status dcp_build_range(struct dcp_build *build, struct dcp_range range, uint32_t *out);
reshard_status dcp_build_entry(struct dcp_build *build, struct dcp_entry entry);
reshard_status dcp_build_path(struct dcp_build *build, uint32_t name, const struct dcp_path_part *parts, size_t count);
reshard_status dcp_build_transforms(struct dcp_build *build, const uint32_t *texts, size_t count, uint32_t *out);

/* Text of a pathlib path made of these arguments. */
reshard_status dcp_build_joined(struct dcp_build *build, const struct str *parts, size_t count, uint32_t *out);

/* The text "module.name". */
reshard_status dcp_build_class_name(struct dcp_build *build, struct str module, struct str name, uint32_t *out);

/* Notes a global in class_modules or unknown_globals; must be called in the order of appearance. */
reshard_status dcp_build_note_global(struct dcp_build *build, struct str module, struct str name);
reshard_status dcp_build_note_attribute(struct dcp_build *build, struct str name);

/* Checks that all numbers fit together, fills entry_of_name and path_of_name and gives unused memory back. */
reshard_status dcp_build_finish(struct dcp_build *build);

/*
 * The fast way. *is_done false: the pickle is not of the expected shape (perhaps broken), and nothing is said about it; what
 * was put into build must be thrown away. Errors are memory and limits.
 */
reshard_status dcp_decode_fast(const void *bytes, size_t size, struct dcp_build *build, bool *is_done);

/* The general way. */
reshard_status dcp_decode_general(const void *bytes, size_t size, struct dcp_build *build);

/* A MetadataIndex, a key of `what`. */
reshard_status dcp_general_index(struct dcp_build *build, const struct value *key, const char *what, struct dcp_index *out);

/* The root's all_tensor_metadata; after storage_data. */
reshard_status dcp_raw_read(struct dcp_build *build, const struct value *mapping);

#endif
