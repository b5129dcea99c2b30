/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/conversion.h"

#include <stdlib.h>

static reshard_status find_driver(const struct conversion *conversion, const struct format_driver **out, reshard_error *err)
{
    const char *to = conversion->options->to;
    if (!to && !conversion->like) {
        error_set(err, RESHARD_ERR_USAGE, "neither a target format nor a reference is given");
        error_hint(err, "say reshard_convert_options.to FORMAT or reshard_convert_options.like REFERENCE");
        return RESHARD_ERR_USAGE;
    }
    const struct format_driver *driver = to ? format_driver_find(to) : conversion->like->source->driver;
    if (!driver) {
        error_set(err, RESHARD_ERR_USAGE, "unknown format '%s'", to);
        error_hint(err, "reshard_format_at() lists them");
        return RESHARD_ERR_USAGE;
    }
    if (!(driver->abilities & FORMAT_WRITES)) {
        error_set(err, RESHARD_ERR_UNSUPPORTED, "format '%s' is read only", driver->name);
        error_hint(err, "reshard_format_at() says which formats can be written");
        return RESHARD_ERR_UNSUPPORTED;
    }
    *out = driver;
    return RESHARD_OK;
}

/* The destination's last path component, without trailing slashes. */
static char *base_name(const char *path)
{
    size_t size = strlen(path);
    while (size > 1 && path[size - 1] == '/')
        size--;
    size_t start = size;
    while (start > 0 && path[start - 1] != '/')
        start--;
    return copy_text(path + start, size - start);
}

static reshard_status make_recipes(struct conversion *conversion, reshard_error *err)
{
    const struct catalog *target = conversion->target.catalog;
    const struct recipe_table *table = &conversion->selection.table;
    conversion->recipes = calloc((size_t)table->count + 1, sizeof(*conversion->recipes));
    if (!conversion->recipes)
        return error_set_memory(err);
    for (uint32_t i = 0; i < target->tensor_count; i++) {
        if (target->tensors[i].chunk_count == 0)
            continue;
        conversion->tensor_count++;
        for (uint32_t r = table->first[i]; r < table->first[i + 1]; r++)
            conversion->recipes[conversion->recipe_count++] = table->recipes[r];
    }
    return RESHARD_OK;
}

/* The payload of the tensors that recipes read, each once. */
static reshard_status resolve_read(const struct conversion *conversion, reshard_error *err)
{
    uint32_t *tensors, count;
    reshard_status status = recipes_read(conversion->recipes, conversion->recipe_count,
                                         checkpoint_catalog(conversion->source)->tensor_count, &tensors, &count, err);
    if (!status)
        status = source_resolve(conversion->source->source, tensors, count, err);
    free(tensors);
    return status;
}

static const char *target_names(struct conversion *conversion, const struct format_driver *driver)
{
    const struct layout_request request = { .source = conversion->source->source,
                                            .like = conversion->like ? conversion->like->source : NULL,
                                            .options = conversion->said.options };
    return driver->target_names ? driver->target_names(&request) : driver->name_space;
}

/* Runs the mapping, if there is one. */
static reshard_status map_names(struct conversion *conversion, const struct format_driver *driver, reshard_error *err)
{
    const struct mapping_request request = {
        .source = conversion->source,
        .other = conversion->like,
        .target_names = target_names(conversion, driver),
        .options = conversion->options->map,
    };
    reshard_status status = mapping_make(&request, &conversion->mapping, err);
    if (!status && conversion->mapping.stage)
        status =
            mapping_losses(conversion->mapping.stage, checkpoint_catalog(conversion->source), &conversion->notes, &conversion->losses, err);
    return status;
}

static reshard_status open_like(struct conversion *conversion, reshard_error *err)
{
    const reshard_convert_options *options = conversion->options;
    if (!options->like)
        return RESHARD_OK;
    reshard_status status = reshard_open(options->like, options->open, &conversion->like, err);
    if (status)
        error_prefix(err, "reference");
    return status;
}

static reshard_status lay_out(struct conversion *conversion, const char *target_path, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = find_driver(conversion, &driver, err);
    if (status)
        return status;
    status = request_words_read(conversion->options->format_options, conversion->options->layout, driver, &conversion->said, err);
    if (status)
        return status;
    status = map_names(conversion, driver, err);
    if (status)
        return status;
    status = selection_make(conversion->source, conversion->mapping.stage, driver->name, conversion->options, &conversion->selection, err);
    if (status)
        return status;
    conversion->file_name = base_name(target_path ? target_path : "checkpoint");
    conversion->target.driver = driver;
    conversion->target.catalog = catalog_new(driver->name);
    if (!conversion->file_name || !conversion->target.catalog)
        return error_set_memory(err);
    conversion->target.catalog->limits = conversion->source->source->limits;
    conversion->target.catalog->limits.budget = NULL; /* how finely the target is cut is the caller's wish, not the input's */
    struct layout_request *request = &conversion->request;
    *request = (struct layout_request){
        .source = conversion->source->source,
        .wanted = conversion->selection.wanted,
        .wanted_source = conversion->selection.wanted_source,
        .wanted_items = conversion->selection.wanted_items,
        .is_whole = conversion->selection.is_whole,
        .like = conversion->like && conversion->like->source->driver == driver ? conversion->like->source : NULL,
        .max_shard_bytes = conversion->options->max_shard_bytes,
        .file_name = conversion->file_name,
        .ranks = conversion->said.ranks,
        .words = conversion->said.words,
        .options = conversion->said.options,
        .limits = conversion->source->source->limits,
    };
    status = conversion_add_settings(conversion, driver, err);
    if (status)
        return status;
    status = driver->lay_out(request, &conversion->target, err);
    if (status)
        return status;
    return catalog_seal(conversion->target.catalog, true, err);
}

/* Whether names are to become those of another framework, as far as options tell before anything is looked at. */
static bool names_may_change(const struct conversion *conversion)
{
    const reshard_map_options *map = conversion->options->map;
    const char *own = conversion->source->source->driver->name_space,
               *other = conversion->like ? conversion->like->source->driver->name_space : NULL;
    bool is_asked = map && (map->rules_text || (map->rules && strcmp(map->rules, "none") != 0));
    return is_asked || (own && other && strcmp(own, other) != 0);
}

/* Formats that name state by parameter get it so, whatever way the source stores it; other names are for parameters too. */
static reshard_status relate_optimizer(struct conversion *conversion, reshard_error *err)
{
    const struct format_driver *driver;
    reshard_status status = find_driver(conversion, &driver, err);
    if (status || (!(driver->abilities & FORMAT_STATE_BY_PARAMETER) && !names_may_change(conversion)))
        return status;
    status = checkpoint_relate(conversion->source, &conversion->source, err);
    if (status)
        error_hint(
            err, "reshard_convert_options.exclude leaves tensors out; reshard_convert_options.to torch-dcp keeps them as they are stored");
    return status;
}

reshard_status conversion_prepare(reshard_checkpoint *source, const char *target_path, const reshard_convert_options *options,
                                  const reshard_run_options *run, bool resolve_source, struct conversion *out, reshard_error *err)
{
    if (options->struct_size < sizeof(*options))
        return error_set(err, RESHARD_ERR_USAGE, "convert options: struct_size is %zu, expected %zu", options->struct_size,
                         sizeof(*options));
    *out = (struct conversion){ .source = source, .options = options };
    reshard_status status = run_options_read(run, &out->engine, err);
    if (status)
        return status;
    out->engine.no_sync = options->no_sync != 0;
    status = open_like(out, err);
    if (status)
        goto out;
    status = relate_optimizer(out, err);
    if (status)
        goto out;
    source = out->source;
    status = lay_out(out, target_path, err);
    if (status)
        goto out;
    status = make_recipes(out, err);
    if (status)
        goto out;
    if (resolve_source) {
        status = resolve_read(out, err);
        if (status)
            goto out;
    }
    status = plan_new(checkpoint_catalog(source), out->target.catalog, out->recipes, out->recipe_count, &out->plan, err);

out:
    if (status)
        conversion_release(out);
    return status;
}

void conversion_release(struct conversion *conversion)
{
    if (conversion->lends_items)
        catalog_remove_items(conversion->source->source->catalog, conversion->own_items);
    plan_free(conversion->plan);
    free(conversion->recipes);
    target_free(&conversion->target);
    selection_release(&conversion->selection);
    mapping_made_release(&conversion->mapping);
    note_list_release(&conversion->losses);
    arena_release(&conversion->notes);
    request_words_release(&conversion->said);
    reshard_close(conversion->like);
    free(conversion->file_name);
    *conversion = (struct conversion){ 0 };
}

/* ---- the report ---- */

/* The lines of two lists as one. */
static bool copy_notes(const struct note_list *first, const struct note_list *second, char ***out)
{
    *out = calloc((size_t)first->count + second->count + 1, sizeof(**out));
    if (!*out)
        return false;
    for (uint32_t i = 0; i < first->count + second->count; i++) {
        struct buffer line = { 0 };
        note_print(i < first->count ? &first->notes[i] : &second->notes[i - first->count], &line);
        buffer_append_byte(&line, 0);
        if (line.failed) {
            buffer_release(&line);
            return false;
        }
        (*out)[i] = (char *)line.data;
    }
    return true;
}

/* The catalog's, and one more if it is not NULL. */
static bool copy_warnings(const struct catalog *catalog, const char *last, char ***out)
{
    *out = calloc((size_t)catalog->warning_count + 2, sizeof(**out));
    if (!*out)
        return false;
    if (last && !((*out)[catalog->warning_count] = copy_text(last, strlen(last))))
        return false;
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        (*out)[i] = copy_text(catalog->warnings[i].text.data, catalog->warnings[i].text.size);
        if (!(*out)[i])
            return false;
    }
    return true;
}

static bool copy_files(const struct catalog *target, const struct plan *plan, reshard_report *out)
{
    out->files = calloc((size_t)target->object_count + 1, sizeof(*out->files));
    if (!out->files)
        return false;
    out->target_files = target->object_count;
    for (uint32_t i = 0; i < target->object_count; i++) {
        out->files[i].file = copy_text(target->objects[i].name.data, target->objects[i].name.size);
        if (!out->files[i].file)
            return false;
        out->files[i].bytes = target->objects[i].bytes;
        out->target_bytes += target->objects[i].bytes;
    }
    for (uint32_t i = 0; i < target->chunk_count; i++)
        out->files[target->chunks[i].object].chunks++;
    for (uint32_t i = 0; i < plan->step_count; i++)
        out->files[target->chunks[plan->steps[i].target_chunk].object].sources++;
    return true;
}

reshard_status conversion_report(const struct conversion *conversion, reshard_report *out, reshard_error *err)
{
    const struct catalog *source = checkpoint_catalog(conversion->source), *target = conversion->target.catalog;
    const struct plan *plan = conversion->plan;
    struct note renamed = { .kind = NOTE_NAMES, .reason = str_of(conversion->mapping.names ? conversion->mapping.names : "") };
    const struct note_list names = { .notes = &renamed, .count = renamed.reason.size > 0 };
    *out = (reshard_report){
        .tensors = conversion->tensor_count,
        .items = conversion->selection.wanted->item_count > conversion->target.dropped.count
                     ? conversion->selection.wanted->item_count - conversion->target.dropped.count
                     : 0,
        .source_chunks = source->chunk_count,
        .target_chunks = target->chunk_count,
        .steps = plan->step_count,
        .read_bytes = plan->read_bytes,
        .write_bytes = plan->write_bytes,
        .peak_memory_bytes = engine_memory_estimate(plan, &conversion->engine) + catalog_memory(source) + catalog_memory(target) +
                             (uint64_t)plan->step_capacity * sizeof(*plan->steps) + (uint64_t)plan->vector_capacity * sizeof(int64_t),
    };
    out->source_format = copy_text(source->format, strlen(source->format));
    out->target_format = copy_text(target->format, strlen(target->format));
    if (!out->source_format || !out->target_format ||
        !copy_notes(&conversion->losses, &conversion->target.dropped, &out->dropped) ||
        !copy_notes(&names, &conversion->target.changed, &out->changed) ||
        !copy_warnings(source, conversion->mapping.warning, &out->warnings) || !copy_files(target, plan, out)) {
        reshard_report_release(out);
        return error_set_memory(err);
    }
    return RESHARD_OK;
}

static void free_list(char **list)
{
    for (size_t i = 0; list && list[i]; i++)
        free(list[i]);
    free(list);
}

API_EXPORT void reshard_report_release(reshard_report *report)
{
    if (!report)
        return;
    free_list(report->dropped);
    free_list(report->changed);
    free_list(report->warnings);
    for (uint64_t i = 0; report->files && i < report->target_files; i++)
        free(report->files[i].file);
    free(report->files);
    free(report->source_format);
    free(report->target_format);
    *report = (reshard_report){ 0 };
}
