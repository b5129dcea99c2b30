/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoint roots: directories that hold one sub-directory per saved iteration.
 *
 *   latest_checkpointed_iteration.txt ("10")   iter_0000010/          Megatron, atorch (there: iter_10)
 *   latest ("global_step10")                   global_step10/         DeepSpeed
 *   latest_universal ("global_step10_universal")                      DeepSpeed, where there is no `latest`
 *   latest_checkpointed_iteration.txt ("10")   global_step_10/        verl
 *   none                                       checkpoint-10/ step-10/ and the like: the highest number is the latest
 *   none                                       10/ with _CHECKPOINT_METADATA in it  Orbax; and in that default/, the state
 */
#ifndef FORMATS_SOURCE_ROOT_H
#define FORMATS_SOURCE_ROOT_H

#include "base/arena.h"
#include "base/error.h"
#include "store/store.h"

struct root_choice {
    char *name;        /* the sub-directory, relative to the store's root; NULL: the directory is no such root */
    int64_t iteration; /* -1: it has no number ("release") */
    int64_t before;    /* the highest number below it; -1: there is none */
    bool is_guess;     /* nothing says which is the latest: it is the highest number */
};

/* Finds the iteration's sub-directory in directory ("" is the store's root); iteration -1 asks for the latest. The name lies
 * in arena. Fails if an iteration is asked for that is not there, or if the tracker file names one that is not. */
reshard_status root_choose(struct store *store, const char *directory, int64_t iteration, struct arena *arena, struct root_choice *out,
                           reshard_error *err);

/* Whether this is how the folder of one iteration is called. */
bool root_is_iteration(struct str name);

#endif
