/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversion does, or would do, in the public struct. */
#include "api/report.h"

#include "api/handle.h"

#include <stdlib.h>

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
    if (last && !((*out)[catalog->warning_count] = str_copy(str_of(last))))
        return false;
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        (*out)[i] = str_copy(catalog->warnings[i].text);
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
        out->files[i].file = str_copy(target->objects[i].name);
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

reshard_status report_fill(const struct conversion *conversion, reshard_report *out, reshard_error *err)
{
    const struct catalog *source = conversion->source->source->catalog, *target = conversion->target.catalog;
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
        .peak_memory_bytes = conversion_memory(conversion),
    };
    out->source_format = str_copy(str_of(source->format));
    out->target_format = str_copy(str_of(target->format));
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
