/* SPDX-License-Identifier: Apache-2.0 */
/* What the two ways of decoding share: the names that have a meaning and the arrays that grow. Only flex_metadata_*.c include this. */
#ifndef FORMATS_PADDLE_FLEX_METADATA_BUILD_H
#define FORMATS_PADDLE_FLEX_METADATA_BUILD_H

#include "formats/paddle/flex_metadata.h"

/* What a global of the pickle is to us. */
enum flex_class {
    FLEX_CLASS_UNKNOWN, /* refused */
    FLEX_CLASS_METADATA, FLEX_CLASS_SHARD, FLEX_CLASS_INDEX,
    FLEX_CLASS_SCALAR,  /* numpy's scalar function */
    FLEX_CLASS_DTYPE,   /* numpy.dtype */
    FLEX_CLASS_ENCODE   /* _codecs.encode: bytes of protocol 2 */
};
enum flex_class flex_class_of(struct str module, struct str name);

/* Attributes of the known classes. One name means the same in every class that has it. */
#define FLEX_ATTRIBUTES(X)                                                                                                               \
    X(STATE_DICT_METADATA, "state_dict_metadata") X(STORAGE_METADATA, "storage_metadata") X(FLAT_MAPPING, "flat_mapping")                \
    X(MODEL_TYPE, "model_type") X(CHECKPOINT_VERSION, "checkpoint_version") X(ERNIEBOT_COMMIT, "erniebot_commit_id")                     \
    X(PADDLE_COMMIT, "paddle_commit_id") X(GLOBAL_OFFSET, "global_offset") X(LOCAL_SHAPE, "local_shape") X(DTYPE, "dtype")               \
    X(GLOBAL_SHAPE, "global_shape") X(IS_FLATTENED, "is_flattened") X(FLATTENED_RANGE, "flattened_range") X(TENSOR_KEY, "tensor_key")    \
    X(REPLICA_ID, "replica_id")

enum flex_attribute {
    FLEX_ATTR_NONE, /* any other string */
#define X(id, name) FLEX_ATTR_##id,
    FLEX_ATTRIBUTES(X)
#undef X
    FLEX_ATTR_COUNT
};
enum flex_attribute flex_attribute_of(struct str name);
const char *flex_attribute_name(enum flex_attribute attribute);

struct flex_build {
    struct flex_metadata *out;
    const struct limits *limits;
    reshard_error *err;
    bool has_unknown; /* the fast way has met a class that is refused */
    uint32_t key_capacity, shard_capacity, index_capacity, path_capacity, path_text_capacity, extra_attribute_capacity;
};

/* Each adds one element and gives its number; failures are memory or a limit. */
reshard_status flex_build_vector(struct flex_build *build, const int64_t *values, size_t rank, uint32_t *out);
reshard_status flex_build_name(struct flex_build *build, struct str name, uint32_t *out);
reshard_status flex_build_text(struct flex_build *build, struct str text, uint32_t *out);
reshard_status flex_build_shard(struct flex_build *build, struct flex_shard shard, uint32_t *out);
reshard_status flex_build_index(struct flex_build *build, struct flex_index index, uint32_t *out);
reshard_status flex_build_key(struct flex_build *build, struct flex_key key);
reshard_status flex_build_path_part(struct flex_build *build, struct str part);
reshard_status flex_build_path(struct flex_build *build, uint32_t name, uint32_t count); /* of the parts added last */
reshard_status flex_build_extra(struct flex_build *build, struct str attribute);

/* Sign and bytes of numpy's integer types: "i8", "<u2". */
bool flex_integer_type(struct str name, bool *is_signed, size_t *bytes);

/* A little-endian integer of that type. False for what is beyond 63 bits. */
bool flex_integer_of(struct str bytes, bool is_signed, int64_t *out);

/*
 * The fast way. *is_done false: the pickle is not of the expected shape (perhaps broken), and nothing is said about it; what was put into
 * build must be thrown away. Errors are memory and limits.
 */
reshard_status flex_decode_fast(const void *bytes, size_t size, struct flex_build *build, bool *is_done);

/* The general way. */
reshard_status flex_decode_general(const void *bytes, size_t size, struct flex_build *build);

#endif
