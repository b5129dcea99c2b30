/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists that torch's loader cannot make again. A position in planner_data makes it build the whole list, and it then asks for every
 * position; if some are not stored (left out by the user, or dropped), loading fails. And it opens lists only where a tensor or a dict is
 * in them: others it asks for as one value. Members of such lists are written under their flat name instead.
 */
#ifndef FORMATS_DCP_DCP_LISTS_H
#define FORMATS_DCP_DCP_LISTS_H

#include "catalog/catalog.h"

struct dcp_lists {
    struct name_map lists;     /* by path of the list */
    struct name_map positions; /* by path of the member */
    struct dcp_list {
        uint64_t count;        /* different positions */
        int64_t last;          /* highest position */
        bool is_open;          /* a tensor or a dict is in it */
    } *found;                  /* by lists */
    uint32_t capacity;
    struct buffer key;
};

/* Notes the lists on a path that will be stored. */
reshard_status dcp_lists_add(struct dcp_lists *lists, const struct path_part *parts, size_t count, bool is_tensor, reshard_error *err);

static inline bool dcp_list_has_hole(const struct dcp_list *list)
{
    return (uint64_t)list->last + 1 != list->count;
}

/* Whether a list on the path, all being added, cannot be made again; false also without memory. */
bool dcp_lists_are_flat(struct dcp_lists *lists, const struct path_part *parts, size_t count);
void dcp_lists_release(struct dcp_lists *lists);

#endif
