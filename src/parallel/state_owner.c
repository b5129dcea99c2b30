/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel/state_owner.h"

#include "parallel/state_keys.h"

#define READINGS_MAX 16 /* a key that says `state` more often is no optimizer's */
#define NAME_MAX_BYTES 4096
#define SEARCHES_MAX 64 /* over all keys, for the prefix of one optimizer: a damaged or hostile list of keys costs no more */

static bool is_any_word(struct str word)
{
    return word.size > 0;
}

/* The index-th reading that has the word `state`; the name of the state behind the weight's comes last. */
static bool owner_reading(struct str key, int index, struct state_spelling *out)
{
    return index < READINGS_MAX && state_spelling_read(key, index, is_any_word, out) && out->name.data != key.data;
}

static bool is_spelled_state(struct str key)
{
    struct state_spelling read;
    return owner_reading(key, 0, &read);
}

/* The tensor of these two texts, one behind the other, if it is no state itself. */
static uint32_t find_joined(const struct catalog *catalog, struct str prefix, struct str name)
{
    char text[NAME_MAX_BYTES];
    if (prefix.size + name.size > sizeof(text) || name.size == 0)
        return CATALOG_NONE;
    memcpy(text, prefix.data ? prefix.data : "", prefix.size);
    memcpy(text + prefix.size, name.data, name.size);
    struct str key = { text, prefix.size + name.size };
    return is_spelled_state(key) ? CATALOG_NONE : catalog_find(catalog, key);
}

/* ---- prefixes ---- */

static struct state_owner_prefix *owner_prefix(const struct state_owners *owners, struct str before)
{
    for (uint32_t i = 0; i < owners->count; i++) {
        if (str_equal(owners->prefixes[i].before, before))
            return (struct state_owner_prefix *)&owners->prefixes[i];
    }
    return NULL;
}

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
static void search_prefix(const struct catalog *catalog, struct str name, struct state_owner_prefix *prefix)
{
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str key = catalog->tensors[i].key;
        if (key.size < name.size + 2 || catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        struct str head = { key.data, key.size - name.size };
        bool fits = head.data[head.size - 1] == '.' && memcmp(head.data + head.size, name.data, name.size) == 0;
        if (!fits || is_spelled_state(key) || (prefix->is_found && !is_nearer(head, prefix->prefix, prefix->before)))
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

void state_owners_begin(struct state_owners *owners, const struct catalog *catalog)
{
    uint32_t searches = 0;
    *owners = (struct state_owners){ .catalog = catalog };
    for (uint32_t i = 0; i < catalog->tensor_count; i++) {
        struct str key = catalog->tensors[i].key, state;
        struct state_spelling read;
        uint32_t weight;
        if (catalog->tensors[i].flags & TENSOR_HIDDEN)
            continue;
        for (int index = 0; owner_reading(key, index, &read); index++) {
            bool is_last = read.state.data > read.name.data;
            struct state_owner_prefix *prefix = is_last ? note_before(owners, read.before) : NULL;
            if (!prefix || searches == SEARCHES_MAX || state_owners_find(owners, key, &weight, &state))
                continue;
            search_prefix(catalog, read.name, prefix);
            searches++;
        }
    }
}

/* ---- owners ---- */

uint32_t state_owners_weight(const struct state_owners *owners, struct str before, struct str name)
{
    const struct state_owner_prefix *prefix = owner_prefix(owners, before);
    uint32_t weight = find_joined(owners->catalog, (struct str){ 0 }, name);
    if (weight == CATALOG_NONE && prefix && prefix->is_found)
        weight = find_joined(owners->catalog, prefix->prefix, name);
    return weight;
}

bool state_owners_read(const struct state_owners *owners, struct str key, struct owned_state *out)
{
    struct state_spelling read;
    for (int index = 0; owner_reading(key, index, &read); index++) {
        bool is_last = read.state.data > read.name.data;
        *out = (struct owned_state){ is_last ? STATE_WORDS_TORCH : STATE_WORDS_MEGATRON,
                                     state_owners_weight(owners, read.before, read.name), read.state, read.before };
        if (out->weight != CATALOG_NONE)
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
