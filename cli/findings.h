/* SPDX-License-Identifier: Apache-2.0 */
/* Findings of verify and diff as lines or as JSON. */
#ifndef CLI_FINDINGS_H
#define CLI_FINDINGS_H

#include "output.h"

struct findings {
    const struct options *options;
    uint64_t count[3]; /* by severity */
    uint64_t printed, most; /* how many are printed at most; 0: all */
    bool any;
};

/* Context is a struct findings. */
int print_finding(const reshard_finding *finding, void *context);

/* How many were not printed, in a line. */
void print_findings_left_out(const struct findings *findings);

/* Ends the object, in which the findings are closed by now, or prints the line that fits. Returns the exit status. */
int verdict(const struct findings *findings, reshard_status status, const char *good, const char *bad);

#endif
