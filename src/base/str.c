/* SPDX-License-Identifier: Apache-2.0 */
#include "base/str.h"

#include <stdlib.h>

#include "base/checked.h"

int str_compare(struct str a, struct str b)
{
    size_t shared = a.size < b.size ? a.size : b.size;
    int order = shared ? memcmp(a.data, b.data, shared) : 0;
    if (order)
        return order;
    return (a.size > b.size) - (a.size < b.size);
}

bool str_begins(struct str s, struct str prefix)
{
    return s.size >= prefix.size && (prefix.size == 0 || memcmp(s.data, prefix.data, prefix.size) == 0);
}

bool str_starts_with(struct str s, const char *prefix)
{
    return str_begins(s, str_of(prefix));
}

bool str_ends_with(struct str s, const char *suffix)
{
    size_t size = strlen(suffix);
    return s.size >= size && (size == 0 || memcmp(s.data + (s.size - size), suffix, size) == 0);
}

bool str_find_char(struct str s, char c, size_t *index)
{
    const char *found = s.size ? memchr(s.data, c, s.size) : NULL;
    if (!found)
        return false;
    *index = (size_t)(found - s.data);
    return true;
}

struct str str_take(struct str *rest, char separator)
{
    struct str part = *rest;
    bool is_there = str_find_char(*rest, separator, &part.size);
    size_t used = part.size + is_there;
    *rest = used < rest->size ? (struct str){ rest->data + used, rest->size - used } : (struct str){ 0 };
    return part;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

struct str str_take_word(struct str *rest)
{
    size_t begin = 0, end;
    while (begin < rest->size && is_blank(rest->data[begin]))
        begin++;
    for (end = begin; end < rest->size && !is_blank(rest->data[end]);)
        end++;
    struct str word = { rest->data + begin, end - begin };
    *rest = (struct str){ rest->data + end, rest->size - end };
    return word;
}

char *str_copy(struct str s)
{
    char *copy = malloc(s.size + 1);
    if (!copy)
        return NULL;
    if (s.size)
        memcpy(copy, s.data, s.size);
    copy[s.size] = '\0';
    return copy;
}

struct str str_folder(struct str path)
{
    while (path.size && path.data[path.size - 1] != '/')
        path.size--;
    return path;
}

struct str str_base_name(struct str path)
{
    const size_t folder = str_folder(path).size;
    return (struct str){ path.data + folder, path.size - folder };
}

struct str str_without_slashes(struct str path)
{
    while (path.size && path.data[path.size - 1] == '/')
        path.size--;
    return path;
}

bool str_to_u64(struct str s, uint64_t *out)
{
    if (s.size == 0 || (s.size > 1 && s.data[0] == '0'))
        return false;
    uint64_t value = 0;
    for (size_t i = 0; i < s.size; i++) {
        if (s.data[i] < '0' || s.data[i] > '9')
            return false;
        if (!checked_mul_u64(value, 10, &value) || !checked_add_u64(value, (uint64_t)(s.data[i] - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool str_hex_at(struct str s, size_t at, size_t count, uint64_t *out)
{
    uint64_t value = 0;
    if (at > s.size || count > s.size - at || count > 16)
        return false;
    for (size_t i = 0; i < count; i++) {
        const int digit = hex_digit(s.data[at + i]);
        if (digit < 0)
            return false;
        value = value << 4 | (uint64_t)digit;
    }
    *out = value;
    return true;
}

/* The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF. */
size_t str_utf8_char(struct str s, size_t at, bool allow_surrogates)
{
    const uint8_t *p = (const uint8_t *)s.data + at;
    size_t left = s.size - at, size;
    uint8_t low = 0x80, high = 0xBF;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xC2)
        return 0;
    if (p[0] < 0xE0) {
        size = 2;
    } else if (p[0] < 0xF0) {
        size = 3;
        low = p[0] == 0xE0 ? 0xA0 : 0x80;
        high = p[0] == 0xED && !allow_surrogates ? 0x9F : 0xBF;
    } else if (p[0] < 0xF5) {
        size = 4;
        low = p[0] == 0xF0 ? 0x90 : 0x80;
        high = p[0] == 0xF4 ? 0x8F : 0xBF;
    } else {
        return 0;
    }
    if (left < size || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < size; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return size;
}

uint32_t str_code_point(struct str s, size_t at, size_t size)
{
    const uint8_t *p = (const uint8_t *)s.data + at;
    uint32_t code = size == 1 ? p[0] : p[0] & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++)
        code = code << 6 | (p[i] & 0x3Fu);
    return code;
}

/*
 * Control characters, line separators, and what is not seen but changes how its neighbours look, or makes two names look alike: Unicode's
 * Default_Ignorable_Code_Point, which holds the bidirectional controls, and the interlinear annotations.
 */
static bool is_invisible(uint32_t code)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        { 0x0, 0x1F },      { 0x7F, 0x9F },       { 0xAD, 0xAD },       { 0x34F, 0x34F },     { 0x61C, 0x61C },
        { 0x115F, 0x1160 }, { 0x17B4, 0x17B5 },   { 0x180B, 0x180F },   { 0x200B, 0x200F },   { 0x2028, 0x202E },
        { 0x2060, 0x206F }, { 0x3164, 0x3164 },   { 0xFE00, 0xFE0F },   { 0xFEFF, 0xFEFF },   { 0xFFA0, 0xFFA0 },
        { 0xFFF0, 0xFFFB }, { 0x1BCA0, 0x1BCA3 }, { 0x1D173, 0x1D17A }, { 0xE0000, 0xE0FFF },
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]) && code >= ranges[i].first; i++) {
        if (code <= ranges[i].last)
            return true;
    }
    return false;
}

size_t str_printable_char(struct str s, size_t at)
{
    size_t size = str_utf8_char(s, at, false);
    return size && is_invisible(str_code_point(s, at, size)) ? 0 : size;
}

bool str_is_utf8(struct str s, bool allow_surrogates, size_t *bad_index)
{
    size_t i = 0;
    while (i < s.size) {
        uint64_t word;
        if (s.size - i >= sizeof(word)) {
            memcpy(&word, s.data + i, sizeof(word));
            if (!(word & UINT64_C(0x8080808080808080))) {
                i += sizeof(word);
                continue;
            }
        }
        size_t size = str_utf8_char(s, i, allow_surrogates);
        if (!size) {
            if (bad_index)
                *bad_index = i;
            return false;
        }
        i += size;
    }
    return true;
}

/*
 * Matches one character against the set that starts after '[' at pattern[*at]; *at moves behind its ']'. A set that is
 * never closed is no set: false is returned with *at unmoved, and the '[' is literal.
 */
static bool glob_set(struct str pattern, size_t *at, uint8_t c, bool *matched)
{
    size_t first = *at;
    bool negated = first < pattern.size && (pattern.data[first] == '!' || pattern.data[first] == '^'), found = false;
    first += negated;
    const char *close = first < pattern.size ? memchr(pattern.data + first + 1, ']', pattern.size - first - 1) : NULL;
    if (!close)
        return false;
    const size_t end = (size_t)(close - pattern.data);
    for (size_t i = first; i < end; i++) {
        uint8_t low = (uint8_t)pattern.data[i], high = low;
        if (end - i > 2 && pattern.data[i + 1] == '-') {
            high = (uint8_t)pattern.data[i + 2];
            i += 2;
        }
        found |= low <= c && c <= high;
    }
    *at = end + 1;
    *matched = found != negated;
    return true;
}

/* On a mismatch only the last '*' can take one character more, so the search is quadratic at worst. */
bool str_matches_glob(struct str s, struct str pattern)
{
    size_t i = 0, p = 0, star = SIZE_MAX, star_i = 0;
    while (i < s.size || p < pattern.size) {
        if (p < pattern.size && pattern.data[p] == '*') {
            star = p++;
            star_i = i;
            continue;
        }
        if (p < pattern.size && i < s.size) {
            size_t next = p + 1;
            bool matched = pattern.data[p] == '?' || pattern.data[p] == s.data[i];
            if (pattern.data[p] == '[' && glob_set(pattern, &next, (uint8_t)s.data[i], &matched)) {
                /* matched and next are the set's */
            }
            if (matched) {
                i++;
                p = next;
                continue;
            }
        }
        if (star == SIZE_MAX || star_i >= s.size)
            return false;
        i = ++star_i;
        p = star + 1;
    }
    return true;
}

size_t str_put_utf8(uint32_t point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}
