/* SPDX-License-Identifier: Apache-2.0 */
/* The index file of a Hugging Face folder: which tensor is in which file. */
#ifndef FORMATS_HF_INDEX_H
#define FORMATS_HF_INDEX_H

#include "base/limits.h"
#include "base/name_map.h"
#include "base/value.h"

struct hf_index {
    struct name_map keys;
    struct name_map files; /* as weight_map names them, relative to the index file */
    uint32_t *file_of;     /* by key */
    uint32_t capacity;
    struct value_graph graph; /* root: the metadata, a DICT or NULL */
    bool has_total_size;
    uint64_t total_size;
};

/* Parses an index. Refuses file names that are absolute, contain '..', or are no safetensors files; and duplicate keys unless lenient. */
reshard_status hf_index_parse(struct str json, const struct limits *limits, bool lenient, struct hf_index *out, reshard_error *err);

/* Notes that a key is in a file, unless it is known (then *was_new is false and the first file stays). false: no memory. */
bool hf_index_add(struct hf_index *index, struct str key, uint32_t file, bool *was_new);
void hf_index_release(struct hf_index *index);

/* The index of a target: keys sorted, indent 2, a newline at its end, as transformers writes it. metadata (may be NULL) is a DICT whose
 * pairs go beside total_size; extra pairs follow. */
struct hf_mapped {
    struct str key, file;
};
struct st_metadata;
reshard_status hf_index_write(struct hf_mapped *mapped, size_t count, uint64_t total_size, const struct value *metadata, bool is_whole,
                              const struct st_metadata *ties, const struct limits *limits, struct buffer *out, reshard_error *err);

#endif
