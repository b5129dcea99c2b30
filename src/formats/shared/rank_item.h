/* SPDX-License-Identifier: Apache-2.0 */
/* Items that one rank has otherwise than the first, where ranks save files of their own: "rank_N.KEY" beside "KEY". */
#ifndef FORMATS_SHARED_RANK_ITEM_H
#define FORMATS_SHARED_RANK_ITEM_H

#include "catalog/catalog.h"

struct rank_item {
    struct str key;
    struct path_part *parts;
    size_t part_count;
};

/* The key and the path that begin with the word of the rank; no path (part_count 0) stays none. In arena. */
reshard_status rank_item_name(struct arena *arena, uint32_t rank, struct str key, const struct path_part *parts, size_t part_count,
                              struct rank_item *out, reshard_error *err);

/* *out: whether a storage lies somewhere inside a value of a graph of so many nodes. Numbers of storages are those of one file, so that
 * such values of two ranks are never said to be the same. false: the work is spent, or there is no memory. */
bool rank_item_has_storage(const struct value *value, size_t nodes, struct work *work, bool *out);

/* Of "rank_3.KEY": 3 and KEY. false: it is of no single rank. */
bool rank_item_read(struct str key, uint32_t *rank, struct str *base);

#endif
