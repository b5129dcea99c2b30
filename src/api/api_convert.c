/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "api/report.h"
#include "convert/target_check.h"

/* A call's options, in the structs of the layer below. */
struct convert_call {
    struct conversion_options options;
    struct engine_options engine;
    struct map_options map;
};

static reshard_status convert_options_read(const reshard_convert_options *options, const reshard_run_options *run, struct convert_call *out,
                                           reshard_error *err)
{
    *out = (struct convert_call){ 0 };
    if (options->struct_size < sizeof(*options))
        return error_set(err, RESHARD_ERR_USAGE, "convert options: struct_size is %zu, expected %zu", options->struct_size,
                         sizeof(*options));
    out->options = (struct conversion_options){
        .to = options->to,
        .like = options->like,
        .layout = options->layout,
        .selection = { .include = options->include,
                       .exclude = options->exclude,
                       .dtypes = options->dtypes,
                       .drop_items = options->drop_items != 0 },
        .format_options = options->format_options,
        .max_shard_bytes = options->max_shard_bytes,
        .overwrite = options->overwrite != 0,
        .resume = options->resume != 0,
        .no_sync = options->no_sync != 0,
        .verify = options->verify != 0,
        .checksum = options->checksum,
        .map = &out->map.options,
    };
    reshard_status status = open_options_read(options->open, &out->options.open, err);
    if (!status)
        status = run_options_read(run, &out->engine, err);
    return status ? status : map_options_read(options->map, &out->map, err);
}

static reshard_status prepare(reshard_checkpoint *source, const char *target_path, const struct convert_call *call,
                              enum conversion_purpose purpose, struct conversion *conversion, reshard_report *report, reshard_error *err)
{
    work_renew(&checkpoint_source(source)->work);
    reshard_status status =
        conversion_prepare(source->opened, target_path, &call->options, &call->engine, purpose, conversion, err);
    if (status || !report)
        return status;
    status = report_fill(conversion, report, err);
    if (status)
        conversion_release(conversion);
    return status;
}

API_EXPORT reshard_status reshard_convert(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                          const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    struct convert_call call;
    struct conversion conversion;
    reshard_status status = convert_options_read(options, run, &call, err);
    if (!status)
        status = target_check_source(source->opened, target_path, call.options.overwrite, err);
    if (!status)
        status = prepare(source, target_path, &call, CONVERSION_TO_RUN, &conversion, report, err);
    if (!status) {
        status = conversion_run(&conversion, target_path, err);
        conversion_release(&conversion);
        if (status && report)
            reshard_report_release(report);
    }
    map_options_release(&call.map);
    return status;
}

API_EXPORT reshard_status reshard_plan(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                       const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    struct convert_call call;
    struct conversion conversion;
    reshard_status status = convert_options_read(options, run, &call, err);
    if (!status)
        status = prepare(source, target_path, &call, CONVERSION_TO_REPORT, &conversion, report, err);
    if (!status)
        conversion_release(&conversion);
    map_options_release(&call.map);
    return status;
}
