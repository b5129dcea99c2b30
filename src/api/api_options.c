/* SPDX-License-Identifier: Apache-2.0 */
#include "api/public_options.h"

#include <stdlib.h>

reshard_status limits_read(const reshard_limit *given, size_t count, struct limits *out, reshard_error *err)
{
    *out = limits_default;
    for (size_t i = 0; i < count; i++) {
        if (limits_set(out, str_of(given[i].name), given[i].value))
            continue;
        error_set(err, RESHARD_ERR_USAGE, "unknown limit '%s'", given[i].name);
        error_hint(err, "reshard_limit_at() lists them");
        return RESHARD_ERR_USAGE;
    }
    return RESHARD_OK;
}

reshard_status open_options_read(const reshard_open_options *options, struct checkpoint_options *out, reshard_error *err)
{
    *out = (struct checkpoint_options){ .open = { .limits = limits_default, .iteration = -1 } };
    if (!options)
        return RESHARD_OK;
    if (options->struct_size < offsetof(reshard_open_options, skip_unsupported))
        return error_set(err, RESHARD_ERR_USAGE, "open options: struct_size is %zu, expected %zu", options->struct_size, sizeof(*options));
    out->open.format = options->format;
    out->open.iteration = options->iteration;
    out->open.lenient = options->lenient != 0;
    out->open.skip_unsupported = options->struct_size >= sizeof(*options) && options->skip_unsupported != 0;
    out->store_flags = options->follow_links ? STORE_FOLLOW_LINKS : 0;
    return limits_read(options->limits, options->limit_count, &out->open.limits, err);
}

static bool report_progress(const struct engine_progress *progress, void *context)
{
    const reshard_run_options *run = context;
    reshard_progress copy = {
        .bytes_done = progress->bytes_done,
        .bytes_total = progress->bytes_total,
        .bytes_read = progress->bytes_read,
        .bytes_written = progress->bytes_written,
        .memory_bytes = progress->memory_bytes,
    };
    return run->progress(&copy, run->context) != 0;
}

reshard_status run_options_read(const reshard_run_options *options, struct engine_options *out, reshard_error *err)
{
    *out = (struct engine_options){ 0 };
    if (!options)
        return RESHARD_OK;
    if (options->struct_size < sizeof(*options))
        return error_set(err, RESHARD_ERR_USAGE, "run options: struct_size is %zu, expected %zu", options->struct_size, sizeof(*options));
    out->memory_bytes = options->memory_bytes;
    out->threads = options->threads;
    out->progress = options->progress ? report_progress : NULL;
    out->context = (void *)options;
    static const struct {
        const char *name;
        enum engine_io io;
    } kinds[] = {
        { "auto", ENGINE_IO_AUTO }, { "buffered", ENGINE_IO_BUFFERED }, { "direct", ENGINE_IO_DIRECT }, { "mmap", ENGINE_IO_MMAP }
    };
    const char *io = options->io ? options->io : "auto";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(io, kinds[i].name) == 0) {
            out->io = kinds[i].io;
            return RESHARD_OK;
        }
    }
    return error_set(err, RESHARD_ERR_USAGE, "unknown io '%s': auto, buffered, direct or mmap", io);
}

/* ---- mappings ---- */

reshard_status constants_read(const reshard_map_constant *given, size_t count, struct mapping_constant **out, reshard_error *err)
{
    *out = calloc(count + 1, sizeof(**out));
    if (!*out)
        return error_set_memory(err);
    for (size_t i = 0; i < count; i++)
        (*out)[i] = (struct mapping_constant){ given[i].name, given[i].value };
    return RESHARD_OK;
}

static struct mapping_text map_text_of(const reshard_map_text *text)
{
    return (struct mapping_text){ .name = text->name ? text->name : "mapping", .text = { text->text, text->size } };
}

reshard_status map_options_read(const reshard_map_options *options, struct map_options *out, reshard_error *err)
{
    *out = (struct map_options){ 0 };
    if (!options)
        return RESHARD_OK;
    if (options->struct_size < sizeof(*options))
        return error_set(err, RESHARD_ERR_USAGE, "map options: struct_size is %zu, expected %zu", options->struct_size, sizeof(*options));
    out->options = (struct mapping_options){
        .text_count = options->text_count,
        .rules = options->rules,
        .strict = options->strict != 0,
        .config = { options->config, options->config_size },
        .constant_count = options->constant_count,
        .diagnose = options->diagnose,
        .context = options->context,
    };
    out->texts = calloc(options->text_count + 1, sizeof(*out->texts));
    if (!out->texts)
        return error_set_memory(err);
    for (size_t i = 0; i < options->text_count; i++)
        out->texts[i] = map_text_of(&options->texts[i]);
    if (options->rules_text)
        out->rules_text = map_text_of(options->rules_text);
    out->options.texts = out->texts;
    out->options.rules_text = options->rules_text ? &out->rules_text : NULL;
    reshard_status status = constants_read(options->constants, options->constant_count, &out->constants, err);
    out->options.constants = out->constants;
    return status;
}

void map_options_release(struct map_options *options)
{
    free(options->texts);
    free(options->constants);
    *options = (struct map_options){ 0 };
}

/* ---- findings ---- */

static reshard_status public_sink_receive(void *context, const struct finding *finding)
{
    const struct public_sink *public = context;
    const reshard_finding copy = {
        .severity = (int)finding->severity,
        .kind = finding->kind,
        .key = { finding->key.data, finding->key.size },
        .text = finding->text,
        .index = finding->index,
        .count = finding->count,
        .max_difference = finding->max_difference,
    };
    public->sink(&copy, public->context);
    return RESHARD_OK;
}

struct finding_sink public_sink_findings(struct public_sink *sink)
{
    return (struct finding_sink){ .receive = sink->sink ? public_sink_receive : NULL, .context = sink };
}
