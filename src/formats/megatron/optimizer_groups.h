/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer that is not distributed keeps its state by number: parameters are dealt out to groups (weight decay or not, expert or not, own
 * learning rate or not), and numbered through the groups. Which parameter each number means.
 */
#ifndef FORMATS_MEGATRON_OPTIMIZER_GROUPS_H
#define FORMATS_MEGATRON_OPTIMIZER_GROUPS_H

#include "formats/megatron/optimizer_buffers.h"

struct optimizer_group {
    double wd_mult;            /* 0: biases and vectors */
    bool has_wd_mult, is_expert, is_decoupled_lr;
    uint32_t first, count;     /* numbers of its parameters */
    const struct value *value; /* the dict it was read from */
};

/* The shape that the file has for number i, for the check; NULL rank -1 where the file has no tensor for it. */
struct optimizer_member {
    int rank;                  /* -1: no state */
    const int64_t *shape;
};

/*
 * Sets parameter_of[number] for the numbers of all groups. Parameters of a group keep their order of registration; which group one belongs to
 * follows from its name, shape and kind, and every shape must agree.
 */
reshard_status optimizer_groups_relate(const struct optimizer_parameter *parameters, uint32_t count, const struct optimizer_group *groups, uint32_t group_count,
                                       const struct optimizer_member *members, uint32_t member_count, uint32_t *parameter_of, reshard_error *err);

/* Splits parameters into the groups that Megatron would make, for writing: group_of[parameter]: 0 with weight decay, 1 without. */
void optimizer_groups_deal(const struct optimizer_parameter *parameters, uint32_t count, uint8_t *group_of);

#endif
