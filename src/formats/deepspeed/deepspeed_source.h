/* SPDX-License-Identifier: Apache-2.0 */
/* What reading a checkpoint of DeepSpeed, universal or not, goes through: its files, what the model's say of parameters, which part of them
 * each rank has. */
#ifndef FORMATS_DEEPSPEED_SOURCE_H
#define FORMATS_DEEPSPEED_SOURCE_H

#include "base/name_map.h"
#include "formats/shared/torch_source.h"
#include "formats/shared/torch_whole.h"
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
    const struct store_entry **parts;      /* model files of rank 0 of the parts behind the first, of a universal checkpoint */
    uint32_t model_count, optimizer_count; /* models: 1, but as many as ranks at ZeRO 3 */
    uint32_t part_count;
    bool is_split;                         /* ZeRO 3 */
};

/* is_universal: there may be several parts (tensor-parallel, stages of a pipeline), and files of the optimizer are none of it. */
reshard_status deepspeed_folder_read(const struct source *source, bool is_universal, struct deepspeed_folder *out, reshard_error *err);
void deepspeed_folder_release(struct deepspeed_folder *folder);

/* ---- parameters ---- */

#define DEEPSPEED_ELEMENTS_MAX (INT64_MAX / 4) /* of a group; sums with its padding are no overflow */

struct deepspeed_parameter {
    struct str name;
    uint32_t part; /* whose model file says so; the first */
    int rank;
    int64_t shape[RANK_MAX], elements;
    int64_t start; /* ZeRO 1, 2: in the group's flat buffer. ZeRO 3: of each rank's share, in the rank's flat buffer */
    uint32_t group; /* DEEPSPEED_NO_GROUP: not known */
    uint32_t tensor; /* of the catalog; CATALOG_NONE: not added yet */
};

#define DEEPSPEED_NO_GROUP UINT32_MAX

/* Parameters that one flat buffer holds: of a group of the optimizer, at ZeRO 3 of a sub-group. */
struct deepspeed_group {
    uint32_t first, count; /* parameters */
    int64_t elements;      /* of the flat buffer with what lies between parameters, without what is behind the last; at ZeRO 3 of a rank's
                            * own */
    int64_t partition;     /* of it that a rank has, padding counted */
};

struct deepspeed_reading;
struct deepspeed_making;

/* What masters and states of parameters are made of: flat buffers of ranks, or files of one each. */
struct deepspeed_origin {
    /* Adds a parameter that is trained, of its masters, as the tensor `key`; also under a second name. */
    reshard_status (*add_master)(struct deepspeed_reading *reading, struct deepspeed_parameter *parameter, struct str key, uint32_t *out,
                                 reshard_error *err);
    /* Makes the dict of a parameter's state, for the item. */
    reshard_status (*make_state)(struct deepspeed_making *making, const struct deepspeed_parameter *parameter, struct value **out,
                                 reshard_error *err);
};

struct deepspeed_universal;

struct deepspeed_reading {
    struct source *source;
    struct deepspeed_folder folder;
    const struct deepspeed_origin *origin; /* NULL: there are no masters */
    const struct value *model;             /* the object of rank 0's model file, whose number is 0 */
    uint32_t *model_files;                 /* by rank: number in torch_source; as many as folder.model_count */
    uint32_t *part_files;                  /* by part - 1; as many as folder.part_count */
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
    struct name_map listed;                /* the model's tensors, by key: */
    uint32_t *listed_tensors;              /* by number of a key: the first tensor of the catalog that has it */
    uint32_t listed_capacity;
    struct deepspeed_universal *universal; /* the folder zero/ of a universal checkpoint, NULL: it is none */
    bool is_padded;                        /* files keep the padding at the end of partitions (BF16_Optimizer) */
    struct value **items;                  /* of rank 0's model file */
    size_t item_count, item_capacity;
    struct buffer key;
};

/* ---- deepspeed_shapes.c ---- */

/* The model file of rank 0 of a part, by its number in torch_source. */
uint32_t deepspeed_part_file(const struct deepspeed_reading *reading, uint32_t part);

/* Reads param_shapes of all parts: groups, parameters, names. None at all where no file has any. */
reshard_status deepspeed_read_shapes(struct deepspeed_reading *reading, reshard_error *err);

/* The object of a file, by its number in torch_source. */
const struct value *deepspeed_root(const struct deepspeed_reading *reading, uint32_t file);

/* Member of a list; NULL: it is no list, or is shorter. */
struct value *deepspeed_member(const struct value *list, uint32_t index);

/* Names the file in an error. */
void deepspeed_name_file(const struct deepspeed_reading *reading, uint32_t file, reshard_error *err);

/* ---- deepspeed_parts.c: flat buffers ---- */

extern const struct deepspeed_origin deepspeed_origin_parts;

/* Reads the optimizers' files against param_shapes: groups, parameters, and that each rank has what it should. */
reshard_status deepspeed_read_groups(struct deepspeed_reading *reading, reshard_error *err);

/* What torch's own optimizer has in a rank's file, of its parts; NULL: nothing. */
const struct value *deepspeed_base_state(const struct deepspeed_reading *reading, uint32_t rank);

/* The part of a parameter that a rank has, in its flat buffer. false: none. */
bool deepspeed_part_of(const struct deepspeed_reading *reading, const struct deepspeed_parameter *parameter, uint32_t rank,
                       struct flat_unit_part *out);

/* The tensor that a node is, of a file: of one dimension, its elements one behind another. */
reshard_status deepspeed_flat_tensor(const struct deepspeed_reading *reading, uint32_t file, const struct value *node, const char *what,
                                     const struct torch_tensor **out, reshard_error *err);

/* ---- deepspeed_universal.c: files of one tensor each ---- */

extern const struct deepspeed_origin deepspeed_origin_universal;

/* Reads the folder zero/: which states each parameter has, and its shape. */
reshard_status deepspeed_read_universal(struct deepspeed_reading *reading, reshard_error *err);
void deepspeed_universal_release(struct deepspeed_universal *universal);

/* The optimizer's file, by its number in torch_source; TORCH_NONE: there is none. */
uint32_t deepspeed_universal_optimizer(const struct deepspeed_universal *universal);

/* Whether zero/ has the name with another shape than the tensor of a part has: that is but a part of it. */
bool deepspeed_universal_differs(const struct deepspeed_reading *reading, struct str name, const struct torch_tensor *tensor);

/* Adds what zero/ has beyond the tensors that are listed. */
reshard_status deepspeed_universal_add_rest(struct deepspeed_reading *reading, reshard_error *err);

/* ---- deepspeed_model.c ---- */

/* Adds the model's tensors, and the items of rank 0's model file. */
reshard_status deepspeed_add_model(struct deepspeed_reading *reading, reshard_error *err);

/* Adds a tensor of the model to the catalog. */
reshard_status deepspeed_add_tensor(struct deepspeed_reading *reading, struct str key, enum dtype dtype, int rank, const int64_t *shape,
                                    bool is_parameter, uint32_t *out, reshard_error *err);

/* The first that was added of a key; CATALOG_NONE: there is none. */
uint32_t deepspeed_find_tensor(const struct deepspeed_reading *reading, struct str key);

/* ---- deepspeed_optimizer.c ---- */

/* The item that is made. */
struct deepspeed_making {
    struct deepspeed_reading *reading;
    struct value_graph *graph; /* that the item is made in: the file's */
    uint32_t file;             /* of torch_source: rank 0's of the optimizer; TORCH_NONE: there is none */
    const struct value *object;    /* its members are the item's, but for those about cutting */
    struct value *groups;          /* param_groups; NULL: there are none */
    struct value **buffers;        /* by rank: of one state of a group */
    struct torch_whole *wholes;
    uint32_t whole_count, whole_capacity;
};

/* A state of a parameter as a hidden tensor, without chunks yet; *out is the node that will name it. */
reshard_status deepspeed_add_whole(struct deepspeed_making *making, const struct deepspeed_parameter *parameter, struct str state,
                                   enum dtype dtype, int rank, const int64_t *shape, uint32_t *tensor, struct value **out,
                                   reshard_error *err);

/* The dict of what ranks or parameters have in common: rank 0's, or that of a universal checkpoint; NULL: there is none. */
const struct value *deepspeed_common(const struct deepspeed_reading *reading);

/* A value as whoever lacks DeepSpeed can load it: of an object of its classes (the loss scaler) the attributes, of a member of an enum the
 * number. */
struct value *deepspeed_plain(struct value *value);

/* Adds the item "optimizer" and its tensors. */
reshard_status deepspeed_add_optimizer(struct deepspeed_reading *reading, reshard_error *err);

#endif
