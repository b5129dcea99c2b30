/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Items beside weights whose format has no place for them: reshard_items.json, or that text in the header of the only file.
 *
 *   {"schema": "reshard-items/1", "items": [{"key": "a.b", "path": ["a", "b"], "value": …}, …]}
 *
 * A path has strings for keys, numbers for positions in lists and [n] for integer keys; it is left out where the key is the path. Values
 * are JSON as far as JSON tells them apart: none, truth values, whole numbers, numbers with a fraction, texts, lists, dictionaries. The
 * rest is an object of one member: {"__tuple__": […]}, {"__bytes__": hex}, {"__float__": "nan"}, {"__dict__": [[key, value], …]} for keys
 * that are no plain texts. What else there is (objects, tensors) is not kept.
 */
#ifndef FORMATS_KEPT_ITEMS_H
#define FORMATS_KEPT_ITEMS_H

#include "catalog/catalog.h"

#define KEPT_ITEMS_NAME "reshard_items.json"

/* The file's text; empty: no item is kept. A zeroed one is empty; release text. */
struct kept_items {
    struct buffer text;
    uint64_t in_vain;   /* bytes of items that were given up: after KEPT_IN_VAIN_MAX of them no other is tried */
    uint64_t bytes_max; /* of text, its end included; 0: no bound. To be set before */
    bool is_full;       /* the last item was given up for want of room */
};
#define KEPT_IN_VAIN_MAX ((uint64_t)64 << 20)

/* Appends an item. *is_kept false: not all of its value can be written, and nothing was appended. */
reshard_status kept_items_append(struct kept_items *items, const struct catalog *catalog, const struct catalog_item *item, bool *is_kept,
                                 reshard_error *err);

/* Ends the text of at least one item. */
reshard_status kept_items_end(struct buffer *text, reshard_error *err);

/* Adds the items of a file's text to a catalog that is being built. */
reshard_status kept_items_read(struct catalog *catalog, struct str text, reshard_error *err);

#endif
