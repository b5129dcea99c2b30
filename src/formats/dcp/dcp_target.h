/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writing half of the driver shares. Laying out decides every blob's file, offset and length; nothing but two numbers a blob is
 * kept until publishing, which makes each frame again.
 */
#ifndef FORMATS_DCP_DCP_TARGET_H
#define FORMATS_DCP_DCP_TARGET_H

#include "encoding/torch_save.h"
#include "formats/dcp/dcp_flavour.h"
#include "formats/dcp/dcp_lists.h"
#include "formats/dcp/dcp_vectors.h"
#include "formats/shared/path_tree.h"

#define DCP_ALIGNMENT 64

/* driver_data of a target chunk: 1 + number of its blob, or this bit and the stored item in whose blob a hidden tensor lies. */
#define DCP_IN_ITEM UINT32_C(0x80000000)

/* Or this bit and the run of a vector in which the chunk lies. */
#define DCP_IN_RUN UINT32_C(0x40000000)

struct dcp_blob {
    uint64_t offset, bytes; /* in its file */
};

enum dcp_item_form { DCP_ITEM_DROPPED, DCP_ITEM_VERBATIM, DCP_ITEM_PICKLED, DCP_ITEM_FILE };

/* An item as it is stored: a blob of a data file, or a file of its own. */
struct dcp_stored {
    struct str key;                /* in .metadata; of a file: its name in the folder */
    const struct path_part *parts; /* in planner_data; part_count 0: the key alone */
    uint32_t part_count;
    uint32_t wanted;               /* wanted item that it comes from, or CATALOG_NONE: the tree's node is what is stored */
    uint32_t node;
    const struct value *value;     /* the part of the wanted item's value that is stored; NULL: all of it */
    uint32_t graph_count;          /* of value's graph */
    bool is_in_list;               /* stored as [value] */
    bool has_runs;                 /* leaves NONE of value whose tensor is set are runs of vectors: their number + 1 */
    bool is_file;                  /* a side file, or an archive of its own */
    enum dcp_item_form form;
    uint32_t object;               /* of the target catalog */
    uint64_t offset, bytes;
};

/* A storage of an item of the source that a value of the target's own refers to. Nodes name it by its number with this bit, + 1. */
struct dcp_kept_storage {
    uint32_t item, storage;        /* of the source */
};
#define DCP_KEPT UINT32_C(0x40000000)

struct dcp_target {
    const struct dcp_flavour *flavour;
    struct dcp_blob *blobs;       /* of tensors, in the order of their chunks */
    struct dcp_stored *items;
    uint32_t *wanted_of;          /* source tensor -> wanted tensor, or CATALOG_NONE */
    struct dcp_lists lists;       /* on the paths of all that is stored */
    struct path_tree tree;         /* items of the source that are stored as one */
    struct value_graph extra;     /* values that the source does not have */
    struct dcp_kept_storage *kept; /* storages that PERSID nodes of extra name with DCP_KEPT */
    struct dcp_vectors vectors;   /* in which tensors lie */
    uint32_t kept_count, kept_capacity;
    uint32_t blob_count, item_count, item_capacity;
    uint32_t metadata_object;
    bool has_metadata;            /* metadata_object is set */
    uint32_t spread; /* over how many files pieces without a place of their own are spread; 0: as many as their size asks for */
    char folder[40];              /* that the checkpoint lies in: "" or ends with '/' */
};

/* Path of a stored item as parts; a missing path is the one part PATH_KEY key, kept in *single. */
static inline size_t dcp_stored_path(const struct dcp_stored *item, struct path_part *single, const struct path_part **parts)
{
    *single = (struct path_part){ .kind = PATH_KEY, .key = item->key };
    *parts = item->part_count ? item->parts : single;
    return item->part_count ? item->part_count : 1;
}

static inline struct dcp_target *dcp_target_state(const struct target *target)
{
    return target->driver_state;
}

/* ---- dcp_item_write.c ---- */

/* A storage inside an item's blob: the payload of a hidden tensor, or bytes that the source driver reads. */
struct dcp_item_storage {
    bool is_tensor;
    bool is_run;            /* of a vector */
    uint32_t item;          /* source item */
    uint32_t index;         /* wanted tensor, run, or the source item's storage */
    uint64_t bytes;
};
struct dcp_item_pickle {
    struct torch_frame frame;
    struct dcp_item_storage *storages;
    uint32_t storage_count, storage_capacity;
};

/* Pickles stored item `item` and lays its archive out. UNSUPPORTED says why the item cannot be written; if it was a leaf of the tree, *node
 * (may be NULL) is which. */
reshard_status dcp_item_pickle_make(const struct layout_request *request, const struct dcp_target *state, uint32_t item,
                                    struct dcp_item_pickle *out, uint32_t *node, reshard_error *err);
void dcp_item_pickle_release(struct dcp_item_pickle *pickle);

/* ---- dcp_layout.c ---- */

/* The archive around a box of the target's tensor, as it is stored. */
reshard_status dcp_chunk_frame(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                               const int64_t *extent, struct torch_frame *out, reshard_error *err);

/* The archive around one tensor. */
reshard_status dcp_tensor_frame(enum dtype dtype, int rank, const int64_t *shape, struct torch_frame *out, reshard_error *err);

/* Plain DCP. */
reshard_status dcp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
void dcp_close_target(struct target *target);

/* Fills in the state of a target, which is zero, and makes it target->driver_state. */
reshard_status dcp_target_init(const struct layout_request *request, struct target *target, struct dcp_target *state,
                               const struct dcp_flavour *flavour, reshard_error *err);

/* Lays out a target whose state is made: items, data files and .metadata. */
reshard_status dcp_container_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

/* Lays out the items alone, every one of them as a file of its own. */
reshard_status dcp_item_files_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- dcp_stored.c ---- */

/* Decides what is stored of the wanted items, and under which key: state->items, all DCP_ITEM_DROPPED still. */
reshard_status dcp_stored_make(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status dcp_stored_add(struct dcp_target *state, const struct dcp_stored *item, reshard_error *err);

/* ---- dcp_place.c ---- */

/* A blob on its way to a place. */
struct dcp_piece {
    bool is_item, is_run;
    bool is_free;            /* tensors: the file is not chosen yet */
    uint32_t index;          /* wanted tensor, stored item, or run of a vector */
    uint32_t start, extent;  /* tensors: vectors of the target catalog */
    uint32_t file;           /* in files */
    uint32_t payload_offset; /* tensors: in the blob */
    uint64_t order;          /* in the file */
    uint64_t offset, bytes;
};
struct dcp_out_file {
    struct str name;         /* arena of the target catalog */
    uint32_t rank, number;   /* of __R_N.distcp; CATALOG_NONE: the name is given */
    uint32_t object;
    uint64_t bytes;
};
struct dcp_placing {
    const struct layout_request *request;
    const struct source *like; /* the reference, where no words of the layout say how tensors are cut; or NULL */
    struct target *target;
    struct dcp_piece *pieces;
    uint32_t piece_count, piece_capacity;
    struct dcp_out_file *files;
    uint32_t file_count, file_capacity;
    struct name_map like_items; /* keys of the reference's items -> like_item */
    uint32_t *like_item;
    struct buffer path;         /* scratch */
};

/* Makes pieces of all wanted tensors and of one stored item. */
reshard_status dcp_place_tensors(struct dcp_placing *placing, reshard_error *err);
reshard_status dcp_place_item(struct dcp_placing *placing, uint32_t item, uint64_t bytes, reshard_error *err);

/* Reads what the reference says about items, and notes what cannot be taken over. */
reshard_status dcp_place_begin(struct dcp_placing *placing, reshard_error *err);

/* Adds one piece of a tensor, which may go into any file. */
reshard_status dcp_place_piece(struct dcp_placing *placing, uint32_t index, const int64_t *start, const int64_t *extent,
                               reshard_error *err);

/* Makes the pieces of a tensor those that the reference has, or the ranks that wrote it (layout_request.by_writer); false in *done if there
 * are none that can be written here. */
reshard_status dcp_place_like(struct dcp_placing *placing, uint32_t index, bool *done, reshard_error *err);

/* Gives every piece its file and offset, and makes the files objects of the target. Pieces keep their order in the array. */
reshard_status dcp_place_finish(struct dcp_placing *placing, reshard_error *err);
void dcp_placing_release(struct dcp_placing *placing);

/* ---- dcp_metadata_write.c ---- */

typedef reshard_status (*dcp_sink)(void *context, const void *bytes, size_t size, reshard_error *err);

/* The whole .metadata of a laid-out target, in order. The same bytes every time. */
reshard_status dcp_metadata_write(const struct layout_request *request, const struct target *target, dcp_sink sink, void *context,
                                  reshard_error *err);

/* ---- dcp_publish.c ---- */

reshard_status dcp_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status dcp_commit(const struct publish_job *job, reshard_error *err);

/* Decoded bytes of a source item's extent, given to sink in parts. */
reshard_status dcp_item_copy(struct source *source, const struct catalog_item *item, dcp_sink sink, void *context, reshard_error *err);

#endif
