/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which modules FSDP1 wrapped, where no file says it but the way in which optimizer state is cut does. A unit is the flat parameter of one
 * wrapped module (flat_unit.h). Policies wrap modules of some kinds, so what is tried are paths of modules with numbers left open, up to
 * WRAP_FIT_PATHS of them together, beside the root, and the alignments that there are. What is seen must come out exactly, and in one way.
 */
#ifndef PARALLEL_WRAP_FIT_H
#define PARALLEL_WRAP_FIT_H

#include "base/error.h"
#include "base/str.h"
#include "base/work.h"

#include <stdbool.h>
#include <stdint.h>

#define WRAP_FIT_PATHS 3

struct wrap_parameter {
    struct str name;
    int64_t elements;
};

struct wrap_place {
    uint32_t unit; /* numbered as their modules come in the model, the root first; found by pieces, as their first parameters come */
    int64_t start; /* in the unit's flat parameter */
};

struct wrap_units {
    struct wrap_place *places; /* by parameter */
    int64_t *ends;             /* by unit: of its last parameter */
    int64_t alignment;         /* elements at whose multiples parameters begin */
    int64_t other_alignment;   /* that gives the same places, where it is open; else 0 */
    uint32_t count;
};

/* What is seen: pieces, or sizes. */
struct wrap_sight {
    const struct wrap_parameter *parameters; /* of the model, in its order: a module's own before those of modules in it */
    uint32_t count;
    uint32_t shards;       /* pieces of each flat parameter */
    const int64_t *pieces; /* elements of parameter i in shard s: [i * shards + s]; -1: not seen. NULL: sizes */
    const int64_t *sizes;  /* elements of each shard of unit u, units in order; parameters then lie without alignment */
    uint32_t size_count;
    const char *rule; /* the one way to be tried (wrap_rule.h); NULL: all */
    uint32_t
        element_bytes; /* pieces: of the parameters' type. FSDP1 computes in that or in one of two bytes, and aligns to 16 bytes of it */
};

enum wrap_fit { WRAP_FITS_NOT, WRAP_FITS, WRAP_FITS_TWICE };

/* *out is filled where there is one way. WRAP_FITS_TWICE: what is seen does not tell one way from another. */
reshard_status wrap_fit(const struct wrap_sight *sight, struct work *work, enum wrap_fit *found, struct wrap_units *out,
                        reshard_error *err);
void wrap_units_release(struct wrap_units *units);

/* Whether parameters lie in the same places. */
bool wrap_units_equal(const struct wrap_units *a, const struct wrap_units *b, uint32_t count);

/* The units of a rule (wrap_rule.h), with that alignment in elements. */
reshard_status wrap_units_of_rule(const struct wrap_parameter *parameters, uint32_t count, const char *rule, int64_t alignment,
                                  struct wrap_units *out, reshard_error *err);

#endif
