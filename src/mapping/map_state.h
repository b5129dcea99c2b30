/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states and how frameworks spell them. Statements speak of weights; a state follows its weight, whatever either side calls it:
 *   Paddle       w.moment1_0
 *   Megatron     optimizer.state.exp_avg.w        (`state`, the state's name, the weight, behind anything)
 *   torch (DCP)  optim.state.w.exp_avg            (`state`, the weight, the state's name, behind anything)
 *   Megatron's FSDP   optimizer.state.module.module.module.w.exp_avg   (of model.module.w)
 *   FSDP files   w-exp_avg
 *   others       w.exp_avg
 *   Paddle, Unified Checkpoint   optimizer:w/moment1_0, master_weights:w, model:w
 */
#ifndef MAPPING_MAP_STATE_H
#define MAPPING_MAP_STATE_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* id, what it is called in messages, the suffix if Paddle's mapping engine knows the state by it, whether it has the weight's shape (others
 * are numbers that belong to the whole weight), the name that torch's optimizers give it, another one. */
#define MAP_STATES(X)                                                                                 \
    X(WEIGHT, "the weight itself", "", true, NULL, NULL)                                              \
    X(MASTER, "the master weight", ".w_0", true, "param", "fp32_param")                               \
    X(MOMENT1, "the first moment", ".moment1_0", true, "exp_avg", NULL)                               \
    X(MOMENT2, "the second moment", ".moment2_0", true, "exp_avg_sq", NULL)                           \
    X(MAX_MOMENT2, "the maximal second moment", NULL, true, "max_exp_avg_sq", "moment2_max_0")        \
    X(MOMENTUM, "the momentum", NULL, true, "momentum_buffer", "velocity_0")                          \
    X(BETA1, "the first beta power", ".beta1_pow_acc_0", false, NULL, NULL)                           \
    X(BETA2, "the second beta power", ".beta2_pow_acc_0", false, NULL, NULL)                          \
    X(STEP, "the step", NULL, false, "step", NULL)

enum map_state {
#define X(id, name, suffix, shaped, torch, other) MAP_STATE_##id,
    MAP_STATES(X)
#undef X
    MAP_STATE_COUNT
};

extern const char *const map_state_name[MAP_STATE_COUNT];
extern const bool map_state_is_shaped[MAP_STATE_COUNT];

/* Where a key names a weight. */
struct map_state_key {
    enum map_state state;
    struct str name;   /* of the weight, a part of the key */
    struct str before; /* what stands before the word `state`: "app.optim." */
};

/* What Paddle calls the state behind a weight's name, "moment1_0"; NULL: it has none such. */
const char *map_state_paddle_word(enum map_state state);

/* The same of the state that optimizers of torch and Megatron call so, "exp_avg". */
const char *map_state_paddle_word_of(struct str word);

/* Splits a key at Paddle's suffix; MAP_STATE_WEIGHT if it has none: then the name is the key. */
enum map_state map_state_of(struct str key, struct str *name);

/* Splits a key of a Unified Checkpoint; false if it is none. */
bool map_state_of_family(struct str key, struct map_state_key *out);

/* The index-th way to read a key as a state in the spellings of other frameworks; false if there are no more. */
bool map_state_reading(struct str key, int index, struct map_state_key *out);

#endif
