/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_pattern.h"

const char *const map_hole_text[MAP_HOLE_KINDS] = {
    [MAP_HOLE_EXPERT] = "$EXPERT_ID", [MAP_HOLE_LAYER] = "$LAYER_ID", [MAP_HOLE_OFFSET] = "$LAYER_ID_OFFSET", [MAP_HOLE_STAR] = "*"
};

bool map_contains(struct str text, const char *part)
{
    size_t size = strlen(part);
    return size <= text.size && memmem(text.data, text.size, part, size) != NULL;
}

static bool is_whole_part(struct str name, size_t at)
{
    return at > 0 && name.data[at - 1] == '.' && (at + 1 == name.size || name.data[at + 1] == '.');
}

/* The kind of hole that starts at name.data[at]; MAP_HOLE_KINDS if none. The longest text wins: one is the beginning of another. */
static enum map_hole hole_at(struct str name, size_t at, unsigned kinds, bool whole_stars)
{
    static const enum map_hole order[] = { MAP_HOLE_OFFSET, MAP_HOLE_LAYER, MAP_HOLE_EXPERT, MAP_HOLE_STAR };
    struct str rest = { name.data + at, name.size - at };
    for (size_t i = 0; i < MAP_HOLE_KINDS; i++) {
        if (!(kinds & 1u << order[i]) || !str_starts_with(rest, map_hole_text[order[i]]))
            continue;
        if (order[i] != MAP_HOLE_STAR || !whole_stars || is_whole_part(name, at))
            return order[i];
    }
    return MAP_HOLE_KINDS;
}

bool map_pattern_of(struct str name, unsigned kinds, bool whole_stars, struct map_pattern *out)
{
    size_t start = 0;
    out->count = 0;
    for (size_t at = 0; at < name.size;) {
        enum map_hole hole = name.data[at] == '$' || name.data[at] == '*' ? hole_at(name, at, kinds, whole_stars) : MAP_HOLE_KINDS;
        if (hole == MAP_HOLE_KINDS) {
            at++;
            continue;
        }
        if (out->count == MAP_HOLES_MAX)
            return false;
        out->literals[out->count] = (struct str){ name.data + start, at - start };
        out->holes[out->count++] = hole;
        at += strlen(map_hole_text[hole]);
        start = at;
    }
    out->literals[out->count] = (struct str){ name.data + start, name.size - start };
    return true;
}

static size_t digit_run(struct str name, size_t at)
{
    size_t size = 0;
    while (at + size < name.size && name.data[at + size] >= '0' && name.data[at + size] <= '9')
        size++;
    return size;
}

static bool stands_at(struct str literal, struct str name, size_t at)
{
    return literal.size <= name.size - at && (literal.size == 0 || memcmp(name.data + at, literal.data, literal.size) == 0);
}

static bool agrees(const struct map_pattern *pattern, struct str name, const size_t *starts, const size_t *sizes, int hole)
{
    struct str digits = { name.data + starts[hole], sizes[hole] };
    for (int i = 0; i < hole; i++) {
        if (pattern->holes[i] != pattern->holes[hole] || pattern->holes[i] == MAP_HOLE_STAR)
            continue;
        if (!str_equal(digits, (struct str){ name.data + starts[i], sizes[i] }))
            return false;
    }
    return true;
}

/* Each hole takes as many digits as it can; where the rest does not fit, the last one that can gives one back. */
bool map_pattern_match(const struct map_pattern *pattern, struct str name, struct str values[MAP_HOLE_KINDS])
{
    size_t starts[MAP_HOLES_MAX], sizes[MAP_HOLES_MAX];
    int hole = 0, last = pattern->count - 1;
    if (!stands_at(pattern->literals[0], name, 0))
        return false;
    if (!pattern->count)
        return name.size == pattern->literals[0].size;
    starts[0] = pattern->literals[0].size;
    sizes[0] = digit_run(name, starts[0]);
    while (hole >= 0) {
        if (sizes[hole] == 0) {
            if (--hole >= 0)
                sizes[hole]--;
            continue;
        }
        struct str literal = pattern->literals[hole + 1];
        size_t next = starts[hole] + sizes[hole];
        bool fits = stands_at(literal, name, next) && agrees(pattern, name, starts, sizes, hole);
        if (fits && hole < last) {
            hole++;
            starts[hole] = next + literal.size;
            sizes[hole] = digit_run(name, starts[hole]);
        } else if (fits && next + literal.size == name.size) {
            break;
        } else {
            sizes[hole]--;
        }
    }
    for (int i = 0; hole >= 0 && i < pattern->count; i++)
        values[pattern->holes[i]] = (struct str){ name.data + starts[i], sizes[i] };
    return hole >= 0;
}

static struct str map_pattern_without_zeros(struct str digits)
{
    while (digits.size > 1 && digits.data[0] == '0')
        digits = (struct str){ digits.data + 1, digits.size - 1 };
    return digits;
}

int map_digits_compare(struct str a, struct str b)
{
    struct str x = map_pattern_without_zeros(a), y = map_pattern_without_zeros(b);
    if (x.size != y.size)
        return x.size < y.size ? -1 : 1;
    int order = str_compare(x, y);
    return order ? order : str_compare(a, b);
}
