/* SPDX-License-Identifier: Apache-2.0 */
/* What a conversion does, or would do, in the public struct. */
#include "api/report.h"

#include "api/handle.h"
#include "base/array.h"
#include "convert/conversion_second.h"

#include <stdlib.h>

static bool api_report_text_keep(struct reshard_report_lists *lists, struct str text, reshard_str *out)
{
    struct str kept;
    if (!arena_str(&lists->arena, text, &kept))
        return false;
    *out = public_str(kept);
    return true;
}

static bool note_keep(struct reshard_report_lists *lists, int what, const char *kind, const struct note *note)
{
    reshard_note *out = &lists->notes[lists->note_count++];
    struct buffer line = { 0 };
    *out = (reshard_note){ .what = what, .kind = kind };
    note_print(note, &line);
    bool is_kept = !line.failed && api_report_text_keep(lists, note->key, &out->key) &&
                   api_report_text_keep(lists, note->reason, &out->reason) && api_report_text_keep(lists, buffer_str(&line), &out->text);
    buffer_release(&line);
    return is_kept;
}

static bool notes_keep(struct reshard_report_lists *lists, int what, const struct note_list *notes)
{
    for (uint32_t i = 0; i < notes->count; i++) {
        if (!note_keep(lists, what, note_kind_word(notes->notes[i].kind), &notes->notes[i]))
            return false;
    }
    return true;
}

static bool warnings_keep(struct reshard_report_lists *lists, const struct catalog *catalog, const char *last)
{
    for (uint32_t i = 0; i < catalog->warning_count; i++) {
        const struct note note = { .reason = catalog->warnings[i].text };
        if (!note_keep(lists, RESHARD_NOTE_WARNING, catalog->warnings[i].is_damage ? "damage" : "warning", &note))
            return false;
    }
    const struct note note = { .kind = NOTE_NAMES, .reason = str_of(last ? last : "") };
    return !last || note_keep(lists, RESHARD_NOTE_WARNING, note_kind_word(note.kind), &note);
}

static bool all_notes_keep(struct reshard_report_lists *lists, const struct conversion *conversion)
{
    const struct catalog *source = conversion->source->source->catalog;
    const struct target *target = &conversion->target;
    struct note renamed = { .kind = NOTE_NAMES, .reason = str_of(conversion->mapping.names ? conversion->mapping.names : "") };
    const struct note_list names = { .notes = &renamed, .count = renamed.reason.size > 0 };
    size_t most =
        (size_t)conversion->losses.count + target->dropped.count + names.count + target->changed.count + source->warning_count +
        conversion->warnings.count + 1;
    lists->notes = array_zeroed(most, sizeof(*lists->notes));
    return lists->notes && notes_keep(lists, RESHARD_NOTE_DROPPED, &conversion->losses) &&
           notes_keep(lists, RESHARD_NOTE_DROPPED, &target->dropped) && notes_keep(lists, RESHARD_NOTE_CHANGED, &names) &&
           notes_keep(lists, RESHARD_NOTE_CHANGED, &target->changed) &&
           notes_keep(lists, RESHARD_NOTE_WARNING, &conversion->warnings) && warnings_keep(lists, source, conversion->mapping.warning);
}

static bool files_keep(struct reshard_report_lists *lists, const struct catalog *target, const struct plan *plan)
{
    lists->file_count = target->object_count;
    lists->files = array_zeroed(target->object_count, sizeof(*lists->files));
    for (uint32_t i = 0; lists->files && i < target->object_count; i++) {
        if (!api_report_text_keep(lists, target->objects[i].name, &lists->files[i].name))
            return false;
        lists->files[i].bytes = target->objects[i].bytes;
    }
    for (uint32_t i = 0; lists->files && i < target->chunk_count; i++)
        lists->files[target->chunks[i].object].chunks++;
    for (uint32_t i = 0; lists->files && i < plan->step_count; i++)
        lists->files[target->chunks[plan->steps[i].target_chunk].object].sources++;
    return lists->files != NULL;
}

static void lists_free(struct reshard_report_lists *lists)
{
    if (!lists)
        return;
    free(lists->files);
    free(lists->notes);
    free(lists->moves);
    arena_release(&lists->arena);
    free(lists);
}

static void report_count(const struct conversion *conversion, reshard_report *out)
{
    const struct catalog *source = conversion_read_catalog(conversion), *target = conversion->target.catalog;
    const struct plan *plan = conversion->plan;
    const uint32_t wanted = conversion->selection.wanted->item_count, dropped = conversion->target.dropped.count;
    out->tensors = conversion->tensor_count;
    out->items = wanted > dropped ? wanted - dropped : 0;
    out->source_chunks = source->chunk_count;
    out->target_chunks = target->chunk_count;
    out->steps = plan->step_count;
    out->read_bytes = plan->read_bytes;
    out->write_bytes = plan->write_bytes;
    out->peak_memory_bytes = conversion_memory(conversion);
    for (uint32_t i = 0; i < target->object_count; i++)
        out->target_bytes += target->objects[i].bytes;
}

static reshard_status report_make(const struct conversion *conversion, bool tell_moves, reshard_report *out, reshard_error *err)
{
    struct reshard_report_lists *lists = calloc(1, sizeof(*lists));
    reshard_report made = { .lists = lists };
    if (!lists || !all_notes_keep(lists, conversion) || !files_keep(lists, conversion->target.catalog, conversion->plan) ||
        (tell_moves && !report_moves_keep(lists, conversion->plan))) {
        lists_free(lists);
        return error_set_memory(err);
    }
    report_count(conversion, &made);
    made.source_format = arena_printf(&lists->arena, "%s", conversion->source->source->catalog->format);
    made.target_format = arena_printf(&lists->arena, "%s", conversion->target.catalog->format);
    if (!made.source_format || !made.target_format) {
        lists_free(lists);
        return error_set_memory(err);
    }
    made.file_count = lists->file_count;
    made.note_count = lists->note_count;
    made.move_count = lists->move_count;
    struct_give(out, &made, sizeof(made));
    if (!struct_reaches(out, offsetof(reshard_report, lists) + sizeof(out->lists)))
        lists_free(lists);
    return RESHARD_OK;
}

reshard_status report_give(const struct conversion *conversion, reshard_report *out, reshard_error *err)
{
    return report_make(conversion, false, out, err);
}

void report_give_verified(const struct conversion *conversion, reshard_report *out)
{
    if (!struct_reaches(out, offsetof(reshard_report, verified_bytes) + sizeof(out->verified_bytes)))
        return;
    out->verified_tensors = conversion->verified.tensors;
    out->verified_bytes = conversion->verified.bytes;
}

reshard_status report_give_moves(const struct conversion *conversion, reshard_report *out, reshard_error *err)
{
    return report_make(conversion, true, out, err);
}

struct reshard_report_lists *report_lists_of(const reshard_report *report)
{
    return struct_reaches(report, offsetof(reshard_report, lists) + sizeof(report->lists)) ? report->lists : NULL;
}

API_EXPORT void reshard_report_release(reshard_report *report)
{
    lists_free(report_lists_of(report));
    struct_clear(report, "reshard_report", NULL);
}

API_EXPORT reshard_status reshard_report_file_at(const reshard_report *report, size_t index, reshard_report_file *out)
{
    const struct reshard_report_lists *lists = report_lists_of(report);
    if (!entry_begin(out, "reshard_report_file", index, (lists ? lists->file_count : 0)))
        return RESHARD_ERR_USAGE;
    struct_give(out, &lists->files[index], sizeof(lists->files[index]));
    return RESHARD_OK;
}

API_EXPORT reshard_status reshard_report_note_at(const reshard_report *report, size_t index, reshard_note *out)
{
    const struct reshard_report_lists *lists = report_lists_of(report);
    if (!entry_begin(out, "reshard_note", index, (lists ? lists->note_count : 0)))
        return RESHARD_ERR_USAGE;
    struct_give(out, &lists->notes[index], sizeof(lists->notes[index]));
    return RESHARD_OK;
}
