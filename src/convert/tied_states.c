/* SPDX-License-Identifier: Apache-2.0 */
#include "convert/tied_states.h"

#include "base/array.h"
#include "convert/weight_copies.h"
#include "mapping/map_state.h"

#include <stdlib.h>

struct tied_search {
    struct weight_copies source;
    struct tied_state *found;
    uint32_t count, capacity;
};

static bool tied_same_kind(const struct catalog *a, const struct catalog_tensor *x, const struct catalog *b, const struct catalog_tensor *y)
{
    return x->dtype == y->dtype && catalog_same_shape(a, x, b, y);
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
    const struct catalog *catalog = search->source.catalog;
    struct weight_walk walk;
    struct str name;
    uint32_t owner = CATALOG_NONE;
    if (wanted->flags & TENSOR_HIDDEN || map_state_of(wanted->key, &name) == MAP_STATE_WEIGHT ||
        catalog_find(catalog, wanted->key) != CATALOG_NONE)
        return RESHARD_OK;
    const struct str rest = { wanted->key.data + name.size, wanted->key.size - name.size };
    uint32_t weight = catalog_find(catalog, name);
    if (weight == CATALOG_NONE)
        return RESHARD_OK;
    reshard_status status = weight_walk_begin(&search->source, weight, &walk, err);
    if (!status)
        status = weight_walk_next(&search->source, &walk, &owner, err);
    while (owner != CATALOG_NONE && !status) {
        uint32_t state = weight_copies_find(&search->source, catalog->tensors[owner].key, rest);
        if (state != CATALOG_NONE && tied_same_kind(reference, wanted, catalog, &catalog->tensors[state]))
            return tied_add(search, wanted->key, state, err);
        status = weight_walk_next(&search->source, &walk, &owner, err);
    }
    return status;
}

reshard_status tied_states_find(struct checkpoint *source, const struct catalog *reference, const struct engine_options *engine,
                                struct tied_state **out, uint32_t *count, reshard_error *err)
{
    struct tied_search search = { 0 };
    reshard_status status = weight_copies_open(source, engine, &search.source, err);
    for (uint32_t i = 0; i < reference->tensor_count && search.source.owner_count && !status; i++)
        status = tied_look(&search, reference, &reference->tensors[i], err);
    if (!status && search.source.key.failed)
        status = error_set_memory(err);
    weight_copies_release(&search.source);
    if (status) {
        free(search.found);
        search = (struct tied_search){ 0 };
    }
    *out = search.found;
    *count = search.count;
    return status;
}
