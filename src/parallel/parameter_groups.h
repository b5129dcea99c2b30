/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer that is not distributed keeps its state by number: parameters are dealt out to groups (with weight decay or not, experts or
 * not, own learning rate or not) and numbered through the groups. Which parameter each number means.
 */
#ifndef PARALLEL_PARAMETER_GROUPS_H
#define PARALLEL_PARAMETER_GROUPS_H

#include "base/value.h"
#include "parallel/flat_buffers.h"

struct parameter_group {
    bool has_decay;            /* wd_mult is not 0: neither biases nor vectors */
    bool is_expert;
    bool is_decoupled;         /* embedding and output layer with a learning rate of their own */
    uint32_t count;            /* of its parameters */
};

/*
 * Sets *parameter_of, by position through the groups: group 0's members, then group 1's, … Parameters of a group keep their order of
 * registration. MALFORMED if the groups do not deal out exactly the parameters with is_expert as given, or a group is there twice.
 */
reshard_status parameter_groups_relate(const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                       const struct parameter_group *groups, uint32_t group_count, uint32_t **parameter_of,
                                       reshard_error *err);

/*
 * Two groups of one kind would both claim its parameters; Megatron makes at most one of each. Notes a group's kind in *seen, 0 at first,
 * and fails for the second of a kind. number: its place, for the message.
 */
reshard_status parameter_group_take_kind(unsigned *seen, uint32_t number, bool has_decay, bool is_decoupled, reshard_error *err);

/* Whether a group of the file is one with a learning rate of its own; from 0.16 on that shows in `default_config`. */
bool parameter_group_is_decoupled(const struct value *group);

/* Whether such a group is that of embeddings, whose learning rate the run (the members of its arguments, or NULL) decouples; from 0.16 on
 * others have rates of their own too, such as the matrices of MuP, and experts among them. */
bool parameter_group_is_of_embeddings(const struct value *group, const struct value *arguments);

/* The list of parameter groups in what is said about one optimizer, {"optimizer": {"param_groups": […]}} or {"param_groups": […]}; NULL:
 * none. */
struct value *parameter_group_list(const struct value *optimizer);

/* The multiplier of a group's weight decay, by which its parameters are told from others; NULL: it is not said. And whether that is 0. */
const struct value *parameter_group_decay(const struct value *group);
bool weight_decay_is_zero(const struct value *decay);

/* Whether it is said, and is not 0. */
bool parameter_group_has_decay(const struct value *group);

/* The kind of group that a parameter belongs to, by its name and rank: vectors and biases have no weight decay. */
bool parameter_decays(struct str name, int rank);
bool parameter_has_decay(const struct rank_parameter *parameter);

#endif
