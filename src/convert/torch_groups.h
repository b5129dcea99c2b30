/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of parameters as torch's optimizers have them, in the items of a checkpoint: a list optim.param_groups, one item of each option,
 * optim.param_groups.0.lr, one of each option of each parameter, optim.param_groups.layers.0.weight.lr, or atorch's optim_meta. And what
 * Megatron's optimizers make of them.
 */
#ifndef CONVERT_TORCH_GROUPS_H
#define CONVERT_TORCH_GROUPS_H

#include "formats/driver.h"
#include "parallel/state_owner.h"

struct torch_group {
    struct value *members;           /* DICT: its options, without the list of parameters */
    uint32_t room;                   /* of its list */
    bool has_matrices, has_vectors;  /* among the parameters; vectors and biases have no weight decay in Megatron */
};

struct torch_groups {
    struct value_graph *graph;   /* of all values */
    struct torch_group *groups;  /* by number; members NULL: none of that number */
    uint32_t count, capacity;
    const struct name_map *without; /* keys of optimizers that are passed over, by what they begin with; NULL: none */
    struct name_map parameters;  /* with options of their own: their numbers are the groups', until equal ones are one */
    uint8_t *is_taken;           /* by item of the source: it says something about groups */
    bool is_found, are_of_several; /* optimizers */
    struct str before;           /* "optim.", of one of them */
    struct name_map left_out;    /* options that are none of those that are read */
};

/* Whether an option of a group is a number, a text, or a list of such: no tensor, and nothing of a class. */
bool torch_option_is_plain(const struct value *value);

/* An option that is a tensor, whose key torch_groups_key knows; number: of the groups' graph, or NULL: it is none. Before
 * torch_groups_read, which joins groups. */
reshard_status torch_groups_take_number(struct torch_groups *groups, const struct state_owners *owners, struct str key,
                                        const struct value *number, reshard_error *err);

/* graph is set by the caller. Options that are no plain numbers, texts or lists of them are left out. */
reshard_status torch_groups_read(struct source *source, const struct state_owners *owners, struct torch_groups *out, reshard_error *err);
void torch_groups_release(struct torch_groups *groups);

/* atorch's items of groups, and of the run and its wrapping. */
#define ATORCH_GROUPS "optim_meta"
#define ATORCH_LAYOUT "ckpt_meta"

/* Whether an item's key is one of those that say groups; *before, which may be NULL: what stands in front of param_groups, "optim.". */
bool torch_groups_key(struct str key, struct str *before);

/*
 * The groups that a run of Megatron asks for, as a LIST of the graph: one with weight decay, and one of vectors and biases without.
 * *is_cut: the latter was made of a group of both. *out NULL: other groups than these two, which Megatron has none of.
 */
reshard_status torch_groups_to_megatron(struct torch_groups *groups, struct value **out, bool *is_cut, reshard_error *err);

#endif
