/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states of tied weights. Where two names are one weight, only one of them has states. A reference whose weights are not tied
 * wants states under both names: each gets those of the weight that it is a copy of. A reference whose weights are tied has them once:
 * what the source has twice is written once, if that one is selected. Some loaders look for them under each name: then each weight gets
 * them, without a reference. A reference's names are those that the source's tensors are going to have.
 */
#ifndef CONVERT_TIED_STATES_H
#define CONVERT_TIED_STATES_H

#include "convert/checkpoint.h"
#include "convert/selected_names.h"

/* A state that the source lacks, and the source's tensor that has its values. */
struct tied_state {
    struct str key;         /* the reference's; empty: as `weight` is to `owner`, so it is to the key of `tensor`, as they are wanted */
    uint32_t tensor;
    uint32_t weight, owner; /* of the source; CATALOG_NONE where there is a key */
};

/* Finds them: *out is malloc'd. Reads weights that may be each other's copies. */
reshard_status tied_states_find(struct checkpoint *source, const struct selected_names *names, const struct catalog *reference,
                                const struct engine_options *engine, struct tied_state **out, uint32_t *count, reshard_error *err);

/* Those of matrices that have no states, and are the same bytes as one that has. Grouped by weight; for no reference. */
reshard_status tied_states_of_each(struct checkpoint *source, const struct engine_options *engine, struct tied_state **out,
                                   uint32_t *count, reshard_error *err);

/* A state of the source, of a weight that the reference ties to another, and the state of that one. */
struct spare_state {
    uint32_t tensor, kept; /* of the source */
    bool is_same;          /* weights and states are the same bytes: one of them is enough. Else the source's weights are not tied */
};

/* Finds them: *out is malloc'd. The reference ties two weights if they are the same bytes and one of them has no such state. Nothing of
 * what is not selected is spare, or kept. Reads weights of both checkpoints, and states, where these may be spare. */
reshard_status spare_states_find(struct checkpoint *source, const struct selected_names *names, struct checkpoint *reference,
                                 const struct engine_options *engine, struct spare_state **out, uint32_t *count, reshard_error *err);

#endif
