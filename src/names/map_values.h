/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A name space that is described in JSON, with the small values that a description may carry, and what a mapping makes of them.
 * It is for trying a mapping by hand and for tests: element by element, in memory.
 */
#ifndef NAMES_MAP_VALUES_H
#define NAMES_MAP_VALUES_H

#include "mapping/map_engine.h"

struct map_description {
    struct map_space space;
    void **values;   /* by tensor: elements in native order, or NULL; NULL if no tensor has any */
    double initial;  /* of what no statement writes */
};

/* Reads {"tensors": {key: {"dtype", "shape", "shards"?, "data"?}}, "initial"?}. Release *out on failure too. */
reshard_status map_description_read(struct str json, const struct limits *limits, struct map_description *out, reshard_error *err);

/* Appends {"key": {"dtype", "shape", "data"}, …}, the tensors of the result's target, sorted by key. Every source tensor that is copied
 * from needs values. initial fills what nothing writes. */
reshard_status map_values_evaluate(const struct map_result *result, const struct map_description *source, double initial,
                                   const struct limits *limits, struct buffer *out, reshard_error *err);

/* The integers and truth values (0 and 1) among the members of a JSON object, such as a config.json, as fixed constants. */
reshard_status map_config_constants(struct str json, const struct limits *limits, struct map_constants *out, reshard_error *err);

void map_description_release(struct map_description *description);

#endif
