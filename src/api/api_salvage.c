/* SPDX-License-Identifier: Apache-2.0 */
/* Salvage: what is left of a damaged checkpoint. */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/salvage.h"

static void counts_give(reshard_salvage_counts *out, const struct salvage_counts *found)
{
    const reshard_salvage_counts made = {
        .tensors = found->tensors,
        .proved_tensors = found->proved_tensors,
        .unproved_tensors = found->unproved_tensors,
        .lost_tensors = found->lost_tensors,
        .items = found->items,
        .proved_items = found->proved_items,
        .unproved_items = found->unproved_items,
        .lost_items = found->lost_items,
    };
    if (out)
        struct_give(out, &made, sizeof(made));
}

API_EXPORT reshard_status reshard_salvage(const char *path, const char *target_path, const reshard_salvage_options *options,
                                          const reshard_run_options *run, reshard_finding_sink sink, void *context,
                                          reshard_salvage_counts *counts, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    reshard_salvage_options given;
    struct open_call open;
    struct run_call running;
    struct salvage_counts found;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(counts, "reshard_salvage_counts", err);
    if (!status)
        status = struct_take(&given, sizeof(given), options, "reshard_salvage_options", err);
    if (!status)
        status = open_options_read(given.open, &open, err);
    if (!status)
        status = run_options_read(run, &running, err);
    if (status)
        return status;
    NEEDS(path, err);
    NEEDS(target_path, err);
    const struct salvage_options wanted = {
        .to = given.to,
        .like = given.like,
        .overwrite = given.overwrite != 0,
        .no_sync = given.no_sync != 0,
        .open = open.options,
        .include = given.include,
        .exclude = given.exclude,
    };
    RUN_WAITS(&running);
    status = salvage_run(path, target_path, &wanted, &running.engine, &findings, &found, err);
    if (!status || status == RESHARD_DIFFERS)
        counts_give(counts, &found);
    return status;
}
