/* SPDX-License-Identifier: Apache-2.0 */
/* Verify, of one checkpoint and of those below a root. */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/latest.h"

/* A call's options, in the structs of the layers below, which point into it, and where its coverage comes first. */
struct verify_call {
    reshard_verify_options given;
    struct verify_options options;
    struct verify_coverage coverage;
    struct open_call open; /* of what it is held against */
    bool is_stopped; /* by uncovered */
};

static void report_uncovered(void *context, struct str key, uint64_t bytes)
{
    struct verify_call *call = context;
    if (!call->is_stopped)
        call->is_stopped = call->given.uncovered(public_str(key), bytes, call->given.context) != 0;
}

static reshard_status verify_options_read(const reshard_verify_options *options, struct verify_call *out, reshard_error *err)
{
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_verify_options", err);
    if (!status)
        status = struct_clear(out->given.coverage, "reshard_coverage", err);
    if (!status)
        status = open_options_read(out->given.open, &out->open, err);
    if (!status && (out->given.fail_on & ~(int64_t)(VERIFY_FAIL_NAN | VERIFY_FAIL_INF | VERIFY_FAIL_ZERO)))
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_verify_options.fail_on: %lld", (long long)out->given.fail_on);
    out->is_stopped = false;
    out->coverage = (struct verify_coverage){ 0 };
    out->options = (struct verify_options){
        .is_deep = out->given.deep != 0,
        .expects_optimizer = out->given.expect_optimizer != 0,
        .against = out->given.against,
        .open = &out->open.options.open,
        .fail_on = (unsigned)out->given.fail_on,
        .coverage = &out->coverage,
        .uncovered = out->given.uncovered ? report_uncovered : NULL,
        .context = out,
    };
    return status;
}

/* Ends a call: its coverage is handed out unless something stopped it. */
static reshard_status verify_call_end(const struct verify_call *call, reshard_status status, reshard_error *err)
{
    const struct verify_coverage *found = &call->coverage;
    if (call->is_stopped)
        return error_set(err, RESHARD_ERR_CANCELLED, "stopped by the receiver of what is uncovered");
    const reshard_coverage made = {
        .tensors = found->tensors,
        .bytes = found->bytes,
        .checked_tensors = found->checked_tensors,
        .checked_bytes = found->checked_bytes,
        .items = found->items,
        .checked_items = found->checked_items,
        .replicas = found->replicas,
        .names_are_checked = found->names_are_checked,
        .has_sidecar = found->has_sidecar,
        .elements = found->elements,
        .read_bytes = found->read_bytes,
        .checksums = found->checksums,
    };
    if (call->given.coverage && (status == RESHARD_OK || status == RESHARD_DIFFERS))
        struct_give(call->given.coverage, &made, sizeof(made));
    return status;
}

API_EXPORT reshard_status reshard_verify(reshard_checkpoint *checkpoint, const reshard_verify_options *options,
                                         const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct verify_call call;
    struct run_call running;
    ERROR_SCOPE(err);
    struct team *team;
    reshard_status status = run_options_read_team(run, __func__, &running, &team, err);
    if (!status)
        status = verify_options_read(options, &call, err);
    if (!status && !checkpoint)
        status = argument_missing(__func__, "checkpoint", err);
    if (status)
        return team_finish(team, status, err);
    call.options.team = team;
    RUN_WAITS(&running);
    return verify_call_end(&call, verify_run(checkpoint->opened, &call.options, &running.engine, &findings, err), err);
}

API_EXPORT reshard_status reshard_latest_good(const char *root, const reshard_open_options *options, const reshard_verify_options *verify,
                                              const reshard_run_options *run, reshard_finding_sink sink, void *context, char **path,
                                              reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct verify_call call;
    struct open_call open;
    struct run_call running;
    ERROR_SCOPE(err);
    NEEDS(path, err);
    *path = NULL;
    reshard_status status = verify_options_read(verify, &call, err);
    if (!status)
        status = open_options_read(options, &open, err);
    if (!status)
        status = run_options_read(run, &running, err);
    if (status)
        return status;
    NEEDS(root, err);
    RUN_WAITS(&running);
    status = verify_call_end(&call, latest_good(root, &open.options, &call.options, &running.engine, &findings, path, err), err);
    if (status) {
        reshard_free(*path);
        *path = NULL;
    }
    return status;
}
