/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of a report in lines for people. What is dropped or changed under names that begin alike, for one kind of reason, is one line with
 * its number: else what a checkpoint's optimizer alone gives hides the rest.
 */
#ifndef CLI_NOTE_GROUPS_H
#define CLI_NOTE_GROUPS_H

#include "options.h"

#include <stdbool.h>
#include <stdio.h>

/* Lines of what was dropped and changed, and of warnings: ten of each, or each note with --verbose; `between` stands behind the first
 * word. false: there was no memory to group them, each stands alone. */
bool print_notes(FILE *out, const struct options *options, const reshard_report *report, const char *between);

#endif
