/* SPDX-License-Identifier: Apache-2.0 */
/* A nested object from paths, as values: dicts, and lists where all members have positions. */
#ifndef FORMATS_SHARED_PATH_NEST_H
#define FORMATS_SHARED_PATH_NEST_H

#include "base/value.h"
#include "formats/shared/path_form.h"

struct nest {
    struct path_tree tree;
    struct value **made; /* by node: a leaf, or from nest_finish the container */
    uint32_t capacity;
    struct value_graph *graph;
    uint32_t form_count; /* nodes of the graph of the source's object */
};

/* The nodes of values come from graph. */
bool nest_begin(struct nest *nest, struct value_graph *graph);

/* *is_taken: the path runs through a leaf, or ends where something is already. false: no memory. */
bool nest_put(struct nest *nest, const struct path_part *parts, size_t count, struct value *leaf, bool *is_taken);

/* Containers, keys and the order of members shall be those of the source's object as far as it kept one. Before nest_finish. */
reshard_status nest_take_form(struct nest *nest, const struct catalog *source, const struct limits *limits, reshard_error *err);

/* Makes the containers; graph->root is the outermost. */
reshard_status nest_finish(struct nest *nest, reshard_error *err);
void nest_release(struct nest *nest);

#endif
