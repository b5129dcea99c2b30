/* SPDX-License-Identifier: Apache-2.0 */
/* What a mapping that fits does to a checkpoint as a whole: which elements of the source are lost, which arrive twice, what is only kept.
 */
#ifndef MAPPING_MAP_REPORT_H
#define MAPPING_MAP_REPORT_H

#include "mapping/map_engine.h"

/* What becomes of one tensor of the source. */
struct map_use {
    int64_t elements, read; /* of the tensor; copied, each as often as it is */
    bool overlaps;          /* some element is copied more than once */
    bool is_whole;          /* some copy is the whole tensor */
};

struct map_report {
    struct arena arena;
    struct map_use *uses;            /* by source tensor */
    uint32_t *first_copy, *by_source; /* copies by source tensor: by_source[first_copy[t] …) */
    uint32_t unused, partly_used, doubled; /* source tensors; partly_used counts only what surely loses elements */
    uint32_t removed_unused;         /* of the unused: removed by a statement */
    enum map_origin *origins;        /* by target tensor: kept is also what statements make of removed names alone */
    uint32_t assigned, identity, kept; /* target tensors */
    uint32_t kept_in_part;           /* of the first two: some elements come from removed names, and keep their initial value */
    uint32_t rounding;               /* copies whose casts lose digits */
    bool is_bijective;               /* every element of the source arrives exactly once, every element of the target is written */
};

reshard_status map_report_make(const struct map_result *result, const struct map_space *source, const struct limits *limits,
                               struct map_report *out, reshard_error *err);

/* Appends a summary for people, or one JSON object. */
bool map_report_print(const struct map_report *report, const struct map_result *result, const struct map_space *source, struct buffer *out);
bool map_report_json(const struct map_report *report, const struct map_result *result, const struct map_space *source, struct buffer *out);

void map_report_release(struct map_report *report);

/* Whether casting from one type to another and back always gives the same value. */
bool map_cast_is_exact(enum dtype source, enum dtype target);

#endif
