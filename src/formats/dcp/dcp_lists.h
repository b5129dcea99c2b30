/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists with holes. A position in planner_data makes torch's loader build the whole list, and it then asks for every position; if some are
 * not stored (left out by the user, or dropped), loading fails. Members of such lists are written under their flat name instead.
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
    } *found;                  /* by lists */
    uint32_t capacity;
    struct buffer key;
};

/* Notes the lists on a path that will be stored. */
reshard_status dcp_lists_add(struct dcp_lists *lists, const struct path_part *parts, size_t count, reshard_error *err);

/* Whether a list on the path, all being added, has a hole; false also without memory. */
bool dcp_lists_has_hole(struct dcp_lists *lists, const struct path_part *parts, size_t count);
void dcp_lists_release(struct dcp_lists *lists);

#endif
