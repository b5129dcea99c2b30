/* SPDX-License-Identifier: Apache-2.0 */
#include "note_groups.h"

#include "command_words.h"
#include "output.h"
#include "roll_up.h"

#include <stdlib.h>
#include <string.h>

#define LINES_SHOWN 10
#define GROUP_LEAST 3 /* fewer notes are shown one by one */

/* Notes of one kind whose names have the same first part, numbers apart. */
struct note_group {
    size_t first, count; /* the first note, and how many there are */
    char *module;        /* its name with a star for each number */
    size_t common;       /* bytes of it that all have */
    bool has_reasons;    /* not one for all */
};

struct note_lines {
    const struct options *options;
    const reshard_report *report;
    struct roll_up names;
    struct note_group *groups; /* by name */
    size_t room;
};

static bool is_separator(char c)
{
    return c == '.' || c == '/';
}

/* A name of its group: of notes without a name each is one. NULL: out of memory. */
static char *group_name(const reshard_note *note, const char *module, size_t index)
{
    char *name = NULL;
    int first = module ? (int)strcspn(module, "./") : 0;
    int size = note->key.size ? asprintf(&name, "%s %.*s", note->kind, first, module) : asprintf(&name, "%zu", index);
    return size < 0 ? NULL : name;
}

static bool add_group(struct note_lines *lines, size_t number, size_t index, char *module)
{
    if (number >= lines->room) {
        size_t room = 2 * lines->room + 16;
        struct note_group *grown = reallocarray(lines->groups, room, sizeof(*grown));
        if (!grown)
            return false;
        memset(grown + lines->room, 0, (room - lines->room) * sizeof(*grown));
        lines->groups = grown;
        lines->room = room;
    }
    lines->groups[number] = (struct note_group){ index, 1, module, module ? strlen(module) : 0, false };
    return true;
}

static void join_group(const struct note_lines *lines, struct note_group *group, const reshard_note *note, const char *module)
{
    reshard_note first = RESHARD_NOTE_INIT;
    size_t common = 0;
    reshard_report_note_at(lines->report, group->first, &first);
    while (common < group->common && module[common] == group->module[common])
        common++;
    group->common = common;
    group->count++;
    group->has_reasons |= first.reason.size != note->reason.size || memcmp(first.reason.data, note->reason.data, first.reason.size) != 0;
}

/* false: out of memory. */
static bool note_to_group(struct note_lines *lines, const reshard_note *note, size_t index, size_t *out)
{
    char *module = note->key.size ? module_name(note->key) : NULL;
    char *name = module || !note->key.size ? group_name(note, module, index) : NULL;
    size_t known = lines->names.count, number = name ? roll_up_number(&lines->names, name) : (size_t)-1;
    bool is_kept = number != (size_t)-1;
    *out = number;
    free(name);
    if (is_kept && number == known) {
        is_kept = add_group(lines, number, index, module);
        module = is_kept ? NULL : module; /* taken over */
    } else if (is_kept && module) {
        join_group(lines, &lines->groups[number], note, module);
    }
    free(module);
    return is_kept;
}

static void print_one(FILE *out, const reshard_note *note, const char *word, const char *between)
{
    const char *text = command_words(note->text.data);
    fprintf(out, "%s%s", word, between);
    print_text(out, text, strlen(text));
    putc('\n', out);
}

/* "optim.param_groups.* (12): dict, which …"; where reasons differ, the first, as an example. */
static void print_group(FILE *out, const struct note_lines *lines, const struct note_group *group, const char *word, const char *between)
{
    reshard_note note = RESHARD_NOTE_INIT;
    size_t size = group->common;
    reshard_report_note_at(lines->report, group->first, &note);
    bool is_whole = !group->module[size];
    while (!is_whole && size && !is_separator(group->module[size - 1]))
        size--;
    fprintf(out, "%s%s", word, between);
    print_escaped(out, group->module, size);
    fprintf(out, "%s (%zu): ", is_whole ? "" : "*", group->count);
    const char *reason = command_words(note.reason.data);
    print_text(out, reason, strlen(reason));
    fputs(group->has_reasons ? ", …\n" : "\n", out);
}

static bool is_grouped_kind(const struct note_lines *lines, int what)
{
    return !lines->options->verbose && what != RESHARD_NOTE_WARNING;
}

/* The group of each note of the kind, malloc'd; NULL: they stand one by one, as they do without memory. */
static size_t *group_notes(struct note_lines *lines, int what)
{
    reshard_note note = RESHARD_NOTE_INIT;
    size_t count = 0;
    while (reshard_report_note_at(lines->report, count, &note) == RESHARD_OK)
        count++;
    size_t *group_of = is_grouped_kind(lines, what) ? calloc(count + 1, sizeof(*group_of)) : NULL;
    bool is_grouped = group_of != NULL;
    for (size_t i = 0; is_grouped && i < count; i++) {
        reshard_report_note_at(lines->report, i, &note);
        is_grouped = note.what != what || note_to_group(lines, &note, i, &group_of[i]);
    }
    if (is_grouped)
        return group_of;
    free(group_of);
    return NULL;
}

/* Several notes of one name are no group. */
static bool stands_for_many(const struct note_group *group)
{
    return group->count >= GROUP_LEAST && (group->module[group->common] || strchr(group->module, '*'));
}

/* false: without memory. */
static bool print_kind(FILE *out, struct note_lines *lines, const char *word, const char *between, int what)
{
    reshard_note note = RESHARD_NOTE_INIT;
    size_t shown = 0, left = 0, *group_of = group_notes(lines, what);
    for (size_t i = 0; reshard_report_note_at(lines->report, i, &note) == RESHARD_OK; i++) {
        const struct note_group *group = group_of && note.what == what ? &lines->groups[group_of[i]] : NULL;
        const bool is_group = group && stands_for_many(group);
        if (note.what != what || (is_group && group->first != i))
            continue;
        if (shown++ >= LINES_SHOWN && !lines->options->verbose)
            left += is_group ? group->count : 1;
        else if (is_group)
            print_group(out, lines, group, word, between);
        else
            print_one(out, &note, word, between);
    }
    if (left)
        fprintf(out, "%s%s%zu more; --verbose shows all\n", word, between, left);
    const bool is_good = group_of || !is_grouped_kind(lines, what);
    free(group_of);
    return is_good;
}

static void note_lines_release(struct note_lines *lines)
{
    for (size_t i = 0; i < lines->names.count && i < lines->room; i++)
        free(lines->groups[i].module);
    free(lines->groups);
    roll_up_release(&lines->names);
}

bool print_notes(FILE *out, const struct options *options, const reshard_report *report, const char *between)
{
    static const char *const words[] = { "dropped", "changed", "warning" };
    bool is_good = true;
    for (int what = RESHARD_NOTE_DROPPED; what <= RESHARD_NOTE_WARNING; what++) {
        struct note_lines lines = { .options = options, .report = report };
        is_good &= print_kind(out, &lines, words[what], between, what);
        note_lines_release(&lines);
    }
    return is_good;
}
