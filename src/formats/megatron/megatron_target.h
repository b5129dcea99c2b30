/* SPDX-License-Identifier: Apache-2.0 */
/* What the writing side shares: the ranks of the target, and what each one's file holds. */
#ifndef FORMATS_MEGATRON_MEGATRON_TARGET_H
#define FORMATS_MEGATRON_MEGATRON_TARGET_H

#include "formats/megatron/megatron_source.h"
#include "parallel/parameter_names.h"

#define TARGET_LEAD_MAX 2

/* A parameter as it will be written: a wanted tensor, a slice of one where layers and experts lie along axes, or a copy on another stage.
 */
struct target_parameter {
    uint32_t wanted;
    struct str name;               /* with the numbers of the whole model */
    const struct path_part *parts; /* of the path below the model */
    size_t part_count;
    struct partition_key key;
    int64_t stage;                 /* chunk * pp + pipeline rank */
    struct cut cut;                /* of the padded shape */
    int lead_count;                /* axes in front for the layer and the expert; the cut is of what lies behind them */
    int64_t lead[TARGET_LEAD_MAX];
    struct parameter_name registered; /* for the order; valid if the state's has_order is */
    uint32_t matrix;               /* 1 + the matrix of experts that it is written into, where its axes are exchanged; 0: none */
    int64_t rows;                  /* that have values, along axis 0: fewer than the cut's, if rows were added */
};

/* A matrix of all experts of a rank: what is written instead of a module for each expert. */
struct target_matrix {
    struct str name;               /* with the numbers of the whole model */
    uint32_t first;                /* its experts are members[first], …, in order; of the state's matrix_members */
    uint32_t count;                /* while they are counted: those found */
    int64_t shape[2];              /* of one rank's */
};

/* Where a parameter's state begins in a vector of optimizer state. */
struct record_place {
    uint32_t parameter, tensor;    /* of the target's parameters; the wanted tensor of its state */
    int64_t offset;                /* elements */
};

/* A record data/N of one file. */
struct target_record {
    uint32_t wanted;               /* tensor whose bytes it gets, or TORCH_NONE: they are in memory */
    uint32_t parameter;            /* 1 + the parameter that it holds, or is state of; 0: none */
    uint64_t bytes;
    struct buffer memory;
    const struct record_place *places; /* a vector of the state of several parameters: what lies in it; NULL: none */
    uint32_t place_count;
    int64_t count;                 /* its elements */
    int64_t matrix[2];             /* a matrix of experts: its declared shape; 0: it is none */
};

/* Nodes [first, end) of the graph of a rank's file are a wanted item's. */
struct item_nodes {
    uint32_t first, end, item;
};

struct target_rank {
    struct rank_place place;
    int64_t global_rank;
    char *folder;
    bool is_optimizer;             /* its distrib_optim.pt, which is an entry behind those of all ranks */
    uint32_t like, source;         /* rank of the reference, of the source, at the same place; TORCH_NONE: there is none */
    struct torch_frame frame;
    uint32_t object, first_record, record_count; /* records of the target */
    struct item_nodes *items;      /* while its pickle is made */
    uint32_t item_count, item_capacity;
};

/* driver_state of a target. */
struct megatron_target {
    struct arena arena;
    struct partition_rules rules;
    struct parameter_names names;
    unsigned conditions;           /* under which names are read */
    bool is_distributed;           /* wanted keys are a distributed checkpoint's */
    struct target_optimizer *optimizer; /* state that is to be written, NULL: none */
    bool is_grouped;               /* experts of a rank are written as one matrix */
    bool experts_are_apart;        /* they have an optimizer of their own */
    bool has_order;                /* the order in which ranks register their parameters is known */
    struct str unordered;          /* if it is not: the name that has no place in it */
    struct training_args args;     /* of the source, or of the reference where the source has none */
    struct parallel_layout layout;
    struct pipeline_split pipeline;
    struct cut_context context;
    struct partition_gates gates;  /* of wanted tensors */
    bool is_tied, is_like_layout;  /* the reference's layout is taken as it is */
    bool is_split_kept;            /* the pipeline is the one that the arguments say */
    int64_t layers, experts, padded_vocabulary;
    int64_t iteration;             /* -1: not known */
    struct target_parameter *parameters; /* by stage */
    uint32_t parameter_count, parameter_capacity;
    uint32_t *stage_first;         /* [stages + 1] */
    struct target_matrix *matrices;
    uint32_t *matrix_members;      /* parameters */
    uint32_t matrix_count;
    struct target_rank *ranks;
    uint32_t rank_count, rank_capacity;
    struct target_record *records;
    uint32_t record_count, record_capacity;
    uint32_t *hidden_records;      /* by source tensor: 1 + record of the file that is being made */
    uint32_t tracker_object;
    struct str tracker;            /* what it says */
    uint32_t args_item;            /* wanted item, TORCH_NONE: there is none */
};

/* The driver state of a whole checkpoint of this format; NULL if the source is none. */
const struct megatron_source *megatron_folder_state(const struct source *source);

/* megatron_expand.c. The first says whether wanted keys are a distributed checkpoint's. */
reshard_status megatron_find_names(const struct layout_request *request, struct megatron_target *state, reshard_error *err);

/* Calls emit for every parameter, with tensor, name, path and axes in front. */
typedef reshard_status (*megatron_parameter_sink)(const struct target_parameter *parameter, void *context, reshard_error *err);
reshard_status megatron_each_parameter(const struct layout_request *request, struct megatron_target *state, megatron_parameter_sink emit,
                                       void *context, reshard_error *err);

/* megatron_choose.c: the layout, the pipeline, the numbers of layers and experts. */
reshard_status megatron_choose_layout(const struct layout_request *request, struct target *target, reshard_error *err);

/* megatron_vocabulary.c: the rows of the target. */
reshard_status megatron_choose_vocabulary(const struct layout_request *request, struct target *target, reshard_error *err);

/* megatron_assign.c: which rank holds which parameter. */
reshard_status megatron_assign(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status megatron_add_ranks(const struct layout_request *request, struct target *target, reshard_error *err);
int64_t megatron_first_layer(const struct megatron_target *state, const struct target_parameter *parameter);

/* megatron_matrices.c. The first, after the parameters are in order, finds which of them are written as matrices of experts. */
reshard_status megatron_find_matrices(const struct layout_request *request, struct megatron_target *state, reshard_error *err);

/* Whether a parameter is no expert of a matrix, or the first that the rank has in it, and so stands for what the rank registers. */
bool megatron_stands_for_matrix(const struct megatron_target *state, const struct target_parameter *parameter);

/* How many places the parameter, or the matrix that it stands for, has on a rank; and those places: its tensors', or where tensors is set
 * the tensors of its state (by wanted tensor, 1 + number), from element offset on. */
uint32_t megatron_place_count(const struct megatron_target *state, uint32_t parameter);
void megatron_put_places(const struct megatron_target *state, uint32_t parameter, const uint32_t *tensors, int64_t offset,
                         struct record_place *out);

/* The record of a parameter that stands for a matrix. */
reshard_status megatron_matrix_record(const struct layout_request *request, struct megatron_target *state, uint32_t parameter,
                                      const uint32_t *tensors, uint32_t *record, reshard_error *err);

/* megatron_members.c: the pickle of one rank's file; adds its records. */
reshard_status megatron_emit_rank(const struct layout_request *request, struct target *target, uint32_t rank, struct buffer *out,
                                  reshard_error *err);
reshard_status megatron_note_items(const struct layout_request *request, struct target *target, reshard_error *err);

/*
 * megatron_rerun.c: the state of the rerun state machine, by name; whether the source's is taken over; else the reference's, NULL for none;
 * notes what becomes of it. Besides: whether the target's ranks are those of a legacy source.
 */
bool megatron_is_rerun(struct str name);
bool megatron_keeps_rerun(const struct layout_request *request, const struct megatron_target *state);
reshard_status megatron_like_rerun(const struct layout_request *request, const struct megatron_target *state, uint32_t rank,
                                   struct value_graph *graph, struct value **out, reshard_error *err);
reshard_status megatron_note_rerun(const struct layout_request *request, struct target *target, bool has_item, reshard_error *err);
bool megatron_same_ranks(const struct layout_request *request, const struct megatron_target *state);

/* megatron_write_args.c: the Namespace of one rank in graph; NULL without memory. */
struct value *megatron_write_args(const struct layout_request *request, const struct megatron_target *state, uint32_t rank,
                                  struct value *copied, struct value_graph *graph);

reshard_status megatron_record_add(struct megatron_target *state, uint32_t wanted, uint64_t bytes, uint32_t *out, reshard_error *err);
reshard_status megatron_lay_out(const struct layout_request *request, struct target *target, reshard_error *err);
reshard_status megatron_publish_object(const struct publish_job *job, uint32_t object, reshard_error *err);
reshard_status megatron_commit(const struct publish_job *job, reshard_error *err);
void megatron_close_target(struct target *target);

#endif
