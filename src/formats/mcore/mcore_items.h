/* SPDX-License-Identifier: Apache-2.0 */
/* Names and nesting of Megatron's items, and what becomes of those that belong to a layout. */
#ifndef FORMATS_MCORE_MCORE_ITEMS_H
#define FORMATS_MCORE_MCORE_ITEMS_H

#include "base/value.h"
#include "formats/driver.h"

/* KEY of a ShardedObject's name KEY/shard_0.3_1.8: offsets, then as many extents. False if it is no such name. */
bool mcore_object_key(struct str name, struct str *key);

/* Stores the leaves of a nested item one by one, each under its path. */
reshard_status mcore_flatten_item(const struct layout_request *request, struct target *target, uint32_t item, reshard_error *err);

/* The same for what a ShardedObject holds, below the given path. */
reshard_status mcore_flatten_object(const struct layout_request *request, struct target *target, uint32_t item,
                                   const struct path_part *parts, size_t count, reshard_error *err);

/* fsdp_dtensor: stores the members of its param_group for every parameter. */
reshard_status mcore_group_meta_add(const struct layout_request *request, struct target *target, reshard_error *err);

/* Adds a value of the target's own graph to the root of the common state. */
struct mcore_target;
reshard_status mcore_add_value(struct mcore_target *state, const char *key, struct value *value, reshard_error *err);

/* ---- mcore_objects.c ---- */

/* Whether a key is that of a module's own state (…._extra_state). */
bool mcore_is_module_state(struct str key);

/* Adds the objects of modules, unless the source has ShardedObjects itself or they are not wanted; notes what finds no place. */
reshard_status mcore_module_states_add(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_state.c ---- */

/* Reads how the source is spread, and how the target is to be: by the words of the layout, the reference, or as the source. */
reshard_status mcore_sizes_choose(const struct layout_request *request, struct target *target, reshard_error *err);

/* Whether the target's ranks are others than the source's. */
bool mcore_layout_changes(const struct target *target);

/* The same, or there are others of them, as arguments that are written anew say: by buffer a run may have more data-parallel ranks. */
bool mcore_world_changes(const struct layout_request *request, const struct target *target);

/* Whether the item is one of a single legacy rank, in a folder mp_rank_…. */
bool mcore_is_rank_item(const struct catalog *wanted, const struct catalog_item *item);

/*
 * What of the common state depends on how the model is spread: the arguments get the sizes of the target, and the RNG states of the ranks
 * become ShardedObjects where the target's ranks are the source's. The tree is complete but for them.
 */
reshard_status mcore_state_adapt(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_release.c ---- */

/* N of the release 0.N that is to load it, as the option or the format says; 0: any. */
reshard_status mcore_release_choose(const struct layout_request *request, struct target *target, uint32_t *minor, reshard_error *err);

/* Leaves out of the common state what that release cannot load. After it is adapted otherwise. */
reshard_status mcore_release_adapt(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_classes.c ---- */

/* Notes what of the common state Megatron's loader would refuse. The items are loaded. */
reshard_status mcore_classes_note(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_optimizer_choose.c ---- */

/* Decides how the distributed optimizer's state is stored. Before items are adapted. */
reshard_status mcore_optimizer_choose(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_optimizer.c ---- */

/* Notes whether the target has the distributed optimizer's state by parameter. */
void mcore_optimizer_look(const struct layout_request *request, struct target *target);

/* Whether an object's content becomes part of the common state's optimizer then. */
bool mcore_optimizer_takes(const struct target *target, struct str key);

/* Makes the common state say how the optimizer's state is stored. */
reshard_status mcore_optimizer_adapt(const struct layout_request *request, struct target *target, reshard_error *err);

/* ---- mcore_regroup.c ---- */

/* Whether the target's run has another number of optimizers, because experts are parallel or no longer are. */
bool mcore_optimizers_change(const struct target *target);

/* Makes the optimizers of the common state, in the target's own graph, those that the target's run has. */
reshard_status mcore_optimizers_regroup(const struct layout_request *request, struct target *target, struct value **optimizer,
                                       reshard_error *err);

/* Takes out of the groups which parameters they have, by number in a rank of the source: Megatron puts its own there, and refuses two. */
void mcore_groups_drop_numbers(const struct value *optimizer);

#endif
