/* SPDX-License-Identifier: Apache-2.0 */
/* The other way round: states of a weight that is a copy of another, where the reference, in which the two are one, has them once. */
#include "convert/tied_states.h"

#include "base/array.h"
#include "convert/weight_copies.h"
#include "mapping/map_state.h"

#include <stdlib.h>

struct spare_search {
    struct weight_copies source, reference;
    struct spare_state *found;
    uint32_t count, capacity;
};

/* A weight of the source that may be spare, and what is behind its name in that of its state. */
struct spare_name {
    struct str weight, rest;
};

static reshard_status spare_add(struct spare_search *search, const struct spare_state *state, reshard_error *err)
{
    if (!ARRAY_ROOM(search->found, search->count, search->capacity))
        return error_set_memory(err);
    search->found[search->count++] = *state;
    return RESHARD_OK;
}

/* The reference ties the weight to `kept`. Whether it has the state there that it lacks here, and the source both, of which that one is
 * selected; then whether these are the same. */
static reshard_status spare_compare(struct spare_search *search, struct str kept, const struct spare_name *spare, bool *is_found,
                                    reshard_error *err)
{
    static const struct str none = { "", 0 };
    struct weight_copies *source = &search->source;
    uint32_t weight = weight_copies_find(source, kept, none), other = weight_copies_find(source, spare->weight, none);
    uint32_t state = weight_copies_find(source, kept, spare->rest), spared = weight_copies_find(source, spare->weight, spare->rest);
    bool is_same_weight, is_same_state = false;
    *is_found = false;
    if (weight_copies_find(&search->reference, kept, spare->rest) == CATALOG_NONE || weight == CATALOG_NONE || other == CATALOG_NONE ||
        state == CATALOG_NONE || spared == CATALOG_NONE || !source->names->is_wanted[state])
        return source->key.failed || search->reference.key.failed ? error_set_memory(err) : RESHARD_OK;
    reshard_status status = weight_copies_same(source, weight, other, &is_same_weight, err);
    if (!status && is_same_weight)
        status = weight_copies_same(source, state, spared, &is_same_state, err);
    if (status)
        return status;
    *is_found = true;
    return spare_add(search, &(struct spare_state){ .tensor = spared, .kept = state, .is_same = is_same_state }, err);
}

/* Looks for the weight that the one of this state is tied to in the reference. */
static reshard_status spare_look(struct spare_search *search, uint32_t tensor, reshard_error *err)
{
    const struct catalog *wanted = search->reference.catalog;
    struct str key = weight_copies_key(&search->source, tensor);
    struct spare_name spare;
    struct weight_walk walk;
    bool is_found = false;
    uint32_t owner = CATALOG_NONE;
    if (!search->source.names->is_wanted[tensor] || map_state_of(key, &spare.weight) == MAP_STATE_WEIGHT ||
        catalog_find(wanted, key) != CATALOG_NONE)
        return RESHARD_OK;
    spare.rest = (struct str){ key.data + spare.weight.size, key.size - spare.weight.size };
    uint32_t weight = catalog_find(wanted, spare.weight);
    if (weight == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = weight_walk_begin(&search->reference, weight, &walk, err);
    if (!status)
        status = weight_walk_next(&search->reference, &walk, &owner, err);
    while (owner != CATALOG_NONE && !status) {
        status = spare_compare(search, wanted->tensors[owner].key, &spare, &is_found, err);
        if (status || is_found)
            return status;
        status = weight_walk_next(&search->reference, &walk, &owner, err);
    }
    return status;
}

reshard_status spare_states_find(struct checkpoint *source, const struct selected_names *names, struct checkpoint *reference,
                                 const struct engine_options *engine, struct spare_state **out, uint32_t *count, reshard_error *err)
{
    struct spare_search search = { 0 };
    reshard_status status = weight_copies_open(source, names, engine, &search.source, err);
    if (!status)
        status = weight_copies_open(reference, NULL, engine, &search.reference, err);
    for (uint32_t i = 0; i < source->listed_count && search.reference.owner_count && !status; i++)
        status = spare_look(&search, source->listed[i], err);
    weight_copies_release(&search.source);
    weight_copies_release(&search.reference);
    if (status) {
        free(search.found);
        search = (struct spare_search){ 0 };
    }
    *out = search.found;
    *count = search.count;
    return status;
}
