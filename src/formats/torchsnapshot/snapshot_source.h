/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this driver share. Values saved by torch.save are read as DCP's blobs are: the source's state is that driver's, and
 * carries this one's. */
#ifndef FORMATS_TORCHSNAPSHOT_SNAPSHOT_SOURCE_H
#define FORMATS_TORCHSNAPSHOT_SNAPSHOT_SOURCE_H

#include "formats/dcp/dcp_source.h"

#define SNAPSHOT_METADATA ".snapshot_metadata"

/* ---- the manifest ---- */

/* What one rank says of a path. */
struct snapshot_entry {
    const struct value *value; /* the DICT of the manifest */
    struct str type;
    uint32_t rank;
    uint32_t next; /* the next rank's of the same path; CATALOG_NONE: none */
};

/* A path of the state, such as "app/model/weight", with all that ranks say of it, the first rank first. */
struct snapshot_path {
    uint32_t first, last;  /* entries */
    bool is_list;          /* as the first rank says */
    bool has_int_keys, has_text_keys; /* a dict's */
    bool has_children;
};

struct snapshot_manifest {
    struct value_graph graph;
    uint32_t world_size;
    struct name_map names; /* of paths */
    struct snapshot_path *paths;
    struct snapshot_entry *entries;
    uint32_t path_capacity, entry_count, entry_capacity;
};

/* Reads the manifest of the checkpoint in the state's directory. Release it in any case. */
reshard_status snapshot_manifest_read(const struct source *source, struct snapshot_manifest *out, reshard_error *err);
void snapshot_manifest_release(struct snapshot_manifest *manifest);

/* The parts of a path, decoded, in arena. */
reshard_status snapshot_path_parts(const struct snapshot_manifest *manifest, uint32_t path, struct arena *arena, struct work *work,
                                   struct path_part **out, size_t *count, reshard_error *err);

/* ---- tensors and items ---- */

/* Where the bytes of a tensor lie, or of a piece of it. */
struct snapshot_piece {
    enum dtype dtype;
    int rank;
    int64_t start[RANK_MAX], extent[RANK_MAX]; /* in the tensor; of one piece alone: zeros, and its shape */
    uint32_t object;
    uint64_t offset, bytes;
    bool is_saved;    /* by torch.save; else the elements are there and nothing else, little-endian, row-major */
    bool is_left_out; /* it lies beyond the file's end: who only looks sees that it is missing */
};

/* An item that is the tensor of one rank: its elements lie in pieces of whole rows. */
struct snapshot_private {
    uint32_t item;
    enum dtype dtype;
    int rank;
    int64_t shape[RANK_MAX];
    uint32_t first_piece, piece_count;
};

/* A range that torch.save wrote, for verifying. */
struct snapshot_saved {
    uint32_t object;
    uint64_t offset, bytes;
};

/* dcp_source.flavour_state. */
struct snapshot_state {
    struct snapshot_private *privates; /* in order of items */
    struct snapshot_piece *pieces;
    struct snapshot_saved *saved;
    uint32_t private_count, private_capacity, piece_count, piece_capacity, saved_count, saved_capacity;
};

static inline struct snapshot_state *snapshot_state_of(struct source *source)
{
    return dcp_state(source)->flavour_state;
}

/* A path while it is being read. */
struct snapshot_reading {
    struct source *source;
    struct snapshot_manifest manifest;
    struct value_graph *graph; /* of values that the manifest spells out */
    struct arena arena;        /* of parts */
    struct buffer key;
    struct path_part *parts;   /* of this path */
    size_t part_count;
};

/* The place of an entry of type object; axes stay as they are. */
reshard_status snapshot_object_read(struct snapshot_reading *reading, const struct value *entry, struct snapshot_piece *out,
                                    reshard_error *err);

/* The pieces of an entry of type Tensor, ChunkedTensor, ShardedTensor or DTensor, appended to the state's, each in its place. */
reshard_status snapshot_pieces_read(struct snapshot_reading *reading, const struct snapshot_entry *entry, uint32_t *count,
                                    reshard_error *err);

/* Keeps the range for verifying. */
reshard_status snapshot_note_saved(struct source *source, struct snapshot_saved saved, reshard_error *err);

/* Whether it is a tensor of any of those types; *is_sharded: one that ranks hold parts of. */
bool snapshot_is_tensor(struct str type, bool *is_sharded);

/* Whether it is a container, whose members have entries of their own: a list, or a dict of either kind. */
bool snapshot_is_container(struct str type, bool *is_list);

/* Whether every rank has the same: it is told once. */
bool snapshot_is_shared(const struct snapshot_reading *reading, const struct snapshot_entry *entry);

/* Adds what is no tensor of all ranks: values, objects, and tensors that each rank has for itself. */
reshard_status snapshot_add_items(struct snapshot_reading *reading, uint32_t path, bool has_tensor, reshard_error *err);

/* The driver's functions. */
reshard_status snapshot_read_catalog(struct source *source, reshard_error *err);
reshard_status snapshot_load_item(struct source *source, uint32_t item, reshard_error *err);
reshard_status snapshot_read_item_storage(struct source *source, uint32_t item, uint32_t storage, struct buffer *out, reshard_error *err);

#endif
