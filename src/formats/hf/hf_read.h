/* SPDX-License-Identifier: Apache-2.0 */
/* What the reading side of the hf driver shares while a catalog is filled. */
#ifndef FORMATS_HF_READ_H
#define FORMATS_HF_READ_H

#include "formats/hf/hf.h"
#include "formats/hf/hf_folder.h"
#include "formats/hf/hf_index.h"
#include "encoding/safetensors_header.h"

struct hf_file {
    struct str name; /* relative to the store's root, NUL-terminated */
    struct st_header header;
    uint64_t bytes;
    uint32_t object; /* of the catalog, once it is added */
};

struct hf_files {
    struct hf_file *items;
    uint32_t count;
};

struct hf_read {
    struct source *source;
    struct arena arena;
    struct hf_folder folder;
    struct hf_index index; /* file_of counts files.items */
    uint32_t mapped_count; /* keys that the index file has; those behind them it does not */
    struct hf_files files;
    struct hf_files sharded; /* DCP shards that a consolidated folder keeps beside, see hf_scalar.c */
    bool looked_for_sharded;
};

/* Reads the headers of all named files; names stay where they are. */
reshard_status hf_files_read(struct source *source, const struct str *names, size_t count, struct hf_files *out, reshard_error *err);
void hf_files_release(struct hf_files *files);
reshard_status hf_files_add_objects(struct source *source, struct hf_files *files, reshard_error *err);

/* Whether two ranges of equal size in two files hold the same bytes. */
reshard_status hf_ranges_equal(struct store *store, struct str a, uint64_t a_offset, struct str b, uint64_t b_offset, uint64_t bytes,
                               bool *equal, reshard_error *err);

/* Fills the catalog with the pieces of read->files, DCP shards. */
reshard_status hf_read_shards(struct hf_read *read, reshard_error *err);

/* Where a shard's piece of its entry i starts, RANK_MAX numbers at most; from the file's DCP_SHARDING_INFO (without one: at the origin). */
struct hf_offsets {
    int64_t *values;
    uint64_t *at; /* by entry */
};
reshard_status hf_offsets_read(const struct hf_file *file, const struct limits *limits, struct arena *arena, struct hf_offsets *out,
                               reshard_error *err);

/* For a 0-d tensor of a consolidated folder: where its right value is. *file and *entry are changed if that is another file. */
reshard_status hf_scalar_find(struct hf_read *read, const struct hf_file **file, const struct st_entry **entry, struct str key,
                              reshard_error *err);

/* Items: metadata on which all files agree, the index's own, and side files. */
reshard_status hf_read_items(struct hf_read *read, reshard_error *err);

#endif
