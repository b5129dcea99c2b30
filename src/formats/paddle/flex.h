/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paddle's Flex Checkpoint: a folder of
 *
 *   <rank>_<uid>.distcp       what one rank keeps: paddle.save of {key: array} (encoding/paddle_save.h), or a safetensors file: the
 *                             content says which
 *   <rank>_<uid>.safetensors  the same as safetensors, from 3.3 on
 *   <uid>.metadata            where the shards of each tensor lie (flex_metadata.h)
 *   <uid>.metadata.lock       left by a save that was killed; saved_signal_<rank>: left by asynchronous saves. Neither means anything here
 *
 * Several uids are several checkpoints in one folder: the largest is read, or that of PATH/<uid>.metadata. A trainer's folder holds three
 * of them, model_state/, optimizer_state/ and master_weight/, which are one checkpoint. A fourth, ema_state/, has means of the weights
 * under the keys of master weights and weights: here they stand below ema_state. In a folder of Hugging Face the loader leaves
 * flex-ckpt.auto_generated.metadata, which names the safetensors files.
 *
 * A shard is a box of the tensor, or a run of a box's elements in row-major order (flattened_range). What the file of a rank holds beyond
 * the shards that the metadata assigns to it are copies, or left over. Values that are no tensors are items; those of the lowest rank's
 * file are listed, since this driver writes them there. Paddle itself stores none.
 */
#ifndef FORMATS_PADDLE_FLEX_H
#define FORMATS_PADDLE_FLEX_H

#include "formats/driver.h"
#include "formats/paddle/flex_metadata.h"
#include "formats/paddle/master_weights.h"
#include "formats/paddle/static_names.h"

#define FLEX_AUTO_METADATA "flex-ckpt.auto_generated.metadata"

/* What a folder of this format holds; for format_driver.folder_entries. */
#define FLEX_FOLDER_ENTRIES                                                                                                                \
    "*_*.distcp", "*_*.safetensors", "*.metadata", "*.metadata.lock", "saved_signal_*", "model_state/", "optimizer_state/",                \
        "master_weight/", FLEX_EMA_NAME "/"

/* The folder of moving averages, and what stands before their keys, behind a '.'. */
#define FLEX_EMA_NAME "ema_state"

/* The folders of a trainer's checkpoint, and where nothing is divided the one that it is. */
enum flex_role { FLEX_ALL, FLEX_MODEL, FLEX_OPTIMIZER, FLEX_MASTERS, FLEX_EMA, FLEX_ROLES };
extern const char *const flex_role_folders[FLEX_ROLES]; /* "", "model_state/", … */

/* One metadata file and its data files. Texts lie in the catalog's arena. */
struct flex_part {
    enum flex_role role;
    struct str directory;     /* in the store: "" or with a '/' at its end */
    struct str metadata_name; /* with the directory */
    uint64_t uid;
    bool is_auto;        /* FLEX_AUTO_METADATA: it has no uid */
    bool is_safetensors; /* what the data files are called */
    struct flex_generation generation;
    int protocol; /* of the metadata */
    bool has_flat_mapping;
    struct str labels[FLEX_LABELS]; /* data NULL: absent */
};

/* Whether an object lies in the folder of the part, and not in one below it. */
bool flex_part_holds(const struct flex_part *part, struct str name);

struct flex_data;

/* driver_state of an open checkpoint. */
struct flex_source {
    struct flex_data *kept[FLEX_ROLES]; /* files that items' values lie in; NULL: none */
    struct flex_part parts[FLEX_ROLES];
    uint32_t part_count;
    uint32_t *chunks; /* numbers of the unresolved ones by object; made when the first is asked for */
    uint32_t chunk_count;
};

static inline struct flex_source *flex_state(const struct source *source)
{
    return source->driver_state;
}

/* What a chunk's driver_data says. */
static inline int32_t flex_chunk_replica(const struct catalog_chunk *chunk) /* -1: None */
{
    return (int32_t)(chunk->driver_data >> 1) - 1;
}
static inline bool flex_chunk_is_flattened(const struct catalog_chunk *chunk) /* stored as one run, though it may be all of its box */
{
    return chunk->driver_data & 1;
}
static inline uint32_t flex_chunk_data(int32_t replica, bool is_flattened)
{
    return (uint32_t)(replica + 1) << 1 | is_flattened;
}

/* Names of types in metadata, such as "bfloat16": those that Paddle has. */
bool flex_dtype_from(struct str name, enum dtype *out);

/* ---- flex_names.c ---- */

enum flex_file_kind { FLEX_OTHER_FILE, FLEX_DISTCP, FLEX_SAFETENSORS, FLEX_METADATA, FLEX_LOCK, FLEX_AUTO };

struct flex_file {
    struct str name; /* in the store */
    uint64_t bytes, rank, uid;
    enum flex_file_kind kind;
};

struct flex_listing {
    struct flex_file *files; /* in the arena it was made in; without directories, and links that lead out */
    size_t count;
    bool has_folder[FLEX_ROLES];
};

/* What a name is, without its directory. */
enum flex_file_kind flex_file_kind_of(struct str base, uint64_t *rank, uint64_t *uid);
reshard_status flex_list(struct store *store, struct str directory, struct arena *arena, struct flex_listing *out, reshard_error *err);

/* The key that a tensor has in the files of a folder, of which a name with a '/' is one. */
struct str flex_key_in(struct str name, struct str key);

/* Where name ("", a folder, a metadata file in one) points: the folder, and the metadata file's own name or "". */
reshard_status flex_locate(struct store *store, const char *name, struct arena *arena, struct str *directory, struct str *metadata,
                           reshard_error *err);
int flex_probe(struct store *store, const char *name, reshard_error *err);

/* ---- flex_read.c, flex_catalog.c ---- */

reshard_status flex_read_catalog(struct source *source, reshard_error *err);
void flex_close_source(struct source *source);

/* Adds the tensors and chunks of a part. listing: of its folder. */
reshard_status flex_catalog_add(struct source *source, struct flex_part *part, const struct flex_metadata *metadata, reshard_error *err);

/* ---- flex_rebuild.c ---- */

bool flex_lacks_metadata(const struct flex_listing *listing);

/* Tensors of a folder whose metadata is gone, for salvage: those that one file alone has. */
reshard_status flex_rebuild(struct source *source, const struct flex_listing *listing, reshard_error *err);

/* ---- flex_data.c: one data file, open ---- */

/* An array of it. Lives as long as the file is open. */
struct flex_array {
    enum dtype dtype; /* as stored: bfloat16 may be U16, float8 I8 */
    bool is_big_endian, is_fortran;
    int rank;
    const int64_t *shape;
    const struct paddle_part *parts;
    uint32_t part_count;
};

reshard_status flex_data_open(const struct source *source, struct str name, struct flex_data **out, reshard_error *err);

/* Whether an error is about the file itself: it is not there, or damaged. What the machine lacks for a moment (memory, a disk that answers)
 * says nothing about it, unless all that can be read is wanted. */
bool flex_data_is_answer(const struct source *source, reshard_status status, const reshard_error *err);

/* *out: the protocol of a file that is a pickle, 0 for others, what cannot be read among them. */
reshard_status flex_data_protocol(const struct source *source, struct str name, int *out, reshard_error *err);
void flex_data_close(struct flex_data *data);
bool flex_data_find(const struct flex_data *data, struct str key, struct flex_array *out);

/* Adds the values that are no tensors as items. *is_needed: data must stay open as long as the catalog. */
reshard_status flex_data_add_items(struct source *source, struct flex_data *data, bool *is_needed, reshard_error *err);

/* Calls visit for every key of the file: array NULL if it is no array. Stops at the first failure. */
reshard_status flex_data_walk(const struct flex_data *data,
                              reshard_status (*visit)(void *context, struct str key, const struct flex_array *array, reshard_error *err),
                              void *context, reshard_error *err);

/* Notes what the framework calls the file's tensors. A key that is its own name has none. file: its number among those that names is of. */
reshard_status flex_data_note_names(const struct flex_data *data, uint32_t file, struct static_names *names, reshard_error *err);

/* Whether an array of stored type may hold elements of dtype: the same, or how Paddle and safetensors spell it. */
bool flex_dtype_fits(enum dtype dtype, enum dtype stored);

/* ---- flex_called.c ---- */

/* What the framework calls the tensors of a checkpoint that may be of another format, which has none then. Opens all data files; one that
 * cannot be read has no names, and is an error where its tensors are read. */
reshard_status flex_called(const struct source *source, struct static_names *out, reshard_error *err);

/* Of what a wanted tensor comes from; { 0 }: it has no name, or comes from nothing. */
struct str flex_called_source(const struct static_names *names, const struct layout_request *request, uint32_t wanted);

/* ---- flex_resolve.c, flex_verify.c ---- */

/* Finds the array of a chunk in its file, checks it against the metadata, and gives the chunk its place. An array in slices becomes
 * several chunks, which is not possible once the catalog is sealed. */
reshard_status flex_place_in(struct catalog *catalog, const struct flex_data *data, uint32_t chunk, reshard_error *err);
reshard_status flex_resolve(struct source *source, const uint32_t *chunks, uint32_t count, reshard_error *err);
reshard_status flex_verify(struct source *source, bool is_deep, reshard_error *err);

#endif
