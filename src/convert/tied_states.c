/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tied_states.h"

#include "base/array.h"
#include "base/buffer.h"
#include "convert/tensor_digests.h"
#include "mapping/map_state.h"

#include <stdlib.h>

struct tied_search {
    struct checkpoint *checkpoint;
    const struct catalog *catalog;
    const struct engine_options *engine;
    struct tied_state *found;
    uint32_t count, capacity;
    uint32_t *candidates; /* of the state at hand: weights, beginning with its own */
    char (*hex)[DIGEST_HEX_MAX];
    struct buffer key;
};

static bool tied_same_kind(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b, const struct catalog_tensor *y)
{
    return x->dtype == y->dtype && catalog_same_shape(a, x, b, y);
}

/* The tensor that is the same state of another weight, or CATALOG_NONE. */
static uint32_t state_of_weight(struct tied_search *search, struct str weight, struct str rest)
{
    buffer_clear(&search->key);
    buffer_append_str(&search->key, weight);
    buffer_append_str(&search->key, rest);
    return search->key.failed ? CATALOG_NONE : catalog_find(search->catalog, buffer_str(&search->key));
}

/* Weights of the kind of this one that have the state which it lacks; listed behind it. */
static uint32_t candidates_list(struct tied_search *search, uint32_t weight, struct str rest)
{
    const struct catalog_tensor *own = &search->catalog->tensors[weight];
    uint32_t count = 0;
    search->candidates[count++] = weight;
    for (uint32_t i = 0; i < search->checkpoint->listed_count; i++) {
        uint32_t other = search->checkpoint->listed[i];
        const struct catalog_tensor *entry = &search->catalog->tensors[other];
        if (other != weight && tied_same_kind(search->catalog, own, search->catalog, entry) &&
            state_of_weight(search, entry->key, rest) != CATALOG_NONE)
            search->candidates[count++] = other;
    }
    return count;
}

/* Digests of those that have none yet. */
static reshard_status candidates_digest(struct tied_search *search, uint32_t count, reshard_error *err)
{
    uint32_t *unknown = calloc((size_t)count + 1, sizeof(*unknown)), unknown_count = 0;
    if (!unknown)
        return error_set_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        if (!search->hex[search->candidates[i]][0])
            unknown[unknown_count++] = search->candidates[i];
    }
    reshard_status status = RESHARD_OK;
    if (unknown_count)
        status = tensor_digests(search->checkpoint, DIGEST_XXH3, unknown, unknown_count, NULL, search->engine, search->hex, err);
    free(unknown);
    return status;
}

static reshard_status tied_add(struct tied_search *search, struct str key, uint32_t tensor, reshard_error *err)
{
    if (!ARRAY_ROOM(search->found, search->count, search->capacity))
        return error_set_memory(err);
    search->found[search->count++] = (struct tied_state){ key, tensor };
    return RESHARD_OK;
}

/* A tensor of the reference that the source may have under another name. */
static reshard_status tied_look(struct tied_search *search, const struct catalog *reference, const struct catalog_tensor *wanted,
                                reshard_error *err)
{
    struct str name;
    if (wanted->flags & TENSOR_HIDDEN || map_state_of(wanted->key, &name) == MAP_STATE_WEIGHT ||
        catalog_find(search->catalog, wanted->key) != CATALOG_NONE)
        return RESHARD_OK;
    const struct str rest = { wanted->key.data + name.size, wanted->key.size - name.size };
    uint32_t weight = catalog_find(search->catalog, name);
    if (weight == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = work_spend_steps(search->checkpoint->source->limits.budget, search->checkpoint->listed_count, err);
    uint32_t count = status ? 0 : candidates_list(search, weight, rest);
    if (count > 1)
        status = candidates_digest(search, count, err);
    for (uint32_t i = 1; i < count && !status; i++) {
        uint32_t other = search->candidates[i], state = state_of_weight(search, search->catalog->tensors[other].key, rest);
        if (strcmp(search->hex[other], search->hex[weight]) == 0 && state != CATALOG_NONE &&
            tied_same_kind(reference, wanted, search->catalog, &search->catalog->tensors[state]))
            return tied_add(search, wanted->key, state, err);
    }
    return status;
}

reshard_status tied_states_find(struct checkpoint *source, const struct catalog *reference, const struct engine_options *engine,
                                struct tied_state **out, uint32_t *count, reshard_error *err)
{
    struct tied_search search = { .checkpoint = source, .catalog = source->source->catalog, .engine = engine };
    size_t tensors = search.catalog->tensor_count;
    search.candidates = calloc(tensors + 1, sizeof(*search.candidates));
    search.hex = calloc(tensors + 1, sizeof(*search.hex));
    reshard_status status = search.candidates && search.hex ? RESHARD_OK : error_set_memory(err);
    for (uint32_t i = 0; i < reference->tensor_count && !status; i++)
        status = tied_look(&search, reference, &reference->tensors[i], err);
    free(search.candidates);
    free(search.hex);
    buffer_release(&search.key);
    if (status) {
        free(search.found);
        search = (struct tied_search){ 0 };
    }
    *out = search.found;
    *count = search.count;
    return status;
}
