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

struct map_case {
    const char *why, *text, *expected;
};

enum map_reading { FORWARDS, STRICT, BACKWARDS };

/* Appends what a test looks at of a run. */
typedef void (*map_print)(const struct map_run *run, const char *text, enum map_reading reading, struct buffer *out);

/* Runs each text over the source that make_source fills; fails the test where what is printed is not what is expected. */
void map_cases_check(const struct map_case *cases, size_t count, enum map_reading reading, void (*make_source)(struct map_space *space),
                     map_print print);
#define MAP_CASES_CHECK(cases, ...) map_cases_check(cases, sizeof(cases) / sizeof(cases[0]), __VA_ARGS__)

#endif
