/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of conversions that are kept. */
#include "reshard/plan.h"

#include "api/convert_call.h"
#include "api/handle.h"
#include "api/printing.h"
#include "api/report.h"
#include "convert/conversion_second.h"
#include "convert/target_check.h"

#include <inttypes.h>
#include <stdlib.h>

struct reshard_plan {
    reshard_checkpoint *source;
    struct convert_call call;
    struct conversion conversion; /* of a part: the whole's, with the part's steps; owned by the whole */
    char *path;
    reshard_plan *whole; /* of a part */
    struct conversion_options part_options;
};

API_EXPORT void reshard_plan_free(reshard_plan *plan)
{
    if (!plan)
        return;
    if (plan->whole) {
        plan_free(plan->conversion.plan);
    } else {
        conversion_release(&plan->conversion);
        map_call_release(&plan->call.map);
    }
    free(plan->path);
    free(plan);
}

static reshard_status kept_plan_make(reshard_plan *plan, const reshard_convert_options *options, const reshard_run_options *run,
                                reshard_error *err)
{
    struct convert_call *call = &plan->call;
    reshard_status status = convert_options_read(options, run, plan->path, call, err);
    if (!status && call->options.part_count)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.part_count: reshard_plan_part makes parts of a plan");
    if (status)
        return status;
    work_renew(&checkpoint_source(plan->source)->work);
    status =
        conversion_prepare(plan->source->opened, plan->path, &call->options, &call->run.engine, CONVERSION_TO_RUN, &plan->conversion, err);
    return map_call_status(&call->map, status, err);
}

API_EXPORT reshard_status reshard_plan_new(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                           const reshard_run_options *run, reshard_plan **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(source, err);
    NEEDS(target_path, err);
    NEEDS(options, err);
    reshard_plan *plan = calloc(1, sizeof(*plan));
    if (!plan)
        return error_set_memory(err);
    plan->source = source;
    plan->path = str_copy(str_of(target_path));
    reshard_status status = plan->path ? kept_plan_make(plan, options, run, err) : error_set_memory(err);
    if (status)
        reshard_plan_free(plan);
    else
        *out = plan;
    return status;
}

/* ---- looking ---- */

API_EXPORT reshard_status reshard_plan_report(const reshard_plan *plan, reshard_report *report, reshard_error *err)
{
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(plan, err);
    NEEDS(report, err);
    return report_give(&plan->conversion, report, err);
}

API_EXPORT uint64_t reshard_plan_hash(const reshard_plan *plan)
{
    return plan ? plan_hash(plan->conversion.plan) : 0;
}

API_EXPORT size_t reshard_plan_step_count(const reshard_plan *plan)
{
    return plan ? plan->conversion.plan->step_count : 0;
}

static reshard_status step_show(const reshard_plan *shown, uint32_t index, reshard_plan_step *out, reshard_error *err)
{
    const struct plan *plan = shown->conversion.plan;
    const struct plan_step *step = &plan->steps[index];
    const struct catalog_chunk *target = &plan->target->chunks[step->target_chunk];
    const struct catalog_chunk *source = step->source_chunk == CATALOG_NONE ? NULL : &plan->source->chunks[step->source_chunk];
    const struct catalog_tensor *tensor = &plan->target->tensors[target->tensor];
    struct plan_copy copy;
    reshard_status status = plan_step_copy(plan, step, &copy, err);
    if (status)
        return status;
    *out = (reshard_plan_step){ .struct_size = sizeof(*out),
                                .key = public_str(tensor->key),
                                .source_key = public_str(source ? plan->source->tensors[source->tensor].key : STR("")),
                                .start = plan->vectors + step->start,
                                .extent = plan->vectors + step->extent,
                                .rank = (size_t)tensor->rank,
                                .file = public_str(plan->target->objects[target->object].name),
                                .source_file = public_str(source ? plan->source->objects[source->object].name : STR("")),
                                .offset = copy.target_offset,
                                .source_offset = copy.source_offset };
    dtype_bytes(tensor->dtype, (uint64_t)box_volume(tensor->rank, out->extent), &out->bytes);
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_plan_step_at(const reshard_plan *plan, size_t index, reshard_plan_step *out, reshard_error *err)
{
    reshard_plan_step made;
    ERROR_SCOPE(err);
    NEEDS(out, err);
    bool is_there = entry_begin(out, "reshard_plan_step", index, reshard_plan_step_count(plan));
    NEEDS(plan, err);
    if (!is_there)
        return error_set(err, RESHARD_ERR_USAGE, "the plan has no step %zu", index);
    reshard_status status = step_show(plan, (uint32_t)index, &made, err);
    if (!status)
        struct_give(out, &made, sizeof(made));
    return status;
}

/* ---- printing ---- */

static void print_text(struct buffer *out, const char *name, reshard_str text)
{
    buffer_printf(out, "\"%s\": ", name);
    buffer_append_json_visible(out, (struct str){ text.data, text.size });
    buffer_append_text(out, ", ");
}

static void print_json_step(struct buffer *out, const reshard_plan_step *step, bool is_first)
{
    buffer_append_text(out, is_first ? "\n  {" : ",\n  {");
    print_text(out, "key", step->key);
    print_numbers(out, "start", step->start, step->rank);
    buffer_append_text(out, ", ");
    print_numbers(out, "extent", step->extent, step->rank);
    buffer_append_text(out, ", ");
    print_text(out, "file", step->file);
    buffer_printf(out, "\"offset\": %" PRIu64 ", ", step->offset);
    print_text(out, "source_key", step->source_key);
    print_text(out, "source_file", step->source_file);
    buffer_printf(out, "\"source_offset\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", step->source_offset, step->bytes);
}

static void print_line_step(struct buffer *out, const reshard_plan_step *step)
{
    buffer_append_json_visible(out, (struct str){ step->key.data, step->key.size });
    for (size_t i = 0; i < step->rank; i++)
        buffer_printf(out, "%s%" PRId64 ":%" PRId64, i ? ", " : " [", step->start[i], step->start[i] + step->extent[i]);
    buffer_append_text(out, step->rank ? "] in " : " in ");
    buffer_append_json_visible(out, (struct str){ step->file.data, step->file.size });
    buffer_printf(out, " at %" PRIu64 " <- ", step->offset);
    if (step->source_file.size || step->source_key.size) {
        buffer_append_json_visible(out, (struct str){ step->source_key.data, step->source_key.size });
        buffer_append_text(out, " in ");
        buffer_append_json_visible(out, (struct str){ step->source_file.data, step->source_file.size });
        buffer_printf(out, " at %" PRIu64, step->source_offset);
    } else {
        buffer_append_text(out, "a number");
    }
    buffer_printf(out, ", %" PRIu64 " bytes\n", step->bytes);
}

static reshard_status plan_print_steps(const reshard_plan *plan, bool as_json, struct printing *printing, reshard_error *err)
{
    const struct plan *steps = plan->conversion.plan;
    struct buffer *out = &printing->text;
    reshard_status status = RESHARD_OK;
    if (as_json)
        buffer_printf(out, "{\"hash\": \"%016" PRIx64 "\", \"read_bytes\": %" PRIu64 ", \"write_bytes\": %" PRIu64 ", \"steps\": [",
                      plan_hash(steps), steps->read_bytes, steps->write_bytes);
    for (uint32_t i = 0; i < steps->step_count && !status; i++) {
        reshard_plan_step step;
        status = step_show(plan, i, &step, err);
        if (status)
            break;
        if (as_json)
            print_json_step(out, &step, i == 0);
        else
            print_line_step(out, &step);
        status = printing_step(printing, err);
    }
    if (as_json)
        buffer_append_text(out, "]}\n");
    return status;
}

API_EXPORT reshard_status reshard_plan_print(const reshard_plan *plan, int as_json, reshard_sink sink, void *context, reshard_error *err)
{
    struct printing printing = { .sink = sink, .context = context };
    ERROR_SCOPE(err);
    NEEDS(plan, err);
    NEEDS(sink, err);
    return printing_end(&printing, plan_print_steps(plan, as_json != 0, &printing, err), err);
}

/* ---- parts and runs ---- */

API_EXPORT reshard_status reshard_plan_part(const reshard_plan *plan, uint64_t part, uint64_t count, reshard_plan **out, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(out, err);
    *out = NULL;
    NEEDS(plan, err);
    if (plan->whole || !count || count > UINT32_MAX || part >= count)
        return error_set(err, RESHARD_ERR_USAGE, "part %" PRIu64 " of %" PRIu64 " of a %s: there is no such part", part, count,
                         plan->whole ? "part" : "plan");
    reshard_plan *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    made->source = plan->source;
    made->whole = (reshard_plan *)(uintptr_t)plan;
    made->conversion = plan->conversion;
    made->conversion.plan = NULL;
    made->part_options = plan->call.options;
    made->part_options.part = (uint32_t)part;
    made->part_options.part_count = (uint32_t)count;
    made->path = str_copy(str_of(plan->path));
    reshard_status status = made->path ? plan_split(plan->conversion.plan, (uint32_t)part, (uint32_t)count, &made->conversion.plan, err)
                                       : error_set_memory(err);
    if (status)
        reshard_plan_free(made);
    else
        *out = made;
    return status;
}

static reshard_status plan_work(reshard_plan *plan, const char *target_path, bool commits, reshard_error *err)
{
    const char *path = target_path ? target_path : plan->path;
    struct conversion conversion = plan->whole ? plan->whole->conversion : plan->conversion;
    if (plan->whole)
        conversion.options = &plan->part_options;
    reshard_status status = RESHARD_OK;
    if (!conversion.options->store)
        status = target_check_source(plan->source->opened, path, conversion.options->overwrite, err);
    if (status)
        return status;
    work_renew(&checkpoint_source(plan->source)->work);
    return commits ? conversion_commit(&conversion, path, err) : conversion_run(&conversion, path, err);
}

API_EXPORT reshard_status reshard_plan_run(reshard_plan *plan, const char *target_path, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(plan, err);
    return plan_work(plan, target_path, false, err);
}

API_EXPORT reshard_status reshard_plan_commit(reshard_plan *plan, const char *target_path, reshard_error *err)
{
    ERROR_SCOPE(err);
    NEEDS(plan, err);
    if (plan->whole)
        return error_set(err, RESHARD_ERR_USAGE, "a part commits nothing: the plan does");
    return plan_work(plan, target_path, true, err);
}
