/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns on keys: globs that select, and renames. Globs know *, ?, [set], {one,other} and {0..15}, numbers from 0 to 15, with zeros
 * before them if the bounds have some; * also stands for dots, and whatever else is not closed or not complete stands for itself. Renames
 * are s/RE/NEW/ with a Perl-compatible regular expression, or 'GLOB -> GLOB', where the stars of the second are those of the first in their
 * order. Keys are bytes. A search that takes too many steps is RESHARD_ERR_LIMIT.
 */
#ifndef CONVERT_KEY_PATTERN_H
#define CONVERT_KEY_PATTERN_H

#include "base/buffer.h"
#include "base/error.h"

struct key_pattern;

/* At most KEY_NUMBERS_MAX numbers in all braces. One thread at a time uses a pattern. */
#define KEY_NUMBERS_MAX 100000
reshard_status key_pattern_of_glob(struct str glob, struct key_pattern **out, reshard_error *err);
reshard_status key_pattern_match(struct key_pattern *pattern, struct str key, bool *matched, reshard_error *err);
void key_pattern_free(struct key_pattern *pattern);

struct key_rename;
reshard_status key_rename_parse(const char *text, struct key_rename **out, reshard_error *err);

/* Appends the key's new name. */
reshard_status key_rename_run(struct key_rename *rename, struct str key, struct buffer *out, reshard_error *err);
void key_rename_free(struct key_rename *rename);

#endif
