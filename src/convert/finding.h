/* SPDX-License-Identifier: Apache-2.0 */
/* What verify and diff have found, one finding at a time. */
#ifndef CONVERT_FINDING_H
#define CONVERT_FINDING_H

#include "base/error.h"
#include "base/str.h"
#include "kernels/difference.h"

enum finding_severity { FINDING_NOTE, FINDING_WARNING, FINDING_FAILURE };

struct finding {
    enum finding_severity severity;
    const char *kind;
    struct str key;
    const char *text;      /* one line for people */
    int64_t index;         /* first differing element, flat; -1: none */
    uint64_t count;        /* elements concerned */
    double max_difference; /* NAN: not known */
    uint32_t chunk;        /* 1 + number of the catalog's chunk that it is about; 0: of no single one */
};

/* Who is told findings. A status other than RESHARD_OK ends the run that found them: it gets no more, and the run returns it. */
struct finding_sink {
    reshard_status (*receive)(void *context, const struct finding *finding); /* may be NULL */
    void *context;
    uint64_t failures, warnings;
    reshard_status status;
};

/* Hands a finding to the sink. */
void finding_deliver(struct finding_sink *sink, const struct finding *finding);

/* A finding with a formatted line. */
void finding_report(struct finding_sink *sink, enum finding_severity severity, const char *kind, struct str key, const char *format, ...)
    PRINTF_LIKE(5, 6);

/* The same about one chunk. */
void finding_report_chunk(struct finding_sink *sink, enum finding_severity severity, const char *kind, struct str key, uint32_t chunk,
                          const char *format, ...) PRINTF_LIKE(6, 7);

/* That values differ. */
void finding_report_values(struct finding_sink *sink, struct str key, const struct difference *difference);

/* RESHARD_OK while the receiver takes findings, else the status that it returned. */
reshard_status finding_sink_status(const struct finding_sink *sink, reshard_error *err);

#endif
