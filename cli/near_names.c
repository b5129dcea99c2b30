/* SPDX-License-Identifier: Apache-2.0 */
#include "near_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define WORD_MAX 200

/* Names are told apart by their letters; case and the kind of dash are what people get wrong. */
static int folded(char c)
{
    return c == '_' ? '-' : tolower((unsigned char)c);
}

/* Edits (insert, delete, replace) from a to b. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t rows = strlen(a), columns = strlen(b);
    size_t line[WORD_MAX + 1];
    if (rows > WORD_MAX || columns > WORD_MAX)
        return WORD_MAX;
    for (size_t j = 0; j <= columns; j++)
        line[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = line[0];
        line[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = diagonal + (folded(a[i - 1]) != folded(b[j - 1]));
            diagonal = line[j];
            if (line[j] + 1 < best)
                best = line[j] + 1;
            if (line[j - 1] + 1 < best)
                best = line[j - 1] + 1;
            line[j] = best;
        }
    }
    return line[columns];
}

void near_names_offer(struct near_names *near, const char *name)
{
    size_t size = strlen(near->word), distance = edit_distance(near->word, name);
    if (size >= 3 && strncmp(near->word, name, size) == 0 && distance > 1)
        distance = 1;
    if (distance > 1 + size / 4 || distance >= size)
        return;
    size_t at = near->count < NEAR_NAMES_MAX ? near->count : NEAR_NAMES_MAX;
    while (at > 0 && near->distances[at - 1] > distance)
        at--;
    if (at == NEAR_NAMES_MAX)
        return;
    for (size_t i = NEAR_NAMES_MAX - 1; i > at; i--) {
        near->names[i] = near->names[i - 1];
        near->distances[i] = near->distances[i - 1];
    }
    near->names[at] = name;
    near->distances[at] = distance;
    near->count += near->count < NEAR_NAMES_MAX;
}

void near_names_know(struct near_names *near, const char *word, const char *name)
{
    size_t at = 0;
    for (; word[at] && folded(word[at]) == folded(near->word[at]); at++)
        continue;
    if (word[at] || near->word[at])
        return;
    if (near->count && near->distances[0]) /* a guess */
        near->count = 0;
    if (near->count < NEAR_NAMES_MAX) {
        near->names[near->count] = name;
        near->distances[near->count++] = 0;
    }
}

const char *near_names_hint(const struct near_names *near, const char *otherwise, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "%s", near->count ? "did you mean " : otherwise);
    for (size_t i = 0; i < near->count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s'%s%s'%s", i ? " or " : "", near->prefix ? near->prefix : "", near->names[i],
                                 i + 1 == near->count ? "?" : "");
    return out;
}
