/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a dict in a graph of ours, set one after the other; whether memory was enough is asked once. */
#ifndef FORMATS_SHARED_VALUE_EDIT_H
#define FORMATS_SHARED_VALUE_EDIT_H

#include "base/value.h"

struct value_edit {
    struct value_graph *graph;
    struct value *members; /* DICT */
    bool failed;
};

/* Sets a member; one that is not there is added if must_be. value NULL: no memory for it. */
void value_edit_set(struct value_edit *editing, const char *name, struct value *value, bool must_be);
void value_edit_number(struct value_edit *editing, const char *name, int64_t number, bool must_be);
void value_edit_bool(struct value_edit *editing, const char *name, bool boolean);
/* Takes the member out of a dict of ours, if it is there. */
void value_edit_remove(struct value *dict, const char *name);
void value_edit_text(struct value_edit *editing, const char *name, const char *text);

#endif
