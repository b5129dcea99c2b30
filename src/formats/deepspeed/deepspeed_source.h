/* SPDX-License-Identifier: Apache-2.0 */
/* What reading a checkpoint of DeepSpeed goes through: its files, what the model's say of parameters, which part of them each rank has. */
#ifndef FORMATS_DEEPSPEED_SOURCE_H
#define FORMATS_DEEPSPEED_SOURCE_H

#include "base/name_map.h"
#include "formats/shared/torch_source.h"
#include "parallel/flat_unit.h"

/* ---- files (deepspeed_folder.c) ---- */

enum deepspeed_file_kind {
    DEEPSPEED_MODEL,          /* mp_rank_MM_model_states.pt */
    DEEPSPEED_MODEL_OF_RANK,  /* zero_pp_rank_D_mp_rank_MM_model_states.pt */
    DEEPSPEED_OPTIMIZER,
    DEEPSPEED_PIPELINE,       /* a layer of a pipeline */
    DEEPSPEED_EXPERT,
    DEEPSPEED_BESIDE          /* none of a checkpoint */
};

/* What a base name is. rank (D) and part (MM) are 0 where it says none. */
enum deepspeed_file_kind deepspeed_file_of(struct str base, uint64_t *rank, uint64_t *part);

/* The folder's files, by rank, each there once. Names are relative to the store's root. */
struct deepspeed_folder {
    struct arena arena;
    const struct store_entry **models, **optimizers;
    uint32_t model_count, optimizer_count; /* models: 1, but as many as ranks at ZeRO 3 */
    bool is_split;                         /* ZeRO 3 */
};
reshard_status deepspeed_folder_read(const struct source *source, struct deepspeed_folder *out, reshard_error *err);
void deepspeed_folder_release(struct deepspeed_folder *folder);

/* ---- parameters ---- */

struct deepspeed_parameter {
    struct str name;
    int rank;
    int64_t shape[RANK_MAX], elements;
    int64_t start; /* ZeRO 1, 2: in the group's flat buffer. ZeRO 3: of each rank's share, in the rank's flat buffer */
    uint32_t group;
    uint32_t tensor; /* of the catalog; CATALOG_NONE: not added yet */
};

/* Parameters that one flat buffer holds: of a group of the optimizer, at ZeRO 3 of a sub-group. */
struct deepspeed_group {
    uint32_t first, count; /* parameters */
    int64_t elements;      /* of the flat buffer with what lies between parameters, without what is behind the last; at ZeRO 3 of a rank's
                            * own */
    int64_t partition;     /* of it that a rank has, padding counted */
};

struct deepspeed_reading {
    struct source *source;
    struct deepspeed_folder folder;
    const struct value *model;             /* the object of rank 0's model file, whose number is 0 */
    uint32_t *model_files;                 /* by rank: number in torch_source; as many as folder.model_count */
    uint32_t *optimizer_files;             /* by rank; NULL: there are none */
    const struct value **optimizers;       /* by rank: its optimizer_state_dict */
    struct value **masters, **states;      /* by group and rank: [group * ranks + rank]: the rank's flat buffer of fp32 masters, NULL: none;
                                            * the dict of its part of the optimizer's state, NULL: none */
    uint32_t ranks;                        /* files of the optimizer */
    struct deepspeed_parameter *parameters;
    uint32_t parameter_count, parameter_capacity;
    struct deepspeed_group *groups;
    uint32_t group_count;
    struct name_map names;                 /* of the parameters, by number */
    bool is_padded;                        /* files keep the padding at the end of partitions (BF16_Optimizer) */
    struct value **items;                  /* of rank 0's model file */
    size_t item_count, item_capacity;
    struct buffer key;
};

/* deepspeed_parts.c: reads the optimizers' files against param_shapes: groups, parameters, and that each rank has what it should. */
reshard_status deepspeed_read_groups(struct deepspeed_reading *reading, reshard_error *err);

/* What torch's own optimizer has in a rank's file, of its parts; NULL: nothing. */
const struct value *deepspeed_base_state(const struct deepspeed_reading *reading, uint32_t rank);

/* The part of a parameter that a rank has, in its flat buffer. false: none. */
bool deepspeed_part_of(const struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter, uint32_t rank,
                       struct flat_unit_part *out);

/* Adds, as chunks of a tensor of the parameter's shape, what the ranks have of it in flat buffers: buffers[rank] is the node of that. */
reshard_status deepspeed_add_parts(struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter,
                                   struct value *const *buffers, uint32_t tensor, reshard_error *err);

/* The tensor that a node is, of a rank's file: of one dimension, its elements one behind another. */
reshard_status deepspeed_flat_tensor(const struct deepspeed_reading *reading, uint32_t file, const struct value *node, const char *what,
                                     const struct torch_tensor **out, reshard_error *err);

/* Names the file in an error. */
void deepspeed_name_file(const struct deepspeed_reading *reading, uint32_t file, reshard_error *err);

/* deepspeed_model.c: adds the model's tensors, and the items of rank 0's model file. */
reshard_status deepspeed_add_model(struct deepspeed_reading *reading, reshard_error *err);

/* deepspeed_optimizer.c: a value as whoever lacks DeepSpeed can load it: of an object of its classes (the loss scaler) the attributes, of a
 * member of an enum the number. */
struct value *deepspeed_plain(struct value *value);

/* deepspeed_optimizer.c: adds the item "optimizer" and its tensors. */
reshard_status deepspeed_add_optimizer(struct deepspeed_reading *reading, reshard_error *err);

#endif
