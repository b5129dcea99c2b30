/* SPDX-License-Identifier: Apache-2.0 */
/* Names with holes: $LAYER_ID, $EXPERT_ID and * stand for decimal digits; everything else stands for itself. */
#ifndef MAPPING_MAP_PATTERN_H
#define MAPPING_MAP_PATTERN_H

#include "base/str.h"

#define MAP_HOLES_MAX 8

enum map_hole { MAP_HOLE_EXPERT, MAP_HOLE_LAYER, MAP_HOLE_OFFSET, MAP_HOLE_STAR, MAP_HOLE_KINDS };

extern const char *const map_hole_text[MAP_HOLE_KINDS]; /* "$EXPERT_ID", … */

struct map_pattern {
    int count;                              /* holes */
    struct str literals[MAP_HOLES_MAX + 1]; /* before, between and behind them */
    enum map_hole holes[MAP_HOLES_MAX];
};

/* Cuts a name at the holes of the given kinds (a bit mask of 1 << enum map_hole). whole_stars: a star counts only where it is a whole part
 * between dots. false: more than MAP_HOLES_MAX. */
bool map_pattern_of(struct str name, unsigned kinds, bool whole_stars, struct map_pattern *out);

/* Whether the whole name matches; values[kind] is set to the digits of each kind of hole that occurs. Equal holes need equal digits,
 * stars excepted. */
bool map_pattern_match(const struct map_pattern *pattern, struct str name, struct str values[MAP_HOLE_KINDS]);

/* Numeric order of two runs of ASCII digits of any length; equal numbers by their text. */
int map_digits_compare(struct str a, struct str b);

bool map_contains(struct str text, const char *part);

#endif
