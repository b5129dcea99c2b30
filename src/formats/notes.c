/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/notes.h"

#include "base/array.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *word;
    bool continues;
} note_kinds[] = {
#define X(id, word, continues) [NOTE_##id] = { word, continues },
    NOTE_KINDS(X)
#undef X
};

PRINTF_LIKE(2, 0) static bool note_format(struct arena *arena, const char *format, va_list args, struct str *out)
{
    va_list again;
    va_copy(again, args);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = size < 0 ? NULL : arena_alloc(arena, (size_t)size + 1);
    if (!text)
        return false;
    vsnprintf(text, (size_t)size + 1, format, args);
    *out = (struct str){ text, (size_t)size };
    return true;
}

reshard_status note_add_args(struct note_list *list, struct arena *arena, enum note_kind kind, struct str key, reshard_error *err,
                             const char *format, va_list args)
{
    struct note note = { .kind = kind };
    if (!note_format(arena, format, args, &note.reason) || !arena_str(arena, key, &note.key) ||
        !ARRAY_ROOM(list->notes, list->count, list->capacity))
        return error_set_memory(err);
    list->notes[list->count++] = note;
    return RESHARD_OK;
}

reshard_status note_add(struct note_list *list, struct arena *arena, enum note_kind kind, struct str key, reshard_error *err,
                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    reshard_status status = note_add_args(list, arena, kind, key, err, format, args);
    va_end(args);
    return status;
}

reshard_status note_list_keys(const struct note_list *list, bool is_of_ties, struct name_map *out, reshard_error *err)
{
    for (uint32_t i = 0; i < list->count; i++)
        if ((!is_of_ties || list->notes[i].kind == NOTE_TIE) && name_map_intern(out, list->notes[i].key, NULL) == NAME_NONE)
            return error_set_memory(err);
    return RESHARD_OK;
}

void note_list_release(struct note_list *list)
{
    free(list->notes);
    *list = (struct note_list){ 0 };
}

const char *note_kind_word(enum note_kind kind)
{
    return note_kinds[kind].word;
}

void note_print(const struct note *note, struct buffer *out)
{
    bool continues = note_kinds[note->kind].continues;
    if (note->key.size) {
        buffer_append_text(out, continues ? "'" : "");
        buffer_append_str(out, note->key);
        buffer_append_text(out, continues ? "' " : ": ");
    }
    buffer_append_str(out, note->reason);
}
