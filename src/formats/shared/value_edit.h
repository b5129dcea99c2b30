/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a dict in a graph of ours, set one after the other; whether memory was enough is asked once. */
#ifndef FORMATS_SHARED_VALUE_EDIT_H
#define FORMATS_SHARED_VALUE_EDIT_H

#include "base/value.h"

struct dist_editing {
    struct value_graph *graph;
    struct value *members; /* DICT */
    bool failed;
};

/* Sets a member; one that is not there is added if must_be. value NULL: no memory for it. */
void dist_set(struct dist_editing *editing, const char *name, struct value *value, bool must_be);
void dist_set_number(struct dist_editing *editing, const char *name, int64_t number, bool must_be);
void dist_set_bool(struct dist_editing *editing, const char *name, bool boolean);
void dist_set_text(struct dist_editing *editing, const char *name, const char *text);

#endif
