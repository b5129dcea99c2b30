/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which part of which tensor a rank holds: the shards of a layer's parameters from what kind of layer it is and where the rank stands, and
 * the shards of optimizer state from those of the parameters. The results are lists of shards (geometry.h), which state.h saves and loads.
 *
 * Units are elements, axes count from 0, ranks and sizes are those of the group named; a size of 0 means 1, a rank alone.
 *
 * Memory. Keys and shapes are copied, values stay the caller's. A call that fails has added nothing to the list.
 *
 * Errors. What does not fit is RESHARD_ERR_USAGE, and the message names the tensor. Threads: as for geometry.h.
 *
 * Where rules come from: Megatron Core's tensor-parallel layers, dist_checkpointing.optimizer and ShardedTensor.from_rank_offsets; Paddle's
 * fleet layers, build_sharded_state_dict and sharding optimizers; atorch's ShardOptim.
 */
#ifndef RESHARD_LAYERS_H
#define RESHARD_LAYERS_H

#include "reshard/geometry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ layers */

/* Where a rank stands. */
typedef struct reshard_coordinates {
    size_t struct_size;
    int64_t tp_rank, tp_size;               /* tensor parallel, sequence parallel with it */
    int64_t ep_rank, ep_size;               /* expert parallel */
    int64_t expert_tp_rank, expert_tp_size; /* tensor parallel group of experts */
    int64_t dp_rank;                        /* data parallel, context parallel counted in */
    int64_t expert_dp_rank;                 /* among the ranks that hold the same experts */
} reshard_coordinates;
#define RESHARD_COORDINATES_INIT                                                                                                           \
    {                                                                                                                                      \
        sizeof(reshard_coordinates), 0, 0, 0, 0, 0, 0, 0, 0                                                                                \
    }

enum {
    RESHARD_LAYER_WHOLE = 0,      /* every rank has all of it: norms, routers, position embeddings, plain linear layers */
    RESHARD_LAYER_COLUMN = 1,     /* column parallel linear, sequence parallel or not: outputs are cut, and the bias */
    RESHARD_LAYER_ROW = 2,        /* row parallel linear, sequence parallel or not: inputs are cut, the bias is whole */
    RESHARD_LAYER_VOCABULARY = 3, /* vocabulary parallel embedding (vocabulary, hidden): axis 0 */
    RESHARD_LAYER_HEAD = 4        /* LM head: the vocabulary is cut, and the bias */
};

/* An axis in front of all of a layer's tensors, which the rank's own lack: place `index` of `count`. An array's member. */
typedef struct reshard_front_axis {
    int64_t index, count;
} reshard_front_axis;

typedef struct reshard_layer {
    size_t struct_size;
    int64_t kind;            /* RESHARD_LAYER_... */
    reshard_str prefix;      /* keys are prefix and the tensor's name */
    int64_t is_in_out;       /* weights are (in, out), as Paddle's; else (out, in), as PyTorch's and Megatron's */
    int64_t is_transposed;   /* HEAD, is_in_out: the weight is (vocabulary, hidden), because transpose_y says so or it is tied to the
                                embedding: axis 0; else (hidden, vocabulary): axis 1. With (out, in) it is axis 0 anyway */
    int64_t is_gated;        /* COLUMN: gate and up, one after another on the axis of outputs, and each cut: two shards a tensor */
    int64_t is_expert;       /* cut by the experts' tensor parallel group */
    int64_t has_expert_axis; /* axis 0 of each tensor is that of the rank's experts; of the whole it is ep_size times as long */
    const reshard_front_axis *front_axes; /* layers stacked in one tensor, then experts: Megatron's prepended axes */
    size_t front_axis_stride, front_axis_count;
    const reshard_local_tensor *tensors; /* the rank's own; `shard` is not looked at */
    size_t tensor_stride, tensor_count;
} reshard_layer;
#define RESHARD_LAYER_INIT                                                                                                                 \
    {                                                                                                                                      \
        sizeof(reshard_layer), 0, { NULL, 0 }, 0, 0, 0, 0, 0, NULL, sizeof(reshard_front_axis), 0, NULL, sizeof(reshard_local_tensor), 0   \
    }

/*
 * Adds the shards of a layer's tensors to a list. What a tensor is, the end of its name says: behind the last dot, digits left away,
 * `weight` and `bias` follow the kind, and all else is whole (layer_norm_weight, _extra_state). An embedding has no bias.
 *
 * Values of a gated tensor's halves stay where they are: the shards have strides where outputs are not axis 0.
 */
reshard_status reshard_layer_shards(const reshard_layer *layer, const reshard_coordinates *at, reshard_shards *shards, reshard_error *err);

/*
 * The replica id that Megatron's layers give the tensor of that name: (0, tensor parallel, data parallel) where it is whole, (0, 0, data
 * parallel) where it is cut. A shard is the main one where all three are 0. An expert's data parallel rank is expert_dp_rank.
 */
reshard_status reshard_layer_replica(const reshard_layer *layer, const reshard_coordinates *at, reshard_str name, int64_t replica[3],
                                     reshard_error *err);

/*
 * A key whose number behind `experts.` counts the rank's own experts, with the number among all: 3 of rank 2 of ranks with 8 each is 19.
 * Other keys come back as they are. *out is free with reshard_free, and ends with NUL.
 */
reshard_status reshard_expert_key(reshard_str key, int64_t ep_rank, int64_t local_experts, char **out, size_t *size, reshard_error *err);

/* ------------------------------------------------------------------------------------------------ optimizer state */

/*
 * Numbers of parameters as torch's optimizers count them, from the addresses of their values in the optimizer's order: the first place of
 * each address. Megatron: get_optim_param_to_id_map.
 */
reshard_status reshard_optimizer_ids(const void *const *parameters, size_t count, int64_t *ids, reshard_error *err);

/* State of a parameter. An array's member. */
typedef struct reshard_optimizer_tensor {
    int64_t id;            /* of the parameter, into reshard_optimizer.parameters; or -1, and `parameter` names it */
    reshard_str parameter; /* its key in the model's list */
    reshard_str state;     /* "exp_avg", "moment1_0", "w_0" */
    const char *dtype;
    size_t rank;
    const int64_t *shape;         /* that of the parameter on this rank, or the 1-D one of a flat range of it */
    void *data;                   /* may be NULL */
    int64_t is_flattened;         /* it is elements [flat_begin, flat_end) of the parameter as the rank holds it, row-major */
    int64_t flat_begin, flat_end; /* atorch's intra_param_start_idx, and 1 + intra_param_end_idx; reshard_sharding_range */
} reshard_optimizer_tensor;

typedef struct reshard_optimizer {
    size_t struct_size;
    const reshard_shards *model;   /* of the parameters; those that are looked up by id have values */
    const void *const *parameters; /* by id: where their values begin */
    size_t parameter_count;
    const char *keys;            /* NULL: "optimizer.state.{state}.{parameter}", Megatron's; "{parameter}.{state}" is Paddle's */
    const reshard_str *excluded; /* names of states that are left out: "step" */
    size_t excluded_stride, excluded_count;
    const reshard_optimizer_tensor *tensors;
    size_t tensor_stride, tensor_count;
} reshard_optimizer;
#define RESHARD_OPTIMIZER_INIT                                                                                                             \
    {                                                                                                                                      \
        sizeof(reshard_optimizer), NULL, NULL, 0, NULL, NULL, sizeof(reshard_str), 0, NULL, sizeof(reshard_optimizer_tensor), 0            \
    }

/*
 * Adds the shards of optimizer state to a list: the box of each is its parameter's, the type its own. A parameter of several shards (a
 * gated one) has state of as many. State of one element of a parameter of several is a number, such as `step` or beta1_pow_acc_0, and
 * whole.
 *
 * Megatron: optim_state_to_sharding_state and make_sharded_optimizer_tensor. RESHARD_ERR_USAGE for an id that matches no shard of the model
 * ("Param id 3 does not match any model sharded param") and a shape that is not the parameter's ("Optimizer shape [2] does not match model
 * shape [3]"). `params` of parameter groups are the job's own and not saved.
 */
reshard_status reshard_optimizer_shards(const reshard_optimizer *optimizer, reshard_shards *shards, reshard_error *err);

/* Paddle's sharding optimizers. */
enum {
    RESHARD_SHARDING_NONE = 0, /* every rank has all state */
    RESHARD_SHARDING_1_V1 = 1, /* each parameter's is one rank's: the largest first, each to the rank with fewest elements so far */
    RESHARD_SHARDING_1_V2 = 2, /* buffers of one type, padded to 256 bytes times ranks; a rank owns an equal part of each */
    RESHARD_SHARDING_2 = 3,    /* as 1_V1 without sorting */
    RESHARD_SHARDING_3 = 4     /* parameters of more than 2^20 elements are cut into equal parts, smaller ones are whole on every rank */
};

/* A parameter, in the optimizer's order. An array's member. Members behind dtype are filled in. */
typedef struct reshard_sharding_parameter {
    int64_t elements;      /* as this rank's tensor parallel group holds it */
    const char *dtype;     /* the parameter's, not its state's */
    int64_t start, padded; /* 1_V2, 3: its first element in its buffer, and how many it takes there */
    int64_t part;          /* 1_V2, 3: elements of the buffer that a rank owns; 0: one rank has all */
    int64_t owner;         /* which; -1: all */
} reshard_sharding_parameter;

/* Shares out the state of parameters over the ranks of a group. */
reshard_status reshard_sharding_assign(int64_t sharding, int64_t ranks, reshard_sharding_parameter *parameters, size_t stride, size_t count,
                                       reshard_error *err);

/* The elements [*begin, *end) of a parameter, as reshard_sharding_assign has filled it in, whose state a rank has; none if they are equal.
 * stride is that of its array. */
reshard_status reshard_sharding_range(const reshard_sharding_parameter *parameter, size_t stride, int64_t rank, int64_t *begin,
                                      int64_t *end, reshard_error *err);

/* A parameter of a flat one, in the order of registration. An array's member. Members behind elements are filled in. */
typedef struct reshard_flat_parameter {
    int64_t elements;
    int64_t start;      /* in the flat parameter */
    int64_t begin, end; /* the elements of it that the rank has: end is 1 + atorch's intra_param_end_idx */
    int64_t place;      /* where they begin in the rank's piece */
    int64_t is_there;   /* whether the rank has any; one without elements is on one rank */
} reshard_flat_parameter;

/*
 * How FSDP lays the parameters of a unit out in a flat one, and which elements of each a rank has. Parameters begin at multiples of
 * `alignment` elements (16 bytes by the size of the computing type; 1 without use_orig_params), and ranks have pieces of equal size,
 * *piece elements, the last ones padded.
 */
reshard_status reshard_flat_assign(int64_t alignment, int64_t ranks, int64_t rank, reshard_flat_parameter *parameters, size_t stride,
                                   size_t count, int64_t *piece, reshard_error *err);

#ifdef __cplusplus
}
#endif

#endif
