/* SPDX-License-Identifier: Apache-2.0 */
/* A nested object from paths: dicts, and lists where all members have positions. */
#ifndef FORMATS_SHARED_PATH_NEST_H
#define FORMATS_SHARED_PATH_NEST_H

#include "base/name_map.h"
#include "base/value.h"
#include "catalog/catalog.h"

/* A place in the nested object. Children have larger numbers than their parents. */
struct nest_node {
    struct path_part part;
    struct value *leaf;
    uint32_t first_child, last_child, next_sibling, child_count;
    bool is_list;     /* all children are list positions so far */
    int64_t index_max;
};

struct nest {
    struct nest_node *nodes;
    uint32_t count, capacity;
    struct name_map children; /* parent, kind, key -> node number - 1 */
    struct buffer scratch;
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
