/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the way from the names of one checkpoint to those of another, and walks it. */
#ifndef NAMES_MAPPING_RELATE_H
#define NAMES_MAPPING_RELATE_H

#include "names/mapping_rules.h"

/* Where to. */
struct mapping_goal {
    const char *name_space;     /* of the target's format, or NULL */
    const struct map_space *reference; /* keys that are to come out, or NULL: any spelling of the name space */
    struct str family;          /* empty: whichever is recognised */
    enum dtype weights;         /* of the run's weights, where the source's items say so */
    bool has_weights;
    uint64_t named, denied;     /* nodes that the source's items say its names are of, and are not of */
    uint64_t excluded;          /* nodes whose names a run like the source's does not ask for */
    reshard_status (*check)(void *context, const struct map_space *model, reshard_error *err); /* before a family's text is read forwards */
    void *context;
};

enum mapping_way {
    MAPPING_WAY_NONE,      /* names are not recognised, or no relation leads on */
    MAPPING_WAY_SAME,      /* the names are those of the goal */
    MAPPING_WAY_AMBIGUOUS, /* several relations fit */
    MAPPING_WAY_WALKED
};

struct mapping_walked {
    enum mapping_way way;
    struct buffer said;                    /* which texts were used, or which would fit equally well */
    const struct mapping_relation *family; /* the last one of model families, NULL: none */
    uint32_t made;                         /* weights that are cast from their masters */
    bool is_back;                          /* it was walked from right to left */
    const struct map_space *left;          /* the names on its left side; of a stage of the mapping */
    const struct mapping_relation *undone; /* the last one of model families that was walked from right to left, NULL: none */
};

/* Puts the texts that lead to the goal behind *stage. name_space: of the source's format, or NULL. out->said is to be released, also on
 * failure. */
reshard_status mapping_relate(const struct mapping_rules *rules, const char *name_space, const struct mapping_goal *goal,
                              const struct mapping_context *context, const struct catalog *source, struct mapping_stage **stage,
                              struct mapping_walked *out, reshard_error *err);

/* Whether formats with these names hold names of any origin, though mostly their own: names change only where that is asked for. */
bool mapping_is_container(const char *name_space);

/* Whether the checkpoint's keys are recognised as its format's name space, or, if the format has none or is only a container of names,
 * as any. */
uint64_t mapping_names_of(const struct mapping_rules *rules, const char *name_space, const struct map_space *space);

#endif
