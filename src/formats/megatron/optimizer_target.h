/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing optimizer state into legacy files: distrib_optim.pt beside model_optim_rng.pt where it is the distributed optimizer's (its
 * masters are called param), by number inside of it where it is not.
 */
#ifndef FORMATS_MEGATRON_OPTIMIZER_TARGET_H
#define FORMATS_MEGATRON_OPTIMIZER_TARGET_H

#include "formats/megatron/megatron_target.h"
#include "parallel/flat_buffers.h"
#include "parallel/wanted_states.h"

struct target_optimizer {
    struct wanted_state states[WANTED_STATES_MAX];
    uint32_t state_count;
    bool is_distributed;
    bool has_experts;          /* experts have an optimizer of their own, on whatever rank */
};

/* A value of the source that says something about the optimizer, copied into the graph of a rank's file. */
struct optimizer_item {
    struct str key;
    struct value *value;
    uint32_t wanted;
};

/* Whether the item is one that megatron_optimizer_value takes. */
bool optimizer_item_is_known(struct str key);

/* Finds the wanted tensors that are state and sets state->optimizer, NULL if there are none. After megatron_assign. */
reshard_status megatron_find_states(const struct layout_request *request, struct target *target, reshard_error *err);

/* Whether a rank has an optimizer for experts beside the other: all ranks have, also on stages without experts, but for what the reference
 * shows otherwise. */
bool megatron_has_two_optimizers(const struct layout_request *request, const struct megatron_target *state, const struct target_rank *rank);

/* Adds an entry for every distrib_optim.pt behind the ranks. */
reshard_status megatron_add_optimizer_files(struct target *target, reshard_error *err);

/* The pickle of a rank's distrib_optim.pt; adds its records. */
reshard_status megatron_emit_optimizer(const struct layout_request *request, struct target *target, uint32_t rank, struct buffer *out,
                                       reshard_error *err);

/*
 * Member `optimizer` of a rank's model file, in graph: groups and scaler of the source, and state by number if it is not distributed. A
 * leaf NONE whose tensor is set is a record's: its number in the file + 1; storage is the parameter. *out is NULL if the source says
 * nothing.
 */
reshard_status megatron_optimizer_value(const struct layout_request *request, struct target *target, uint32_t rank,
                                        const struct optimizer_item *items, uint32_t item_count, struct value_graph *graph,
                                        struct value **out, reshard_error *err);

/* A parameter, or the matrix that it stands for, as the optimizers of its ranks know it; false if they know none such. */
bool megatron_optimizer_parameter(const struct layout_request *request, const struct megatron_target *state, uint32_t parameter,
                                  struct rank_parameter *out);

/* optimizer_like.c: gives a group the settings that a group of the same kind has in the reference, and no others. What it did is noted in
 * *done. */
struct like_settings {
    bool are_added, are_removed;
};
reshard_status optimizer_like_settings(const struct layout_request *request, bool of_experts, struct value *group,
                                       struct value_graph *graph, struct like_settings *done, reshard_error *err);

/* Those of a rank's parameters that its optimizers know, in order, and which of the state's they are; the arrays are the caller's to free.
 */
reshard_status megatron_rank_parameters(const struct layout_request *request, const struct megatron_target *state,
                                        const struct target_rank *rank, struct rank_parameter **out, uint32_t **indices, uint32_t *count,
                                        reshard_error *err);

/* Parameters of a rank's files, in order of registration; out has room for all. */
uint32_t megatron_list_parameters(const struct megatron_target *state, const struct target_rank *rank, uint32_t *out);

#endif
