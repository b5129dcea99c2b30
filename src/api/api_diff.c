/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/public_options.h"
#include "convert/diff.h"

/* A call's options, in the structs of the layers below, which point into it. */
struct diff_call {
    reshard_diff_options given;
    struct diff_options options;
    struct diff_summary summary;
    struct map_call map;
    bool is_stopped; /* by tensor */
};

static void tell_diff_tensor(void *context, const struct diff_tensor *tensor)
{
    struct diff_call *call = context;
    const reshard_diff_tensor told = { .struct_size = sizeof(told),
                                       .key = public_str(tensor->key),
                                       .outcome = (int64_t)tensor->outcome,
                                       .elements = tensor->elements,
                                       .bytes = tensor->bytes,
                                       .changed_elements = tensor->changed_elements,
                                       .max_difference = tensor->max_absolute,
                                       .max_relative = tensor->max_relative };
    if (!call->is_stopped)
        call->is_stopped = call->given.tensor(&told, call->given.context) != 0;
}

/* Ends a call: its summary is handed out unless something stopped it. */
static reshard_status diff_call_end(const struct diff_call *call, reshard_status status, reshard_error *err)
{
    const struct diff_summary *found = &call->summary;
    const uint64_t *by = found->by_outcome;
    if (call->is_stopped)
        return error_set(err, RESHARD_ERR_CANCELLED, "stopped by the receiver of tensors");
    const reshard_diff_summary made = { .tensors = found->tensors, .same_tensors = by[DIFF_SAME], .changed_tensors = by[DIFF_VALUES],
                                        .missing_tensors = by[DIFF_MISSING], .unexpected_tensors = by[DIFF_UNEXPECTED],
                                        .reshaped_tensors = by[DIFF_SHAPE], .retyped_tensors = by[DIFF_DTYPE],
                                        .explained_tensors = found->explained, .items = found->items,
                                        .different_items = found->different_items, .elements = found->elements, .bytes = found->bytes,
                                        .changed_elements = found->changed_elements, .changed_bytes = found->changed_bytes,
                                        .max_difference = found->max_absolute, .max_relative = found->max_relative };
    if (call->given.summary && (status == RESHARD_OK || status == RESHARD_DIFFERS))
        struct_give(call->given.summary, &made, sizeof(made));
    return status;
}

/* Release the call's mapping on failure too. */
static reshard_status diff_options_read(const reshard_diff_options *options, struct diff_call *out, reshard_error *err)
{
    out->map = (struct map_call){ 0 };
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_diff_options", err);
    if (!status)
        status = struct_clear(out->given.summary, "reshard_diff_summary", err);
    out->is_stopped = false;
    out->options = (struct diff_options){
        .ignore_items = out->given.ignore_items != 0,
        .ignore_dtype = out->given.ignore_dtype != 0,
        .include = out->given.include,
        .exclude = out->given.exclude,
        .naming = { .strip_prefix = out->given.strip_prefix, .renames = out->given.renames, .add_prefix = out->given.add_prefix },
        .absolute_tolerance = out->given.absolute_tolerance,
        .relative_tolerance = out->given.relative_tolerance,
        .map = &out->map.options,
        .explains = out->given.explain != 0,
        .summary = &out->summary,
        .tensor = out->given.tensor ? tell_diff_tensor : NULL,
        .tensor_context = out,
    };
    return status ? status : map_options_read(out->given.map, &out->map, err);
}

API_EXPORT reshard_status reshard_diff(reshard_checkpoint *a, reshard_checkpoint *b, const reshard_diff_options *options,
                                       const reshard_run_options *run, reshard_finding_sink sink, void *context, reshard_error *err)
{
    struct public_sink receiver = { sink, context };
    struct finding_sink findings = public_sink_findings(&receiver);
    struct diff_call call = { .is_stopped = false };
    struct run_call running;
    ERROR_SCOPE(err);
    struct team *team;
    reshard_status status = run_options_read_team(run, __func__, &running, &team, err);
    if (!status)
        status = diff_options_read(options, &call, err);
    if (!status && (!a || !b))
        status = argument_missing(__func__, a ? "b" : "a", err);
    if (status) {
        status = team_finish(team, status, err);
    } else {
        call.options.team = team;
        RUN_WAITS(&running);
        status = map_call_status(&call.map, diff_run(a->opened, b->opened, &call.options, &running.engine, &findings, err), err);
    }
    if (!status || status == RESHARD_DIFFERS)
        status = diff_call_end(&call, status, err);
    map_call_release(&call.map);
    return status;
}
