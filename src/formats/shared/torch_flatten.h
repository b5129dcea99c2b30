/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The leaves of a nested object, as state dicts are read: dict, OrderedDict, defaultdict, Counter, list and tuple are opened where they
 * hold a tensor at any depth (the outermost always); everything else is a leaf. Iterative; a container that lies inside itself
 * is a leaf at that place.
 */
#ifndef FORMATS_SHARED_TORCH_FLATTEN_H
#define FORMATS_SHARED_TORCH_FLATTEN_H

#include "base/limits.h"
#include "base/value.h"
#include "catalog/catalog.h"

struct torch_leaf {
    struct value *value;
    const struct value *key;       /* of the last part; NULL: a member of a sequence, or the outermost */
    const struct path_part *parts; /* valid during the call */
    size_t part_count;
    bool is_container;             /* torch_flatten_structure: its members follow */
};

typedef reshard_status (*torch_leaf_sink)(const struct torch_leaf *leaf, void *context, reshard_error *err);

/* closed: keys of the outermost container whose members are leaves whatever they are; ends with NULL, may be NULL. */
reshard_status torch_flatten_closed(const struct value_graph *graph, const struct limits *limits, const char *const *closed,
                                    torch_leaf_sink sink, void *context, reshard_error *err);

/* The same, with every container opened that has members: leaves are tensors, plain values and empty containers. */
reshard_status torch_flatten_all(const struct value_graph *graph, const struct limits *limits, const char *const *closed,
                                 torch_leaf_sink sink, void *context, reshard_error *err);

/* The same, and the sink gets each container that is opened, too, before its members. */
reshard_status torch_flatten_structure(const struct value_graph *graph, const struct limits *limits, torch_leaf_sink sink, void *context,
                                       reshard_error *err);

/* The mapping that a dict-like object was called with, which comes before its members; NULL: none, or it is no such object. */
const struct value *torch_flatten_initial(const struct value *value);

/* Calls sink for every leaf, in order. Fails when sink does, or when containers that are reached over many paths make more
 * leaves than the graph can reasonably mean. */
reshard_status torch_flatten(const struct value_graph *graph, const struct limits *limits, torch_leaf_sink sink, void *context,
                             reshard_error *err);

#endif
