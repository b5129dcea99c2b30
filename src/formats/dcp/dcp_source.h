/* SPDX-License-Identifier: Apache-2.0 */
/* What the reading half of the driver shares: the state of an open checkpoint and the steps that fill its catalog. */
#ifndef FORMATS_DCP_DCP_SOURCE_H
#define FORMATS_DCP_DCP_SOURCE_H

#include "encoding/torch_save.h"
#include "formats/dcp/dcp_flavour.h"
#include "formats/dcp/metadata_decode.h"

#define DCP_METADATA ".metadata"

/* Files that say what lies where, for format_driver.layout_files. */
#define DCP_LAYOUT_FILES ".metadata", "__*.metadata"

/* What a folder of this container holds; for format_driver.folder_entries. */
#define DCP_FOLDER_ENTRIES ".metadata", ".metadata.tmp", "__*.metadata", "*.distcp"

/* A torch.save container that items were loaded from. Its graph belongs to the catalog. */
struct dcp_archive {
    struct torch_archive archive;
    uint32_t object;
    uint64_t offset, bytes;
    enum codec codec;
    struct buffer decoded;   /* the whole container if codec is not NONE */
    struct dcp_archive *next;
};

/* The header of a safetensors file that stands in for blobs. */
struct dcp_safetensors_entry {
    struct str name;
    enum dtype dtype;
    int rank;
    const int64_t *shape;
    uint64_t offset, bytes; /* in the file */
};
struct dcp_safetensors {
    struct arena arena;
    struct dcp_safetensors_entry *entries;
    struct name_map names;
    uint32_t object;         /* whose header it is, CATALOG_NONE: none yet */
};

struct dcp_source {
    char *directory;                  /* where the checkpoint lies in the store: "" or with a trailing '/' */
    struct dcp_archive *archives;
    struct dcp_archive **item_archive; /* by item, NULL: not loaded */
    uint32_t item_count;
    struct dcp_safetensors safetensors;
    void *flavour_state;               /* what whoever stands on this driver keeps with the source */
    void (*flavour_free)(void *state); /* of that; NULL: there is none */
};

static inline struct dcp_source *dcp_state(struct source *source)
{
    return source->driver_state;
}

/* Makes driver_state. directory is copied; "" or with a trailing '/'. */
reshard_status dcp_source_new(struct source *source, const char *directory, reshard_error *err);
void dcp_close_source(struct source *source);

/* directory + name, checked as a name in the store; free it. */
reshard_status dcp_name_join(const char *directory, struct str name, char **out, reshard_error *err);

/* Opens the catalog's object. */
reshard_status dcp_open_object(const struct source *source, uint32_t object, struct store_object **out, reshard_error *err);

/* ---- dcp_metadata_read.c ---- */

/* Names of the metadata files: .metadata alone, or every __R.metadata in order of R. The message says what a directory without them holds.
 */
struct dcp_metadata_file {
    char *name;
    uint64_t rank; /* R, 0 for .metadata */
};
reshard_status dcp_metadata_files(const struct source *source, struct arena *arena, struct dcp_metadata_file **out, uint32_t *count,
                                  bool *is_per_rank, reshard_error *err);

/* Reads and decodes one; the pickle's bytes go to raw if it is not NULL. */
reshard_status dcp_metadata_read(const struct source *source, const char *name, struct buffer *raw, struct dcp_metadata *out,
                                 reshard_error *err);

/* ---- dcp_catalog.c ---- */

/* Reads all metadata files into source->catalog. hooks: NULL for plain DCP. */
reshard_status dcp_read_tensors(struct source *source, const struct dcp_read_hooks *hooks, reshard_error *err);

/* Codec of a list of transform descriptors; refuses what is unknown. */
reshard_status dcp_transform_codec(const struct dcp_metadata *metadata, uint32_t transforms, enum codec *out, reshard_error *err);

/* P of "__P_N.distcp", possibly behind a hint; false if the name is not of that form. */
bool dcp_file_rank(struct str name, uint64_t *out);

/* ---- dcp_read.c ---- */

int dcp_probe(struct store *store, const char *name, reshard_error *err);
reshard_status dcp_read_catalog(struct source *source, reshard_error *err);

/* Which files of DCP lie in the directory that name means. */
enum { DCP_HAS_METADATA = 1, DCP_HAS_RANK_METADATA = 2, DCP_HAS_DATA = 4, DCP_HAS_TEMPORARY = 8 };
unsigned dcp_look(struct store *store, const char *name, reshard_error *err);

/* Finds the checkpoint's directory and makes the state. */
reshard_status dcp_read_open(struct source *source, reshard_error *err);

/*
 * Adds the files of a directory in the checkpoint's, "" or one that ends with '/', that are none of its own: a tokenizer, say. own_files:
 * names of those that a flavour has beside DCP's, may be NULL.
 */
reshard_status dcp_add_side_files(struct source *source, const char *sub_directory, const char *const *own_files, reshard_error *err);

/* Whether the name is in a list that ends with NULL, or is NULL. */
bool dcp_is_listed(const char *const *names, struct str name);

/* ---- dcp_parts.c, dcp_extra.c ---- */

#define DCP_MODEL_FOLDER_MAX 32

/* The folder of the model beneath a directory that a trainer saved, with its '/'; "": the directory is none. */
const char *dcp_model_folder(struct store *store, const char *directory);

/* What lies beside such a model. Its keys are its own, without a prefix that all of them have. */
reshard_status dcp_read_parts(struct source *source, reshard_error *err);

/* Adds the items of the files in a folder, which is told with the directory above it, both with '/'. It need not be there. */
reshard_status dcp_read_extra(struct source *source, const char *above, const char *folder, reshard_error *err);

/* ---- dcp_resolve.c, dcp_repair.c, dcp_safetensors.c ---- */

reshard_status dcp_resolve(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err);

/* The chunk, whose blob at blob_offset is known to hold that tensor, is resolved; where they do not fit, that is said. */
reshard_status dcp_resolve_chunk(struct source *source, struct catalog_chunk *chunk, const struct torch_blob_tensor *tensor,
                                 uint64_t blob_offset, reshard_error *err);

/*
 * torch writes wrong boxes for tensors that FSDP2 cut unevenly over tensor parallelism. blob_rows[i] is what chunk first_chunk + i really
 * holds on axis 0. If exactly one mesh explains all of them, sets the true boxes, warns, and returns true in *repaired.
 */
reshard_status dcp_repair_rows(struct source *source, uint32_t tensor, const int64_t *blob_rows, bool *repaired, reshard_error *err);

/* Whether file is a safetensors file rather than blobs. */
reshard_status dcp_safetensors_probe(const struct reader *file, bool *is_safetensors, reshard_error *err);

/* Makes state->safetensors the header of file, unless it is already. */
reshard_status dcp_safetensors_load(struct dcp_safetensors *state, const struct reader *file, uint32_t object, const struct limits *limits,
                                    reshard_error *err);
const struct dcp_safetensors_entry *dcp_safetensors_find(const struct dcp_safetensors *state, struct str name);
void dcp_safetensors_release(struct dcp_safetensors *state);

/* ---- dcp_blob.c ---- */

/* A decoded blob as a reader: only its first and last parts are kept in memory, the rest is decoded again when it is asked for. */
struct dcp_decoded;
reshard_status dcp_decoded_open(enum codec codec, const struct reader *file, uint64_t offset, uint64_t bytes, const struct limits *limits,
                                struct dcp_decoded **out, struct reader *reader, reshard_error *err);
void dcp_decoded_free(struct dcp_decoded *decoded);

/* ---- dcp_item.c ---- */

reshard_status dcp_load_item(struct source *source, uint32_t item, reshard_error *err);
reshard_status dcp_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err);

/* Opens a container and gives its graph to the catalog. The archive is kept in the state. */
reshard_status dcp_archive_open(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, enum codec codec,
                                struct dcp_archive **out, const struct value_graph **graph, reshard_error *err);

/* The same, and archive.graph keeps the numbers of its tensors: the catalog gets a copy. */
reshard_status dcp_archive_open_numbered(struct source *source, uint32_t object, uint64_t bytes, struct dcp_archive **out,
                                         struct value_graph **graph, reshard_error *err);

/* The archive of an item that was opened so; NULL: it was not. */
const struct torch_archive *dcp_numbered_archive(struct source *source, uint32_t item);

/* Remembers that item's value came out of archive. */
reshard_status dcp_item_set_archive(struct source *source, uint32_t item, struct dcp_archive *archive, reshard_error *err);

/* ---- dcp_leave_out.c ---- */

reshard_status dcp_leave_out(struct source *source, struct str prefix, struct removal *out, reshard_error *err);

/* ---- dcp_verify.c ---- */

reshard_status dcp_verify(struct source *source, bool deep, reshard_error *err);

/* The same for the archives that were opened for items, such as common.pt. */
reshard_status dcp_verify_archives(struct source *source, bool deep, reshard_error *err);

/* Compares the checksums of one container that is not compressed; damage is a warning of the catalog. *has_checksums: each member had one,
 * and it agreed. */
reshard_status dcp_verify_container(struct source *source, uint32_t object, uint64_t offset, uint64_t bytes, bool *has_checksums,
                                    reshard_error *err);

/* The directory that name means: itself, or the one that a file .metadata lies in. It ends with '/' unless it is ""; free it. */
reshard_status dcp_directory_find(struct store *store, const char *name, char **out, reshard_error *err);

#endif
