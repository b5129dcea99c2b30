/* SPDX-License-Identifier: Apache-2.0 */
/* How the arguments of a run decide the buckets of its optimizer. */
#ifndef PARALLEL_FLAT_BUFFER_RULES_H
#define PARALLEL_FLAT_BUFFER_RULES_H

#include "base/value.h"
#include "parallel/flat_buffers.h"

/* How a rank was run: the attributes of its args (a DICT, or NULL: not known) and its pipeline rank. */
struct training_run {
    const struct value *args;
    int64_t stage;
    int64_t elements; /* of all parameters of the rank, of both optimizers; 0: of those that are given */
};
reshard_status flat_buffer_rules_of(const struct training_run *run, const struct rank_parameter *parameters, uint32_t count, bool is_expert,
                                    struct flat_buffer_rules *out, reshard_error *err);

#endif
