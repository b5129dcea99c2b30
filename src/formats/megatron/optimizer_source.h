/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state of legacy rank files in the catalog. The files name nothing in it, so the whole checkpoint is listed under the keys that
 * a distributed checkpoint of the same content has: layers along an axis, and optimizer.state.STATE.KEY for the state.
 */
#ifndef FORMATS_MEGATRON_OPTIMIZER_SOURCE_H
#define FORMATS_MEGATRON_OPTIMIZER_SOURCE_H

#include "formats/megatron/megatron_source.h"
#include "parallel/parameter_names.h"

/* Whether the rank's files hold optimizer state. */
bool megatron_rank_has_optimizer(const struct megatron_rank *rank);

/* What stays an item of member `optimizer` when its tensors are listed: groups, scaler, and the step that its parameters have in common,
 * called as in a distributed checkpoint. */
reshard_status megatron_optimizer_item(struct source *source, const struct megatron_rank *rank, struct value *optimizer,
                                       struct value **out, reshard_error *err);

/* optimizer_step.c: the step in the `state` of one optimizer, INT or FLOAT of the file's graph; NULL if parameters have none, or none in
 * common, which the source then says (no_common_step). */
reshard_status megatron_common_step(struct source *source, const struct megatron_rank *rank, const struct value *state, struct value **out,
                                    reshard_error *err);

/* Adds the tensors of all parameters under their distributed keys, and sets tensor, lead and lead_count of each. */
reshard_status megatron_add_distributed_tensors(struct source *source, reshard_error *err);

/* Gives the parameters of which that was done by the names that they have in the files; none where it was not. */
reshard_status megatron_each_stored_name(const struct source *source, stored_name_sink sink, void *context, reshard_error *err);

/* Adds the state of all ranks. After the parameters have their tensors. */
reshard_status megatron_add_optimizer(struct source *source, reshard_error *err);

/*
 * Whether state of all ranks can be related to the parameters, which are found and have no tensors yet. If not, that is a warning, the
 * source says why (`unrelated`) and has no optimizer; megatron_add_stored_state (optimizer_stored.c) then lists its tensors as they are
 * stored.
 */
reshard_status megatron_find_unrelated(struct source *source, reshard_error *err);
reshard_status megatron_add_stored_state(struct source *source, reshard_error *err);

#endif
