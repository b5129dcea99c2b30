/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is around the names of one side of a relation, whatever they are: a container that the weights are in, another order of the words of
 * optimizer states. Texts name weights one by one, this concerns them all.
 */
#ifndef NAMES_MAPPING_SPELLING_H
#define NAMES_MAPPING_SPELLING_H

#include "names/mapping_stage.h"

/* A part of a name, and how it is spelled. */
struct mapping_pair {
    struct str part, spelled;
};

struct mapping_spelling {
    struct str below;                /* every key begins with it */
    struct str apart;                /* but those that begin with this one */
    struct str states, states_below; /* keys of states on either side, with $NAME and $STATE; empty: as weights */
    struct str beside;               /* names of the other side that begin with it are no states; empty: any may be */
    struct str words;                /* for $STATE where the text gives the name, each may have @… behind it; empty: any word */
    struct str masters_below;        /* with $NAME: keys of masters are not as those of other states; empty: they are */
    struct str alias, alias_of;      /* on the way back: a part of a key, and what it is called there */
    struct str without;              /* on the way back, keys that begin with it stay behind; empty: none */
    struct str masters;              /* words for a state that the weights below are themselves; empty: there is none */
    struct mapping_pair *pairs;      /* a name has the first part that it contains in its other spelling, both ways */
    uint32_t pair_count;
};

/* What becomes of masters, the weights that an optimizer works on. */
enum mapping_masters {
    MAPPING_MASTERS_AS_STORED,  /* nothing: states stay states, weights stay weights */
    MAPPING_MASTERS_ARE_STATES, /* on the way back, a weight that has other states is a master too */
    MAPPING_MASTERS_ARE_WEIGHTS /* the master takes the place of its weight */
};

/*
 * Gives every tensor of *stage its key in the spelling, or without it; the tensors stay as they are, but for masters: a weight that becomes
 * a state too gets the dtype that weights have (NULL: keeps its own), the state has that of the master. Where masters have keys of their
 * own, a weight is its own master only if that dtype is known, and a master without its weight makes one (NULL: BF16): *made of them. On
 * failure *stage stays as it was.
 */
reshard_status mapping_apply_spelling(struct mapping_stage **stage, const struct mapping_spelling *spelling, bool is_back,
                                      enum mapping_masters masters, const enum dtype *weights, uint32_t *made, reshard_error *err);

#endif
