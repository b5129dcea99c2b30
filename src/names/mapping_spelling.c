/* SPDX-License-Identifier: Apache-2.0 */
#include "names/mapping_spelling.h"

#include "base/array.h"
#include "base/name_map.h"
#include "parallel/state_keys.h"

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

/* Cuts a state's key. The word for the state has nothing of what is between, so there is one way to. */
static bool match_state(const struct state_pattern *pattern, struct str key, struct str *name, struct str *state)
{
    size_t fixed = pattern->begin.size + pattern->end.size;
    if (!pattern->between.size || key.size <= fixed || !starts_with(key, pattern->begin) ||
        !starts_with((struct str){ key.data + key.size - pattern->end.size, pattern->end.size }, pattern->end))
        return false;
    struct str rest = { key.data + pattern->begin.size, key.size - fixed };
    size_t word = 0;
    if (pattern->is_name_first) {
        while (word < rest.size && rest.data[rest.size - word - 1] != pattern->between.data[pattern->between.size - 1])
            word++;
    } else {
        while (word < rest.size && rest.data[word] != pattern->between.data[0])
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

/* The keys of states on both sides. */
struct state_keys {
    struct state_pattern plain, below;
    struct str beside, words, masters, master_begin, master_end; /* masters_below around $NAME; empty: masters are states like others */
    bool is_there;
};

static bool has_word(struct str words, struct str word)
{
    struct str rest = words, one;
    while ((one = str_take_word(&rest)).size) {
        if (str_equal(one, word))
            return true;
    }
    return false;
}

static struct state_keys state_keys_of(const struct mapping_spelling *spelling)
{
    struct state_keys keys = { .beside = spelling->beside, .words = spelling->words, .masters = spelling->masters };
    size_t name;
    keys.is_there = read_pattern(spelling->states, &keys.plain) && read_pattern(spelling->states_below, &keys.below);
    if (find_text(spelling->masters_below, NAME, &name)) {
        struct str text = spelling->masters_below;
        keys.master_begin = (struct str){ text.data, name };
        keys.master_end = (struct str){ text.data + name + strlen(NAME), text.size - name - strlen(NAME) };
    }
    return keys;
}

/* Whether a word on the side of the text is one of a state. */
static bool state_keys_know(const struct state_keys *keys, struct str word)
{
    size_t at;
    if (!keys->words.size || has_word(keys->masters, word))
        return true;
    return has_word(keys->words, str_find_char(word, '@', &at) ? (struct str){ word.data, at } : word);
}

/* Cuts the key of a state on one side: is_below, that of the spelling. */
static bool state_keys_match(const struct state_keys *keys, struct str key, bool is_below, struct str *name, struct str *state)
{
    size_t fixed = keys->master_begin.size + keys->master_end.size;
    if (!keys->is_there || (!is_below && keys->beside.size && starts_with(key, keys->beside)))
        return false;
    if (is_below && fixed && key.size > fixed && starts_with(key, keys->master_begin) &&
        starts_with((struct str){ key.data + key.size - keys->master_end.size, keys->master_end.size }, keys->master_end)) {
        struct str words = keys->masters;
        *name = (struct str){ key.data + keys->master_begin.size, key.size - fixed };
        *state = str_take_word(&words);
        return true;
    }
    return match_state(is_below ? &keys->below : &keys->plain, key, name, state) && (is_below || state_keys_know(keys, *state));
}

static void state_keys_append(const struct state_keys *keys, struct str name, struct str state, bool is_below, struct buffer *out)
{
    if (is_below && keys->master_begin.size && has_word(keys->masters, state)) {
        buffer_append_str(out, keys->master_begin);
        buffer_append_str(out, name);
        buffer_append_str(out, keys->master_end);
    } else {
        append_state(is_below ? &keys->below : &keys->plain, name, state, out);
    }
}

/* Appends the name with one part in place of another; false if it has none. */
static bool append_replaced(struct str name, struct str part, struct str by, struct buffer *out)
{
    const char *found = part.size ? memmem(name.data, name.size, part.data, part.size) : NULL;
    if (!found)
        return false;
    size_t before = (size_t)(found - name.data), used = before + part.size;
    buffer_append(out, name.data, before);
    buffer_append_str(out, by);
    buffer_append(out, name.data + used, name.size - used);
    return true;
}

/* A name with the part that is called otherwise here, if it has one. */
static void mapping_spelling_append_name(const struct mapping_spelling *spelling, struct str name, bool is_back, struct buffer *out)
{
    bool done = is_back && append_replaced(name, spelling->alias, spelling->alias_of, out);
    for (uint32_t i = 0; i < spelling->pair_count && !done; i++) {
        const struct mapping_pair *pair = &spelling->pairs[i];
        done = append_replaced(name, is_back ? pair->spelled : pair->part, is_back ? pair->part : pair->spelled, out);
    }
    if (!done)
        buffer_append_str(out, name);
}

/* The key in the spelling, or, backwards, without it. false without memory. */
static bool spell_key(const struct mapping_spelling *spelling, struct str key, bool is_back, struct buffer *out)
{
    struct state_keys keys = state_keys_of(spelling);
    struct str name, state;
    if (state_keys_match(&keys, key, is_back, &name, &state)) {
        struct buffer own = { 0 };
        mapping_spelling_append_name(spelling, name, is_back, &own);
        state_keys_append(&keys, buffer_str(&own), state, !is_back, out);
        out->failed |= own.failed;
        buffer_release(&own);
    } else if (spelling->apart.size && starts_with(key, spelling->apart)) {
        buffer_append_str(out, key);
    } else if (!is_back) {
        buffer_append_str(out, spelling->below);
        mapping_spelling_append_name(spelling, key, false, out);
    } else {
        bool has = starts_with(key, spelling->below) && key.size > spelling->below.size;
        size_t skipped = has ? spelling->below.size : 0;
        mapping_spelling_append_name(spelling, (struct str){ key.data + skipped, key.size - skipped }, has || !spelling->below.size, out);
    }
    return !out->failed;
}

/* ---- masters ---- */

/*
 * Where the weights of one side are the masters, the copies of higher precision that an optimizer works on, there is no state of that name
 * on this side. Names of weights that have a state, and of those whose masters are states.
 */
struct masters {
    struct name_map stated, kept;
    struct state_keys keys;
};

static void masters_release(struct masters *masters)
{
    name_map_release(&masters->stated);
    name_map_release(&masters->kept);
}

static reshard_status find_masters(const struct map_space *space, const struct mapping_spelling *spelling, bool is_back,
                                   struct masters *out, reshard_error *err)
{
    out->keys = state_keys_of(spelling);
    for (uint32_t i = 0; i < map_space_tensor_count(space); i++) {
        struct str name, state;
        if (!state_keys_match(&out->keys, space->tensors[i].key, is_back, &name, &state))
            continue;
        bool is_master = has_word(spelling->masters, state);
        if (is_master && space->tensors[i].dtype == DTYPE_I16)
            return state_refuse_remainders(space->tensors[i].key, err);
        struct name_map *names = is_master ? &out->kept : &out->stated;
        if (name_map_intern(names, name, NULL) == NAME_NONE)
            return error_set_memory(err);
    }
    return RESHARD_OK;
}

/* ---- stages ---- */

struct spelling_run {
    const struct mapping_spelling *spelling;
    const struct mapping_stage *before;
    struct mapping_stage *stage;
    enum mapping_masters masters_are;
    const enum dtype *weights; /* dtype of weights that are not their masters; NULL: as stored */
    bool is_back;
    bool has_plain_copies;     /* masters with keys of their own that are copies of their weights, beside others that are not */
    struct masters masters;
    uint32_t *place;  /* tensor of before -> of stage, or MAP_NONE */
    uint32_t *copied; /* tensors of before that come once more, behind all others */
    uint32_t copied_count, made;
    struct buffer key;
};

static reshard_status mapping_spelling_add_tensor(struct spelling_run *run, uint32_t index, enum dtype dtype, reshard_error *err)
{
    const struct map_tensor *tensor = &run->before->space->tensors[index];
    if (run->key.failed)
        return error_set_memory(err);
    return map_space_add(&run->stage->own, buffer_str(&run->key), dtype, tensor->rank, tensor->shape, tensor->shards, tensor->shard_count,
                         err);
}

/* The name of a weight below, if the key is of one. */
static bool weight_below(const struct mapping_spelling *spelling, struct str key, struct str *name)
{
    if (!starts_with(key, spelling->below) || key.size == spelling->below.size)
        return false;
    *name = (struct str){ key.data + spelling->below.size, key.size - spelling->below.size };
    return true;
}

/* Whether a weight is its master too, and is to be a state of its own on the other side. */
static bool is_doubled(const struct spelling_run *run, struct str key)
{
    struct str name;
    if (run->spelling->masters_below.size && !run->weights)
        return false;
    return run->is_back && run->masters_are == MAPPING_MASTERS_ARE_STATES && weight_below(run->spelling, key, &name) &&
           name_map_find(&run->masters.stated, name) != NAME_NONE && name_map_find(&run->masters.kept, name) == NAME_NONE;
}

/* Number of the weight of that name before, or NAME_NONE. */
static uint32_t mapping_spelling_find_weight(const struct spelling_run *run, struct str name, struct buffer *key)
{
    buffer_clear(key);
    if (run->is_back)
        buffer_append_str(key, run->spelling->below);
    buffer_append_str(key, name);
    return key->failed ? NAME_NONE : name_map_find(&run->before->space->keys, buffer_str(key));
}

/* Whether the key is of a master that has one of its own; *is_copy: of a float32 weight. */
static bool is_master_below(struct spelling_run *run, struct str key, bool *is_copy)
{
    struct str name, state;
    if (!run->is_back || !run->spelling->masters_below.size || !state_keys_match(&run->masters.keys, key, true, &name, &state) ||
        !has_word(run->spelling->masters, state))
        return false;
    uint32_t weight = mapping_spelling_find_weight(run, name, &run->key);
    *is_copy = weight != NAME_NONE && run->before->space->tensors[weight].dtype == DTYPE_F32;
    return true;
}

/* Where masters have keys of their own, a float32 weight is there once more as its master, plainly copied: on the other side it is not,
 * unless there is no other master, by which the way back sees that there have to be copies. */
static bool is_plain_copy(struct spelling_run *run, struct str key)
{
    bool is_copy;
    return run->has_plain_copies && is_master_below(run, key, &is_copy) && is_copy;
}

static void find_plain_copies(struct spelling_run *run)
{
    bool is_copy;
    for (uint32_t i = 0; i < map_space_tensor_count(run->before->space) && !run->has_plain_copies; i++)
        run->has_plain_copies = is_master_below(run, run->before->space->tensors[i].key, &is_copy) && !is_copy;
}

static reshard_status spell_tensor(struct spelling_run *run, uint32_t index, reshard_error *err)
{
    const struct mapping_spelling *spelling = run->spelling;
    struct str key = run->before->space->tensors[index].key, name, state;
    bool takes_place = run->masters_are == MAPPING_MASTERS_ARE_WEIGHTS && run->masters.kept.count;
    run->place[index] = MAP_NONE;
    if (takes_place && name_map_find(&run->masters.kept, key) != NAME_NONE)
        return RESHARD_OK;
    if (run->is_back && spelling->without.size && starts_with(key, spelling->without))
        return RESHARD_OK;
    if (is_plain_copy(run, key))
        return run->key.failed ? error_set_memory(err) : RESHARD_OK;
    run->place[index] = map_space_tensor_count(&run->stage->own);
    buffer_clear(&run->key);
    if (takes_place && state_keys_match(&run->masters.keys, key, false, &name, &state) && has_word(spelling->masters, state)) {
        buffer_append_str(&run->key, spelling->below);
        buffer_append_str(&run->key, name);
    } else if (!spell_key(spelling, key, run->is_back, &run->key)) {
        return error_set_memory(err);
    }
    enum dtype dtype = run->before->space->tensors[index].dtype;
    return mapping_spelling_add_tensor(run, index, run->weights && dtype == DTYPE_F32 && is_doubled(run, key) ? *run->weights : dtype, err);
}

/* The state that a weight is at the same time. */
static reshard_status copy_master(struct spelling_run *run, uint32_t index, reshard_error *err)
{
    struct str name, words = run->spelling->masters;
    struct buffer own = { 0 };
    const struct map_tensor *tensor = &run->before->space->tensors[index];
    if (!is_doubled(run, tensor->key) || !weight_below(run->spelling, tensor->key, &name))
        return RESHARD_OK;
    buffer_clear(&run->key);
    mapping_spelling_append_name(run->spelling, name, true, &own);
    state_keys_append(&run->masters.keys, buffer_str(&own), str_take_word(&words), false, &run->key);
    run->key.failed |= own.failed;
    buffer_release(&own);
    run->copied[run->copied_count++] = index;
    return mapping_spelling_add_tensor(run, index, tensor->dtype, err);
}

/* The weight that a master without one is cast to. */
static reshard_status make_weight(struct spelling_run *run, uint32_t index, reshard_error *err)
{
    const struct map_tensor *tensor = &run->before->space->tensors[index];
    struct str name, state;
    if (!state_keys_match(&run->masters.keys, tensor->key, run->is_back, &name, &state) || !has_word(run->spelling->masters, state) ||
        mapping_spelling_find_weight(run, name, &run->key) != NAME_NONE)
        return run->key.failed ? error_set_memory(err) : RESHARD_OK;
    buffer_clear(&run->key);
    if (!run->is_back)
        buffer_append_str(&run->key, run->spelling->below);
    mapping_spelling_append_name(run->spelling, name, run->is_back, &run->key);
    run->copied[run->copied_count++] = index;
    run->made++;
    return mapping_spelling_add_tensor(run, index, run->weights ? *run->weights : DTYPE_BF16, err);
}

/* The plain copy that is the master of a float32 weight. */
static reshard_status make_master(struct spelling_run *run, uint32_t index, reshard_error *err)
{
    const struct map_tensor *tensor = &run->before->space->tensors[index];
    struct str words = run->spelling->masters;
    struct buffer own = { 0 };
    if (tensor->dtype != DTYPE_F32 || name_map_find(&run->masters.stated, tensor->key) == NAME_NONE ||
        name_map_find(&run->masters.kept, tensor->key) != NAME_NONE)
        return RESHARD_OK;
    buffer_clear(&run->key);
    mapping_spelling_append_name(run->spelling, tensor->key, false, &own);
    state_keys_append(&run->masters.keys, buffer_str(&own), str_take_word(&words), true, &run->key);
    run->key.failed |= own.failed;
    buffer_release(&own);
    run->copied[run->copied_count++] = index;
    return mapping_spelling_add_tensor(run, index, tensor->dtype, err);
}

static reshard_status spell_tensors(struct spelling_run *run, reshard_error *err)
{
    uint32_t count = map_space_tensor_count(run->before->space);
    reshard_status status = find_masters(run->before->space, run->spelling, run->is_back, &run->masters, err);
    find_plain_copies(run);
    for (uint32_t i = 0; i < count && !status; i++)
        status = spell_tensor(run, i, err);
    for (uint32_t i = 0; i < count && !status && run->masters.stated.count; i++)
        status = copy_master(run, i, err);
    for (uint32_t i = 0; i < count && !status && run->masters.kept.count && run->spelling->masters_below.size; i++) {
        status = make_weight(run, i, err);
        if (!status && !run->is_back)
            status = make_master(run, i, err);
    }
    return status ? status : map_space_seal(&run->stage->own, err);
}

static reshard_status copy_recipes(struct spelling_run *run, reshard_error *err)
{
    const struct recipe_table *table = &run->before->table;
    uint32_t count = map_space_tensor_count(run->stage->space);
    reshard_status status = RESHARD_OK;
    for (uint32_t i = 0; i < table->count && !status; i++) {
        struct recipe recipe = table->recipes[i];
        recipe.target_tensor = run->place[recipe.target_tensor];
        if (recipe.target_tensor != MAP_NONE)
            status = recipe_table_append(&run->stage->table, &recipe, err);
    }
    for (uint32_t i = 0; i < run->copied_count && !status; i++) {
        for (uint32_t r = table->first[run->copied[i]]; r < table->first[run->copied[i] + 1] && !status; r++) {
            struct recipe recipe = table->recipes[r];
            recipe.target_tensor = count - run->copied_count + i;
            status = recipe_table_append(&run->stage->table, &recipe, err);
        }
    }
    return status ? status : recipe_table_close(&run->stage->table, count, err);
}

reshard_status mapping_apply_spelling(struct mapping_stage **stage, const struct mapping_spelling *spelling, bool is_back,
                                      enum mapping_masters masters, const enum dtype *weights, uint32_t *made, reshard_error *err)
{
    *made = 0;
    if (!spelling->below.size && !spelling->pair_count)
        return RESHARD_OK;
    size_t count = (size_t)map_space_tensor_count((*stage)->space) + 1;
    struct spelling_run run = { .spelling = spelling,
                                .before = *stage,
                                .is_back = is_back,
                                .masters_are = spelling->masters.size ? masters : MAPPING_MASTERS_AS_STORED,
                                .weights = weights };
    run.stage = calloc(1, sizeof(*run.stage));
    run.place = array_zeroed(count, sizeof(*run.place));
    run.copied = array_zeroed(3 * count, sizeof(*run.copied));
    reshard_status status = run.stage && run.place && run.copied ? RESHARD_OK : error_set_memory(err);
    if (!status) {
        run.stage->space = &run.stage->own;
        status = spell_tensors(&run, err);
    }
    if (!status)
        status = copy_recipes(&run, err);
    free(run.place);
    free(run.copied);
    buffer_release(&run.key);
    masters_release(&run.masters);
    if (status) {
        mapping_free(run.stage);
        return status;
    }
    run.stage->before = *stage;
    *stage = run.stage;
    *made = run.made;
    return RESHARD_OK;
}
