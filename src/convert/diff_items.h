/* SPDX-License-Identifier: Apache-2.0 */
/* Items of two checkpoints: whether they are built alike, and whether tensors in them hold the same. */
#ifndef CONVERT_DIFF_ITEMS_H
#define CONVERT_DIFF_ITEMS_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/team.h"
#include "kernels/difference.h"

struct diff_items {
    struct checkpoint *a, *b;
    struct finding_sink *findings; /* of the kind "item" */
    const struct tolerance *tolerance; /* of tensors in items */
    struct team *team;
    uint64_t items, different; /* out: items of a, and how many differ or are on one side alone */
};

reshard_status diff_items_compare(struct diff_items *diff, const struct engine_options *engine, reshard_error *err);

#endif
