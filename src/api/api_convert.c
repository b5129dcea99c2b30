/* SPDX-License-Identifier: Apache-2.0 */
#include "api/handle.h"

#include "api/convert_call.h"
#include "api/report.h"
#include "api/writer_declaration.h"
#include "convert/target_check.h"
#include "formats/preview.h"

/* In the sense of conversion_options. */
static reshard_status shard_bytes_read(const reshard_convert_options *given, int64_t *out, reshard_error *err)
{
    *out = given->no_shard_limit ? 0 : given->max_shard_bytes ? (int64_t)given->max_shard_bytes : -1;
    if (given->no_shard_limit && given->max_shard_bytes)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.max_shard_bytes is %llu, and no_shard_limit is set",
                         (unsigned long long)given->max_shard_bytes);
    if (given->max_shard_bytes > INT64_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.max_shard_bytes is %llu, more than 2^63 - 1",
                         (unsigned long long)given->max_shard_bytes);
    return RESHARD_OK;
}

/* The caller's function for names. */
static reshard_status convert_rename(struct str key, struct buffer *out, void *context, reshard_error *err)
{
    const struct convert_call *call = context;
    reshard_str made = { key.data, key.size };
    if (call->given.rename(made, &made, call->given.context))
        return error_set(err, RESHARD_ERR_CANCELLED, "reshard_convert_options.rename stopped the call");
    return buffer_append_str(out, (struct str){ made.data, made.size }) ? RESHARD_OK : error_set_memory(err);
}

/* The caller's function for tensors that the source lacks. */
static reshard_status convert_missing(const struct catalog *reference, uint32_t index, enum missing_choice *choice, double *value,
                                      void *context, reshard_error *err)
{
    const struct convert_call *call = context;
    const struct catalog_tensor *tensor = &reference->tensors[index];
    int what = RESHARD_MISSING_LEAVE_OUT;
    const reshard_tensor shown = { .struct_size = sizeof(shown),
                                   .key = { tensor->key.data, tensor->key.size },
                                   .dtype = dtype_info(tensor->dtype)->name,
                                   .shape = catalog_vector_at(reference, tensor->shape),
                                   .rank = tensor->rank,
                                   .bytes = catalog_tensor_bytes(reference, tensor),
                                   .tied_to = -1 };
    if (call->given.choose_missing(&shown, &what, value, call->given.context))
        return error_set(err, RESHARD_ERR_CANCELLED, "reshard_convert_options.choose_missing stopped the call");
    *choice = what == RESHARD_MISSING_FILL ? MISSING_FILLED : what == RESHARD_MISSING_TAKE ? MISSING_BORROWED : MISSING_LEFT_OUT;
    return RESHARD_OK;
}

/* How tensors are named, and what becomes of those that the source lacks. */
static void names_read(struct convert_call *call)
{
    const reshard_convert_options *given = &call->given;
    struct selection_options *selection = &call->options.selection;
    selection->naming = (struct naming_options){ .strip_prefix = given->strip_prefix,
                                                 .renames = given->renames,
                                                 .add_prefix = given->add_prefix,
                                                 .rename = given->rename ? convert_rename : NULL,
                                                 .context = call };
    selection->missing = given->missing;
    selection->choose_missing = given->choose_missing ? convert_missing : NULL;
    selection->missing_context = call;
}

/* Where the target goes, if that is a store of the caller's. */
static reshard_status store_read(struct convert_call *call, reshard_error *err)
{
    const reshard_convert_options *given = &call->given;
    if (!given->store)
        return RESHARD_OK;
    if (given->resume || given->part_count)
        return error_set(err, RESHARD_ERR_USAGE,
                         "reshard_convert_options.%s: in a store of the caller's nothing is resumed or written in parts",
                         given->resume ? "resume" : "part_count");
    call->options.store = &call->store;
    return store_take(given->store, &call->store, err);
}

/* The format that is asked for, or that the target's name ends with where neither is said. NULL: that of `like`, if any. */
static const char *format_read(const reshard_convert_options *given, const char *target_path)
{
    const struct format_driver *named = given->to || given->like || !target_path ? NULL : format_driver_of_path(target_path);
    return named ? named->name : given->to;
}

reshard_status convert_options_read(const reshard_convert_options *options, const reshard_run_options *run, const char *target_path,
                                    struct convert_call *out, reshard_error *err)
{
    out->map = (struct map_call){ 0 };
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_convert_options", err);
    const reshard_convert_options *given = &out->given;
    if (!status)
        status = open_options_read(given->open, &out->open, err);
    if (!status)
        status = run_options_read(run, &out->run, err);
    if (!status)
        status = map_options_read(given->map, &out->map, err);
    if (status)
        return status;
    out->options = (struct conversion_options){
        .to = format_read(given, target_path),
        .like = given->like,
        .open = out->open.options,
        .layout = given->layout,
        .selection = { .include = given->include,
                       .exclude = given->exclude,
                       .dtypes = given->dtypes,
                       .drop_items = given->drop_items != 0 },
        .format_options = given->format_options,
        .wrap = given->wrap,
        .overwrite = given->overwrite != 0,
        .resume = given->resume != 0,
        .no_sync = given->no_sync != 0,
        .no_space_check = given->no_space_check != 0,
        .verify = given->verify != 0,
        .checksum = given->checksum,
        .map = &out->map.options,
        .part = (uint32_t)given->part,
        .part_count = (uint32_t)given->part_count,
        .part_words = { given->part_words.data, given->part_words.data ? given->part_words.size : 0 },
    };
    if (given->part > UINT32_MAX || given->part_count > UINT32_MAX)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_convert_options.part: a number is above 2^32 - 1");
    names_read(out);
    status = store_read(out, err);
    return status ? status : shard_bytes_read(given, &out->options.max_shard_bytes, err);
}

static reshard_status api_convert_prepare(reshard_checkpoint *source, const char *target_path, struct convert_call *call,
                              enum conversion_purpose purpose, struct conversion *conversion, reshard_report *report, reshard_error *err)
{
    work_renew(&checkpoint_source(source)->work);
    reshard_status status = conversion_prepare(source->opened, target_path, &call->options, &call->run.engine, purpose, conversion, err);
    if (status)
        return map_call_status(&call->map, status, err);
    status = map_call_status(&call->map, RESHARD_OK, err);
    if (!status && report)
        status = report_give(conversion, report, err);
    if (status)
        conversion_release(conversion);
    return status;
}

/* Where there is something already, what is wrong with the options is said before that. */
static reshard_status check_target(reshard_checkpoint *source, const char *target_path, struct convert_call *call, reshard_error *err)
{
    struct conversion conversion;
    reshard_error wrong = { 0 };
    reshard_status status = target_check_source(source->opened, target_path, call->options.overwrite, err);
    if (!status)
        return RESHARD_OK;
    reshard_status said = api_convert_prepare(source, target_path, call, CONVERSION_TO_REPORT, &conversion, NULL, &wrong);
    if (!said)
        conversion_release(&conversion);
    if (said != RESHARD_ERR_USAGE && said != RESHARD_ERR_UNSUPPORTED && said != RESHARD_ERR_IO)
        return status;
    *err = wrong;
    return said;
}

/* Conversions, and commits of their parts, differ in what is run. */
typedef reshard_status (*conversion_work)(struct conversion *conversion, const char *target_path, reshard_error *err);

static reshard_status convert_by(conversion_work work, reshard_checkpoint *source, const char *target_path,
                                 const reshard_convert_options *options, const reshard_run_options *run, reshard_report *report,
                                 reshard_error *err)
{
    struct convert_call call;
    struct conversion conversion;
    reshard_status status = convert_options_read(options, run, target_path, &call, err);
    if (!status && !call.options.store)
        status = check_target(source, target_path, &call, err);
    if (!status)
        status = api_convert_prepare(source, target_path, &call, CONVERSION_TO_RUN, &conversion, report, err);
    if (!status) {
        status = work(&conversion, target_path, err);
        report_give_verified(&conversion, report);
        conversion_release(&conversion);
        if (status && report)
            reshard_report_release(report);
    }
    map_call_release(&call.map);
    return status;
}

API_EXPORT reshard_status reshard_convert(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                          const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(source, err);
    NEEDS(target_path, err);
    NEEDS(options, err);
    return convert_by(conversion_run, source, target_path, options, run, report, err);
}

API_EXPORT reshard_status reshard_commit(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                         const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(source, err);
    NEEDS(target_path, err);
    NEEDS(options, err);
    return convert_by(conversion_commit, source, target_path, options, run, report, err);
}

API_EXPORT reshard_status reshard_part_words(const char *target_path, char **words, size_t *size, reshard_error *err)
{
    struct buffer out = { 0 };
    bool is_first;
    ERROR_SCOPE(err);
    NEEDS(words, err);
    *words = NULL;
    NEEDS(size, err);
    *size = 0;
    NEEDS(target_path, err);
    reshard_status status = conversion_part_words(target_path, &is_first, &out, err);
    if (!status && declaration_is(buffer_str(&out)))
        buffer_clear(&out);
    if (!status && !buffer_append(&out, "", 1))
        status = error_set_memory(err);
    if (status) {
        buffer_release(&out);
        return status;
    }
    *words = (char *)out.data;
    *size = out.size - 1;
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_estimate(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                           const reshard_run_options *run, reshard_report *report, reshard_error *err)
{
    struct convert_call call;
    struct conversion conversion;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(source, err);
    NEEDS(options, err);
    NEEDS(report, err);
    status = convert_options_read(options, run, target_path, &call, err);
    if (!status)
        status = api_convert_prepare(source, target_path, &call, CONVERSION_TO_REPORT, &conversion, report, err);
    if (!status)
        conversion_release(&conversion);
    map_call_release(&call.map);
    return status;
}

/* The target of a prepared conversion as a handle. */
static reshard_status preview_handle(const struct conversion *conversion, const char *path, reshard_checkpoint **out, reshard_error *err)
{
    const struct open_options options = { .limits = conversion->source->source->limits, .iteration = -1 };
    struct source *source;
    struct checkpoint *opened = NULL;
    reshard_status status = preview_source_open(&conversion->target, &options, &source, err);
    if (!status)
        status = checkpoint_of(source, path ? path : "", &opened, err);
    return status ? status : handle_make(opened, out, err);
}

API_EXPORT reshard_status reshard_preview(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                          const reshard_run_options *run, reshard_report *report, reshard_checkpoint **target,
                                          reshard_error *err)
{
    struct convert_call call;
    struct conversion conversion;
    ERROR_SCOPE(err);
    reshard_status status = struct_clear(report, "reshard_report", err);
    if (status)
        return status;
    NEEDS(target, err);
    *target = NULL;
    NEEDS(source, err);
    NEEDS(options, err);
    status = convert_options_read(options, run, target_path, &call, err);
    if (!status)
        status = api_convert_prepare(source, target_path, &call, CONVERSION_TO_REPORT, &conversion, NULL, err);
    if (!status) {
        status = preview_handle(&conversion, target_path, target, err);
        if (!status && report)
            status = report_give_moves(&conversion, report, err);
        conversion_release(&conversion);
    }
    if (status) {
        reshard_close(*target);
        *target = NULL;
    }
    map_call_release(&call.map);
    return status;
}
