/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the writing half shares: targets in the container of DCP, or of zarr, with what Megatron has in and around it. A target's state
 * begins with that of DCP, whose functions find it.
 */
#ifndef FORMATS_MCORE_MCORE_TARGET_H
#define FORMATS_MCORE_MCORE_TARGET_H

#include "formats/dcp/dcp_target.h"

/*
 * How a format of Megatron's differs in writing. All of them lie below a save root: a tracker file and a folder for the iteration.
 * torch_dist and zarr keep what is not sharded as one dict, the common state; the others store every leaf of it under its path.
 */
struct mcore_flavour {
    struct dcp_flavour dcp;
    const char *format;      /* what metadata.json and the arguments call it */
    bool has_common;         /* metadata.json, the common state, ShardedObjects; no planner_data */
    bool has_group_meta;     /* fsdp_dtensor: param_groups are stored for each parameter */
    bool items_are_files;    /* zarr: a file for each ShardedObject, without the list around its value; no .metadata, tensors elsewhere */
};

/* A small file whose text is known when the target is laid out. */
struct mcore_text_file {
    const char *name;
    char *text;
    bool is_in_folder;       /* of the iteration; else in the save root */
    uint32_t object;
};

/* How many ranks each parallel dimension has, as Megatron's arguments say. */
struct mcore_sizes {
    int64_t tp, pp, vp, ep, etp, cp, dp;
    bool is_known;           /* there are arguments */
    bool parts_by_etp;       /* of the release: see experts_are_apart */
    bool spreads_rng;        /* each data-parallel rank has an RNG state of its own */
    bool is_local_spec;      /* modules are Megatron's own, not Transformer Engine's */
};

/* Whether a run of these sizes has an optimizer for experts alone (mcore_regroup.c). */
bool mcore_experts_are_apart(const struct mcore_sizes *sizes);

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
/* A run looks for its optimizer's kind of masters, so those of a reference decide. */
enum mcore_masters {
    MCORE_MASTERS_KEPT,    /* as the source has them */
    MCORE_MASTERS_PARAM,   /* the distributed optimizer's */
    MCORE_MASTERS_PLAIN,
};
const char *mcore_optimizer_layout_name(enum mcore_optimizer_layout layout);

/* Which objects of modules are made where the source has none; in the order of the option's words. */
enum mcore_module_state {
    MODULE_STATE_NONE,
    MODULE_STATE_OF_RUN,   /* that the run of the arguments asks for, with Transformer Engine's modules where they do not say otherwise */
    MODULE_STATE_OF_LOCAL, /* that every run asks for */
};

struct mcore_target {
    struct dcp_target dcp;        /* first. Its folder is "", "release/" or "iter_0000010/" */
    const struct mcore_flavour *flavour;
    int64_t iteration;            /* that the folder names, or -1 */
    struct mcore_text_file texts[2]; /* tracker file, metadata.json */
    uint32_t text_count;
    bool common_is_object;        /* common_state/shard_0_1 instead of common.pt */
    enum mcore_module_state module_state;
    bool has_group_meta;          /* the source has param_groups parameter by parameter */
    bool lacks_rng;               /* the source's RNG state stays behind */
    bool has_integrity;
    uint32_t integrity_object;
    struct mcore_sizes source_sizes, sizes; /* the source's, and those that the target is for */
    struct mcore_cuts *cuts;      /* mcore_place.c's own */

    /* The distributed optimizer's state. */
    enum mcore_optimizer_layout optimizer_layout;
    bool has_parameter_state;     /* it is stored by parameter */
    enum mcore_masters masters;   /* what they are called */
    bool has_chained_keys;        /* keys of flattened state begin with the number of the optimizer, as up to 0.13 */
    bool is_layout_asked;         /* by an option, not by the reference alone */
    bool keeps_vectors;           /* flattened state: vectors are stored as they are, as releases up to 0.10 do */
    struct mcore_buckets *buckets; /* the buffers that it lies in, or NULL */
};

static inline struct mcore_target *mcore_target_state(const struct target *target)
{
    return target->driver_state;
}

/* Whether what is laid out comes from a checkpoint of that format. */
static inline bool mcore_is_from(const struct layout_request *request, const struct format_driver *driver)
{
    return request->source && request->source->driver == driver;
}

/* ---- mcore_target.c ---- */

/* Makes the target's state, and reads what options and reference say about the root and the optimizer's state. */
reshard_status mcore_target_init(const struct layout_request *request, struct target *target, struct mcore_target *state,
                                 const struct mcore_flavour *flavour, reshard_error *err);
reshard_status mcore_lay_out_torch_dist(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status mcore_lay_out_torch_dcp(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status mcore_lay_out_fsdp_dtensor(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status mcore_commit(const struct publish_job *job, reshard_error *err);
void mcore_close_target(struct target *target);

/* ---- mcore_items.c ---- */

/* Decides what is stored of the wanted items, and under which key. */
reshard_status mcore_items_make(const struct layout_request *request, struct target *target, reshard_error *err);

/* Stores all of them as they are: the state of a job, which says itself what Megatron is to find. */
reshard_status mcore_items_keep(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_root.c ---- */

extern const struct format_option mcore_options_torch_dist[], mcore_options_plain[];

/* Options of a format that lies below a save root. */
#define MCORE_ROOT_OPTIONS(prefix)                                                                                                   \
    { "root", "auto|iteration|release|none", "auto",                                                                                 \
      prefix "what DST is: a save root with the folder of the iteration or of a release, or none: the checkpoint's own folder" },    \
    { "iteration", "N", "the source's", prefix "the iteration that the folder and the tracker file name" }
#define MCORE_MODULE_STATE_OPTION(prefix)                                                                                            \
    { "module-state", "yes|local|no", "yes",                                                                                         \
      prefix "weights from elsewhere get the empty objects ('_extra_state') that a run asks for: of Transformer Engine's modules, unless " \
             "the arguments say otherwise, or of Megatron's local ones alone" }

/* Which of the words, ended by NULL, an option is; *out stays where it was not given. */
reshard_status mcore_option_word(const struct layout_request *request, const char *name, const char *const *words, int *out,
                                 reshard_error *err);

/* Reads the options and the reference: the folder, the tracker file, how the common state is kept. */
reshard_status mcore_root_choose(const struct layout_request *request, struct target *target, reshard_error *err);

/* Makes the small files objects of the target; the last step of laying out. */
reshard_status mcore_root_lay_out(struct target *target, reshard_error *err);
reshard_status mcore_root_commit(const struct publish_job *job, reshard_error *err);

/* ---- mcore_place.c ---- */

/* How many leading axes of a tensor are indexes rather than part of the parameter: layers, then experts. */
int mcore_prepended_axes(struct str key, int rank);

/* Makes the block the part of one tensor-parallel rank, where the axis divides. is_cell: gated halves are apart also where there is one
 * rank. */
reshard_status mcore_cut_block(struct mcore_target *state, const struct catalog_tensor *tensor, int prepended, bool is_cell, int64_t *block,
                               reshard_error *err);

/* Whether the key is that of experts. */
reshard_status mcore_is_expert(struct mcore_target *state, struct str key, bool *out, reshard_error *err);
void mcore_cuts_free(struct mcore_cuts *cuts);

/* The largest chunk that is wanted; options say so as a number of bytes. */
reshard_status mcore_chunk_bytes(const struct layout_request *request, uint64_t *out, reshard_error *err);

/* Makes the pieces of a tensor: none above the size that is wanted, one for each layer, expert and tensor-parallel rank at least. */
reshard_status mcore_place_tensor(struct dcp_placing *placing, uint32_t index, reshard_error *err);

#endif
