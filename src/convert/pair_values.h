/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between tensors of two checkpoints, element by element, in one pass over both and bounded memory (lockstep.h). */
#ifndef CONVERT_PAIR_VALUES_H
#define CONVERT_PAIR_VALUES_H

#include "convert/finding.h"
#include "convert/lockstep.h"
#include "convert/team.h"
#include "kernels/difference.h"

/* Pairs of tensors of one type and shape. */
struct pair_values {
    const struct engine_source *a, *b;
    const struct engine_made *made; /* how a's tensors are made; NULL: they are those of its catalog */
    const struct catalog *catalog;  /* whose tensors are a's */
    const struct lockstep_pair *pairs;
    uint32_t count;
    const struct tolerance *tolerance;
    const struct finding_sink *findings; /* ends it when its receiver does */
    struct team *team;                   /* ranks that share the reading; all get all results. NULL: none */
};

/* results, by pair: what is there is lost. Resolves nothing: do it before. */
reshard_status pair_values_compare(const struct pair_values *values, const struct engine_options *engine, struct difference *results,
                                   reshard_error *err);

#endif
