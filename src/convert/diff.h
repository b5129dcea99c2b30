/* SPDX-License-Identifier: Apache-2.0 */
/* Diff: whether two checkpoints hold the same tensors and items, whatever their formats and layouts. */
#ifndef CONVERT_DIFF_H
#define CONVERT_DIFF_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "names/mapping_make.h"

struct diff_options {
    bool ignore_items;
    const char *const *include, *const *exclude; /* globs on keys, NULL-terminated; or NULL */
    double absolute_tolerance, relative_tolerance; /* 0, 0: bit equality (NaN equals itself, 0 and -0 differ) */
    const struct mapping_options *map;             /* what comes out of a is compared with b; NULL: defaults */
};

/* RESHARD_OK: same; RESHARD_DIFFERS: not, and the findings say why. */
reshard_status diff_run(struct checkpoint *a, struct checkpoint *b, const struct diff_options *options, const struct engine_options *engine,
                        struct finding_sink *findings, reshard_error *err);

#endif
