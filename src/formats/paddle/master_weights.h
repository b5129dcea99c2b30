/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that saves without stopping, or shares weights like their states, leaves out every weight that has a float32 copy, and casts
 * that copy when it resumes (round to nearest even). So do we: such a weight is a tensor whose elements are stored as those of its copy.
 */
#ifndef FORMATS_PADDLE_MASTER_WEIGHTS_H
#define FORMATS_PADDLE_MASTER_WEIGHTS_H

#include "catalog/catalog.h"

/* Behind a weight's key: its float32 copy. */
#define MASTER_SUFFIX ".w_0"

/* A weight that is one parameter of the model with another one, whose copy is its own too. */
struct master_alias {
    struct str key, of;
};

/* Adds the weights that are there as master weights alone. first: the first tensor that may be one; those before it are weights, whose type
 * the missing ones have. */
reshard_status master_weights_cast(struct catalog *catalog, uint32_t first, const struct master_alias *aliases, uint32_t alias_count,
                                   reshard_error *err);

#endif
