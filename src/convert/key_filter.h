/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys are wanted: those that a pattern of include matches, or all if there is none, without those that one of exclude matches. A
 * pattern that matches no key at all is a mistake, and told with the keys that come nearest.
 */
#ifndef CONVERT_KEY_FILTER_H
#define CONVERT_KEY_FILTER_H

#include "convert/key_pattern.h"

#define KEY_NEAREST 3

/* A pattern, and the keys it was tried on that look most like it, as long as it has matched none. */
struct key_filter_pattern {
    struct key_pattern *pattern;
    struct str glob;       /* the caller's */
    bool has_matched;
    char *nearest[KEY_NEAREST];
    size_t scores[KEY_NEAREST];
    char *first; /* key; told where none is near */
};

struct key_filter_list {
    struct key_filter_pattern *patterns;
    uint32_t count;
};

struct key_filter {
    struct key_filter_list include, exclude;
};

/* Lists end with NULL, and may be NULL. A filter must be released, whatever this returns. */
reshard_status key_filter_begin(struct key_filter *filter, const char *const *include, const char *const *exclude, reshard_error *err);
reshard_status key_filter_wants(struct key_filter *filter, struct str key, bool *wanted, reshard_error *err);

/* When all keys have been asked for: USAGE names a pattern that has matched none. what: "include" and "exclude" are its options' names. */
reshard_status key_filter_check(const struct key_filter *filter, reshard_error *err);
void key_filter_release(struct key_filter *filter);

/* The same for patterns of other options, one by one. glob must outlive it. */
reshard_status key_filter_pattern_begin(struct key_filter_pattern *pattern, struct str glob, reshard_error *err);
reshard_status key_filter_pattern_match(struct key_filter_pattern *pattern, struct str key, bool *matched, reshard_error *err);
reshard_status key_filter_pattern_check(const struct key_filter_pattern *pattern, const char *option, reshard_error *err);
void key_filter_pattern_release(struct key_filter_pattern *pattern);

#endif
