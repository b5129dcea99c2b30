/* SPDX-License-Identifier: Apache-2.0 */
/* Items that callers give: as JSON texts, and as values of a list. */
#ifndef API_ITEMS_H
#define API_ITEMS_H

#include "reshard/state.h"

#include "base/value.h"
#include "formats/live.h"

/* The root is a DICT of what was added. */
struct reshard_items {
    struct value_graph graph;
};

/* A file that is carried along, as a value of BYTES. */
reshard_status item_side_file(struct source *source, const struct catalog_item *item, struct value_graph *graph, struct value **out,
                              reshard_error *err);

/* Both lists as one, which is malloc'd, and points to what it was made of. values may be NULL. Free *out on failure too. */
reshard_status items_take(const reshard_state_item *items, size_t count, size_t stride, const reshard_items *values,
                          struct live_item **out, size_t *out_count, reshard_error *err);

#endif
