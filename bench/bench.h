/* SPDX-License-Identifier: Apache-2.0 */
/* What programs that time one layer share. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "reshard/error.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Of an odd number of times, which are put in order. */
static inline double median(double *times, size_t count)
{
    qsort(times, count, sizeof(*times), compare_doubles);
    return times[count / 2];
}

/* Ends the program if the call failed, of which the file's `err` tells. */
#define must(status) must_with(status, &err)
static inline void must_with(reshard_status status, const reshard_error *why)
{
    if (!status)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, why->message);
    exit(1);
}

#endif
