/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inverses: a text that makes the source again from the target, and the proof that it does.
 *
 * Statements are turned round one by one, the last one first. What a statement does not say (the type before a cast, the extents of joined
 * parts) is taken from a run of the mapping. Whether the result is exact is decided by composing both mappings, never by the rules alone.
 */
#ifndef MAPPING_MAP_INVERT_H
#define MAPPING_MAP_INVERT_H

#include "mapping/map_engine.h"

/*
 * Appends the inverse of `program` to out, a statement a line. With `expanded` (the same program behind its macros, which was run)
 * statements keep their placeholders and flags; to turn the expanded program itself round pass it as both. false: some statement cannot be
 * turned round in the language; if diagnoses is not NULL it was told which.
 */
bool map_invert(const struct map_program *program, const struct map_program *expanded, const struct map_result *result, struct buffer *out,
                struct map_diagnoses *diagnoses);

/*
 * Whether `forward` (source -> target) and then `back` (target -> source) gives every tensor of the source its own elements. Beta powers do
 * not count: those of joined weights are one and the same. *bad is a source tensor that does not come back.
 */
reshard_status map_compose_is_identity(const struct map_result *forward, const struct map_result *back, const struct map_space *source,
                                       const struct limits *limits, bool *is_identity, uint32_t *bad, reshard_error *err);

#endif
