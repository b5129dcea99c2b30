/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters that every rank of a run had, found from the tensors of the whole model and the arguments of the run: which layers a stage
 * holds, which part of a tensor a rank, in which order it registered them. Flat buffers of optimizer state are made of that.
 */
#ifndef PARALLEL_RANK_PARAMETERS_H
#define PARALLEL_RANK_PARAMETERS_H

#include "catalog/catalog.h"
#include "parallel/flat_buffer_rules.h"
#include "parallel/flat_buffers.h"
#include "parallel/parameter_names.h"
#include "parallel/partition_cut.h"
#include "parallel/pipeline.h"

struct model_parameter {
    uint32_t tensor;            /* of the catalog: the weight */
    int lead_count;             /* axes in front for layer and expert */
    int64_t lead[NAME_NUMBERS_MAX];
    struct parameter_name name;
    struct str text;            /* registered name, with numbers of the whole model */
    const struct cut *cut;      /* of what lies behind the axes in front */
    int64_t stage, chunk;       /* pipeline rank and virtual chunk */
    int64_t expert;             /* its number, -1: it is no expert's */
    int64_t expert_rank;        /* 0 if it is no expert's */
    int64_t
        matrix_experts; /* the rank has so many experts in one matrix, one after another and each transposed; 0: it is no such matrix' */
    const int64_t *matrix_shape; /* of as many elements */
    bool is_expert;             /* has the experts' own optimizer: EP > 1 */
    bool is_embedding, is_shared_embedding;
    bool is_copy;               /* of the word embedding, whose first stage saves it */
};

struct parallel_model {
    struct arena arena;
    struct partition_rules rules;
    struct parameter_names names;
    struct training_args args;
    struct cut_context context;
    struct pipeline_split pipeline;
    bool experts_are_apart;             /* they have an optimizer of their own */
    struct model_parameter *parameters; /* by stage, chunk and order of registration */
    uint32_t count, capacity;
};

/* namespace: the item `args`. UNSUPPORTED names the tensor whose place is not known. On failure nothing is left. */
reshard_status parallel_model_make(const struct catalog *catalog, const struct value *namespace, struct parallel_model *out,
                                   reshard_error *err);
void parallel_model_release(struct parallel_model *model);

/*
 * The parameters of one rank that belong to one kind of optimizer, in order of registration: indices into the model's, and what the
 * buffers need to know. Arrays are the caller's to free.
 */
struct rank_parameters {
    uint32_t *indices;
    struct rank_parameter *parameters;
    uint32_t count;
};
reshard_status rank_parameters_make(const struct parallel_model *model, const struct catalog *catalog, const struct rank_place *place,
                                    bool is_expert, struct rank_parameters *out, reshard_error *err);
/* What the buffers of a rank need to know of its run. */
reshard_status rank_training_run(const struct parallel_model *model, const struct catalog *catalog, const struct rank_place *place,
                                 struct training_run *out, reshard_error *err);
void rank_parameters_release(struct rank_parameters *rank);

#endif
