/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_keys.h"

static struct str spelling_part(struct str text, size_t from, size_t to)
{
    return (struct str){ text.data + from, to - from };
}

/* Behind the index-th part "state." of the key; 0 if there are fewer. */
static size_t behind_state(struct str key, int index)
{
    static const char word[] = "state.";
    const size_t size = sizeof(word) - 1;
    for (size_t at = 0; at + size < key.size; at++) {
        const char *found = memmem(key.data + at, key.size - at, word, size);
        if (!found)
            return 0;
        at = (size_t)(found - key.data);
        if ((at == 0 || key.data[at - 1] == '.') && index-- == 0)
            return at + size < key.size ? at + size : 0;
    }
    return 0;
}

/* w-exp_avg, w.exp_avg */
static bool read_suffix(struct str key, char mark, struct state_spelling *out)
{
    size_t at = key.size;
    while (at && key.data[at - 1] != mark)
        at--;
    if (at < 2)
        return false;
    *out = (struct state_spelling){ spelling_part(key, at, key.size), spelling_part(key, 0, at - 1), { key.data, 0 } };
    return true;
}

/* Behind "state." the first part, or the last one, is the state's name. */
static bool read_behind(struct str key, size_t start, bool is_first, struct state_spelling *out)
{
    size_t dot = is_first ? start : key.size;
    if (is_first) {
        while (dot < key.size && key.data[dot] != '.')
            dot++;
    } else {
        while (dot > start && key.data[dot - 1] != '.')
            dot--;
    }
    if (dot <= start || dot + is_first >= key.size) /* names of one letter are some, such as z of schedule-free optimizers */
        return false;
    out->before = spelling_part(key, 0, start - strlen("state."));
    out->state = is_first ? spelling_part(key, start, dot) : spelling_part(key, dot, key.size);
    out->name = is_first ? spelling_part(key, dot + 1, key.size) : spelling_part(key, start, dot - 1);
    return out->name.size > 0;
}

bool state_spelling_read(struct str key, int index, bool (*is_state)(struct str word), struct state_spelling *out)
{
    for (int occurrence = 0;; occurrence++) {
        size_t start = behind_state(key, occurrence);
        if (!start)
            break;
        for (int is_first = 1; is_first >= 0; is_first--) {
            if (read_behind(key, start, is_first, out) && is_state(out->state) && index-- == 0)
                return true;
        }
    }
    if (read_suffix(key, '-', out) && is_state(out->state) && index-- == 0)
        return true;
    return read_suffix(key, '.', out) && is_state(out->state) && index == 0;
}
