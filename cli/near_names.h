/* SPDX-License-Identifier: Apache-2.0 */
/* "did you mean": of the names offered, those that differ little from a word that is none of them. */
#ifndef CLI_NEAR_NAMES_H
#define CLI_NEAR_NAMES_H

#include <stddef.h>

#define NEAR_NAMES_MAX 3

struct near_names {
    const char *word, *prefix; /* what stands before a name in the hint: "--", or NULL */
    const char *names[NEAR_NAMES_MAX]; /* the nearest first */
    size_t distances[NEAR_NAMES_MAX], count;
};

/* The name must outlive the struct. */
void near_names_offer(struct near_names *near, const char *name);

/* The name is what is meant by a word that others use: then guesses do not count. */
void near_names_know(struct near_names *near, const char *word, const char *name);

/* "did you mean 'a' or 'b'?", or the other text if nothing is near. Returns out. */
const char *near_names_hint(const struct near_names *near, const char *otherwise, char *out, size_t size);

#endif
