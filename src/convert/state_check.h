/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with weights as such, whatever the format: optimizer states that are missing, and weights that are each other's copies. */
#ifndef CONVERT_STATE_CHECK_H
#define CONVERT_STATE_CHECK_H

#include "convert/checkpoint.h"
#include "convert/finding.h"
#include "convert/team.h"

/*
 * Whether every trainable weight has the states that training needs to go on: a failure for each kind of state that some weights lack.
 * Buffers need none, and weights that are the same bytes as another with states share its. Reads those.
 */
reshard_status state_check_optimizer(struct checkpoint *checkpoint, struct team *team, const struct engine_options *engine,
                                     struct finding_sink *findings, reshard_error *err);

/* A warning for experts of one layer that are the very same bytes, and a note for embeddings that are. Reads both. */
reshard_status state_check_copies(struct checkpoint *checkpoint, struct team *team, const struct engine_options *engine,
                                  struct finding_sink *findings, reshard_error *err);

#endif
