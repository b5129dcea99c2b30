/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping/map_state.h"

#include "parallel/state_keys.h"

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

const char *map_state_paddle_word(enum map_state state)
{
    if (suffixes[state])
        return state == MAP_STATE_WEIGHT ? NULL : suffixes[state] + 1;
    return words[state][1];
}

const char *map_state_paddle_word_of(struct str word)
{
    for (enum map_state state = MAP_STATE_MASTER; state < MAP_STATE_COUNT; state++) {
        const char *paddle = map_state_paddle_word(state);
        for (int i = 0; paddle && i < 2; i++) {
            if (words[state][i] && words[state][i] != paddle && str_is(word, words[state][i]))
                return paddle;
        }
    }
    return NULL;
}

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
    const size_t at = str_folder(rest).size;
    out->state = at > 1 ? state_of_suffix(str_base_name(rest)) : MAP_STATE_WEIGHT;
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

static bool is_state_word(struct str word)
{
    return state_of_word(word) != MAP_STATE_WEIGHT;
}

bool map_state_reading(struct str key, int index, struct map_state_key *out)
{
    struct state_spelling read;
    if (!state_spelling_read(key, index, is_state_word, &read))
        return false;
    *out = (struct map_state_key){ state_of_word(read.state), read.name, read.before };
    return true;
}
