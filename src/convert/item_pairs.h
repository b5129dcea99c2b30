/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which items of two checkpoints are the same one: by path and what its parts are, the others by key; of several of one name the first is
 * that of the first.
 */
#ifndef CONVERT_ITEM_PAIRS_H
#define CONVERT_ITEM_PAIRS_H

#include "base/name_map.h"
#include "catalog/catalog.h"

struct item_side {
    const struct catalog *catalog;
    uint32_t *other;         /* by item: that of the other side, or CATALOG_NONE */
    struct name_map lone;    /* keys of items that had none when all were matched: number -> lone_items[number], the last of that key */
    uint32_t *lone_items;
};

struct item_pairs {
    struct item_side sides[2];
};

/* To be released, on failure too. */
reshard_status item_pairs_find(const struct catalog *a, const struct catalog *b, struct item_pairs *out, reshard_error *err);
void item_pairs_release(struct item_pairs *pairs);

/* An item of that key that still has no partner, or CATALOG_NONE. */
uint32_t item_side_lone(const struct item_side *side, struct str key);

#endif
