/* SPDX-License-Identifier: Apache-2.0 */
/* A call of reshard_load: what its parts have in common. */
#ifndef API_LOAD_CALL_H
#define API_LOAD_CALL_H

#include "api/handle.h"
#include "api/public_options.h"
#include "api/sharded_group.h"
#include "convert/memory_load.h"

struct load_call {
    struct sharded_group group;
    reshard_load_options given;
    const reshard_run_options *run;
    struct run_call running;
    uint64_t staging_bytes; /* at most in a round, unless one tensor is more: the least of the group */
    const struct strict_rule *rule;
    reshard_checkpoint *checkpoint;
    reshard_sharded *sharded, *result;
    struct map_call map;      /* if given.map is there */
    struct checkpoint *named; /* whose names the mapping changes; of checkpoint. NULL: there is no mapping */
    struct memory_names names;
    struct name_map stored;           /* keys of the checkpoint: of tensors, and of objects without their cell */
    struct name_map wanted;           /* what some rank asks for */
    struct str *unexpected, *missing; /* sorted */
    size_t unexpected_count, missing_count;
};

/* ---- api_load.c ---- */

/* Whether the checkpoint has tensors or objects of a key. */
bool load_is_stored(const struct load_call *call, struct str key);

/* What a backend says that is asked for what it lacks. */
reshard_status load_unexpected_error(const struct load_call *call, struct str key, reshard_error *err);

/* ---- api_state.c ---- */

/* Fills shards, which have memory, from a checkpoint, as reshard_load_shards does. */
reshard_status load_list(const reshard_checkpoint *checkpoint, const struct shard_list *list, const struct engine_options *options,
                         reshard_error *err);

/* ---- load_values.c ---- */

/* Collective: fills the tensors of all ranks. What fails on one rank, fails on all. */
reshard_status load_values(struct load_call *call, reshard_error *err);

#endif
