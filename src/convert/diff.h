/* SPDX-License-Identifier: Apache-2.0 */
/* Diff: whether two checkpoints hold the same tensors and items, whatever their formats and layouts. */
#ifndef CONVERT_DIFF_H
#define CONVERT_DIFF_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/naming.h"
#include "convert/team.h"
#include "names/mapping_make.h"

/* What becomes of a tensor. */
enum diff_outcome { DIFF_SAME, DIFF_VALUES, DIFF_MISSING, DIFF_UNEXPECTED, DIFF_SHAPE, DIFF_DTYPE, DIFF_OUTCOMES };

struct diff_tensor {
    struct str key;
    enum diff_outcome outcome;
    uint64_t elements, bytes, changed_elements; /* changed: other bits, whatever the tolerance */
    double max_absolute, max_relative;          /* of what differs beyond the tolerance */
};

struct diff_summary {
    uint64_t tensors, by_outcome[DIFF_OUTCOMES];
    uint64_t items, different_items; /* items of a */
    uint64_t elements, bytes, changed_elements, changed_bytes; /* of tensors whose values were compared */
    uint64_t explained; /* tensors that differ, for which a cause was found */
    double max_absolute, max_relative;
};

struct diff_options {
    bool ignore_items;
    bool ignore_dtype; /* what is of another floating type in b is compared as that */
    bool explains; /* looks for causes: findings of the kind "cause" */
    struct diff_summary *summary; /* is filled unless diff stops with an error; may be NULL */
    void (*tensor)(void *context, const struct diff_tensor *tensor); /* is told each tensor, in no order; may be NULL */
    void *tensor_context;
    const char *const *include, *const *exclude; /* globs on keys, NULL-terminated; or NULL */
    struct naming_options naming;                /* of what comes out of a, behind the mapping */
    double absolute_tolerance, relative_tolerance; /* 0, 0: bit equality (NaN equals itself, 0 and -0 differ) */
    const struct mapping_options *map;             /* what comes out of a is compared with b; NULL: defaults */
    struct team *team; /* ranks that share the reading; all get the same result. NULL: none */
};

/* RESHARD_OK: same; RESHARD_DIFFERS: not, and the findings say why. */
reshard_status diff_run(struct checkpoint *a, struct checkpoint *b, const struct diff_options *options, const struct engine_options *engine,
                        struct finding_sink *findings, reshard_error *err);

#endif
