/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which tensor of a checkpoint a state belongs to, where keys put the word `state` before both: optim.state.w.exp_avg is exp_avg of w, or
 * of what the checkpoint calls w below a prefix, as a DCP of {"model": …, "optim": …} calls it model.w. Parts that share the text before
 * `state` share their prefix.
 */
#ifndef PARALLEL_STATE_OWNER_H
#define PARALLEL_STATE_OWNER_H

#include "catalog/catalog.h"

#define STATE_OWNER_PREFIXES 16

/* How a key spells the state of a tensor. */
enum state_words {
    STATE_WORDS_MEGATRON, /* optimizer.state.exp_avg.w */
    STATE_WORDS_TORCH,    /* optim.state.w.exp_avg */
    STATE_WORDS_FLAT      /* w-exp_avg, as atorch has it */
};

struct state_owner_prefix {
    struct str before;      /* "optim."; a part of a key */
    struct str prefix;      /* "model."; a part of a key, or empty */
    bool is_found, has_owner; /* has_owner: some key of it is state of a tensor */
    bool has_words[STATE_WORDS_FLAT]; /* by spelling: some key is state of a tensor in that one alone */
};

/* Borrows the catalog, which is sealed. */
struct state_owners {
    const struct catalog *catalog;
    struct state_owner_prefix prefixes[STATE_OWNER_PREFIXES];
    uint32_t count;
    enum {
        OWNERS_OF_CALLED, /* those of what is called an optimizer are looked for: other keys that say `state` are weights */
        OWNERS_OF_OTHERS, /* those of all that says `state`: it may be an optimizer */
        OWNERS_ARE_KNOWN  /* it is known which are optimizers */
    } stage;
};

/* Finds the prefixes. */
void state_owners_begin(struct state_owners *owners, const struct catalog *catalog);

/* Whether the key says `state` and what belongs to it; the tensor that it is state of, and the state's name. */
bool state_owners_find(const struct state_owners *owners, struct str key, uint32_t *weight, struct str *state);

struct owned_state {
    enum state_words words;
    uint32_t weight;   /* the tensor that it is state of */
    struct str state;  /* "exp_avg" */
    struct str before; /* "optim."; empty in w-exp_avg */
};

/* The same of a key in any of these spellings. */
bool state_owners_read(const struct state_owners *owners, struct str key, struct owned_state *out);

/* The tensor that the optimizer whose keys begin with `before` calls name, or CATALOG_NONE. */
uint32_t state_owners_weight(const struct state_owners *owners, struct str before, struct str name);

#endif
