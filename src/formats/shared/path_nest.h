/* SPDX-License-Identifier: Apache-2.0 */
/* A nested object from paths, as values: dicts, and lists where all members have positions. */
#ifndef FORMATS_SHARED_PATH_NEST_H
#define FORMATS_SHARED_PATH_NEST_H

#include "base/value.h"
#include "formats/shared/path_tree.h"

struct nest {
    struct path_tree tree;
    struct value **made; /* by node: a leaf, or from nest_finish the container */
    uint32_t capacity;
    struct value_graph *graph;
};

/* The nodes of values come from graph. */
bool nest_begin(struct nest *nest, struct value_graph *graph);

/* *is_taken: the path runs through a leaf, or ends where something is already. false: no memory. */
bool nest_put(struct nest *nest, const struct path_part *parts, size_t count, struct value *leaf, bool *is_taken);

/* Makes the containers; graph->root is the outermost. */
reshard_status nest_finish(struct nest *nest, reshard_error *err);
void nest_release(struct nest *nest);

#endif
