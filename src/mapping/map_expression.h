/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that are said by name or computed: `kv_width = num_key_value_heads * head_dim`, `when="num_key_value_heads == 1"`. Ours, not
 * upstream's. Everything is a whole number that is not negative; a division without a whole result is an error.
 */
#ifndef MAPPING_MAP_EXPRESSION_H
#define MAPPING_MAP_EXPRESSION_H

#include "mapping/map_syntax.h"

/* Value of digits of any script; leading zeros are allowed, as upstream allows them. false: too large, or no digits. */
bool map_number_value(struct str text, int64_t *out);

/* Without the blanks and tabs around it. */
struct str map_trimmed(struct str text);

/* A word that is a number or a constant; constants may be NULL. false: it was diagnosed. */
bool map_bound_value(struct str word, const struct map_constants *constants, struct map_span span, struct map_diagnoses *diagnoses,
                     int64_t *out);

/* expression = product { ( "+" | "-" ) product }, from *token on, which is moved behind it. false: it was diagnosed. */
bool map_expression_read(struct str text, const struct map_token **token, const struct map_constants *constants,
                         struct map_diagnoses *diagnoses, int64_t *out);

/* Whether a condition compares numbers (it names a key otherwise). */
bool map_is_comparison(struct str text);

/* comparison = word ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) word. false: it was diagnosed. */
bool map_comparison_holds(struct str text, const struct map_constants *constants, struct map_span span, struct map_diagnoses *diagnoses,
                          bool *holds);

#endif
