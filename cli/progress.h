/* SPDX-License-Identifier: Apache-2.0 */
/* Progress on standard error, and the signals that end a run. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "options.h"

struct progress {
    const struct options *options;
    const char *what;
    double started, shown;
    uint64_t memory_bytes; /* the most that was said */
    bool drawn, has_ended;
};

/* Options of a run with a progress display; signals and a reader that went away cancel it. The struct must stay where it is. */
reshard_run_options progress_start(struct progress *progress, const struct options *options, const char *what);
void progress_end(struct progress *progress);

/* Since its start. */
double progress_seconds(const struct progress *progress);

/*
 * SIGINT, SIGTERM and SIGHUP end the process at once with 130, as long as nothing is being written. Once convert or salvage writes, the
 * first of each cancels it, so that what is half written can be removed; the second ends the process at once.
 */
void install_signals(void);

/* What was written is whole, or gone: from here on a signal ends the process at once again. True: one has come already. */
bool signals_end_at_once(void);

#endif
