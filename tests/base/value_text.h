/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Value graphs from a short text, for tests. Python's notation, and:
 *   @module.name            a GLOBAL
 *   module.name(args)       a CALL; $new module.name(args) a NEW; $call callable (args) a CALL of anything
 *   …!**{k: v}              keyword arguments of a NEW
 *   …^state                 BUILD; …!{k: v} items set, …![a] items appended, …!$set[a] items added to a CALL or NEW
 *   $set[a] $frozenset[a] $pid payload $bytearray 'x'
 */
#ifndef TESTS_BASE_VALUE_TEXT_H
#define TESTS_BASE_VALUE_TEXT_H

#include "base/value.h"

/* Fails the test on a text that it cannot read. */
struct value *value_from_text(struct value_graph *graph, const char *text);

#endif
