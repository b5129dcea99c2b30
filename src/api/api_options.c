/* SPDX-License-Identifier: Apache-2.0 */
#include "api/public_options.h"

#include "api/api_comm.h"
#include "base/array.h"

#include <stdlib.h>

reshard_status limits_read(const reshard_limit_change *given, size_t count, size_t stride, struct limits *out, reshard_error *err)
{
    void *taken;
    *out = limits_default;
    reshard_status status = array_take(given, count, stride, sizeof(*given), "reshard_limit_change", &taken, err);
    const reshard_limit_change *changes = taken;
    for (size_t i = 0; i < count && !status; i++) {
        if (changes[i].name && limits_set(out, str_of(changes[i].name), changes[i].value))
            continue;
        status = error_set(err, RESHARD_ERR_USAGE, "unknown limit '%s'", changes[i].name ? changes[i].name : "");
        error_hint(err, "reshard_limit_at() lists them");
    }
    free(taken);
    return status;
}

static bool open_goes_on(void *context, uint64_t bytes_read)
{
    const reshard_open_options *given = context;
    const reshard_progress progress = { .struct_size = sizeof(progress), .bytes_done = bytes_read, .bytes_read = bytes_read };
    return given->progress(&progress, given->context) == 0;
}

reshard_status open_options_read(const reshard_open_options *options, struct open_call *out, reshard_error *err)
{
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_open_options", err);
    if (status)
        return status;
    const reshard_open_options *given = &out->given;
    out->options = (struct checkpoint_options){
        .open = { .format = given->format,
                  .iteration = given->has_iteration ? given->iteration : -1,
                  .lenient = given->lenient != 0,
                  .skip_unsupported = given->skip_unsupported != 0,
                  .shows_damage = given->shows_damage != 0,
                  .goes_on = given->progress ? open_goes_on : NULL,
                  .context = &out->given },
        .store_flags = given->follow_links ? STORE_FOLLOW_LINKS : 0,
    };
    if (given->has_iteration && given->iteration < 0)
        return error_set(err, RESHARD_ERR_USAGE, "reshard_open_options.iteration is %lld", (long long)given->iteration);
    return limits_read(given->limits, given->limit_count, given->limit_stride, &out->options.open.limits, err);
}

static bool api_options_run_goes_on(const struct engine_progress *progress, void *context)
{
    struct run_call *call = context;
    const reshard_run_options *given = &call->given;
    const reshard_progress copy = {
        .struct_size = sizeof(copy),
        .bytes_done = progress->bytes_done,
        .bytes_total = progress->bytes_total,
        .bytes_read = progress->bytes_read,
        .bytes_written = progress->bytes_written,
        .memory_bytes = progress->memory_bytes,
    };
    call->last = *progress;
    return given->progress(&copy, given->context) == 0;
}

static bool run_call_goes_on(void *context)
{
    const struct run_call *call = context;
    const struct engine_progress last = call->last;
    return api_options_run_goes_on(&last, context);
}

const struct waiting *run_waits_begin(struct run_call *call)
{
    call->waiting = (struct waiting){ run_call_goes_on, call };
    return waiting_set_if(call->given.progress, &call->waiting);
}

void run_waits_end(const struct waiting **before)
{
    waiting_set(*before);
}

static reshard_status run_options_take(const reshard_run_options *options, struct run_call *out, reshard_error *err)
{
    static const struct {
        const char *name;
        enum engine_io io;
    } kinds[] = {
        { "auto", ENGINE_IO_AUTO }, { "buffered", ENGINE_IO_BUFFERED }, { "direct", ENGINE_IO_DIRECT }, { "mmap", ENGINE_IO_MMAP }
    };
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_run_options", err);
    if (status)
        return status;
    const reshard_run_options *given = &out->given;
    out->engine = (struct engine_options){
        .memory_bytes = given->memory_bytes,
        .threads = given->threads > UINT16_MAX ? UINT16_MAX : (unsigned)given->threads,
        .progress = given->progress ? api_options_run_goes_on : NULL,
        .context = out,
    };
    out->last = (struct engine_progress){ 0 };
    const char *io = given->io ? given->io : "auto";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(io, kinds[i].name) == 0) {
            out->engine.io = kinds[i].io;
            return RESHARD_OK;
        }
    }
    return error_set(err, RESHARD_ERR_USAGE, "unknown io '%s': auto, buffered, direct or mmap", io);
}

reshard_status run_options_read(const reshard_run_options *options, struct run_call *out, reshard_error *err)
{
    reshard_status status = run_options_take(options, out, err);
    if (!status && out->given.comm)
        status = error_set(err, RESHARD_ERR_USAGE, "reshard_run_options.comm: only reshard_hash, reshard_verify and reshard_diff are "
                           "made by a group of ranks");
    return status;
}

reshard_status run_options_read_team(const reshard_run_options *options, const char *call, struct run_call *out, struct team **team,
                                     reshard_error *err)
{
    reshard_status status = run_options_take(options, out, err);
    *team = NULL;
    if (!out->given.comm)
        return status;
    out->team = (struct team){ .comm = out->given.comm->inner, .call = call };
    *team = &out->team;
    return status;
}

/* ---- mappings ---- */

reshard_status constants_read(const reshard_map_constant *given, size_t count, size_t stride, struct mapping_constant **out,
                              reshard_error *err)
{
    void *taken;
    *out = NULL;
    reshard_status status = array_take(given, count, stride, sizeof(*given), "reshard_map_constant", &taken, err);
    const reshard_map_constant *constants = taken;
    if (!status && !(*out = array_zeroed(count, sizeof(**out))))
        status = error_set_memory(err);
    for (size_t i = 0; i < count && !status; i++) {
        (*out)[i] = (struct mapping_constant){ constants[i].name, constants[i].value };
        if (!constants[i].name)
            status = error_set(err, RESHARD_ERR_USAGE, "reshard_map_constant.name is NULL");
    }
    free(taken);
    return status;
}

static struct mapping_text map_text_of(const reshard_map_text *text)
{
    return (struct mapping_text){ .name = text->name ? text->name : "mapping", .text = { text->text ? text->text : "", text->size } };
}

static reshard_status texts_read(const reshard_map_text *given, size_t count, size_t stride, struct mapping_text *out, reshard_error *err)
{
    void *taken;
    reshard_status status = array_take(given, count, stride, sizeof(*given), "reshard_map_text", &taken, err);
    const reshard_map_text *texts = taken;
    for (size_t i = 0; i < count && !status; i++) {
        out[i] = map_text_of(&texts[i]);
        if (!texts[i].text && texts[i].size)
            status = error_set(err, RESHARD_ERR_USAGE, "reshard_map_text.text is NULL");
    }
    free(taken);
    return status;
}

static void public_diagnose(const char *diagnoses, size_t error_count, void *context)
{
    struct map_call *call = context;
    if (!call->is_stopped)
        call->is_stopped = call->given.diagnose(diagnoses, error_count, call->given.context) != 0;
}

reshard_status map_options_read(const reshard_map_options *options, struct map_call *out, reshard_error *err)
{
    *out = (struct map_call){ 0 };
    const reshard_map_options *given = &out->given;
    reshard_status status = struct_take(&out->given, sizeof(out->given), options, "reshard_map_options", err);
    if (!status && !(out->texts = array_zeroed(given->text_count, sizeof(*out->texts))))
        status = error_set_memory(err);
    if (!status)
        status = texts_read(given->texts, given->text_count, given->text_stride, out->texts, err);
    if (!status && given->rules_text)
        status = texts_read(given->rules_text, 1, given->text_stride, &out->rules_text, err);
    if (!status)
        status = constants_read(given->constants, given->constant_count, given->constant_stride, &out->constants, err);
    out->options = (struct mapping_options){
        .texts = out->texts,
        .text_count = given->text_count,
        .rules = given->rules,
        .rules_text = given->rules_text ? &out->rules_text : NULL,
        .strict = given->strict != 0,
        .config = { given->config, given->config ? given->config_size : 0 },
        .constants = out->constants,
        .constant_count = given->constant_count,
        .diagnose = given->diagnose ? public_diagnose : NULL,
        .context = out,
    };
    return status;
}

void map_call_release(struct map_call *call)
{
    free(call->texts);
    free(call->constants);
    *call = (struct map_call){ 0 };
}

reshard_status map_call_status(const struct map_call *call, reshard_status status, reshard_error *err)
{
    return call->is_stopped ? error_set(err, RESHARD_ERR_CANCELLED, "stopped by the receiver of diagnoses") : status;
}

/* ---- findings ---- */

static reshard_status public_sink_receive(void *context, const struct finding *finding)
{
    const struct public_sink *public = context;
    const reshard_finding copy = {
        .struct_size = sizeof(copy),
        .severity = finding->severity,
        .kind = finding->kind,
        .key = { finding->key.data ? finding->key.data : "", finding->key.size },
        .text = finding->text,
        .index = finding->index,
        .count = finding->count,
        .max_difference = finding->max_difference,
    };
    return callback_status(public->sink(&copy, public->context));
}

struct finding_sink public_sink_findings(struct public_sink *sink)
{
    return (struct finding_sink){ .receive = sink->sink ? public_sink_receive : NULL, .context = sink };
}
