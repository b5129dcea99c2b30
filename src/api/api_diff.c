/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/diff.h"

/* A call's options, in the structs of the layers below, which point into it. */
struct diff_call {
    reshard_diff_options given;
    struct diff_options options;
    struct map_call map;
};

/* Release the call's mapping on failure too. */
static reshard_status diff_options_read(const reshard_diff_options *options, struct diff_call *out, reshard_error *err)
{
    out->map = (struct map_call){ 0 };
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_diff_options", err);
    out->options = (struct diff_options){
        .ignore_items = out->given.ignore_items != 0,
        .include = out->given.include,
        .exclude = out->given.exclude,
        .absolute_tolerance = out->given.absolute_tolerance,
        .relative_tolerance = out->given.relative_tolerance,
        .map = &out->map.options,
    };
    return status ? status : map_options_read(out->given.map, &out->map, err);
}

API_EXPORT reshard_status reshard_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_diff_options *options,
                                       const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct diff_call call;
    struct run_call running;
    ERROR_SCOPE(err);
    NEEDS(a, err);
    NEEDS(b, err);
    reshard_status status = diff_options_read(options, &call, err);
    if (!status)
        status = run_options_read(run, &running, err);
    if (!status)
        status = map_call_status(&call.map, diff_run(a->opened, b->opened, &call.options, &running.engine, &findings, err), err);
    map_call_release(&call.map);
    return status;
}
