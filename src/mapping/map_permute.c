/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_permute.h"

static size_t map_permute_skip_blanks(struct str text, size_t at)
{
    while (at < text.size && (text.data[at] == ' ' || text.data[at] == '\t' || text.data[at] == '\n' || text.data[at] == '\r'))
        at++;
    return at;
}

static bool read_integer(struct str text, size_t *at, int64_t *out)
{
    bool is_negative = *at < text.size && text.data[*at] == '-';
    size_t digit = *at + is_negative, start = digit;
    int64_t value = 0;
    for (; digit < text.size && text.data[digit] >= '0' && text.data[digit] <= '9'; digit++) {
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, text.data[digit] - '0', &value))
            return false;
    }
    *at = digit;
    *out = is_negative ? -value : value;
    return digit > start;
}

enum map_list_result map_list_parse(struct str text, int64_t values[RANK_MAX], int *count)
{
    size_t at = map_permute_skip_blanks(text, 0);
    *count = 0;
    if (at >= text.size || text.data[at] != '[')
        return MAP_LIST_NO_LIST;
    at = map_permute_skip_blanks(text, at + 1);
    while (at < text.size && text.data[at] != ']') {
        if (*count == RANK_MAX)
            return MAP_LIST_TOO_LONG;
        if (!read_integer(text, &at, &values[*count]))
            return MAP_LIST_NO_LIST;
        (*count)++;
        at = map_permute_skip_blanks(text, at);
        if (at < text.size && text.data[at] == ',')
            at = map_permute_skip_blanks(text, at + 1);
        else if (at >= text.size || text.data[at] != ']')
            return MAP_LIST_NO_LIST;
    }
    return at < text.size && map_permute_skip_blanks(text, at + 1) == text.size ? MAP_LIST_OK : MAP_LIST_NO_LIST;
}

bool map_permutation_of(const int64_t *values, int count, int rank, uint8_t axes[RANK_MAX])
{
    bool seen[RANK_MAX] = { false };
    if (count == 0) {
        for (int i = 0; i < rank; i++)
            axes[i] = (uint8_t)(rank - 1 - i);
        return true;
    }
    if (count != rank)
        return false;
    for (int i = 0; i < rank; i++) {
        if (values[i] < 0 || values[i] >= rank || seen[values[i]])
            return false;
        seen[values[i]] = true;
        axes[i] = (uint8_t)values[i];
    }
    return true;
}
