/* SPDX-License-Identifier: Apache-2.0 */
/* The state dict behind reshard_sharded, and its factories. */
#ifndef API_SHARDED_HANDLE_H
#define API_SHARDED_HANDLE_H

#include "reshard/sharded.h"

#include "api/versioned.h"
#include "parallel/sharded_dict.h"

struct factory {
    struct sharded_dict whole;  /* one tensor: the factory's own */
    reshard_sharded_factory given;
    reshard_sharded *parts;     /* NULL: not expanded yet */
};

struct reshard_sharded {
    struct sharded_dict dict;   /* of factories what they were expanded to, too */
    struct factory *factories;
    size_t factory_count, factory_capacity;
};

static inline struct str given_str(reshard_str s)
{
    return (struct str){ s.data, s.data ? s.size : 0 };
}

/* Megatron's warning about common values of a rank that differ from rank 0's, appended to out; nothing if they do not. */
reshard_status common_difference(const struct sharded_dict *first, const struct sharded_dict *other, int64_t rank, struct buffer *out,
                                 reshard_error *err);

#endif
