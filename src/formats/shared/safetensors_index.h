/* SPDX-License-Identifier: Apache-2.0 */
/* The index file beside a set of safetensors files: which tensor is in which file. */
#ifndef FORMATS_SAFETENSORS_INDEX_H
#define FORMATS_SAFETENSORS_INDEX_H

#include "base/limits.h"
#include "base/name_map.h"
#include "base/value.h"

struct st_index {
    struct name_map keys;
    struct name_map files; /* as weight_map names them, relative to the index file */
    uint32_t *file_of;     /* by key */
    uint32_t capacity;
    struct value_graph graph; /* root: the metadata, a DICT or NULL */
    bool has_map, has_total_size;
    uint64_t total_size;
    struct st_index_member *members; /* what else the index has at its top: numbers, booleans and strings */
    uint32_t member_count, member_capacity;
    struct arena arena;
};

struct st_index_member {
    struct str name;
    struct value value; /* INT, BOOL or STR */
};

/* Parses an index. Refuses file names that are absolute, contain '..', or are no safetensors files; and duplicate keys unless lenient.
 * A missing weight_map is left to the caller. */
reshard_status st_index_parse(struct str json, const struct limits *limits, bool lenient, struct st_index *out, reshard_error *err);

/* Notes that a key is in a file, unless it is known (then *was_new is false and the first file stays). false: no memory. */
bool st_index_add(struct st_index *index, struct str key, uint32_t file, bool *was_new);
void st_index_release(struct st_index *index);

/* A member at the top, or NULL. */
const struct value *st_index_find(const struct st_index *index, const char *name);

#endif
