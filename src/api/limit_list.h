/* SPDX-License-Identifier: Apache-2.0 */
/* A struct of limits as the list of names and values that the public functions take. */
#ifndef API_LIMIT_LIST_H
#define API_LIMIT_LIST_H

#include "reshard/reshard.h"

#include "base/limits.h"

enum {
#define X(limit, default_value, text) LIMIT_LIST_##limit,
    LIMITS(X)
#undef X
    LIMIT_LIST_SIZE
};

struct limit_list {
    reshard_limit limits[LIMIT_LIST_SIZE];
    size_t count;
};

static inline void limit_list_fill(struct limit_list *list, const struct limits *limits)
{
    list->count = 0;
#define X(limit, default_value, text) list->limits[list->count++] = (reshard_limit){ #limit, limits->limit, NULL };
    LIMITS(X)
#undef X
}

#endif
