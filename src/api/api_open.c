/* SPDX-License-Identifier: Apache-2.0 */
#include "api/checkpoint.h"

#include <stdlib.h>

/* Public structs may be older and shorter than ours: what the caller does not know keeps its default. */
static struct open_options open_options_read(const reshard_open_options *options, unsigned *store_flags, reshard_status *status,
                                             reshard_error *err)
{
    struct open_options out = { .limits = limits_default, .iteration = -1 };
    *store_flags = 0;
    *status = RESHARD_OK;
    if (!options)
        return out;
    if (options->struct_size < offsetof(reshard_open_options, skip_unsupported)) {
        *status =
            error_set(err, RESHARD_ERR_USAGE, "open options: struct_size is %zu, expected %zu", options->struct_size, sizeof(*options));
        return out;
    }
    out.format = options->format;
    out.iteration = options->iteration;
    out.lenient = options->lenient != 0;
    out.skip_unsupported = options->struct_size >= sizeof(*options) && options->skip_unsupported != 0;
    *store_flags = options->follow_links ? STORE_FOLLOW_LINKS : 0;
    for (size_t i = 0; i < options->limit_count; i++) {
        const reshard_limit *limit = &options->limits[i];
        if (!limits_set(&out.limits, str_of(limit->name), limit->value)) {
            *status = error_set(err, RESHARD_ERR_USAGE, "unknown limit '%s'", limit->name);
            error_hint(err, "reshard_limit_at() lists them");
            return out;
        }
    }
    return out;
}

reshard_status checkpoint_list_tensors(reshard_checkpoint *checkpoint, reshard_error *err)
{
    const struct catalog *catalog = checkpoint_catalog(checkpoint);
    checkpoint->listed = calloc((size_t)catalog->tensor_count + 1, sizeof(uint32_t));
    checkpoint->public_index = calloc((size_t)catalog->tensor_count + 1, sizeof(uint32_t));
    if (!checkpoint->listed || !checkpoint->public_index)
        return error_set_memory(err);
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        bool hidden = catalog->tensors[i].flags & TENSOR_HIDDEN;
        checkpoint->public_index[i] = hidden ? CATALOG_NONE : checkpoint->listed_count;
        if (!hidden)
            checkpoint->listed[checkpoint->listed_count++] = i;
    }
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_open(const char *path, const reshard_open_options *options, reshard_checkpoint **out, reshard_error *err)
{
    unsigned store_flags;
    reshard_status status;
    struct open_options open = open_options_read(options, &store_flags, &status, err);
    if (status)
        return status;

    struct store *store = NULL;
    char *file_name = NULL;
    reshard_checkpoint *checkpoint = calloc(1, sizeof(*checkpoint));
    if (!checkpoint)
        return error_set_memory(err);
    checkpoint->path = copy_text(path, strlen(path));
    if (!checkpoint->path) {
        status = error_set_memory(err);
        goto out;
    }
    status = store_open_path(path, store_flags, &store, &file_name, err);
    if (status)
        goto out;
    status = format_open(store, file_name ? file_name : "", &open, &checkpoint->source, err);
    if (status) {
        error_prefix(err, "'%s'", path);
        goto out;
    }
    status = checkpoint_list_tensors(checkpoint, err);

out:
    free(file_name);
    if (status)
        reshard_close(checkpoint);
    else
        *out = checkpoint;
    return status;
}

API_EXPORT void reshard_close(reshard_checkpoint *checkpoint)
{
    if (!checkpoint)
        return;
    reshard_close(checkpoint->related);
    source_free(checkpoint->source);
    buffer_release(&checkpoint->class_name);
    free(checkpoint->listed);
    free(checkpoint->public_index);
    free(checkpoint->sorted);
    free(checkpoint->parts);
    free(checkpoint->path);
    free(checkpoint);
}

struct engine_source checkpoint_engine_source(const reshard_checkpoint *checkpoint)
{
    const struct source *source = checkpoint->source;
    return (struct engine_source){ .store = source->store, .catalog = source->catalog, .limits = &source->limits };
}

char *copy_text(const char *text, size_t size)
{
    char *copy = malloc(size + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, size);
    copy[size] = '\0';
    return copy;
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

reshard_status run_options_read(const reshard_run_options *run, struct engine_options *out, reshard_error *err)
{
    *out = (struct engine_options){ 0 };
    if (!run)
        return RESHARD_OK;
    if (run->struct_size < sizeof(*run))
        return error_set(err, RESHARD_ERR_USAGE, "run options: struct_size is %zu, expected %zu", run->struct_size, sizeof(*run));
    out->memory_bytes = run->memory_bytes;
    out->threads = run->threads;
    out->progress = run->progress ? report_progress : NULL;
    out->context = (void *)run;
    static const struct {
        const char *name;
        enum engine_io io;
    } kinds[] = {
        { "auto", ENGINE_IO_AUTO }, { "buffered", ENGINE_IO_BUFFERED }, { "direct", ENGINE_IO_DIRECT }, { "mmap", ENGINE_IO_MMAP }
    };
    const char *io = run->io ? run->io : "auto";
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(io, kinds[i].name) == 0) {
            out->io = kinds[i].io;
            return RESHARD_OK;
        }
    }
    return error_set(err, RESHARD_ERR_USAGE, "unknown io '%s': auto, buffered, direct or mmap", io);
}
