/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a mapping text over name spaces made by hand, for tests of the engine. */
#ifndef TESTS_MAP_RUN_H
#define TESTS_MAP_RUN_H

#include "mapping/map_engine.h"
#include "mapping/map_expand.h"

struct map_run {
    struct map_diagnoses diagnoses;
    struct map_tokens tokens;
    struct map_constants constants;
    struct map_program written, expanded;
    struct map_result result;
};

/* Lexes, parses, expands, executes. Diagnoses stop it between the stages, as in the library. */
reshard_status map_run(struct map_run *run, const char *text, const struct map_space *source, const struct map_space *target, bool strict,
                       reshard_error *err);
reshard_status map_run_backwards(struct map_run *run, const char *text, const struct map_space *source, const struct map_space *target,
                                 reshard_error *err);
void map_run_release(struct map_run *run);

#endif
