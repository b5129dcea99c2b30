/* SPDX-License-Identifier: Apache-2.0 */
#include "api/checkpoint.h"
#include "base/decimal_text.h"

#include <math.h>
#include <stdio.h>

static void deliver(struct finding_sink *sink, const reshard_finding *finding)
{
    sink->failures += finding->severity == 2;
    sink->warnings += finding->severity == 1;
    if (sink->sink)
        sink->sink(finding, sink->context);
}

void finding_report(struct finding_sink *sink, int severity, const char *kind, struct str key, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    reshard_finding finding = {
        .severity = severity, .kind = kind, .key = { key.data, key.size }, .text = text, .index = -1, .max_difference = NAN
    };
    deliver(sink, &finding);
}

void finding_report_values(struct finding_sink *sink, struct str key, const char *text, int64_t index, uint64_t count,
                           double max_difference)
{
    char line[256];
    char difference[DECIMAL_SHORT_BYTES];
    snprintf(line, sizeof(line), "%s: %llu elements, first at flat index %lld, max abs %s", text, (unsigned long long)count,
             (long long)index, decimal_short(max_difference, difference));
    reshard_finding finding = {
        .severity = 2,
        .kind = "values",
        .key = { key.data, key.size },
        .text = line,
        .index = index,
        .count = count,
        .max_difference = max_difference,
    };
    deliver(sink, &finding);
}
