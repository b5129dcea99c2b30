/* SPDX-License-Identifier: Apache-2.0 */
/* Verify, of one checkpoint and of those below a root. */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/latest.h"

/* A call's options, and where its coverage comes first. */
struct verify_call {
    struct verify_options options;
    struct verify_coverage coverage;
    reshard_verify_options given;
};

static void report_uncovered(void *context, struct str key, uint64_t bytes)
{
    const struct verify_call *call = context;
    call->given.uncovered((reshard_str){ key.data, key.size }, bytes, call->given.context);
}

static reshard_status verify_options_read(const reshard_verify_options *options, struct verify_call *out, reshard_error *err)
{
    *out = (struct verify_call){ .given = RESHARD_VERIFY_OPTIONS_INIT };
    if (options && options->struct_size < offsetof(reshard_verify_options, coverage))
        return error_set(err, RESHARD_ERR_USAGE, "verify options: struct_size is %zu, expected %zu", options->struct_size,
                         sizeof(*options));
    if (options && options->struct_size >= sizeof(*options))
        out->given = *options;
    else if (options)
        out->given.deep = options->deep;
    out->options = (struct verify_options){
        .is_deep = out->given.deep != 0,
        .coverage = &out->coverage,
        .uncovered = out->given.uncovered ? report_uncovered : NULL,
        .context = out,
    };
    return RESHARD_OK;
}

static void write_coverage(const struct verify_call *call)
{
    const struct verify_coverage *found = &call->coverage;
    if (call->given.coverage)
        *call->given.coverage = (reshard_coverage){
            .tensors = found->tensors,
            .bytes = found->bytes,
            .checked_tensors = found->checked_tensors,
            .checked_bytes = found->checked_bytes,
            .items = found->items,
            .checked_items = found->checked_items,
            .replicas = found->replicas,
            .names_are_checked = found->names_are_checked,
            .has_sidecar = found->has_sidecar,
        };
}

API_EXPORT reshard_status reshard_verify(reshard_checkpoint *checkpoint, const reshard_verify_options *options,
                                         const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct verify_call call;
    struct engine_options engine;
    reshard_status status = verify_options_read(options, &call, err);
    if (!status)
        status = run_options_read(run, &engine, err);
    if (!status)
        status = verify_run(checkpoint->opened, &call.options, &engine, &findings, err);
    if (status == RESHARD_OK || status == RESHARD_DIFFERS)
        write_coverage(&call);
    return status;
}

API_EXPORT reshard_status reshard_latest_good(const char *root, const reshard_open_options *options, const reshard_verify_options *verify,
                                              reshard_finding_sink sink, void *context, char **path, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct verify_call call;
    struct checkpoint_options open;
    const struct engine_options engine = { 0 };
    reshard_status status = verify_options_read(verify, &call, err);
    if (!status)
        status = open_options_read(options, &open, err);
    if (!status)
        status = latest_good(root, &open, &call.options, &engine, &findings, path, err);
    if (status == RESHARD_OK || status == RESHARD_DIFFERS)
        write_coverage(&call);
    return status;
}
