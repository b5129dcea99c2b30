/* SPDX-License-Identifier: Apache-2.0 */
/* What the reading side of torch and fsdp-ranks shares: opened files, and how they become a catalog. */
#ifndef FORMATS_SHARED_TORCH_SOURCE_H
#define FORMATS_SHARED_TORCH_SOURCE_H

#include "encoding/torch_save.h"
#include "formats/driver.h"
#include "formats/shared/torch_flatten.h"

#define TORCH_NONE UINT32_MAX

/* One opened file. Its graph belongs to the catalog; the bytes that the graph points into stay here. */
struct torch_file {
    struct torch_archive archive;
    struct value_graph *graph;
    uint32_t object;
    uint32_t *listed;  /* by archive tensor: 1 + the first catalog tensor that is it */
    uint32_t *hidden;  /* by archive storage: 1 + the hidden catalog tensor of its bytes */
    bool *has_crc_in_chunk; /* by archive storage: its one chunk carries the CRC, so that the payload check finds damage */
};

/* What a catalog tensor is in its file. */
struct torch_origin {
    uint32_t file;
    uint32_t tensor;  /* archive tensor; TORCH_NONE: hidden, a whole storage */
    uint32_t storage;
};

/* driver_state of a source. */
struct torch_source {
    struct torch_file *files;
    uint32_t file_count, file_capacity;
    struct torch_origin *origins; /* by catalog tensor */
    uint32_t origin_count, origin_capacity;
    uint32_t group_count;
    bool is_kept_whole; /* what a file's object mentions anywhere stays, not only what items do: it may be written as it is */
    struct torch_ranks *ranks; /* fsdp-ranks: how its files are called and what they say of the ranks; lies in the catalog's arena */
    const char *const *closed_members; /* members of the outermost dict that are one item whatever they hold; ends with NULL, may be NULL */
};

struct torch_source *torch_source_of(const struct source *source);

/* Makes driver_state. */
reshard_status torch_source_new(struct source *source, reshard_error *err);
void torch_source_close(struct source *source);

/* Opens the file `name` of the store as the next file and gives its graph to the catalog. rank as for torch_save_open. */
reshard_status torch_source_open_file(struct source *source, const char *name, int rank, uint32_t *out, reshard_error *err);

/* Flattens the file into tensors, items and hidden tensors. accept, if given, says for each tensor key whether it belongs here. */
typedef bool (*torch_accept)(struct str key, void *context);
reshard_status torch_source_add_file(struct source *source, uint32_t file, torch_accept accept, void *context, reshard_error *err);

/* Notes what catalog tensor `tensor` is; for drivers that add tensors themselves. */
reshard_status torch_source_note_origin(struct torch_source *state, uint32_t tensor, struct torch_origin origin, reshard_error *err);

/* Adds the chunk that an archive tensor is of a catalog tensor; start NULL: the whole. Nothing for an empty one. */
reshard_status torch_source_add_chunk(struct source *source, uint32_t tensor, const int64_t *start, uint32_t file, uint32_t archive_tensor,
                                      bool with_crc, struct catalog_chunk **out, reshard_error *err);

/* Adds the chunk that a part of an archive tensor is: elements offset + Σ index * strides of the tensor's own first element on. start and
 * extent are a box of the catalog tensor. */
struct torch_box {
    uint32_t tensor, file, archive_tensor;
    int rank;
    const int64_t *start, *extent, *strides;
    int64_t offset;
};
reshard_status torch_source_add_box(struct source *source, const struct torch_box *box, reshard_error *err);

/* Adds the chunk that elements [offset, offset + count) of an archive tensor of one dimension are: the flat run of the catalog tensor from
 * element `begin` on. */
struct torch_run {
    uint32_t tensor, file, archive_tensor, writer;
    int64_t offset, begin, count;
};
reshard_status torch_source_add_run(struct source *source, const struct torch_run *run, reshard_error *err);

/* Adds an item whose value lies in the file's graph. */
reshard_status torch_source_add_item(struct source *source, uint32_t file, struct str key, const struct path_part *parts, size_t count,
                                     const struct value *value, reshard_error *err);

/* Adds hidden tensors for the storages that the items' values refer to, and makes value.tensor and value.storage of the file's graph count
 * catalog tensors. wanted, by storage, may ask for more. */
reshard_status torch_source_hide_storages(struct source *source, uint32_t file, struct value **items, size_t item_count, bool *wanted,
                                          reshard_error *err);

/* Facts and warnings of the file; prefix for several files, else "". */
reshard_status torch_source_add_facts(struct source *source, uint32_t file, reshard_error *err);
reshard_status torch_source_add_sizes(struct source *source, reshard_error *err);

/* torch_verify.c */
reshard_status torch_source_verify(struct source *source, bool deep, reshard_error *err);

#endif
