/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights by the outline of their names: `model.layers.3.mlp.weight` has the outline `model.layers.#.mlp.weight`. A model of a million
 * keys has a few dozen outlines, so a statement with placeholders looks only at the keys that can match.
 */
#include "mapping/map_space.h"

#include "base/array.h"

#include <stdlib.h>

static bool map_outline_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Appends the name with '#' for every part between dots that is all digits. */
static bool append_outline(struct str name, struct buffer *out)
{
    for (size_t at = 0; at < name.size;) {
        const char *dot = memchr(name.data + at, '.', name.size - at);
        size_t end = dot ? (size_t)(dot - name.data) : name.size, digits = at;
        while (digits < end && map_outline_is_digit(name.data[digits]))
            digits++;
        if (digits == end && end > at)
            buffer_append_byte(out, '#');
        else
            buffer_append(out, name.data + at, end - at);
        if (dot)
            buffer_append_byte(out, '.');
        at = end + 1;
    }
    return !out->failed;
}

/* Groups the sorted weights, keeping their order. of: the outline of each. */
static void group(struct map_space *space, const uint32_t *of)
{
    uint32_t count = space->outlines.count, *next = space->outline_first + 1;
    for (uint32_t i = 0; i < space->sorted_count; i++)
        next[of[i] + 1]++;
    for (uint32_t i = 1; i <= count; i++)
        next[i] += next[i - 1];
    for (uint32_t i = 0; i < space->sorted_count; i++)
        space->outline_weights[next[of[i]]++] = space->sorted[i];
}

reshard_status map_space_outline(struct map_space *space, reshard_error *err)
{
    struct buffer text = { 0 };
    uint32_t *of = array_zeroed(space->sorted_count, sizeof(*of));
    reshard_status status = of ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < space->sorted_count && !status; i++) {
        buffer_clear(&text);
        bool done = append_outline(space->weights[space->sorted[i]].name, &text);
        of[i] = done ? name_map_intern(&space->outlines, buffer_str(&text), NULL) : NAME_NONE;
        status = of[i] == NAME_NONE ? error_set_memory(err) : RESHARD_OK;
    }
    if (!status) {
        space->outline_first = arena_zalloc(&space->arena, ((size_t)space->outlines.count + 2) * sizeof(*space->outline_first));
        space->outline_weights = arena_array(&space->arena, space->sorted_count, sizeof(*space->outline_weights));
        status = space->outline_first && space->outline_weights ? RESHARD_OK : error_set_memory(err);
    }
    if (!status)
        group(space, of);
    buffer_release(&text);
    free(of);
    return status;
}

static bool is_hole_whole(const struct map_pattern *pattern, int hole)
{
    struct str before = pattern->literals[hole], behind = pattern->literals[hole + 1];
    bool begins = before.size ? before.data[before.size - 1] == '.' : hole == 0,
         ends = behind.size ? behind.data[0] == '.' : hole + 1 == pattern->count;
    return begins && ends;
}

bool map_space_candidates(const struct map_space *space, const struct map_pattern *pattern, const uint32_t **weights, uint32_t *count)
{
    struct buffer text = { 0 }, outline = { 0 };
    uint32_t first, end;
    bool is_whole = true;
    for (int i = 0; i < pattern->count; i++)
        is_whole &= is_hole_whole(pattern, i);
    if (!is_whole) {
        map_space_prefix(space, pattern->literals[0], &first, &end);
        *weights = space->sorted + first;
        *count = end - first;
        return true;
    }
    for (int i = 0; i <= pattern->count; i++) {
        buffer_append_str(&text, pattern->literals[i]);
        buffer_append_text(&text, i < pattern->count ? "0" : "");
    }
    bool done = !text.failed && append_outline(buffer_str(&text), &outline);
    uint32_t found = done ? name_map_find(&space->outlines, buffer_str(&outline)) : NAME_NONE;
    *count = found == NAME_NONE ? 0 : space->outline_first[found + 1] - space->outline_first[found];
    *weights = *count ? space->outline_weights + space->outline_first[found] : space->outline_weights;
    buffer_release(&text);
    buffer_release(&outline);
    return done;
}
