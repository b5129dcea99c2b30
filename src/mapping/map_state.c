/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_state.h"

const char *const map_state_name[MAP_STATE_COUNT] = {
#define X(id, name, suffix, shaped, torch, other) name,
    MAP_STATES(X)
#undef X
};

const bool map_state_is_shaped[MAP_STATE_COUNT] = {
#define X(id, name, suffix, shaped, torch, other) shaped,
    MAP_STATES(X)
#undef X
};

static const char *const suffixes[MAP_STATE_COUNT] = {
#define X(id, name, suffix, shaped, torch, other) suffix,
    MAP_STATES(X)
#undef X
};

static const char *const words[MAP_STATE_COUNT][2] = {
#define X(id, name, suffix, shaped, torch, other) { torch, other },
    MAP_STATES(X)
#undef X
};

enum map_state map_state_of(struct str key, struct str *name)
{
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT; state++) {
        size_t size = suffixes[state] ? strlen(suffixes[state]) : 0;
        if (size && key.size > size && str_ends_with(key, suffixes[state])) {
            *name = (struct str){ key.data, key.size - size };
            return state;
        }
    }
    *name = key;
    return MAP_STATE_WEIGHT;
}

static bool key_below(struct str key, const char *family, struct str *rest)
{
    size_t size = strlen(family);
    if (key.size <= size || !str_starts_with(key, family))
        return false;
    *rest = (struct str){ key.data + size, key.size - size };
    return true;
}

/* By Paddle's suffix without its dot. */
static enum map_state state_of_suffix(struct str word)
{
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT; state++) {
        if (suffixes[state] && str_is(word, suffixes[state] + 1))
            return state;
    }
    return MAP_STATE_WEIGHT;
}

bool map_state_of_family(struct str key, struct map_state_key *out)
{
    *out = (struct map_state_key){ .state = MAP_STATE_WEIGHT };
    if (key_below(key, "model:", &out->name))
        return true;
    if (key_below(key, "master_weights:", &out->name)) {
        out->state = MAP_STATE_MASTER;
        return true;
    }
    struct str rest;
    if (!key_below(key, "optimizer:", &rest))
        return false;
    size_t at = rest.size;
    while (at && rest.data[at - 1] != '/')
        at--;
    out->state = at > 1 ? state_of_suffix((struct str){ rest.data + at, rest.size - at }) : MAP_STATE_WEIGHT;
    out->name = (struct str){ rest.data, at ? at - 1 : 0 };
    return out->state != MAP_STATE_WEIGHT;
}

static enum map_state state_of_word(struct str word)
{
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT; state++) {
        for (int i = 0; i < 2; i++) {
            if (words[state][i] && str_is(word, words[state][i]))
                return state;
        }
    }
    return MAP_STATE_WEIGHT;
}

static struct str part(struct str text, size_t from, size_t to)
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
static bool read_suffix(struct str key, char mark, struct map_state_key *out)
{
    size_t at = key.size;
    while (at && key.data[at - 1] != mark)
        at--;
    if (at < 2)
        return false;
    *out = (struct map_state_key){ state_of_word(part(key, at, key.size)), part(key, 0, at - 1), { key.data, 0 } };
    return out->state != MAP_STATE_WEIGHT;
}

/* Behind "state." the first part, or the last one, is the state's name. */
static bool read_behind(struct str key, size_t start, bool is_first, struct map_state_key *out)
{
    size_t dot = is_first ? start : key.size;
    if (is_first) {
        while (dot < key.size && key.data[dot] != '.')
            dot++;
    } else {
        while (dot > start && key.data[dot - 1] != '.')
            dot--;
    }
    if (dot <= start || dot + 1 >= key.size)
        return false;
    out->before = part(key, 0, start - strlen("state."));
    out->state = state_of_word(is_first ? part(key, start, dot) : part(key, dot, key.size));
    out->name = is_first ? part(key, dot + 1, key.size) : part(key, start, dot - 1);
    return out->state != MAP_STATE_WEIGHT && out->name.size;
}

bool map_state_reading(struct str key, int index, struct map_state_key *out)
{
    for (int occurrence = 0;; occurrence++) {
        size_t start = behind_state(key, occurrence);
        if (!start)
            break;
        for (int is_first = 1; is_first >= 0; is_first--) {
            if (read_behind(key, start, is_first, out) && index-- == 0)
                return true;
        }
    }
    if (read_suffix(key, '-', out) && index-- == 0)
        return true;
    return read_suffix(key, '.', out) && index == 0;
}
