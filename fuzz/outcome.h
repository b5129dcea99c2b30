/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came of an input: statuses, where errors are said to be, and all that was read. replay_main.c compares it with what it was when it
 * was last looked at (outcomes/), so that a parser which takes or refuses anything else than before is seen. Words of messages are no part
 * of it, nor is what depends on the time.
 */
#ifndef FUZZ_OUTCOME_H
#define FUZZ_OUTCOME_H

#include "base/str.h"
#include "catalog/catalog.h"
#include "reshard/error.h"

/* A hash with more bytes behind those that it is of. */
uint64_t outcome_hash(uint64_t hash, const void *bytes, size_t size);

/* Adds to the outcome of the input that is being run. err as the call left it that gave the status, which is returned. */
reshard_status outcome_status(reshard_status status, const reshard_error *err);
void outcome_number(uint64_t number);
void outcome_bytes(const void *bytes, size_t size);
void outcome_text(struct str text);
void outcome_value(const struct value *value); /* as JSON, as far as it goes; NULL too */
void outcome_catalog(const struct catalog *catalog); /* tensors with their chunks, items, warnings */

/* The outcome so far; the next begins anew. */
uint64_t outcome_take(void);

#endif
