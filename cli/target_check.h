/* SPDX-License-Identifier: Apache-2.0 */
/* What can be said about a target before the source is opened, and what must never be overwritten. */
#ifndef CLI_TARGET_CHECK_H
#define CLI_TARGET_CHECK_H

#include "options.h"

/* 0, or the exit status of what it printed: the target exists, is the source, lies in it or around it, or has no folder to lie in. */
int target_check(const struct options *options, const char *source, const char *target);

#endif
