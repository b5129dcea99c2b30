/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flat buffers of a distributed optimizer where one rank writes those of all, put together: distrib_optim.pt of legacy rank files, and
 * the object param_state of the torch_dist layout dp_zero_gather_scatter, which has the structure of one optimizer of that file. There is
 * one vector a buffer and kind of state, without the padding at the ends of buckets.
 */
#ifndef PARALLEL_FLAT_STATE_H
#define PARALLEL_FLAT_STATE_H

#include "encoding/torch_save.h"
#include "parallel/flat_buffer_rules.h"
#include "parallel/state_pieces.h"

/* The state in distrib_optim.pt, whose root is `state`. */
reshard_status flat_state_read(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                               const struct rank_parameter *parameters, uint32_t count, struct state_pieces *out, reshard_error *err);

/* As that, for the one optimizer of the parameters with is_expert as given. */
reshard_status flat_state_read_one(const struct torch_archive *archive, const struct value *state, const struct training_run *run,
                                   const struct rank_parameter *parameters, uint32_t count, bool is_expert, struct state_pieces *out,
                                   reshard_error *err);

#endif
