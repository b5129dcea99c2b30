/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs that try a mapping text by hand: what it is, what it becomes, whether it fits, what it makes, and its inverse. */
#ifndef NAMES_MAP_VERB_H
#define NAMES_MAP_VERB_H

#include "names/map_session.h"
#include "names/map_values.h"

enum map_verb { MAP_VERB_PARSE, MAP_VERB_EXPAND, MAP_VERB_CHECK, MAP_VERB_EVAL, MAP_VERB_INVERT };

struct map_verb_input {
    struct map_session_input session;                /* source and target of it are set from these */
    const struct map_description *source, *target; /* target may be NULL; so may source be, of MAP_VERB_PARSE */
};

/* RESHARD_ERR_USAGE if the text does not fit: err holds the first diagnosis, the output all of them. Release the output in either case. */
reshard_status map_verb_run(enum map_verb verb, const struct map_verb_input *input, struct map_session_output *output, reshard_error *err);

#endif
