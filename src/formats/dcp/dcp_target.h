/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writing half of the driver shares. Laying out decides every blob's file, offset and length; nothing but two numbers a blob is
 * kept until publishing, which makes each frame again.
 */
#ifndef FORMATS_DCP_DCP_TARGET_H
#define FORMATS_DCP_DCP_TARGET_H

#include "encoding/torch_save.h"
#include "formats/dcp/dcp_lists.h"
#include "formats/shared/path_tree.h"
#include "formats/driver.h"

#define DCP_ALIGNMENT 64

#define MEGATRON_TRACKER "latest_checkpointed_iteration.txt"

/* driver_data of a target chunk: 1 + number of its blob, or this bit and the stored item in whose blob a hidden tensor lies. */
#define DCP_IN_ITEM UINT32_C(0x80000000)

/* Or this bit and the run of optimizer state in which the chunk lies. */
#define DCP_IN_RUN UINT32_C(0x40000000)

struct dcp_blob {
    uint64_t offset, bytes; /* in its file */
};

/*
 * How a flavour of DCP differs in writing. Megatron's lie below a save root: a tracker file and a folder for the iteration. torch_dist
 * keeps what is not sharded as one dict, the common state; the others store every leaf of it under its path.
 */
struct dcp_style {
    const char *format;
    bool is_below_root;      /* tracker file and iter_0000010/ */
    bool has_common;         /* metadata.json, the common state, ShardedObjects; no planner_data */
    bool flattens;           /* nested items are stored leaf by leaf */
    bool has_group_meta;     /* fsdp_dtensor: param_groups are stored for each parameter */
    bool items_are_files;    /* zarr: a file for each ShardedObject, without the list around its value; no .metadata, tensors elsewhere */
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
    bool is_in_list;               /* stored as [value], as Megatron does with ShardedObjects */
    bool has_runs;                 /* leaves NONE of value whose tensor is set are runs of optimizer state: their number + 1 */
    bool is_file;                  /* a side file, or common.pt */
    enum dcp_item_form form;
    uint32_t object;               /* of the target catalog */
    uint64_t offset, bytes;
};

/* A small file whose text is known when the target is laid out. */
struct dcp_text_file {
    const char *name;
    char *text;
    bool is_in_folder;             /* of the iteration; else in the save root */
    uint32_t object;
};

/* A storage of an item of the source that a value of the target's own refers to. Nodes name it by its number with this bit, + 1. */
struct dcp_kept_storage {
    uint32_t item, storage;        /* of the source */
};
#define DCP_KEPT UINT32_C(0x40000000)

/* How many ranks each parallel dimension has, as Megatron's arguments say. */
struct mcore_sizes {
    int64_t tp, pp, vp, ep, etp, cp, dp;
    bool is_known;                 /* there are arguments */
};

/* Megatron's layouts of the distributed optimizer's state: value, name. */
#define MCORE_OPTIMIZER_LAYOUTS(X)                         \
    X(MCORE_BY_PARAMETER, "fully_reshardable")             \
    X(MCORE_MODEL_SPACE, "fully_sharded_model_space")      \
    X(MCORE_BUCKETS, "dp_reshardable")                     \
    X(MCORE_GATHERED, "dp_zero_gather_scatter")
enum mcore_optimizer_layout {
#define X(layout, name) layout,
    MCORE_OPTIMIZER_LAYOUTS(X)
#undef X
};
const char *mcore_optimizer_layout_name(enum mcore_optimizer_layout layout);

struct dcp_target {
    const struct dcp_style *style;
    struct dcp_blob *blobs;       /* of tensors, in the order of their chunks */
    struct dcp_stored *items;
    uint32_t *wanted_of;          /* source tensor -> wanted tensor, or CATALOG_NONE */
    struct dcp_lists lists;       /* on the paths of all that is stored */
    struct dcp_tree tree;         /* what the common state and rebuilt objects are made of */
    struct value_graph extra;     /* values that the source does not have */
    struct dcp_kept_storage *kept; /* storages that PERSID nodes of extra name with DCP_KEPT */
    uint32_t kept_count, kept_capacity;
    uint32_t blob_count, item_count, item_capacity;
    uint32_t metadata_object;
    char folder[40];              /* "" or "iter_0000010/" */
    int64_t iteration;            /* that the folder names, or -1 */
    struct dcp_text_file texts[2]; /* tracker file, metadata.json */
    uint32_t text_count;
    bool has_parameter_state;     /* the distributed optimizer's state is stored by parameter */
    bool has_module_state;        /* objects of modules are made where the source has none */
    bool common_is_object;        /* common_state/shard_0_1 instead of common.pt */
    struct mcore_sizes source_sizes, sizes; /* torch_dist: the source's, and those that the target is for */
    enum mcore_optimizer_layout optimizer_layout; /* torch_dist: how the distributed optimizer's state is stored */
    bool has_chained_keys;        /* torch_dist: keys of flattened state begin with the number of the optimizer, as up to 0.13 */
    bool is_layout_asked;         /* by an option, not by the reference alone */
    bool keeps_vectors;           /* flattened state: vectors are stored as they are, as releases up to 0.10 do */
    struct mcore_buckets *buckets; /* torch_dist: the buffers that it lies in, or NULL */
    bool has_group_meta;          /* torch_dist: the source has param_groups parameter by parameter */
    bool lacks_rng;               /* torch_dist: the source's RNG state stays behind */
    bool has_integrity;
    uint32_t integrity_object;
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
    bool is_run;            /* of optimizer state */
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

/* The archive around one chunk's payload. */
/* As that, for a box of the target's tensor, which may be flattened. */
reshard_status dcp_chunk_frame(const struct dcp_target *state, const struct catalog *catalog, uint32_t tensor, const int64_t *start,
                               const int64_t *extent, struct torch_frame *out, reshard_error *err);
reshard_status dcp_tensor_frame(enum dtype dtype, int rank, const int64_t *shape, struct torch_frame *out, reshard_error *err);

reshard_status dcp_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
void dcp_close_target(struct target *target);

/* Fills in the state of a target, which is zero, and makes it target->driver_state. */
reshard_status dcp_target_init(const struct layout_request *request, struct target *target, struct dcp_target *state,
                               const struct dcp_style *style, reshard_error *err);

/* Lays out, for a style whose items are files, everything but the tensors: items, common.pt, metadata.json and the save root. */
reshard_status dcp_item_files_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- dcp.c ---- */

const struct dcp_style *dcp_style_of(const struct format_driver *driver);

/* ---- dcp_stored.c ---- */

/* Decides what is stored of the wanted items, and under which key: state->items, all DCP_ITEM_DROPPED still. */
reshard_status dcp_stored_make(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status dcp_stored_add(struct dcp_target *state, const struct dcp_stored *item, reshard_error *err);

/* ---- dist_items.c ---- */

/* The same for Megatron's flavours. */
reshard_status mcore_items_make(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- dist_root.c ---- */

extern const struct format_option torch_dist_options[], megatron_dcp_options[];

/* Reads the options and the reference: the folder, the tracker file, how the common state is kept. */
reshard_status mcore_root_choose(const struct layout_request *request, struct target *target, reshard_error *err);

/* Makes the small files objects of the target; the last step of laying out. */
reshard_status mcore_root_lay_out(struct target *target, reshard_error *err);
reshard_status mcore_root_publish(const struct publish_job *job, reshard_error *err);

/* ---- torch_dist_place.c ---- */

/* How many leading axes of a tensor are indexes rather than part of the parameter: layers, then experts. */
int torch_dist_prepended_axes(struct str key, int rank);

/* ---- dcp_place.c ---- */

/* A blob on its way to a place. */
struct dcp_piece {
    bool is_item, is_run;
    bool is_free;            /* tensors: the file is not chosen yet */
    uint32_t index;          /* wanted tensor, stored item, or run of optimizer state */
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
    struct target *target;
    struct dcp_piece *pieces;
    uint32_t piece_count, piece_capacity;
    struct dcp_out_file *files;
    uint32_t file_count, file_capacity;
    struct name_map like_items; /* keys of the reference's items -> like_item */
    uint32_t *like_item;
    struct buffer path;         /* scratch */
    struct dcp_cuts *cuts;      /* torch_dist_place.c's own */
};

/* Makes pieces of all wanted tensors and of one stored item. */
reshard_status dcp_place_tensors(struct dcp_placing *placing, reshard_error *err);
reshard_status dcp_place_item(struct dcp_placing *placing, uint32_t item, uint64_t bytes, reshard_error *err);

/* Reads what the reference says about items, and notes what cannot be taken over. */
reshard_status dcp_place_begin(struct dcp_placing *placing, reshard_error *err);

/* Adds one piece of a tensor. */
reshard_status dcp_place_piece(struct dcp_placing *placing, uint32_t index, const int64_t *start, const int64_t *extent,
                               reshard_error *err);

/* Adds the piece of a run of optimizer state; rank: which of the reference's ranks has it. */
reshard_status dcp_place_run(struct dcp_placing *placing, uint32_t run, uint64_t bytes, uint32_t payload_offset, uint32_t rank,
                             reshard_error *err);

/* Gives free pieces files of the ranks 0 to ranks - 1, so that these fill evenly. */
reshard_status dcp_place_evenly(struct dcp_placing *placing, uint32_t ranks, reshard_error *err);

/* torch_dist: a chunk for each layer and expert, and none above the size that is wanted. */
/* Makes the block the part of one tensor-parallel rank, where the axis divides. is_cell: gated halves are apart also where there is one
 * rank. */
reshard_status torch_dist_cut_block(struct dcp_placing *placing, const struct catalog_tensor *tensor, int prepended, bool is_cell,
                                    int64_t *block, reshard_error *err);
/* Whether the key is that of experts. */
reshard_status torch_dist_is_expert(struct dcp_placing *placing, struct str key, bool *out, reshard_error *err);
void dcp_cuts_free(struct dcp_cuts *cuts);

/* The largest chunk that is wanted; options say so as a number of bytes. */
reshard_status torch_dist_chunk_bytes(const struct layout_request *request, uint64_t *out, reshard_error *err);
reshard_status torch_dist_place_tensor(struct dcp_placing *placing, uint32_t index, reshard_error *err);

/* Gives every piece its file and offset, and makes the files objects of the target. Pieces keep their order in the array. */
reshard_status dcp_place_finish(struct dcp_placing *placing, reshard_error *err);
void dcp_placing_release(struct dcp_placing *placing);

/* ---- dcp_metadata_write.c ---- */

typedef reshard_status (*dcp_sink)(void *context, const void *bytes, size_t size, reshard_error *err);

/* The whole .metadata of a laid-out target, in order. The same bytes every time. */
reshard_status dcp_metadata_write(const struct layout_request *request, const struct target *target, dcp_sink sink, void *context,
                                  reshard_error *err);

/* ---- dcp_publish.c ---- */

reshard_status dcp_publish(const struct publish_job *job, reshard_error *err);

/* Decoded bytes of a source item's extent, given to sink in parts. */
reshard_status dcp_item_copy(struct source *source, const struct catalog_item *item, dcp_sink sink, void *context, reshard_error *err);

#endif
