/* SPDX-License-Identifier: Apache-2.0 */
#include "api/mapping_spelling.h"

#include <stdlib.h>

/* ---- keys ---- */

#define NAME "$NAME"
#define STATE "$STATE"

/* A pattern of a state's key: begin, a placeholder, between, the other one, end. */
struct state_pattern {
    struct str begin, between, end;
    bool is_name_first;
};

static bool find_text(struct str text, const char *part, size_t *at)
{
    const char *found = text.data ? memmem(text.data, text.size, part, strlen(part)) : NULL;
    *at = found ? (size_t)(found - text.data) : 0;
    return found != NULL;
}

static bool read_pattern(struct str text, struct state_pattern *out)
{
    size_t name, state;
    if (!find_text(text, NAME, &name) || !find_text(text, STATE, &state))
        return false;
    out->is_name_first = name < state;
    size_t first = out->is_name_first ? name : state, first_end = first + (out->is_name_first ? strlen(NAME) : strlen(STATE));
    size_t second = out->is_name_first ? state : name, second_end = second + (out->is_name_first ? strlen(STATE) : strlen(NAME));
    out->begin = (struct str){ text.data, first };
    out->between = (struct str){ text.data + first_end, second - first_end };
    out->end = (struct str){ text.data + second_end, text.size - second_end };
    return true;
}

static bool starts_with(struct str text, struct str part)
{
    return text.size >= part.size && (!part.size || memcmp(text.data, part.data, part.size) == 0);
}

/* Cuts a state's key. The word for the state is one part between dots, so there is one way to. */
static bool match_state(const struct state_pattern *pattern, struct str key, struct str *name, struct str *state)
{
    size_t fixed = pattern->begin.size + pattern->end.size;
    if (!pattern->between.size || key.size <= fixed || !starts_with(key, pattern->begin) ||
        !starts_with((struct str){ key.data + key.size - pattern->end.size, pattern->end.size }, pattern->end))
        return false;
    struct str rest = { key.data + pattern->begin.size, key.size - fixed };
    size_t word = 0;
    if (pattern->is_name_first) {
        while (word < rest.size && rest.data[rest.size - word - 1] != '.')
            word++;
    } else {
        while (word < rest.size && rest.data[word] != '.')
            word++;
    }
    size_t used = word + pattern->between.size;
    if (!word || rest.size <= used)
        return false;
    *state = (struct str){ pattern->is_name_first ? rest.data + rest.size - word : rest.data, word };
    *name = (struct str){ pattern->is_name_first ? rest.data : rest.data + used, rest.size - used };
    const char *between = pattern->is_name_first ? name->data + name->size : rest.data + word;
    return starts_with((struct str){ between, pattern->between.size }, pattern->between);
}

static void append_state(const struct state_pattern *pattern, struct str name, struct str state, struct buffer *out)
{
    buffer_append_str(out, pattern->begin);
    buffer_append_str(out, pattern->is_name_first ? name : state);
    buffer_append_str(out, pattern->between);
    buffer_append_str(out, pattern->is_name_first ? state : name);
    buffer_append_str(out, pattern->end);
}

/* Puts the name's own word in place of the alias, where a name has it. */
static void append_name(const struct mapping_spelling *spelling, struct str name, bool is_back, struct buffer *out)
{
    const char *found = is_back && spelling->alias.size ? memmem(name.data, name.size, spelling->alias.data, spelling->alias.size) : NULL;
    size_t before = found ? (size_t)(found - name.data) : name.size, used = found ? before + spelling->alias.size : before;
    buffer_append(out, name.data, before);
    if (found)
        buffer_append_str(out, spelling->alias_of);
    buffer_append(out, name.data + used, name.size - used);
}

/* The key in the spelling, or, backwards, without it. false without memory. */
static bool spell_key(const struct mapping_spelling *spelling, struct str key, bool is_back, struct buffer *out)
{
    struct state_pattern plain, below;
    struct str name, state;
    bool has_states = read_pattern(spelling->states, &plain) && read_pattern(spelling->states_below, &below);
    if (has_states && match_state(is_back ? &below : &plain, key, &name, &state)) {
        struct buffer own = { 0 };
        append_name(spelling, name, is_back, &own);
        append_state(is_back ? &plain : &below, buffer_str(&own), state, out);
        out->failed |= own.failed;
        buffer_release(&own);
    } else if (spelling->apart.size && starts_with(key, spelling->apart)) {
        buffer_append_str(out, key);
    } else if (!is_back) {
        buffer_append_str(out, spelling->below);
        buffer_append_str(out, key);
    } else {
        bool has = starts_with(key, spelling->below) && key.size > spelling->below.size;
        size_t skipped = has ? spelling->below.size : 0;
        append_name(spelling, (struct str){ key.data + skipped, key.size - skipped }, has, out);
    }
    return !out->failed;
}

/* ---- stages ---- */

static reshard_status copy_recipes(const struct mapping_stage *before, struct mapping_stage *stage, reshard_error *err)
{
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < before->table.count && !status; i++)
        status = recipe_table_append(&stage->table, &before->table.recipes[i], err);
    return status ? status : recipe_table_close(&stage->table, before->table.target_count, err);
}

static reshard_status spell_tensors(const struct map_space *space, const struct mapping_spelling *spelling, bool is_back, struct mapping_stage *stage, reshard_error *err)
{
    struct buffer key = { 0 };
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < map_space_tensor_count(space) && !status; i++) {
        const struct map_tensor *tensor = &space->tensors[i];
        buffer_clear(&key);
        if (!spell_key(spelling, tensor->key, is_back, &key))
            status = error_set_memory(err);
        else
            status = map_space_add(&stage->own, buffer_str(&key), tensor->dtype, tensor->rank, tensor->shape, tensor->shards, tensor->shard_count, err);
    }
    buffer_release(&key);
    return status ? status : map_space_seal(&stage->own, err);
}

reshard_status mapping_apply_spelling(struct mapping_stage **stage, const struct mapping_spelling *spelling, bool is_back, reshard_error *err)
{
    if (!spelling->below.size)
        return RESHARD_OK;
    struct mapping_stage *made = calloc(1, sizeof(*made));
    if (!made)
        return error_set_memory(err);
    made->space = &made->own;
    reshard_status status = spell_tensors((*stage)->space, spelling, is_back, made, err);
    if (!status)
        status = copy_recipes(*stage, made, err);
    if (status) {
        mapping_free(made);
        return status;
    }
    made->before = *stage;
    *stage = made;
    return RESHARD_OK;
}
