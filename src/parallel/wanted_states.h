/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the tensors that are to be written are optimizer state of which weights: optimizer.state.STATE.KEY is state of KEY. */
#ifndef PARALLEL_WANTED_STATES_H
#define PARALLEL_WANTED_STATES_H

#include "catalog/catalog.h"
#include "parallel/state_keys.h"

#define WANTED_STATES_MAX 16

/* A kind of state. */
struct wanted_state {
    struct str name;           /* "exp_avg" */
    bool is_master;            /* the fp32 copy of the parameter */
    uint32_t *tensors;         /* by wanted weight: 1 + wanted tensor of its state */
};

/* Finds the kinds in the order in which tensors name them; tables are in arena. UNSUPPORTED names a tensor that is state of nothing wanted.
 */
reshard_status wanted_states_find(const struct catalog *wanted, struct arena *arena, struct wanted_state states[WANTED_STATES_MAX],
                                     uint32_t *count, reshard_error *err);

#endif
