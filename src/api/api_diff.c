/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/diff.h"

static reshard_status diff_options_read(const reshard_diff_options *options, struct map_options *map, struct diff_options *out,
                                        reshard_error *err)
{
    *out = (struct diff_options){ 0 };
    if (!options)
        return RESHARD_OK;
    if (options->struct_size < sizeof(*options))
        return error_set(err, RESHARD_ERR_USAGE, "diff options: struct_size is %zu, expected %zu", options->struct_size, sizeof(*options));
    *out = (struct diff_options){
        .ignore_items = options->ignore_items != 0,
        .absolute_tolerance = options->absolute_tolerance,
        .relative_tolerance = options->relative_tolerance,
        .map = &map->options,
    };
    return map_options_read(options->map, map, err);
}

API_EXPORT reshard_status reshard_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_diff_options *options,
                                       const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct map_options map = { 0 };
    struct diff_options wanted;
    struct engine_options engine;
    reshard_status status = diff_options_read(options, &map, &wanted, err);
    if (!status)
        status = run_options_read(run, &engine, err);
    if (!status)
        status = diff_run(a->opened, b->opened, &wanted, &engine, &findings, err);
    map_options_release(&map);
    return status;
}
