/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a selection is going to call the source's tensors, and which of them it wants: asked before it is made, by whoever compares the
 * source with a reference, whose names are those of the target.
 */
#ifndef CONVERT_SELECTED_NAMES_H
#define CONVERT_SELECTED_NAMES_H

#include "convert/selection.h"

struct selected_names {
    const struct catalog *catalog;
    struct naming naming;
    struct key_filter filter; /* of new names */
    struct str *keys;         /* new ones, by tensor; hidden tensors keep theirs */
    uint8_t *is_wanted;       /* by tensor */
    uint32_t *tensors;        /* by number in naming.made, where names change */
};

/* Release it whatever comes back. */
reshard_status selected_names_make(const struct catalog *catalog, const struct selection_options *options, struct selected_names *out,
                                   reshard_error *err);
void selected_names_release(struct selected_names *names);

/* The tensor that gets this name, or CATALOG_NONE. */
uint32_t selected_names_find(const struct selected_names *names, struct str key);

#endif
