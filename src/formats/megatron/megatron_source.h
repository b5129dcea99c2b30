/* SPDX-License-Identifier: Apache-2.0 */
/* What the reading side shares: the opened files of all ranks, and what they say about the run. */
#ifndef FORMATS_MEGATRON_MEGATRON_SOURCE_H
#define FORMATS_MEGATRON_MEGATRON_SOURCE_H

#include "formats/megatron/megatron_files.h"
#include "formats/shared/torch_source.h"
#include "parallel/pipeline.h"

#define MEGATRON_MODELS_MAX 1024 /* model0, model1, … of one file */

/* A parameter of one rank as its file has it. */
struct megatron_leaf {
    uint32_t rank;             /* index of the rank */
    uint32_t tensor;           /* of the archive */
    int64_t stage;             /* chunk * pp + pipeline rank */
    struct partition_key key;
    struct str name;           /* local key, in the state's arena */
    const struct path_part *parts; /* of the path below the model */
    uint32_t part_count;
    uint32_t order;            /* among the leaves of its rank and chunk */
    uint32_t anchor;           /* order of the first expert of its layer, for experts; else order */
    uint32_t parameter;        /* number of the logical parameter */
};

/* A parameter of the whole model. */
struct megatron_parameter {
    struct str key;            /* with the numbers of the whole model */
    const struct path_part *parts;
    uint32_t part_count;
    uint32_t first_leaf;
    int64_t layer, expert;     /* of the whole model; -1: none */
    enum dtype dtype;
    const struct partition_rule *rule;
    bool is_copy;              /* a tied copy: its chunks belong to the original */
    uint32_t original;         /* parameter, if is_copy */
    uint32_t tensor;           /* of the catalog */
    struct megatron_parameter *members; /* of a matrix of experts that is taken apart: each expert's part */
    uint32_t member_count;
    uint32_t lead_count;       /* axes in front: [layer][expert] */
    int64_t lead[2];
    struct cut cut;
};

struct megatron_rank {
    struct rank_place place;
    struct str folder;
    uint32_t file;             /* of the torch state */
    uint32_t optimizer_file;   /* distrib_optim.pt, TORCH_NONE: there is none */
    const struct value *root, *namespace;
    struct training_args args;
    uint32_t first_leaf, leaf_count;
    int64_t models;            /* number of model members */
};

/* driver_state of a source; the torch state comes first, for the functions of torch_source.h. */
struct megatron_source {
    struct torch_source torch;
    struct arena arena;
    struct partition_rules rules;
    struct training_args args; /* of the first rank */
    struct parallel_layout layout;
    struct pipeline_split pipeline;
    struct cut_context context;
    struct megatron_rank *ranks;
    uint32_t rank_count;
    struct megatron_leaf *leaves;
    uint32_t leaf_count, leaf_capacity;
    struct megatron_parameter *parameters;
    uint32_t parameter_count;
    struct str directory;      /* of the iteration, as the user would call it: "iter_0000010", "release" */
    double version;            /* checkpoint_version; 0 if absent */
    bool is_rank_file;         /* one rank's file opened by itself */
    bool is_tied;
    bool has_optimizer;        /* state that is listed by parameter */
    const char *unrelated;     /* why state is there and cannot be listed so; NULL: it can, or there is none */
    const char *no_common_step; /* why parameters of an optimizer have no common step; NULL: they have */
    bool has_members;          /* matrices of experts are taken apart: a parameter for each expert */
};

static inline struct megatron_source *megatron_source_of(const struct source *source)
{
    return source->driver_state;
}

reshard_status megatron_read_catalog(struct source *source, reshard_error *err);

/* megatron_open.c: the files, the layout, the pipeline. */
reshard_status megatron_open_ranks(struct source *source, reshard_error *err);

/* megatron_leaves.c: leaves and items of all ranks; numbers of the whole model. */
struct megatron_items;
reshard_status megatron_collect_leaves(struct source *source, struct megatron_items *items, reshard_error *err);

/* megatron_merge.c: parameters, tensors, chunks. */
reshard_status megatron_merge(struct source *source, reshard_error *err);

/* Adds the tensor of a parameter, without chunks. */
reshard_status megatron_add_tensor(struct source *source, struct megatron_parameter *parameter, reshard_error *err);

/* Adds the chunks of one rank's part of a parameter to a tensor: in archive tensor `tensor` of the file, from element `offset` on,
 * with these strides. */
struct megatron_part {
    const struct megatron_parameter *parameter;
    const struct rank_place *place;
    uint32_t catalog_tensor, file, tensor;
    int64_t offset;
    const int64_t *strides; /* of the rank's tensor; NULL: row-major */
};
reshard_status megatron_add_part(struct source *source, const struct megatron_part *part, reshard_error *err);

/* megatron_grouped.c: the first takes matrices of experts apart if the source is a view or has optimizer state, or notes that it could
 * be. */
reshard_status megatron_split_grouped(struct source *source, reshard_error *err);

/* Calls emit for each expert in one rank's matrix: its parameter, and where in the matrix it begins. strides are those of the expert's
 * part. */
typedef reshard_status (*megatron_member_sink)(const struct megatron_parameter *member, int64_t offset, const int64_t *strides,
                                               void *context, reshard_error *err);
reshard_status megatron_each_member(const struct megatron_parameter *matrix, const struct rank_place *place, megatron_member_sink emit,
                                    void *context, reshard_error *err);

/* Adds the chunks of one rank's matrix. */
reshard_status megatron_add_members(struct source *source, const struct megatron_leaf *leaf, reshard_error *err);

/* Whether rank files, layers or experts that are missing are told as damage; else they are an error. */
static inline bool megatron_may_lack(const struct source *source)
{
    return source->lenient || source_bears_loss(source);
}

/* Of the driver. The files of a view are its source's. */
reshard_status megatron_view_by_parameter(struct source *view, reshard_error *err);
void megatron_close_view(struct source *view);

/* Under which names of parameters are read: experts that are taken apart have the names of modules. */
unsigned megatron_source_conditions(const struct megatron_source *state);

/* megatron_items.c */
reshard_status megatron_items_new(struct source *source, struct megatron_items **out, reshard_error *err);
void megatron_items_free(struct megatron_items *items);
/* An item of a rank: one that an earlier rank has with the same value is not added again, one of another value gets the folder's name in
 * front. */
reshard_status megatron_items_add(struct megatron_items *items, const struct megatron_rank *rank, const struct path_part *parts,
                                  size_t count, struct value *value, reshard_error *err);
/* After the last item and the last tensor: makes hidden tensors of the storages that items hold. */
reshard_status megatron_items_end(struct megatron_items *items, reshard_error *err);

/* megatron_facts.c */
reshard_status megatron_add_facts(struct source *source, reshard_error *err);

#endif
