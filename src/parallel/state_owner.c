/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_owner.h"

#include "parallel/state_keys.h"

#define READINGS_MAX 16 /* a key that says `state` more often is no optimizer's */
#define NAME_MAX_BYTES 4096
#define SEARCHES_MAX 64 /* over all keys, for the prefixes of optimizers: a damaged or hostile list of keys costs no more */
#define OPTIMIZER_WORD "optim"

static bool is_any_word(struct str word)
{
    return word.size > 0;
}

/* The index-th reading that has the word `state`; the name of the state behind the weight's comes last. */
static bool owner_reading(struct str key, int index, struct state_spelling *out)
{
    return index < READINGS_MAX && state_spelling_read(key, index, is_any_word, out) && out->name.data != key.data;
}

static struct state_owner_prefix *owner_prefix(const struct state_owners *owners, struct str before)
{
    for (uint32_t i = 0; i < owners->count; i++) {
        if (str_equal(owners->prefixes[i].before, before))
            return (struct state_owner_prefix *)&owners->prefixes[i];
    }
    return NULL;
}

static bool is_called_optimizer(struct str before)
{
    return before.size && memmem(before.data, before.size, OPTIMIZER_WORD, strlen(OPTIMIZER_WORD));
}

/* Further optimizers than there is room for; modules that are called `state` are none. */
static bool is_one_too_many(const struct state_owners *owners, struct str before)
{
    return owners->count == STATE_OWNER_PREFIXES && is_called_optimizer(before);
}

static bool owners_have_optimizer(const struct state_owners *owners, struct str before)
{
    const struct state_owner_prefix *prefix = owner_prefix(owners, before);
    if (owners->stage != OWNERS_ARE_KNOWN)
        return owners->stage == OWNERS_OF_OTHERS || is_called_optimizer(before);
    return prefix ? prefix->has_owner : is_one_too_many(owners, before);
}

/* Whether it is an optimizer's; while these are looked for, whether it may be. */
static bool is_spelled_state(const struct state_owners *owners, struct str key)
{
    struct state_spelling read;
    for (int index = 0; owner_reading(key, index, &read); index++) {
        if (owners_have_optimizer(owners, read.before))
            return true;
    }
    return false;
}

/* The tensor of these two texts, one behind the other, if it is no state itself. */
static uint32_t find_joined(const struct state_owners *owners, struct str prefix, struct str name)
{
    char text[NAME_MAX_BYTES];
    if (prefix.size + name.size > sizeof(text) || name.size == 0)
        return CATALOG_NONE;
    memcpy(text, prefix.data ? prefix.data : "", prefix.size);
    memcpy(text + prefix.size, name.data, name.size);
    struct str key = { text, prefix.size + name.size };
    uint32_t found = catalog_find(owners->catalog, key);
    return found == CATALOG_NONE || is_spelled_state(owners, key) ? CATALOG_NONE : found;
}

/* ---- prefixes ---- */

/* Characters of the parts that both begin with. */
static size_t shared_start(struct str a, struct str b)
{
    size_t shared = 0;
    for (size_t size = 0; size < a.size && size < b.size && a.data[size] == b.data[size]; size++)
        shared = a.data[size] == '.' ? size + 1 : shared;
    return shared;
}

/* What everybody calls the trained model, beside which there may be an average of it. */
static bool is_called_model(struct str prefix)
{
    return str_ends_with(prefix, "model.") || str_ends_with(prefix, "module.");
}

/* Of two prefixes the one that has more in common with the optimizer's own, then a model's, then the shorter one. */
static bool is_nearer(struct str prefix, struct str than, struct str before)
{
    size_t own = shared_start(prefix, before), other = shared_start(than, before);
    if (own != other)
        return own > other;
    if (is_called_model(prefix) != is_called_model(than))
        return is_called_model(prefix);
    return prefix.size < than.size;
}

/* Looks through all keys for PREFIX.name. */
static void search_prefix(const struct state_owners *owners, struct str name, struct state_owner_prefix *prefix)
{
    const struct catalog *catalog = owners->catalog;
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str key = catalog->tensors[i].key;
        if (key.size < name.size + 2 || catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        struct str head = { key.data, key.size - name.size };
        bool fits = head.data[head.size - 1] == '.' && memcmp(head.data + head.size, name.data, name.size) == 0;
        if (!fits || is_spelled_state(owners, key) || (prefix->is_found && !is_nearer(head, prefix->prefix, prefix->before)))
            continue;
        prefix->prefix = head;
        prefix->is_found = true;
    }
}

static struct state_owner_prefix *note_before(struct state_owners *owners, struct str before)
{
    struct state_owner_prefix *known = owner_prefix(owners, before);
    if (known || owners->count == STATE_OWNER_PREFIXES)
        return known;
    owners->prefixes[owners->count] = (struct state_owner_prefix){ .before = before };
    return &owners->prefixes[owners->count++];
}

static enum state_words words_of_reading(const struct state_spelling *read)
{
    return read->state.data > read->name.data ? STATE_WORDS_TORCH : STATE_WORDS_MEGATRON;
}

/* Which spelling the key has, if it can be read in one alone: exp_avg of a weight that is called `step` may be the step of another. */
static void note_words(const struct state_owners *owners, struct str key, struct state_owner_prefix *prefix)
{
    bool is_one[STATE_WORDS_FLAT] = { false };
    struct state_spelling read;
    for (int index = 0; owner_reading(key, index, &read); index++) {
        if (str_equal(read.before, prefix->before) && state_owners_weight(owners, read.before, read.name) != CATALOG_NONE)
            is_one[words_of_reading(&read)] = true;
    }
    if (is_one[STATE_WORDS_TORCH] != is_one[STATE_WORDS_MEGATRON])
        prefix->has_words[is_one[STATE_WORDS_TORCH] ? STATE_WORDS_TORCH : STATE_WORDS_MEGATRON] = true;
}

static void note_optimizer_of(struct state_owners *owners, struct str key, const struct state_owner_prefix *found)
{
    struct state_owner_prefix *place = note_before(owners, found->before);
    if (!place)
        return;
    place->prefix = found->prefix;
    place->is_found = found->is_found;
    place->has_owner = true;
    note_words(owners, key, place);
}

static bool is_of_stage(const struct state_owners *owners, struct str before)
{
    return is_called_optimizer(before) == (owners->stage == OWNERS_OF_CALLED);
}

static bool may_be_of_stage(const struct state_owners *owners, struct str key)
{
    struct state_spelling read;
    for (int index = 0; owner_reading(key, index, &read); index++) {
        if (is_of_stage(owners, read.before))
            return true;
    }
    return false;
}

/* Notes the optimizer whose key this is, if the tensor is there that it is state of. */
static void look_for_owner(struct state_owners *owners, struct str key, uint32_t *searches)
{
    struct state_owner_prefix found;
    struct state_spelling read;
    struct owned_state owned;
    bool is_owned = state_owners_read(owners, key, &owned) && owned.words != STATE_WORDS_FLAT;
    for (int index = 0; owner_reading(key, index, &read); index++) {
        const struct state_owner_prefix *known = owner_prefix(owners, read.before);
        bool is_here = is_owned ? str_equal(owned.before, read.before) : words_of_reading(&read) == STATE_WORDS_TORCH;
        if (!is_here || !is_of_stage(owners, read.before))
            continue;
        found = known ? *known : (struct state_owner_prefix){ .before = read.before };
        if (!is_owned && *searches < SEARCHES_MAX) {
            search_prefix(owners, read.name, &found);
            ++*searches;
        }
        if (is_owned || found.is_found) {
            note_optimizer_of(owners, key, &found);
            return;
        }
    }
}

/* What is called an optimizer comes first: modules that are called `state` may be many, and none of them leads to an owner. */
void state_owners_begin(struct state_owners *owners, const struct catalog *catalog)
{
    *owners = (struct state_owners){ .catalog = catalog };
    for (; owners->stage < OWNERS_ARE_KNOWN; owners->stage++) {
        uint32_t searches = 0;
        for (uint32_t i = 0; i < catalog->tensor_count; i++) {
            if (!(catalog->tensors[i].flags & TENSOR_HIDDEN) && may_be_of_stage(owners, catalog->tensors[i].key))
                look_for_owner(owners, catalog->tensors[i].key, &searches);
        }
    }
}

/* ---- owners ---- */

uint32_t state_owners_weight(const struct state_owners *owners, struct str before, struct str name)
{
    const struct state_owner_prefix *prefix = owner_prefix(owners, before);
    uint32_t weight = find_joined(owners, (struct str){ 0 }, name);
    if (weight == CATALOG_NONE && prefix && prefix->is_found)
        weight = find_joined(owners, prefix->prefix, name);
    bool is_unknown = !prefix && is_one_too_many(owners, before); /* its weights lie where those of others do */
    for (uint32_t i = 0; i < owners->count && is_unknown && weight == CATALOG_NONE; i++)
        weight = owners->prefixes[i].is_found ? find_joined(owners, owners->prefixes[i].prefix, name) : CATALOG_NONE;
    return weight;
}

/* Whether its optimizer has keys in the other spelling alone. */
static bool is_spelled_otherwise(const struct state_owners *owners, struct str before, enum state_words words)
{
    const struct state_owner_prefix *prefix = owners->stage == OWNERS_ARE_KNOWN ? owner_prefix(owners, before) : NULL;
    enum state_words other = words == STATE_WORDS_TORCH ? STATE_WORDS_MEGATRON : STATE_WORDS_TORCH;
    return prefix && prefix->has_words[other] && !prefix->has_words[words];
}

bool state_owners_read(const struct state_owners *owners, struct str key, struct owned_state *out)
{
    struct state_spelling read;
    struct owned_state odd = { .weight = CATALOG_NONE };
    for (int index = 0; owner_reading(key, index, &read); index++) {
        *out = (struct owned_state){ words_of_reading(&read), state_owners_weight(owners, read.before, read.name), read.state,
                                     read.before };
        if (out->weight != CATALOG_NONE && !is_spelled_otherwise(owners, read.before, out->words))
            return true;
        if (odd.weight == CATALOG_NONE)
            odd = *out;
    }
    if (odd.weight != CATALOG_NONE) {
        *out = odd;
        return true;
    }
    const char *mark = key.size ? memrchr(key.data, '-', key.size) : NULL;
    size_t name = mark ? (size_t)(mark - key.data) : 0;
    if (!name || name + 1 == key.size)
        return false;
    *out = (struct owned_state){ .words = STATE_WORDS_FLAT, .state = { mark + 1, key.size - name - 1 }, .before = { key.data, 0 } };
    out->weight = catalog_find(owners->catalog, (struct str){ key.data, name });
    return out->weight != CATALOG_NONE;
}

bool state_owners_find(const struct state_owners *owners, struct str key, uint32_t *weight, struct str *state)
{
    struct owned_state read;
    bool is_found = state_owners_read(owners, key, &read) && read.words != STATE_WORDS_FLAT;
    *weight = is_found ? read.weight : CATALOG_NONE;
    *state = is_found ? read.state : (struct str){ 0 };
    return is_found;
}
