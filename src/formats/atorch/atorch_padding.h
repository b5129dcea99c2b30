/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between and behind the parameters of a rank's piece, and what it holds. */
#ifndef FORMATS_ATORCH_PADDING_H
#define FORMATS_ATORCH_PADDING_H

#include "formats/atorch/atorch_model.h"

struct atorch_gap {
    int64_t place, count; /* elements of the rank's piece */
};

struct atorch_gaps {
    const struct atorch_model *model;
    const struct atorch_unit *unit;
    int64_t from, at;     /* of the piece; what is behind the last part, in the unit's flat parameter */
    uint32_t next;        /* parameter */
};

void atorch_gaps_begin(const struct atorch_model *model, const struct atorch_unit *unit, uint32_t rank, struct atorch_gaps *out);
bool atorch_gaps_next(struct atorch_gaps *gaps, struct atorch_gap *out);

/* Elements of padding: 42 with original parameters, else 0. false: the type has no 42 that is known. */
bool atorch_padding_fill(enum dtype dtype, bool is_original, uint8_t *out, size_t count);

#endif
