/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload check: one pass over the stored bytes of every chunk, in the order in which they lie on disk, by several threads. Each byte is
 * read once for all purposes: stored checksums, and with deep the value statistics.
 */
#ifndef CONVERT_PAYLOAD_CHECK_H
#define CONVERT_PAYLOAD_CHECK_H

#include "convert/finding.h"
#include "convert/team.h"
#include "convert/value_stats.h"
#include "engine/engine.h"
#include "formats/driver.h"

/* stats, by catalog tensor, may be NULL: then only checksums are checked. is_chosen: by catalog tensor, whether it is looked at; NULL: all.
 * Chunks must be resolved. Of a team each rank reads some, and all get the same. */
reshard_status payload_check(struct source *source, const bool *is_chosen, struct value_stats *stats, struct team *team,
                             const struct engine_options *options, struct finding_sink *findings, reshard_error *err);

#endif
