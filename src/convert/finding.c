/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/finding.h"

#include "base/decimal_text.h"

#include <math.h>
#include <stdio.h>

void finding_deliver(struct finding_sink *sink, const struct finding *finding)
{
    sink->failures += finding->severity == FINDING_FAILURE;
    sink->warnings += finding->severity == FINDING_WARNING;
    if (sink->receive && !sink->status)
        sink->status = sink->receive(sink->context, finding);
}

static void finding_deliver_text(struct finding_sink *sink, struct finding *finding, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof(text), format, args);
    finding->text = text;
    finding->index = -1;
    finding->max_difference = NAN;
    finding_deliver(sink, finding);
}

void finding_report(struct finding_sink *sink, enum finding_severity severity, const char *kind, struct str key, const char *format, ...)
{
    struct finding finding = { .severity = severity, .kind = kind, .key = key };
    va_list args;
    va_start(args, format);
    finding_deliver_text(sink, &finding, format, args);
    va_end(args);
}

void finding_report_chunk(struct finding_sink *sink, enum finding_severity severity, const char *kind, struct str key, uint32_t chunk,
                          const char *format, ...)
{
    struct finding finding = { .severity = severity, .kind = kind, .key = key, .chunk = chunk + 1 };
    va_list args;
    va_start(args, format);
    finding_deliver_text(sink, &finding, format, args);
    va_end(args);
}

void finding_report_values(struct finding_sink *sink, struct str key, const struct difference *difference)
{
    char line[256];
    char absolute[DECIMAL_SHORT_BYTES], relative[DECIMAL_SHORT_BYTES];
    snprintf(line, sizeof(line), "values differ: %llu elements, first at flat index %lld, max abs %s, max rel %s",
             (unsigned long long)difference->count, (long long)difference->first_index, decimal_short(difference->max_absolute, absolute),
             decimal_short(difference->max_relative, relative));
    struct finding finding = {
        .severity = FINDING_FAILURE,
        .kind = "values",
        .key = key,
        .text = line,
        .index = difference->first_index,
        .count = difference->count,
        .max_difference = difference->max_absolute,
    };
    finding_deliver(sink, &finding);
}

reshard_status finding_sink_status(const struct finding_sink *sink, reshard_error *err)
{
    return sink->status ? error_set(err, sink->status, "stopped by the receiver") : RESHARD_OK;
}
