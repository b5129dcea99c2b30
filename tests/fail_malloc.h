/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fails one allocation of the code under test. Every test program is linked so that malloc, calloc, realloc and reallocarray of
 * its objects come through here, and so do those of arenas; what libraries allocate does not. The usual loop:
 *
 *     unsigned long nth = 0;
 *     do {
 *         fail_malloc_at(++nth);
 *         reshard_status status = operation(&err);
 *     } while (fail_malloc_was_hit()); // also switches it off
 */
#ifndef TESTS_FAIL_MALLOC_H
#define TESTS_FAIL_MALLOC_H

#include <stdbool.h>

/* The nth allocation from now, counted from 1, fails, and so does a malloc right behind it that makes do with less, as arenas do; those
 * after it succeed again. */
void fail_malloc_at(unsigned long nth);
void fail_malloc_once_at(unsigned long nth); /* that alone */

/* The same for what is taken from arenas: everything counts there, whether memory for it is there already or not. */
void fail_arena_at(unsigned long nth);

/*
 * The number to try after nth, for loops that are long: where RESHARD_EVERY_FAULT is set, as `make faults` does, the next one; else one up
 * to FAIL_STEP further on, or to RESHARD_FAULT_STEP as `make asan` says, drawn by the seed RESHARD_FAULT_SEED (1). The first ten are always
 * tried.
 */
#define FAIL_STEP 19
unsigned long fail_step_max(void);
unsigned long fail_next(unsigned long nth);
/* How many times as far apart as in `check` failures are to lie: 1, or what `make asan` says. */
unsigned long fail_stride(void);

/* Allocations of the kind since then; as far as the failure, if it has happened. */
unsigned long fail_malloc_calls(void);

/* Whether the failure has happened. No later allocation fails. */
bool fail_malloc_was_hit(void);

#endif
