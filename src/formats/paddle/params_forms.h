/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one nested object that several files of paddle.save are together, for catalog.tree: paths alone do not tell a tuple from a list, nor
 * what was empty. What is in it is copied, since each file's values are numbered by themselves.
 */
#ifndef FORMATS_PADDLE_PARAMS_FORMS_H
#define FORMATS_PADDLE_PARAMS_FORMS_H

#include "formats/paddle/params.h"

struct params_forms {
    struct value_graph graph;
    struct value **pairs; /* key, value, … of the outermost dict */
    size_t count, capacity;
    struct name_map seen; /* keys */
};

/* Adds a value of a file's graph under a key. */
reshard_status params_forms_add(struct params_forms *forms, const struct source *source, uint32_t file, struct str key,
                                const struct value *value, reshard_error *err);

/* Adds the containers among the members of a file's dict, each under its own key unless something is there, but for one key. */
reshard_status params_forms_add_members(struct params_forms *forms, const struct source *source, uint32_t file, const char *left_out,
                                        reshard_error *err);

/* Gives what was added to the source's catalog. */
reshard_status params_forms_keep(struct params_forms *forms, struct source *source, reshard_error *err);
void params_forms_release(struct params_forms *forms);

#endif
