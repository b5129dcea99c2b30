/* SPDX-License-Identifier: Apache-2.0 */
/* Items that callers give: as JSON texts, and as values of a list. */
#ifndef API_ITEMS_H
#define API_ITEMS_H

#include "reshard/state.h"

#include "base/value.h"
#include "formats/live.h"

/* An item that is a file of torch.save; both lie in the arena of the list's graph. */
struct items_file {
    struct str key, bytes;
};

/* The root is a DICT of what was added as values. */
struct reshard_items {
    struct value_graph graph;
    struct items_file *files;
    size_t file_count, file_capacity;
};

/* The catalog's number of an item that is seen. */
reshard_status item_number(const reshard_checkpoint *checkpoint, size_t index, uint32_t *out, reshard_error *err);

/* A file that is carried along, as a value of BYTES. */
reshard_status item_side_file(struct source *source, const struct catalog_item *item, struct value_graph *graph, struct value **out,
                              reshard_error *err);

/* Appends a copy. */
reshard_status items_add_file(struct reshard_items *items, struct str key, struct str bytes, reshard_error *err);

/* Both lists as one, which is malloc'd, and points to what it was made of. values may be NULL. Free *out on failure too. */
reshard_status items_take(const reshard_state_item *items, size_t count, size_t stride, const reshard_items *values,
                          struct live_item **out, size_t *out_count, reshard_error *err);

#endif
